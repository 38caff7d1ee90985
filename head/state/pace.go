package state

import (
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/elastic/plan"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	maxExcluded = 64
	keptExits   = 8   // failed exits that an attempt keeps when it is over
	keptMessage = 200 // bytes of each
)

// stepped notes the first step of an attempt, and the newest.
func (a *Attempt) stepped(step, now int64) {
	a.FirstStep = true
	a.Pace.Newest = max(a.Pace.Newest, step)
	if a.Pace.First != 0 {
		return
	}
	a.Pace.First = now
	if a.Restore == nil && a.Number > 0 {
		a.Pace.From = max(0, step-1) // where a script that saves by itself went on
	}
}

// close takes what was heard of an attempt when it ends.
func (p *Pace) close(a *Attempt, end *AttemptEnd, now int64) {
	p.Newest = max(p.Newest, end.Newest)
	for i := range a.Exits {
		p.Newest = max(p.Newest, a.Exits[i].StepsDone)
	}
	p.Saving, p.Saves = max(p.Saving, end.Saving), max(p.Saves, end.Saves)
	p.Upload, p.Uploads = max(p.Upload, end.Upload), max(p.Uploads, end.Uploads)
	if p.Since != 0 {
		p.Stalled += max(0, now-p.Since)
		p.Since = 0
	}
}

// settle leaves of an attempt that is over what tells its story: the root cause is in
// Failure, and newest ones keep where they ran and who else failed.
func (a *Attempt) settle(newest bool) {
	if a.Stall != nil {
		s := *a.Stall
		s.Stacks, a.Stall = nil, &s
	}
	if !newest {
		a.Exits, a.Ranks = nil, nil
		return
	}
	var kept []Exit
	for _, e := range a.Exits {
		if e.ByShim || e.Code == 0 && e.Signal == 0 || len(kept) == keptExits {
			continue
		}
		e.Message, e.Traceback = cutText(e.Message, keptMessage), ""
		kept = append(kept, e)
	}
	a.Exits = kept
}

// forget drops the oldest attempts beyond MaxAttempts; where their time went stays.
func (t *tx) forget(w *Job) {
	n := len(w.Attempts) - MaxAttempts
	if n <= 0 {
		return
	}
	_, each := plan.Account(t.PlanJob(w), instant(t.now))
	for i := range n {
		w.Past = w.Past.Add(each[i])
		w.Until = w.Attempts[i].Ended
	}
	w.Attempts = w.Attempts[n:]
}

// PlanJob is a job as the account of its time looks at it.
func (v *View) PlanJob(j *Job) plan.Job {
	out := plan.Job{
		Submitted: instant(j.Created), Ended: instant(j.Ended), Succeeded: j.State == api.Succeeded,
		Serves: j.Spec.Kind == api.KindService || j.Spec.Kind == api.KindActor,
		Past:   j.Past, Until: instant(j.Until), Steps: j.Ledger.High > 0,
	}
	if r := v.Run(j.Run()); r != nil {
		out.Saves = r.Fast
	}
	if g := v.Group(j.Group); g != nil && g.State == api.GroupPlaced {
		out.Placed = instant(g.PlacedAt)
	}
	for i := range j.Attempts {
		a := &j.Attempts[i]
		p := &a.Pace
		out.Steps = out.Steps || a.FirstStep
		out.Saves = out.Saves || p.Kept != nil
		out.Attempts = append(out.Attempts, plan.Attempt{
			Placed: instant(p.Placed), Created: instant(a.Created), Running: instant(a.Running), First: instant(p.First), Ended: instant(a.Ended),
			From: p.From, Newest: p.Newest, Kept: p.Kept, Saving: time.Duration(p.Saving), Stalled: time.Duration(p.Stalled),
			Upload: time.Duration(p.Upload), Uploads: p.Uploads,
		})
	}
	return out
}

