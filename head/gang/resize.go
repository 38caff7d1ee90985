package gang

import (
	"fmt"
	"slices"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// mostSizes bounds how many smaller sizes are tried.
const mostSizes = 64

// sized places a job's own group with n bundles: those that stand keep their place, the
// lowest ranks first, and the scheduler is asked for what is missing. It answers nil when
// that does not fit now.
func (c Cluster) sized(j *state.Job, g *state.Group, n int64) *state.ResizeGroup {
	out := &state.ResizeGroup{Group: g.ID}
	stays, avoid := map[string]bool{}, c.avoided(j.ID)
	for _, i := range j.BundlesByRank(g) {
		if b := g.Placed[i]; c.Stands(b) && avoid[b.Node] == "" && int64(len(out.From)) < n {
			out.Placement = append(out.Placement, api.Placed{Bundle: int64(len(out.From)), Node: b.Node, Devices: b.Devices})
			out.From = append(out.From, int64(i))
			stays[b.Node] = true
		}
	}
	missing := n - int64(len(out.From))
	if missing == 0 {
		return out
	}
	spec := g.Spec
	spec.Bundles = slices.Repeat(g.Spec.Bundles[:1], int(missing))
	more := c.beside(g, spec, stays)
	if more == nil {
		return nil
	}
	for _, p := range more {
		out.Placement = append(out.Placement, api.Placed{Bundle: int64(len(out.From)), Node: p.Node, Devices: p.Devices})
		out.From = append(out.From, -1)
	}
	return out
}

// WorthEnding reports whether the resize that a job was told may begin: a smaller size
// always fits, a larger one only while there is room for it.
func (c Cluster) WorthEnding(j *state.Job) bool {
	g := c.View.Group(j.Group)
	return g != nil && g.State == api.GroupPlaced &&
		(j.AgreedEnd() != nil || j.Drain.Ranks < int64(len(g.RankBundles())) || c.sized(j, g, j.Drain.Ranks) != nil)
}

// Resize gives a job without an open attempt the size that it was told. When that does not
// fit any more, it goes on with what it has.
func (c Cluster) Resize(j *state.Job, try Try) bool {
	g := c.View.Group(j.Group)
	if g == nil || g.State != api.GroupPlaced || j.Drain == nil {
		return false
	}
	if n := j.Drain.Ranks; n != int64(len(g.RankBundles())) {
		if r := c.sized(j, g, n); r != nil {
			r.Why = j.Drain.Reason
			if try(state.KindResizeGroup, *r) {
				return true
			}
		}
	}
	return try(state.KindCancelDrain, state.CancelDrain{
		Job: j.ID, Why: fmt.Sprintf("there is no room for %d ranks any more; it goes on with %d", j.Drain.Ranks, len(g.RankBundles())),
	})
}

// smaller moves a gang to the largest smaller size that is allowed and fits now.
func (c Cluster) smaller(j *state.Job, g *state.Group, why string, try Try) bool {
	if g.Job != j.ID {
		return false
	}
	for _, n := range j.Spec.Sizes.Below(int64(len(g.RankBundles())), mostSizes) {
		if r := c.sized(j, g, n); r != nil {
			r.Why = why
			if try(state.KindResizeGroup, *r) {
				return true
			}
		}
	}
	return false
}

// MayGrow: a running job may have other sizes, or a group lacks bundles, so the scheduler is asked though nothing
// waits.
func MayGrow(v *state.View) bool {
	return slices.ContainsFunc(v.LiveJobs(), func(j *state.Job) bool {
		return j.State == api.Running && j.Spec.Sizes.Any() && j.Drain == nil
	}) || v.SomeIncomplete()
}

// Growths lets elastic jobs go on with more ranks where the scheduler saw room for them.
// The ranks agree on a step and save it first, so that no step is made twice.
func Growths(v *state.View, r *schedule.Result) []state.DrainJob {
	var out []state.DrainJob
	for _, x := range r.Growths {
		if g := v.Group(x.Group); g != nil && g.Job != "" && x.Bundles == nil {
			out = append(out, state.DrainJob{Job: g.Job, Drain: state.Drain{Kind: state.DrainResize, Ranks: x.To, Auto: true, Reason: x.Why}})
		}
	}
	return out
}

// Completions give groups the bundles of their roles that they were placed without, where
// the scheduler saw room for them.
func Completions(r *schedule.Result) []state.CompleteGroup {
	var out []state.CompleteGroup
	for _, x := range r.Growths {
		if x.Bundles != nil {
			out = append(out, state.CompleteGroup{Group: x.Group, Placement: x.Bundles, Why: x.Why})
		}
	}
	return out
}

// Preemptions tell who leaves or shrinks for whom, with what is claimed in the same entry.
// What has not left by the deadline, in nanoseconds, is ended by force.
func Preemptions(r *schedule.Result, deadline int64) []state.Preempt {
	out := make([]state.Preempt, 0, len(r.Evictions))
	for _, e := range r.Evictions {
		c := state.Preempt{Group: e.Preemptor, Claim: e.Claim}
		for _, x := range e.Victims {
			c.Victims = append(c.Victims, state.Victim{Group: x.Group, Ranks: x.Keeps, Why: x.Why, Deadline: deadline, Lost: x.Lost})
		}
		out = append(out, c)
	}
	return out
}
