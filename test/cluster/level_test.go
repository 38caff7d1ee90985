package cluster

import (
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// TestLevelAfterLoss: a gang that must be in one domain of a level finds the place of a lost
// node there, though another domain comes first in the order of names.
func TestLevelAfterLoss(t *testing.T) {
	Run(t, Options{Nodes: four("b", "a", "a", "a")}, func(c *Cluster) {
		if err := c.control().PutTopology(c.ctx, api.TopologyRequest{Levels: &[]api.Level{{Name: "rack", Label: "class"}}}); err != nil {
			t.Fatal(err)
		}
		spec := training(4, 1000)
		spec.Level, spec.Checkpoint.Interval = "rack", "5steps"
		id := c.Submit(spec)
		c.WaitStep(id, 20, time.Minute)
		racks := func(v *state.View) map[string]bool {
			out := map[string]bool{}
			for _, r := range v.Job(id).Last().Ranks {
				out[v.Node(r.Node).Info.Labels["class"]] = true
			}
			return out
		}
		c.Node(c.View().Job(id).Last().Ranks[2].Node).Kill()
		v := c.Wait("the next attempt runs", time.Minute, runs(id, 1))
		if in := racks(v); len(in) != 1 || !in["a"] {
			t.Errorf("it went on in racks %v", in)
		}
	})
}
