package state

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

func amounts(kv ...any) api.Amounts {
	var out api.Amounts
	for i := 0; i+1 < len(kv); i += 2 {
		out = out.With(kv[i].(string), int64(kv[i+1].(int)))
	}
	return out
}

// ask submits a job of so many ranks with a GPU each.
func (m *machine) ask(id, tenant, queue string, ranks int, change func(*api.GroupSpec)) {
	m.t.Helper()
	gs := api.GroupSpec{Name: id, Tenant: tenant, Queue: queue}
	for range ranks {
		gs.Bundles = append(gs.Bundles, api.Bundle{Resources: api.Resources{CPU: 1000, GPUs: 1}})
	}
	if change != nil {
		change(&gs)
	}
	spec := api.JobSpec{Name: id, Ranks: int64(ranks), Tenant: tenant, Queue: queue, Command: []string{"true"}}
	m.ok(KindSubmitJob, SubmitJob{ID: id, Spec: spec, Group: "pg-" + id, GroupSpec: &gs})
}

// at places bundles on a node's devices, from one on.
func at(node string, device, n int) []api.Placed {
	var out []api.Placed
	for i := range n {
		out = append(out, api.Placed{Bundle: int64(i), Node: node, Devices: []string{fmt.Sprintf("%s-gpu-%d", node, device+i)}})
	}
	return out
}

func (m *machine) gpus(name string) int64 {
	a := m.s.View().QueueAccount(name)
	if a == nil {
		return 0
	}
	n, _ := a.Charged.Get("gpu")
	return n
}

func (m *machine) finish(job string, s api.JobState) {
	m.t.Helper()
	zero := int64(0)
	j := m.s.View().Job(job)
	c := Supervise{Job: job, Attempt: -1, State: s, ExitCode: &zero}
	if last := j.Last(); last != nil {
		c.Attempt = last.Number
		if last.Ended == 0 {
			c.End = &AttemptEnd{}
		}
	}
	m.ok(KindSupervise, c)
}

// The whole path is charged in the entry that places, and nothing any more in the one that
// releases, whoever still runs.
func TestQuotaBooks(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 8)
	m.ok(KindPutQueues, PutQueues{Queues: []api.Queue{
		{Name: "science", Tenant: true, Limit: amounts("gpu", 6000)},
		{Name: "nlp", Parent: "science", Tenant: true, Limit: amounts("gpu", 4000)},
		{Name: "short", Parent: "nlp"},
		{Name: "vision", Parent: "science", Tenant: true},
	}})
	m.ask("a", "nlp", "short", 3, nil)
	m.ask("b", "nlp", "default", 2, nil)
	m.ask("c", "vision", "default", 4, nil)
	m.ask("d", "vision", "default", 3, nil)
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-a", Placement: at("n1", 0, 3)})
	for name, want := range map[string]int64{"short": 3000, "nlp": 3000, "science": 3000, "vision": 0} {
		if got := m.gpus(name); got != want {
			t.Errorf("%s is charged %d, want %d", name, got, want)
		}
	}
	// The state machine stands by each limit of the path, whatever a leader planned.
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "pg-b", Placement: at("n1", 3, 2)}) // nlp: 5 of 4
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "pg-c", Placement: at("n1", 3, 4)}) // science: 7 of 6
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-d", Placement: at("n1", 3, 3)})
	if got := m.gpus("science"); got != 6000 {
		t.Errorf("science is charged %d", got)
	}
	// An end gives the charge back once, in its entry, also while processes still run.
	m.start("a", "n1", 3, -1)
	m.finish("a", api.Failed)
	if m.gpus("nlp") != 0 || m.gpus("short") != 0 || m.gpus("science") != 3000 || m.s.View().UseOf("n1").CPU != 6000 {
		t.Errorf("nlp %d, short %d, science %d, node %d", m.gpus("nlp"), m.gpus("short"), m.gpus("science"), m.s.View().UseOf("n1").CPU)
	}
	m.ok(KindStopJob, StopJob{Job: "a"})
	for _, a := range m.s.View().AllocsOf("a") {
		m.facts("n1", wire.AllocEvent{Alloc: a.ID, Seq: 1, Kind: wire.EventGone})
	}
	if m.gpus("science") != 3000 {
		t.Errorf("the quota was credited twice: %d", m.gpus("science"))
	}
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-b", Placement: at("n1", 0, 2)})
	// A limit below what is charged takes nothing away and lets nothing more in.
	m.ok(KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "science", Tenant: true, Limit: amounts("gpu", 1000)}}})
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "pg-c", Placement: at("n1", 6, 4)})
	m.finish("d", api.Succeeded)
	if m.gpus("science") != 2000 || m.gpus("vision") != 0 {
		t.Errorf("science %d, vision %d", m.gpus("science"), m.gpus("vision"))
	}
}

