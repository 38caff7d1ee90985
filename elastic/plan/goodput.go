// Package plan holds the arithmetic of elastic training: where a job's time went, how
// often it is worth saving, when a rank counts as stalled. Every function is pure: facts
// and times come in, figures go out. It knows no network, process, disk or clock, and
// decides nothing about a job's life; that is elastic/supervise.
package plan

import "time"

// Parts is where the time of a job went. The parts of a job add up to its wall time.
type Parts struct {
	Waiting       time.Duration `json:"waiting,omitempty"`       // not all bundles were held
	Starting      time.Duration `json:"starting,omitempty"`      // from placed to the first step of the first attempt
	Useful        time.Duration `json:"useful,omitempty"`        // steps whose work is not lost
	Checkpointing time.Duration `json:"checkpointing,omitempty"` // ranks stood still while they saved
	Stalled       time.Duration `json:"stalled,omitempty"`       // no rank made a step for longer than its pace allows
	Restarting    time.Duration `json:"restarting,omitempty"`    // from the end of an attempt to the first step of the next
	Lost          time.Duration `json:"lost,omitempty"`          // steps that were done and must be done again
}

// Sum is the wall time that the parts explain.
func (p Parts) Sum() time.Duration {
	return p.Waiting + p.Starting + p.Useful + p.Checkpointing + p.Stalled + p.Restarting + p.Lost
}

// Add returns both together.
func (p Parts) Add(q Parts) Parts {
	return Parts{
		p.Waiting + q.Waiting, p.Starting + q.Starting, p.Useful + q.Useful, p.Checkpointing + q.Checkpointing,
		p.Stalled + q.Stalled, p.Restarting + q.Restarting, p.Lost + q.Lost,
	}
}

// Ratio is the useful share of the whole, 0 to 1; 0 for no time at all.
func (p Parts) Ratio() float64 {
	if sum := p.Sum(); sum > 0 {
		return float64(p.Useful) / float64(sum)
	}
	return 0
}

// Attempt is one start of a job as its log entries tell it. A zero time is one that has
// not come.
type Attempt struct {
	Placed  time.Time // its bundles were held; before the end of the former attempt: it kept them
	Created time.Time
	Running time.Time // every rank started
	First   time.Time // its first step was seen
	Ended   time.Time
	From    int64  // the step before its first
	Newest  int64  // the newest step
	Kept    *int64 // the newest step that it committed
	Saving  time.Duration
	Stalled time.Duration
	Upload  time.Duration // staged saves took to be committed, all together
	Uploads int64         // how many these are
}

// Job is what the time of a job is accounted by.
type Job struct {
	Submitted time.Time
	Ended     time.Time
	Succeeded bool
	Serves    bool // a service or an actor: what it did is done, whatever comes
	Saves     bool // its run commits checkpoints
	Steps     bool // some attempt has published a step
	Placed    time.Time
	Attempts  []Attempt // in order
	// Past is what attempts that are not remembered any more took, up to Until.
	Past  Parts
	Until time.Time
}

// Account says where the job's time went until now, in all and for each attempt. The sum
// of the parts is exactly the time from submission to the end, or to now; times that a
// clock which was set back has put out of order are moved into order.
//
// Work is lost when a later attempt begins before it; as long as there is none, what
// was made after the last commit of a run that commits is lost with the attempt. A job
// that publishes no steps is useful from the moment all of its ranks run.
func Account(j Job, now time.Time) (all Parts, each []Parts) {
	end := j.Ended
	if end.IsZero() {
		end = now
	}
	t := j.Submitted
	if j.Until.After(t) {
		t = j.Until
	}
	if end.Before(t) {
		end = t
	}
	all = j.Past
	// Where the past ends before the submission, or after the end, nothing is left over.
	if gap := t.Sub(j.Submitted) - j.Past.Sum(); gap > 0 {
		all.Waiting += gap
	}
	each = make([]Parts, len(j.Attempts))
	first := j.Past == Parts{}
	for i := range j.Attempts {
		a, p := &j.Attempts[i], &each[i]
		begin := within(a.Created, t, end)
		held := within(a.Placed, t, begin)
		p.Waiting = held.Sub(t)
		p.start(first, begin.Sub(held))
		stop := end
		if !a.Ended.IsZero() {
			stop = within(a.Ended, begin, end)
		}
		work := stop
		switch {
		case !a.First.IsZero():
			work = within(a.First, begin, stop)
		case !j.Steps && !a.Running.IsZero():
			work = within(a.Running, begin, stop)
		}
		p.start(first, work.Sub(begin))
		left := stop.Sub(work)
		p.Checkpointing = min(max(0, a.Saving), left)
		left -= p.Checkpointing
		p.Stalled = min(max(0, a.Stalled), left)
		left -= p.Stalled
		p.Lost = min(left, time.Duration(float64(left)*j.lost(i)))
		p.Useful = left - p.Lost
		all = all.Add(*p)
		t, first = stop, false
	}
	if rest := end.Sub(t); rest > 0 {
		held := end
		if !j.Placed.IsZero() {
			held = within(j.Placed, t, end)
		}
		all.Waiting += held.Sub(t)
		all.start(first, end.Sub(held))
	}
	return all, each
}

func (p *Parts) start(first bool, d time.Duration) {
	if first {
		p.Starting += d
		return
	}
	p.Restarting += d
}

func within(t, from, to time.Time) time.Time {
	switch {
	case t.Before(from):
		return from
	case t.After(to):
		return to
	}
	return t
}

// lost is which part of attempt i's work is, 0 to 1.
func (j *Job) lost(i int) float64 {
	a := &j.Attempts[i]
	last := i == len(j.Attempts)-1
	if a.Ended.IsZero() || j.Serves || last && j.Succeeded {
		return 0
	}
	if a.First.IsZero() {
		return 1 // nothing says that anything of it was kept
	}
	kept := a.From
	switch {
	case a.Kept != nil:
		kept = *a.Kept
	case !j.Saves && last:
		return 0 // the script may have saved it by itself
	}
	for _, next := range j.Attempts[i+1:] {
		if !next.First.IsZero() {
			kept = next.From // this is where it went on
			break
		}
	}
	done := a.Newest - a.From
	if done <= 0 {
		return 1
	}
	return min(1, max(0, float64(a.Newest-kept)/float64(done)))
}

// Recovery is how long it took from the end of attempt i-1 to the first step of attempt
// i, or until all of its ranks ran where no step was ever seen; false: not yet, or there
// was none before.
func (j *Job) Recovery(i int) (time.Duration, bool) {
	if i <= 0 || i >= len(j.Attempts) {
		return 0, false
	}
	a, from := &j.Attempts[i], j.Attempts[i-1].Ended
	to := a.First
	if to.IsZero() && !j.Steps {
		to = a.Running
	}
	if to.IsZero() || from.IsZero() {
		return 0, false
	}
	return max(0, to.Sub(from)), true
}
