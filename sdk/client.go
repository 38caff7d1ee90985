// Package troupe is the Go SDK: jobs, placement groups, logs, events and actors of a
// Troupe cluster over its HTTP API, and actor calls over its bus. It holds no state of
// the cluster; every method is one request, retried where a retry cannot do harm.
package troupe

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/trust"
)

// Limits and pace of the client.
const (
	// DefaultPort of the API, used when an address names none.
	DefaultPort = "7600"
	maxBody     = 64 << 20
	longPoll    = 25 * time.Second
	retryFor    = 15 * time.Second
	patientFor  = time.Minute
	firstRetry  = 50 * time.Millisecond
	slowRetry   = time.Second
)

// Client talks to the heads of one cluster. It is safe for concurrent use.
type Client struct {
	base  *url.URL
	token string
	http  *http.Client
	// Agent is sent as User-Agent.
	Agent string
	// Patience is how long what is followed, a job or a log, waits for a head that has
	// answered before and does not now; 0 is a minute.
	Patience time.Duration
}

// Option changes a Client.
type Option func(*Client)

// WithHTTPClient replaces the HTTP client, for a proxy or for tests.
func WithHTTPClient(c *http.Client) Option { return func(x *Client) { x.http = c } }

// WithPin makes the client talk TLS to heads of one cluster alone, which it knows by the
// digest of their root certificate.
func WithPin(pin trust.Digest) Option {
	return func(x *Client) {
		t := transport()
		t.TLSClientConfig = trust.PinnedTLS(pin, time.Now)
		x.http.Transport = t
	}
}

func transport() *http.Transport {
	return &http.Transport{
		DialContext: (&net.Dialer{Timeout: 3 * time.Second}).DialContext, MaxIdleConnsPerHost: 64,
		IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true, Proxy: nil,
	}
}

// ParseAddress accepts host, host:port and http(s)://host:port.
func ParseAddress(address string) (*url.URL, error) {
	s := strings.TrimSpace(address)
	if s == "" {
		return nil, errors.New("troupe: no address of a head given")
	}
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("troupe: address %q: %w", address, err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return nil, fmt.Errorf("troupe: address %q: want host, host:port or http://host:port", address)
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), DefaultPort)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	u.RawQuery, u.Fragment = "", ""
	return u, nil
}

// New makes a client for the head at address with an API token. It does not connect.
func New(address, token string, opts ...Option) (*Client, error) {
	u, err := ParseAddress(address)
	if err != nil {
		return nil, err
	}
	c := &Client{base: u, token: token, Agent: "troupe-go"}
	c.http = &http.Client{
		Transport: transport(),
		// The token must not follow a redirect to somebody else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	for _, o := range opts {
		o(c)
	}
	return c, nil
}

// Address is where the client sends requests.
func (c *Client) Address() string { return c.base.String() }

// ErrUnreachable wraps failures to reach a head at all.
var ErrUnreachable = errors.New("no head answers")

// AsProblem returns the API's problem inside an error, or nil.
func AsProblem(err error) *api.Problem {
	if p, ok := errors.AsType[*api.Problem](err); ok {
		return p
	}
	return nil
}

type call struct {
	method, path string
	query        url.Values
	body         any
	key          string // idempotency key: makes a POST safe to repeat
	// once: never repeat, not even what is safe.
	once bool
	// patient: the head has answered before, so that a refused connection is repeated too.
	patient bool
}