// A node of a gang at its tenant's limit is lost: the gang moves, for what it leaves is not
// charged beside what it takes.
func TestMoveAtTheLimit(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 2)
	m.node("n2", 2)
	m.ok(KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "nlp", Tenant: true, Limit: amounts("gpu", 2000)}}})
	m.ask("a", "nlp", "default", 2, nil)
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-a", Placement: at("n1", 0, 2)})
	m.ok(KindSetNodeState, SetNodeState{ID: "n1", State: api.NodeLost})
	m.ok(KindReleaseGroup, ReleaseGroup{Group: "pg-a", Placement: at("n2", 0, 2), Why: "n1 is lost"})
	if g := m.s.View().Group("pg-a"); g.State != api.GroupPlaced || m.gpus("nlp") != 2000 {
		t.Errorf("%s, charged %d", g.State, m.gpus("nlp"))
	}
}

func TestModelsAreCounted(t *testing.T) {
	m := newMachine(t)
	info := wire.NodeInfo{Name: "n1", BootID: "b", CPU: 8000, Memory: 1 << 34, Level: 1, Session: "s"}
	for i, model := range []string{"H100", "H100", "A100"} {
		info.GPUs = append(info.GPUs, api.GPU{UUID: fmt.Sprintf("n1-gpu-%d", i), Model: model, Usable: 1 << 30})
	}
	m.ok(KindRegisterNode, RegisterNode{ID: "n1", Info: info})
	m.ok(KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "nlp", Tenant: true, Limit: amounts("gpu:H100", 1500)}}})
	m.ask("a", "nlp", "default", 2, nil)
	m.ask("b", "nlp", "default", 1, func(g *api.GroupSpec) { g.Bundles[0].Resources = api.Resources{Share: 500} })
	m.ask("c", "nlp", "default", 1, func(g *api.GroupSpec) { g.Bundles[0].Resources = api.Resources{Share: 501} })
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "pg-a", Placement: at("n1", 0, 2)})
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-a", Placement: at("n1", 1, 2)}) // one of each
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "pg-c", Placement: at("n1", 0, 1)})
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-b", Placement: at("n1", 0, 1)})
	want := amounts("cpu", 2000, "gpu", 2500, "gpu:A100", 1000, "gpu:H100", 1500)
	if got := m.s.View().QueueAccount("nlp").Charged; !slices.Equal(got, want) {
		t.Errorf("charged %v, want %v", got, want)
	}
}

