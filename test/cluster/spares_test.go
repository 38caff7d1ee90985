package cluster

import (
	"context"
	"slices"
	"testing"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/control"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// spared is a training job with spare nodes.
func spared(ranks, spares int64) api.JobSpec {
	spec := NewSpec("a", ranks, Script{Steps: 100000, StepTime: 100 * ms})
	spec.Checkpoint.Interval = "5steps"
	spec.SpareNodes = spares
	return spec
}

func (c *Cluster) waitSpares(id string, n int) []string {
	c.T.Helper()
	v := c.Wait("the spare nodes are held", time.Minute, func(v *state.View) bool {
		g := v.Group(v.Job(id).Group)
		return g != nil && len(g.SpareNodes()) == n
	})
	return v.Group(v.Job(id).Group).SpareNodes()
}

// waiter is a job that would take any room there is.
func (c *Cluster) waiter(name string) string {
	return c.Submit(NewSpec(name, 2, Script{Steps: 100000, StepTime: 100 * ms}))
}

// TestSpareNode: the ranks of a lost node start on the spare in the entry that gives the
// node up: the gang never waits, though somebody else waits for room. Without a spare the
// job goes on, and one is taken again when there is room.
func TestSpareNode(t *testing.T) {
	for _, heads := range []int{1, 3} {
		Run(t, Options{Heads: heads, Nodes: four()}, func(c *Cluster) {
			id := c.Submit(spared(4, 1))
			spare := c.waitSpares(id, 1)[0]
			c.WaitStep(id, 12, time.Minute)
			c.WaitState(c.waiter("filler"), time.Minute, api.Running)
			waiter := c.waiter("waiter")
			c.WaitState(waiter, time.Minute, api.Queued)
			j, err := c.control().Job(c.ctx, id)
			if err != nil || j.Spares == nil || len(j.Spares.Nodes) != 1 || j.Spares.Nodes[0] != spare || j.Spares.Waits != "" {
				t.Errorf("%+v, %v", j.Spares, err)
			}
			dead := c.View().Job(id).Last().Ranks[2].Node
			stays := c.View().Job(id).Last().Ranks[0].Node
			c.Node(dead).Kill()
			v := c.Wait("the next attempt runs", time.Minute, runs(id, 1))
			ranks := v.Job(id).Last().Ranks
			if ranks[0].Node != stays || ranks[2].Node != spare || ranks[3].Node != spare {
				t.Errorf("%+v, the spare is %s", ranks, spare)
			}
			var placed []uint64
			for _, e := range c.View().RecentEvents("", 1000) {
				if e.Type == "pg-released" || e.Type == "job-placed" && e.Object == "job/"+id && len(placed) > 0 {
					placed = append(placed, e.Index)
				}
			}
			slices.Sort(placed)
			if len(placed) != 2 || placed[0] != placed[1] {
				t.Errorf("released and placed at %v", placed)
			}
			if l := v.Job(id).Ledger; l.Infra != 1 {
				t.Errorf("%+v", l)
			}
			if j, err := c.control().Job(c.ctx, id); err != nil || len(j.Spares.Nodes) != 0 || j.Spares.Waits == "" {
				t.Errorf("%+v, %v", j.Spares, err)
			}
			c.Node(dead).Boot()
			c.WaitState(waiter, time.Minute, api.Running) // it waited longer than the spare
			if _, err := c.Stop(waiter, time.Second, time.Minute); err != nil {
				t.Fatal(err)
			}
			c.waitSpares(id, 1)
			if v := c.View(); len(v.Job(id).Attempts) != 2 {
				t.Errorf("%d attempts", len(v.Job(id).Attempts))
			}
			c.over()
		})
	}
}

// TestSpareNodeLost: the loss or the drain of a spare node restarts no rank and is charged
// to nobody; another one is taken where there is room.
func TestSpareNodeLost(t *testing.T) {
	for _, how := range []string{"killed", "drained", "cordoned", "noticed"} {
		t.Run(how, func(t *testing.T) {
			Run(t, Options{Nodes: four()}, func(c *Cluster) {
				id := c.Submit(spared(4, 1))
				spare := c.waitSpares(id, 1)[0]
				c.WaitStep(id, 12, time.Minute)
				switch how {
				case "killed":
					c.Node(spare).Kill()
				case "noticed":
					c.Node(spare).Notice("60s")
				default:
					if _, err := c.control().DrainNode(c.ctx, spare, how == "drained", 0, "new fan"); err != nil {
						t.Fatal(err)
					}
				}
				c.Wait("another spare is held", time.Minute, func(v *state.View) bool {
					g := v.Group(v.Job(id).Group)
					return len(g.SpareNodes()) == 1 && g.SpareNodes()[0] != spare
				})
				at := *mustJob(c, id).Step
				c.WaitStep(id, at+20, time.Minute)
				if j := c.View().Job(id); len(j.Attempts) != 1 || j.Ledger.Failed != 0 || j.Drain != nil {
					t.Errorf("%d attempts, %+v, drain %+v", len(j.Attempts), j.Ledger, j.Drain)
				}
				if how == "drained" || how == "noticed" {
					c.waitDrained(spare, time.Minute)
				}
				c.over()
			})
		})
	}
}

// over stops every job and looks whether anything is charged still.
func (c *Cluster) over() {
	c.T.Helper()
	for _, j := range c.View().LiveJobs() {
		if _, err := c.Stop(j.ID, time.Second, time.Minute); err != nil {
			c.T.Fatal(err)
		}
	}
	c.books()
}

func mustJob(c *Cluster, id string) api.Job {
	c.T.Helper()
	j, err := c.control().Job(c.ctx, id)
	if err != nil || j.Step == nil {
		c.T.Fatalf("%+v, %v", j, err)
	}
	return j
}

// TestSpareNodes: two nodes are lost at once, two spares stand in; the head may die.
func TestSpareNodes(t *testing.T) {
	for _, point := range []string{"", "spares", "release", "supervise"} {
		t.Run("head dies at "+point, func(t *testing.T) {
			Run(t, Options{Nodes: append(four(), NodeOptions{ID: "n5", CPU: 2000})}, func(c *Cluster) {
				spec := spared(3, 2)
				spec.Strategy = api.StrictSpread
				if point == "spares" {
					c.Trip(point, 1, func() { c.crashLeader(time.Second) })
				}
				id := c.Submit(spec)
				spares := c.waitSpares(id, 2)
				c.WaitStep(id, 12, time.Minute)
				if point != "" && point != "spares" {
					c.Trip(point, 1, func() { c.crashLeader(time.Second) })
				}
				ranks := c.View().Job(id).Last().Ranks
				c.Node(ranks[0].Node).Kill()
				c.Node(ranks[2].Node).Kill()
				v := c.Wait("it runs on the spares", 3*time.Minute, func(v *state.View) bool {
					j := v.Job(id)
					return j.State == api.Running && usesNode(j.Last(), spares[0]) && usesNode(j.Last(), spares[1])
				})
				for _, r := range v.Job(id).Last().Ranks {
					if r.Node == ranks[0].Node || r.Node == ranks[2].Node {
						t.Errorf("%+v", r)
					}
				}
				if n := c.counted("job/"+id, "job-queued"); n != 0 || v.Job(id).Ledger.Infra > 2 {
					t.Errorf("%+v", v.Job(id).Ledger)
				}
				for _, n := range []string{ranks[0].Node, ranks[2].Node} {
					c.Node(n).Boot()
				}
				c.waitSpares(id, 2)
				c.over()
			})
		})
	}
}

// TestSpareRoomForRanks: a job may grow into the room of its own spares, and a node that is
// drained sends its ranks to the spare.
func TestSpareRoomForRanks(t *testing.T) {
	Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
		spec := spared(4, 1)
		spec.Sizes = &api.Sizes{Set: []int64{2, 4, 6}}
		id := c.Submit(spec)
		spare := c.waitSpares(id, 1)[0]
		c.WaitStep(id, 12, time.Minute)
		node := c.View().Job(id).Last().Ranks[0].Node
		c.drain(node, 0)
		c.waitDrained(node, time.Minute)
		v := c.Wait("the next attempt runs", time.Minute, runs(id, 1))
		if !usesNode(v.Job(id).Last(), spare) || len(v.Job(id).Last().Ranks) != 4 {
			t.Errorf("%+v", v.Job(id).Last().Ranks)
		}
		if _, err := c.control().UncordonNode(c.ctx, node); err != nil {
			t.Fatal(err)
		}
		c.waitSpares(id, 1)
		if _, err := c.control().Scale(c.ctx, id, 6, ""); err != nil {
			t.Fatal(err)
		}
		v = c.Wait("it runs with six ranks", time.Minute, func(v *state.View) bool {
			j := v.Job(id)
			return j.State == api.Running && len(j.Last().Ranks) == 6
		})
		if g := v.Group(v.Job(id).Group); len(g.SpareNodes()) != 0 {
			t.Errorf("%+v", g)
		}
		c.over()
	})
}

