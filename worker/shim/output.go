package shim

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Output files grow without bound and keep their offsets; the disk they take is
// bounded by giving back their heads. keepTail is always readable.
var (
	freeAbove = int64(256 << 20)
	keepTail  = int64(64 << 20)
)

var streams = [2]string{"stdout.log", "stderr.log"}

// freeHeads gives back the heads of long output files.
func (a *attempt) freeHeads() {
	for _, r := range a.ranks {
		for i, name := range streams {
			to, err := freeHead(filepath.Join(r.dir, name), r.punch[i])
			if err == nil {
				r.punch[i] = to
			}
		}
	}
}

// freeHead frees all but the last keepTail bytes of a file that takes more than
// freeAbove after from, up to which it was freed before. Offsets stay true: the
// freed range reads as zeros. It returns up to where the file is free now.
func freeHead(path string, from int64) (int64, error) {
	st, err := os.Lstat(path)
	if err != nil || !st.Mode().IsRegular() || st.Size()-from <= freeAbove {
		return from, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return from, err
	}
	defer f.Close()
	const block = 4096
	to := (st.Size() - keepTail) / block * block
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return to, nil // this file system keeps everything; ask no more until as much again
	}
	if err != nil {
		return from, err
	}
	return to, nil
}