func TestCapacities(t *testing.T) {
	m := newMachine(t)
	for i, rack := range []string{"r1", "r1", "r2", ""} {
		info := wire.NodeInfo{Name: fmt.Sprintf("n%d", i), BootID: "b", CPU: 8000, Memory: 1 << 34, Level: 1, Session: "s", Labels: map[string]string{"rack": rack}}
		m.ok(KindRegisterNode, RegisterNode{ID: info.Name, Info: info})
	}
	m.refused("invalid", KindPutCapacities, PutCapacities{Capacities: []api.Capacity{{Name: "uplink", Level: "rack", Total: 10}}})
	m.ok(KindPutSettings, PutSettings{Levels: &[]api.Level{{Name: "rack", Label: "rack"}}})
	m.ok(KindPutCapacities, PutCapacities{Capacities: []api.Capacity{
		{Name: "uplink", Level: "rack", Total: 10}, {Name: "storage", Total: 350, Overhead: 10, Unit: "MiB/s"},
	}})
	group := func(id string, bundles int, uses api.Amounts) {
		gs := api.GroupSpec{Name: id, Wishes: api.Wishes{Uses: uses}}
		for range bundles {
			gs.Bundles = append(gs.Bundles, api.Bundle{Resources: api.Resources{CPU: 1000}})
		}
		m.ok(KindCreateGroup, CreateGroup{ID: id, Spec: gs})
	}
	on := func(nodes ...string) []api.Placed {
		var out []api.Placed
		for i, n := range nodes {
			out = append(out, api.Placed{Bundle: int64(i), Node: n})
		}
		return out
	}
	group("train", 4, amounts("storage", 80))
	group("serve", 1, amounts("storage", 20))
	group("greedy", 4, amounts("storage", 120))
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "greedy", Placement: on("n0", "n1", "n2", "n3")}) // 480 of 340
	m.ok(KindPlaceGroup, PlaceGroup{Group: "train", Placement: on("n0", "n1", "n2", "n3")})
	m.ok(KindPlaceGroup, PlaceGroup{Group: "serve", Placement: on("n0")}) // 320 + 20 + 10 exactly
	group("one", 1, amounts("storage", 1))
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "one", Placement: on("n0")})
	group("up", 2, amounts("uplink", 6))
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "up", Placement: on("n0", "n1")}) // both below one rack's uplink
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "up", Placement: on("n0", "n3")}) // n3 is in no rack
	m.ok(KindPlaceGroup, PlaceGroup{Group: "up", Placement: on("n1", "n2")})
	v := m.s.View()
	for _, rack := range []string{"r1", "r2"} {
		if got, _ := v.CapacityAccount("uplink", rack).Charged.Get("uplink"); got != 6 {
			t.Errorf("rack %s: %d", rack, got)
		}
	}
	m.refused("conflict", KindPutCapacities, PutCapacities{Remove: []string{"uplink"}})
	m.refused("conflict", KindPutSettings, PutSettings{Levels: &[]api.Level{}})
	// Another label for the level: what runs is charged where it stands now.
	m.ok(KindPutSettings, PutSettings{Levels: &[]api.Level{{Name: "rack", Label: "room"}}})
	if got, _ := m.s.View().CapacityAccount("uplink", "").Charged.Get("uplink"); got != 12 {
		t.Errorf("after the change: %d", got)
	}
	m.ok(KindRemoveGroup, RemoveGroup{Group: "up"})
	m.ok(KindPutCapacities, PutCapacities{Remove: []string{"uplink"}})
	m.ok(KindPutSettings, PutSettings{Levels: &[]api.Level{}})
}

