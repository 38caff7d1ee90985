package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
)

// atOnce bounds small requests under way together.
const atOnce = 16

// maxMark bounds what is read of a mark.
const maxMark = 16 << 10

// each runs f for 0 … n-1, a few together, and returns the first error.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range n {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := f(ctx, i); err != nil {
				stop(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// stepDir admits a directory of this store.
func (b *Bucket) stepDir(run, dir string) (checkpoint.StepName, error) {
	n, err := checkpoint.ValidDir(b.address, run, dir)
	if err != nil {
		return n, fmt.Errorf("%w: %w", checkpoint.ErrUnsafe, err)
	}
	return n, nil
}

// WriteManifest implements checkpoint.Store.
func (b *Bucket) WriteManifest(ctx context.Context, run, dir string, data []byte, digest string) error {
	n, err := b.stepDir(run, dir)
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	m, err := checkpoint.Parse(data)
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	if m.Name() != n || m.Run != run {
		return fmt.Errorf("write manifest: %w: it belongs to %s/%s, not to %s", checkpoint.ErrManifest, m.Run, m.Name(), dir)
	}
	if got := checkpoint.DigestBytes(data); got != digest {
		return fmt.Errorf("write manifest: %w: its digest is %s, another was sent", checkpoint.ErrManifest, got)
	}
	found := make([]*checkpoint.Finding, len(m.Files))
	err = each(ctx, len(m.Files), func(ctx context.Context, i int) error {
		f := m.Files[i]
		o, err := b.head(ctx, b.key(dir, f.Path))
		if found[i] = compare(f, o.size, err, "prepared"); found[i] != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		return nil
	})
	if err != nil {
		return err
	}
	var bad []checkpoint.Finding
	for _, f := range found {
		if f != nil {
			bad = append(bad, *f)
		}
	}
	if len(bad) > 0 {
		return &checkpoint.FilesError{Dir: dir, Findings: bad}
	}
	there, err := b.createOnly(ctx, b.key(dir, checkpoint.ManifestFile), data)
	if err != nil {
		return fmt.Errorf("write manifest of %s: %w", dir, err)
	}
	if there != nil && !bytes.Equal(there, data) {
		return fmt.Errorf("write manifest of %s: %w", dir, checkpoint.ErrDifferentManifest)
	}
	return nil
}

// compare makes a finding of an object's length, or of the error instead; nil if it fits.
func compare(f checkpoint.File, size int64, err error, word string) *checkpoint.Finding {
	find := func(kind checkpoint.FindingKind, format string, args ...any) *checkpoint.Finding {
		return &checkpoint.Finding{Path: f.Path, Kind: kind, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return find(checkpoint.FindingMissing, "%s", err)
	case err != nil:
		return find(checkpoint.FindingIO, "%s", err)
	case size < f.Length:
		return find(checkpoint.FindingShort, "%d bytes, %d were %s", size, f.Length, word)
	case size > f.Length:
		return find(checkpoint.FindingLong, "%d bytes, %d were %s", size, f.Length, word)
	}
	return nil
}

// WriteCommitted implements checkpoint.Store.
func (b *Bucket) WriteCommitted(ctx context.Context, run, dir string, mark []byte) error {
	c, err := checkpoint.ParseCommittedMark(mark)
	if err != nil {
		return fmt.Errorf("write %s: %w", checkpoint.CommittedFile, err)
	}
	_, data, err := b.Manifest(ctx, run, dir)
	if err != nil {
		return fmt.Errorf("write %s: %w", checkpoint.CommittedFile, err)
	}
	if got := checkpoint.DigestBytes(data); got != c.Digest {
		return fmt.Errorf("write %s of %s: %w: digest %s, the log says %s", checkpoint.CommittedFile, dir, checkpoint.ErrDigest, got, c.Digest)
	}
	there, err := b.createOnly(ctx, b.key(dir, checkpoint.CommittedFile), mark)
	if err != nil || there == nil {
		return err
	}
	if before, err := checkpoint.ParseCommittedMark(there); err != nil || before.Digest != c.Digest {
		return fmt.Errorf("write %s of %s: %w", checkpoint.CommittedFile, dir, checkpoint.ErrDifferentManifest)
	}
	return nil
}

// WriteRolledBack implements checkpoint.Store.
func (b *Bucket) WriteRolledBack(ctx context.Context, run, dir string, mark []byte) error {
	if _, err := b.stepDir(run, dir); err != nil {
		return fmt.Errorf("write %s: %w", checkpoint.RolledBackFile, err)
	}
	if _, err := checkpoint.ParseRolledBackMark(mark); err != nil {
		return fmt.Errorf("write %s: %w", checkpoint.RolledBackFile, err)
	}
	gone := 0
	for _, name := range []string{checkpoint.ManifestFile, checkpoint.CommittedFile} {
		switch _, err := b.small(ctx, b.key(dir, name), checkpoint.MaxManifest); {
		case errors.Is(err, fs.ErrNotExist):
			gone++
		case err != nil:
			return err
		}
	}
	if gone == 2 {
		return nil // nobody can adopt what is not there
	}
	if _, err := b.createOnly(ctx, b.key(dir, checkpoint.RolledBackFile), mark); err != nil {
		return fmt.Errorf("write %s of %s: %w", checkpoint.RolledBackFile, dir, err)
	}
	return nil
}

// Manifest implements checkpoint.Store.
func (b *Bucket) Manifest(ctx context.Context, run, dir string) (*checkpoint.Manifest, []byte, error) {
	n, err := b.stepDir(run, dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read the manifest: %w", err)
	}
	data, err := b.small(ctx, b.key(dir, checkpoint.ManifestFile), checkpoint.MaxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s: %w", dir, checkpoint.ErrNoManifest)
	}
	if err != nil {
		return nil, nil, err
	}
	m, err := checkpoint.Parse(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s/%s: %w", dir, checkpoint.ManifestFile, err)
	}
	if m.Name() != n || m.Run != run {
		return nil, nil, fmt.Errorf("%s/%s: %w: it belongs to %s/%s", dir, checkpoint.ManifestFile, checkpoint.ErrManifest, m.Run, m.Name())
	}
	return m, data, nil
}

// Open implements checkpoint.Store.
func (b *Bucket) Open(ctx context.Context, run, dir, file string) (io.ReadCloser, int64, error) {
	if _, err := b.stepDir(run, dir); err != nil {
		return nil, 0, fmt.Errorf("open: %w", err)
	}
	if err := checkpoint.ValidPath(file); err != nil {
		return nil, 0, err
	}
	return b.open(ctx, b.key(dir, file))
}

// Verify implements checkpoint.Store.
func (b *Bucket) Verify(ctx context.Context, run, dir, digest string) (checkpoint.Verification, error) {
	var v checkpoint.Verification
	m, data, err := b.Manifest(ctx, run, dir)
	if err != nil {
		return v, fmt.Errorf("verify: %w", err)
	}
	if got := checkpoint.DigestBytes(data); digest != "" && got != digest {
		return v, fmt.Errorf("verify %s: %w: digest %s, the log says %s", dir, checkpoint.ErrDigest, got, digest)
	}
	found := make([]*checkpoint.Finding, len(m.Files))
	err = each(ctx, len(m.Files), func(ctx context.Context, i int) error {
		for range 2 { // what does not match is read again
			if found[i] = b.verifyFile(ctx, dir, m.Files[i]); found[i] == nil || !found[i].Damage() {
				break
			}
		}
		return ctx.Err()
	})
	if err != nil {
		return v, err
	}
	for i, f := range found {
		v.Files++
		if f != nil {
			v.Findings = append(v.Findings, *f)
		} else {
			v.Bytes += m.Files[i].Length
		}
	}
	if v.Whole() {
		return v, nil
	}
	// A file that is gone is damage only while the manifest beside it is there.
	if _, _, err := b.Manifest(ctx, run, dir); err != nil {
		for i := range v.Findings {
			if v.Findings[i].Kind == checkpoint.FindingMissing {
				v.Findings[i].Kind = checkpoint.FindingIO
			}
		}
	}
	return v, &checkpoint.FilesError{Dir: dir, Findings: v.Findings}
}

func (b *Bucket) verifyFile(ctx context.Context, dir string, f checkpoint.File) *checkpoint.Finding {
	r, size, err := b.open(ctx, b.key(dir, f.Path))
	if found := compare(f, size, err, "committed"); found != nil {
		if err == nil {
			_ = r.Close()
		}
		return found
	}
	defer r.Close()
	digest, length, err := checkpoint.HashReader(ctx, r, size)
	switch {
	case err != nil:
		return &checkpoint.Finding{Path: f.Path, Kind: checkpoint.FindingIO, Detail: err.Error()}
	case length != f.Length:
		return compare(f, length, nil, "committed")
	case digest != f.Digest:
		return &checkpoint.Finding{Path: f.Path, Kind: checkpoint.FindingDigest, Detail: fmt.Sprintf("xxh3-128 is %s, %s was committed", digest, f.Digest)}
	}
	return nil
}

// WriteNonce implements checkpoint.Store.
func (b *Bucket) WriteNonce(ctx context.Context, nonce string) error {
	name, err := checkpoint.NonceName(nonce)
	if err != nil {
		return err
	}
	if _, err := b.createOnly(ctx, b.top(name), []byte(nonce)); err != nil {
		return err
	}
	// A server that ignores the condition overwrites: then it does not give back what was
	// there before.
	there, err := b.createOnly(ctx, b.top(name), []byte("taken"))
	switch {
	case err != nil:
		return err
	case string(there) != nonce:
		return fmt.Errorf("%w: s3://%s ignores If-None-Match; use a server that knows conditional writes", checkpoint.ErrNoCreateOnly, b.at.Bucket)
	}
	return nil
}

// HasNonce implements checkpoint.Store.
func (b *Bucket) HasNonce(ctx context.Context, nonce string) (bool, error) {
	name, err := checkpoint.NonceName(nonce)
	if err != nil {
		return false, err
	}
	data, err := b.small(ctx, b.top(name), maxMark)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && string(data) == nonce, err
}

// ForgetNonce implements checkpoint.Store.
func (b *Bucket) ForgetNonce(ctx context.Context, nonce string) error {
	name, err := checkpoint.NonceName(nonce)
	if err != nil {
		return err
	}
	return b.remove(ctx, b.top(name))
}
