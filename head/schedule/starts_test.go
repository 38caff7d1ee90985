package schedule

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

func (b requestBuilder) runs(d time.Duration) requestBuilder { b.request.Expect = d; return b }

func (b requestBuilder) uses(of string, n int64) requestBuilder {
	b.request.Spec.Uses = b.request.Spec.Uses.With(of, n)
	return b
}

func (b requestBuilder) tenant(name string) requestBuilder { b.request.Spec.Tenant = name; return b }

func (b requestBuilder) in(reservation string) requestBuilder {
	b.request.Spec.Reservation = reservation
	return b
}

// cpusHeld marks so many CPUs of the node as in use.
func (b nodeBuilder) cpusHeld(n unit.MilliCPU) nodeBuilder {
	b.node.FreeCPU -= n * 1000
	return b
}

// holding is a group that holds CPUs on nodes until a time after the epoch.
func holding(name string, ends time.Duration, n unit.MilliCPU, on ...nodeBuilder) Holder {
	h := Holder{Group: "pg-" + name, Name: name, Started: epoch.Add(-time.Hour)}
	if ends != 0 {
		h.Ends = epoch.Add(ends)
	}
	for _, b := range on {
		h.Nodes = append(h.Nodes, b.node.ID)
		h.Bundles = append(h.Bundles, Held{Node: b.node.ID, CPU: n * 1000})
		h.CPU += n * 1000
	}
	return h
}

func until(h Holder, ends time.Duration) Holder {
	h.Started, h.Ends = epoch.Add(-time.Hour), epoch.Add(ends)
	return h
}

// outcomes writes decisions as "a:n1 b:+2h c:-": where a group starts, when it is planned
// to, or that it has no start.
func outcomes(s *Snapshot, ds []Decision) string {
	var out []string
	for _, r := range s.Pending {
		d := decisionFor(ds, r.ID)
		switch {
		case d.Bundles != nil:
			var on []string
			for _, b := range d.Bundles {
				on = append(on, strings.TrimPrefix(b.Node, "id-"))
			}
			out = append(out, r.ID+":"+strings.Join(sortedCopy(on), "+"))
		case d.Start.IsZero():
			out = append(out, r.ID+":-")
		default:
			out = append(out, r.ID+":+"+spell(d.Start.Sub(epoch)))
		}
	}
	return strings.Join(out, " ")
}

