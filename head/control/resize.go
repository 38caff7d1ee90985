package control

import (
	"context"
	"fmt"
	"slices"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/head/survey"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// mostSizes bounds how many smaller sizes are tried after a loss.
const mostSizes = 64

// stands reports whether a bundle may stay where it is.
func stands(v *state.View, b state.Bundle) bool {
	n := v.Node(b.Node)
	return n != nil && n.State == api.NodeReady && !n.Draining() && !dirtyHold(v, b.Hold)
}

// stillLeaving reports whether an allocation of a job's former placement has not ended on a
// node where its ranks are to start.
func stillLeaving(v *state.View, j *state.Job, ranks []state.RankStart) bool {
	for _, a := range v.AllocsOf(j.ID) {
		if a.Leaving && !a.Gone && slices.ContainsFunc(ranks, func(r state.RankStart) bool { return r.Node == a.Node }) {
			return true
		}
	}
	return false
}

// bundlesByRank lists a group's bundles in the order of the ranks that used them last;
// those that no rank used come after, in their own order.
func bundlesByRank(j *state.Job, g *state.Group) []int {
	order := make([]int, 0, len(g.Placed))
	seen := make([]bool, len(g.RankBundles()))
	if last := j.Last(); last != nil {
		for _, r := range last.Ranks {
			if r.Bundle >= 0 && r.Bundle < int64(len(seen)) && !seen[r.Bundle] {
				seen[r.Bundle] = true
				order = append(order, int(r.Bundle))
			}
		}
	}
	for i := range seen {
		if !seen[i] {
			order = append(order, i)
		}
	}
	return order
}

// sized places a job's own group with n bundles: those that stand keep their place, the
// lowest ranks first, and the scheduler is asked for what is missing. It answers nil when
// that does not fit now.
func (h *Head) sized(v *state.View, j *state.Job, g *state.Group, n int64) *state.ResizeGroup {
	c := &state.ResizeGroup{Group: g.ID}
	stays, avoid := map[string]bool{}, h.avoided(v, j.ID)
	for _, i := range bundlesByRank(j, g) {
		if b := g.Placed[i]; stands(v, b) && avoid[b.Node] == "" && int64(len(c.From)) < n {
			c.Placement = append(c.Placement, api.Placed{Bundle: int64(len(c.From)), Node: b.Node, Devices: b.Devices})
			c.From = append(c.From, int64(i))
			stays[b.Node] = true
		}
	}
	missing := n - int64(len(c.From))
	if missing == 0 {
		return c
	}
	spec := g.Spec
	spec.Bundles = slices.Repeat(g.Spec.Bundles[:1], int(missing))
	more := h.placeBeside(v, g, spec, stays)
	if more == nil {
		return nil
	}
	for _, p := range more {
		c.Placement = append(c.Placement, api.Placed{Bundle: int64(len(c.From)), Node: p.Node, Devices: p.Devices})
		c.From = append(c.From, -1)
	}
	return c
}

// placeBeside asks the scheduler for further bundles of a group, some of which stand on
// the given nodes.
func (h *Head) placeBeside(v *state.View, g *state.Group, spec api.GroupSpec, stays map[string]bool) []api.Placed {
	s := h.snapshotOf(v)
	freeSpares(v, s, g) // the entry that places the gang gives them back first
	if stay := keepOnly(s, g.ID, stays); stay+len(spec.Bundles) <= len(g.RankBundles()) {
		s.Queues = nil // it takes no more than it had, which no quota takes from it
	}
	for i := range s.Nodes {
		// One node holds a STRICT_PACK gang; each holds at most one STRICT_SPREAD bundle, or
		// exactly as many as are asked for on each.
		in := stays[s.Nodes[i].ID]
		if in && (spec.Strategy == api.StrictSpread || spec.PerNode > 0) || !in && len(stays) > 0 && spec.Strategy == api.StrictPack {
			s.Own(i).Ready = false
		}
	}
	return planOne(s, &schedule.Request{ID: g.ID, Name: survey.Name(v, g), Spec: spec, Seq: g.Seq, Avoid: h.avoided(v, g.Job)}, h.Clock.Now())
}

// keepOnly leaves of what a group holds what stays where it is: the rest is released in the
// entry that places it anew, and counts against no quota beside what replaces it. It
// answers how many bundles stay.
func keepOnly(s *schedule.Snapshot, group string, stays map[string]bool) (stay int) {
	for i, x := range s.Holders {
		if x.Group != group || x.Releasing {
			continue
		}
		h := *x
		h.Bundles, h.CPU, h.Memory, h.GPUs = nil, 0, 0, 0
		for _, b := range x.Bundles {
			if !stays[b.Node] {
				continue
			}
			h.Bundles = append(h.Bundles, b)
			h.CPU, h.Memory = h.CPU+b.CPU, h.Memory+b.Memory
			if b.Share == 0 {
				h.GPUs += int64(len(b.Devices))
			}
		}
		s.Holders[i] = &h
		stay += len(h.Bundles)
	}
	return stay
}

// worthEnding reports whether a resize may begin: a smaller size always fits, a larger one
// only while there is room for it.
func (h *Head) worthEnding(v *state.View, j *state.Job) bool {
	g := v.Group(j.Group)
	return g != nil && g.State == api.GroupPlaced &&
		(j.AgreedEnd() != nil || j.Drain.Ranks < int64(len(g.RankBundles())) || h.sized(v, j, g, j.Drain.Ranks) != nil)
}

// resize gives a job without an open attempt the size that was asked for. When that does
// not fit any more, it goes on with what it has.
func (h *Head) resize(ctx context.Context, v *state.View, j *state.Job) bool {
	g := v.Group(j.Group)
	if g == nil || g.State != api.GroupPlaced || j.Drain == nil {
		return false
	}
	if n := j.Drain.Ranks; n != int64(len(g.RankBundles())) {
		if c := h.sized(v, j, g, n); c != nil {
			c.Why = j.Drain.Reason
			if _, ok := h.try(ctx, state.KindResizeGroup, *c); ok {
				return true
			}
		}
	}
	_, ok := h.try(ctx, state.KindCancelDrain, state.CancelDrain{
		Job: j.ID, Why: fmt.Sprintf("there is no room for %d ranks any more; it goes on with %d", j.Drain.Ranks, len(g.RankBundles())),
	})
	return ok
}

// smaller moves a gang that lost a part of its placement to the largest smaller size that
// is allowed and fits now (P1).
func (h *Head) smaller(ctx context.Context, v *state.View, j *state.Job, g *state.Group, why string) bool {
	if g.Job != j.ID {
		return false
	}
	for _, n := range j.Spec.Sizes.Below(int64(len(g.RankBundles())), mostSizes) {
		if c := h.sized(v, j, g, n); c != nil {
			c.Why = why
			if _, ok := h.try(ctx, state.KindResizeGroup, *c); ok {
				return true
			}
		}
	}
	return false
}

// Scale asks for another number of ranks of a job that holds its own placement group.
func (h *Head) Scale(ctx context.Context, id string, ranks int64, reason string) (api.Job, error) {
	if err := h.leader(); err != nil {
		return api.Job{}, err
	}
	v := h.Store.View()
	j, err := v.Resolve(id)
	if err != nil {
		return api.Job{}, h.problemOf(err)
	}
	if ranks < 1 || ranks > maxRanks {
		return api.Job{}, invalid([]api.FieldError{{Pointer: "/ranks", Detail: fmt.Sprintf("%d: 1 to %d", ranks, maxRanks)}})
	}
	if ranks == j.Spec.Ranks && j.Drain == nil {
		return h.Job(ctx, j.ID)
	}
	g := v.Group(j.Group)
	if g != nil && g.Job == j.ID {
		spec := g.Spec
		spec.Bundles = slices.Repeat(g.Spec.Bundles[:1], int(ranks))
		if p := h.never(v, spec); p != nil {
			return api.Job{}, p
		}
	}
	text := fmt.Sprintf("resize to %d ranks", ranks)
	if reason != "" {
		text += ": " + reason
	}
	if _, err := h.propose(ctx, state.KindDrainJob, state.DrainJob{Job: j.ID, Drain: state.Drain{Kind: state.DrainResize, Ranks: ranks, Reason: text}}); err != nil {
		return api.Job{}, h.problemOf(err)
	}
	h.Kick()
	return h.Job(ctx, j.ID)
}
