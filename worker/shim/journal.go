package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

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
	j, err = ReadJournal(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return j, j.Alive(), nil
}

// write replaces the journal so that a reader sees the old or the new one.
func (j *Journal) write(dir string) error {
	b, err := json.Marshal(j)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, JournalFile)
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return os.Rename(tmp, path)
}
