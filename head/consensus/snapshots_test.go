package consensus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func snapshotFiles(t *testing.T, c Config) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(c.Dir, dirSnapshots, "*"+snapSuffix))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// snapshotted makes a folder with two snapshots and entries after them, and returns
// all entries.
func snapshotted(t *testing.T, threshold, trailing uint64) (Config, []string) {
	t.Helper()
	c := initDir(t)
	c.SnapshotThreshold, c.TrailingLogs = threshold, trailing
	n, m := open(t, c)
	lead(t, n)
	for round := range 4 {
		for i := range 50 {
			propose(t, n, fmt.Sprintf("%d-%d", round, i))
		}
		if round < 3 {
			if err := n.Snapshot(testCtx(t)); err != nil {
				t.Fatalf("Snapshot: %v", err)
			}
		}
	}
	want := m.all()
	closeNode(t, n)
	if files := snapshotFiles(t, c); len(files) != 2 {
		t.Fatalf("snapshots %v, want the newest two", files)
	}
	return c, want
}

func TestSnapshotRestoreTrailing(t *testing.T) {
	c, want := snapshotted(t, 30, 60)
	n, m := open(t, c)
	lead(t, n)
	if got := m.all(); !slices.Equal(got, want) {
		t.Fatalf("%d entries, want %d", len(got), len(want))
	}
	s := n.Stats()
	if s.FirstIndex < 50 {
		t.Fatalf("log still begins at %d of %d", s.FirstIndex, s.LastIndex)
	}
	if s.AppliedIndex == 0 || s.AppliedIndex > s.LastIndex {
		t.Fatalf("stats %+v", s)
	}
}

// TestAppliedIndexFromSnapshot: with nothing after the snapshot, the applied index is
// the snapshot's.
func TestAppliedIndexFromSnapshot(t *testing.T) {
	c := initDir(t)
	n, _ := open(t, c)
	lead(t, n)
	r := propose(t, n, "a")
	if err := n.Snapshot(testCtx(t)); err != nil {
		t.Fatal(err)
	}
	closeNode(t, n)
	n, m := open(t, c)
	if got := n.AppliedIndex(); got != r.Index || len(m.all()) != 1 {
		t.Fatalf("applied %d, want %d", got, r.Index)
	}
}

// TestDamagedSnapshotFallsBack: with the newest snapshot damaged anywhere, the one
// before and the log give the full state.
func TestDamagedSnapshotFallsBack(t *testing.T) {
	base, want := snapshotted(t, 100, 200)
	newest := snapshotFiles(t, base)[1]
	fi, err := os.Stat(newest)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(7, 20))
	for i := range 20 {
		c := base
		c.Dir = filepath.Join(t.TempDir(), fmt.Sprint(i))
		copyDir(t, base.Dir, c.Dir)
		flip(t, filepath.Join(c.Dir, dirSnapshots, filepath.Base(newest)), rng.Int64N(fi.Size()), uint(rng.IntN(8)))
		n, m := open(t, c)
		lead(t, n)
		if got := m.all(); !slices.Equal(got, want) {
			t.Fatalf("flip %d: %d entries, want %d", i, len(got), len(want))
		}
		if left := snapshotFiles(t, c); len(left) != 1 {
			t.Fatalf("flip %d: %v still count as snapshots", i, left)
		}
		propose(t, n, "more")
		closeNode(t, n)
	}
}

// TestNoGoodSnapshot: when the log does not reach back, the node says so.
func TestNoGoodSnapshot(t *testing.T) {
	c, _ := snapshotted(t, 30, 60)
	for _, f := range snapshotFiles(t, c) {
		flip(t, f, 60, 1)
	}
	_, err := Open(c, &testMachine{})
	if !errors.Is(err, ErrDamagedLog) || !strings.Contains(err.Error(), "no good snapshot") {
		t.Fatalf("Open: %v", err)
	}
}

// TestDamageUnderSnapshotIsCut: damage in entries that a good snapshot covers costs
// nothing.
func TestDamageUnderSnapshotIsCut(t *testing.T) {
	c, want := snapshotted(t, 100, 200)
	segments, _ := filepath.Glob(filepath.Join(c.Dir, dirWAL, "*.wal"))
	b, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	flip(t, segments[0], int64(bytes.Index(b, []byte("0-30"))), 0)
	n, m := open(t, c)
	lead(t, n)
	if got := m.all(); !slices.Equal(got, want) {
		t.Fatalf("%d entries, want %d", len(got), len(want))
	}
	if s := n.Stats(); s.FirstIndex < 30 {
		t.Fatalf("log begins at %d, the damaged entry is still there", s.FirstIndex)
	}
}

// TestSnapshotThatDoesNotVerify never counts: the log is not cut and the file is gone.
func TestSnapshotThatDoesNotVerify(t *testing.T) {
	c := initDir(t)
	c.VerifySnapshot = func(io.Reader) error { return errors.New("count is off") }
	n, _ := open(t, c)
	lead(t, n)
	propose(t, n, "a")
	err := n.Snapshot(testCtx(t))
	if err == nil || !strings.Contains(err.Error(), "count is off") {
		t.Fatalf("Snapshot: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(c.Dir, dirSnapshots)); len(left) != 0 {
		t.Fatalf("left behind: %v", left)
	}
	propose(t, n, "b") // the node goes on
}
