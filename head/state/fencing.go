package state

import (
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// RunFast records that a rank of the run has prepared a step: its training checkpoints
// through Troupe and belongs to the fast class from now on, the running attempt included
// (DESIGN §7).
type RunFast struct {
	Run        string `json:"run"`
	Generation uint64 `json:"gen"` // of the attempt that prepared it
}

// AbortAttempt records that an attempt cannot succeed, since a rank or node of it is
// gone: its other ranks end now, not when their collectives time out.
type AbortAttempt struct {
	Job        string `json:"job"`
	Generation uint64 `json:"gen"`
	Why        string `json:"why"`
}

func runFast(t *tx, c RunFast) any {
	r := t.Run(c.Run)
	if r == nil {
		return refuse("not-found", "no run "+c.Run)
	}
	if c.Generation < r.Generation {
		return refuse("stale", "run "+c.Run+" has a newer generation")
	}
	if !r.Fast {
		w := *r
		w.Fast = true
		t.put(tRun, &w)
		t.event("run-fast", "run/"+c.Run, "a step was prepared: a node that is cut off no longer holds its work up")
	}
	j := t.Job(r.Job)
	if j == nil || j.State.Terminal() || j.Last() == nil || j.Last().Class == wire.ClassFast || t.classOf(j, 1) != wire.ClassFast {
		return nil
	}
	w := *j
	w.Attempts = slices.Clone(j.Attempts)
	w.Last().Class = wire.ClassFast
	w.Index = t.index
	t.put(tJob, &w)
	return nil
}

func abortAttempt(t *tx, c AbortAttempt) any {
	j := t.Job(c.Job)
	if j == nil || j.State.Terminal() || j.Last() == nil || j.Last().Generation != c.Generation || j.Last().Ended != 0 {
		return refuse("stale", "no such open attempt of "+c.Job)
	}
	if j.Last().Aborted != 0 {
		return nil
	}
	w := *j
	w.Attempts = slices.Clone(j.Attempts)
	w.Last().Aborted = t.now
	w.Index = t.index
	t.put(tJob, &w)
	t.event("attempt-aborted", "job/"+j.ID, "attempt %d: %s; its other ranks are ended", w.Last().Number, c.Why)
	return nil
}

// ClassOf is the fencing class of a job's newest attempt; strict before the first.
func (j *Job) ClassOf() wire.Class {
	if a := j.Last(); a != nil && a.Class != "" {
		return a.Class
	}
	if j.Spec.Kind == api.KindActor {
		return wire.ClassFast
	}
	return wire.ClassStrict
}
