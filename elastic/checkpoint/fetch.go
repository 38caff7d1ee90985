package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
	"syscall"

	"github.com/zeebo/xxh3"

	"github.com/troupe-runtime/troupe/runtime/disk"
)

// fetchers is how many files are copied together.
const fetchers = 4

// Fetch copies the files of a step into a local folder, read-only and durable, and
// compares each with the manifest on the way: what is whole there is whole. A file that
// does not match is read once more. One that is in the folder already and matches stays,
// so that a fetch which was cut short goes on where it was. Findings are of the store;
// an error is of the local disk, or of ctx, and says nothing about the step.
func Fetch(ctx context.Context, s Store, run, dir string, m *Manifest, fsys FS, folder string) (Verification, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, f := range m.Files {
		if err := ValidFile(f.Path, f.Rank); err != nil {
			return Verification{}, fmt.Errorf("fetch %s: %w", dir, err)
		}
	}
	var (
		mu    sync.Mutex
		v     Verification
		first error
		wg    sync.WaitGroup
		work  = make(chan File)
	)
	for range min(fetchers, len(m.Files)) {
		wg.Go(func() {
			for f := range work {
				found, err := fetchFile(ctx, s, run, dir, f, fsys, folder)
				mu.Lock()
				switch {
				case err != nil && first == nil:
					first = err
					cancel()
				case err != nil:
				case found != nil:
					v.Files++
					v.Findings = append(v.Findings, *found)
				default:
					v.Files++
					v.Bytes += f.Length
				}
				mu.Unlock()
			}
		})
	}
feed:
	for _, f := range m.Files {
		select {
		case work <- f:
		case <-ctx.Done():
			break feed
		}
	}
	close(work)
	wg.Wait()
	if first == nil {
		first = ctx.Err()
	}
	return v, first
}

// fetchFile copies one file.
func fetchFile(ctx context.Context, s Store, run, dir string, f File, fsys FS, folder string) (*Finding, error) {
	local := path.Join(folder, f.Path)
	if err := fsys.MkdirAll(path.Dir(local), 0o755); err != nil {
		return nil, err
	}
	if err := realDirs(fsys, folder, path.Dir(local)); err != nil {
		return nil, err
	}
	if digest, length, err := HashFile(ctx, fsys, local); err == nil && digest == f.Digest && length == f.Length {
		return nil, nil //nolint:nilnil // neither a finding nor an error: it is there
	}
	found, err := fetchOnce(ctx, s, run, dir, f, fsys, local)
	if found != nil && found.Damage() {
		found, err = fetchOnce(ctx, s, run, dir, f, fsys, local)
	}
	return found, err
}

// localError marks what the local disk did, as opposed to the store.
type localError struct{ error }

func (e localError) Unwrap() error { return e.error }

// localWriter writes to the disk and to the hash.
type localWriter struct {
	f disk.File
	h *xxh3.Hasher128
}

func (w localWriter) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	_, _ = w.h.Write(p[:n])
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		err = localError{err}
	}
	return n, err
}

func fetchOnce(ctx context.Context, s Store, run, dir string, f File, fsys FS, local string) (*Finding, error) {
	find := func(kind FindingKind, format string, args ...any) (*Finding, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return &Finding{Path: f.Path, Kind: kind, Detail: fmt.Sprintf(format, args...)}, nil
	}
	src, size, err := s.Open(ctx, run, dir, f.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, _, err := s.Manifest(ctx, run, dir); err != nil {
			return find(FindingIO, "neither the file nor %s beside it can be seen: %s", ManifestFile, err)
		}
		return find(FindingMissing, "%s", err)
	case errors.Is(err, errNotRegular), errors.Is(err, ErrUnsafe):
		return find(FindingMissing, "%s", err)
	case err != nil:
		return find(FindingIO, "%s", err)
	}
	defer src.Close()
	switch {
	case size < f.Length:
		return find(FindingShort, "%d bytes, %d were committed", size, f.Length)
	case size > f.Length:
		return find(FindingLong, "%d bytes, %d were committed", size, f.Length)
	}
	if err := fsys.Remove(local); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	out, err := fsys.OpenFile(local, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o444)
	if err != nil {
		return nil, err
	}
	w := localWriter{out, xxh3.New128()}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{reader{ctx, src}}, *buf)
	if err == nil {
		if err = out.Sync(); err != nil {
			err = localError{err}
		}
	}
	if e := out.Close(); err == nil && e != nil {
		err = localError{e}
	}
	if le, ok := errors.AsType[localError](err); ok {
		return nil, le.error
	}
	sum := w.h.Sum128().Bytes()
	switch digest := hexOf(sum); {
	case err != nil:
		return find(FindingIO, "%s", err)
	case n < f.Length:
		return find(FindingShort, "%d bytes could be read, %d were committed", n, f.Length)
	case n > f.Length:
		return find(FindingLong, "%d bytes could be read, %d were committed", n, f.Length)
	case digest != f.Digest:
		return find(FindingDigest, "xxh3-128 is %s, %s was committed", digest, f.Digest)
	}
	return nil, nil //nolint:nilnil // neither a finding nor an error: it is there
}

// reader ends with its context between two reads.
type reader struct {
	ctx context.Context //nolint:containedctx // of one copy
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
