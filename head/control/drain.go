package control

import (
	"context"
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// drainPatience is how long ranks that have saved their last step may take to end by
// themselves before they are told to.
const drainPatience = 5 * time.Second

// drainAll takes the steps of every orderly end: jobs leave nodes that are drained, their
// ranks agree on a last step, and what cannot agree or is late is ended.
func (h *Head) drainAll(ctx context.Context) (next time.Duration) {
	soon := func(d time.Duration) {
		if d > 0 && (next == 0 || d < next) {
			next = d
		}
	}
	v := h.Store.View()
	for _, n := range v.Nodes() {
		if n.Draining() && (n.State == api.NodeReady || n.State == api.NodeAgentless) {
			h.leaveNode(ctx, v, n)
		}
	}
	for _, j := range h.Store.View().LiveJobs() {
		if ctx.Err() != nil {
			return 0
		}
		soon(h.drainOne(ctx, h.Store.View(), j.ID))
	}
	return next
}

// leaveNode makes every job with something on a drained node leave it.
func (h *Head) leaveNode(ctx context.Context, v *state.View, n *state.Node) {
	seen, c := map[string]bool{}, n.Cordoned()
	for _, hold := range v.HoldsOn(n.ID) {
		g := v.Group(hold.Group)
		if hold.Releasing || v.IsSpare(hold) || g == nil || g.State != api.GroupPlaced || seen[g.ID] {
			continue
		}
		seen[g.ID] = true
		runs := false
		for _, j := range v.JobsOf(g.ID) {
			if j.State.Terminal() {
				continue
			}
			runs = true
			switch {
			case j.Stop != nil || j.OwnerGone:
			case j.Drain == nil || j.Drain.Kind == state.DrainResize || j.Drain.Kind == state.DrainMove && j.Drain.Tighter(c):
				h.try(ctx, state.KindDrainJob, state.DrainJob{Job: j.ID, Drain: state.Drain{
					Kind: state.DrainMove, Node: n.ID, Deadline: c.Deadline, Reason: n.DrainReason(),
				}})
			case j.Drain.Tighter(c):
				d := *j.Drain // it ends anyway, and now by the node's deadline
				d.Deadline = c.Deadline
				h.try(ctx, state.KindDrainJob, state.DrainJob{Job: j.ID, Drain: d})
			}
		}
		if !runs {
			h.try(ctx, state.KindReleaseGroup, state.ReleaseGroup{Group: g.ID, Placement: h.gangs(v).Replacement(g), Why: n.DrainReason()})
		}
	}
}

// drainOne takes one step of one job.
func (h *Head) drainOne(ctx context.Context, v *state.View, job string) time.Duration {
	j := v.Job(job)
	if j == nil || j.State.Terminal() || j.Stop != nil || j.OwnerGone {
		return 0
	}
	if j.Drain != nil && j.Drain.Kind == state.DrainMove && h.staysAnyway(v, j) {
		h.try(ctx, state.KindCancelDrain, state.CancelDrain{Job: j.ID, Why: "nothing of it is on a drained node any more"})
		return 0
	}
	last := j.Last()
	if last == nil || last.Ended != 0 || j.Drain != nil && j.Drain.Ordered != "" && j.Drain.Generation == last.Generation {
		return 0
	}
	if j.Drain != nil && j.Drain.Kind == state.DrainResize && !h.gangs(v).WorthEnding(j) {
		if j.Drain.Auto && !j.Ending() {
			h.try(ctx, state.KindCancelDrain, state.CancelDrain{Job: j.ID, Why: fmt.Sprintf("the room for %d ranks is gone", j.Drain.Ranks)})
		}
		return 0 // it runs on until there is room for its new size
	}
	delay := time.Duration(0)
	if j.Drain != nil {
		why, wait := h.orderNow(v, j, last)
		if why != "" {
			h.try(ctx, state.KindOrderEnd, state.OrderEnd{Job: j.ID, Generation: last.Generation, Why: why})
			return 0
		}
		delay = wait
	}
	again, unable := h.agreeOne(ctx, v, j)
	if unable != "" {
		h.try(ctx, state.KindOrderEnd, state.OrderEnd{
			Job: j.ID, Generation: last.Generation, Why: "no checkpoint is possible: " + unable + "; TERM and the grace instead",
		})
	}
	if again > 0 && (delay == 0 || again < delay) {
		delay = again
	}
	return delay
}

// staysAnyway: the nodes that a move was to leave are drained no more, or nothing of the
// job stands there.
func (h *Head) staysAnyway(v *state.View, j *state.Job) bool {
	if j.Ending() {
		return false // what has agreed to end, or is told to, ends; then it is placed anew
	}
	g := v.Group(j.Group)
	if g == nil || g.State != api.GroupPlaced {
		return true
	}
	for _, b := range g.RankBundles() {
		if n := v.Node(b.Node); n == nil || n.Draining() || n.Info.Leaving {
			return false
		}
	}
	return j.Last() == nil || j.Last().Ended == 0
}

// orderNow says why the ranks of a draining attempt are not waited for any longer; "" with
// the time after which to ask again.
func (h *Head) orderNow(v *state.View, j *state.Job, last *state.Attempt) (why string, wait time.Duration) {
	now := h.Clock.Now()
	until := func(from int64, d time.Duration) bool {
		left := time.Unix(0, from).Add(d).Sub(now)
		if left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
		return left <= 0
	}
	d := j.Drain
	switch ck, p := v.SavedEnd(j), j.AgreedEnd(); {
	case ck != nil && until(ck.Committed, drainPatience):
		return fmt.Sprintf("step %d is saved", ck.Step), 0
	case ck == nil && p != nil && until(p.At, h.Timing.Prepare):
		return fmt.Sprintf("step %d was agreed on and not saved within %s", p.Target, h.Timing.Prepare), 0
	}
	switch {
	case d.Deadline != 0 && until(d.Deadline, 0):
		return "the deadline has come", 0
	case j.Spec.Kind == api.KindActor || j.Spec.Kind == api.KindService:
		return fmt.Sprintf("kind %s has no steps to save", j.Spec.Kind), 0
	case last.Running == 0 && !last.FirstStep:
		return "no rank has made a step yet", 0
	}
	return "", wait
}

// othersLeaving: another job of the same group has not ended yet on the node that this one
// leaves; the group moves once for all.
func (h *Head) othersLeaving(v *state.View, j *state.Job) bool {
	if j.Drain == nil || j.Drain.Kind != state.DrainMove {
		return false
	}
	for _, o := range v.JobsOf(j.Group) {
		if o.ID != j.ID && !o.State.Terminal() && o.Drain != nil && o.Last() != nil && o.Last().Ended == 0 {
			return true
		}
	}
	return false
}
