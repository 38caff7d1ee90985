package schedule

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Each answer is one change by which the request starts now, and no other is given.
func TestAlternatives(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   func(ns []*nodeBuilder) *Snapshot // two nodes of four devices
		now  []string
	}{
		{"a strategy", func(ns []*nodeBuilder) *Snapshot {
			return clusterOf(ns).pending(gang("r", 6, gpus(1)).strategy(api.StrictPack))
		}, []string{"without STRICT_PACK", "with 4 bundles instead of 6"}},
		{"a pool", func(ns []*nodeBuilder) *Snapshot {
			*ns[0] = ns[0].pool("a")
			return clusterOf(ns).pending(gang("r", 5, gpus(1)).pool("a"))
		}, []string{"in any pool", "with 4 bundles instead of 5"}},
		{"a label", func(ns []*nodeBuilder) *Snapshot {
			*ns[0] = ns[0].label("fast", "yes").notReady("down")
			return clusterOf(ns).pending(gang("r", 1, labelled(gpus(1), "fast", "yes")))
		}, []string{"without the labels of its bundles"}},
		{"a level", func(ns []*nodeBuilder) *Snapshot {
			*ns[0], *ns[1] = ns[0].label("rack", "r0"), ns[1].label("rack", "r1")
			r := gang("r", 6, gpus(1))
			r.request.Spec.Level = "rack"
			s := clusterOf(ns).pending(r)
			s.Levels = []api.Level{{Name: "rack", Label: "rack"}}
			return s
		}, []string{"without level rack", "with 4 bundles instead of 6"}},
		{"a quota", func(ns []*nodeBuilder) *Snapshot {
			r := gang("r", 4, gpus(1))
			r.request.Spec.Tenant = "a"
			s := clusterOf(ns).pending(r)
			s.Queues = tenants("a", 2, "b", 2)
			return s
		}, []string{"as preemptible work", "without the limits of tenants and queues", "with 2 bundles instead of 4"}},
		{"time", func(ns []*nodeBuilder) *Snapshot {
			h := runs("h", ns[0], 0, 0, 1, 2, 3)
			h.Spec.Preemptible = false
			h.Ends = epoch.Add(2 * time.Hour)
			wide := gang("wide", 8, gpus(1)).priority(5)
			return clusterOf(ns).heldBy(h).pending(wide, gang("r", 1, gpus(1)))
		}, []string{"with the highest priority", "if it ran no longer than 1h", "if it ran no longer than 10m"}},
		{"nothing helps", func(ns []*nodeBuilder) *Snapshot {
			ns[0].node.Ready, ns[1].node.Ready = false, false
			return clusterOf(ns).pending(gang("r", 1, gpus(1)))
		}, nil},
		{"it starts anyway", func(ns []*nodeBuilder) *Snapshot {
			return clusterOf(ns).pending(gang("r", 1, gpus(1)))
		}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tc.in(nodesOf("n", 2, 4))
			var got []string
			for _, a := range Alternatives(s, "r", epoch) {
				if a.Now {
					got = append(got, a.Change)
				}
			}
			if !slices.Equal(got, tc.now) {
				t.Errorf("%s\nwant %s", strings.Join(got, "; "), strings.Join(tc.now, "; "))
			}
		})
	}
	if got := Alternatives(&Snapshot{}, "nobody", epoch); got != nil {
		t.Errorf("%+v", got)
	}
}

// More important work may start by preempting others; the answer names them.
func TestAlternativesPreempts(t *testing.T) {
	ns := nodesOf("n", 1, 2)
	r := gang("r", 1, gpus(2))
	r.request.Spec.Preemptible = true
	s := clusterOf(ns).heldBy(runs("low", ns[0], 0, 0, 1)).pending(r)
	var found bool
	for _, a := range Alternatives(s, "r", epoch) {
		found = found || a.Change == "with the highest priority" && slices.Equal(a.After, []string{"low"})
	}
	if !found {
		t.Errorf("%+v", Alternatives(s, "r", epoch))
	}
}

// A start that its quota puts off is a start: what brings none sooner changes nothing.
func TestAlternativesAreSoonerThanTheQuotaAllows(t *testing.T) {
	ns := nodesOf("n", 1, 2)
	h := runs("low", ns[0], 2, 0, 1)
	h.Spec.Tenant = "team"
	s := clusterOf(ns).heldBy(h).pending(gang("r", 1, gpus(1)).of("team", "").runs(time.Hour))
	s.queues(limited(tenant("team"), 2))
	r := NewPlanner().Plan(s, epoch)
	if f, ok := r.Forecast("r"); !ok || !f.Start.After(epoch) {
		t.Fatalf("%+v %v", f, ok)
	}
	for _, a := range Alternatives(s, "r", epoch) {
		if strings.Contains(a.Change, "limits") {
			t.Errorf("%+v", a)
		}
	}
}
