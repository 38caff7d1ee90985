package control

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/head/gang"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// maxSpareNodes bounds what one job may hold beside its ranks.
const maxSpareNodes = 64

// checkSpares: spare nodes belong to a gang that holds its own bundles.
func checkSpares(s api.JobSpec, bad func(string, string, ...any)) {
	switch {
	case s.SpareNodes == 0 && s.LendSpares:
		bad("/lendSpares", "there are no spare nodes to lend; set spareNodes")
	case s.SpareNodes == 0:
	case s.SpareNodes < 0 || s.SpareNodes > maxSpareNodes:
		bad("/spareNodes", "%d: 0 to %d", s.SpareNodes, maxSpareNodes)
	case s.Hosts != nil:
		bad("/spareNodes", "a launch over hosts has the hosts that are there; give it more of them than MIN")
	case s.PlacementGroup != "" || s.Kind == api.KindActor:
		bad("/spareNodes", "a job in a placement group, or an actor, has no nodes of its own to spare")
	}
}

// neverSpares refuses spare nodes that could not be held even by an empty cluster: each
// holds a rank's bundle at least, and no rank of the job.
func (h *Head) neverSpares(v *state.View, spec api.JobSpec, gs api.GroupSpec) *api.Problem {
	if spec.SpareNodes == 0 {
		return nil
	}
	nodes := spec.SpareNodes + 1
	if spec.Strategy == api.StrictSpread {
		nodes = spec.SpareNodes + spec.Ranks
		for _, n := range spec.Sizes.Below(spec.Ranks, maxRanks) {
			nodes = min(nodes, spec.SpareNodes+n)
		}
	}
	gs.Strategy, gs.PerNode, gs.Bundles = api.StrictSpread, 0, slices.Repeat(gs.Bundles[:1], int(nodes))
	p := h.never(v, gs)
	if p != nil {
		p.Detail = fmt.Sprintf("%s beside the nodes of its ranks: %s", counted(int(spec.SpareNodes), "spare node"), p.Detail)
	}
	return p
}

// warming is who has spare bundles on which node: the oldest such group of each.
func warming(v *state.View) map[string]*state.Group {
	var out map[string]*state.Group
	for _, j := range v.LiveJobs() {
		if j.Spec.SpareNodes == 0 {
			continue
		}
		g := v.Group(j.Group)
		if g == nil || g.Spares == 0 {
			continue
		}
		for _, b := range g.SpareBundles() {
			if out == nil {
				out = map[string]*state.Group{}
			}
			if first := out[b.Node]; first == nil || g.Seq < first.Seq {
				out[b.Node] = g
			}
		}
	}
	return out
}

// warmOn is what a node prepares for a group of warming: ranks like those of its job.
// Nothing in it changes from attempt to attempt.
func (h *Head) warmOn(v *state.View, node string, first *state.Group) *wire.WarmOrder {
	if first == nil {
		return nil
	}
	j := v.Job(first.Job)
	if j == nil || j.State.Terminal() || j.Stop != nil || j.Spec.NoWarm || j.Spec.Package != "" {
		return nil // the folder of a package is made with the allocation
	}
	o := &wire.WarmOrder{Job: j.ID, Run: j.Run(), Tenant: j.Spec.Tenant, Attempt: *programOf(j)}
	for _, b := range first.SpareBundles() {
		if b.Node == node {
			o.Devices = append(o.Devices, b.Devices...)
		}
	}
	// As many as a node has: whether there is one or several decides on the threads of each.
	most, _ := gang.PerNode(first)
	for i := range int64(most) {
		o.Attempt.Ranks = append(o.Attempt.Ranks, wire.RankSpec{Rank: i, LocalRank: i})
	}
	return o
}

// keepSpares gives up spare nodes that are of no use any more and takes others when there
// is room. What waits for its ranks has its turn first. No rank notices.
func (h *Head) keepSpares(ctx context.Context) {
	for _, j := range h.Store.View().LiveJobs() {
		if ctx.Err() != nil {
			return
		}
		h.keepSparesOf(ctx, j.ID)
	}
}

func (h *Head) keepSparesOf(ctx context.Context, job string) {
	v := h.Store.View()
	j := v.Job(job)
	if j == nil || j.Spec.SpareNodes == 0 || j.State.Terminal() || j.Stop != nil || j.OwnerGone {
		return
	}
	g := v.Group(j.Group)
	if g == nil || g.Job != j.ID || g.State != api.GroupPlaced {
		return
	}
	if j.Spec.LendSpares {
		h.lendSpares(ctx, v, j, g)
		return
	}
	if placement, why := h.spares(v, j, g); why != "" {
		h.try(ctx, state.KindSetSpares, state.SetSpares{Group: g.ID, Placement: placement, Why: why})
	}
}