func TestQueueTree(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 2)
	tree := PutQueues{Queues: []api.Queue{{Name: "a", Tenant: true}, {Name: "q", Parent: "a"}}, By: "ann"}
	m.ok(KindPutQueues, tree)
	index := m.s.View().Queue("a").Index
	m.ok(KindPutQueues, tree) // nothing changes
	if m.s.View().Queue("a").Index != index {
		t.Error("an equal declaration counts as a change")
	}
	for name, c := range map[string]PutQueues{
		"below a queue":  {Queues: []api.Queue{{Name: "x", Parent: "q"}}},
		"below nothing":  {Queues: []api.Queue{{Name: "x", Parent: "y"}}},
		"below itself":   {Queues: []api.Queue{{Name: "b", Tenant: true, Parent: "c"}, {Name: "c", Tenant: true, Parent: "b"}}},
		"parent removed": {Remove: []string{"a"}},
		"without a name": {Queues: []api.Queue{{}}},
	} {
		if r, bad := m.do(KindPutQueues, c).(*Refused); !bad || r.Code != "invalid" {
			t.Errorf("%s: %v", name, r)
		}
	}
	m.refused("conflict", KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "a", Tenant: true, Weight: new(int64)}}, If: index + 1})
	m.ok(KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "a", Tenant: true, Weight: new(int64)}}, If: index})
	m.refused("conflict", KindPutQueues, PutQueues{Remove: []string{"a", "q"}, If: index})

	m.refused("invalid", KindSubmitJob, SubmitJob{ID: "j", Spec: api.JobSpec{Name: "j", Tenant: "nobody"}, Group: "pg-j", GroupSpec: &api.GroupSpec{Tenant: "nobody"}})
	m.ask("j", "a", "q", 1, nil)
	m.refused("conflict", KindPutQueues, PutQueues{Remove: []string{"q"}}) // it waits there
	m.finish("j", api.Failed)
	m.ok(KindPutQueues, PutQueues{Remove: []string{"q"}})
	m.ask("k", "a", "default", 1, nil)
	m.refused("conflict", KindPutQueues, PutQueues{Remove: []string{"a"}}) // also as the last of all
	m.finish("k", api.Failed)
	m.ok(KindPutQueues, PutQueues{Whole: true, Queues: []api.Queue{{Name: "b", Tenant: true}}})
	if qs := m.s.View().Queues(); len(qs) != 1 || qs[0].Name != "b" {
		t.Errorf("%+v", qs)
	}
	var said []string
	for _, e := range m.s.View().RecentEvents("queue/a", 10) {
		said = append(said, e.Type+" "+e.Text)
	}
	if got := strings.Join(said, "; "); got != "queue-created tenant (by ann); queue-changed tenant; queue-removed on request" {
		t.Errorf("events: %s", got)
	}
}

// Who nodes are reserved for stays as long as the reservation does, and so does the level
// that it counts in; one that is over keeps nothing.
func TestReservationKeepsWhoItIsFor(t *testing.T) {
	m := newMachine(t)
	now := func(d time.Duration) time.Time { return time.Unix(int64(m.index), 0).Add(d) }
	m.ok(KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "a", Tenant: true}, {Name: "q", Parent: "a"}, {Name: "b", Tenant: true}}})
	m.ok(KindPutSettings, PutSettings{Levels: &[]api.Level{{Name: "rack", Label: "rack"}}})
	put := func(r api.Reservation) { m.ok(KindPutReservation, PutReservation{Reservation: r}) }
	put(api.Reservation{Name: "demo", Queue: "q", Count: 1, Start: now(0), End: now(time.Hour)})
	put(api.Reservation{Name: "rows", Tenant: "b", Count: 1, Level: "rack", Start: now(0), End: now(time.Hour)})
	put(api.Reservation{Name: "over", Tenant: "a", Count: 1, Start: now(-2 * time.Hour), End: now(-time.Hour)})
	m.refused("conflict", KindPutQueues, PutQueues{Remove: []string{"q"}})
	m.refused("conflict", KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "q", Tenant: true}}}) // no queue any more
	m.refused("conflict", KindPutQueues, PutQueues{Remove: []string{"b"}})
	m.refused("conflict", KindPutSettings, PutSettings{Levels: &[]api.Level{}})
	m.ok(KindPutReservation, PutReservation{Reservation: api.Reservation{Name: "demo"}, Remove: true})
	m.ok(KindPutQueues, PutQueues{Remove: []string{"a", "q"}})
	m.ok(KindPutReservation, PutReservation{Reservation: api.Reservation{Name: "rows"}, Remove: true})
	m.ok(KindPutSettings, PutSettings{Levels: &[]api.Level{}})
	m.ok(KindPutQueues, PutQueues{Remove: []string{"b"}})
}

// Work that moves to another tenant with its queue is charged there from that entry on.
func TestQueueMoves(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 2)
	m.ok(KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "a", Tenant: true}, {Name: "b", Tenant: true}, {Name: "q", Parent: "a"}}})
	m.ask("j", "default", "q", 2, nil)
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-j", Placement: at("n1", 0, 2)})
	m.ok(KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "q", Parent: "b"}}})
	if m.gpus("a") != 0 || m.gpus("b") != 2000 || m.gpus("q") != 2000 {
		t.Errorf("a %d, b %d, q %d", m.gpus("a"), m.gpus("b"), m.gpus("q"))
	}
}

