package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// What a tenant is guaranteed and does not use runs preemptible work meanwhile, though a
// gang that needs all of it stands first in a strict queue. The gang gets it back as soon as
// the rest is free.
func TestIdleQuotaIsLentWhileAHeadWaits(t *testing.T) {
	var nodes []nodeBuilder
	for i := range 25 {
		nodes = append(nodes, aNode(fmt.Sprintf("n%d", i)).gpus(8, 72))
	}
	own := Holder{Group: "pg-own", Name: "own", Spec: &api.GroupSpec{Tenant: "a"}, GPUs: 100, Started: epoch, Ends: epoch.Add(5 * time.Hour)}
	for i := range 12 {
		nodes[i] = nodes[i].taken(0, 1, 2, 3, 4, 5, 6, 7)
	}
	nodes[12] = nodes[12].taken(0, 1, 2, 3)
	for i := range nodes[:13] {
		held := Held{Node: nodes[i].node.ID}
		for _, g := range nodes[i].node.GPUs {
			if g.Share == 0 {
				held.Devices = append(held.Devices, g.UUID)
			}
		}
		own.Nodes, own.Bundles = append(own.Nodes, held.Node), append(own.Bundles, held)
	}
	strict := guaranteed(tenant("a"), 200)
	strict.Order = OrderFIFO
	s := cluster(nodes...).heldBy(own).queues(strict, tenant("b")).pending(
		gang("head", 200, gpus(1)).of("a", "").runs(time.Hour),
		gang("lent", 100, gpus(1)).of("b", "").preemptible().runs(24*time.Hour),
	)
	w := &world{s: s, now: epoch}
	p := NewPlanner()
	ds := p.Plan(w.s, w.now).All()
	if started(ds) != "lent" || len(decisionFor(Plan(s, epoch), "head").Reasons) == 0 {
		t.Fatalf("%q starts", started(ds))
	}
	w.start(ds)
	w.end(epoch.Add(5 * time.Hour))
	r := p.Plan(w.s, w.now)
	if got := victimNames(r); !slices.Equal(got, []string{"lent"}) || r.Evictions[0].Preemptor != "head" {
		t.Errorf("with the rest free %+v leave for the head", r.Evictions)
	}
}

// One gang that can never run holds up nothing: what is behind it starts in the same cycle.
func TestInfeasibleGangHoldsUpNothing(t *testing.T) {
	s := join(rack("r1", 4, 8), rack("r2", 4, 8)).levels("rack").pending(gang("wide", 64, gpus(1)).level("rack"))
	for i := range 50 {
		s.pending(gang(fmt.Sprintf("small%d", i), 1, gpus(1)))
	}
	s.Policy.Order = OrderFIFO
	ds := Plan(s, epoch)
	placed := 0
	for _, d := range ds {
		if d.Bundles != nil {
			placed++
		}
	}
	if d := decisionFor(ds, "wide"); placed != 50 || d.Bundles != nil || !d.Start.IsZero() {
		t.Errorf("%d of 50 started; the infeasible one: %+v", placed, d)
	}
	s.Policy.NoBackfill = true
	if got := started(Plan(s, epoch)); got != "" {
		t.Errorf("where nothing may pass what waits, %s start", got)
	}
}

// Every request that waits is looked at in the first cycle, though others that are blocked
// stand before it, and none is looked at again before there is more room.
func TestBlockedHeadsHideNothing(t *testing.T) {
	const heads = 60
	s := cluster(aNode("n1").gpus(8, 72).taken(0, 1, 2, 3, 4, 5, 6), aNode("n2").gpus(4, 72).taken(0, 1, 2, 3))
	for i := range heads {
		s.pending(gang(fmt.Sprintf("head%d", i), i+2, gpus(1)))
	}
	s.pending(gang("small", 1, gpus(1)))
	s.Policy.Order = OrderFIFO
	p := NewPlanner()
	r := p.Plan(s, epoch)
	if r.Tried != heads+1 || decisionFor(r.All(), "small").Bundles == nil {
		t.Errorf("%d of %d were looked at; the small one: %+v", r.Tried, heads+1, decisionFor(r.All(), "small"))
	}
	w := &world{s: s, now: epoch}
	w.start(r.All())
	if r = p.Plan(w.s, epoch); r.Tried != 0 {
		t.Errorf("%d were looked at again with no more room", r.Tried)
	}
	next := *w.s
	next.Nodes = slices.Clone(next.Nodes)
	g := &next.Own(1).GPUs[0]
	g.Share, g.Free = 1000, g.Usable
	if r = p.Plan(&next, epoch); r.Tried == 0 {
		t.Error("none was looked at again with more room")
	}
}

