package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/troupe-runtime/troupe/runtime/disk"
)

// FS is the file system that this package works on. Paths are absolute and
// slash-separated.
type FS = disk.FS

// OS is the real file system.
func OS() FS { return disk.OS() }

// openRead opens an existing file for reading. It follows no link in the last part of
// the name and does not block on a pipe.
func openRead(fsys FS, name string) (disk.File, error) {
	return fsys.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}

// createNew creates a file for writing and fails with fs.ErrExist if the name is taken.
func createNew(fsys FS, name string) (disk.File, error) {
	return fsys.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o644)
}

// errNotRegular is wrapped where a folder, link or device stands in a file's place.
var errNotRegular = errors.New("not a regular file")

// OpenRegular opens a regular file and returns its length. It looks twice: before,
// so that no device is opened, and after, so that what was opened is what was seen.
func OpenRegular(fsys FS, name string) (disk.File, int64, error) {
	info, err := fsys.Lstat(name)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is %s: %w", name, kindOf(info.Mode()), errNotRegular)
	}
	f, err := openRead(fsys, name)
	if err != nil {
		return nil, 0, err
	}
	info, err = f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		f.Close()
		return nil, 0, fmt.Errorf("%s is %s: %w", name, kindOf(info.Mode()), errNotRegular)
	}
	return f, info.Size(), nil
}

func kindOf(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m.IsDir():
		return "a folder"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "a file"
}

// realDir checks that name is a folder and no link to one.
func realDir(fsys FS, name string) error {
	info, err := fsys.Lstat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is %s, not a folder: %w", name, kindOf(info.Mode()), ErrUnsafe)
	}
	return nil
}

// ErrUnsafe is wrapped when a path in a store leads through a symbolic link or to
// something that Troupe did not make. Nothing was changed.
var ErrUnsafe = errors.New("refused for safety")

// realDirs checks every folder below top down to dir. top itself, the store that an
// operator named, may be reached through a link; what ranks put into it may not.
func realDirs(fsys FS, top, dir string) error {
	rest, ok := below(top, dir)
	if !ok {
		return fmt.Errorf("%s is not below %s: %w", dir, top, ErrUnsafe)
	}
	at := top
	for _, part := range rest {
		at = path.Join(at, part)
		if err := realDir(fsys, at); err != nil {
			return err
		}
	}
	return nil
}

// below returns the parts of dir under top; none when they are the same.
func below(top, dir string) ([]string, bool) {
	if dir == top {
		return nil, true
	}
	rest, ok := strings.CutPrefix(dir, strings.TrimSuffix(top, "/")+"/")
	if !ok || path.Clean(rest) != rest || rest == ".." || strings.HasPrefix(rest, "../") {
		return nil, false
	}
	return strings.Split(rest, "/"), true
}

// readSmall reads a whole regular file of at most limit bytes.
func readSmall(fsys FS, name string, limit int64) ([]byte, error) {
	f, size, err := OpenRegular(fsys, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > limit {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read", name, size, limit)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return data, nil
}
