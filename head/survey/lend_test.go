package survey_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/head/survey"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// What the scheduler places within what is lent the state machine takes, one after the
// other: it refuses nothing that would be decided again in the same way.
func TestSchedulerAndStateAgreeOnWhatIsLent(t *testing.T) {
	placed, waited := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(rt)
		s := survey.New(m.store, survey.Seen{})
		for i := range rapid.IntRange(1, 3).Draw(rt, "nodes") {
			m.node(fmt.Sprint("n", i), 4)
		}
		amount := func(what string, most int64) int64 { return 1000 * rapid.Int64Range(0, most).Draw(rt, what) }
		q := []api.Queue{{Name: "a", Tenant: true}, {Name: "aa", Tenant: true, Parent: "a"}, {Name: "b", Tenant: true}, {Name: "q"}, {Name: "aq", Parent: "aa"}}
		for i := range 3 {
			g := amount("guaranteed", 8)
			q[i].Guaranteed, q[i].Lend = api.Amounts{{Of: "gpu", N: g}}, api.Amounts{{Of: "gpu", N: min(g, amount("lend", 8))}}
		}
		m.do(state.KindPutQueues, state.PutQueues{Queues: q})
		for i := range rapid.IntRange(1, 12).Draw(rt, "steps") {
			id := fmt.Sprint("g", i)
			spec := one(rapid.Int64Range(1, 2).Draw(rt, "gpus"))
			spec.Tenant = rapid.SampledFrom([]string{"a", "aa", "b"}).Draw(rt, "tenant")
			spec.Queue = rapid.SampledFrom([]string{"", "q"}).Draw(rt, "queue")
			spec.Preemptible = rapid.IntRange(0, 3).Draw(rt, "preemptible") > 0
			m.do(state.KindCreateGroup, state.CreateGroup{ID: id, Spec: spec})
			switch rapid.IntRange(0, 4).Draw(rt, "also") {
			case 0:
				m.do(state.KindRemoveGroup, state.RemoveGroup{Group: fmt.Sprint("g", rapid.IntRange(0, i).Draw(rt, "gone")), Why: "w"})
			case 1:
				states := []api.NodeState{api.NodeReady, api.NodeSuspect}
				m.do(state.KindSetNodeState, state.SetNodeState{ID: "n0", State: rapid.SampledFrom(states).Draw(rt, "state"), Why: "w"})
			}
			for _, d := range schedule.NewPlanner().Plan(s.Snapshot(m.store.View(), 0), time.Unix(0, 0)).Decisions {
				if d.Bundles == nil {
					waited++
					continue
				}
				placed++
				if ref, refused := m.do(state.KindPlaceGroup, state.PlaceGroup{Group: d.Group, Placement: d.Bundles}).(*state.Refused); refused {
					rt.Fatalf("%s: %s", d.Group, ref.Text)
				}
			}
		}
	})
	if placed == 0 || waited == 0 {
		t.Errorf("%d placed, %d waited; the property proved nothing", placed, waited)
	}
}
