package control

import (
	"context"
	"time"

	"github.com/troupe-runtime/troupe/head/gang"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
)

// evictedWithin bounds how long a victim whose ranks agree on nothing may take to leave.
const evictedWithin = 2 * time.Minute

// grow lets elastic jobs go on with more ranks where the scheduler saw room for them.
func (h *Head) grow(ctx context.Context, v *state.View, r *schedule.Result) {
	for _, c := range gang.Completions(r) {
		h.try(ctx, state.KindCompleteGroup, c)
	}
	for _, c := range gang.Growths(v, r) {
		h.try(ctx, state.KindDrainJob, c)
	}
}

// unclaim drops the claims that cannot come true any more; what they kept is planned anew in
// the same decision.
func unclaim(r *schedule.Result) []command {
	var all []command
	for _, u := range r.Unclaims {
		all = append(all, command{state.KindDropClaim, state.DropClaim{Group: u.Group, Why: u.Why}})
	}
	return all
}

// makeRoom is what the scheduler decided on preemption: who leaves for whom, with what is
// claimed in the same entry.
func (h *Head) makeRoom(r *schedule.Result) []command {
	var all []command
	for _, c := range gang.Preemptions(r, h.Clock.Now().Add(evictedWithin).UnixNano()) {
		all = append(all, command{state.KindPreempt, c})
	}
	return all
}
