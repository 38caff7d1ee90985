// Package packages keeps the folders that users send along with their jobs: one file for
// each, named by the hash of its bytes, in the folder of this head. A file is there whole
// or not at all, whatever crashes. Which jobs live, and who may ask, is for callers to say;
// what is in a file is nobody's business here.
package packages

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/pack"
)

// Defaults of Options.
const (
	DefaultQuota = 10 << 30 // bytes of all packages together
	suffix       = ".tar.zst"
)

// Errors that callers act on; the text around them names the package and the limit.
var (
	// ErrNone: this head does not have the package.
	ErrNone = errors.New("this head does not have the package")
	// ErrHash: what was sent is not what its name says, or not as long.
	ErrHash = errors.New("what arrived is not the package that was announced")
	// ErrTooLarge: over the limit of one package.
	ErrTooLarge = errors.New("the package is too large")
	// ErrFull: live jobs need so much of the quota that it does not fit.
	ErrFull = errors.New("no room for the package")
)

// Options of a Store. FS and Dir are required.
type Options struct {
	FS  disk.FS
	Dir string
	// Max bounds one package, Quota all together; defaults pack.MaxArchive, DefaultQuota.
	Max, Quota int64
	// Now orders uses.
	Now func() time.Time
}

// Store is safe for concurrent use.
type Store struct {
	opts Options

	mu    sync.Mutex
	have  map[string]*kept
	total int64 // bytes of have and of what is being written
	// uploads numbers the files that are being written; Open removes those of before.
	uploads uint64
}

type kept struct {
	size     int64
	used     time.Time
	verified bool // its bytes were read, or written, in this life of the head
	pins     int
}

// Open takes up a folder, which it makes, and removes what writers left there.
func Open(o Options) (*Store, error) {
	o.Max, o.Quota = cmp.Or(o.Max, pack.MaxArchive), cmp.Or(o.Quota, DefaultQuota)
	if err := disk.MkdirAllSync(o.FS, o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of packages: %w", err)
	}
	s := &Store{opts: o, have: map[string]*kept{}}
	entries, err := o.FS.ReadDir(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("read the folder of packages: %w", err)
	}
	for _, e := range entries {
		hash, ok := strings.CutSuffix(e.Name(), suffix)
		if ok && pack.ValidHash(hash) && e.Type().IsRegular() {
			info, err := e.Info()
			if err != nil {
				return nil, fmt.Errorf("read the folder of packages: %w", err)
			}
			s.have[hash] = &kept{size: info.Size(), used: info.ModTime()}
			s.total += info.Size()
		} else if strings.HasSuffix(e.Name(), ".part") {
			if err := o.FS.Remove(path.Join(o.Dir, e.Name())); err != nil {
				return nil, fmt.Errorf("remove what an upload left: %w", err)
			}
		}
	}
	return s, nil
}

func (s *Store) file(hash string) string { return path.Join(s.opts.Dir, hash+suffix) }

// Has returns a package's size. The first time in a life of the head it reads the file,
// so that one that was damaged meanwhile is asked for again rather than handed out.
func (s *Store) Has(ctx context.Context, hash string) (int64, error) {
	release, err := s.Pin(hash)
	if err != nil {
		return 0, err
	}
	defer release()
	s.mu.Lock()
	k := s.have[hash]
	size, verified := k.size, k.verified
	s.mu.Unlock()
	if verified {
		return size, nil
	}
	switch err := s.verify(ctx, hash, size); {
	case errors.Is(err, ErrHash), errors.Is(err, fs.ErrNotExist):
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.have[hash] == k {
			s.drop(hash)
		}
		return 0, fmt.Errorf("%w: %s: its file was damaged", ErrNone, hash)
	case err != nil:
		return 0, err
	}
	s.mu.Lock()
	k.verified = true
	s.mu.Unlock()
	return size, nil
}

func (s *Store) verify(ctx context.Context, hash string, size int64) error {
	f, err := s.opts.FS.OpenFile(s.file(hash), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("read package %s: %w", hash, err)
	}
	defer f.Close()
	h := sha256.New()
	n, err := copyContext(ctx, h, io.LimitReader(f, size+1))
	if err != nil {
		return fmt.Errorf("read package %s: %w", hash, err)
	}
	if n != size || hex.EncodeToString(h.Sum(nil)) != hash {
		return ErrHash
	}
	return nil
}

// Pin keeps a package from being removed until release is called.
func (s *Store) Pin(hash string) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.have[hash]
	if k == nil {
		return nil, fmt.Errorf("%w: %s", ErrNone, hash)
	}
	k.pins++
	k.used = s.opts.Now()
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		k.pins--
	}), nil
}

