package state

import (
	"slices"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// spareWorld is a job of two ranks on n1 and n2, each with a device, on five nodes.
func spareWorld(t *testing.T) *machine {
	m := newMachine(t)
	for _, n := range []string{"n1", "n2", "n3", "n4", "n5"} {
		m.node(n, 1)
	}
	gs := api.GroupSpec{Bundles: slices.Repeat([]api.Bundle{{Resources: api.Resources{CPU: 4000, GPUs: 1}}}, 2)}
	m.ok(KindSubmitJob, SubmitJob{ID: "a", Spec: api.JobSpec{Name: "a", Ranks: 2, SpareNodes: 2}, Group: "pg-a", GroupSpec: &gs, Placement: onNodes("n1", "n2")})
	return m
}

// onNodes is one bundle with the node's device on each.
func onNodes(nodes ...string) (out []api.Placed) {
	for i, n := range nodes {
		out = append(out, api.Placed{Bundle: int64(i), Node: n, Devices: []string{n + "-gpu-0"}})
	}
	return out
}

// TestSetSpares: which spare nodes a group may have, and what it holds then. Every command
// is checked against P1, P2 and P8 besides.
func TestSetSpares(t *testing.T) {
	start := []RankStart{{Bundle: 0, Node: "n1"}, {Rank: 1, Bundle: 1, Node: "n2"}}
	for _, c := range []struct {
		name   string
		before func(m *machine)
		set    [][]api.Placed
		code   string // of the last
		want   []string
	}{
		{"two", nil, [][]api.Placed{onNodes("n3", "n4")}, "", []string{"n3", "n4"}},
		{"one stays, one changes", nil, [][]api.Placed{onNodes("n3", "n4"), onNodes("n3", "n5")}, "", []string{"n3", "n5"}},
		{"none any more", nil, [][]api.Placed{onNodes("n3", "n4"), nil}, "", nil},
		{"while ranks run", func(m *machine) {
			m.ok(KindSupervise, Supervise{Job: "a", Attempt: -1, Start: &AttemptStart{Ranks: start}})
		}, [][]api.Placed{onNodes("n3", "n4"), onNodes("n4")}, "", []string{"n4"}},
		{"where a rank is", nil, [][]api.Placed{onNodes("n3"), onNodes("n4", "n2")}, "invalid", []string{"n3"}},
		{"no room", func(m *machine) {
			m.ok(KindCreateGroup, CreateGroup{ID: "g", Spec: api.GroupSpec{Bundles: []api.Bundle{{Resources: api.Resources{GPUs: 1}}}}, Placement: onNodes("n4")})
		}, [][]api.Placed{onNodes("n3"), onNodes("n3", "n4")}, "conflict", []string{"n3"}},
		{"a drained node", func(m *machine) {
			m.ok(KindDrainNode, DrainNode{ID: "n4", Cordon: &NodeDrain{Drain: true}})
		}, [][]api.Placed{onNodes("n4")}, "conflict", nil},
		{"twice the same", nil, [][]api.Placed{onNodes("n3", "n3")}, "conflict", nil},
		{"too many", nil, [][]api.Placed{make([]api.Placed, maxSpares+1)}, "invalid", nil},
		{"of a job that is over", func(m *machine) {
			zero := int64(0)
			m.ok(KindSupervise, Supervise{Job: "a", Attempt: -1, State: api.Stopped, ExitCode: &zero})
		}, [][]api.Placed{onNodes("n3")}, "not-found", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := spareWorld(t)
			if c.before != nil {
				c.before(m)
			}
			code := ""
			for _, p := range c.set {
				code = ""
				if r, ok := m.do(KindSetSpares, SetSpares{Group: "pg-a", Placement: p, Why: "test"}).(*Refused); ok {
					code = r.Code
				}
			}
			g := m.s.View().Group("pg-a")
			if g == nil {
				g = &Group{}
			}
			if code != c.code || !slices.Equal(g.SpareNodes(), c.want) {
				t.Errorf("refused %q, spares %v; want %q, %v", code, g.SpareNodes(), c.code, c.want)
			}
			if len(g.Placed) > 0 && (len(g.RankBundles()) != 2 || g.Placed[0].Node != "n1" || len(g.Spec.Bundles) != 2+len(c.want)) {
				t.Errorf("%+v", g)
			}
			for _, n := range []string{"n3", "n4", "n5"} {
				if held := m.s.View().UseOf(n).CPU == 4000; held != slices.Contains(c.want, n) {
					t.Errorf("%s held %v", n, held)
				}
			}
			if !slices.Equal(replayed(t, m.log), m.snapshot()) || !slices.Equal(replayed(t, m.log, len(m.log)-1), m.snapshot()) {
				t.Error("I7: the replayed state differs")
			}
		})
	}
}

// TestSpareStandsIn: a gang moves onto its spare in the entry that gives the lost node up;
// an attempt never uses a spare; and a gang that waits, or is resized, holds none.
func TestSpareStandsIn(t *testing.T) {
	m := spareWorld(t)
	m.ok(KindSetSpares, SetSpares{Group: "pg-a", Placement: onNodes("n3", "n4")})
	m.refused("invalid", KindSupervise, Supervise{Job: "a", Attempt: -1, Start: &AttemptStart{
		Ranks: []RankStart{{Bundle: 0, Node: "n1"}, {Rank: 1, Bundle: 2, Node: "n3"}},
	}})
	m.ok(KindSetNodeState, SetNodeState{ID: "n2", State: api.NodeLost})
	m.ok(KindReleaseGroup, ReleaseGroup{Group: "pg-a", Placement: onNodes("n1", "n3"), Why: "n2 is lost"})
	g := m.s.View().Group("pg-a")
	if g.State != api.GroupPlaced || len(g.Placed) != 2 || g.Placed[1].Node != "n3" || g.Spares != 0 || m.s.View().UseOf("n4").CPU != 0 {
		t.Errorf("%+v", g)
	}
	m.ok(KindSetSpares, SetSpares{Group: "pg-a", Placement: onNodes("n4")})
	m.ok(KindDrainJob, DrainJob{Job: "a", Drain: Drain{Kind: DrainResize, Ranks: 3}})
	m.ok(KindResizeGroup, ResizeGroup{Group: "pg-a", From: []int64{0, 1, -1}, Placement: onNodes("n1", "n3", "n4")})
	g = m.s.View().Group("pg-a")
	if len(g.Placed) != 3 || g.Spares != 0 || m.s.View().Job("a").Spec.Ranks != 3 {
		t.Errorf("%+v", g)
	}
	m.ok(KindSetSpares, SetSpares{Group: "pg-a", Placement: onNodes("n5")})
	m.ok(KindReleaseGroup, ReleaseGroup{Group: "pg-a", Why: "no room"})
	g = m.s.View().Group("pg-a")
	if g.State != api.GroupPending || len(g.Spec.Bundles) != 3 || g.Spares != 0 || len(m.s.View().HoldsOf("pg-a")) != 0 {
		t.Errorf("%+v, %v", g, m.s.View().HoldsOf("pg-a"))
	}
}
