package state

import (
	"fmt"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// onNode are n bundles on one node.
func onNode(node string, n int64) []api.Placed {
	var out []api.Placed
	for i := range n {
		out = append(out, api.Placed{Bundle: i, Node: node})
	}
	return out
}

// A victim is told to leave, gives everything back, waits with its seniority, and does not
// get what was claimed in the entry that evicted it, whoever asks first.
func TestPreempt(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 0) // 8 CPUs
	m.submit("low", 6)
	m.submit("other", 2)
	m.submit("high", 6)
	m.place("pg-low", "n1", 6)
	gen := m.start("low", "n1", 6, -1)
	seq := m.s.View().Group("pg-low").Seq
	evict := Preempt{Group: "pg-high", Claim: onNode("n1", 6), Victims: []Victim{{Group: "pg-low", Why: "for high"}}}
	m.ok(KindPreempt, evict)
	m.refused("conflict", KindPreempt, evict) // once

	v := m.s.View()
	if d := v.Job("low").Drain; d == nil || d.Kind != DrainPreempt || d.For != "pg-high" {
		t.Fatalf("%+v", d)
	}
	// What nobody claimed may be had: 8 CPUs, 6 held by who leaves, 6 claimed.
	m.place("pg-other", "n1", 2)

	m.ok(KindSupervise, Supervise{Job: "low", Attempt: 0, Generation: gen, End: &AttemptEnd{}, State: api.Recovering})
	m.ok(KindReleaseGroup, ReleaseGroup{Group: "pg-low", Why: "for high"})
	v = m.s.View()
	j := v.Job("low")
	if j.State != api.Queued || j.Drain != nil || j.Evictions != 1 || j.Reason == nil || j.Reason.Code != api.ReasonPreempted || v.Group("pg-low").Seq != seq {
		t.Fatalf("%+v, %+v", j, j.Reason)
	}
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "pg-high", Placement: onNode("n1", 6)}) // still charged
	for _, a := range v.AllocsOn("n1") {
		m.facts("n1", wire.AllocEvent{Alloc: a.ID, Seq: 1, Kind: wire.EventGone})
	}
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "pg-low", Placement: onNode("n1", 6)}) // claimed
	m.place("pg-high", "n1", 6)
	v = m.s.View()
	if g := v.Group("pg-high"); g.State != api.GroupPlaced || len(g.Claim) != 0 || len(g.Leaving) != 0 || len(v.Claims()) != 0 {
		t.Fatalf("%+v", g)
	}
}

// A claim that is dropped, or whose group is removed, lets stay what has not begun to end.
func TestDropClaim(t *testing.T) {
	for name, end := range map[string]func(m *machine){
		"dropped": func(m *machine) { m.ok(KindDropClaim, DropClaim{Group: "pg-high", Why: "no need"}) },
		"removed": func(m *machine) { m.ok(KindStopJob, StopJob{Job: "high"}) },
		"of another size": func(m *machine) {
			m.ok(KindDrainJob, DrainJob{Job: "high", Drain: Drain{Kind: DrainResize, Ranks: 8}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.node("n1", 2)
			m.submit("low", 6)
			m.submit("high", 6)
			m.submit("small", 1)
			m.place("pg-low", "n1", 6)
			m.start("low", "n1", 6, -1)
			m.ok(KindPreempt, Preempt{Group: "pg-high", Claim: onNode("n1", 6), Victims: []Victim{{Group: "pg-low", Why: "for high"}}})
			end(m)
			if name == "removed" {
				m.ok(KindSupervise, Supervise{Job: "high", Attempt: -1, State: api.Stopped})
			}
			v := m.s.View()
			if j := v.Job("low"); j.Drain != nil || len(v.Claims()) != 0 {
				t.Fatalf("%+v, %d claims", j.Drain, len(v.Claims()))
			}
		})
	}
}

// Devices that a group has claimed go to nobody else, and what is wrong is refused whole.
func TestClaimRefusals(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 2)
	gpu := func(id string) {
		m.ok(KindSubmitJob, SubmitJob{
			ID: id, Spec: api.JobSpec{Name: id, Ranks: 1, Command: []string{"true"}}, Group: "pg-" + id,
			GroupSpec: &api.GroupSpec{Bundles: []api.Bundle{{Resources: api.Resources{GPUs: 1}}}},
		})
	}
	at := func(d string) []api.Placed { return []api.Placed{{Node: "n1", Devices: []string{"n1-gpu-" + d}}} }
	for _, id := range []string{"low", "high", "third", "fourth"} {
		gpu(id)
	}
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-low", Placement: at("0")})
	victims := []Victim{{Group: "pg-low", Why: "for high"}}
	for _, bad := range []Preempt{
		{Group: "pg-high", Claim: at("0")},
		{Group: "pg-high", Victims: victims},
		{Group: "pg-high", Claim: at("9"), Victims: victims},
		{Group: "pg-high", Claim: []api.Placed{{Node: "nowhere"}}, Victims: victims},
		{Group: "pg-high", Claim: at("0"), Victims: []Victim{{Group: "pg-third"}}},
		{Group: "pg-low", Claim: at("0"), Victims: victims},
	} {
		if _, refused := m.do(KindPreempt, bad).(*Refused); !refused {
			t.Errorf("accepted: %+v", bad)
		}
	}
	m.ok(KindPreempt, Preempt{Group: "pg-high", Claim: at("0"), Victims: victims})
	m.refused("conflict", KindPreempt, Preempt{Group: "pg-third", Claim: at("0"), Victims: victims})
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-third", Placement: at("1")})
	m.ok(KindReleaseGroup, ReleaseGroup{Group: "pg-low", Why: "for high"})
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "pg-fourth", Placement: at("0")})
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-high", Placement: at("0")})
}

