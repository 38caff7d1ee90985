package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// elastic is a holder of one device a rank that may have other sizes.
func elastic(name string, n *nodeBuilder, sizes api.Sizes, devices ...int) Holder {
	h := runs(name, n, 0, devices...)
	h.Spec.Preemptible = false
	h.Spec.Bundles = slices.Repeat([]api.Bundle{gpus(1)}, len(devices))
	h.Bundles = nil
	for _, d := range devices {
		h.Bundles = append(h.Bundles, Held{Node: n.node.ID, Devices: []string{n.node.GPUs[d].UUID}})
	}
	h.Sizes, h.SaveCost, h.Restart = &sizes, 10*time.Second, 30*time.Second
	h.Sized = epoch.Add(-time.Hour)
	return h
}

// linkedNodes is a group that has the first of three nodes for itself, with the links
// between the first and the others, and that between the others.
func linkedNodes(first, others bool, age time.Duration) *Snapshot {
	ns := nodesOf("n", 3, 4)
	h := elastic("a", ns[0], api.Sizes{Min: 4, Max: 16, Multiple: 4}, 0, 1, 2, 3)
	h.Spec.WholeNodes, h.Nodes = true, []string{ns[0].node.ID}
	return clusterOf(ns).heldBy(h).link("n0", "n1", first, age).link("n0", "n2", first, age).link("n1", "n2", others, age)
}

