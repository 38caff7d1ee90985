package state

import (
	"slices"
	"testing"

	"github.com/troupe-runtime/troupe/elastic/agree"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// resize draws a new size of a job's group: mostly bundles that stay, some that come.
func (w *world) resize(id string) {
	j := w.s.View().Job(id)
	if j == nil {
		return
	}
	n := int64(1 + w.draw("size", 4))
	if w.draw("asked", 4) > 0 {
		w.do(KindDrainJob, DrainJob{Job: id, Drain: Drain{Kind: DrainResize, Ranks: n}})
	}
	if last := j.Last(); last != nil && last.Ended == 0 && w.draw("end first", 4) > 0 {
		w.do(KindSupervise, Supervise{Job: id, Attempt: last.Number, End: &AttemptEnd{Cause: api.CauseNone}})
	}
	w.settleGroups()
	spec, stands := w.specs[j.Group], w.groups[j.Group]
	cmd := ResizeGroup{Group: j.Group, Why: "asked for"}
	for i := range n {
		p := api.Placed{Bundle: i, Node: w.pick("node", worldNodes)}
		from := int64(-1)
		if k := int64(w.draw("from", 4)); k < int64(len(stands)) && w.draw("stays", 4) > 0 {
			from = k
			if w.draw("where it was", 8) > 0 {
				p.Node, p.Devices = stands[k].Node, slices.Clone(stands[k].Devices)
			}
		}
		if b := max(0, from); p.Devices == nil && b < int64(len(spec.Bundles)) && spec.Bundles[b].GPUs > 0 {
			p.Devices = []string{p.Node + "-gpu-" + []string{"0", "1"}[w.draw("device", 2)]}
		}
		cmd.From, cmd.Placement = append(cmd.From, from), append(cmd.Placement, p)
	}
	if _, refused := w.do(KindResizeGroup, cmd).(*Refused); !refused {
		if j := w.s.View().Job(id); j.Spec.Ranks != n {
			w.t.Fatalf("resized to %d, the spec says %d", n, j.Spec.Ranks)
		}
	}
}

// propose opens or decides a proposal, rightly or not.
func (w *world) propose(id string) {
	j := w.s.View().Job(id)
	if j == nil || j.Last() == nil {
		return
	}
	p := agree.Proposal{
		Proposal:   wire.Proposal{Number: 1, Target: int64(w.draw("target", 20)), State: wire.ProposalOpen, Stop: w.draw("stop", 2) == 0},
		Generation: j.Last().Generation,
	}
	if j.Proposal != nil {
		p.Number = j.Proposal.Number + uint64(w.draw("number", 2))
	}
	w.do(KindPropose, Propose{Job: id, Proposal: p})
	now := w.s.View().Job(id)
	if old := j.Proposal; old != nil && now.Proposal.Number < old.Number {
		w.t.Fatalf("proposal %d follows %d", now.Proposal.Number, old.Number)
	}
	if w.draw("decide", 2) == 0 {
		before := now.Proposal
		w.do(KindDecide, Decide{Job: id, Number: p.Number, Agreed: w.draw("agreed", 2) == 0, Code: agree.WhyPhase})
		if after := w.s.View().Job(id).Proposal; before != nil && before.State != wire.ProposalOpen && before.Number == after.Number && after.State != before.State {
			w.t.Fatalf("proposal %d was %s and is %s", after.Number, before.State, after.State)
		}
	}
}

// TestResize: bundles that stay keep their holds and the order of the ranks, what goes is
// charged until it is proven gone, and nothing changes when the new size does not fit.
// What waits, or is parked, has another size at once: there is nobody to agree with.
func TestResizeOfWhatWaits(t *testing.T) {
	for name, park := range map[string]func(m *machine){
		"queued": func(*machine) {},
		"held":   func(m *machine) { m.ok(KindParkJob, ParkJob{Job: "a", State: api.Held}) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.submit("a", 3)
			park(m)
			before := m.s.View().Group("pg-a").Expect
			m.ok(KindDrainJob, DrainJob{Job: "a", Drain: Drain{Kind: DrainResize, Ranks: 2, Reason: "as asked"}})
			v := m.s.View()
			g, j := v.Group("pg-a"), v.Job("a")
			if len(g.Spec.Bundles) != 2 || j.Spec.Ranks != 2 || j.Drain != nil || g.State != api.GroupPending || g.Expect <= before {
				t.Fatalf("%+v of %+v, %+v, expected %d, before %d", g.Spec, j.Spec.Ranks, j.Drain, g.Expect, before)
			}
		})
	}
}

