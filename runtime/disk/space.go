package disk

import (
	"fmt"
	"io/fs"
	"syscall"
)

// Space is what a file system has left for this user; negative where it does not tell.
type Space struct {
	Bytes  int64
	Inodes int64
}

// spacer is a file system that knows what it has left.
type spacer interface {
	Space(name string) (Space, error)
}

// SpaceOf tells what the file system that holds name has left. One that cannot tell,
// such as a disk in memory without a limit, gives negative numbers and no error.
func SpaceOf(fsys FS, name string) (Space, error) {
	if s, ok := fsys.(spacer); ok {
		return s.Space(name)
	}
	return Space{Bytes: -1, Inodes: -1}, nil
}

func (osFS) Space(name string) (Space, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(name, &st); err != nil {
		return Space{}, &fs.PathError{Op: "statfs", Path: name, Err: err}
	}
	s := Space{Bytes: int64(st.Bavail) * st.Bsize, Inodes: int64(st.Ffree)}
	if st.Files == 0 { // btrfs and others count none
		s.Inodes = -1
	}
	if st.Blocks == 0 {
		s.Bytes = -1
	}
	return s, nil
}

// OpSpace asks what is left.
const OpSpace Op = "space"

// Space implements what SpaceOf asks for. A fault with a nil error and a Partial of n
// makes it say that n bytes are left.
func (f *Faulty) Space(name string) (Space, error) {
	if hit := f.check(OpSpace, name); hit != nil {
		if hit.Err != nil {
			return Space{}, fmt.Errorf("space: %w", pathError("statfs", name, hit.Err))
		}
		return Space{Bytes: int64(hit.Partial), Inodes: -1}, nil
	}
	return SpaceOf(f.under, name)
}
