package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// runs makes a preemptible holder of whole devices on one node, and takes them there.
func runs(name string, n *nodeBuilder, priority int64, devices ...int) Holder {
	for _, d := range devices {
		n.node.GPUs[d].Free, n.node.GPUs[d].Share = 0, 0
	}
	h := holder(name, n.node, devices...)
	h.Spec = &api.GroupSpec{Priority: priority, Wishes: api.Wishes{Preemptible: true}, Bundles: slices.Repeat([]api.Bundle{gpus(int64(len(devices)))}, 1)}
	h.Started = epoch.Add(-time.Hour)
	return h
}

// keeps marks a holder as one that may not be ended.
func keeps(h Holder) Holder {
	h.Spec.Preemptible = false
	return h
}

func nodesOf(prefix string, n, devices int) []*nodeBuilder {
	var out []*nodeBuilder
	for i := range n {
		b := aNode(fmt.Sprintf("%s%d", prefix, i)).gpus(devices, 72)
		out = append(out, &b)
	}
	return out
}

func clusterOf(ns []*nodeBuilder) *Snapshot {
	s := &Snapshot{}
	for _, n := range ns {
		s.Nodes = append(s.Nodes, &n.node)
	}
	return s
}

// tenants makes a tree of two tenants with so many GPUs guaranteed to each.
func tenants(a string, n int64, b string, m int64) *Queues {
	tenant := func(name string, n int64) *api.Queue {
		return &api.Queue{Name: name, Tenant: true, Guaranteed: api.Amounts{{Of: "gpu", N: 1000 * n}}}
	}
	return &Queues{List: []*api.Queue{tenant(a, n), tenant(b, m)}}
}

func plan(s *Snapshot) *Result { return NewPlanner().Plan(s, epoch) }

