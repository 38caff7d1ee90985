package consensus

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"

	walfs "github.com/hashicorp/raft-wal/fs"
)

// deaf is a meta store that stops listening, like one whose process was killed.
type deaf struct {
	types.MetaStore
	off bool
}

func (d *deaf) CommitState(s types.PersistentState) error {
	if d.off {
		return errors.New("killed")
	}
	return d.MetaStore.CommitState(s)
}

// TestKilledInRotation: a segment was sealed by its last append and the meta file never
// learned of it; the log must open, hold every entry and take more.
func TestKilledInRotation(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wal")
	c, err := Config{Dir: t.TempDir(), SegmentSize: 64 << 10}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	meta := &deaf{MetaStore: &metaStore{create: true}}
	w, err := wal.Open(dir, wal.WithMetaStore(meta), wal.WithSegmentFiler(segment.NewFiler(dir, walfs.New())),
		wal.WithSegmentSize(c.SegmentSize), wal.WithLogger(newHCLog(c.Logger)))
	if err != nil {
		t.Fatal(err)
	}
	last := uint64(0)
	for meta.off = true; ; {
		err := w.StoreLogs([]*raft.Log{{Index: last + 1, Term: 1, Data: bytes.Repeat([]byte{7}, 1<<10)}})
		if errors.Is(err, wal.ErrSealed) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if last++; last > 1000 {
			t.Fatal("the segment was never sealed")
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for round := range uint64(3) {
		raw, err := openWAL(dir, c, false)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if got, err := raw.LastIndex(); err != nil || got != last+round {
			t.Fatalf("round %d: last index %d, %v; want %d", round, got, err, last+round)
		}
		var l raft.Log
		for i := uint64(1); i <= last+round; i++ {
			if err := raw.GetLog(i, &l); err != nil || l.Index != i {
				t.Fatalf("round %d: entry %d: %v", round, i, err)
			}
		}
		if err := raw.StoreLogs([]*raft.Log{{Index: last + round + 1, Term: 1, Data: []byte("after")}}); err != nil {
			t.Fatalf("round %d: append: %v", round, err)
		}
		if err := raw.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
