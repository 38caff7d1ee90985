package state

import (
	"fmt"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// maxSpares bounds the spare bundles of one group.
const maxSpares = 4096

// SetSpares says where the spare bundles of a job's group stand from now on: all of them,
// those that stay included. No rank uses one, so what is given up is free at once; the
// bundles of the ranks are not touched, whether they run or not.
type SetSpares struct {
	Group     string       `json:"group"`
	Placement []api.Placed `json:"placement,omitempty"` // Bundle is not read
	Why       string       `json:"why"`
	// Lend: they are planned for the group and not held.
	Lend bool `json:"lend,omitempty"`
}

// RankBundles are the bundles of a placed group that ranks use.
func (g *Group) RankBundles() []Bundle { return g.Placed[:max(0, len(g.Placed)-int(g.Spares))] }

// SpareBundles are the bundles that are held beside them; they come last.
func (g *Group) SpareBundles() []Bundle { return g.Placed[max(0, len(g.Placed)-int(g.Spares)):] }

// SpareNodes are the nodes of the spare bundles, each once, in their order.
func (g *Group) SpareNodes() []string {
	var out []string
	seen := map[string]bool{}
	for _, b := range g.SpareBundles() {
		if !seen[b.Node] {
			seen[b.Node] = true
			out = append(out, b.Node)
		}
	}
	return out
}

// IsSpare reports whether a hold is one of a spare bundle.
func (v *View) IsSpare(h *Hold) bool {
	g := v.Group(h.Group)
	return g != nil && g.Spares > 0 && !h.Releasing && h.Bundle >= int64(len(g.RankBundles()))
}

// freeSpares gives the spare bundles back, in the entry that places a gang anew: it may
// take their room. The caller writes g. Nothing runs in them, so their holds need no proof (P2).
func (t *tx) freeSpares(g *Group) {
	if g.Spares == 0 {
		return
	}
	var free []*Hold
	for _, b := range g.SpareBundles() {
		if h := t.Hold(b.Hold); h != nil {
			free = append(free, h)
		}
	}
	t.dropHolds(free...)
	n := len(g.RankBundles())
	g.Placed, g.Spec.Bundles = g.Placed[:n:n], g.Spec.Bundles[:n:n]
	g.Spares, g.Index = 0, t.index
}

func setSpares(t *tx, c SetSpares) any {
	g := t.Group(c.Group)
	if g == nil {
		return refuse("not-found", "no placement group "+c.Group)
	}
	j := t.Job(g.Job)
	switch {
	case g.State != api.GroupPlaced:
		return refuse("conflict", "placement group "+g.ID+" is "+string(g.State))
	case j == nil || j.State.Terminal() || j.Spec.PlacementGroup != "" || j.Spec.Hosts != nil:
		return refuse("conflict", "placement group "+g.ID+" is not that of one live job")
	case len(c.Placement) > maxSpares:
		return refuse("invalid", fmt.Sprintf("%d spare bundles; at most %d", len(c.Placement), maxSpares))
	}
	w := *g
	before := len(w.SpareNodes())
	t.freeSpares(&w)
	w.Lent = nil
	if c.Lend {
		w.Lent, w.Index = slices.Clone(c.Placement), t.index
		t.put(tGroup, &w)
		t.event("spares-changed", "job/"+j.ID, "%s", c.Why)
		return nil
	}
	ranks := map[string]bool{}
	for _, b := range w.Placed {
		ranks[b.Node] = true
	}
	k := t.newTaking(&w)
	placed, bundles := slices.Clone(w.Placed), slices.Clone(w.Spec.Bundles)
	for _, p := range c.Placement {
		if ranks[p.Node] {
			return refuse("invalid", fmt.Sprintf("node %s has ranks of %s and is no spare of it", p.Node, j.ID))
		}
		b, err := k.take(len(placed), p, bundles[0].Resources)
		if err != nil {
			return refuse("conflict", "the spare nodes of "+g.ID+" do not fit: "+err.Error())
		}
		placed, bundles = append(placed, b), append(bundles, bundles[0])
	}
	if err := k.write(); err != nil {
		return refuse("conflict", "the spare nodes of "+g.ID+" are over a limit: "+err.Error())
	}
	w.Placed, w.Spec.Bundles, w.Spares, w.Index = placed, bundles, int64(len(c.Placement)), t.index
	t.put(tGroup, &w)
	t.event("spares-changed", "job/"+j.ID, "%s, %d before: %s", plural(len(w.SpareNodes()), "spare node"), before, c.Why)
	return nil
}
