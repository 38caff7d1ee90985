package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// A group with roles has others leave for as few bundles as it may start with, and takes
// what else is free beside them.
func TestPreemptForRoles(t *testing.T) {
	roles := []api.Role{{Name: "a", Bundles: 4, Min: 1}, {Name: "b", Bundles: 2, Min: 2}}
	for _, tc := range []struct {
		name    string
		least   int64
		free    int   // devices
		each    []int // devices of the ones that may leave
		victims int
		claim   string
	}{
		{"no more leave than its minimums need", 0, 0, []int{1, 1, 1, 1, 1}, 3, "[0 4 5]"},
		{"nor than its minimum needs", 4, 0, []int{1, 1, 1, 1, 1}, 4, "[0 1 4 5]"},
		{"what is free counts", 0, 2, []int{1, 1, 1}, 1, "[0 4 5]"},
		{"what one leaves is all taken", 0, 0, []int{5}, 1, "[0 1 2 4 5]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			devices := tc.free
			for _, n := range tc.each {
				devices += n
			}
			ns := nodesOf("n", 1, devices)
			s := clusterOf(ns)
			at := tc.free
			for i, n := range tc.each {
				var held []int
				for range n {
					held = append(held, at)
					at++
				}
				s.heldBy(runs(fmt.Sprint("low", i), ns[0], 0, held...))
			}
			r := gang("high", 6, gpus(1)).priority(5).roles(tc.least, roles...)
			res := plan(s.pending(r))
			if len(res.Evictions) != 1 || len(res.Evictions[0].Victims) != tc.victims {
				t.Fatalf("%+v, %v", res.Evictions, res.cycle.unhelpful)
			}
			var claimed []int64
			for _, p := range res.Evictions[0].Claim {
				claimed = append(claimed, p.Bundle)
			}
			if got := fmt.Sprint(claimed); got != tc.claim {
				t.Fatalf("claims %s, want %s", got, tc.claim)
			}

			// Once they have left it starts with those bundles, where it was decided.
			r.request.Claim, r.request.Leaving = res.Evictions[0].Claim, []string{"pg-low0"}
			again := plan(clusterOf(nodesOf("n", 1, devices)).pending(r))
			d := decisionFor(again.All(), "high")
			if !slices.Equal(d.Chosen, claimed) || len(d.Bundles) != len(claimed) || d.Bundles[0].Devices[0] != r.request.Claim[0].Devices[0] {
				t.Errorf("%+v", d)
			}
		})
	}
}

// Who leaves is looked for where the group may stay: not where something is reserved, a
// capacity is used up, or an earlier start is planned.
func TestPreemptWhereItMayStay(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   func() *Snapshot
		want []string
		why  string
	}{
		{"reserved for others, soon", func() *Snapshot {
			ns := nodesOf("n", 2, 1)
			s := clusterOf(ns).heldBy(runs("cheap", ns[0], 0, 0), runs("dear", ns[1], 1, 0))
			s.Reservations = []*api.Reservation{{Name: "theirs", Nodes: []string{"n0"}, Tenant: "other", Start: epoch.Add(time.Hour), End: epoch.Add(2 * time.Hour)}}
			return s.pending(gang("high", 1, gpus(1)).priority(5))
		}, []string{"dear"}, ""},
		{"reserved for others, everywhere", func() *Snapshot {
			ns := nodesOf("n", 2, 1)
			s := clusterOf(ns).heldBy(runs("cheap", ns[0], 0, 0), runs("dear", ns[1], 1, 0))
			s.Reservations = []*api.Reservation{{Name: "theirs", Nodes: []string{"n0", "n1"}, Tenant: "other", Start: epoch.Add(time.Hour), End: epoch.Add(2 * time.Hour)}}
			return s.pending(gang("high", 1, gpus(1)).priority(5))
		}, nil, unhelpfulTime},
		{"within its own reservation", func() *Snapshot {
			ns := nodesOf("n", 2, 1)
			s := clusterOf(ns).heldBy(runs("cheap", ns[0], 0, 0), runs("dear", ns[1], 1, 0))
			s.Reservations = []*api.Reservation{{Name: "mine", Nodes: []string{"n1"}, Job: "high", Start: epoch.Add(-time.Hour), End: epoch.Add(48 * time.Hour)}}
			r := gang("high", 1, gpus(1)).priority(5)
			r.request.Spec.Reservation = "mine"
			return s.pending(r)
		}, []string{"dear"}, ""},
		{"a capacity of another rack", func() *Snapshot {
			ns := nodesOf("n", 2, 2)
			for i, n := range ns {
				*n = n.label("rack", fmt.Sprint("r", i))
			}
			uses := keeps(runs("uses", ns[0], 0, 1))
			uses.Spec.Uses = api.Amounts{{Of: "uplink", N: 8}}
			s := clusterOf(ns).heldBy(uses, runs("cheap", ns[0], 0, 0), runs("dear", ns[1], 1, 0), keeps(runs("kept", ns[1], 0, 1)))
			s.Levels = []api.Level{{Name: "rack", Label: "rack"}}
			s.Capacities = []*api.Capacity{{Name: "uplink", Level: "rack", Total: 10}}
			r := gang("high", 1, gpus(1)).priority(5)
			r.request.Spec.Uses = api.Amounts{{Of: "uplink", N: 4}}
			return s.pending(r)
		}, []string{"dear"}, ""},
		{"planned for what comes before it", func() *Snapshot {
			ns := nodesOf("n", 3, 1)
			*ns[0] = ns[0].label("zone", "z")
			*ns[1] = aNode("n1").gpus(2, 72).label("zone", "z") // the fuller one is taken first
			*ns[2] = aNode("n2").gpus(3, 72)
			kept := keeps(runs("kept", ns[0], 0, 0))
			kept.Ends = epoch.Add(time.Hour)
			s := clusterOf(ns).heldBy(kept, keeps(runs("beside", ns[1], 0, 1)), runs("cheap", ns[1], 0, 0), runs("dear", ns[2], 1, 0, 1, 2))
			first := gang("first", 2, gpus(1)).priority(9)
			first.request.Spec.Where = []api.LabelRule{{Key: "zone", Op: "=", Values: []string{"z"}}}
			return s.pending(first, gang("high", 1, gpus(1)).priority(5))
		}, []string{"dear"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tc.in()
			res := plan(s)
			if got := victimNames(res); !slices.Equal(got, tc.want) {
				t.Fatalf("victims %q, want %q: %q", got, tc.want, res.cycle.unhelpful)
			}
			if tc.why != "" && !strings.Contains(res.cycle.unhelpful["high"], tc.why) {
				t.Errorf("%q", res.cycle.unhelpful)
			}
		})
	}
}
