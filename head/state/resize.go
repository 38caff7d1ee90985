package state

import (
	"fmt"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// ResizeGroup gives the group of one job another number of bundles, in one entry (P1),
// between two attempts. Bundle i of the new size is bundle From[i] of the old one, in the
// order of the ranks, or a new one (-1), and stands where Placement says; a bundle that
// stays where it is keeps its hold and its devices. Old bundles that are not named are
// released.
type ResizeGroup struct {
	Group     string       `json:"group"`
	From      []int64      `json:"from"`
	Placement []api.Placed `json:"placement"`
	Why       string       `json:"why"`
}

// BundlesByRank lists a group's bundles in the order of the ranks that used them last;
// those that no rank used come after, in their own order. A gang that
// shrinks keeps the first of them.
func (j *Job) BundlesByRank(g *Group) []int {
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

func resizeGroup(t *tx, c ResizeGroup) any {
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
	case j.Last() != nil && j.Last().Ended == 0:
		return refuse("conflict", "job "+j.ID+" runs")
	case len(c.Placement) == 0 || len(c.From) != len(c.Placement):
		return refuse("invalid", fmt.Sprintf("%d bundles placed, %d named", len(c.Placement), len(c.From)))
	case !j.allows(int64(len(c.Placement))):
		return refuse("invalid", fmt.Sprintf("%d ranks are not an allowed size of %s", len(c.Placement), j.ID))
	}
	w := *g
	t.freeSpares(&w)
	if err := t.resize(&w, c); err != nil {
		return refuse("conflict", "the new size of "+g.ID+" does not fit: "+err.Error())
	}
	jw := *j
	jw.Attempts = slices.Clone(j.Attempts)
	if last := jw.Last(); last != nil {
		last.Ranks = slices.Clone(last.Ranks)
		for i := range last.Ranks {
			last.Ranks[i].Bundle = int64(slices.Index(c.From, last.Ranks[i].Bundle))
		}
	}
	old := jw.Spec.Ranks
	t.expectSized(&w, old, int64(len(c.Placement)))
	jw.Spec.Ranks, jw.Index = int64(len(c.Placement)), t.index
	t.put(tJob, &jw)
	t.event("job-resized", "job/"+j.ID, "%d to %s: %s", old, plural(jw.Spec.Ranks, "rank"), c.Why)
	t.placedEvent(&w)
	t.drained(j.ID, DrainResize)
	t.drained(j.ID, DrainMove)
	t.settle(w.ID)
	return nil
}

// waits: the job runs nothing, and neither does its group hold anything.
func (j *Job) waits(g *Group) bool {
	return g != nil && g.Job == j.ID && g.State == api.GroupPending && len(g.Spec.Bundles) > 0 && (j.Last() == nil || j.Last().Ended != 0)
}

// sizeWaiting lets what waits ask for another size at once: there is nothing to save and
// nobody to agree with. What was claimed or kept for the old size is let go.
func (t *tx) sizeWaiting(j *Job, g *Group, d *Drain) {
	gw, old := *g, j.Spec.Ranks
	t.unclaim(&gw, "job "+j.ID+" asks for "+plural(d.Ranks, "rank")+" by now")
	gw.Former, gw.FormerUntil, gw.Index = nil, 0, t.index
	gw.Spec.Bundles = slices.Repeat(g.Spec.Bundles[:1], int(d.Ranks))
	t.put(tGroup, &gw)
	t.expectSized(&gw, old, d.Ranks)
	w := *j
	w.Spec.Ranks, w.Drain, w.Index = d.Ranks, nil, t.index
	t.put(tJob, &w)
	t.event("job-resized", "job/"+j.ID, "%d to %s, before it starts: %s", old, plural(d.Ranks, "rank"), d.Reason)
}

// allows: a size is allowed by the spec, or asked for by whoever resizes a job whose spec
// names none.
func (j *Job) allows(n int64) bool {
	if d := j.Drain; d != nil && d.Kind == DrainResize && n == d.Ranks && !j.Spec.Sizes.Any() {
		return true
	}
	return j.Spec.Sizes.Allows(n, j.Spec.Ranks)
}

// resize changes bundles and holds of a placed group. On an error nothing may be kept.
func (t *tx) resize(g *Group, c ResizeGroup) error {
	k := t.newTaking(g)
	placed := make([]Bundle, len(c.Placement))
	bundles := make([]api.Bundle, len(c.Placement))
	kept := map[int64]bool{}
	changed := map[string]bool{}
	for i, p := range c.Placement {
		from := c.From[i]
		if p.Bundle != int64(i) || from >= int64(len(g.Placed)) || from >= 0 && kept[from] {
			return fmt.Errorf("bundle %d stands at position %d and was %d", p.Bundle, i, from)
		}
		bundles[i] = g.Spec.Bundles[max(0, from)]
		if from >= 0 {
			old := g.Placed[from]
			if old.Node == p.Node && slices.Equal(old.Devices, p.Devices) && !t.dirty(old) {
				kept[from] = true
				placed[i] = old
				if h := t.Hold(old.Hold); h != nil && h.Bundle != int64(i) {
					w := *h
					w.Bundle = int64(i)
					k.holds = append(k.holds, &w)
				}
				continue
			}
		}
		var err error
		if placed[i], err = k.take(i, p, bundles[i].Resources); err != nil {
			return err
		}
		changed[p.Node] = true
	}
	for i, old := range g.Placed {
		if !kept[int64(i)] && k.leave(old.Hold) {
			changed[old.Node] = true
		}
	}
	if err := k.write(); err != nil {
		return err
	}
	g.Placed, g.Spec.Bundles, g.PlacedAt, g.Index, g.Why = placed, bundles, t.now, t.index, ""
	t.put(tGroup, g)
	// An allocation whose bundles are others now ends before its successor starts.
	for _, a := range all[Alloc](t.records, tAlloc, "group", g.ID) {
		if !a.Gone && changed[a.Node] {
			w := *a
			w.Leaving = true
			t.put(tAlloc, &w)
		}
	}
	return nil
}
