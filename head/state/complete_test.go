package state

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// A group that was placed with fewer bundles gets others by their numbers; what it holds
// stays, jobs that run in it are not touched, and whole again it is as if it always had been.
func TestCompleteGroup(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 0)
	m.node("n2", 0)
	m.ok(KindCreateGroup, CreateGroup{ID: "g", Spec: twoRoles(0)})
	m.ok(KindPlaceGroup, PlaceGroup{Group: "g", Placement: standsOn("n1", 1, 3, 4)})
	m.ok(KindSubmitJob, SubmitJob{ID: "j", Spec: api.JobSpec{Name: "j", Ranks: 1, Command: []string{"true"}, PlacementGroup: "g", Bundles: []int64{3}}, Group: "g"})
	m.ok(KindSupervise, Supervise{Job: "j", Attempt: -1, Start: &AttemptStart{
		Ranks: []RankStart{{Rank: 0, Bundle: 1, Node: "n1"}}, MasterAddr: "127.0.0.1", MasterPort: 2,
	}})
	hold := m.s.View().Group("g").Placed[1].Hold
	for _, bad := range [][]api.Placed{nil, standsOn("n2", 1), standsOn("n2", 5), standsOn("n2", 2, 0), standsOn("n2", 0, 0), standsOn("nowhere", 0)} {
		if _, refused := m.do(KindCompleteGroup, CompleteGroup{Group: "g", Placement: bad}).(*Refused); !refused {
			t.Errorf("accepted: %+v", bad)
		}
	}
	held := func(want string) {
		t.Helper()
		v := m.s.View()
		g := v.Group("g")
		var got []int64
		for i := range g.Placed {
			got = append(got, g.Number(int64(i)))
		}
		at := g.Position(3)
		j := v.Job("j").Last()
		if fmt.Sprint(got) != want || g.Placed[at].Hold != hold || g.Placed[at].UsedBy != "j" || j.Ranks[0].Bundle != at || v.AllocsOf("j")[0].Bundles[0] != at {
			t.Errorf("holds %v of which bundle 3 is at %d: %+v; rank %+v", got, at, g.Placed, j.Ranks[0])
		}
	}
	held("[1 3 4]")
	m.ok(KindCompleteGroup, CompleteGroup{Group: "g", Placement: standsOn("n2", 0), Why: "room"})
	held("[0 1 3 4]")
	if !m.s.View().SomeIncomplete() {
		t.Error("it lacks bundle 2 still")
	}
	m.ok(KindCompleteGroup, CompleteGroup{Group: "g", Placement: standsOn("n2", 2), Why: "room"})
	held("[0 1 2 3 4]")
	g := m.s.View().Group("g")
	if g.Asked != nil || m.s.View().SomeIncomplete() || fmt.Sprint(g.Spec.Roles) != fmt.Sprint(twoRoles(0).Roles) {
		t.Errorf("%+v", g)
	}
	m.refused("conflict", KindCompleteGroup, CompleteGroup{Group: "g", Placement: standsOn("n2", 2)})
	want := m.snapshot()
	if got := replayed(t, m.log, 6, len(m.log)-2); !bytes.Equal(got, want) {
		t.Error("replayed from snapshots, the state differs")
	}
}
