package control

import (
	"context"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// evictedWithin bounds how long a victim whose ranks agree on nothing may take to leave.
const evictedWithin = 2 * time.Minute

// grow lets elastic jobs go on with more ranks where the scheduler saw room for them. The
// ranks agree on a step and save it first, so that no step is made twice.
func (h *Head) grow(ctx context.Context, v *state.View, r *schedule.Result) {
	for _, x := range r.Growths {
		g := v.Group(x.Group)
		if g == nil || g.Job == "" {
			continue
		}
		h.try(ctx, state.KindDrainJob, state.DrainJob{Job: g.Job, Drain: state.Drain{Kind: state.DrainResize, Ranks: x.To, Auto: true, Reason: x.Why}})
	}
}

// mayGrow: a running job may have other sizes, so the scheduler is asked though nothing
// waits.
func mayGrow(v *state.View) bool {
	return slices.ContainsFunc(v.LiveJobs(), func(j *state.Job) bool {
		return j.State == api.Running && j.Spec.Sizes.Any() && j.Drain == nil
	})
}

// makeRoom proposes what the scheduler decided on preemption: who leaves for whom, with
// what is claimed in the same entry, and which claims cannot come true any more.
func (h *Head) makeRoom(ctx context.Context, r *schedule.Result) {
	for _, u := range r.Unclaims {
		h.try(ctx, state.KindDropClaim, state.DropClaim{Group: u.Group, Why: u.Why})
	}
	deadline := h.Clock.Now().Add(evictedWithin).UnixNano()
	for _, e := range r.Evictions {
		c := state.Preempt{Group: e.Preemptor, Claim: e.Claim}
		for _, x := range e.Victims {
			c.Victims = append(c.Victims, state.Victim{Group: x.Group, Ranks: x.Keeps, Why: x.Why, Deadline: deadline})
		}
		h.try(ctx, state.KindPreempt, c)
	}
}