func TestPlannedStarts(t *testing.T) {
	n8 := aNode("n1").cpu(8_000).cpusHeld(4)
	other := aNode("n2").cpu(1_000)
	full := aNode("g1").gpus(8, 72).taken(0, 1, 2, 3, 4, 5, 6, 7)
	half := aNode("g2").gpus(8, 72).taken(0, 1, 2, 3)
	for _, tc := range []struct {
		name string
		in   *Snapshot
		want string
	}{
		{
			"a short one starts beside the head of the line",
			cluster(n8).heldBy(holding("j1", time.Hour, 4, n8)).
				pending(gang("j2", 1, cpus(8)), gang("j3", 1, cpus(1)).runs(30*time.Minute)),
			"j2:+1h j3:n1",
		},
		{
			"one that ends with the head's start is in time",
			cluster(n8).heldBy(holding("j1", time.Hour, 4, n8)).
				pending(gang("j2", 1, cpus(8)), gang("j3", 1, cpus(1)).runs(time.Hour)),
			"j2:+1h j3:n1",
		},
		{
			"a longer one waits for the head to end",
			cluster(n8).heldBy(holding("j1", time.Hour, 4, n8)).
				pending(gang("j2", 1, cpus(8)).runs(3*time.Hour), gang("j3", 1, cpus(1)).runs(2*time.Hour)),
			"j2:+1h j3:+4h",
		},
		{
			"a longer one starts on another node",
			cluster(n8, other).heldBy(holding("j1", time.Hour, 4, n8)).
				pending(gang("j2", 1, cpus(8)), gang("j3", 1, cpus(1)).runs(2*time.Hour)),
			"j2:+1h j3:n2",
		},
		{
			"a longer one starts if the head leaves it enough",
			cluster(n8).heldBy(holding("j1", time.Hour, 4, n8)).
				pending(gang("j2", 1, cpus(7)), gang("j3", 1, cpus(1)).runs(2*time.Hour)),
			"j2:+1h j3:n1",
		},
		{
			"without backfill everything behind the head waits, but in other pools",
			func() *Snapshot {
				m8, m2, x1 := n8.pool("m"), other.pool("m"), aNode("x1").pool("x")
				s := cluster(m8, m2, x1).heldBy(holding("j1", time.Hour, 4, m8)).pending(
					gang("j2", 1, cpus(8)).pool("m"), gang("j3", 1, cpus(1)).runs(time.Minute).pool("m"),
					gang("other", 1, cpus(1)).pool("x"), gang("any", 1, cpus(1)))
				s.Policy.NoBackfill = true
				return s
			}(),
			"j2:+1h j3:+1h other:x1 any:+1h",
		},
		{
			"two heads that need more than half each come one after the other",
			cluster(n8).heldBy(holding("j1", time.Hour, 4, n8)).
				pending(gang("a", 1, cpus(5)).runs(time.Hour), gang("b", 1, cpus(5)).runs(time.Hour)),
			"a:+1h b:+2h",
		},
		{
			"a planned start uses a hole before another one",
			cluster(n8).heldBy(holding("j1", time.Hour, 3, n8), holding("j0", 10*time.Minute, 1, n8)).
				pending(gang("a", 1, cpus(8)).runs(time.Hour), gang("b", 1, cpus(5)).runs(50*time.Minute), gang("c", 1, cpus(5)).runs(51*time.Minute)),
			"a:+1h b:+10m c:+2h",
		},
		{
			"what runs over its time is never free",
			cluster(n8).heldBy(holding("j1", -10*time.Minute, 4, n8)).pending(gang("a", 1, cpus(8))),
			"a:+6m",
		},
		{
			"what says nothing of its time is assumed to run for a day from its start",
			cluster(n8).heldBy(holding("j1", 0, 4, n8)).pending(gang("a", 1, cpus(8))),
			"a:+23h",
		},
		{
			"devices come free one after the other",
			cluster(full, half).heldBy(
				until(holder("x", full.node, 0, 1, 2, 3), time.Hour), until(holder("y", full.node, 4, 5, 6, 7), 2*time.Hour),
				until(holder("z", half.node, 0, 1, 2, 3), 3*time.Hour)).
				pending(gang("a", 2, gpus(8)), gang("b", 1, gpus(8)).runs(time.Hour), gang("c", 1, gpus(4)).runs(90*time.Minute), gang("d", 4, gpus(1)).runs(2*time.Hour)),
			"a:+3h b:+2h c:g2 d:+27h",
		},
		{
			"on one node or waiting",
			cluster(full, half).heldBy(
				until(holder("x", full.node, 0, 1, 2, 3), time.Hour), until(holder("y", full.node, 4, 5, 6, 7), 2*time.Hour),
				until(holder("z", half.node, 0, 1, 2, 3), 3*time.Hour)).
				pending(gang("a", 6, gpus(1)).strategy(api.StrictPack)),
			"a:+2h",
		},
		{
			"what is not known to end gives nothing back",
			cluster(full).pending(gang("a", 1, gpus(1))),
			"a:-",
		},
		{
			"a node that is lost is in no plan, and holds up nothing",
			cluster(aNode("n1"), aNode("n2").notReady("lost")).
				pending(gang("x", 2, cpus(32)), gang("small", 1, cpus(1)), gang("small-too", 1, cpus(1))),
			"x:- small:n1 small-too:n1",
		},
		{
			"a larger priority is not moved by a smaller one",
			cluster(n8).heldBy(holding("j1", time.Hour, 4, n8)).
				pending(gang("low", 1, cpus(6)).runs(time.Hour), gang("high", 1, cpus(5)).priority(1).runs(5*time.Hour)),
			"low:+6h high:+1h",
		},
		{
			"what was placed in this cycle is expected to end too",
			cluster(aNode("n1").cpu(8_000)).pending(gang("a", 1, cpus(6)).runs(time.Hour), gang("b", 1, cpus(8))),
			"a:n1 b:+1h",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.in.Policy.Order = OrderFIFO
			if got := outcomes(tc.in, Plan(tc.in, epoch)); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestReservations(t *testing.T) {
	reserve := func(s *Snapshot, rs ...api.Reservation) *Snapshot {
		for _, r := range rs {
			s.Reservations = append(s.Reservations, &r)
		}
		return s
	}
	in := func(from, to time.Duration, nodes ...string) api.Reservation {
		return api.Reservation{Name: "r", Start: epoch.Add(from), End: epoch.Add(to), Nodes: nodes}
	}
	mine := func(r api.Reservation) api.Reservation { r.Tenant = "mine"; return r }
	n1, n2, n3 := aNode("n1").gpus(8, 72), aNode("n2").gpus(8, 72), aNode("n3").gpus(8, 72)
	for _, tc := range []struct {
		name string
		in   *Snapshot
		want string
	}{
		{
			"nothing runs into maintenance",
			reserve(cluster(n1).pending(gang("short", 1, gpus(1)).runs(time.Hour), gang("long", 1, gpus(1)).runs(time.Hour+time.Second)),
				func() api.Reservation { r := in(time.Hour, 3*time.Hour, "n1"); r.Maintenance = "firmware"; return r }()),
			"short:n1 long:+3h",
		},
		{
			"others never land on what is reserved, its owner does before anywhere else",
			reserve(cluster(n1, n2).pending(gang("other", 2, gpus(8)).runs(time.Hour), gang("own", 1, gpus(1)).tenant("mine").runs(time.Hour), gang("small", 1, gpus(1)).runs(time.Hour)),
				mine(in(-time.Hour, 3*time.Hour, "n1"))),
			"other:+3h own:n1 small:n2",
		},
		{
			"the owner may use the rest too",
			reserve(cluster(n1, n2).pending(gang("own", 2, gpus(8)).tenant("mine")), mine(in(-time.Hour, 3*time.Hour, "n1"))),
			"own:n1+n2",
		},
		{
			"who names a reservation uses it alone",
			reserve(cluster(n1, n2).pending(
				gang("a", 2, gpus(8)).tenant("mine").in("r").runs(time.Hour), gang("b", 1, gpus(8)).tenant("mine").in("r").runs(time.Hour),
				gang("c", 1, gpus(8)).tenant("mine").in("r").runs(time.Hour), gang("d", 1, gpus(8)).tenant("mine").in("r").runs(3*time.Hour),
				gang("stranger", 1, gpus(1)).in("r").runs(time.Hour)),
				mine(in(0, 3*time.Hour, "n1"))),
			"a:- b:n1 c:+1h d:- stranger:-",
		},
		{
			"a reservation of a count of nodes keeps off those that are in use until then",
			reserve(cluster(n1.taken(0), n2, n3).heldBy(until(holder("x", n1.node, 0), 5*time.Hour)).
				pending(gang("other", 1, gpus(7)).runs(2*time.Hour), gang("more", 1, gpus(8)).runs(2*time.Hour), gang("own", 2, gpus(8)).tenant("mine").runs(time.Hour)),
				func() api.Reservation { r := mine(in(time.Hour, 3*time.Hour)); r.Count = 2; return r }()),
			"other:n1 more:+3h own:n2+n3",
		},
		{
			"a reserved node that is lost is replaced",
			reserve(cluster(n1, n2.notReady("lost"), n3).pending(gang("other", 1, gpus(8)), gang("own", 1, gpus(8)).tenant("mine").runs(time.Hour)),
				mine(in(-time.Hour, 3*time.Hour, "n2"))),
			"other:n3 own:n1",
		},
		{
			"a reservation that has ended is none",
			reserve(cluster(n1).pending(gang("a", 1, gpus(1))), in(-3*time.Hour, 0, "n1")),
			"a:n1",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.in.Policy.Order = OrderFIFO
			if got := outcomes(tc.in, Plan(tc.in, epoch)); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestCapacities(t *testing.T) {
	storage := func(s *Snapshot) *Snapshot {
		s.Capacities = append(s.Capacities, &api.Capacity{Name: "storage", Total: 350, Overhead: 10, Unit: "MiB/s"})
		return s
	}
	b, c := aNode("b").gpus(2, 72), aNode("c").gpus(2, 72)
	serve := func(uses int64, ends time.Duration) Holder {
		h := holding("serve", ends, 1, aNode("a"))
		h.Spec = &api.GroupSpec{Wishes: api.Wishes{Uses: api.Amounts{{Of: "storage", N: uses}}}}
		return h
	}
	a := aNode("a").cpusHeld(1)
	for _, tc := range []struct {
		name string
		in   *Snapshot
		want string
	}{
		{"exactly what there is", storage(cluster(a, b, c).heldBy(serve(20, 0)).pending(gang("train", 4, gpus(1)).uses("storage", 80))), "train:b+c"},
		{"one more waits for who uses it", storage(cluster(a, b, c).heldBy(serve(21, 2*time.Hour)).pending(gang("train", 4, gpus(1)).uses("storage", 80))), "train:+2h"},
		{"more than there is never starts", storage(cluster(a, b, c).pending(gang("train", 4, gpus(1)).uses("storage", 120))), "train:-"},
		{"nothing of one that is not known", storage(cluster(a, b, c).pending(gang("train", 4, gpus(1)).uses("storrage", 1))), "train:-"},
		{
			"who starts now takes its part",
			storage(cluster(a, b, c).pending(gang("one", 2, gpus(1)).uses("storage", 100).runs(time.Hour), gang("two", 2, gpus(1)).uses("storage", 100), gang("three", 2, gpus(1)).uses("storage", 70))),
			"one:b two:+1h three:c",
		},
		{
			"each domain of a level has its own",
			func() *Snapshot {
				s := cluster(b.label("rack", "r1"), c.label("rack", "r2"), aNode("d").gpus(2, 72)).
					pending(gang("a", 2, gpus(1)).uses("uplink", 6), gang("b", 3, gpus(1)).uses("uplink", 4))
				s.Levels = []api.Level{{Name: "rack", Label: "rack"}}
				s.Capacities = []*api.Capacity{{Name: "uplink", Level: "rack", Total: 10}}
				return s
			}(),
			"a:b+c b:+24h",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.in.Policy.Order = OrderFIFO
			if got := outcomes(tc.in, Plan(tc.in, epoch)); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}

	in := storage(cluster(a, b, c).heldBy(serve(20, 0)))
	h := holding("train", 0, 1, b, b, c, c)
	h.Spec = &api.GroupSpec{Wishes: api.Wishes{Uses: api.Amounts{{Of: "storage", N: 80}}}}
	in.heldBy(h)
	got := CapacityUses(in, epoch)
	if len(got) != 1 || got[0].Used != 340 || got[0].Headroom != 0 || !slices.Equal(got[0].By, []string{"serve", "train"}) {
		t.Errorf("in use %+v", got)
	}
	never := Never(in, gang("train", 4, gpus(1)).uses("storage", 120).request.Spec)
	if never == nil || never.Text != "asks for 4 × 120 MiB/s = 480 MiB/s of storage, which has 350 MiB/s: 130 MiB/s too much" || never.Missing != "130 MiB/s" {
		t.Errorf("refused with %+v", never)
	}
}

func TestTimeReasons(t *testing.T) {
	n8 := aNode("n1").cpu(8_000).cpusHeld(4)
	g := aNode("g1").gpus(8, 72)
	line := cluster(n8).heldBy(holding("j1", time.Hour, 4, n8)).
		pending(gang("big", 1, cpus(8)).runs(time.Hour), gang("long", 1, cpus(1)).runs(90*time.Minute))
	reserved := func(r api.Reservation, rs ...requestBuilder) *Snapshot {
		s := cluster(g).pending(rs...)
		if r.Name = "r"; r.Count == 0 {
			r.Nodes = []string{"g1"}
		}
		s.Reservations = []*api.Reservation{&r}
		return s
	}
	soon := api.Reservation{Start: epoch.Add(time.Hour), End: epoch.Add(3 * time.Hour), Tenant: "mine"}
	lacking := reserved(
		api.Reservation{Start: epoch.Add(-time.Hour), End: epoch.Add(3 * time.Hour), Tenant: "mine", Count: 2},
		gang("a", 2, gpus(1)).strategy(api.StrictSpread).in("r").tenant("mine").runs(time.Hour),
	)
	lacking.Nodes = append(lacking.Nodes, new(aNode("g2").gpus(2, 72).notReady("silent").node))
	storage := cluster(g, n8).heldBy(func() Holder {
		h := holding("serve", time.Hour, 4, n8)
		h.Spec = &api.GroupSpec{Wishes: api.Wishes{Uses: api.Amounts{{Of: "storage", N: 40}}}}
		return h
	}()).pending(gang("a", 4, gpus(1)).uses("storage", 80), gang("b", 4, gpus(1)).uses("storage", 120), gang("c", 1, gpus(1)).uses("strage", 1))
	storage.Capacities = []*api.Capacity{{Name: "storage", Total: 350, Overhead: 10, Unit: "MiB/s"}}
	for _, tc := range []struct {
		name string
		in   *Snapshot
		of   string
		want []api.Reason
	}{
		{"what would delay the head says whom, when and where", line, "long", []api.Reason{{
			Code: api.ReasonOrder, Text: "would fit now, but is expected to run for 1h30m and would delay big (planned for 2026-01-02 04:04:05 UTC on n1)",
			Blockers: []string{"big"}, Frees: "a time limit that ends before, or the start of big",
		}}},
		{"the head says what is missing", line, "big", []api.Reason{{Code: api.ReasonFit, Missing: "4 CPU", Blockers: []string{"j1"}}}},
		{
			"a reservation that begins too soon is named with its end", reserved(soon, gang("a", 1, gpus(1)).runs(2*time.Hour)), "a",
			[]api.Reason{{
				Code: api.ReasonReservation, Text: "g1: reserved for tenant mine (r) from 2026-01-02 04:04:05 UTC to 2026-01-02 06:04:05 UTC, and the request would still run then",
				Blockers: []string{"r"}, Where: "g1", Frees: "a time limit, or an estimate, that ends before, or the end of r at 2026-01-02 06:04:05 UTC",
			}},
		},
		{
			"a number of nodes says how many it has",
			reserved(api.Reservation{Start: epoch.Add(time.Hour), End: epoch.Add(3 * time.Hour), Tenant: "mine", Count: 2}, gang("a", 1, gpus(1)).runs(2*time.Hour)), "a",
			[]api.Reason{{Code: api.ReasonReservation, Text: "g1: reserved for tenant mine (r, which has 1 of 2 nodes) from 2026-01-02 04:04:05 UTC"}},
		},
		{
			"its own reservation that lacks nodes",
			lacking, "a",
			[]api.Reason{
				{Code: api.ReasonReservation, Text: "the reservation r has 1 of 2 nodes and lacks 1"},
				{Code: api.ReasonFit, Text: "needs 2 nodes, one for each bundle (STRICT_SPREAD); 1 node has room for one now; 1 node missing"},
			},
		},
		{
			"maintenance says why",
			reserved(api.Reservation{Start: epoch.Add(-time.Hour), End: epoch.Add(time.Hour), Maintenance: "firmware"}, gang("a", 1, gpus(1))), "a",
			[]api.Reason{{Code: api.ReasonReservation, Text: "g1: under maintenance (r: firmware) until 2026-01-02 04:04:05 UTC"}},
		},
		{
			"a reservation of others", reserved(soon, gang("a", 1, gpus(1)).in("r")), "a",
			[]api.Reason{{Code: api.ReasonReservation, Text: "the reservation r is for tenant mine"}},
		},
		{
			"a reservation that has not begun", reserved(soon, gang("a", 1, gpus(1)).in("r").tenant("mine").runs(time.Hour)), "a",
			[]api.Reason{{Code: api.ReasonReservation, Text: "the reservation r begins at 2026-01-02 04:04:05 UTC"}},
		},
		{
			"a reservation that is too short", reserved(soon, gang("a", 1, gpus(1)).in("r").tenant("mine")), "a",
			[]api.Reason{{Code: api.ReasonReservation, Text: "is expected to run for 24h (nothing is known of its time: 24h from its start are assumed), and the reservation r has 2h left", Frees: "a time limit of at most 2h"}},
		},
		{
			"a reservation that is not there", reserved(soon, gang("a", 1, gpus(1)).in("s")), "a",
			[]api.Reason{{Code: api.ReasonReservation, Text: `there is no reservation "s"`}},
		},
		{
			"a capacity in use names who uses it", storage, "a",
			[]api.Reason{{
				Code: api.ReasonCapacity, Text: "asks for 320 MiB/s of storage; 50 MiB/s of 350 MiB/s in use by serve; 20 MiB/s missing",
				Blockers: []string{"serve"}, Need: "320 MiB/s", Have: "300 MiB/s", Missing: "20 MiB/s",
			}},
		},
		{
			"more than a capacity has", storage, "b",
			[]api.Reason{{Code: api.ReasonNeverFits, Text: "asks for 4 × 120 MiB/s = 480 MiB/s of storage, which has 350 MiB/s: 130 MiB/s too much"}},
		},
		{
			"a capacity that is not there", storage, "c",
			[]api.Reason{{Code: api.ReasonNeverFits, Text: `no capacity is named "strage"; there are storage`}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.in.Policy.Order = OrderFIFO
			got := decisionFor(Plan(tc.in, epoch), tc.of)
			if got.Bundles != nil || len(got.Reasons) != len(tc.want) {
				t.Fatalf("reasons %+v (placed %v), want %+v", got.Reasons, got.Bundles, tc.want)
			}
			for i, want := range tc.want {
				checkReason(t, got.Reasons[i], want)
			}
		})
	}
}

func TestForecast(t *testing.T) {
	n8 := aNode("n1").cpu(8_000).cpusHeld(8)
	llm := holding("llm-b", 2*time.Hour, 4, n8)
	llm.Spec = &api.GroupSpec{Wishes: api.Wishes{TimeLimit: unit.Duration(3 * time.Hour)}}
	in := cluster(n8).heldBy(llm, holding("over", -time.Minute, 4, n8)).
		pending(gang("big", 1, cpus(8)).runs(time.Hour), gang("next", 1, cpus(8)))
	in.Policy.Order = OrderFIFO
	r := NewPlanner().Plan(in, epoch)
	f, ok := r.Forecast("next")
	if !ok || !f.Start.Equal(epoch.Add(3*time.Hour)) || !slices.Equal(f.After, []string{"big", "llm-b", "over"}) || !slices.Equal(f.Nodes, []string{"n1"}) {
		t.Errorf("forecast %+v, %v", f, ok)
	}
	want := []string{
		"big ends by 2026-01-02 06:04:05 UTC: its expected end",
		"llm-b ends by 2026-01-02 05:04:05 UTC: its own time limit",
		"over ends by 2026-01-02 03:05:05 UTC: it is past its expected end of 2026-01-02 03:03:05 UTC: 2m more are assumed",
		"next runs for 24h: nothing is known of its time: 24h from its start are assumed",
	}
	if !slices.Equal(f.Assumptions, want) {
		t.Errorf("assumptions\n%s\nwant\n%s", strings.Join(f.Assumptions, "\n"), strings.Join(want, "\n"))
	}
	if _, ok := r.Forecast("nobody"); ok {
		t.Error("a forecast for nobody")
	}
}

// A plan that is kept is made anew where a node of it takes nothing any more, and a node
// that joins is used at once.
func TestPlanFollowsTheNodes(t *testing.T) {
	a, b := aNode("a").cpu(8_000).cpusHeld(8), aNode("b").cpu(8_000).cpusHeld(8)
	in := cluster(a, b).heldBy(holding("x", time.Hour, 8, a), holding("y", 2*time.Hour, 8, b)).pending(gang("r", 1, cpus(8)), gang("wide", 1, cpus(16)))
	in.Policy.Order = OrderFIFO
	p := NewPlanner()
	p.PlanAge = 24 * time.Hour
	see := func(want string) {
		t.Helper()
		if got := outcomes(in, p.Plan(in, epoch).All()); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	see("r:+1h wide:-")
	if f, _ := p.Plan(in, epoch).Forecast("r"); !slices.Equal(f.Nodes, []string{"a"}) || !slices.Equal(f.After, []string{"x"}) {
		t.Errorf("forecast %+v", f)
	}
	lost := *in
	lost.Nodes = slices.Clone(in.Nodes)
	lost.Own(0).Ready = false
	in = &lost
	see("r:+2h wide:-")
	more := *in
	joined := aNode("c").cpu(32_000)
	more.Nodes = append(slices.Clone(in.Nodes), &joined.node)
	in = &more
	see("r:c wide:c")
}

// What a quota refuses by now has no planned start any more, and is in nobody's way.
func TestPausedQueueHasNoPlan(t *testing.T) {
	n := aNode("n").cpu(8_000).cpusHeld(4)
	first, second := gang("first", 1, cpus(8)).of("", "q"), gang("second", 1, cpus(4)).of("", "r").runs(24*time.Hour)
	in := cluster(n).heldBy(holding("x", time.Hour, 4, n)).pending(first, second).queues(queue("q", ""), queue("r", ""))
	in.Policy.Order = OrderFIFO
	p := NewPlanner()
	p.PlanAge = 24 * time.Hour
	if got := outcomes(in, p.Plan(in, epoch).All()); got != "first:+1h second:+25h" {
		t.Errorf("got %s", got)
	}
	paused := *in
	paused.queues(with(queue("q", ""), func(q *api.Queue) { q.Paused = "upgrade" }), queue("r", ""))
	r := p.Plan(&paused, epoch)
	if got := outcomes(&paused, r.All()); got != "first:- second:n" {
		t.Errorf("with the queue paused: %s", got)
	}
	if f, ok := r.Forecast("first"); ok {
		t.Errorf("a paused request is forecast: %+v", f)
	}
}

// A start that came to nothing leaves all of a reservation to the next one.
func TestReservationAfterAFailedStart(t *testing.T) {
	n := aNode("n1").gpus(8, 72)
	in := cluster(n).pending(gang("a", 1, gpus(8)).tenant("mine").runs(time.Hour), gang("other", 1, gpus(1)).runs(time.Hour))
	in.Reservations = []*api.Reservation{{Name: "r", Start: epoch.Add(-time.Hour), End: epoch.Add(3 * time.Hour), Tenant: "mine", Nodes: []string{"n1"}}}
	p := NewPlanner()
	for range 3 {
		if got := outcomes(in, p.Plan(in, epoch).All()); got != "a:n1 other:+3h" {
			t.Errorf("got %s", got)
		}
	}
	if got := Bookings(in, epoch); len(got) != 1 || !slices.Equal(got[0].Nodes, []string{"n1"}) || got[0].Missing != 0 {
		t.Errorf("bookings %+v", got)
	}
}