func instant(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// exclude keeps a job off a node; what is over is forgotten.
func (t *tx) exclude(w *Job, x Exclusion) {
	x.At = t.now
	kept := slices.DeleteFunc(slices.Clone(w.Excluded), func(o Exclusion) bool { return o.Node == x.Node || o.Until <= t.now })
	kept = append(kept, x)
	w.Excluded = kept[max(0, len(kept)-maxExcluded):]
	t.event("node-excluded", "job/"+w.ID, "%s for %s: %s", t.nodeName(x.Node), time.Duration(x.Until-t.now).Round(time.Second), x.Why)
}

// Barred lists the exclusions of a job that hold at a time, in nanoseconds.
func (j *Job) Barred(now int64) []Exclusion {
	var out []Exclusion
	for _, x := range j.Excluded {
		if x.Until > now {
			out = append(out, x)
		}
	}
	return out
}

// Stall is what was found when an attempt's ranks made no step for too long.
type Stall struct {
	At      int64            `json:"at"`
	Text    string           `json:"text"`
	Slowest []int64          `json:"slowest,omitempty"`
	Stacks  []api.StackGroup `json:"stacks,omitempty"`
}

// StallFound records what the stacks of all ranks showed.
type StallFound struct {
	Job        string           `json:"job"`
	Generation uint64           `json:"gen"`
	Text       string           `json:"text"`
	Slowest    []int64          `json:"slowest,omitempty"`
	Stacks     []api.StackGroup `json:"stacks,omitempty"`
}

// stalled notes the diagnosis of a stall, once for each.
func stalled(t *tx, c StallFound) any {
	j := t.Job(c.Job)
	if j == nil || j.State.Terminal() || j.Last() == nil || j.Last().Generation != c.Generation {
		return refuse("stale", "no such attempt of "+c.Job)
	}
	if j.Last().Pace.Since == 0 || j.Last().Stall != nil {
		return refuse("stale", fmt.Sprintf("attempt %d of %s has no stall that is not known", j.Last().Number, c.Job))
	}
	w := *j
	w.Attempts, w.Index = slices.Clone(j.Attempts), t.index
	w.Last().Stall = &Stall{At: t.now, Text: c.Text, Slowest: c.Slowest, Stacks: c.Stacks}
	t.put(tJob, &w)
	t.event("stalled", "job/"+j.ID, "attempt %d: %s", w.Last().Number, c.Text)
	return nil
}

// stallFact takes what a shim says of the pace of its ranks.
func (t *tx) stallFact(w *Alloc, e *wire.AllocEvent) {
	switch e.Kind {
	case wire.EventStalled:
		w.StalledAt, w.StallText, w.SlowRank, w.Overdue = t.now, e.Message, e.Rank, false
	case wire.EventOverdue:
		w.StallText, w.SlowRank, w.Overdue, w.FailedAt = e.Message, e.Rank, true, t.now
		if w.StalledAt == 0 {
			w.StalledAt = t.now
		}
	default:
		w.StalledAt, w.StallText, w.SlowRank, w.Overdue = 0, "", 0, false
	}
	j := t.Job(w.Job)
	if j == nil || j.Last() == nil || j.Last().Generation != w.Generation || j.Last().Ended != 0 {
		return
	}
	still := w.StalledAt != 0
	for _, id := range j.Last().Allocs {
		if a := t.Alloc(id); a != nil && id != w.ID && a.StalledAt != 0 && a.Generation == w.Generation {
			still = true
		}
	}
	p := j.Last().Pace
	if still == (p.Since != 0) {
		return
	}
	jw := *j
	jw.Attempts, jw.Index = slices.Clone(j.Attempts), t.index
	last := jw.Last()
	if still {
		last.Pace.Since = t.now - min(max(0, e.Silent), int64(24*time.Hour))
	} else {
		took := max(0, t.now-p.Since)
		last.Pace.Stalled += took
		last.Pace.Since = 0
		if last.Stall != nil {
			t.event("stall-over", "job/"+j.ID, "attempt %d makes steps again after %s", last.Number, time.Duration(took).Round(100*time.Millisecond))
		}
		last.Stall = nil
	}
	t.put(tJob, &jw)
}

// kept notes on the attempt of a run's live job what it has committed.
func (t *tx) kept(run string, generation uint64, step int64) {
	r := t.Run(run)
	if r == nil {
		return
	}
	j := t.Job(r.Job)
	if j == nil || j.Last() == nil || j.Last().Generation != generation {
		return
	}
	w := *j
	w.Attempts = slices.Clone(j.Attempts)
	w.Last().Pace.Kept = &step
	w.Last().Pace.Newest = max(w.Last().Pace.Newest, step)
	t.put(tJob, &w)
}

// blamed says which rank and node a failure is of; the text of one without a rank names
// its node.
func (t *tx) blamed(f *api.Failure) string {
	switch {
	case f.Rank < 0:
		return ""
	case f.Node == "":
		return fmt.Sprintf(", rank %d", f.Rank)
	}
	return fmt.Sprintf(", rank %d on %s", f.Rank, t.nodeName(f.Node))
}
