package control

import (
	"context"
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// sweepOnce removes, once for each generation, what older ones left half written.
// It waits until the new one runs: until then a shim may still be ending the old.
func (c *checkpoints) sweepOnce(ctx context.Context, v *state.View, j *state.Job) {
	gen := j.Last().Generation
	c.mu.Lock()
	done := c.swept[j.Run()] >= gen
	out, committing := c.t.Committing(j.Run())
	c.mu.Unlock()
	if done || len(v.Checkpoints(j.Run())) == 0 {
		return // swept already, or nothing was ever saved
	}
	order, err := c.sweepOrder(v, j.Run(), gen, out, committing)
	if err != nil {
		c.h.Logger.Error("a sweep could not be ordered", "run", j.Run(), "err", err)
		return
	}
	t := wire.Task{Kind: wire.TaskSweep, Run: j.Run(), Store: c.h.storeOf(v, j), Data: order}
	c.once(ctx, "sweep/"+j.Run(), func() {
		if r, err := c.h.task(ctx, v, t.Run, t); err != nil || r.Error != "" {
			c.h.Logger.Info("garbage of older generations was not swept; it is tried again", "run", t.Run, "err", err, "reply", r.Error)
			_ = c.h.Clock.Sleep(ctx, 10*time.Second)
			return
		}
		c.mu.Lock()
		c.swept[t.Run] = max(c.swept[t.Run], gen)
		c.mu.Unlock()
	})
}

// sweepOrder keeps what the log holds and what is being committed.
func (c *checkpoints) sweepOrder(v *state.View, run string, gen uint64, out checkpoint.CommitReady, committing bool) ([]byte, error) {
	var keep []checkpoint.StepName
	for _, ck := range v.Checkpoints(run) {
		keep = append(keep, record(ck).StepName)
	}
	if committing {
		if n, err := checkpoint.ParseStepName(lastElement(out.Dir)); err == nil {
			keep = append(keep, n)
		}
	}
	return checkpoint.NewSweepOrder(v.Meta().Life, gen, keep)
}

// sweepLast removes what the last attempt of an ended job left half written: a run that
// is never started again would keep it for ever, and on a full store that is the space
// which the next run lacks. Its processes are gone; a later job of the run has a higher
// generation, which the order spares. One try: the run's next job sweeps again.
func (c *checkpoints) sweepLast(ctx context.Context, v *state.View, j *state.Job) {
	last := j.Last()
	if last == nil || j.Spec.Kind == api.KindActor {
		return
	}
	c.mu.Lock()
	out, committing := c.t.Committing(j.Run())
	c.mu.Unlock()
	order, err := c.sweepOrder(v, j.Run(), last.Generation+1, out, committing)
	if err != nil {
		c.h.Logger.Error("a sweep could not be ordered", "run", j.Run(), "err", err)
		return
	}
	t := wire.Task{Kind: wire.TaskSweep, Run: j.Run(), Store: c.h.storeOf(v, j), Data: order}
	c.h.spawn(ctx, func() {
		if r, err := c.h.task(ctx, v, t.Run, t); err != nil || r.Error != "" {
			c.h.Logger.Info("what an ended job left half written was not swept; the run's next job does it", "run", t.Run, "err", err, "reply", r.Error)
		}
	})
}

// retain proposes tombstones for what no rule of the job's policy keeps (I20).
func (c *checkpoints) retain(ctx context.Context, v *state.View, j *state.Job) {
	spec := j.Spec.Checkpoint
	if spec.KeepLast <= 0 {
		return
	}
	all := v.Checkpoints(j.Run())
	if int64(len(all)) <= spec.KeepLast {
		return
	}
	records := make([]checkpoint.Record, 0, len(all))
	ids := map[string]string{}
	for _, ck := range all {
		r := record(ck)
		records = append(records, *r)
		ids[r.StepName.String()] = ck.ID
	}
	var restoring []checkpoint.StepName
	if r := j.Last().Restore; r != nil && j.Last().Ended == 0 {
		if n, err := checkpoint.ParseStepName(lastElement(r.Dir)); err == nil {
			restoring = append(restoring, n)
		}
	}
	policy := checkpoint.Policy{Last: int(spec.KeepLast), Every: spec.KeepEvery}
	why := fmt.Sprintf("keep the last %d", spec.KeepLast)
	if spec.KeepEvery > 0 {
		why += fmt.Sprintf(", every %d steps", spec.KeepEvery)
	}
	if b := spec.KeepBest; b != nil {
		policy.Best = &checkpoint.Best{Metric: b.Metric, Max: b.Mode == "max", Count: int(b.Count)}
		why += fmt.Sprintf(", the best %d by %s", b.Count, b.Metric)
	}
	for _, r := range checkpoint.Expired(records, policy, restoring) {
		c.h.try(ctx, state.KindTombstone, state.Tombstone{ID: ids[r.StepName.String()], Reason: why})
	}
}