// keepOthers takes the spare nodes back that a gang had and did not need when it moved,
// before anybody else is offered their room.
func (h *Head) keepOthers(ctx context.Context, v *state.View, g *state.Group, moved []api.Placed) {
	good, _ := h.gangs(v).GoodSpares(g)
	c := state.SetSpares{Group: g.ID}
	var names []string
	for _, node := range g.SpareNodes() {
		if good[node] == nil || slices.ContainsFunc(moved, func(p api.Placed) bool { return p.Node == node }) {
			continue
		}
		names = append(names, nodeName(v, node))
		for _, b := range good[node] {
			c.Placement = append(c.Placement, api.Placed{Node: b.Node, Devices: b.Devices})
		}
	}
	if len(moved) > 0 && len(names) > 0 {
		c.Why = "still with " + strings.Join(names, ", ")
		h.try(ctx, state.KindSetSpares, c)
	}
}

// spares decides where the spare bundles of a job stand; why is empty when nothing changes.
func (h *Head) spares(v *state.View, j *state.Job, g *state.Group) (placement []api.Placed, why string) {
	most, ranks := gang.PerNode(g)
	good, unsure := h.gangs(v).GoodSpares(g)
	if unsure || h.anySuspect(v, g.ID) {
		return nil, ""
	}
	for node := range ranks {
		if n := v.Node(node); n == nil || n.State == api.NodeLost {
			return nil, "" // first its ranks leave, to a spare node if there is one
		}
	}
	var said []string
	in := map[string]bool{}
	for _, node := range g.SpareNodes() {
		switch {
		case good[node] == nil:
			said = append(said, "without "+nodeName(v, node))
		case int64(len(in)) < j.Spec.SpareNodes:
			in[node] = true
			for _, b := range good[node][:most] {
				placement = append(placement, api.Placed{Node: b.Node, Devices: b.Devices})
			}
		}
	}
	for int64(len(in)) < j.Spec.SpareNodes {
		more := h.spareBeside(v, j, g, in)
		if more == nil {
			break
		}
		in[more[0].Node] = true
		said = append(said, "with "+nodeName(v, more[0].Node))
		placement = append(placement, more...)
	}
	return placement, strings.Join(said, ", ")
}

// spareBeside finds one more node that could stand in for one of a job's, beside those of
// its ranks and those that it has already; nil: there is none now.
func (h *Head) spareBeside(v *state.View, j *state.Job, g *state.Group, in map[string]bool) []api.Placed {
	most, ranks := gang.PerNode(g)
	s := h.snapshotOf(v)
	stays := map[string]bool{}
	for id := range ranks {
		stays[id] = true
	}
	spec := g.Spec
	spec.Strategy, spec.PerNode = api.Pack, 0
	outside := schedule.Beside(s, &spec, stays, h.Clock.Now()) // a spare node is where the ranks may be
	for i := range s.Nodes {
		if id := s.Nodes[i].ID; in[id] || ranks[id] > 0 || outside[id] != "" {
			s.Own(i).Ready = false
		}
	}
	spec.Strategy, spec.Bundles = api.StrictPack, slices.Repeat(g.Spec.Bundles[:1], most)
	r := &schedule.Request{ID: g.ID + " spare", Name: j.ID, Spec: spec, Seq: v.Index() + 1, Avoid: h.avoided(v, j.ID)}
	return h.gangs(v).PlanOne(s, r)
}

// sparesView is what people are told of a job's spare nodes; nil: it wants none.
func sparesView(v *state.View, j *state.Job) *api.Spares {
	if j == nil || j.Spec.SpareNodes == 0 || j.State.Terminal() {
		return nil
	}
	out := &api.Spares{Want: j.Spec.SpareNodes, Nodes: []string{}}
	g := v.Group(j.Group)
	if g == nil || g.State != api.GroupPlaced {
		out.Waits = "its ranks, which are placed first"
		return out
	}
	for _, n := range g.SpareNodes() {
		out.Nodes = append(out.Nodes, nodeName(v, n))
	}
	for _, p := range g.Lent {
		if n := nodeName(v, p.Node); !slices.Contains(out.Nodes, n) {
			out.Nodes, out.Lent = append(out.Nodes, n), true
		}
	}
	if most, _ := gang.PerNode(g); int64(len(out.Nodes)) < out.Want {
		out.Waits = fmt.Sprintf("a node without ranks of it and with room for %s", counted(most, "bundle"))
	}
	return out
}

func sparesText(s *api.Spares) string {
	switch {
	case s == nil:
		return ""
	case s.Waits != "":
		return fmt.Sprintf(" It holds %d of %s and waits for %s.", len(s.Nodes), counted(int(s.Want), "spare node"), s.Waits)
	}
	if s.Lent {
		return fmt.Sprintf(" %s are planned for it, and lent to work that it may end: %s.", counted(len(s.Nodes), "spare node"), strings.Join(s.Nodes, ", "))
	}
	return fmt.Sprintf(" It holds %s: %s.", counted(len(s.Nodes), "spare node"), strings.Join(s.Nodes, ", "))
}
