package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Whatever is in the way is named: of many the first, with the number of the rest.
func TestAllBlockersAreNamed(t *testing.T) {
	n := aNode("n1").gpus(40, 72)
	s := cluster(n)
	for d := range 40 {
		s.Nodes[0].GPUs[d].Share, s.Nodes[0].GPUs[d].Free = 0, 0
		h := holder(fmt.Sprint("h", d), n.node, d)
		h.Ends = epoch.Add(time.Duration(d+1) * time.Hour)
		s.heldBy(h)
	}
	fit := plan(s.pending(gang("a", 20, gpus(1)))).Why("a")[0]
	if len(fit.Blockers) != api.MaxBlockers || fit.MoreBlockers != 8 || fit.Blockers[31] != "h31" {
		t.Errorf("%d named, up to %q, %d more", len(fit.Blockers), fit.Blockers[len(fit.Blockers)-1], fit.MoreBlockers)
	}
	if want := "held by h0, h1, h2, h3 and 36 more"; !strings.HasSuffix(fit.Text, want) {
		t.Errorf("%q, want %q at its end", fit.Text, want)
	}
	// Of forty that end one after the other the first twenty are enough.
	if fit.Frees != "the end of h0, h1, h2, h3 and 16 more" || !fit.When.Equal(epoch.Add(20*time.Hour)) {
		t.Errorf("freed by %q at %v", fit.Frees, fit.When)
	}
}

func TestBlockersOfEveryKind(t *testing.T) {
	ends := func(h Holder, in time.Duration) Holder { h.Ends = epoch.Add(in); return h }
	g1, g2, full := aNode("g1").gpus(2, 72).taken(0, 1), aNode("g2").gpus(2, 72), aNode("c1").label("zone", "c")
	full.node.FreeCPU = 0
	onCPU := Holder{Group: "pg-y", Name: "y", Nodes: []string{full.node.ID}, CPU: 32_000, Bundles: []Held{{Node: full.node.ID, CPU: 32_000}}}
	reserved := func(s *Snapshot, node string, until time.Duration) *Snapshot {
		s.Reservations = []*api.Reservation{{Name: "theirs", Nodes: []string{node}, Tenant: "other", Start: epoch.Add(-time.Hour), End: epoch.Add(until)}}
		return s
	}
	for _, tc := range []struct {
		name string
		in   *Snapshot
		want []api.Reason
		when time.Duration // of the first; 0: it is not known
	}{
		{
			"one kind of bundle lacks devices, the other CPUs",
			cluster(g1, full).heldBy(holder("x", g1.node, 0, 1), onCPU).pending(gang("a", 1, gpus(2)).and(labelled(cpus(32), "zone", "c"))),
			[]api.Reason{
				{Code: api.ReasonFit, Text: "bundle 0 needs 2 GPUs on one node", Blockers: []string{"x"}},
				{Code: api.ReasonFit, Text: "bundle 1 needs 32 CPU on one node", Blockers: []string{"y"}},
			},
			0,
		},
		{
			"the end of the one that is enough, and when", cluster(g1).heldBy(ends(holder("x", g1.node, 0), 3*time.Hour), ends(holder("y", g1.node, 1), time.Hour)).pending(gang("a", 2, gpus(1))),
			[]api.Reason{{Code: api.ReasonFit, Blockers: []string{"x", "y"}, Frees: "the end of x and y"}},
			3 * time.Hour,
		},
		{
			"what is reserved for others, and who is on the rest",
			reserved(cluster(g1, g2).heldBy(ends(holder("x", g1.node, 0, 1), 5*time.Hour)), "g2", 2*time.Hour).pending(gang("a", 1, gpus(2))),
			[]api.Reason{
				{Code: api.ReasonReservation, Text: "g2: reserved for tenant other (theirs) until", Blockers: []string{"theirs"}},
				{Code: api.ReasonFit, Text: "the bundle needs 2 GPUs on one node; the nearest fit, g1, has 0 GPUs free; 2 GPUs missing; held by x", Blockers: []string{"x"}, Frees: "the end of x alone"},
			},
			2 * time.Hour,
		},
		{
			"who holds a node that is reserved for others is not in the way",
			reserved(cluster(g1, aNode("g2").gpus(2, 72).taken(0, 1)).heldBy(holder("x", g1.node, 0, 1), holder("y", aNode("g2").gpus(2, 72).node, 0, 1)), "g2", 2*time.Hour).pending(gang("a", 1, gpus(2))),
			[]api.Reason{{Code: api.ReasonFit, Blockers: []string{"x"}, Frees: "the end of x alone"}},
			0,
		},
		{
			"those that are planned before it",
			cluster(g1).heldBy(ends(holder("x", g1.node, 0, 1), time.Hour)).pending(gang("first", 1, gpus(2)).priority(9), gang("a", 1, gpus(2))),
			[]api.Reason{
				{Code: api.ReasonFit, Blockers: []string{"x"}},
				{Code: api.ReasonOrder, Text: "1 planned before it: first (for 2026-01-02 04:04:05 UTC)", Blockers: []string{"first"}},
			},
			time.Hour,
		},
		{
			"its own processes of the attempt before",
			func() *Snapshot {
				own := holder("a", g1.node, 0)
				own.Group, own.Releasing = "a", true
				return cluster(g1).heldBy(own, ends(holder("x", g1.node, 1), time.Hour)).pending(gang("a", 2, gpus(1)))
			}(),
			[]api.Reason{
				{Code: api.ReasonFit, Text: "each bundle needs 1 GPU on one node; the nearest fit, g1, has 0 GPUs free; 1 GPU missing; held by x", Blockers: []string{"x"}, Frees: "the end of x alone, once its own processes are gone"},
				{Code: api.ReasonReleasing, Text: "its own processes of the attempt before are ending on g1; what they held", Blockers: []string{"g1"}},
			},
			time.Hour,
		},
		{
			"nothing but its own processes",
			func() *Snapshot {
				own := holder("a", g1.node, 0, 1)
				own.Group, own.Releasing = "a", true
				return cluster(g1).heldBy(own).pending(gang("a", 2, gpus(1)), gang("b", 2, gpus(1)))
			}(),
			[]api.Reason{
				{Code: api.ReasonReleasing, Text: "its own processes of the attempt before are ending on g1"},
				{Code: api.ReasonFit, Text: "each bundle needs 1 GPU on one node; the nearest fit, g1, has 0 GPUs free; 1 GPU missing", Frees: "the proof that its own processes are gone"},
			},
			0,
		},
		{
			"whoever holds up the line",
			func() *Snapshot {
				s := cluster(g2, aNode("g1").gpus(2, 72).notReady("silent")).pending(gang("first", 4, gpus(1)), gang("a", 1, gpus(1)))
				s.Policy = Policy{NoBackfill: true, Order: OrderFIFO}
				return s
			}(),
			[]api.Reason{{Code: api.ReasonOrder, Text: "would fit now, but stands behind first, which waits", Blockers: []string{"first"}}},
			0,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := plan(tc.in).Why("a")
			if len(got) != len(tc.want) {
				t.Fatalf("reasons %+v, want %+v", got, tc.want)
			}
			for i, want := range tc.want {
				checkReason(t, got[i], want)
			}
			switch when := got[0].When; {
			case tc.when == 0 && !when.IsZero(), tc.when > 0 && !when.Equal(epoch.Add(tc.when)):
				t.Errorf("expected at %v, want %s from %s", when, tc.when, epoch)
			}
		})
	}
}

