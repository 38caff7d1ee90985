package simulate

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
)

// Outcome is what became of one job of a trace. Times are since the trace's epoch.
type Outcome struct {
	Job     *Job
	Started time.Duration // first start; meaningless unless Ran
	Ended   time.Duration // meaningless unless Done
	Ran     bool
	Done    bool // it ended by itself
	// Failed says why it ended otherwise, or was refused.
	Failed    string
	Restarts  int64
	Evictions int64
	// Grown and Shrunk count its changes of size.
	Grown, Shrunk int64
	// Busy is how many GPU-seconds it held, in thousandths of a device; Saving how many of
	// them it stood still to save, Useful how many it did work in that was not lost, and Lost
	// the others, which were in vain: computed again, or spent on starting and waiting.
	Busy, Saving, Useful, Lost float64
}

// Wait is how long the job waited before it first ran.
func (o *Outcome) Wait() time.Duration { return o.Started - o.Job.Submit }

// Completion is how long it took from its submission to its end.
func (o *Outcome) Completion() time.Duration { return o.Ended - o.Job.Submit }

// plainEnd is when a running job ends.
type plainEnd struct {
	at  time.Duration
	job int
}

type plainEnds []plainEnd

func (h plainEnds) Len() int { return len(h) }
func (h plainEnds) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].at, h[j].at), cmp.Compare(h[i].job, h[j].job)) < 0
}
func (h plainEnds) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *plainEnds) Push(x any) {
	if e, ok := x.(plainEnd); ok {
		*h = append(*h, e)
	}
}

func (h *plainEnds) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// Plain runs a trace under a rule of textbooks on one pool of GPUs, in thousandths of a
// device, with run times that are known: no nodes, no topology, no failures, and no state
// machine. At one instant what ends comes before what arrives, and then the rule is asked
// once. progress is told how many jobs have ended.
func Plain(ctx context.Context, rule schedule.PlainRule, t *Trace, milli int64, progress func(done int)) (*Result, error) {
	p, err := schedule.NewPlain(rule, milli)
	if err != nil {
		return nil, err
	}
	res := &Result{Jobs: make([]Outcome, len(t.Jobs))}
	out := res.Jobs
	for i := range t.Jobs {
		out[i].Job = &t.Jobs[i]
		if need := t.Jobs[i].Milli(); need > milli {
			out[i].Failed = fmt.Sprintf("asks for %d GPUs of %d", t.Jobs[i].GPUs(), milli/1000)
		}
	}
	var ends plainEnds
	next, done := 0, 0
	for next < len(out) || len(ends) > 0 {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var now time.Duration
		switch {
		case len(ends) == 0 || next < len(out) && out[next].Job.Submit < ends[0].at:
			now = out[next].Job.Submit
		default:
			now = ends[0].at
		}
		if now > lastMoment {
			return nil, beyond(now)
		}
		for len(ends) > 0 && ends[0].at == now {
			e, _ := heap.Pop(&ends).(plainEnd)
			if err := p.Ended(e.job); err != nil {
				return nil, err
			}
			done++
		}
		for ; next < len(out) && out[next].Job.Submit == now; next++ {
			if out[next].Failed == "" {
				p.Submit(schedule.Counted{ID: next, Need: out[next].Job.Milli(), Takes: out[next].Job.Takes})
			}
		}
		for _, i := range p.Pass(now) {
			o := &out[i]
			o.Ran, o.Done, o.Started, o.Ended = true, true, now, now+o.Job.Takes
			o.Busy = o.Job.Takes.Seconds() * float64(o.Job.Milli())
			o.Useful = o.Busy
			heap.Push(&ends, plainEnd{at: o.Ended, job: i})
		}
		res.Ended = now
		res.Cycles++
		res.Samples = append(res.Samples, Sample{At: now, There: milli, Used: milli - p.Free(), Running: int64(len(ends))})
		if progress != nil {
			progress(done)
		}
	}
	return res, nil
}
