package schedule

import (
	"cmp"
	"math"
	"slices"
	"time"

	pace "github.com/troupe-runtime/troupe/elastic/plan"
)

// Speedup is how much faster a job runs with twice the devices, over and over: 1.8 of 2
// is what training loses to the network. Speed is that of a number of doublings.
type Speedup float64

// UsualSpeedup is what the scheduler takes it to be.
const UsualSpeedup = Speedup(pace.Speedup)

// Speed is how many times faster a job runs after so many doublings.
func (s Speedup) Speed(doublings int) float64 { return math.Pow(float64(s), float64(doublings)) }

// takes is how long so much work takes after so many doublings.
func (s Speedup) takes(work time.Duration, doublings int) time.Duration {
	return time.Duration(math.Ceil(float64(work) / s.Speed(doublings)))
}

// Due is a job with a deadline that may run with one, two, four, … times what it asked for.
type Due struct {
	ID       int
	Need     int64         // devices, at the size that it asked for
	Left     time.Duration // work, as the time that it takes at that size
	Deadline time.Duration // 0: none
	Most     int           // doublings at most
	Has      int           // doublings that it runs with now; -1: it does not run
}

// DueSizes chooses with how many doublings each job runs from now on, so that as many
// deadlines as can be are met: the earliest deadline first, each job gets the least size
// with which it still meets its own (its minimum satisfactory share). Jobs that cannot meet
// theirs any more, or have none, get what they asked for, from what is left; and what is
// left then makes those with a deadline that can be met larger, the earliest first, so that
// room is made for jobs yet to come. Changing the size of a running job, or starting it,
// costs change. -1: it does not run. The answer is in the order of jobs.
func DueSizes(jobs []Due, total int64, now, change time.Duration, s Speedup) []int {
	out := make([]int, len(jobs))
	order := make([]int, 0, len(jobs))
	least := make([]int, len(jobs))
	for i := range jobs {
		out[i], least[i] = -1, jobs[i].leastSize(now, change, s)
		order = append(order, i)
	}
	never := func(i int) int {
		if least[i] < 0 {
			return 1
		}
		return 0
	}
	deadline := func(i int) time.Duration {
		if jobs[i].Deadline == 0 {
			return math.MaxInt64
		}
		return jobs[i].Deadline
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(never(a), never(b)), cmp.Compare(deadline(a), deadline(b)), cmp.Compare(jobs[a].ID, jobs[b].ID))
	})
	free := total
	for _, i := range order {
		size := max(0, least[i])
		// A late job goes on as it is rather than to pay for a change.
		if least[i] < 0 && jobs[i].Has > 0 && jobs[i].Need<<jobs[i].Has <= free {
			size = jobs[i].Has
		}
		if need := jobs[i].Need << size; jobs[i].Need > 0 && need <= free {
			out[i] = size
			free -= need
		}
	}
	for again := true; again; {
		again = false
		for _, i := range order {
			if out[i] < 0 || least[i] < 0 || out[i] >= jobs[i].Most || jobs[i].Need<<out[i] > free || !jobs[i].gains(out[i], change, s) {
				continue
			}
			free -= jobs[i].Need << out[i]
			out[i]++
			again = true
		}
	}
	return out
}

// leastSize is the smallest number of doublings with which a job meets its deadline; -1:
// there is none.
func (d *Due) leastSize(now, change time.Duration, s Speedup) int {
	if d.Deadline == 0 {
		return -1
	}
	for k := 0; k <= d.Most && k < maxDoublings; k++ {
		pause := change
		if d.Has == k {
			pause = 0
		}
		if now+pause+s.takes(d.Left, k) <= d.Deadline {
			return k
		}
	}
	return -1
}

// gains: one doubling more than size pays for the pause that it costs.
func (d *Due) gains(size int, change time.Duration, s Speedup) bool {
	if size+1 >= maxDoublings {
		return false
	}
	if d.Has == size+1 {
		return true // it has that size
	}
	return s.takes(d.Left, size)-s.takes(d.Left, size+1) > change
}

// maxDoublings keeps sizes within an integer.
const maxDoublings = 20

// LeastInTime is the smallest of some sizes with which work that takes so long with size
// from is done within a time; false: none is.
func LeastInTime(sizes []int64, from int64, takes, within time.Duration) (least int64, ok bool) {
	for _, n := range sizes {
		if n > 0 && pace.WithRanks(takes, from, n) <= within && (!ok || n < least) {
			least, ok = n, true
		}
	}
	return least, ok
}