func TestHoldAndSuspend(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 4)
	m.ask("a", "default", "default", 2, nil)
	seq := m.s.View().Group("pg-a").Seq
	m.ok(KindParkJob, ParkJob{Job: "a", State: api.Held, Reason: "not yet", By: "ann"})
	v := m.s.View()
	if v.Job("a").State != api.Held || len(v.PendingGroups()) != 0 {
		t.Fatalf("%s, %d wait", v.Job("a").State, len(v.PendingGroups()))
	}
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "pg-a", Placement: at("n1", 0, 2)})
	m.ok(KindParkJob, ParkJob{Job: "a", State: api.Queued})
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-a", Placement: at("n1", 0, 2)})
	gen := m.start("a", "n1", 2, -1)
	m.refused("conflict", KindParkJob, ParkJob{Job: "a", State: api.Suspended}) // it runs
	m.ok(KindDrainJob, DrainJob{Job: "a", Drain: Drain{Kind: DrainSuspend, Reason: "for the demo"}})
	m.ok(KindSupervise, Supervise{Job: "a", Attempt: 0, Generation: gen, End: &AttemptEnd{}, State: api.Recovering})
	m.ok(KindReleaseGroup, ReleaseGroup{Group: "pg-a", Why: "for the demo"})
	v = m.s.View()
	g := v.Group("pg-a")
	if v.Job("a").State != api.Suspended || g.Parked == "" || g.Seq != seq || len(v.PendingGroups()) != 0 || v.QueueAccount("default").Charged != nil {
		t.Fatalf("%s %+v", v.Job("a").State, g)
	}
	if g.Ran == 0 || g.Begun != 0 {
		t.Errorf("it ran for %d", g.Ran)
	}
	m.refused("conflict", KindDrainJob, DrainJob{Job: "a", Drain: Drain{Kind: DrainMove}})
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "pg-a", Placement: at("n1", 2, 2)})
	for _, a := range v.AllocsOf("a") {
		m.facts("n1", wire.AllocEvent{Alloc: a.ID, Seq: 1, Kind: wire.EventGone})
	}
	m.ok(KindParkJob, ParkJob{Job: "a", State: api.Queued})
	if g := m.s.View().Group("pg-a"); g.Seq != seq || m.s.View().Job("a").State != api.Queued {
		t.Errorf("%+v", g)
	}
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-a", Placement: at("n1", 0, 2)})
	// Placed and not started: it gives back what it holds at once.
	m.ok(KindParkJob, ParkJob{Job: "a", State: api.Suspended, Reason: "again"})
	if left := m.s.View().Holds(); len(left) != 0 {
		t.Errorf("%d holds are left", len(left))
	}
}

func TestEditJob(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 4)
	m.ok(KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "a", Tenant: true}, {Name: "q", Parent: "a"}, {Name: "b", Tenant: true}}})
	m.ask("j", "a", "default", 1, nil)
	index := m.s.View().Job("j").Index
	q, other, prio, limit := "q", "b", int64(7), unit.Duration(time.Hour)
	m.refused("conflict", KindEditJob, EditJob{Job: "j", If: index - 1, Priority: &prio})
	m.refused("invalid", KindEditJob, EditJob{Job: "j", Queue: &q, Tenant: &other}) // q is not b's
	m.ok(KindEditJob, EditJob{Job: "j", If: index, Queue: &q, Priority: &prio, TimeLimit: &limit, By: "ann"})
	j, g := m.s.View().Job("j"), m.s.View().Group("pg-j")
	if j.Spec.Queue != "q" || g.Spec.Queue != "q" || g.Spec.Priority != 7 || g.Spec.TimeLimit != limit || g.Expect != int64(limit) {
		t.Errorf("%+v %+v", j.Spec, g)
	}
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-j", Placement: at("n1", 0, 1)})
	if m.gpus("q") != 1000 || m.gpus("a") != 1000 {
		t.Errorf("q %d, a %d", m.gpus("q"), m.gpus("a"))
	}
	m.refused("conflict", KindEditJob, EditJob{Job: "j", Priority: &prio}) // it holds
}

