package state

import (
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// hosts is a job over 2 to 3 hosts; nothing is formed yet.
func hosts(t *testing.T, nodes ...string) *machine {
	m := newMachine(t)
	for _, n := range nodes {
		m.node(n, 1)
	}
	spec := api.JobSpec{Name: "j", Kind: api.KindTraining, Run: "j", Command: []string{"x"}, Ranks: 1, Hosts: &api.HostsSpec{Min: 2, Max: 3}}
	m.ok(KindSubmitJob, SubmitJob{ID: "j", ULID: "01", Spec: spec, Group: "pg-j", GroupSpec: &api.GroupSpec{Strategy: api.Pack}})
	return m
}

// shape is so many ranks on each host, in order.
func shape(attempt int64, on ...any) Reshape {
	c := Reshape{Job: "j", Attempt: attempt, Why: "a test"}
	for i := 0; i < len(on); i += 2 {
		for range on[i+1].(int) {
			c.Placement = append(c.Placement, api.Placed{Bundle: int64(len(c.Placement)), Node: on[i].(string)})
			c.Bundles = append(c.Bundles, api.Bundle{Resources: api.Resources{CPU: 10}})
		}
	}
	return c
}

// begin starts an attempt on the present shape and returns its allocations by node.
func (m *machine) begin(attempt int64) map[string]string {
	var ranks []RankStart
	local := map[string]int64{}
	for i, b := range m.s.View().Group("pg-j").Placed {
		ranks = append(ranks, RankStart{Rank: int64(i), LocalRank: local[b.Node], Bundle: int64(i), Node: b.Node})
		local[b.Node]++
	}
	m.ok(KindSupervise, Supervise{Job: "j", Attempt: attempt, Start: &AttemptStart{Ranks: ranks, MasterAddr: "x", MasterPort: 1}})
	out := map[string]string{}
	for _, a := range m.s.View().AllocsOf("j") {
		if !a.Gone && !a.Leaving {
			out[a.Node] = a.ID
		}
	}
	return out
}

func (m *machine) end(attempt int64) {
	m.ok(KindSupervise, Supervise{Job: "j", Attempt: attempt, State: api.Recovering, End: &AttemptEnd{}})
}

// A group shrinks and grows between attempts: a host that stays keeps its bundles and its
// allocation, what leaves is charged until it is proven gone, and ranks count anew.
func TestReshape(t *testing.T) {
	m := hosts(t, "a", "b", "c")
	m.refused("invalid", KindReshape, shape(-1, "a", 2))                     // below MIN
	m.refused("invalid", KindReshape, shape(-1, "a", 1, "b", 1, "a", 1))     // not together
	m.refused("invalid", KindReshape, shape(-1, "a", 1, "nosuch", 1))        // unknown
	m.refused("conflict", KindReshape, shape(-1, "a", 1_000_000/10, "b", 1)) // does not fit
	m.refused("stale", KindReshape, shape(0, "a", 1, "b", 1))                // no such attempt
	if g := m.s.View().Group("pg-j"); g.State != api.GroupPending || len(m.s.View().Holds()) != 0 {
		t.Fatalf("refusals left %+v", g)
	}
	m.ok(KindReshape, shape(-1, "a", 2, "b", 1, "c", 1))
	if j := m.s.View().Job("j"); j.State != api.Reserved || j.Spec.Ranks != 4 {
		t.Fatalf("formed: %s with %d ranks", j.State, j.Spec.Ranks)
	}
	first := m.begin(-1)
	m.refused("conflict", KindReshape, shape(0, "a", 2, "c", 1)) // it runs
	m.end(0)

	m.ok(KindReshape, shape(0, "a", 2, "c", 1))
	j := m.s.View().Job("j")
	if j.Spec.Ranks != 3 {
		t.Fatalf("%d ranks, want 3", j.Spec.Ranks)
	}
	for _, h := range m.s.View().Holds() {
		if h.Releasing != (h.Node == "b") {
			t.Errorf("hold %s on %s: releasing %v", h.ID, h.Node, h.Releasing)
		}
	}
	second := m.begin(0)
	if second["a"] != first["a"] || second["c"] != first["c"] || second["b"] != "" {
		t.Errorf("allocations were %v, are %v: those that stay should be the same", first, second)
	}
	if w := int64(len(m.s.View().Job("j").Last().Ranks)); w != 3 {
		t.Errorf("the attempt has %d ranks", w)
	}
	m.end(1)

	// b comes back with another number of ranks; its old allocation has not ended yet.
	m.ok(KindReshape, shape(1, "a", 2, "c", 1, "b", 3))
	m.refusedStart(t, 1)
	m.facts("b", wire.AllocEvent{Alloc: first["b"], Seq: 1, Kind: wire.EventGone})
	third := m.begin(1)
	if third["b"] == first["b"] || third["b"] == "" || third["a"] != first["a"] {
		t.Errorf("allocations were %v, are %v", first, third)
	}
	m.end(2)

	// A host that has other bundles than before gets a new allocation.
	m.ok(KindReshape, shape(2, "a", 1, "b", 3))
	m.ok(KindReshape, shape(2)) // too few: everything is released
	g := m.s.View().Group("pg-j")
	if g.State != api.GroupPending || g.Waiting == 0 || len(g.Placed) != 0 || m.s.View().Job("j").State != api.Queued {
		t.Errorf("released: %+v", g)
	}
	for _, h := range m.s.View().Holds() {
		if !h.Releasing {
			t.Errorf("hold %s on %s is kept", h.ID, h.Node)
		}
	}
}

// refusedStart: no attempt starts where something of a former one may still run (P2).
func (m *machine) refusedStart(t *testing.T, attempt int64) {
	t.Helper()
	var ranks []RankStart
	for i, b := range m.s.View().Group("pg-j").Placed {
		ranks = append(ranks, RankStart{Rank: int64(i), Bundle: int64(i), Node: b.Node})
	}
	m.refused("conflict", KindSupervise, Supervise{Job: "j", Attempt: attempt, Start: &AttemptStart{Ranks: ranks}})
}

// A node that leaves says so and is in no group that is formed after that.
func TestLeavingNodeIsNotTaken(t *testing.T) {
	m := hosts(t, "a", "b")
	n := m.s.View().Node("b")
	info := n.Info
	info.Leaving = true
	m.ok(KindRegisterNode, RegisterNode{ID: "b", Info: info, Seq: n.Seq + 1})
	m.refused("invalid", KindReshape, shape(-1, "a", 1, "b", 1))
}