func TestResize(t *testing.T) {
	m := newMachine(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		m.node(n, 0)
	}
	m.submit("a", 3)
	at := func(nodes ...string) []api.Placed {
		var out []api.Placed
		for i, n := range nodes {
			out = append(out, api.Placed{Bundle: int64(i), Node: n})
		}
		return out
	}
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-a", Placement: at("n1", "n2", "n2")})
	m.ok(KindSupervise, Supervise{Job: "a", Attempt: -1, Start: &AttemptStart{Ranks: []RankStart{
		{Node: "n1"}, {Rank: 1, Bundle: 1, Node: "n2"}, {Rank: 2, LocalRank: 1, Bundle: 2, Node: "n2"},
	}}})
	m.ok(KindDrainJob, DrainJob{Job: "a", Drain: Drain{Kind: DrainResize, Ranks: 2}})
	if s := m.s.View().Job("a").State; s != api.Starting {
		t.Fatalf("%s", s)
	}
	m.ok(KindSupervise, Supervise{Job: "a", Attempt: 0, End: &AttemptEnd{}, State: api.Recovering})
	was := m.s.View().Group("pg-a")
	holds := was.Placed
	// Rank 1 goes; rank 2 becomes the second.
	m.ok(KindResizeGroup, ResizeGroup{Group: "pg-a", From: []int64{0, 2}, Placement: at("n1", "n2")})
	v := m.s.View()
	g, j := v.Group("pg-a"), v.Job("a")
	if g.Placed[0].Hold != holds[0].Hold || g.Placed[1].Hold != holds[2].Hold || len(g.Spec.Bundles) != 2 || j.Spec.Ranks != 2 || j.Drain != nil {
		t.Fatalf("%+v of %+v, %+v", g, j.Spec, j.Drain)
	}
	// With fewer ranks what is left of it takes longer.
	held := int64(was.Held(int64(m.index) * 1e9))
	if want := held + ((was.Expect-held)*7+4)/5; held == 0 || g.Expect != want {
		t.Errorf("it is expected to hold for %d, want %d", g.Expect, want)
	}
	if r := j.Last().Ranks; r[0].Bundle != 0 || r[1].Bundle != -1 || r[2].Bundle != 1 {
		t.Fatalf("%+v", r)
	}
	if v.UseOf("n2").CPU != 2000 { // rank 1 is not proven gone
		t.Fatalf("n2 is charged %d", v.UseOf("n2").CPU)
	}
	start := Supervise{Job: "a", Attempt: 0, Start: &AttemptStart{Ranks: []RankStart{{Node: "n1"}, {Rank: 1, Bundle: 1, Node: "n2"}}}}
	m.refused("conflict", KindSupervise, start)
	for _, a := range v.AllocsOn("n2") {
		m.facts("n2", wire.AllocEvent{Alloc: a.ID, Seq: 1, Kind: wire.EventGone})
	}
	if got := m.s.View().UseOf("n2").CPU; got != 1000 {
		t.Fatalf("n2 is charged %d", got)
	}
	m.ok(KindSupervise, start)
	m.ok(KindSupervise, Supervise{Job: "a", Attempt: 1, End: &AttemptEnd{}})
	before := m.render()
	m.ok(KindDrainJob, DrainJob{Job: "a", Drain: Drain{Kind: DrainResize, Ranks: 4}})
	m.refused("conflict", KindResizeGroup, ResizeGroup{Group: "pg-a", From: []int64{0, 1, -1, -1}, Placement: at("n1", "n2", "n3", "nowhere")})
	m.ok(KindCancelDrain, CancelDrain{Job: "a"})
	if u := m.s.View().UseOf("n3"); u.CPU != 0 || len(m.render()) < len(before) {
		t.Fatalf("n3 is charged %d", u.CPU)
	}
}

// TestAllowedSizes: with allowed sizes in the spec no other is ever taken, by command or
// after a loss.
func TestAllowedSizes(t *testing.T) {
	s := &api.Sizes{Min: 2, Max: 8, Multiple: 2}
	for n, want := range map[int64]bool{0: false, 1: false, 2: true, 3: false, 8: true, 10: false} {
		if s.Allows(n, 4) != want {
			t.Errorf("%d ranks: %v", n, !want)
		}
	}
	if got := s.Below(8, 64); !slices.Equal(got, []int64{6, 4, 2}) {
		t.Errorf("%v", got)
	}
	set := &api.Sizes{Set: []int64{2, 4, 8}}
	if !set.Allows(4, 8) || set.Allows(6, 8) || !slices.Equal(set.Below(8, 1), []int64{4}) {
		t.Error("a set")
	}
	var none *api.Sizes
	if !none.Allows(3, 3) || none.Allows(2, 3) || none.Below(3, 9) != nil {
		t.Error("no sizes: the number that was asked for")
	}
}
