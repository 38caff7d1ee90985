package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"syscall"
)

// ErrConflict: a file that is written once exists with another content. Nothing was
// changed.
var ErrConflict = errors.New("disk: the file exists with another content")

// ErrTooLarge: a file is over the size that the caller allowed.
var ErrTooLarge = errors.New("disk: file too large")

const tempSuffix = ".tmp"

var tempCount atomic.Uint64

// tempName is a name beside name that no other writer of any process on this machine
// uses at the same time.
func tempName(name string) string {
	dir, base := path.Split(name)
	return fmt.Sprintf("%s.%s.%d-%d%s", dir, base, os.Getpid(), tempCount.Add(1), tempSuffix)
}

// RemoveTemps removes what writers of this package left in dir when they crashed. No
// writer may be at work there.
func RemoveTemps(fsys FS, dir string) error {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if n := e.Name(); strings.HasPrefix(n, ".") && strings.HasSuffix(n, tempSuffix) && e.Type().IsRegular() {
			if err := fsys.Remove(path.Join(dir, n)); err != nil {
				return err
			}
		}
	}
	return nil
}

// WriteFileAtomic replaces name by data: after any crash the file has its old content
// or the new one, and after a return without error the new one. The folder must exist.
// After an error the old content is usually still there; the new one may be, when only
// the last step failed.
func WriteFileAtomic(fsys FS, name string, data []byte, perm fs.FileMode) error {
	temp, err := writeTemp(fsys, name, data, perm)
	if err != nil {
		return err
	}
	if err := fsys.Rename(temp, name); err != nil {
		_ = fsys.Remove(temp)
		return err
	}
	return fsys.SyncDir(path.Dir(name))
}

// WriteFileCreateOnly writes name once: of any number of writers, here and elsewhere,
// exactly one creates it, and nobody ever sees a part of it. created is false when the
// file was there with equal content, which is then durable too. ErrConflict: it was
// there with another.
func WriteFileCreateOnly(fsys FS, name string, data []byte, perm fs.FileMode) (created bool, err error) {
	temp, err := writeTemp(fsys, name, data, perm)
	if err != nil {
		return false, err
	}
	err = fsys.Link(temp, name)
	if rmErr := fsys.Remove(temp); err == nil && rmErr != nil {
		err = rmErr
	}
	if err == nil {
		return true, fsys.SyncDir(path.Dir(name))
	}
	if !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	// Its writer may have crashed before the content or the name was durable.
	f, err := fsys.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	there, err := readAll(f, int64(len(data)))
	if errors.Is(err, ErrTooLarge) || err == nil && !bytes.Equal(there, data) {
		return false, fmt.Errorf("%w: %s", ErrConflict, name)
	}
	if err != nil {
		return false, err
	}
	if err := f.Sync(); err != nil {
		return false, err
	}
	return false, fsys.SyncDir(path.Dir(name))
}

// writeTemp writes a durable file beside name and returns its name.
func writeTemp(fsys FS, name string, data []byte, perm fs.FileMode) (string, error) {
	temp := tempName(name)
	f, err := fsys.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, perm)
	if err != nil {
		return "", err
	}
	n, err := f.Write(data)
	if err == nil && n < len(data) {
		err = &fs.PathError{Op: "write", Path: temp, Err: io.ErrShortWrite}
	}
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = fsys.Remove(temp) // the first error counts
		return "", err
	}
	return temp, nil
}

// ReadFile reads a regular file of at most limit bytes; ErrTooLarge beyond. It follows
// no link in the last part of name and never waits on a pipe.
func ReadFile(fsys FS, name string, limit int64) ([]byte, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, limit)
}

func readAll(f File, limit int64) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: f.Name(), Err: errors.New("not a regular file")}
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%w: %s has %d bytes, allowed %d", ErrTooLarge, f.Name(), info.Size(), limit)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1)) // it may grow meanwhile
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%w: %s, allowed %d bytes", ErrTooLarge, f.Name(), limit)
	}
	return b, nil
}

// MkdirAllSync makes a folder and its parents and returns when their names are
// durable. It syncs every parent, because one that exists may have been made by
// somebody who crashed before.
func MkdirAllSync(fsys FS, name string, perm fs.FileMode) error {
	name = path.Clean(name)
	if err := fsys.MkdirAll(name, perm); err != nil {
		return err
	}
	for at := path.Dir(name); ; at = path.Dir(at) {
		if err := fsys.SyncDir(at); err != nil {
			// Folders above one's own may be unreadable; they were there before.
			if errors.Is(err, fs.ErrPermission) {
				return nil
			}
			return err
		}
		if at == path.Dir(at) {
			return nil
		}
	}
}
