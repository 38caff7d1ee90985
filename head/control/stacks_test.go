package control

import (
	"slices"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// stackOf is a stack as a rank tells it: the innermost call first.
func stackOf(calls ...string) string {
	s := "Current thread (most recent call first):"
	for _, c := range slices.Backward(calls) {
		s += "\n  File \"/job/" + c
	}
	return s
}

// TestSlowest: who holds the others up, and who cannot be told apart.
func TestSlowest(t *testing.T) {
	main := `train.py", line 65 in main`
	waits := stackOf(main, `train.py", line 24 in wait`)
	inside := stackOf(main, `train.py", line 24 in wait`, `pathlib.py", line 74 in parse_parts`)
	stat := stackOf(main, `train.py", line 24 in wait`, `pathlib.py", line 90 in stat`)
	locked := stackOf(`train.py", line 64 in main`, `train.py", line 31 in locked`)
	for _, tc := range []struct {
		name   string
		stacks []string
		steps  []int64
		states []string
		want   []int64
	}{
		{"the lowest step", []string{waits, waits, waits}, []int64{5, 4, 5}, nil, []int64{1}},
		{"a process that is stopped", []string{waits, waits, waits}, nil, []string{"S", "S", "T (stopped)"}, []int64{2}},
		{"one that stands elsewhere", []string{waits, locked, waits}, nil, nil, []int64{1}},
		{"those that wait are caught at different depths", []string{inside, locked, waits}, nil, nil, []int64{1}},
		{"and in different calls", []string{inside, locked, stat}, nil, nil, []int64{1}},
		{"all wait, at different depths", []string{inside, waits, waits}, nil, nil, nil},
		{"all wait, on different lines", []string{waits, stackOf(main, `train.py", line 25 in wait`), waits}, nil, nil, nil},
		{"two stand elsewhere than three", []string{waits, locked, waits, locked, inside}, nil, nil, []int64{1, 3}},
		{"their other threads do not count", []string{waits, waits, waits + "\n\nThread 0x0 (most recent call first):\n  File \"/job/io.py\", line 3 in read"}, nil, nil, nil},
		{"as many here as there", []string{waits, locked}, nil, nil, nil},
		{"all at one place", []string{waits, waits}, nil, nil, nil},
		{"only what the kernel says", []string{"waits in futex_wait", "waits in futex_wait", "waits in pipe_read"}, nil, nil, []int64{2}},
		{"nothing is known", []string{"", "", ""}, nil, nil, nil},
		{"nobody", nil, nil, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var ranks []wire.RankStack
			for i, s := range tc.stacks {
				r := wire.RankStack{Rank: int64(i), Stack: s, State: "S (sleeping)", Step: 5}
				if tc.steps != nil {
					r.Step = tc.steps[i]
				}
				if tc.states != nil {
					r.State = tc.states[i]
				}
				ranks = append(ranks, r)
			}
			if got := slowest(ranks); !slices.Equal(got, tc.want) {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}