func TestGrow(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   func(ns []*nodeBuilder) *Snapshot
		want string // "name→size …"
	}{
		{"into all there is", func(ns []*nodeBuilder) *Snapshot {
			return clusterOf(ns).heldBy(elastic("a", ns[0], api.Sizes{Min: 1, Max: 16}, 0, 1))
		}, "pg-a→8"},
		{"to an allowed size only", func(ns []*nodeBuilder) *Snapshot {
			return clusterOf(ns).heldBy(elastic("a", ns[0], api.Sizes{Min: 3, Max: 16, Multiple: 3}, 0, 1, 2))
		}, "pg-a→6"},
		{"to one of a set", func(ns []*nodeBuilder) *Snapshot {
			return clusterOf(ns).heldBy(elastic("a", ns[0], api.Sizes{Set: []int64{2, 5, 9}}, 0, 1))
		}, "pg-a→5"},
		{"not beyond its largest", func(ns []*nodeBuilder) *Snapshot {
			return clusterOf(ns).heldBy(elastic("a", ns[0], api.Sizes{Min: 1, Max: 2}, 0, 1))
		}, ""},
		{"on one node, if all are to be there", func(ns []*nodeBuilder) *Snapshot {
			h := elastic("a", ns[0], api.Sizes{Min: 1, Max: 16}, 0, 1)
			h.Spec.Strategy = api.StrictPack
			return clusterOf(ns).heldBy(h)
		}, "pg-a→4"},
		{"on other nodes, if each is to be alone", func(ns []*nodeBuilder) *Snapshot {
			h := elastic("a", ns[0], api.Sizes{Min: 1, Max: 16}, 0)
			h.Spec.Strategy = api.StrictSpread
			return clusterOf(ns).heldBy(h)
		}, "pg-a→2"},
		{"within its rack", func(ns []*nodeBuilder) *Snapshot {
			*ns[0], *ns[1] = ns[0].label("rack", "r0"), ns[1].label("rack", "r1")
			h := elastic("a", ns[0], api.Sizes{Min: 1, Max: 16}, 0, 1)
			h.Spec.Level = "rack"
			s := clusterOf(ns).heldBy(h)
			s.Levels = []api.Level{{Name: "rack", Label: "rack"}}
			return s
		}, "pg-a→4"},
		{"whole nodes, with good links to those it has and to each other", func(ns []*nodeBuilder) *Snapshot {
			return linkedNodes(true, true, 0)
		}, "pg-a→12"},
		{"whole nodes, as far as their links are well", func(ns []*nodeBuilder) *Snapshot {
			return linkedNodes(true, false, 0)
		}, "pg-a→8"},
		{"no whole nodes whose links are stale", func(ns []*nodeBuilder) *Snapshot {
			return linkedNodes(true, true, time.Hour)
		}, ""},
		{"beside a start that is planned, if it ends before", func(ns []*nodeBuilder) *Snapshot {
			h, kept := elastic("a", ns[0], api.Sizes{Min: 1, Max: 16}, 0, 1), keeps(runs("kept", ns[1], 0, 0, 1, 2, 3))
			h.Ends, kept.Ends = epoch.Add(3*time.Hour), epoch.Add(5*time.Hour)
			return clusterOf(ns).heldBy(h, kept).pending(gang("wide", 8, gpus(1)))
		}, "pg-a→4"},
		{"beside what nothing that ends would help", func(ns []*nodeBuilder) *Snapshot {
			*ns[1] = ns[1].notReady("silent")
			return clusterOf(ns).heldBy(elastic("a", ns[0], api.Sizes{Min: 1, Max: 16}, 0, 1)).pending(gang("wide", 8, gpus(1)))
		}, "pg-a→4"},
		{"as far as its tenant's quota goes", func(ns []*nodeBuilder) *Snapshot {
			h := elastic("a", ns[0], api.Sizes{Min: 1, Max: 16}, 0, 1, 2)
			h.Spec.Tenant = "t"
			h.GPUs = 3
			return clusterOf(ns).heldBy(h).queues(guaranteed(tenant("t"), 5))
		}, "pg-a→5"},
		{"not while somebody waits", func(ns []*nodeBuilder) *Snapshot {
			return clusterOf(ns).heldBy(elastic("a", ns[0], api.Sizes{Min: 1, Max: 16}, 0, 1)).pending(gang("wide", 8, gpus(1)))
		}, ""},
		{"beside what starts in the same cycle", func(ns []*nodeBuilder) *Snapshot {
			return clusterOf(ns).heldBy(elastic("a", ns[0], api.Sizes{Min: 1, Max: 16}, 0, 1)).pending(gang("b", 4, gpus(1)))
		}, "pg-a→4"},
		{"not when it is about to end", func(ns []*nodeBuilder) *Snapshot {
			h := elastic("a", ns[0], api.Sizes{Min: 1, Max: 16}, 0, 1)
			h.Ends = epoch.Add(2 * time.Minute)
			return clusterOf(ns).heldBy(h)
		}, ""},
		{"not when it has just changed its size", func(ns []*nodeBuilder) *Snapshot {
			h := elastic("a", ns[0], api.Sizes{Min: 1, Max: 16}, 0, 1)
			h.Sized = epoch.Add(-time.Minute)
			return clusterOf(ns).heldBy(h)
		}, ""},
		{"not what cannot save", func(ns []*nodeBuilder) *Snapshot {
			h := elastic("a", ns[0], api.Sizes{Min: 1, Max: 16}, 0, 1)
			h.SaveCost = 0
			return clusterOf(ns).heldBy(h)
		}, ""},
		{"the one that would be late first, and no more than it needs", func(ns []*nodeBuilder) *Snapshot {
			on, late := elastic("on", ns[0], api.Sizes{Min: 1, Max: 16}, 0, 1), elastic("late", ns[1], api.Sizes{Min: 1, Max: 16}, 0, 1)
			on.Spec.Priority = 5
			late.Ends, late.Spec.Deadline = epoch.Add(10*time.Hour), epoch.Add(8*time.Hour)
			return clusterOf(ns).heldBy(on, late)
		}, "pg-late→3 pg-on→5"},
		{"the earlier deadline first", func(ns []*nodeBuilder) *Snapshot {
			a, b := elastic("a", ns[0], api.Sizes{Min: 1, Max: 5}, 0, 1), elastic("b", ns[1], api.Sizes{Min: 1, Max: 5}, 0, 1)
			a.Ends, a.Spec.Deadline = epoch.Add(10*time.Hour), epoch.Add(5*time.Hour)
			b.Ends, b.Spec.Deadline = epoch.Add(8*time.Hour), epoch.Add(4*time.Hour)
			return clusterOf(ns).heldBy(a, b)
		}, "pg-b→5 pg-a→3"},
		{"no size is in time: as without a deadline", func(ns []*nodeBuilder) *Snapshot {
			a := elastic("a", ns[0], api.Sizes{Min: 1, Max: 6}, 0, 1)
			a.Ends, a.Spec.Deadline = epoch.Add(10*time.Hour), epoch.Add(time.Hour)
			return clusterOf(ns).heldBy(a)
		}, "pg-a→6"},
		{"the more important first, and the older", func(ns []*nodeBuilder) *Snapshot {
			low, high := elastic("low", ns[0], api.Sizes{Min: 1, Max: 4}, 0, 1), elastic("high", ns[1], api.Sizes{Min: 1, Max: 5}, 0, 1)
			high.Spec.Priority = 5
			return clusterOf(ns).heldBy(low, high)
		}, "pg-high→5 pg-low→3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tc.in(nodesOf("n", 2, 4))
			r := plan(s)
			var got []string
			for _, g := range r.Growths {
				got = append(got, fmt.Sprintf("%s→%d", g.Group, g.To))
			}
			if s := strings.Join(got, " "); s != tc.want {
				t.Errorf("%q, want %q", s, tc.want)
			}
		})
	}
	// It is looked at again by itself when it has had its size for long enough.
	ns := nodesOf("n", 1, 4)
	h := elastic("a", ns[0], api.Sizes{Min: 1, Max: 4}, 0)
	h.Sized = epoch.Add(-time.Minute)
	if r := plan(clusterOf(ns).heldBy(h)); !r.Again.Equal(epoch.Add(settled - time.Minute)) {
		t.Errorf("again at %s", r.Again)
	}
}