// What nobody says is expected from the last five runs: nine of ten need no longer.
func TestExpect(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 4)
	expect := func(id, name string) time.Duration {
		m.ok(KindCreateGroup, CreateGroup{ID: id, Spec: api.GroupSpec{Name: name, Bundles: []api.Bundle{{Resources: api.Resources{CPU: 1}}}}})
		return time.Duration(m.s.View().Group(id).Expect)
	}
	if d := expect("g0", "train"); d != 24*time.Hour {
		t.Errorf("without any run: %s", d)
	}
	for i, entries := range []int{90, 10, 20, 30, 40, 50} { // one a second
		id := fmt.Sprintf("j%d", i)
		gs := api.GroupSpec{Name: "train", Bundles: []api.Bundle{{Resources: api.Resources{CPU: 1000}}}}
		m.ok(KindSubmitJob, SubmitJob{ID: id, Spec: api.JobSpec{Name: "train", Ranks: 1, Run: id}, Group: "pg-" + id, GroupSpec: &gs, Placement: []api.Placed{{Node: "n1"}}})
		m.start(id, "n1", 1, -1)
		m.ok(KindSupervise, Supervise{Job: id, Attempt: 0, State: api.Running})
		for m.index < uint64(i*100+100+entries) {
			m.ok(KindRaiseGeneration, RaiseGeneration{})
		}
		m.finish(id, api.Succeeded)
		for m.index < uint64(i*100+200) {
			m.ok(KindRaiseGeneration, RaiseGeneration{})
		}
	}
	d := expect("g1", "train")
	if d < 45*time.Second || d > 55*time.Second {
		t.Errorf("after five runs of up to 50 s: %s; the first, of 90, counts no more", d)
	}
	if d := expect("g2", "other"); d != 24*time.Hour {
		t.Errorf("another name: %s", d)
	}
}

func TestDecay(t *testing.T) {
	week := int64(7 * 24 * time.Hour)
	for _, c := range []struct{ n, elapsed, want int64 }{
		{1000, 0, 1000},
		{1000, week, 500},
		{1000, 2 * week, 250},
		{-1000, week, -500},
		{math.MaxInt64, week, math.MaxInt64/2 + 1},
		{1000, week / 2, 707},
		{1_000_000_000, week / 4, 840_896_415},
		{1, week, 1},
		{1, 100 * week, 0},
		{1000, 64 * week, 0},
	} {
		if got := decay(c.n, c.elapsed, week); got != c.want {
			t.Errorf("%d after %d: %d, want %d", c.n, c.elapsed, got, c.want)
		}
	}
	for _, part := range []int64{1, 3, 7, 1000, 604_800, 1 << 40} {
		want := 1e15 * math.Exp2(-float64(week/part)/float64(week))
		if got := decay(1e15, week/part, week); math.Abs(float64(got)-want) > 1e15/float64(1<<30) {
			t.Errorf("after 1/%d of a half-life: %d, want %.0f", part, got, want)
		}
	}
}

// A small use over a long half-life is not lost, and a constant one comes to rest.
func TestUse(t *testing.T) {
	week := int64(7 * 24 * time.Hour)
	a := Account{Charged: amounts("gpu", 1000)}
	for range 12 * 24 * 7 {
		a.Used, a.At = a.UsedAt(a.At+int64(5*time.Minute), week), a.At+int64(5*time.Minute)
		if a.Used == 0 {
			t.Fatal("five minutes of a GPU are no use")
		}
	}
	want := 1000 * 7 * 24 * 3600 / math.Ln2 / 2 // half of the way to where it comes to rest
	if math.Abs(float64(a.Used)-want) > want/10_000 {
		t.Errorf("after a week: %d, want %.0f", a.Used, want)
	}
	once := Account{Charged: amounts("gpu", 1000)}
	if got := once.UsedAt(week, week); math.Abs(float64(got-a.Used)) > 2000 {
		t.Errorf("in one step %d, in many %d", got, a.Used)
	}
	if got := a.UsedAt(a.At+1000*week, week); math.Abs(float64(got)-2*want) > want/10_000 {
		t.Errorf("in the end: %d, want %.0f", got, 2*want)
	}
	a.Charged = nil
	if got := a.UsedAt(a.At+week, week); math.Abs(float64(got)-want/2) > want/10_000 {
		t.Errorf("a week later: %d, want %.0f", got, want/2)
	}
}

