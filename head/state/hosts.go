package state

import (
	"fmt"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Reshape changes which hosts make up the group of a job over several hosts, between two
// attempts: bundles that stay where they are keep their holds, and so their allocations;
// the others are released and fresh ones placed, in one entry (P1). No Placement: the
// group releases everything and waits.
type Reshape struct {
	Job     string `json:"job"`
	Attempt int64  `json:"attempt"` // newest attempt it was decided on; -1 for none
	// Bundles and Placement are in rank order; those of one host stand together.
	Bundles   []api.Bundle `json:"bundles,omitempty"`
	Placement []api.Placed `json:"placement,omitempty"`
	Why       string       `json:"why"`
}

func reshape(t *tx, c Reshape) any {
	j := t.Job(c.Job)
	switch {
	case j == nil:
		return refuse("not-found", "no job "+c.Job)
	case j.State.Terminal() || j.Stop != nil:
		return refuse("conflict", "job "+j.ID+" is ending")
	case j.Spec.Hosts == nil:
		return refuse("invalid", "job "+j.ID+" is not one over several hosts")
	case len(c.Bundles) != len(c.Placement):
		return refuse("invalid", fmt.Sprintf("%d bundles, %d placed", len(c.Bundles), len(c.Placement)))
	}
	newest := int64(-1)
	if a := j.Last(); a != nil {
		if newest = a.Number; a.Ended == 0 {
			return refuse("conflict", fmt.Sprintf("attempt %d of %s has not ended", a.Number, j.ID))
		}
	}
	if newest != c.Attempt {
		return refuse("stale", fmt.Sprintf("decided on attempt %d of %s, the newest is %d", c.Attempt, j.ID, newest))
	}
	g := t.Group(j.Group)
	if g == nil || g.Job != j.ID || g.State != api.GroupPlaced && g.State != api.GroupPending {
		return refuse("conflict", "job "+j.ID+" has no group of its own to change")
	}
	if err := t.allowed(j.Spec.Hosts, c.Placement); err != nil {
		return refuse("invalid", err.Error())
	}
	w, jw := *g, *j
	jw.Index = t.index
	if c.Placement == nil {
		t.unplace(&w)
		w.State, w.Why, w.Waiting, w.Index, w.Spec.Bundles = api.GroupPending, c.Why, t.now, t.index, nil
		t.put(tGroup, &w)
		jw.State = api.Queued
	} else {
		if err := t.regroup(&w, c.Bundles, c.Placement); err != nil {
			return refuse("conflict", "the hosts of "+j.ID+" do not fit any more: "+err.Error())
		}
		jw.Spec.Ranks = int64(len(c.Bundles))
		if jw.State == api.Queued {
			jw.State, jw.Reason = api.Reserved, nil
		}
	}
	t.put(tJob, &jw)
	t.movedAway(w.ID)
	t.settle(w.ID)
	t.event("job-hosts", "job/"+j.ID, "%s", c.Why)
	return nil
}

// allowed: between MIN and MAX hosts, or none.
func (t *tx) allowed(s *api.HostsSpec, placement []api.Placed) error {
	if len(placement) == 0 {
		return nil
	}
	hosts := map[string]bool{}
	for i, p := range placement {
		if i > 0 && placement[i-1].Node != p.Node && hosts[p.Node] {
			return fmt.Errorf("the bundles on %s do not stand together", p.Node)
		}
		hosts[p.Node] = true
		if n := t.Node(p.Node); n == nil || n.Info.Leaving {
			return fmt.Errorf("node %s is not there, or is leaving", p.Node)
		}
	}
	if n := int64(len(hosts)); n < s.Min || n > s.Max {
		return fmt.Errorf("%d hosts, allowed are %d to %d", n, s.Min, s.Max)
	}
	return nil
}

// regroup gives a group other bundles. A host whose bundles are as before keeps them; it
// writes nothing unless all fit.
func (t *tx) regroup(g *Group, bundles []api.Bundle, placement []api.Placed) error {
	before := map[string][]int{}
	for i, b := range g.Placed {
		before[b.Node] = append(before[b.Node], i)
	}
	after := map[string][]int{}
	for i, p := range placement {
		if p.Bundle != int64(i) {
			return fmt.Errorf("bundle %d stands at position %d", p.Bundle, i)
		}
		after[p.Node] = append(after[p.Node], i)
	}
	placed := make([]Bundle, len(placement))
	k := t.newTaking(g)
	kept := map[string]bool{} // holds
	for i, p := range placement {
		if old, ok := t.same(g, before[p.Node], after[p.Node], bundles, placement); ok {
			b := g.Placed[old[slices.Index(after[p.Node], i)]]
			h := *t.Hold(b.Hold)
			h.Bundle = int64(i)
			k.holds, kept[h.ID] = append(k.holds, &h), true
			placed[i] = b
			continue
		}
		var err error
		if placed[i], err = k.take(i, p, bundles[i].Resources); err != nil {
			return err
		}
	}
	for _, b := range g.Placed {
		if !kept[b.Hold] {
			k.leave(b.Hold)
		}
	}
	if err := k.write(); err != nil {
		return err
	}
	for _, a := range all[Alloc](t.records, tAlloc, "group", g.ID) {
		if !a.Gone && slices.ContainsFunc(a.Holds, func(h string) bool { return !kept[h] }) {
			c := *a
			c.Leaving = true
			t.put(tAlloc, &c)
		}
	}
	g.Spec.Bundles = bundles
	if g.Begun == 0 {
		g.Begun, g.Since = t.now, 0
	}
	g.Placed, g.State, g.PlacedAt, g.Index, g.Why, g.Waiting = placed, api.GroupPlaced, t.now, t.index, "", 0
	t.put(tGroup, g)
	return nil
}

// same reports whether a host's bundles are those that it has: as many, as large, on the
// same devices, and none of them in doubt.
func (t *tx) same(g *Group, old, now []int, bundles []api.Bundle, placement []api.Placed) ([]int, bool) {
	if len(old) == 0 || len(old) != len(now) {
		return nil, false
	}
	for k, i := range old {
		b := g.Placed[i]
		if h := t.Hold(b.Hold); h == nil || h.Releasing || t.dirty(b) {
			return nil, false
		}
		if g.Spec.Bundles[i].Resources != bundles[now[k]].Resources || !slices.Equal(b.Devices, placement[now[k]].Devices) {
			return nil, false
		}
	}
	return old, true
}
