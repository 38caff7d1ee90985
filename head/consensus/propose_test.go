package consensus

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// TestProposeAll: several entries stand in their order, share writes to disk, and one that
// is not taken leaves the others as they are. A restart finds all of them.
func TestProposeAll(t *testing.T) {
	c := initDir(t)
	n, m := open(t, c)
	lead(t, n)
	propose(t, n, "first")
	before := n.log.appends.Load()
	var all [][]byte
	want := []string{"first"}
	for i := range 40 {
		all = append(all, fmt.Append(nil, i))
		want = append(want, fmt.Sprint(i))
	}
	all = slices.Insert(all, 20, make([]byte, MaxProposal+1))
	out := n.ProposeAll(testCtx(t), all)
	var last uint64
	for i, o := range out {
		switch {
		case i == 20:
			if !errors.Is(o.Err, ErrTooLarge) {
				t.Errorf("too large: %+v", o)
			}
		case o.Err != nil || o.Index <= last:
			t.Errorf("entry %d: %+v after index %d", i, o, last)
		default:
			last = o.Index
		}
	}
	if got := n.log.appends.Load() - before; got > 10 {
		t.Errorf("%d writes for 40 entries", got)
	}
	if s := n.Stats(); s.Queued != 0 {
		t.Errorf("%d are still queued", s.Queued)
	}
	if got := m.all(); !slices.Equal(got, want) {
		t.Fatalf("applied %q", got)
	}
	closeNode(t, n)
	n, m = open(t, c)
	lead(t, n)
	if got := m.all(); !slices.Equal(got, want) {
		t.Fatalf("after a restart %q", got)
	}
	closeNode(t, n)
	for i, o := range n.ProposeAll(testCtx(t), [][]byte{[]byte("a"), []byte("b")}) {
		if !errors.Is(o.Err, ErrClosed) {
			t.Errorf("entry %d after Close: %v", i, o.Err)
		}
	}
}

// TestProposeAllStops: where the machine cannot follow the log in the middle of a batch,
// what stands before it was applied and is told, and of the rest nobody knows.
func TestProposeAllStops(t *testing.T) {
	c := initDir(t)
	n, m := open(t, c)
	lead(t, n)
	out := n.ProposeAll(testCtx(t), [][]byte{[]byte("a"), []byte("unknown"), []byte("b")})
	for i, o := range out[1:] {
		if !errors.Is(o.Err, ErrOutcomeUnknown) {
			t.Errorf("entry %d: %+v", i+1, o)
		}
	}
	// It may have stopped before the first could be told.
	if out[0].Err != nil && !errors.Is(out[0].Err, ErrOutcomeUnknown) {
		t.Errorf("entry 0: %+v", out[0])
	}
	if got := m.all(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("applied %q", got)
	}
	closeNode(t, n)
}
