package state

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// What is not lent stays free, though two placements were decided beside each other that
// each for itself would leave it.
func TestNotLentTwice(t *testing.T) {
	cpu := func(n int64) api.Amounts { return api.Amounts{{Of: "cpu", N: 1000 * n}} }
	m := newMachine(t)
	m.node("n1", 0) // 8 CPUs
	m.node("n2", 0)
	m.ok(KindPutQueues, PutQueues{Queues: []api.Queue{
		{Name: "org", Tenant: true, Guaranteed: cpu(6), Lend: cpu(2)},
		{Name: "owner", Tenant: true, Parent: "org", Guaranteed: cpu(3), Lend: cpu(0)},
		{Name: "guest", Tenant: true},
	}})
	group := func(id, tenant string, cpus int64, preemptible bool) {
		s := api.GroupSpec{Tenant: tenant, Wishes: api.Wishes{Preemptible: preemptible}}
		for range cpus {
			s.Bundles = append(s.Bundles, api.Bundle{Resources: api.Resources{CPU: 1000}})
		}
		m.ok(KindCreateGroup, CreateGroup{ID: id, Spec: s})
	}
	group("a", "guest", 6, true)
	group("b", "guest", 7, true)
	group("b2", "guest", 6, true)
	group("c", "guest", 1, true)
	group("own", "owner", 3, false)
	group("sub", "org", 1, true)
	place := func(id, node string, n int64) any {
		return m.do(KindPlaceGroup, PlaceGroup{Group: id, Placement: onNode(node, n)})
	}
	// 16 CPUs, of which 4 are kept: 3 for owner and 1 for the rest of org.
	for i, step := range []struct {
		group, node string
		n           int64
		taken       bool
	}{
		{"a", "n1", 6, true},
		{"b", "n2", 7, false},
		{"b2", "n2", 6, true},
		{"c", "n1", 1, false},  // all the rest is kept
		{"sub", "n1", 1, true}, // org's own
	} {
		ref, refused := place(step.group, step.node, step.n).(*Refused)
		if refused == step.taken {
			t.Fatalf("step %d: %v", i, ref)
		}
	}
	m.ok(KindReleaseGroup, ReleaseGroup{Group: "a", Why: "test"})
	m.ok(KindPlaceGroup, PlaceGroup{Group: "own", Placement: onNode("n1", 3)})
	m.ok(KindPlaceGroup, PlaceGroup{Group: "c", Placement: onNode("n1", 1)}) // nothing is kept any more
	want := m.snapshot()
	if got := replayed(t, m.log, 4, 9); !bytes.Equal(got, want) {
		t.Error("replayed from snapshots, the books differ")
	}

	// Nobody keeps anything any more: nothing is followed.
	m.ok(KindPutQueues, PutQueues{Queues: []api.Queue{{Name: "org", Tenant: true}, {Name: "owner", Tenant: true, Parent: "org"}}})
	for _, a := range m.s.View().Accounts() {
		if _, of := QueueOf(a); !of {
			t.Errorf("%+v", a)
		}
	}
}

// A node that takes nothing is nothing to lend, and what runs there is no more than it was.
func TestLentOfNodesThatTakeWork(t *testing.T) {
	m := newMachine(t)
	for i := range 3 {
		m.node(fmt.Sprint("n", i), 0)
	}
	m.ok(KindPutQueues, PutQueues{Queues: []api.Queue{
		{Name: "owner", Tenant: true, Guaranteed: api.Amounts{{Of: "cpu", N: 8000}}, Lend: api.Amounts{{Of: "cpu", N: 0}}}, {Name: "guest", Tenant: true},
	}})
	for i := range 3 {
		s := api.GroupSpec{Tenant: "guest", Wishes: api.Wishes{Preemptible: true}, Bundles: []api.Bundle{{Resources: api.Resources{CPU: 8000}}}}
		m.ok(KindCreateGroup, CreateGroup{ID: fmt.Sprint("g", i), Spec: s})
	}
	m.ok(KindPlaceGroup, PlaceGroup{Group: "g0", Placement: onNode("n0", 1)})
	m.ok(KindSetNodeState, SetNodeState{ID: "n0", State: api.NodeSuspect, Why: "silent"})
	m.ok(KindPlaceGroup, PlaceGroup{Group: "g1", Placement: onNode("n1", 1)})
	m.refused("conflict", KindPlaceGroup, PlaceGroup{Group: "g2", Placement: onNode("n2", 1)})
}
