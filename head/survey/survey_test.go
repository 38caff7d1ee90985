package survey_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/head/survey"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// machine applies commands to a store.
type machine struct {
	t     interface{ Fatalf(string, ...any) }
	store *state.Store
	index uint64
}

func newMachine(t interface{ Fatalf(string, ...any) }) *machine {
	s, err := state.New()
	if err != nil {
		t.Fatalf("%v", err)
	}
	m := &machine{t: t, store: s}
	m.do(state.KindCreateCluster, state.CreateCluster{Cluster: "c", Life: "00000000"})
	return m
}

func (m *machine) do(kind state.Kind, body any) any {
	data, err := state.Encode(kind, int64(m.index+1)*1e9, body)
	if err != nil {
		m.t.Fatalf("%v", err)
	}
	m.index++
	r, err := m.store.Apply(m.index, 1, data)
	if err != nil {
		m.t.Fatalf("%v", err)
	}
	return r
}

func (m *machine) node(id string, gpus int) {
	info := wire.NodeInfo{Name: id, CPU: 8000, Memory: 1 << 34, BootID: "b", Session: "s", Level: 1}
	for i := range gpus {
		info.GPUs = append(info.GPUs, api.GPU{UUID: fmt.Sprintf("%s-%d", id, i), Usable: 1 << 30, Total: 1 << 30})
	}
	m.do(state.KindRegisterNode, state.RegisterNode{ID: id, Info: info, Seq: m.index})
}

func one(gpus int64) api.GroupSpec {
	return api.GroupSpec{Bundles: []api.Bundle{{Resources: api.Resources{GPUs: gpus, CPU: 100}}}, Strategy: api.Pack}
}

// What follows the state sees what somebody sees who looks for the first time.
func TestFollowsTheState(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(rt)
		said := map[string][]api.GPU{}
		seen := survey.Seen{Devices: func(node string) []api.GPU { return said[node] }}
		follower := survey.New(m.store, seen)
		group := func() string { return fmt.Sprintf("g%d", rapid.IntRange(0, 5).Draw(rt, "group")) }
		node := func() string { return fmt.Sprintf("n%d", rapid.IntRange(0, 3).Draw(rt, "node")) }
		rt.Repeat(map[string]func(*rapid.T){
			"node": func(*rapid.T) { m.node(node(), 2) },
			"state": func(*rapid.T) {
				m.do(state.KindSetNodeState, state.SetNodeState{ID: node(), State: api.NodeSuspect, Why: "silent"})
			},
			"submit": func(rt *rapid.T) {
				m.do(state.KindCreateGroup, state.CreateGroup{ID: group(), Spec: one(int64(rapid.IntRange(1, 2).Draw(rt, "gpus")))})
			},
			"place": func(rt *rapid.T) {
				n := node()
				uuid := fmt.Sprintf("%s-%d", n, rapid.IntRange(0, 1).Draw(rt, "device"))
				m.do(state.KindPlaceGroup, state.PlaceGroup{Group: group(), Placement: []api.Placed{{Node: n, Devices: []string{uuid}}}})
			},
			"release": func(*rapid.T) { m.do(state.KindReleaseGroup, state.ReleaseGroup{Group: group(), Why: "w"}) },
			"remove":  func(*rapid.T) { m.do(state.KindRemoveGroup, state.RemoveGroup{Group: group(), Why: "w"}) },
			"health": func(rt *rapid.T) {
				n := node()
				said[n] = []api.GPU{{UUID: n + "-0", Health: rapid.SampledFrom([]string{"ok", "bad"}).Draw(rt, "health")}}
			},
			"declare": func(rt *rapid.T) {
				n := int64(rapid.IntRange(0, 3).Draw(rt, "n"))
				limit := api.Amounts{{Of: "gpu", N: 1000 * n}}
				m.do(state.KindPutQueues, state.PutQueues{Whole: true, Queues: []api.Queue{{Name: "default", Tenant: true, Limit: limit}}})
				m.do(state.KindPutCapacities, state.PutCapacities{Capacities: []api.Capacity{{Name: "nfs", Total: n}}})
				m.do(state.KindPutSettings, state.PutSettings{Levels: &[]api.Level{{Name: "rack", Label: fmt.Sprint("l", n)}}})
				m.do(state.KindPutLinks, state.PutLinks{Links: []api.Link{{A: "n0", B: fmt.Sprint("n", n), Healthy: n > 1, Checked: time.Unix(n, 0)}}})
				r := api.Reservation{Name: fmt.Sprint("r", n), Count: 1, Tenant: "default", End: time.Unix(n+1, 0)}
				m.do(state.KindPutReservation, state.PutReservation{Reservation: r, Remove: rapid.Bool().Draw(rt, "remove")})
			},
			"look": func(*rapid.T) { follower.Snapshot(m.store.View(), 0) },
			"": func(rt *rapid.T) {
				v := m.store.View()
				got, want := follower.Snapshot(v, 0), survey.New(m.store, seen).Snapshot(v, 0)
				if !reflect.DeepEqual(got, want) {
					rt.Fatalf("at index %d the follower sees\n%+v, a newcomer\n%+v", v.Index(), got, want)
				}
			},
		})
	})
}

