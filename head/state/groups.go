package state

import (
	"fmt"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// remember stores an idempotency key, or answers for one that is known already.
func (t *tx) remember(key, fingerprint, result string) any {
	if key == "" {
		return nil
	}
	if k := t.Key(key); k != nil {
		if k.Fingerprint != fingerprint {
			return refuse("key-reused", "the idempotency key was used for another request")
		}
		return &Made{ID: k.Result, At: k.At}
	}
	t.put(tIdem, &Idempotency{Key: key, Fingerprint: fingerprint, Result: result, At: t.now, Seq: t.index})
	t.meta.Keys++
	if t.meta.Keys > keptKeys {
		if old := first[Idempotency](t.records, tIdem, "seq"); old != nil {
			t.drop(tIdem, old)
			t.meta.Keys--
		}
	}
	return nil
}

func createGroup(t *tx, c CreateGroup) any {
	if r := t.remember(c.Key, c.Fingerprint, c.ID); r != nil {
		return r
	}
	if c.ID == "" || t.Group(c.ID) != nil {
		return refuse("exists", "placement group "+c.ID+" exists already")
	}
	if _, err := t.Tree().Path(c.Spec.Tenant, c.Spec.Queue); err != nil {
		return refuse("invalid", err.Error())
	}
	t.newGroup(&Group{ID: c.ID, Spec: c.Spec, User: c.User}, c.Placement)
	return &Made{ID: c.ID}
}

// newGroup queues a group and places it at once if it may and fits.
func (t *tx) newGroup(g *Group, placement []api.Placed) bool {
	g.State, g.Seq, g.Created, g.Since, g.Index = api.GroupPending, t.index, t.now, t.now, t.index
	g.Expect = t.expect(g)
	t.asked(&g.Spec)
	t.event("pg-created", "pg/"+g.ID, "%s, %s", plural(len(g.Spec.Bundles), "bundle"), g.Spec.Strategy)
	if placement != nil && g.Parked == "" {
		c := *g
		if err := t.place(&c, placement); err == nil {
			t.placedEvent(&c)
			return true
		}
	}
	t.put(tGroup, g) // it waits; the scheduler looks again
	return false
}

func (t *tx) placedEvent(g *Group) {
	nodes := map[string]bool{}
	for _, b := range g.Placed {
		nodes[b.Node] = true
	}
	object := "pg/" + g.ID
	kind := "pg-placed"
	if g.Job != "" {
		object, kind = "job/"+g.Job, "job-placed"
	}
	bundles := plural(len(g.Placed), "bundle")
	if g.Asked != nil {
		bundles = fmt.Sprintf("%d of %s", len(g.Placed), plural(len(g.Asked.Bundles), "bundle"))
	}
	t.event(kind, object, "%s on %s", bundles, plural(len(nodes), "node"))
}

func placeGroup(t *tx, c PlaceGroup) any {
	g := t.Group(c.Group)
	if g == nil {
		return refuse("not-found", "no placement group "+c.Group)
	}
	if g.State != api.GroupPending {
		return refuse("conflict", "placement group "+g.ID+" is "+string(g.State))
	}
	if g.Parked != "" {
		return refuse("conflict", "placement group "+g.ID+" is "+g.Parked)
	}
	w := *g
	if err := t.place(&w, c.Placement); err != nil {
		return refuse("conflict", "placement of "+g.ID+" no longer holds: "+err.Error())
	}
	t.placedEvent(&w)
	t.reserveJob(g.Job)
	return nil
}

// reserveJob moves the job that a group was made for from QUEUED to RESERVED.
func (t *tx) reserveJob(id string) {
	if j := t.Job(id); j != nil && j.State == api.Queued {
		w := *j
		w.State, w.Reason, w.Index = api.Reserved, nil, t.index
		t.put(tJob, &w)
	}
}

func removeGroup(t *tx, c RemoveGroup) any {
	g := t.Group(c.Group)
	if g == nil {
		return refuse("not-found", "no placement group "+c.Group)
	}
	for _, j := range t.JobsOf(g.ID) {
		if !j.State.Terminal() {
			return refuse("conflict", "job "+j.ID+" runs in placement group "+g.ID+"; stop it first")
		}
	}
	t.remove(g, c.Why)
	return nil
}

// remove starts the end of a group; it is gone when every hold is proven free.
func (t *tx) remove(g *Group, why string) {
	if g.State == api.GroupRemoving {
		return
	}
	w := *g
	t.unclaim(&w, "placement group "+g.ID+", which it was to leave for, is removed")
	t.unplace(&w)
	w.State, w.Why, w.Removed, w.Index = api.GroupRemoving, why, t.now, t.index
	if len(t.HoldsOf(w.ID)) == 0 {
		t.gone(&w)
		return
	}
	t.put(tGroup, &w)
}

// gone forgets a removed group that holds nothing any more.
func (t *tx) gone(g *Group) {
	t.drop(tGroup, g)
	t.event("pg-removed", "pg/"+g.ID, "%s", g.Why)
}

// releaseGroup moves a placed group after a loss, in one entry (P1): bundles that
// stay where they are keep their holds, the others move to the new placement; without
// one, or if it no longer fits, everything is released and the group waits with its
// seniority.
func releaseGroup(t *tx, c ReleaseGroup) any {
	g := t.Group(c.Group)
	if g == nil {
		return refuse("not-found", "no placement group "+c.Group)
	}
	if g.State != api.GroupPlaced {
		return refuse("conflict", "placement group "+g.ID+" is "+string(g.State))
	}
	t.event("pg-released", "pg/"+g.ID, "%s", c.Why)
	bare := *g
	t.freeSpares(&bare)
	g = &bare
	if c.Placement != nil {
		w := *g
		if err := t.move(&w, c.Placement); err == nil {
			t.placedEvent(&w)
			t.movedAway(w.ID)
			t.settle(w.ID)
			return nil
		}
	}
	w := *g
	w.Keep = t.livingNodes(g)
	if c.Former > t.now {
		w.Former, w.FormerUntil = t.former(g), c.Former
	}
	t.unplace(&w)
	w.State, w.Why, w.Index = api.GroupPending, c.Why, t.index
	j := t.Job(g.Job)
	if j != nil && j.Stop == nil && j.Drain != nil && j.Drain.Kind == DrainSuspend {
		w.Parked = "suspended: " + j.Drain.Reason
	}
	t.put(tGroup, &w)
	t.settle(w.ID)
	if j != nil && !j.State.Terminal() {
		jw := *j
		jw.Index = t.index
		if j.Stop == nil {
			jw.State = api.Queued
		}
		if j.Drain.Leaves() {
			jw.left(j.Drain, t.now)
		}
		t.put(tJob, &jw)
	}
	t.movedAway(w.ID)
	return nil
}

// former is what a group holds on nodes that take work.
func (t *tx) former(g *Group) []api.Placed {
	var out []api.Placed
	for i, b := range g.Placed {
		if n := t.Node(b.Node); n != nil && n.Schedulable() && !t.dirty(b) {
			out = append(out, api.Placed{Bundle: g.Number(int64(i)), Node: b.Node, Devices: b.Devices})
		}
	}
	return out
}

// movedAway ends the drains of the jobs of a group that has left its nodes.
func (t *tx) movedAway(group string) {
	for _, j := range t.JobsOf(group) {
		t.drained(j.ID, DrainMove)
	}
}

// move changes where some bundles of a placed group stand. It writes nothing unless
// all of them fit.
func (t *tx) move(g *Group, placement []api.Placed) error {
	if len(placement) != len(g.Placed) {
		return fmt.Errorf("%d bundles placed of %d", len(placement), len(g.Placed))
	}
	k := t.newTaking(g)
	placed := slices.Clone(g.Placed)
	moved := map[string]bool{}
	for i, p := range placement {
		old := g.Placed[i]
		if p.Bundle != int64(i) {
			return fmt.Errorf("bundle %d stands at position %d", p.Bundle, i)
		}
		if old.Node == p.Node && slices.Equal(old.Devices, p.Devices) && !t.dirty(old) {
			continue
		}
		moved[old.Node], moved[p.Node] = true, true
		var err error
		if placed[i], err = k.take(i, p, g.Spec.Bundles[i].Resources); err != nil {
			return err
		}
		k.leave(old.Hold)
	}
	if err := k.write(); err != nil {
		return err
	}
	g.Placed, g.PlacedAt, g.Index, g.Why = placed, t.now, t.index, ""
	t.put(tGroup, g)
	for _, a := range all[Alloc](t.records, tAlloc, "group", g.ID) {
		if !a.Gone && moved[a.Node] {
			w := *a
			w.Leaving = true
			t.put(tAlloc, &w)
		}
	}
	return nil
}

// dirty reports whether processes that do not die may still use a bundle.
func (t *tx) dirty(b Bundle) bool {
	for _, a := range t.AllocsOn(b.Node) {
		if !a.Gone && a.Dirty != "" && slices.Contains(a.Holds, b.Hold) {
			return true
		}
	}
	return false
}