// A plan that one cycle does not get done is gone on with by those that come after it: it
// asks for them, each adds to it, and at the end all that can start have a start. A decision
// meanwhile looks for none but the first.
func TestPlanIsGoneOnWith(t *testing.T) {
	s := busy(1500, 1500)
	w := &world{s: s, now: epoch}
	p := NewPlanner()
	p.PlanAge = time.Hour
	starts := func(r *Result) (n, none int) {
		for _, d := range r.All() {
			switch {
			case d.Bundles != nil:
			case d.Start.IsZero():
				none++
			default:
				n++
			}
		}
		return n, none
	}
	r := p.Plan(w.s, w.now)
	w.start(r.All())
	before, none := starts(r)
	if before == 0 || none == 0 {
		t.Fatalf("%d starts at once, %d without: nothing is left to go on with", before, none)
	}
	w.now = w.now.Add(time.Second)
	r = p.Plan(w.s, w.now)
	w.start(r.All())
	if n, _ := starts(r); n > before {
		t.Errorf("a decision planned %d starts where there were %d", n, before)
	}
	last := 0
	for cycles := 0; ; cycles++ {
		if r.Again.IsZero() {
			t.Fatalf("%d starts are missing after %d cycles, and no other cycle is asked for", none, cycles)
		}
		w.now = r.Again
		r = p.Replan(w.s, w.now)
		w.start(r.All())
		if before, none = starts(r); none == 0 || before == planned {
			break
		}
		if before <= last && cycles > 3 {
			t.Fatalf("%d starts after cycle %d, %d before", before, cycles, last)
		}
		last = before
	}
}

// The reference cluster's service has a node of its own, and its training two whole nodes
// with a network between them that is known to be well.
func TestReferenceClusterPolicies(t *testing.T) {
	node := func(name string) nodeBuilder { return aNode(name).gpus(2, 72) }
	nodes := func() *Snapshot {
		s := cluster(node("A"), node("B"), node("C"))
		s.Policy.Order = OrderFIFO
		s.Reservations = []*api.Reservation{{Name: "serving", Tenant: "serve", Nodes: []string{"A"}, Start: epoch.Add(-time.Hour), End: epoch.Add(100 * time.Hour)}}
		return s
	}
	serve := func(id string) requestBuilder {
		return gang(id, 1, gpus(1)).tenant("serve").in("serving").runs(time.Hour)
	}
	train := gang("train", 4, gpus(1)).whole().runs(time.Hour)
	for _, tc := range []struct {
		name string
		in   *Snapshot
		want string
		why  string // of the last request
	}{
		{"serve on A, train on B and C", nodes().link("B", "C", true, 0).pending(serve("s1"), serve("s2"), train), "s1:A s2:A train:B+C", ""},
		{"serve never outside A, though B has free devices", nodes().pending(serve("s1"), serve("s2"), serve("s3")), "s1:A s2:A s3:+1h", "serving"},
		{"nobody else on A", nodes().pending(gang("other", 6, gpus(1)).runs(time.Hour)), "other:+100h", "reserved for tenant serve (serving)"},
		{"train when the check of B–C failed", nodes().link("B", "C", false, 0).pending(train), "train:-", "B"},
		{"train when the word on B–C is stale", nodes().link("B", "C", true, time.Hour).pending(train), "train:-", "B"},
		{"train when nothing is known of B–C, though B is well", nodes().link("B", "", true, 0).pending(train), "train:-", "B"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ds := Plan(tc.in, epoch)
			if got := outcomes(tc.in, ds); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			last := decisionFor(ds, tc.in.Pending[len(tc.in.Pending)-1].ID)
			if said := fmt.Sprint(last.Reasons); !strings.Contains(said, tc.why) || tc.why != "" && last.Bundles != nil {
				t.Errorf("the reasons do not name %q: %s", tc.why, said)
			}
		})
	}
}

