package troupe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Package says whether the cluster has a package, the archive of a folder by the SHA-256
// of its bytes; an *api.Problem with the code TRP-P404 says that it does not.
func (c *Client) Package(ctx context.Context, hash string) (api.Package, error) {
	var p api.Package
	return p, c.get(ctx, "/api/v1/packages/"+seg(hash), nil, &p)
}

// PutPackage sends a package of size bytes unless the cluster has it, and reports whether
// it was sent. open is called for each try. Jobs name it by its hash in JobSpec.Package.
func (c *Client) PutPackage(ctx context.Context, hash string, size int64, open func() (io.ReadCloser, error)) (sent bool, err error) {
	_, err = c.Package(ctx, hash)
	if p := AsProblem(err); err == nil || p == nil || p.Code != "TRP-P404" {
		return false, err
	}
	begin := time.Now()
	for wait := firstRetry; ; wait = min(wait*2, slowRetry) {
		err := c.putPackage(ctx, hash, size, open)
		if err == nil || ctx.Err() != nil || time.Since(begin) > retryFor || !repeatable(err, false) && !cutOff(err) {
			return err == nil, err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return false, ctx.Err()
		}
	}
}

// cutOff: the head did not get the whole of it.
func cutOff(err error) bool {
	p := AsProblem(err)
	return p != nil && p.Code == "TRP-P400"
}

func (c *Client) putPackage(ctx context.Context, hash string, size int64, open func() (io.ReadCloser, error)) error {
	body, err := open()
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	u := *c.base
	u.Path += "/api/v1/packages/" + seg(hash)
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, u.String(), body)
	if err != nil {
		return fmt.Errorf("troupe: send a package: %w", err)
	}
	req.ContentLength = size
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("User-Agent", c.Agent)
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := c.http.Do(req)
	if err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%w at %s: %w", ErrUnreachable, c.base.Host, err))
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return fmt.Errorf("%w at %s: the answer broke off: %w", ErrUnreachable, c.base.Host, err)
	}
	if resp.StatusCode >= 300 {
		return problemFrom(resp, data, c.base.Host)
	}
	return nil
}
