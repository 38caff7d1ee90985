package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// What public bug reports about other schedulers say of nodes that go and come back: what
// comes back to life, and what holds up others meanwhile.

// TestPlannedNodesAreLost: three of five nodes are lost in the moment in which a gang is
// placed on them: no rank of it stays, nothing is charged but what is not proven free, and
// it runs whole when they are back.
func TestPlannedNodesAreLost(t *testing.T) {
	var nodes []NodeOptions
	for i := range 5 {
		nodes = append(nodes, NodeOptions{ID: fmt.Sprintf("n%d", i+1), CPU: 1000})
	}
	Run(t, Options{Nodes: nodes}, func(c *Cluster) {
		c.limit(5)
		c.Trip("submit", 1, func() {
			for _, n := range c.nodes[:3] {
				c.spawn(n.Kill)
			}
		})
		id := c.Submit(ofTenant("gang", 5, 200))
		v := c.Wait("it waits whole", 2*time.Minute, func(v *state.View) bool {
			return v.Job(id).State == api.Queued && len(v.Group(v.Job(id).Group).Placed) == 0
		})
		if !c.Tripped() || charged(v) != 0 {
			t.Fatalf("tripped %v, charged %d", c.Tripped(), charged(v))
		}
		c.Wait("none of its ranks is left", time.Minute, func(*state.View) bool { return len(c.Hosts.Live(id)) == 0 })
		w, err := c.control().Why(c.ctx, "job/"+id)
		if said := fmt.Sprint(w.Reasons); err != nil || !strings.Contains(said, "n1 is not ready") || !strings.Contains(said, "3 CPU missing") {
			t.Errorf("%s, %v", said, err)
		}
		for _, n := range c.nodes[:3] {
			n.Boot()
		}
		c.WaitState(id, 5*time.Minute, api.Succeeded)
		c.books()
	})
}

// TestOldRankOfAPreemptedGang: a rank of a preempted gang lives on where nothing is heard of
// it. It is no rank of the next attempt, and says nothing that counts.
func TestOldRankOfAPreemptedGang(t *testing.T) {
	Run(t, Options{Nodes: four()}, func(c *Cluster) {
		s := preemptible("low", 3, 3000)
		s.Strategy, s.Resources.CPU, s.Checkpoint.Interval = api.StrictSpread, 2000, "10steps"
		low := c.Submit(s)
		c.WaitStep(low, 20, time.Minute)
		c.goBy(2 * time.Minute)
		old := c.View().Job(low).Last()
		h := important("high", 2, 100)
		h.Strategy, h.Resources.CPU = api.StrictSpread, 2000
		high := c.Submit(h)
		c.Wait("the victim is told", time.Minute, func(v *state.View) bool { return v.Job(low).Drain != nil })
		n := c.Node(old.Ranks[2].Node)
		n.Cut()
		c.WaitState(high, 10*time.Minute, api.Succeeded)
		n.Heal()
		c.WaitState(low, 20*time.Minute, api.Succeeded)
		v := c.View()
		for i, a := range v.Job(low).Attempts {
			if int64(len(a.Ranks)) != 3 || i > 0 && a.Generation <= old.Generation {
				t.Errorf("attempt %d has %d ranks and generation %d after %d", i, len(a.Ranks), a.Generation, old.Generation)
			}
		}
		c.books()
	})
}

// TestSilentNodeKeepsItsWork: a node is silent for 45 s, its ranks go on: they move nowhere,
// nobody gets their room, and they are the same ranks afterwards.
func TestSilentNodeKeepsItsWork(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		id := c.Submit(NewSpec("a", 2, Script{Steps: 100_000, StepTime: 100 * ms}))
		c.WaitStep(id, 5, time.Minute)
		next := c.Submit(NewSpec("next", 1, Script{Steps: 10, StepTime: 100 * ms}))
		before := fmt.Sprint(c.Hosts.Live(id))
		n := c.Node("n1")
		n.Cut()
		for range 45 {
			c.goBy(time.Second)
			if s := c.View().Job(next).State; s != api.Queued {
				t.Fatalf("the next is %s", s)
			}
		}
		n.Heal()
		c.goBy(20 * time.Second)
		j := c.View().Job(id)
		if after := fmt.Sprint(c.Hosts.Live(id)); j.State != api.Running || len(j.Attempts) != 1 || after != before {
			t.Errorf("%s, %d attempts; ran %s, runs %s", j.State, len(j.Attempts), before, after)
		}
	})
}

