package state

import (
	"fmt"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// CompleteGroup gives a group that was placed with fewer bundles than it asked for some of
// the others. What it holds stays where it is, and no rank notices.
type CompleteGroup struct {
	Group string `json:"group"`
	// Placement names the bundles by their numbers, ascending.
	Placement []api.Placed `json:"placement"`
	Why       string       `json:"why"`
}

// SomeIncomplete reports whether any group holds fewer bundles than it asked for.
func (v *View) SomeIncomplete() bool {
	return first[Group](v.records, tGroup, "incomplete", true) != nil
}

func completeGroup(t *tx, c CompleteGroup) any {
	g := t.Group(c.Group)
	switch {
	case g == nil:
		return refuse("not-found", "no placement group "+c.Group)
	case g.State != api.GroupPlaced || g.Asked == nil || g.Spares > 0:
		return refuse("conflict", "placement group "+g.ID+" lacks no bundle")
	case len(c.Placement) == 0:
		return refuse("invalid", "no bundle is named")
	}
	w := *g
	was := slices.Clone(g.Asked.Chosen)
	if err := t.complete(&w, c.Placement); err != nil {
		return refuse("conflict", "the further bundles of "+g.ID+" do not fit: "+err.Error())
	}
	// Bundles are known by their places among those that are held, which are others now.
	moved := make([]int64, len(was))
	for i, n := range was {
		moved[i] = w.Position(n)
	}
	t.renumber(g.ID, moved)
	t.put(tGroup, &w)
	t.event("pg-completed", "pg/"+g.ID, "%d of %s: %s", len(w.Placed), plural(len(g.Asked.Bundles), "bundle"), c.Why)
	return nil
}

// complete takes the further bundles of a group. On an error nothing may be kept.
func (t *tx) complete(g *Group, placement []api.Placed) error {
	a := *g.Asked
	a.Chosen = slices.Clone(a.Chosen)
	for i, p := range placement {
		if p.Bundle < 0 || p.Bundle >= int64(len(a.Bundles)) || i > 0 && p.Bundle <= placement[i-1].Bundle || slices.Contains(g.Asked.Chosen, p.Bundle) {
			return fmt.Errorf("bundle %d is none that it lacks", p.Bundle)
		}
		a.Chosen = append(a.Chosen, p.Bundle)
	}
	slices.Sort(a.Chosen)
	roles, err := a.roles(g.Spec.Min)
	if err != nil {
		return err
	}
	k := t.newTaking(g)
	placed, bundles := make([]Bundle, len(a.Chosen)), make([]api.Bundle, len(a.Chosen))
	for i, n := range a.Chosen {
		bundles[i] = a.Bundles[n]
		if at := slices.IndexFunc(placement, func(p api.Placed) bool { return p.Bundle == n }); at >= 0 {
			if placed[i], err = k.take(i, placement[at], bundles[i].Resources); err != nil {
				return err
			}
			continue
		}
		placed[i] = g.Placed[g.Position(n)]
		if h := t.Hold(placed[i].Hold); h != nil && h.Bundle != int64(i) {
			moved := *h
			moved.Bundle = int64(i)
			k.holds = append(k.holds, &moved)
		}
	}
	if err := k.write(); err != nil {
		return err
	}
	g.Placed, g.Spec.Bundles, g.Spec.Roles, g.Asked, g.Index = placed, bundles, roles, &a, t.index
	if len(a.Chosen) == len(a.Bundles) {
		g.Spec.Roles, g.Asked = a.Roles, nil
	}
	return nil
}

// renumber follows in the jobs of a group where its bundles stand now; moved is by where
// they stood.
func (t *tx) renumber(group string, moved []int64) {
	at := func(n int64) int64 {
		if n >= 0 && n < int64(len(moved)) {
			return moved[n]
		}
		return n
	}
	for _, j := range t.JobsOf(group) {
		last := j.Last()
		if j.State.Terminal() || last == nil {
			continue
		}
		w := *j
		w.Attempts = slices.Clone(j.Attempts)
		last = w.Last()
		last.Ranks = slices.Clone(last.Ranks)
		for i := range last.Ranks {
			last.Ranks[i].Bundle = at(last.Ranks[i].Bundle)
		}
		w.Index = t.index
		t.put(tJob, &w)
	}
	for _, a := range all[Alloc](t.records, tAlloc, "group", group) {
		if a.Gone {
			continue
		}
		w := *a
		w.Bundles = slices.Clone(a.Bundles)
		for i := range w.Bundles {
			w.Bundles[i] = at(w.Bundles[i])
		}
		t.put(tAlloc, &w)
	}
}
