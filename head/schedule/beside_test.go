package schedule

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Where further bundles of a group may not go depends on where the others are.
func TestBeside(t *testing.T) {
	s := cluster(
		aNode("a1").label("zone", "a").label("rack", "1"), aNode("a2").label("zone", "a").label("rack", "1"),
		aNode("a3").label("zone", "a").label("rack", "2"), aNode("b1").label("zone", "b").label("rack", "1"), aNode("c1"),
	)
	s.Levels = []api.Level{{Name: "zone", Label: "zone"}, {Name: "rack", Label: "rack"}}
	s.link("a1", "a2", true, 0).link("a1", "a3", false, 0).link("a1", "b1", true, time.Hour)
	wait := unit.Duration(0)
	for _, tc := range []struct {
		name string
		spec api.GroupSpec
		bars string
	}{
		{"anywhere", api.GroupSpec{}, ""},
		{"one rack of one zone", api.GroupSpec{Wishes: api.Wishes{Level: "rack"}}, "a3 b1 c1"},
		{"one zone", api.GroupSpec{Wishes: api.Wishes{Level: "zone"}}, "b1 c1"},
		{"a level that is only preferred", api.GroupSpec{Wishes: api.Wishes{Level: "rack", LevelWait: &wait}}, ""},
		{"a level that nobody knows", api.GroupSpec{Wishes: api.Wishes{Level: "row"}}, "a1 a2 a3 b1 c1"},
		{"one node", api.GroupSpec{Strategy: api.StrictPack}, "a2 a3 b1 c1"},
		{"a node each", api.GroupSpec{Strategy: api.StrictSpread}, "a1"},
		{"whole nodes, whose links are not well", api.GroupSpec{Wishes: api.Wishes{WholeNodes: true}}, "a3 b1 c1"},
		{"so many on each", api.GroupSpec{PerNode: 2}, "a1"},
		{"a node each in one rack", api.GroupSpec{Strategy: api.StrictSpread, Wishes: api.Wishes{Level: "rack"}}, "a1 a3 b1 c1"},
	} {
		var got []string
		for id := range Beside(s, &tc.spec, map[string]bool{"id-a1": true}, epoch) {
			got = append(got, strings.TrimPrefix(id, "id-"))
		}
		slices.Sort(got)
		if bars := strings.Join(got, " "); bars != tc.bars {
			t.Errorf("%s: bars %q, want %q", tc.name, bars, tc.bars)
		}
	}
}