// TestCordonIsSticky: nothing but a word undoes a cordon: neither the end of the agent, nor
// a reboot, nor another leader, nor work that could not be ended there.
func TestCordonIsSticky(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		s := NewSpec("a", 2, Script{Steps: 100_000, StepTime: 100 * ms, Stubborn: true, Deaf: true})
		id := c.Submit(s)
		c.WaitStep(id, 3, time.Minute)
		n := c.firstNode(id)
		c.Wait("a leader takes the drain", time.Minute, func(*state.View) bool {
			h := c.control()
			if h == nil {
				return false
			}
			ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
			defer cancel()
			_, err := h.DrainNode(ctx, n.ID, true, time.Second, "fans")
			return err == nil
		})
		stays := func(after string) {
			t.Helper()
			d := c.View().Node(n.ID).Cordoned()
			if d == nil || !strings.Contains(d.Reason, "fans") {
				t.Errorf("after %s: %+v", after, d)
			}
			for _, g := range c.View().Groups() {
				for _, b := range g.Placed {
					if b.Node == n.ID {
						t.Errorf("after %s %s stands there", after, g.ID)
					}
				}
			}
		}
		c.Wait("the job runs elsewhere", 5*time.Minute, func(v *state.View) bool {
			j := v.Job(id)
			return j.State == api.Running && len(j.Attempts) > 1 && !usesNode(j.Last(), n.ID)
		})
		stays("the drain")
		n.RestartAgent()
		c.goBy(20 * time.Second)
		stays("a restart of its agent")
		n.Kill()
		c.goBy(30 * time.Second)
		n.Boot()
		c.goBy(20 * time.Second)
		stays("a reboot")
		c.crashLeader(time.Second)
		c.goBy(30 * time.Second)
		stays("another leader")
		wide := c.Submit(NewSpec("wide", 4, Script{Steps: 10, StepTime: 100 * ms}))
		c.goBy(30 * time.Second)
		if st := c.View().Job(wide).State; st != api.Queued {
			t.Errorf("a job that needs it is %s", st)
		}
		stays("a request")
	})
}

// TestNodeJoins: what waits for a node starts within a second of its coming, with no other
// word.
func TestNodeJoins(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		c.Node("n2").Kill()
		c.Wait("it is lost", time.Minute, func(v *state.View) bool { return v.Node("n2").State == api.NodeLost })
		g := c.createGroup(api.GroupSpec{Strategy: api.StrictSpread, Bundles: []api.Bundle{{Resources: api.Resources{CPU: 2000}}, {Resources: api.Resources{CPU: 2000}}}})
		c.goBy(time.Minute)
		if s := c.View().Group(g).State; s != api.GroupPending {
			t.Fatalf("it is %s", s)
		}
		c.Node("n2").Boot()
		c.Wait("the node is ready", time.Minute, func(v *state.View) bool { return v.Node("n2").State == api.NodeReady })
		ready := time.Now()
		c.Wait("it is placed", time.Minute, func(v *state.View) bool { return v.Group(g).State == api.GroupPlaced })
		if d := time.Since(ready); d >= time.Second {
			t.Errorf("it took %s", d)
		}
	})
}

// TestGangThatWaitsHoldsUpNobody: a gang lost a node and fits nowhere for now; fifty small
// ones that come after it are placed within a second.
func TestGangThatWaitsHoldsUpNobody(t *testing.T) {
	nodes := append(four(), NodeOptions{ID: "n5", CPU: 1000}) // too small for the gang
	Run(t, Options{Nodes: nodes}, func(c *Cluster) {
		s := NewSpec("gang", 4, Script{Steps: 100_000, StepTime: 100 * ms})
		s.Strategy, s.Resources.CPU = api.StrictSpread, 2000
		id := c.Submit(s)
		c.WaitStep(id, 3, time.Minute)
		c.firstNode(id).Kill()
		c.WaitState(id, 5*time.Minute, api.Queued)
		asked := time.Now()
		for i := range 50 {
			b := NewSpec(fmt.Sprintf("s%d", i), 1, Script{Steps: 10_000, StepTime: 100 * ms})
			b.Resources.CPU = 10
			c.Submit(b)
		}
		c.Wait("all of them have a place", time.Minute, func(v *state.View) bool {
			n := 0
			for _, g := range v.Groups() {
				if g.State == api.GroupPlaced && strings.HasPrefix(g.Spec.Name, "s") {
					n++
				}
			}
			return n == 50
		})
		if d := time.Since(asked); d >= time.Second {
			t.Errorf("it took %s", d)
		}
		if j := c.View().Job(id); j.State != api.Queued {
			t.Errorf("the gang is %s", j.State)
		}
	})
}

// TestSecondNodeDuringRecovery: another node of a gang dies at any moment of its recovery:
// it runs whole or waits whole, and runs again when they are back.
func TestSecondNodeDuringRecovery(t *testing.T) {
	for i := range 12 {
		after := time.Duration(i*i) * 50 * ms
		t.Run(after.String(), func(t *testing.T) {
			Run(t, Options{Nodes: four(), Seed: uint64(i)}, func(c *Cluster) {
				s := NewSpec("gang", 4, Script{Steps: 300, StepTime: 100 * ms})
				s.Checkpoint.Interval = "10steps"
				id := c.Submit(s)
				c.WaitStep(id, 20, time.Minute)
				ranks := c.View().Job(id).Last().Ranks
				gen := c.View().Job(id).Last().Generation
				first, second := c.Node(ranks[0].Node), c.Node(ranks[3].Node)
				first.Kill()
				c.goBy(after)
				second.Kill()
				c.goBy(30 * time.Second)
				first.Boot()
				second.Boot()
				c.WaitState(id, 10*time.Minute, api.Succeeded)
				if j := c.View().Job(id); j.Last().Generation <= gen || len(j.Last().Ranks) != 4 {
					t.Errorf("generation %d after %d, %d ranks", j.Last().Generation, gen, len(j.Last().Ranks))
				}
				c.books()
			})
		})
	}
}
