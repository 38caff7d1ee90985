package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// twoRoles asks for four bundles of which two are enough, and one that must be there.
func twoRoles(least int64) api.GroupSpec {
	s := api.GroupSpec{Roles: []api.Role{{Name: "worker", Bundles: 4, Min: 2}, {Name: "critic", Bundles: 1}}, Min: least}
	for i := range 5 {
		s.Bundles = append(s.Bundles, api.Bundle{Resources: api.Resources{CPU: 1000 * 1, Memory: 1 << (20 + i)}})
	}
	return s
}

func standsOn(node string, bundles ...int64) []api.Placed {
	var out []api.Placed
	for _, b := range bundles {
		out = append(out, api.Placed{Bundle: b, Node: node})
	}
	return out
}

func TestPlaceFewerOfARole(t *testing.T) {
	for _, tc := range []struct {
		name    string
		least   int64
		bundles []int64
		refusal string // "": placed
	}{
		{"all", 0, []int64{0, 1, 2, 3, 4}, ""},
		{"the minimums", 0, []int64{0, 1, 4}, ""},
		{"any ones of the role", 0, []int64{1, 3, 4}, ""},
		{"below the minimum of a role", 0, []int64{0, 4}, "role worker has 1 bundles, its minimum is 2"},
		{"a role without a minimum is whole", 0, []int64{0, 1, 2, 3}, "role critic has 0 bundles, its minimum is 1"},
		{"below the minimum of the group", 4, []int64{0, 1, 4}, "3 bundles are fewer than the group's minimum of 4"},
		{"a bundle twice", 0, []int64{0, 1, 1, 4}, "bundle 1 stands at position 2"},
		{"out of order", 0, []int64{1, 0, 4}, "bundle 0 stands at position 1"},
		{"none of the group's", 0, []int64{0, 1, 5}, "bundle 5 stands at position 2"},
		{"nothing", 0, nil, "role worker has 0 bundles"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.node("n1", 0)
			m.ok(KindCreateGroup, CreateGroup{ID: "g", Spec: twoRoles(tc.least)})
			r := m.do(KindPlaceGroup, PlaceGroup{Group: "g", Placement: standsOn("n1", tc.bundles...)})
			g := m.s.View().Group("g")
			if tc.refusal != "" {
				if ref, bad := r.(*Refused); !bad || !strings.Contains(ref.Text, tc.refusal) || g.State != api.GroupPending || m.s.View().UseOf("n1").CPU != 0 {
					t.Fatalf("got %v and %s, want refusal %q", r, g.State, tc.refusal)
				}
				return
			}
			if r != nil || g.State != api.GroupPlaced || len(g.Placed) != len(tc.bundles) {
				t.Fatalf("%v: %+v", r, g)
			}
			for i, n := range tc.bundles {
				if h := m.s.View().Hold(g.Placed[i].Hold); g.Number(int64(i)) != n || g.Position(n) != int64(i) || h.Need != twoRoles(0).Bundles[n].Resources {
					t.Errorf("bundle %d at position %d holds %+v", n, i, h)
				}
			}
		})
	}
}

// A job knows the bundles of its group by the numbers that were asked for, whatever was
// chosen of them, and a group that waits again asks for everything again.
func TestChooseAgain(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 0)
	m.node("n2", 0)
	m.ok(KindCreateGroup, CreateGroup{ID: "g", Spec: twoRoles(0), Placement: standsOn("n1", 0, 2, 4)})
	job := func(id string, bundles ...int64) SubmitJob {
		return SubmitJob{ID: id, Spec: api.JobSpec{Name: id, Ranks: int64(len(bundles)), PlacementGroup: "g", Bundles: bundles}, Group: "g"}
	}
	m.refused("conflict", KindSubmitJob, job("left-out", 1))
	m.refused("invalid", KindSubmitJob, job("unknown", 5))
	m.ok(KindSubmitJob, job("a", 4, 2))
	g := m.s.View().Group("g")
	if at := []int64{g.Position(4), g.Position(2), g.Position(1)}; !slices.Equal(at, []int64{2, 1, -1}) {
		t.Fatalf("bundles 4, 2 and 1 stand at %v", at)
	}
	if s := g.AskedSpec(); fmt.Sprint(s) != fmt.Sprint(twoRoles(0)) {
		t.Fatalf("it asked for %+v", s)
	}
	// Moved in one entry it keeps what was chosen; released it keeps in mind, by number, what
	// it had, and may choose anew.
	m.ok(KindReleaseGroup, ReleaseGroup{Group: "g", Placement: []api.Placed{{Node: "n1"}, {Bundle: 1, Node: "n2"}, {Bundle: 2, Node: "n1"}}})
	if g = m.s.View().Group("g"); g.Placed[1].Node != "n2" || g.Number(1) != 2 {
		t.Fatalf("moved: %+v", g)
	}
	m.ok(KindSetNodeState, SetNodeState{ID: "n1", State: api.NodeLost})
	m.ok(KindReleaseGroup, ReleaseGroup{Group: "g", Why: "node n1 lost", Former: 1 << 62})
	g = m.s.View().Group("g")
	if g.Asked != nil || fmt.Sprint(g.Spec) != fmt.Sprint(twoRoles(0)) || len(g.Former) != 1 || g.Former[0].Bundle != 2 {
		t.Fatalf("released: %+v", g)
	}
	m.ok(KindPlaceGroup, PlaceGroup{Group: "g", Placement: standsOn("n2", 0, 1, 2, 3, 4)})
	if g = m.s.View().Group("g"); g.Asked != nil || len(g.Placed) != 5 || g.Position(1) != 1 {
		t.Fatalf("placed whole: %+v", g)
	}
}

// inRoles gives a group of the model roles, mostly.
func (w *world) inRoles(s *api.GroupSpec) {
	if w.draw("roles", 3) == 0 {
		return
	}
	first := int64(1 + w.draw("first role", len(s.Bundles)))
	s.Roles = []api.Role{{Name: "a", Bundles: first, Min: int64(w.draw("min", int(first)+1))}}
	if rest := int64(len(s.Bundles)) - first; rest > 0 {
		s.Roles = append(s.Roles, api.Role{Name: "b", Bundles: rest, Min: 1})
	}
	s.Min = int64(w.draw("group's min", len(s.Bundles)+1))
	w.asked[fmt.Sprintf("g%d", w.jobs)] = *s
}

// wholeRoles counts for itself what a placed group has of each role.
func (w *world) wholeRoles(g *Group) {
	s, ok := w.asked[g.ID]
	if !ok {
		return
	}
	if int64(len(g.Placed)) < s.Min {
		w.t.Fatalf("P1: group %s holds %d bundles, it wants %d", g.ID, len(g.Placed), s.Min)
	}
	have := map[int64]bool{}
	for i := range g.Placed {
		n := g.Number(int64(i))
		have[n] = true
		if h := w.s.View().Hold(g.Placed[i].Hold); h.Need != s.Bundles[n].Resources {
			w.t.Fatalf("P1: bundle %d of group %s holds %+v", n, g.ID, h.Need)
		}
	}
	first := int64(0)
	for _, r := range s.Roles {
		n := int64(0)
		for k := range r.Bundles {
			if have[first+k] {
				n++
			}
		}
		first += r.Bundles
		if n < r.Min || r.Min == 0 && n < r.Bundles {
			w.t.Fatalf("P1: group %s holds %d bundles of role %s: %+v", g.ID, n, r.Name, r)
		}
	}
}