// What no entry touched is the same pointer, by which a planner knows it.
func TestUnchangedIsTheSame(t *testing.T) {
	m := newMachine(t)
	for i := range 3 {
		m.node(fmt.Sprintf("n%d", i), 2)
	}
	m.do(state.KindCreateGroup, state.CreateGroup{ID: "a", Spec: one(1)})
	m.do(state.KindCreateGroup, state.CreateGroup{ID: "b", Spec: one(1)})
	s := survey.New(m.store, survey.Seen{})
	before := s.Snapshot(m.store.View(), 0)
	m.do(state.KindPlaceGroup, state.PlaceGroup{Group: "a", Placement: []api.Placed{{Node: "n1", Devices: []string{"n1-0"}}}})
	after := s.Snapshot(m.store.View(), 0)
	if before.Nodes[0] != after.Nodes[0] || before.Nodes[2] != after.Nodes[2] || before.Pending[1] != after.Pending[0] {
		t.Error("what was not touched was made again")
	}
	if before.Nodes[1] == after.Nodes[1] || after.Nodes[1].GPUs[0].Free != 0 || before.Nodes[1].GPUs[0].Free == 0 {
		t.Error("the node that was taken is not told as such, or the former snapshot was changed")
	}
	if len(after.Pending) != 1 || len(after.Holders) != 1 || after.Holders[0].Group != "a" {
		t.Errorf("%d wait, holders %+v", len(after.Pending), after.Holders)
	}
	older := m.store.View()
	m.do(state.KindRemoveGroup, state.RemoveGroup{Group: "b"})
	s.Snapshot(m.store.View(), 0)
	if n := len(s.Snapshot(older, 0).Pending); n != 1 {
		t.Errorf("an older view shows %d pending groups", n)
	}
}

// What was asked for lately is the mix, whether it still waits or has long ended; few
// requests more or less of many are the same mix.
func TestMixIsWhatWasAskedFor(t *testing.T) {
	m := newMachine(t)
	s := survey.New(m.store, survey.Seen{})
	if mix := s.Snapshot(m.store.View(), 0).Mix; mix != nil {
		t.Errorf("nobody asked for anything: %+v", mix)
	}
	for i := range 100 {
		id := fmt.Sprint("g", i)
		m.do(state.KindCreateGroup, state.CreateGroup{ID: id, Spec: one(4)})
		m.do(state.KindRemoveGroup, state.RemoveGroup{Group: id, Why: "w"})
	}
	before := s.Snapshot(m.store.View(), 0).Mix
	if len(before) != 2 || before[0].Bundle.GPUs != 4 || before[0].Weight < 3*before[1].Weight {
		t.Fatalf("%+v", before)
	}
	m.do(state.KindCreateGroup, state.CreateGroup{ID: "one", Spec: one(4)})
	after := s.Snapshot(m.store.View(), 0).Mix
	if &before[0] != &after[0] {
		t.Errorf("one more request of 100 is another mix: %+v", after)
	}
	for i := range 50 {
		m.do(state.KindCreateGroup, state.CreateGroup{ID: fmt.Sprint("two", i), Spec: one(2)})
	}
	if mix := s.Snapshot(m.store.View(), 0).Mix; len(mix) != 3 || mix[2].Bundle.GPUs != 1 && mix[2].Bundle.GPUs != 2 {
		t.Errorf("%+v", mix)
	}
}