// A claim that has not come true yet is part of the plan: it starts when the last of its
// victims has left, nothing takes what is free of it until then, and the next start comes
// after it.
func TestClaimsAreInThePlan(t *testing.T) {
	n := aNode("n1").gpus(2, 72)
	victim := runs("victim", &n, 0, 0)
	victim.LeavingFor = "claims"
	claims := gang("claims", 2, gpus(1)).runs(time.Hour)
	for i, g := range n.node.GPUs {
		claims.request.Claim = append(claims.request.Claim, api.Placed{Bundle: int64(i), Node: n.node.ID, Devices: []string{g.UUID}})
	}
	claims.request.Leaving = []string{"pg-victim"}
	s := cluster(n).heldBy(victim).pending(claims, gang("next", 2, gpus(1)).runs(time.Hour), gang("short", 1, gpus(1)).runs(time.Minute))
	s.Policy.Order = OrderFIFO
	if got, want := outcomes(s, Plan(s, epoch)), "claims:+2m next:+1h2m short:+2h2m"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Capacity comes back with those who use it, and only with them; who waits for more than
// that, or for what is reserved, makes nobody leave.
func TestPreemptionForCapacityAndReservations(t *testing.T) {
	n1, n2 := aNode("n1").gpus(1, 72), aNode("n2").gpus(1, 72)
	low := runs("low", &n1, 0, 0)
	low.Spec.Uses = api.Amounts{{Of: "storage", N: 6}}
	storage := func(s *Snapshot, total int64) *Snapshot {
		s.Capacities = []*api.Capacity{{Name: "storage", Total: total, Unit: "MiB/s"}}
		return s
	}
	for _, tc := range []struct {
		name string
		in   *Snapshot
		want []string
		why  string
	}{
		{"a capacity that the victim uses", storage(cluster(n1, n2).heldBy(low).pending(gang("high", 1, gpus(1)).priority(5).uses("storage", 5)), 10), []string{"low"}, ""},
		{"more than there is after that", storage(cluster(n1, n2).heldBy(low).pending(gang("high", 1, gpus(1)).priority(5).uses("storage", 11)), 10), nil, unhelpfulCapacity},
		{"more than there is, for who is beyond its limit as well while the victim is there", func() *Snapshot {
			s := storage(cluster(n1, n2).heldBy(heldByTenant(low, "t")).pending(gang("high", 1, gpus(1)).priority(5).of("t", "").uses("storage", 11)), 10)
			return s.queues(limited(tenant("t"), 1))
		}(), nil, unhelpfulCapacity},
		{"enough is free of it", storage(cluster(n1, n2).heldBy(low).pending(gang("high", 1, gpus(1)).priority(5).uses("storage", 4)), 10), nil, ""},
		{"a node that is reserved for others", func() *Snapshot {
			s := cluster(n1).heldBy(low).pending(gang("high", 1, gpus(1)).priority(5))
			s.Reservations = []*api.Reservation{{Name: "r", Tenant: "x", Nodes: []string{"n1"}, Start: epoch.Add(-time.Hour), End: epoch.Add(time.Hour)}}
			return s
		}(), nil, unhelpfulTime},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := plan(tc.in)
			if got := victimNames(r); !slices.Equal(got, tc.want) {
				t.Errorf("victims %q, want %q", got, tc.want)
			}
			if why := r.cycle.unhelpful["high"]; why != tc.why {
				t.Errorf("%q, want %q", why, tc.why)
			}
		})
	}
}

// A plan that is kept from one cycle to the next keeps what it takes of capacities: what
// comes later does not use that up, and what stands before it in the order may.
func TestKeptPlanHoldsItsCapacity(t *testing.T) {
	n := aNode("n1").gpus(8, 72)
	runs := holding("runs", time.Hour, 1, n)
	runs.Spec = &api.GroupSpec{Wishes: api.Wishes{Uses: api.Amounts{{Of: "storage", N: 6}}}}
	head := gang("head", 1, gpus(1)).uses("storage", 8).runs(time.Hour)
	late := gang("late", 1, gpus(1)).uses("storage", 4).runs(90 * time.Minute)
	s := cluster(n).heldBy(runs).pending(head)
	s.Capacities = []*api.Capacity{{Name: "storage", Total: 10, Unit: "MiB/s"}}
	s.Policy.Order = OrderFIFO
	p := NewPlanner()
	p.PlanAge = time.Hour
	p.Plan(s, epoch)
	next := *s
	next.Pending = append(slices.Clone(next.Pending), &late.request)
	if got, want := outcomes(&next, p.Plan(&next, epoch).All()), "head:+1h late:-"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	late.request.Seq = 0 // now it is before the other one
	first := late.request
	next.Pending = []*Request{next.Pending[0], &first}
	if got, want := outcomes(&next, p.Plan(&next, epoch).All()), "head:+1h30m late:n1"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