// TestSpareNodesRefused: what can never be held is refused at once, with the reason.
func TestSpareNodesRefused(t *testing.T) {
	Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
		for what, change := range map[string]func(*api.JobSpec){
			"negative": func(s *api.JobSpec) { s.SpareNodes = -1 },
			"many":     func(s *api.JobSpec) { s.SpareNodes = 65 },
			"hosts":    func(s *api.JobSpec) { s.Hosts = &api.HostsSpec{Min: 1, Max: 2} },
			"a group":  func(s *api.JobSpec) { s.PlacementGroup = "pg-x" },
			"never":    func(s *api.JobSpec) { s.SpareNodes = 3 },
			"spread":   func(s *api.JobSpec) { s.Strategy, s.Ranks, s.SpareNodes = api.StrictSpread, 2, 2 },
		} {
			spec := spared(2, 1)
			change(&spec)
			ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
			if m, err := c.control().Submit(ctx, spec, headapi.Idempotency{}); err == nil {
				t.Errorf("%s: taken as %s", what, m.ID)
			} else {
				t.Log(err)
			}
			cancel()
		}
		id := c.Submit(spared(2, 2))
		c.waitSpares(id, 2)
		c.over()
	})
}

// TestSpareNodeUnsure: while one spare node is silent nothing is decided about the
// others; that one of them is lost or drained meanwhile is still no matter of the ranks.
func TestSpareNodeUnsure(t *testing.T) {
	for _, how := range []string{"killed", "drained"} {
		t.Run(how, func(t *testing.T) {
			Run(t, Options{Nodes: four(), Timing: control.Timing{Lost: time.Minute}}, func(c *Cluster) {
				id := c.Submit(spared(4, 2))
				spares := c.waitSpares(id, 2)
				c.WaitStep(id, 12, time.Minute)
				c.Node(spares[0]).Cut()
				c.Wait("it is silent", time.Minute, nodeIs(spares[0], api.NodeSuspect))
				if how == "killed" {
					c.Node(spares[1]).KillProcesses()
					c.Wait("it is lost", time.Minute, nodeIs(spares[1], api.NodeLost))
				} else if _, err := c.control().DrainNode(c.ctx, spares[1], true, 0, "new fan"); err != nil {
					t.Fatal(err)
				}
				c.WaitStep(id, *mustJob(c, id).Step+10, time.Minute)
				if g := c.View().Group(c.View().Job(id).Group); c.View().Node(spares[0]).State != api.NodeSuspect || len(g.SpareNodes()) != 2 {
					t.Fatalf("%s, spares %v: nothing is tested", c.View().Node(spares[0]).State, g.SpareNodes())
				}
				c.Node(spares[0]).Heal()
				c.Wait("one is held", time.Minute, func(v *state.View) bool {
					g := v.Group(v.Job(id).Group)
					return slices.Equal(g.SpareNodes(), spares[:1]) && v.Node(spares[0]).State == api.NodeReady
				})
				c.WaitStep(id, *mustJob(c, id).Step+20, time.Minute)
				if j := c.View().Job(id); len(j.Attempts) != 1 || j.Drain != nil || c.counted("job/"+id, "job-draining") != 0 {
					t.Errorf("%d attempts, drain %+v", len(j.Attempts), j.Drain)
				}
				c.over()
			})
		})
	}
}

