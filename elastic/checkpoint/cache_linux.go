package checkpoint

import "golang.org/x/sys/unix"

// dropCache asks the kernel to forget the clean pages of a file, so that the next
// read comes from the disk. It is advice: a failure only means that a second read
// proves less.
func dropCache(fsys FS, name string) {
	f, _, err := OpenRegular(fsys, name)
	if err != nil {
		return
	}
	defer f.Close()
	if d, ok := f.(interface{ Fd() uintptr }); ok {
		_ = unix.Fadvise(int(d.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
}