func victimNames(r *Result) []string {
	var out []string
	for _, e := range r.Evictions {
		for _, v := range e.Victims {
			name := v.Name
			if v.Keeps > 0 {
				name += fmt.Sprintf("→%d", v.Keeps)
			}
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func TestPreempt(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   func() *Snapshot
		want []string // victims
		why  string   // of the waiting group, if nothing leaves
	}{
		{"lower work leaves", func() *Snapshot {
			ns := nodesOf("n", 1, 2)
			return clusterOf(ns).heldBy(runs("low", ns[0], 0, 0, 1)).pending(gang("high", 1, gpus(2)).priority(5))
		}, []string{"low"}, ""},
		{"work of the same standing stays", func() *Snapshot {
			ns := nodesOf("n", 1, 2)
			r := gang("same", 1, gpus(2))
			r.request.Spec.Preemptible = true
			return clusterOf(ns).heldBy(runs("low", ns[0], 0, 0, 1)).pending(r)
		}, nil, ""},
		{"work of the same standing stays, beside lower work that does not help", func() *Snapshot {
			ns := nodesOf("n", 2, 2)
			r := gang("same", 1, gpus(2)).priority(5)
			r.request.Spec.Preemptible = true
			return clusterOf(ns).heldBy(runs("low", ns[0], 0, 0), keeps(runs("kept", ns[0], 0, 1)), runs("peer", ns[1], 5, 0, 1)).pending(r)
		}, nil, "even after preempting"},
		{"what may not be ended stays", func() *Snapshot {
			ns := nodesOf("n", 1, 2)
			return clusterOf(ns).heldBy(keeps(runs("kept", ns[0], 0, 0, 1))).pending(gang("high", 1, gpus(2)).priority(5))
		}, nil, ""},
		{"one of ten equal ones, always the same", func() *Snapshot {
			ns := nodesOf("n", 10, 1)
			s := clusterOf(ns)
			for i, n := range ns {
				s.heldBy(runs(fmt.Sprintf("low%d", i), n, 0, 0))
			}
			return s.pending(gang("high", 1, gpus(1)).priority(5))
		}, []string{"low0"}, ""},
		{"no preemption that does not help", func() *Snapshot {
			ns := nodesOf("n", 4, 8)
			s := clusterOf(ns)
			for i, n := range ns {
				for d := range 6 {
					s.heldBy(keeps(runs(fmt.Sprintf("high%d-%d", i, d), n, 0, d)))
				}
				s.heldBy(runs(fmt.Sprintf("low%d-6", i), n, 0, 6), runs(fmt.Sprintf("low%d-7", i), n, 0, 7))
			}
			return s.pending(gang("wide", 1, gpus(8)).priority(5))
		}, nil, "even after preempting"},
		{"no preemption where enough is free", func() *Snapshot {
			ns := nodesOf("n", 2, 2)
			return clusterOf(ns).heldBy(runs("low", ns[0], 0, 0, 1)).pending(gang("high", 1, gpus(2)).priority(5))
		}, nil, ""},
		{"two asks of one group on one overlay", func() *Snapshot {
			ns := nodesOf("n", 1, 2)
			return clusterOf(ns).heldBy(runs("low", ns[0], 0, 0, 1)).pending(gang("high", 2, gpus(1)).strategy(api.StrictPack).priority(5))
		}, []string{"low"}, ""},
		{"the cheapest for each device", func() *Snapshot {
			ns := nodesOf("n", 2, 2)
			saved := runs("saved", ns[1], 0, 0, 1)
			saved.Committed = epoch.Add(-time.Minute)
			return clusterOf(ns).heldBy(runs("unsaved", ns[0], 0, 0, 1), saved).pending(gang("high", 1, gpus(2)).priority(5))
		}, []string{"saved"}, ""},
		{"who can save on demand loses little", func() *Snapshot {
			ns := nodesOf("n", 2, 2)
			saves := runs("saves", ns[1], 0, 0, 1)
			saves.SaveCost = 20 * time.Second
			return clusterOf(ns).heldBy(runs("cannot", ns[0], 0, 0, 1), saves).pending(gang("high", 1, gpus(2)).priority(5))
		}, []string{"saves"}, ""},
		{"who was preempted before is spared", func() *Snapshot {
			ns := nodesOf("n", 2, 2)
			often := runs("often", ns[0], 0, 0, 1)
			often.Evictions = 3
			return clusterOf(ns).heldBy(often, runs("never", ns[1], 0, 0, 1)).pending(gang("high", 1, gpus(2)).priority(5))
		}, []string{"never"}, ""},
		{"victims that do not help stay", func() *Snapshot {
			ns := nodesOf("n", 2, 2)
			young := runs("small", ns[0], 0, 0)
			young.Committed = epoch
			return clusterOf(ns).heldBy(young, keeps(runs("kept", ns[0], 0, 1)), runs("a", ns[1], 0, 0), runs("b", ns[1], 0, 1)).
				pending(gang("high", 1, gpus(2)).priority(5))
		}, []string{"a", "b"}, ""},
		{"the surplus of elastic work goes first", func() *Snapshot {
			ns := nodesOf("n", 2, 4)
			wide := runs("wide", ns[0], 0, 0, 1, 2, 3)
			wide.Bundles = nil
			for d := range 4 {
				wide.Bundles = append(wide.Bundles, Held{Node: ns[0].node.ID, Devices: []string{ns[0].node.GPUs[d].UUID}})
			}
			wide.Sizes = &api.Sizes{Min: 1, Max: 4}
			return clusterOf(ns).heldBy(wide, runs("low", ns[1], 0, 0, 1, 2, 3)).pending(gang("high", 1, gpus(2)).priority(5))
		}, []string{"wide→2"}, ""},
		{"a tenant gets back what it has lent", func() *Snapshot {
			ns := nodesOf("n", 1, 4)
			s := clusterOf(ns)
			for d := range 3 {
				h := runs(fmt.Sprintf("guest%d", d), ns[0], 9, d)
				h.Spec.Tenant = "guests"
				s.heldBy(h)
			}
			s.Queues = tenants("owner", 2, "guests", 2)
			r := gang("owner", 2, gpus(1))
			r.request.Spec.Tenant = "owner"
			return s.pending(r)
		}, []string{"guest0"}, ""},
		{"a limit that only preemptible work of the tenant fills", func() *Snapshot {
			ns := nodesOf("n", 2, 4)
			s := clusterOf(ns)
			own := runs("own", ns[0], 0, 0, 1)
			own.Spec.Tenant = "owner"
			s.heldBy(own, runs("other", ns[0], 0, 2, 3))
			s.Queues = tenants("owner", 2, "guests", 2)
			s.Queues.List[0].Limit = s.Queues.List[0].Guaranteed
			r := gang("owner", 2, gpus(1))
			r.request.Spec.Tenant = "owner"
			return s.pending(r)
		}, []string{"own"}, ""},
		{"nothing leaves for who would be over its guarantee", func() *Snapshot {
			ns := nodesOf("n", 1, 4)
			h := runs("guest", ns[0], 0, 0, 1, 2)
			h.Spec.Tenant = "guests"
			s := clusterOf(ns).heldBy(h)
			s.Queues = tenants("owner", 2, "guests", 2)
			r := gang("owner", 3, gpus(1))
			r.request.Spec.Tenant = "owner"
			return s.pending(r)
		}, nil, ""},
		{"within one block", func() *Snapshot {
			ns := nodesOf("n", 4, 1)
			for i, n := range ns {
				*n = n.label("block", "b"+string(rune('0'+i/2)))
			}
			r := gang("high", 2, gpus(1)).priority(5)
			r.request.Spec.Level = "block"
			s := clusterOf(ns).heldBy(runs("a", ns[1], 0, 0), runs("b", ns[2], 0, 0)).pending(r)
			s.Levels = []api.Level{{Name: "block", Label: "block"}}
			return s
		}, []string{"a"}, ""},
		{"who is leaving already is not told twice", func() *Snapshot {
			ns := nodesOf("n", 2, 1)
			a := runs("a", ns[0], 0, 0)
			a.LeavingFor = "high"
			r := gang("high", 1, gpus(1)).priority(5)
			r.request.Claim = []api.Placed{{Node: ns[0].node.ID, Devices: []string{ns[0].node.GPUs[0].UUID}}}
			r.request.Leaving = []string{"pg-a"}
			return clusterOf(ns).heldBy(a, runs("b", ns[1], 0, 0)).pending(r)
		}, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tc.in()
			r := plan(s)
			if got := victimNames(r); !slices.Equal(got, tc.want) {
				t.Fatalf("victims %q, want %q", got, tc.want)
			}
			for _, e := range r.Evictions {
				for _, v := range e.Victims {
					if v.Keeps == 0 && !strings.Contains(v.Why, "preempted for "+e.Preemptor) {
						t.Errorf("the victim's reason does not name who it leaves for: %q", v.Why)
					}
				}
			}
			if tc.why != "" && !strings.Contains(r.cycle.unhelpful[s.Pending[0].ID], tc.why) {
				t.Errorf("%q", r.cycle.unhelpful)
			}
		})
	}
}

// Work that has just started is left alone, and becomes eligible by itself when its time
// is over, with no other event.
func TestProtection(t *testing.T) {
	ns := nodesOf("n", 1, 1)
	h := runs("low", ns[0], 0, 0)
	h.Started = epoch.Add(-9 * time.Minute)
	s := clusterOf(ns).heldBy(h).pending(gang("high", 1, gpus(1)).priority(5))
	s.Policy.Protect = 10 * time.Minute
	r := plan(s)
	if len(r.Evictions) > 0 || !r.Again.Equal(epoch.Add(time.Minute)) {
		t.Fatalf("%+v, again at %s", r.Evictions, r.Again)
	}
	if r := NewPlanner().Plan(s, r.Again); !slices.Equal(victimNames(r), []string{"low"}) {
		t.Fatalf("%+v", r.Evictions)
	}
}

// No more work is lost in an hour than the operator allows.
func TestMaxLost(t *testing.T) {
	ns := nodesOf("n", 1, 2)
	s := clusterOf(ns).heldBy(runs("low", ns[0], 0, 0, 1)).pending(gang("high", 1, gpus(2)).priority(5))
	s.Policy.MaxLost = 3
	if r := plan(s); len(r.Evictions) != 1 || r.Evictions[0].Victims[0].Lost != 2*3_600_000 {
		t.Fatalf("%+v", r.Evictions)
	}
	s.Lost = 2 * 3_600_000
	if r := plan(s); len(r.Evictions) != 0 || !strings.Contains(r.cycle.unhelpful["high"], "3 GPU-hours") {
		t.Fatalf("%+v, %q", r.Evictions, r.cycle.unhelpful)
	}
}

// What victims give back step by step is kept for who they leave for; it starts when all of
// it is there, where it was decided.
func TestClaim(t *testing.T) {
	ns := nodesOf("n", 2, 1)
	r := gang("high", 2, gpus(1)).priority(5)
	for _, n := range ns {
		r.request.Claim = append(r.request.Claim, api.Placed{Bundle: int64(len(r.request.Claim)), Node: n.node.ID, Devices: []string{n.node.GPUs[0].UUID}})
	}
	r.request.Leaving = []string{"pg-a", "pg-b"}
	again := gang("again", 1, gpus(1))
	again.request.Spec.Preemptible = true

	// a has left and waits again, b is still there.
	b := runs("b", ns[1], 0, 0)
	b.LeavingFor = "high"
	res := plan(clusterOf(ns).heldBy(b).pending(r, again))
	for _, d := range res.All() {
		if d.Bundles != nil {
			t.Errorf("%s was placed", d.Group)
		}
	}
	if len(res.Unclaims)+len(res.Evictions) > 0 {
		t.Errorf("%+v, %+v", res.Unclaims, res.Evictions)
	}

	// Both have left.
	ns = nodesOf("n", 2, 1)
	res = plan(clusterOf(ns).pending(r, again))
	if d := decisionFor(res.All(), "high"); len(d.Bundles) != 2 || d.Bundles[0].Node != ns[0].node.ID {
		t.Errorf("%+v", d)
	}

	// A node of the claim is no good any more: the claim is given up.
	ns = nodesOf("n", 2, 1)
	ns[1].node.Ready, ns[1].node.Why = false, "lost"
	res = plan(clusterOf(ns).pending(r, again))
	if len(res.Unclaims) != 1 || !strings.Contains(res.Unclaims[0].Why, "n1") {
		t.Errorf("%+v", res.Unclaims)
	}
}

// I27: a victim has a lower standing than who it leaves for; the proof holds when an
// independent book replays it; whoever was evicted and asks again evicts nobody; and no two
// groups could end each other.
func TestPropPreemptionIsProvenAndStable(t *testing.T) {
	evicted := 0
	checkUntil(t, func() bool { return evicted > 0 }, func(t *rapid.T) {
		s := drawSnapshot(t)
		s.Holders = drawHolders(t, s.Nodes)
		for _, h := range s.Holders {
			h.Releasing = false
			h.Spec = &api.GroupSpec{Priority: rapid.Int64Range(0, 2).Draw(t, "priority"), Wishes: api.Wishes{Preemptible: rapid.Bool().Draw(t, "preemptible")}}
			h.Started = epoch.Add(-time.Duration(rapid.Int64Range(0, 1000).Draw(t, "age")) * time.Second)
		}
		for _, r := range s.Pending {
			r.Spec.Preemptible = rapid.Bool().Draw(t, "preemptible")
		}
		byGroup := map[string]*Holder{}
		for _, h := range s.Holders {
			byGroup[h.Group] = h
		}
		res := plan(s)
		b := newBook(s)
		if err := b.holdAll(s, res.All()); err != nil {
			t.Fatal(err)
		}
		byID := map[string]*Request{}
		for _, r := range s.Pending {
			byID[r.ID] = r
		}
		told := map[string]bool{}
		for _, e := range res.Evictions {
			evicted++
			r := byID[e.Preemptor]
			for _, v := range e.Victims {
				h := byGroup[v.Group]
				if told[v.Group] {
					t.Fatalf("%s is to leave twice", v.Group)
				}
				told[v.Group] = true
				if standingOf(h.Spec).compare(standingOf(&r.Spec)) >= 0 || !h.Spec.Preemptible {
					t.Fatalf("%s (%+v) leaves for %s (%+v)", v.Group, h.Spec, e.Preemptor, r.Spec)
				}
				for _, held := range h.Bundles {
					b.cpu[held.Node] += int64(held.CPU)
					b.mem[held.Node] += int64(held.Memory)
					for _, uuid := range held.Devices {
						b.device[uuid].Share, b.device[uuid].Free = 1000, b.device[uuid].Usable
						delete(b.owner, uuid)
					}
				}
			}
			if len(e.Claim) != len(r.Spec.Bundles) {
				t.Fatalf("%d bundles claimed of %d", len(e.Claim), len(r.Spec.Bundles))
			}
			for i, at := range e.Claim {
				if err := b.hold(e.Preemptor, r.Spec.Bundles[i], r.Spec.Pool, at); err != nil {
					t.Fatalf("the claim does not stand: %v", err)
				}
			}
		}
		if len(res.Evictions) == 0 {
			return
		}
		// The victim asks again at once, the preemptor runs.
		e := res.Evictions[0]
		r, h := byID[e.Preemptor], byGroup[e.Victims[0].Group]
		again := &Snapshot{Nodes: s.Nodes, Pending: []*Request{{ID: "again", Name: "again", Seq: 1, Spec: *h.Spec}}}
		again.Pending[0].Spec.Bundles = []api.Bundle{gpus(1)}
		now := &Holder{Group: e.Preemptor, Spec: &r.Spec, Started: epoch.Add(-time.Hour)}
		for i, at := range e.Claim {
			bd := r.Spec.Bundles[i]
			now.Bundles = append(now.Bundles, Held{Node: at.Node, CPU: bd.CPU, Memory: bd.Memory, Devices: at.Devices, Share: bd.Share, GPUMemory: bd.GPUMemory})
		}
		again.Holders = []*Holder{now}
		if got := NewPlanner().Plan(again, epoch).Evictions; len(got) > 0 {
			t.Fatalf("the victim evicts in turn: %+v", got)
		}
	})
	if evicted == 0 {
		t.Error("nothing was ever evicted; the property proved nothing")
	}
}