// What is declared survives a snapshot with its times, and a replay makes the same bytes.
func TestDeclaredSurvives(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 2)
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	weight, hour := int64(3), int64(time.Hour)
	m.ok(KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "a", Tenant: true, Weight: &weight, Guaranteed: amounts("gpu", 2000), Access: []string{"faces"}}}})
	m.ok(KindPutReservation, PutReservation{Reservation: api.Reservation{Name: "demo", Start: start, End: start.Add(time.Hour), Tenant: "a", Count: 2}})
	m.ok(KindPutSettings, PutSettings{HalfLife: &hour, Levels: &[]api.Level{{Name: "rack", Label: "rack"}}})
	m.ok(KindPutCapacities, PutCapacities{Capacities: []api.Capacity{{Name: "nfs", Level: "rack", Total: 5}}})
	m.ok(KindPutLinks, PutLinks{Links: []api.Link{{A: "n2", B: "n1", Healthy: true, Checked: start}}})
	m.ok(KindPutLinks, PutLinks{Links: []api.Link{{A: "n1", B: "n2", Checked: start.Add(-time.Hour)}}}) // older news
	m.ask("j", "a", "default", 1, func(g *api.GroupSpec) { g.Deadline, g.TimeLimit = start, unit.Duration(time.Minute) })
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-j", Placement: at("n1", 0, 1)})
	data := m.snapshot()
	other, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Restore(bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	v := other.View()
	r := v.Reservation("demo").Spec
	if !r.Start.Equal(start) || r.Count != 2 || !v.Group("pg-j").Spec.Deadline.Equal(start) || !v.Group("pg-j").Spec.Wishes.Deadline.Equal(start) {
		t.Errorf("%+v", r)
	}
	if s := v.Settings(); s.HalfLifeOfUse() != time.Hour || len(s.Levels) != 1 || v.Capacity("nfs").Spec.Total != 5 {
		t.Errorf("%+v", s)
	}
	if l := v.Links(); len(l) != 1 || !l[0].Spec.Healthy {
		t.Errorf("%+v", l)
	}
	if q := v.Queue("a").Spec; *q.Weight != 3 || q.Access[0] != "faces" || !slices.Equal(q.Guaranteed, amounts("gpu", 2000)) {
		t.Errorf("%+v", q)
	}
	if err := Check(v); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(replayed(t, m.log), data) {
		t.Error("a replay differs")
	}
}

// What may not be preempted stays within the guarantee, other work within the limit alone.
func TestGuarantee(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 6)
	m.ok(KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "nlp", Tenant: true, Guaranteed: amounts("gpu", 2000), Limit: amounts("gpu", 5000)}}})
	spot := func(g *api.GroupSpec) { g.Preemptible = true }
	m.ask("big", "nlp", "default", 3, nil)
	m.ask("spot", "nlp", "default", 3, spot)
	m.ask("small", "nlp", "default", 2, nil)
	m.ask("more", "nlp", "default", 1, spot)
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "pg-big", Placement: at("n1", 0, 3)})
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-spot", Placement: at("n1", 0, 3)})
	m.ok(KindPlaceGroup, PlaceGroup{Group: "pg-small", Placement: at("n1", 3, 2)})
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "pg-more", Placement: at("n1", 5, 1)}) // 6 of 5
	a := m.s.View().QueueAccount("nlp")
	if n, _ := a.Assured.Get("gpu"); n != 2000 || m.gpus("nlp") != 5000 {
		t.Errorf("%d assured of %d", n, m.gpus("nlp"))
	}
}
