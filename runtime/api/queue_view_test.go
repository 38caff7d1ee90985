package api

import "testing"

func TestBorrowedAndLendable(t *testing.T) {
	type sums struct {
		borrowed, lendable int64
		known              bool
	}
	for name, c := range map[string]struct {
		guaranteed, lend, charged int64 // -1: not named
		want                      sums
	}{
		"nothing guaranteed": {-1, -1, 4000, sums{}},
		"idle":               {8000, -1, 0, sums{0, 8000, true}},
		"idle, lends a part": {8000, 3000, 0, sums{0, 3000, true}},
		"in use but for two": {8000, 3000, 6000, sums{0, 2000, true}},
		"beyond what is its": {8000, 3000, 9500, sums{1500, 0, true}},
		"lends nothing":      {8000, 0, 0, sums{0, 0, true}},
		"guaranteed nothing": {0, -1, 1000, sums{1000, 0, true}},
		"nothing is charged": {8000, -1, -1, sums{0, 8000, true}},
	} {
		q := QueueStatus{}
		if c.guaranteed >= 0 {
			q.Guaranteed = q.Guaranteed.With("gpu", c.guaranteed)
		}
		if c.lend >= 0 {
			q.Lend = q.Lend.With("gpu", c.lend)
		}
		if c.charged >= 0 {
			q.Charged = q.Charged.With("gpu", c.charged)
		}
		var got sums
		got.borrowed, got.known = q.Borrowed("gpu")
		got.lendable, _ = q.Lendable("gpu")
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestPausedAbove(t *testing.T) {
	all := []QueueStatus{
		{Queue: Queue{Name: "a", Paused: "upgrade"}},
		{Queue: Queue{Name: "b", Parent: "a"}},
		{Queue: Queue{Name: "c", Parent: "b"}},
		{Queue: Queue{Name: "d"}},
		{Queue: Queue{Name: "x", Parent: "y"}},
		{Queue: Queue{Name: "y", Parent: "x"}},
		{Queue: Queue{Name: "z", Parent: "gone"}},
	}
	for i, want := range []string{"", "a", "a", "", "", "", ""} {
		got := ""
		if q := all[i].PausedAbove(all); q != nil {
			got = q.Name
		}
		if got != want {
			t.Errorf("%s: %q, want %q", all[i].Name, got, want)
		}
	}
}