// A gang does not wait for itself, neither in its reasons nor in what its planned start
// rests on.
func TestForecastOfGangThatStillEnds(t *testing.T) {
	n := aNode("n1").gpus(2, 72).taken(0, 1)
	own := holder("a", n.node, 0)
	own.Group, own.Releasing = "a", true
	other := holder("x", n.node, 1)
	other.Ends, other.Started = epoch.Add(time.Hour), epoch.Add(-time.Hour)
	f, ok := plan(cluster(n).heldBy(own, other).pending(gang("a", 2, gpus(1)))).Forecast("a")
	if !ok || !slices.Equal(f.After, []string{"x"}) || !slices.ContainsFunc(f.Assumptions, func(s string) bool { return strings.HasPrefix(s, "its own processes") }) {
		t.Errorf("%+v", f)
	}
}

// What is kept for a gang that lost a node is no room of others, and says whose it is.
func TestKeptPlaceIsNamed(t *testing.T) {
	ns := nodesOf("n", 2, 2)
	ns[1].node.Ready, ns[1].node.Why = false, "lost"
	lost := gang("lost", 2, gpus(2))
	lost.request.Former = []api.Placed{{Node: ns[0].node.ID, Devices: []string{ns[0].node.GPUs[0].UUID, ns[0].node.GPUs[1].UUID}}}
	lost.request.FormerUntil = epoch.Add(10 * time.Minute)
	why := plan(clusterOf(ns).pending(lost, gang("other", 1, gpus(1)))).Why("other")[0]
	if why.Code != api.ReasonReservation || !slices.Equal(why.Blockers, []string{"lost"}) || !strings.HasPrefix(why.Text, "n0: kept for lost") || !why.When.Equal(lost.request.FormerUntil) {
		t.Errorf("%+v", why)
	}
}

// Of links only those are named that would let the request run: a node that is reserved for
// others is of no use to it, however well it is linked.
func TestLinksOfReservedNodesAreNotNamed(t *testing.T) {
	ns := nodesOf("n", 3, 1)
	s := clusterOf(ns)
	for _, n := range []string{"n0", "n1", "n2"} {
		s.Links = append(s.Links, &api.Link{A: n, Checked: epoch, Healthy: n == "n1", Why: "down"})
	}
	r := gang("a", 2, gpus(1))
	r.request.Spec.WholeNodes = true
	r.request.Spec.Strategy = api.StrictSpread
	s.Reservations = []*api.Reservation{{Name: "theirs", Nodes: []string{"n0"}, Tenant: "other", Start: epoch.Add(-time.Hour), End: epoch.Add(2 * time.Hour)}}
	why := plan(s.pending(r)).Why("a")
	if why[0].Code != api.ReasonHealth || !slices.Equal(why[0].Blockers, []string{"n1", "n2"}) {
		t.Errorf("%+v", why)
	}
	for _, w := range why {
		if strings.Contains(w.Text, "link of n0") {
			t.Errorf("names the link of a reserved node: %+v", w)
		}
	}
}
