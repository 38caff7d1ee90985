package simulate

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
)

// Rules that look at deadlines, on counts alone as the plain ones.
const (
	// DueFixed starts the earliest deadline first, each job with what it asked for; the
	// first that does not fit blocks.
	DueFixed = "edf"
	// DueElastic gives jobs the sizes with which they meet their deadlines.
	DueElastic = "elastic"
)

// DueOptions are what the rules assume of jobs: how much faster twice the devices make
// them, how often they may be doubled, and how long a start or a change of size takes.
type DueOptions struct {
	Speedup   schedule.Speedup
	Doublings int
	Change    time.Duration
}

// dueRun is one job that has not ended.
type dueRun struct {
	job   int
	left  time.Duration // work, at the asked size
	has   int           // doublings; -1: it does not run
	since time.Duration // it works from then on
}

// ends is when the job is done if nothing changes.
func (d *dueRun) ends(s schedule.Speedup) time.Duration {
	return d.since + max(0, time.Duration(float64(d.left)/s.Speed(d.has)+0.5))
}

// Due runs a trace under a rule of deadlines on one pool of GPUs, in thousandths of a
// device. Every completion and every arrival is a moment at which sizes are chosen anew.
func Due(ctx context.Context, rule string, t *Trace, milli int64, o DueOptions, progress func(done int)) (*Result, error) {
	if rule != DueFixed && rule != DueElastic {
		return nil, fmt.Errorf("unknown rule %q: use %s or %s", rule, DueFixed, DueElastic)
	}
	if o.Speedup <= 1 || o.Doublings < 0 || o.Change < 0 || o.Change > longestPause {
		return nil, fmt.Errorf("a speedup of %g with %d doublings and changes of %s: above 1, not negative, and at most %d days", o.Speedup, o.Doublings, o.Change, longestPause/(24*time.Hour))
	}
	res := &Result{Jobs: make([]Outcome, len(t.Jobs))}
	var live []*dueRun
	next, done, last := 0, 0, time.Duration(0)
	for i := range t.Jobs {
		res.Jobs[i].Job = &t.Jobs[i]
	}
	for next < len(t.Jobs) || len(live) > 0 {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		now, some := nextMoment(t, next, live, o.Speedup)
		if !some {
			break
		}
		if now > lastMoment {
			return nil, beyond(now)
		}
		book(t, res, live, last, now)
		last = now
		live = slices.DeleteFunc(live, func(d *dueRun) bool {
			if d.has < 0 || d.ends(o.Speedup) > now {
				return false
			}
			out := &res.Jobs[d.job]
			out.Done, out.Ended = true, now
			done++
			return true
		})
		for ; next < len(t.Jobs) && t.Jobs[next].Submit <= now; next++ {
			if need := t.Jobs[next].Milli(); need > milli || need == 0 {
				res.Jobs[next].Failed = fmt.Sprintf("asks for %d GPUs of %d", t.Jobs[next].GPUs(), milli/1000)
				continue
			}
			live = append(live, &dueRun{job: next, left: t.Jobs[next].Takes, has: -1})
		}
		used := resize(rule, t, res, live, milli, now, o)
		res.Ended = now
		res.Cycles++
		res.Samples = append(res.Samples, Sample{At: now, There: milli, Used: used, Running: int64(len(live))})
		if progress != nil {
			progress(done)
		}
	}
	return res, nil
}

// book puts what jobs have held since the last moment into their books; what they held to
// start or to change their size is lost.
func book(t *Trace, res *Result, live []*dueRun, last, now time.Duration) {
	for _, d := range live {
		if d.has < 0 {
			continue
		}
		out, milli := &res.Jobs[d.job], float64(t.Jobs[d.job].Milli()<<d.has)
		held, pause := (now - last).Seconds(), max(0, min(now, d.since)-last).Seconds()
		out.Busy += held * milli
		out.Lost += pause * milli
		out.Useful += (held - pause) * milli
	}
}

// nextMoment is the next arrival or completion.
func nextMoment(t *Trace, next int, live []*dueRun, s schedule.Speedup) (at time.Duration, some bool) {
	if next < len(t.Jobs) {
		at, some = t.Jobs[next].Submit, true
	}
	for _, d := range live {
		if d.has >= 0 && (!some || d.ends(s) < at) {
			at, some = d.ends(s), true
		}
	}
	return at, some
}

// resize chooses sizes and books what was done with the former ones.
func resize(rule string, t *Trace, res *Result, live []*dueRun, milli int64, now time.Duration, o DueOptions) (used int64) {
	sizes := make([]int, len(live))
	if rule == DueElastic {
		due := make([]schedule.Due, len(live))
		for i, d := range live {
			j := &t.Jobs[d.job]
			left := d.left
			if d.has >= 0 && now > d.since {
				left -= time.Duration(float64(now-d.since) * o.Speedup.Speed(d.has))
			}
			due[i] = schedule.Due{ID: d.job, Need: j.Milli(), Left: max(0, left), Deadline: j.Deadline, Most: o.Doublings, Has: d.has}
		}
		sizes = schedule.DueSizes(due, milli, now, o.Change, o.Speedup)
	} else {
		fixed(t, live, milli, sizes)
	}
	for i, d := range live {
		j, out := &t.Jobs[d.job], &res.Jobs[d.job]
		if k := sizes[i]; k != d.has {
			if d.has >= 0 {
				if now > d.since {
					d.left = max(0, d.left-time.Duration(float64(now-d.since)*o.Speedup.Speed(d.has)))
				}
				out.Restarts++
			}
			switch {
			case k < 0:
				out.Evictions++
			case d.has >= 0 && k > d.has:
				out.Grown++
			case k < d.has:
				out.Shrunk++
			}
			d.has, d.since = k, now+o.Change
			if !out.Ran && k >= 0 {
				out.Ran, out.Started = true, now
			}
		}
		if d.has >= 0 {
			used += j.Milli() << d.has
		}
	}
	return used
}

// byDeadline is a heap of waiting jobs.
type byDeadline struct {
	t    *Trace
	live []*dueRun
	at   []int
}

func (h byDeadline) Len() int { return len(h.at) }
func (h byDeadline) Less(a, b int) bool {
	x, y := h.live[h.at[a]].job, h.live[h.at[b]].job
	return cmp.Or(cmp.Compare(h.t.Jobs[x].Deadline, h.t.Jobs[y].Deadline), cmp.Compare(x, y)) < 0
}
func (h byDeadline) Swap(a, b int) { h.at[a], h.at[b] = h.at[b], h.at[a] }
func (h *byDeadline) Push(x any) {
	if i, ok := x.(int); ok {
		h.at = append(h.at, i)
	}
}

func (h *byDeadline) Pop() any {
	last := h.at[len(h.at)-1]
	h.at = h.at[:len(h.at)-1]
	return last
}

// fixed keeps what runs and starts what waits by its deadline; the first that does not fit
// blocks.
func fixed(t *Trace, live []*dueRun, milli int64, sizes []int) {
	h := &byDeadline{t: t, live: live}
	for i, d := range live {
		sizes[i] = d.has
		if d.has >= 0 {
			milli -= t.Jobs[d.job].Milli()
		} else {
			heap.Push(h, i)
		}
	}
	for h.Len() > 0 && t.Jobs[live[h.at[0]].job].Milli() <= milli {
		i, _ := heap.Pop(h).(int)
		sizes[i] = 0
		milli -= t.Jobs[live[i].job].Milli()
	}
}