// A group with roles may claim as few bundles as it may start with, by their numbers.
func TestClaimFewerOfARole(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 0)
	m.submit("low", 5)
	m.place("pg-low", "n1", 5)
	m.ok(KindCreateGroup, CreateGroup{ID: "g", Spec: twoRoles(0)})
	victims := []Victim{{Group: "pg-low", Why: "for g"}}
	for _, bad := range [][]api.Placed{standsOn("n1", 0, 4), standsOn("n1", 0, 1, 2, 3), standsOn("n1", 1, 0, 4), standsOn("n1", 0, 1, 5)} {
		if _, refused := m.do(KindPreempt, Preempt{Group: "g", Claim: bad, Victims: victims}).(*Refused); !refused {
			t.Errorf("accepted: %+v", bad)
		}
	}
	m.ok(KindPreempt, Preempt{Group: "g", Claim: standsOn("n1", 1, 2, 4), Victims: victims})
	m.ok(KindReleaseGroup, ReleaseGroup{Group: "pg-low", Why: "for g"})
	m.submit("other", 6) // 3 of 8 CPUs are claimed
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "pg-other", Placement: onNode("n1", 6)})
	m.ok(KindPlaceGroup, PlaceGroup{Group: "g", Placement: standsOn("n1", 1, 2, 4)})
	if g := m.s.View().Group("g"); len(g.Placed) != 3 || g.Number(0) != 1 || len(g.Claim) != 0 {
		t.Errorf("%+v", g)
	}
}

// preempt draws a claim of a group and what is to leave for it, and takes some back.
func (w *world) preempt() {
	id := w.pick("group", w.groupIDs())
	c := Preempt{Group: id, Claim: w.placement(w.specs[id])}
	for range w.draw("victims", 3) {
		c.Victims = append(c.Victims, Victim{Group: w.pick("victim", w.groupIDs()), Ranks: int64(w.draw("ranks", 2)), Why: "drawn"})
	}
	w.do(KindPreempt, c)
	if w.draw("drop", 3) == 0 {
		w.do(KindDropClaim, DropClaim{Group: w.pick("claimant", w.groupIDs()), Why: "drawn"})
	}
	for _, g := range w.s.View().Claims() {
		if g.State != api.GroupPending || !g.startsWith(g.Claim) {
			w.t.Fatalf("group %s is %s and claims %d of %d bundles", g.ID, g.State, len(g.Claim), len(g.Spec.Bundles))
		}
	}
}

// What preemption lost is summed over an hour.
func TestLosses(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 0)
	for i, want := range []int64{10, 20, 30} {
		low, high := fmt.Sprintf("low%d", i), fmt.Sprintf("high%d", i)
		m.submit(low, 6)
		m.submit(high, 6)
		m.place("pg-"+low, "n1", 6)
		m.ok(KindPreempt, Preempt{Group: "pg-" + high, Claim: onNode("n1", 6), Victims: []Victim{{Group: "pg-" + low, Why: "test", Lost: 10}}})
		now := int64(m.index) * 1e9
		if got := m.s.View().LostToPreemption(now); got != want {
			t.Fatalf("%d, want %d", got, want)
		}
		m.ok(KindDropClaim, DropClaim{Group: "pg-" + high, Why: "test"})
		m.ok(KindReleaseGroup, ReleaseGroup{Group: "pg-" + low, Why: "test"})
	}
	if got := m.s.View().LostToPreemption(int64(m.index)*1e9 + 2*3600e9); got != 0 {
		t.Errorf("%d two hours later", got)
	}
}
