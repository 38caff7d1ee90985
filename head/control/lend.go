package control

import (
	"context"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/head/gang"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// Spare nodes that are lent are planned for a job and not held: work that may be ended for
// it runs there meanwhile. When a node is lost the gang is placed on them, after whoever is
// there has left.

// lendSpares keeps the lent spare nodes of a job up to date.
func (h *Head) lendSpares(ctx context.Context, v *state.View, j *state.Job, g *state.Group) {
	_, ranks := gang.PerNode(g)
	for node := range ranks {
		if n := v.Node(node); n == nil || n.State != api.NodeReady {
			return // what becomes of its ranks is decided first
		}
	}
	var placement []api.Placed
	in := map[string]bool{}
	for _, p := range g.Lent {
		if n := v.Node(p.Node); n != nil && n.Schedulable() && ranks[p.Node] == 0 && (in[p.Node] || int64(len(in)) < j.Spec.SpareNodes) {
			in[p.Node] = true
			placement = append(placement, p)
		}
	}
	changed := len(placement) != len(g.Lent)
	for int64(len(in)) < j.Spec.SpareNodes {
		more := h.spareBeside(v, j, g, in)
		if more == nil {
			break
		}
		in[more[0].Node], changed = true, true
		for _, p := range more {
			placement = append(placement, api.Placed{Node: p.Node, Devices: p.Devices})
		}
	}
	if !changed {
		return
	}
	var names []string
	for node := range in {
		names = append(names, nodeName(v, node))
	}
	slices.Sort(names)
	h.try(ctx, state.KindSetSpares, state.SetSpares{Group: g.ID, Placement: placement, Lend: true, Why: "lent meanwhile: " + strings.Join(names, ", ")})
}
