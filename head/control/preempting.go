package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
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

// maxPolicyTime bounds the times of a policy.
const maxPolicyTime = unit.Duration(30 * 24 * time.Hour)

func checkPolicy(p *api.SchedulerPolicy) (errs []api.FieldError) {
	bad := func(pointer, format string, args ...any) {
		errs = append(errs, api.FieldError{Pointer: "/scheduler" + pointer, Detail: fmt.Sprintf(format, args...)})
	}
	if orders := []string{schedule.OrderFair, schedule.OrderFIFO, schedule.OrderShort, schedule.OrderDeadline}; p.Order != "" && !slices.Contains(orders, p.Order) {
		bad("/order", "%.40q: %s", p.Order, strings.Join(orders, ", "))
	}
	if p.MaxLost < 0 || p.MaxLost > 1_000_000_000 {
		bad("/maxLost", "%d GPU-hours: 0 to 1000000000", p.MaxLost)
	}
	for _, d := range []struct {
		pointer string
		v       *unit.Duration
	}{{"/protect", p.Protect}, {"/growAfter", p.GrowAfter}, {"/linkFresh", &p.LinkFresh}, {"/replacement", p.Replacement}} {
		if d.v != nil && (*d.v < 0 || *d.v > maxPolicyTime) {
			bad(d.pointer, "%s: 0 to %s", *d.v, maxPolicyTime)
		}
	}
	return errs
}

// replaceWait is how long the place of a gang that lost a part is kept for it.
func (h *Head) replaceWait(v *state.View) time.Duration {
	if d := v.Settings().Policy.Replacement; d != nil {
		return d.D()
	}
	return h.Timing.Replace
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
			c.Victims = append(c.Victims, state.Victim{Group: x.Group, Ranks: x.Keeps, Why: x.Why, Deadline: deadline, Lost: x.Lost})
		}
		h.try(ctx, state.KindPreempt, c)
	}
}