// Put stores a package of size bytes; what is there already is not read again. live says
// which packages jobs need: they are never removed for another. When it returns without an
// error the package outlives a crash.
func (s *Store) Put(ctx context.Context, hash string, size int64, r io.Reader, live func() map[string]bool) error {
	if !pack.ValidHash(hash) {
		return fmt.Errorf("%w: %.80q is no SHA-256 in 64 hex digits", ErrHash, hash)
	}
	if size < 1 || size > s.opts.Max {
		return fmt.Errorf("%w: %d bytes; at most %d are taken", ErrTooLarge, size, s.opts.Max)
	}
	if _, err := s.Has(ctx, hash); err == nil {
		return nil
	}
	if err := s.reserve(size, live); err != nil {
		return err
	}
	err := s.write(ctx, hash, size, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || s.have[hash] != nil { // another upload of the same was faster
		s.total -= size
		return err
	}
	s.have[hash] = &kept{size: size, used: s.opts.Now(), verified: true}
	return nil
}

// reserve makes room for size bytes by removing what was used least recently.
func (s *Store) reserve(size int64, live func() map[string]bool) error {
	needed := live() // before the lock: it looks at the state
	s.mu.Lock()
	defer s.mu.Unlock()
	type old struct {
		hash string
		*kept
	}
	var olds []old
	for hash, k := range s.have {
		if !needed[hash] && k.pins == 0 {
			olds = append(olds, old{hash, k})
		}
	}
	slices.SortFunc(olds, func(a, b old) int { return cmp.Or(a.used.Compare(b.used), strings.Compare(a.hash, b.hash)) })
	for _, o := range olds {
		if s.total+size <= s.opts.Quota {
			break
		}
		s.drop(o.hash)
	}
	if s.total+size > s.opts.Quota {
		return fmt.Errorf("%w: %d bytes; jobs that have not ended and uploads that are under way hold %d of %d", ErrFull, size, s.total, s.opts.Quota)
	}
	s.total += size
	return nil
}

// drop removes a package. s.mu is held.
func (s *Store) drop(hash string) {
	k := s.have[hash]
	if k == nil {
		return
	}
	delete(s.have, hash)
	s.total -= k.size
	// A file that cannot be removed is found again at the next start.
	_ = s.opts.FS.Remove(s.file(hash))
}

// write writes the file beside its place and moves it there when it is whole and durable.
func (s *Store) write(ctx context.Context, hash string, size int64, r io.Reader) (err error) {
	f, temp, err := s.create(hash)
	if err != nil {
		return fmt.Errorf("write package %s: %w", hash, err)
	}
	defer func() {
		if err != nil {
			_ = s.opts.FS.Remove(temp)
		}
	}()
	h := sha256.New()
	n, err := copyContext(ctx, io.MultiWriter(h, f), io.LimitReader(r, size+1))
	if err == nil && n == size && hex.EncodeToString(h.Sum(nil)) == hash {
		err = f.Sync()
	} else if err == nil {
		err = fmt.Errorf("%w: %s of %d bytes was announced", ErrHash, hash, size)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = s.opts.FS.Rename(temp, s.file(hash))
	}
	if err == nil {
		err = s.opts.FS.SyncDir(s.opts.Dir)
	}
	if err != nil && !errors.Is(err, ErrHash) {
		return fmt.Errorf("write package %s: %w", hash, err)
	}
	return err
}

// create makes a file that no other upload writes to.
func (s *Store) create(hash string) (disk.File, string, error) {
	s.mu.Lock()
	s.uploads++
	temp := path.Join(s.opts.Dir, fmt.Sprintf("%s-%d.part", hash[:16], s.uploads))
	s.mu.Unlock()
	f, err := s.opts.FS.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	return f, temp, err
}

// Read reads a piece of a package of at most limit bytes, and returns the size of the
// whole.
func (s *Store) Read(hash string, offset, limit int64) (piece []byte, size int64, err error) {
	release, err := s.Pin(hash)
	if err != nil {
		return nil, 0, err
	}
	defer release()
	s.mu.Lock()
	size = s.have[hash].size
	s.mu.Unlock()
	if offset < 0 || offset > size {
		return nil, size, fmt.Errorf("package %s has %d bytes; asked for what follows %d", hash, size, offset)
	}
	f, err := s.opts.FS.OpenFile(s.file(hash), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, size, fmt.Errorf("read package %s: %w", hash, err)
	}
	defer f.Close()
	piece = make([]byte, min(limit, size-offset))
	if n, err := f.ReadAt(piece, offset); n < len(piece) {
		return nil, size, fmt.Errorf("read package %s: %w", hash, cmp.Or(err, io.ErrUnexpectedEOF))
	}
	return piece, size, nil
}

func copyContext(ctx context.Context, w io.Writer, r io.Reader) (int64, error) {
	buf := make([]byte, 256<<10)
	var total int64
	for {
		if err := ctx.Err(); err != nil {
			return total, err
		}
		n, err := r.Read(buf)
		if n > 0 {
			if m, err := w.Write(buf[:n]); err != nil || m < n {
				return total, cmp.Or(err, io.ErrShortWrite)
			}
			total += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}
