package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
)

// Journal is what is needed to find a shim again, and, when it is gone, to sweep
// what it left and to tell what it could not tell. It is replaced as a whole and not
// synced: after a power loss there is another boot id, and nothing to find.
type Journal struct {
	Version int `json:"version"`
	process.Identity
	Alloc      string            `json:"alloc"`
	Generation uint64            `json:"gen"` // newest seen; an older start is refused (P3)
	Seq        uint64            `json:"seq"` // of the newest event
	Unacked    []wire.AllocEvent `json:"unacked,omitempty"`
	Groups     process.Groups    `json:"groups"`
	// Gone: the shim has proven that nothing is left and has ended or is about to.
	Gone bool `json:"gone,omitempty"`
}

// ReadJournal reads the journal in an allocation's directory. The error wraps
// os.ErrNotExist when no shim has written one.
func ReadJournal(dir string) (*Journal, error) {
	path := filepath.Join(dir, JournalFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	j := &Journal{}
	if err := json.Unmarshal(b, j); err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	if j.Version > ProtocolVersion {
		return nil, fmt.Errorf("journal %s has version %d, this build knows %d: use the newer build", path, j.Version, ProtocolVersion)
	}
	return j, nil
}

// FindShim reports the journal of an allocation and whether its shim lives: the
// process with its pid, start time and boot, not merely one with its pid.
func FindShim(dir string) (j *Journal, alive bool, err error) {
	for range readTries {
		if j, err = ReadJournal(dir); err == nil && j.Alive() {
			return j, true, nil
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil, false, nil
		}
		// Now that it is dead, or seems to be: what it wrote last, and not half of it.
		if again, rerr := ReadJournal(dir); rerr == nil && !again.Alive() {
			return again, false, nil
		}
	}
	return j, false, err
}

// readTries is how often a journal is read that says something else each time.
const readTries = 5

// journalFile replaces a journal so that a reader sees the old or the new one. Two files take
// turns: it is written often, and a new file each time costs more than what is in it.
type journalFile struct {
	path string
	// now is the file that stands in the journal's place, spare the one that is written next;
	// nil when there is none yet.
	now, spare *os.File
}

func (f *journalFile) write(j *Journal) error {
	b, err := json.Marshal(j)
	if err == nil {
		err = f.replace(b)
	}
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return nil
}

func (f *journalFile) replace(b []byte) error {
	tmp := f.path + ".tmp"
	if f.spare == nil {
		w, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		f.spare = w
	}
	_, err := f.spare.WriteAt(b, 0)
	if err == nil {
		err = f.spare.Truncate(int64(len(b)))
	}
	exchanged := false
	if err == nil && f.now != nil {
		exchanged = unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, f.path, unix.RENAME_EXCHANGE) == nil
	}
	if err == nil && !exchanged {
		// The first, or a file system that cannot exchange names.
		err = os.Rename(tmp, f.path)
	}
	if err != nil {
		f.close() // what stands where is not known: all over again
		return err
	}
	if !exchanged && f.now != nil {
		f.now.Close()
		f.now = nil
	}
	f.now, f.spare = f.spare, f.now
	return nil
}

func (f *journalFile) close() {
	for _, w := range []*os.File{f.now, f.spare} {
		if w != nil {
			w.Close()
		}
	}
	f.now, f.spare = nil, nil
}