// TestSpareNodePreferred: the ranks start on the spare node, where the scheduler would
// have chosen another one, and the spare that was not needed stays the job's, although
// somebody waits for its room.
func TestSpareNodePreferred(t *testing.T) {
	Run(t, Options{Nodes: append(four(), NodeOptions{ID: "n5", CPU: 2500}, NodeOptions{ID: "n6", CPU: 2500})}, func(c *Cluster) {
		spec := spared(2, 2)
		spec.Strategy = api.StrictSpread
		id := c.Submit(spec)
		spares := c.waitSpares(id, 2)
		c.WaitStep(id, 12, time.Minute)
		if slices.Contains(spares, "n5") || slices.Contains(spares, "n6") {
			t.Fatalf("the spares are %v: nothing is tested", spares)
		}
		for _, name := range []string{"one", "two"} { // they leave room for one rank on n5 and n6
			large := NewSpec(name, 1, Script{Steps: 100000, StepTime: 100 * ms})
			large.Resources.CPU = 1500
			c.WaitState(c.Submit(large), time.Minute, api.Running)
		}
		whole := NewSpec("waiter", 1, Script{Steps: 100000, StepTime: 100 * ms})
		whole.Resources.CPU = 2000
		waits := c.Submit(whole)
		c.WaitState(waits, time.Minute, api.Queued)
		dead := c.View().Job(id).Last().Ranks[1].Node
		c.Node(dead).Kill()
		v := c.Wait("the next attempt runs", time.Minute, runs(id, 1))
		if r := v.Job(id).Last().Ranks; r[1].Node != spares[0] {
			t.Errorf("%+v, the spares are %v", r, spares)
		}
		if s := v.Group(v.Job(id).Group).SpareNodes(); !slices.Contains(s, spares[1]) {
			t.Errorf("spares %v, were %v", s, spares)
		}
		c.Node(dead).Boot()
		c.over()
	})
}
