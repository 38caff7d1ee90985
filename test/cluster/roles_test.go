package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// A group whose roles have minimums starts with what there is room for. Jobs run in it by the
// numbers of the bundles that it asked for, and after a loss it chooses again (P1).
func TestGroupWithRoles(t *testing.T) {
	Run(t, Options{Nodes: four()}, func(c *Cluster) {
		spec := api.GroupSpec{
			Strategy: api.StrictSpread,
			Roles:    []api.Role{{Name: "worker", Bundles: 5, Min: 1}, {Name: "critic", Bundles: 1}},
			Bundles:  slices.Repeat([]api.Bundle{{Resources: api.Resources{CPU: 2000}}}, 6),
		}
		id := c.createGroup(spec)
		numbers := func() (out []int64) {
			g, err := c.Leader().running().control.Group(c.ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			if len(g.Spec.Bundles) != 6 {
				t.Fatalf("it is shown as asking for %d bundles", len(g.Spec.Bundles))
			}
			for _, p := range g.Bundles {
				out = append(out, p.Bundle)
			}
			return out
		}
		if got := numbers(); fmt.Sprint(got) != "[0 1 2 5]" {
			t.Fatalf("on four nodes it holds bundles %v", got)
		}
		js := NewSpec("left-out", 1, Script{Steps: 1, StepTime: ms})
		js.PlacementGroup, js.Resources, js.Bundles = id, api.Resources{}, []int64{4}
		if _, err := c.TrySubmit(js, headapi.Idempotency{}); err == nil {
			t.Error("a job was taken for a bundle that the group does not hold")
		}
		js = NewSpec("a", 2, Script{Steps: 100000, StepTime: 100 * ms})
		js.PlacementGroup, js.Resources, js.Bundles = id, api.Resources{}, []int64{5, 0}
		a := c.Submit(js)
		c.WaitStep(a, 3, time.Minute)
		g := c.View().Group(id)
		if ranks := c.View().Job(a).Last().Ranks; ranks[0].Node != g.Placed[3].Node || ranks[1].Node != g.Placed[0].Node {
			t.Fatalf("ranks %+v of %+v", ranks, g.Placed)
		}
		dead := g.Placed[0].Node
		c.Node(dead).Kill()
		c.Wait("the group is placed with fewer workers", 5*time.Minute, func(v *state.View) bool {
			g := v.Group(id)
			return g.State == api.GroupPlaced && len(g.Placed) < 4
		})
		if got := numbers(); len(got) < 2 || got[0] != 0 || got[len(got)-1] != 5 {
			t.Errorf("on what is left it holds bundles %v", got)
		}
		// When the node is back it gets a worker more, and who runs in it runs on.
		attempts := c.Wait("the job runs on what is left", 5*time.Minute, runs(a, 1)).Job(a).Last().Number
		c.Node(dead).Boot()
		c.Wait("the group has four bundles again", 5*time.Minute, func(v *state.View) bool {
			g := v.Group(id)
			return g.State == api.GroupPlaced && len(g.Placed) == 4
		})
		if n := c.View().Job(a).Last().Number; n != attempts {
			t.Errorf("attempt %d ended for it", attempts)
		}
		c.WaitState(a, 5*time.Minute, api.Running)
	})
}
