package schedule

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDueSizes(t *testing.T) {
	h := time.Hour
	for _, c := range []struct {
		name  string
		jobs  []Due
		total int64
		want  []int
	}{
		{"room for the largest", []Due{{Need: 1, Left: 10 * h, Deadline: 20 * h, Most: 2, Has: -1}}, 8, []int{2}},
		{"as large as the deadline asks", []Due{{Need: 4, Left: 10 * h, Deadline: 6 * h, Most: 2, Has: -1}}, 8, []int{1}},
		{"no size is enough: what it asked for", []Due{{Need: 2, Left: 10 * h, Deadline: 3 * h, Most: 2, Has: -1}}, 8, []int{0}},
		{"the earlier deadline first", []Due{
			{ID: 1, Need: 4, Left: 10 * h, Deadline: 12 * h, Most: 0, Has: -1}, {ID: 2, Need: 4, Left: 5 * h, Deadline: 6 * h, Most: 0, Has: -1},
		}, 4, []int{-1, 0}},
		{"who can meet it before who cannot", []Due{
			{ID: 1, Need: 4, Left: 10 * h, Deadline: 2 * h, Most: 0, Has: 0}, {ID: 2, Need: 4, Left: 5 * h, Deadline: 6 * h, Most: 0, Has: -1},
		}, 4, []int{-1, 0}},
		{"a change that does not pay", []Due{{Need: 1, Left: time.Minute, Deadline: h, Most: 2, Has: 0}}, 8, []int{0}},
		{"no deadline: what is left", []Due{{Need: 4, Left: h, Most: 2, Has: -1}, {ID: 1, Need: 6, Left: h, Deadline: 2 * h, Most: 0, Has: -1}}, 8, []int{-1, 0}},
		{"nothing at all", nil, 8, []int{}},
	} {
		if got := DueSizes(c.jobs, c.total, 0, 2*time.Minute, UsualSpeedup); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Sizes are within what there is and what each job may have, and the order in which jobs
// are listed does not matter.
func TestDueSizesHold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		total := rapid.Int64Range(0, 40).Draw(rt, "total")
		var jobs []Due
		for i := range rapid.IntRange(0, 12).Draw(rt, "jobs") {
			jobs = append(jobs, Due{
				ID: i, Need: rapid.Int64Range(1, 8).Draw(rt, "need"), Left: time.Duration(rapid.IntRange(1, 100).Draw(rt, "left")) * time.Minute,
				Deadline: time.Duration(rapid.IntRange(0, 200).Draw(rt, "deadline")) * time.Minute,
				Most:     rapid.IntRange(0, 3).Draw(rt, "most"), Has: rapid.IntRange(-1, 3).Draw(rt, "has"),
			})
		}
		for i := range jobs {
			jobs[i].Has = min(jobs[i].Has, jobs[i].Most)
		}
		got := DueSizes(jobs, total, 10*time.Minute, time.Minute, UsualSpeedup)
		sum := int64(0)
		for i, k := range got {
			if k > jobs[i].Most || k < -1 {
				rt.Fatalf("job %d gets %d doublings of %d", i, k, jobs[i].Most)
			}
			if k >= 0 {
				sum += jobs[i].Need << k
			}
		}
		if sum > total {
			rt.Fatalf("%d of %d are given", sum, total)
		}
		turned := slices.Clone(jobs)
		slices.Reverse(turned)
		back := DueSizes(turned, total, 10*time.Minute, time.Minute, UsualSpeedup)
		slices.Reverse(back)
		if !slices.Equal(got, back) {
			rt.Fatalf("the order matters: %v, %v", got, back)
		}
	})
}

func TestLeastInTime(t *testing.T) {
	for _, tc := range []struct {
		name          string
		sizes         []int64
		from          int64
		takes, within time.Duration
		want          int64 // 0: none
	}{
		{"as it is", []int64{8, 4, 2}, 8, 8 * time.Hour, 16 * time.Hour, 4},
		{"in any order", []int64{2, 8, 4}, 8, 8 * time.Hour, 8 * time.Hour, 8},
		{"none", []int64{2, 4, 8}, 8, 8 * time.Hour, time.Hour, 0},
		{"too late already", []int64{2}, 1, time.Hour, -time.Hour, 0},
		{"no sizes", nil, 1, time.Hour, time.Hour, 0},
		{"more than a time holds", []int64{1}, 1 << 40, 1 << 62, 1 << 62, 0},
	} {
		if got, ok := LeastInTime(tc.sizes, tc.from, tc.takes, tc.within); got != tc.want || ok != (tc.want > 0) {
			t.Errorf("%s: %d, %v, want %d", tc.name, got, ok, tc.want)
		}
	}
}
