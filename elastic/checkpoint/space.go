package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/troupe-runtime/troupe/runtime/disk"
)

// Space is what a file system has left for this user. Negative: it does not tell.
type Space = disk.Space

// spare is what a step leaves free besides its files: marks, folders, a manifest.
const spare = 1 << 20

// ErrSpace is wrapped when a step would not fit. Nothing was written.
var ErrSpace = errors.New("no space for the step")

// SpaceOf tells what the file system that holds name, or its nearest parent that
// exists, has left.
func SpaceOf(fsys FS, name string) (Space, error) {
	for {
		s, err := disk.SpaceOf(fsys, name)
		if errors.Is(err, fs.ErrNotExist) && name != path.Dir(name) {
			name = path.Dir(name)
			continue
		}
		return s, err
	}
}

// Preflight says whether bytes in files fit where folder is, before a rank writes them.
// Both are what the same rank saved last time; 0 means that nobody knows, and then only a
// file system that is full to the brim refuses. A file system that does not tell what it
// has left refuses nothing.
func Preflight(fsys FS, folder string, bytes, files int64) error {
	s, err := SpaceOf(fsys, folder)
	if err != nil {
		return nil //nolint:nilerr // the write itself will say what is wrong
	}
	switch {
	case s.Bytes >= 0 && bytes > 0 && s.Bytes < bytes+spare:
		return fmt.Errorf("%w: %s has %s left, the files of this rank took %s last time; free some, or keep fewer steps", ErrSpace, folder, size(s.Bytes), size(bytes))
	case s.Bytes == 0:
		return fmt.Errorf("%w: %s is full; free some space, or keep fewer steps", ErrSpace, folder)
	case s.Inodes >= 0 && s.Inodes < files+3:
		return fmt.Errorf("%w: %s has %d files left (inodes), this step needs about %d; remove files, or write fewer, larger ones", ErrSpace, folder, s.Inodes, files+3)
	}
	return nil
}

// size is for people.
func size(n int64) string {
	const k = 1024
	f, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if f < k {
			break
		}
		f, unit = f/k, u
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}
