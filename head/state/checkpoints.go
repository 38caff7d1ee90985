package state

import (
	"fmt"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// CheckpointID orders the checkpoints of a run by generation, then step.
func CheckpointID(run string, generation uint64, step int64) string {
	return fmt.Sprintf("%s/%016x/%016x", run, generation, step)
}

// commitCheckpoint commits one step of a run, once (P4): by the run's current
// generation, above every step committed before.
func commitCheckpoint(t *tx, c CommitCheckpoint) any {
	r := t.Run(c.Run)
	if r == nil {
		return refuse("not-found", "no run "+c.Run)
	}
	if c.Generation != r.Generation {
		return refuse("stale", fmt.Sprintf("step %d of run %s comes from generation %d; the current one is %d", c.Step, c.Run, c.Generation, r.Generation))
	}
	j := t.Job(r.Job)
	if j == nil || j.State.Terminal() {
		return refuse("stale", "run "+c.Run+" has no live job")
	}
	id := CheckpointID(c.Run, c.Generation, c.Step)
	if old := t.Checkpoint(id); old != nil {
		if old.State == CheckpointCommitted && old.Digest == c.Digest {
			return nil // the same step, told twice
		}
		return refuse("exists", fmt.Sprintf("step %d of run %s is %s already", c.Step, c.Run, old.State))
	}
	ck := Checkpoint{
		ID: id, Run: c.Run, Step: c.Step, Generation: c.Generation, World: c.World, Store: c.Store, Dir: c.Dir,
		Digest: c.Digest, Bytes: c.Bytes, Files: c.Files, State: CheckpointCommitted, Committed: t.now, Index: t.index,
		Metrics: c.Metrics,
	}
	if newest := t.NewestCommitted(c.Run); newest != nil {
		if c.Step <= newest.Step {
			return refuse("exists", fmt.Sprintf("step %d of run %s is not above the committed step %d", c.Step, c.Run, newest.Step))
		}
		parent := newest.Step
		ck.Parent, ck.ParentGeneration = &parent, newest.Generation
	}
	t.put(tCheckpoint, &ck)
	if !r.Fast {
		run := *r
		run.Fast = true
		t.put(tRun, &run)
		// The attempt that made the first step changes its class with it.
		if last := j.Last(); last != nil && last.Class != wire.ClassFast && t.classOf(j, 1) == wire.ClassFast {
			w := *j
			w.Attempts = slices.Clone(j.Attempts)
			w.Last().Class = wire.ClassFast
			t.put(tJob, &w)
		}
	}
	t.kept(c.Run, c.Generation, c.Step)
	t.event("checkpoint-committed", "job/"+j.ID, "step %d of run %s, generation %d, %s, %d bytes", c.Step, c.Run, c.Generation, plural(c.Files, "file"), c.Bytes)
	return nil
}

// rollBack frees every step from c.Step on for a higher generation; their
// directories stay as a fork.
func rollBack(t *tx, c RollBack) any {
	n := 0
	damaged := ""
	if newest := t.NewestCommitted(c.Run); c.Damaged && newest != nil && newest.Step == c.Step {
		damaged = newest.ID
	}
	for _, ck := range t.Checkpoints(c.Run) {
		if ck.State != CheckpointCommitted || ck.Step < c.Step {
			continue
		}
		w := *ck
		w.State, w.Reason, w.Marked, w.Index = CheckpointRolledBack, c.Reason, false, t.index
		w.Damaged = ck.ID == damaged
		t.put(tCheckpoint, &w)
		object := "run/" + c.Run
		if r := t.Run(c.Run); r != nil && r.Job != "" {
			object = "job/" + r.Job
		}
		t.event("checkpoint-rolled-back", object, "step %d of run %s: %s", w.Step, c.Run, c.Reason)
		n++
	}
	if n == 0 {
		return refuse("not-found", fmt.Sprintf("run %s has no committed step from %d on", c.Run, c.Step))
	}
	return nil
}

// tombstone announces a deletion. The newest committed step and the one that a live
// attempt restores from stay (I20).
func tombstone(t *tx, c Tombstone) any {
	ck := t.Checkpoint(c.ID)
	if ck == nil {
		return refuse("not-found", "no checkpoint "+c.ID)
	}
	if ck.State == CheckpointDeleting {
		return nil
	}
	if ck.Pinned {
		return refuse("conflict", fmt.Sprintf("step %d of run %s is pinned", ck.Step, ck.Run))
	}
	var live *Job
	if r := t.Run(ck.Run); r != nil {
		if j := t.Job(r.Job); j != nil && !j.State.Terminal() {
			live = j
		}
	}
	if newest := t.NewestCommitted(ck.Run); newest != nil && newest.ID == ck.ID && (!c.Asked || live != nil) {
		return refuse("conflict", fmt.Sprintf("step %d is the newest committed step of run %s, and job %s would lose its work with it", ck.Step, ck.Run, jobName(live)))
	}
	if live != nil && live.Last() != nil && live.Last().Ended == 0 && live.Last().Restore != nil && live.Last().Restore.Dir == ck.Dir {
		return refuse("conflict", fmt.Sprintf("the live attempt of job %s restores from step %d", live.ID, ck.Step))
	}
	w := *ck
	w.State, w.Reason, w.Index = CheckpointDeleting, c.Reason, t.index
	t.put(tCheckpoint, &w)
	return nil
}

func jobName(j *Job) string {
	if j == nil {
		return "the next one"
	}
	return j.ID
}

func checkpointDone(t *tx, c CheckpointDone) any {
	ck := t.Checkpoint(c.ID)
	if ck == nil {
		return nil
	}
	if c.State != "" && c.State != ck.State || c.Index != 0 && c.Index != ck.Index {
		return refuse("stale", "checkpoint "+c.ID+" is "+string(ck.State)+" by now")
	}
	if c.Deleted {
		if ck.State != CheckpointDeleting {
			return refuse("conflict", "checkpoint "+c.ID+" has no tombstone")
		}
		t.drop(tCheckpoint, ck)
		t.event("checkpoint-deleted", "run/"+ck.Run, "step %d: %s", ck.Step, ck.Reason)
		return nil
	}
	w := *ck
	w.Marked = true
	t.put(tCheckpoint, &w)
	return nil
}