// A group that was placed with fewer bundles of its roles gets as many of the others as there
// is room for, in the order of their numbers, and none that somebody waits for.
func TestCompleteGroups(t *testing.T) {
	group := func(n *nodeBuilder) Holder {
		h := elastic("g", n, api.Sizes{}, 0, 1)
		h.Sizes, h.SaveCost, h.Sized = nil, 0, time.Time{}
		h.Spec.Roles = []api.Role{{Name: "a", Bundles: 2, Min: 1}}
		h.Lacks = []Lacking{{Number: 1, Bundle: gpus(1)}, {Number: 2, Bundle: gpus(1)}, {Number: 5, Bundle: gpus(1)}}
		return h
	}
	for _, tc := range []struct {
		name string
		in   func(n *nodeBuilder) *Snapshot
		want string
	}{
		{"all", func(n *nodeBuilder) *Snapshot { return clusterOf([]*nodeBuilder{n}).heldBy(group(n)) }, "[1 2 5]"},
		{"as many as there is room for", func(n *nodeBuilder) *Snapshot {
			return clusterOf([]*nodeBuilder{n}).heldBy(group(n), keeps(runs("x", n, 0, 2)), keeps(runs("y", n, 0, 3)), keeps(runs("z", n, 0, 4)))
		}, "[1]"},
		{"none that somebody waits for", func(n *nodeBuilder) *Snapshot {
			x := keeps(runs("x", n, 0, 2))
			x.Ends = epoch.Add(time.Hour)
			return clusterOf([]*nodeBuilder{n}).heldBy(group(n), x).pending(gang("four", 4, gpus(1)))
		}, "[]"},
		{"no more than its quota allows", func(n *nodeBuilder) *Snapshot {
			h := group(n)
			h.Spec.Tenant = "a"
			s := clusterOf([]*nodeBuilder{n}).heldBy(h)
			s.Queues = tenants("a", 3, "b", 1)
			return s
		}, "[1]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := plan(tc.in(nodesOf("n", 1, 6)[0]))
			got := []int64{}
			for _, g := range r.Growths {
				for _, b := range g.Bundles {
					got = append(got, b.Bundle)
				}
			}
			if fmt.Sprint(got) != tc.want {
				t.Errorf("%v, want %s", got, tc.want)
			}
		})
	}
}

func TestSizesAbove(t *testing.T) {
	for _, tc := range []struct {
		s    api.Sizes
		n    int64
		want []int64
	}{
		{api.Sizes{Min: 2, Max: 6}, 3, []int64{4, 5, 6}},
		{api.Sizes{Min: 2, Max: 9, Multiple: 4}, 1, []int64{4, 8}},
		{api.Sizes{Min: 2, Max: 9, Multiple: 4}, 4, []int64{8}},
		{api.Sizes{Set: []int64{1, 2, 8}}, 1, []int64{2, 8}},
		{api.Sizes{Min: 2, Max: 6}, 6, nil},
		{api.Sizes{}, 1, nil},
	} {
		if got := tc.s.Above(tc.n, 10); !slices.Equal(got, tc.want) {
			t.Errorf("%+v above %d: %v, want %v", tc.s, tc.n, got, tc.want)
		}
		// The last below all of them.
		below := tc.s.Below(1<<40, 100)
		if least := tc.s.Least(); len(below) == 0 && least != 0 || len(below) > 0 && least != below[len(below)-1] {
			t.Errorf("%+v: least %d, below %v", tc.s, least, below)
		}
	}
}