// NewKey draws an idempotency key.
func NewKey() (string, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("troupe: draw an idempotency key: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

// do sends a request and decodes the answer into out. Reads, and writes with a key,
// are repeated with back-off while the head cannot be reached or says that a repeat
// may help, until ctx ends, for 15 s at most or, when something is followed, for as
// long as the client is patient.
func (c *Client) do(ctx context.Context, q call, out any) (http.Header, error) {
	var payload []byte
	if q.body != nil {
		var err error
		if payload, err = json.Marshal(q.body); err != nil {
			return nil, fmt.Errorf("troupe: encode request: %w", err)
		}
	}
	safe := !q.once && (q.method == http.MethodGet || q.key != "" || q.method == http.MethodDelete)
	begin := time.Now()
	for wait := firstRetry; ; wait = min(wait*2, slowRetry) {
		header, err := c.send(ctx, q, payload, out, time.Since(begin))
		if errors.Is(err, ErrUnreachable) && !isRefused(err) {
			q.patient = true // somebody was there a moment ago
		}
		limit := retryFor
		if q.patient {
			limit = cmp.Or(c.Patience, patientFor)
		}
		if err == nil || !safe || ctx.Err() != nil || !repeatable(err, q.patient) || time.Since(begin) > limit {
			return header, err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, err
		}
	}
}

func repeatable(err error, patient bool) bool {
	if p := AsProblem(err); p != nil {
		return p.Retryable && (p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests)
	}
	// A refused connection is told at once: a wrong address should not take 15 s.
	return errors.Is(err, ErrUnreachable) && (patient || !isRefused(err))
}

func isRefused(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

func (c *Client) send(ctx context.Context, q call, payload []byte, out any, age time.Duration) (http.Header, error) {
	u := *c.base
	u.Path += q.path
	u.RawPath = ""
	if strings.Contains(q.path, "%") {
		p, err := url.PathUnescape(q.path)
		if err != nil {
			return nil, fmt.Errorf("troupe: path %q: %w", q.path, err)
		}
		u.Path, u.RawPath = c.base.Path+p, c.base.Path+q.path
	}
	u.RawQuery = q.query.Encode()
	req, err := http.NewRequestWithContext(ctx, q.method, u.String(), bytes.NewReader(payload))
	if err != nil {
		return nil, fmt.Errorf("troupe: %s %s: %w", q.method, q.path, err)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	req.Header.Set("User-Agent", c.Agent)
	if payload != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if q.key != "" {
		req.Header.Set(api.HeaderIdempotencyKey, q.key)
		req.Header.Set(api.HeaderIdempotencyAge, strconv.FormatInt(int64(age/time.Second), 10)+"s")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w at %s: %w", ErrUnreachable, c.base.Host, err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if o, raw := out.(*[]byte); raw && resp.StatusCode < 300 && len(data) > 0 {
			*o = data // a piece of a log is good as far as it came
			return resp.Header, nil
		}
		return nil, fmt.Errorf("%w at %s: the answer broke off: %w", ErrUnreachable, c.base.Host, err)
	}
	if resp.StatusCode >= 300 {
		return resp.Header, problemFrom(resp, data, c.base.Host)
	}
	switch o := out.(type) {
	case nil:
	case *[]byte:
		*o = data
	default:
		if err := json.Unmarshal(data, out); err != nil {
			return resp.Header, fmt.Errorf("troupe: the answer of %s to %s %s is not what this version knows: %w", c.base.Host, q.method, q.path, err)
		}
	}
	return resp.Header, nil
}

// problemFrom reads the problem of an answer, or makes one for an answer that no
// head of ours gives.
func problemFrom(resp *http.Response, data []byte, host string) error {
	p := &api.Problem{}
	if strings.Contains(resp.Header.Get("Content-Type"), "json") && json.Unmarshal(data, p) == nil && p.Code != "" {
		return p
	}
	return &api.Problem{
		Title: "unexpected answer", Status: resp.StatusCode, Code: "TRP-C001", Exit: api.ExitUnreachable,
		Detail: fmt.Sprintf("%s answered %s, which no head does; is it the address of a head's API (port %s)?", host, resp.Status, DefaultPort),
	}
}

// Version asks what the head is; it needs no token.
func (c *Client) Version(ctx context.Context) (api.Version, error) {
	var v api.Version
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/version"}, &v)
	return v, err
}

// Status is the cluster's summary.
func (c *Client) Status(ctx context.Context) (api.Status, error) {
	var s api.Status
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/api/v1/status"}, &s)
	return s, err
}

// list collects all pages of a collection, or the first limit rows.
func list[T any](ctx context.Context, c *Client, path string, query url.Values, limit int) (api.List[T], error) {
	return collect(ctx, c, path, query, limit, func(p *api.List[T]) *api.List[T] { return p })
}

// collect reads pages that hold a list and more; what is more comes from the last page.
func collect[T, P any](ctx context.Context, c *Client, path string, query url.Values, limit int, of func(*P) *api.List[T]) (P, error) {
	var all P
	items := []T{}
	if query == nil {
		query = url.Values{}
	}
	for {
		n := 1000
		if limit > 0 {
			n = min(n, limit-len(items))
		}
		query.Set("limit", strconv.Itoa(n))
		var page P
		if _, err := c.do(ctx, call{method: http.MethodGet, path: path, query: query}, &page); err != nil {
			of(&all).Items = items
			return all, err
		}
		got := of(&page)
		items = append(items, got.Items...)
		all = page
		of(&all).Items = items
		if got.Cursor == "" || limit > 0 && len(items) >= limit {
			return all, nil
		}
		query.Set("cursor", got.Cursor)
	}
}

func (c *Client) get(ctx context.Context, path string, query url.Values, out any) error {
	_, err := c.do(ctx, call{method: http.MethodGet, path: path, query: query}, out)
	return err
}

func seg(s string) string { return url.PathEscape(s) }
