package cluster

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

const ms = time.Millisecond

func four(labels ...string) []NodeOptions {
	var out []NodeOptions
	for i := range 4 {
		n := NodeOptions{ID: fmt.Sprintf("n%d", i+1), CPU: 2000}
		if i < len(labels) {
			n.Labels = map[string]string{"class": labels[i]}
		}
		out = append(out, n)
	}
	return out
}

// TestSubmitToSuccess: submit, place, run, succeed; afterwards nothing is charged.
func TestSubmitToSuccess(t *testing.T) {
	Run(t, Options{}, func(c *Cluster) {
		id := c.Submit(NewSpec("a", 4, Script{Steps: 10, StepTime: 100 * ms}))
		c.WaitState(id, time.Minute, api.Running)
		c.WaitState(id, time.Minute, api.Succeeded)
		c.books()
		if n := c.Hosts.Starts(id); n != 4 {
			t.Errorf("%d ranks were started", n)
		}
	})
}

// TestRankKilled: the next attempt has a higher generation, the same allocations, and
// resumes from the newest committed step.
func TestRankKilled(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		spec := NewSpec("a", 4, Script{Steps: 40, StepTime: 100 * ms})
		spec.Checkpoint.Interval = "5steps"
		id := c.Submit(spec)
		c.WaitStep(id, 12, time.Minute)
		first := c.View().Job(id).Last()
		if !c.Node("n1").KillRank(id, 0) && !c.Node("n2").KillRank(id, 0) {
			t.Fatal("rank 0 runs nowhere")
		}
		v := c.Wait("the second attempt runs", time.Minute, func(v *state.View) bool {
			j := v.Job(id)
			return j.State == api.Running && j.Last().Number == 1
		})
		second := v.Job(id).Last()
		if second.Generation <= first.Generation || !slices.Equal(second.Allocs, first.Allocs) {
			t.Errorf("attempt 0 %d %v, attempt 1 %d %v", first.Generation, first.Allocs, second.Generation, second.Allocs)
		}
		if second.Restore == nil || second.Restore.Step != 10 {
			t.Errorf("restores %+v, step 10 was the newest", second.Restore)
		}
		j := c.WaitState(id, time.Minute, api.Succeeded)
		if j.Ledger.Infra != 1 || j.Ledger.Failed != 1 {
			t.Errorf("ledger %+v", j.Ledger)
		}
		c.books()
		for _, ck := range c.View().Checkpoints("a") {
			if ck.State == state.CheckpointCommitted && !ck.Marked {
				t.Errorf("step %d has no committed.json", ck.Step)
			}
		}
	})
}

// TestAgentRestarted: with ranks running, nothing of them restarts (P6).
func TestAgentRestarted(t *testing.T) {
	for _, away := range []time.Duration{0, 2 * time.Second, 8 * time.Second} {
		Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
			id := c.Submit(NewSpec("a", 4, Script{Steps: 300, StepTime: 100 * ms}))
			c.WaitStep(id, 5, time.Minute)
			c.Node("n1").KillAgent()
			time.Sleep(away)
			c.Node("n1").StartAgent()
			c.WaitStep(id, 250, time.Minute)
			j := c.WaitState(id, time.Minute, api.Succeeded)
			if n := c.Hosts.Starts(id); n != 4 || len(j.Attempts) != 1 {
				t.Errorf("agent away for %s: %d ranks were started in %d attempts", away, n, len(j.Attempts))
			}
			c.books()
		})
	}
}

// TestRankEndsWhileAgentIsAway: what the shim could not tell is told to the next agent.
func TestRankEndsWhileAgentIsAway(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		a := c.Submit(NewSpec("a", 1, Script{Steps: 20, StepTime: 100 * ms}))
		c.WaitStep(a, 15, time.Minute)
		c.Node("n1").KillAgent()
		time.Sleep(2 * time.Second)
		c.Node("n1").StartAgent()
		c.WaitState(a, time.Minute, api.Succeeded)
		c.books()
	})
}

// TestNodeKilledReplaced: after a loss the gang moves whole, with one entry; what the
// dead node holds stays charged until a reboot proves it free (P1, P2).
func TestNodeKilledReplaced(t *testing.T) {
	Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
		spec := NewSpec("a", 4, Script{Steps: 1000, StepTime: 100 * ms})
		spec.Checkpoint.Interval = "5steps"
		id := c.Submit(spec)
		c.WaitStep(id, 12, time.Minute)
		g := c.View().Group("pg-" + id)
		lost := g.Placed[0].Node
		c.Node(lost).Kill()
		v := c.Wait("the job runs elsewhere", 5*time.Minute, func(v *state.View) bool {
			j := v.Job(id)
			return j.State == api.Running && j.Last().Number > 0
		})
		if n := v.Node(lost); n.State != api.NodeLost {
			t.Errorf("node %s is %s", lost, n.State)
		}
		if u := v.UseOf(lost); u.CPU != 2000 {
			t.Errorf("%s is charged %d before the proof", lost, u.CPU)
		}
		for _, r := range v.Job(id).Last().Ranks {
			if r.Node == lost {
				t.Errorf("rank %d runs on the lost node", r.Rank)
			}
		}
		if r := v.Job(id).Last().Restore; r == nil || r.Step < 10 {
			t.Errorf("restores %+v", r)
		}
		c.Node(lost).Boot()
		c.Wait("the reboot frees what was held", time.Minute, func(v *state.View) bool {
			n := v.Node(lost)
			return n.State == api.NodeReady && v.UseOf(lost).CPU == 0
		})
	})
}

// TestNodeKilledWaits: when it fits nowhere, the gang waits whole (P1) and starts
// when the node has come back.
func TestNodeKilledWaits(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		id := c.Submit(NewSpec("a", 4, Script{Steps: 1000, StepTime: 100 * ms}))
		c.WaitStep(id, 12, time.Minute)
		c.Node("n2").Kill()
		c.Wait("the gang waits whole", 5*time.Minute, func(v *state.View) bool {
			j, g := v.Job(id), v.Group("pg-"+id)
			return j.State == api.Queued && g.State == api.GroupPending && len(g.Placed) == 0
		})
		c.Wait("what lived is free, what is unproven is not", time.Minute, func(v *state.View) bool {
			return v.UseOf("n1").CPU == 0 && v.UseOf("n2").CPU == 2000
		})
		c.Node("n2").Boot()
		v := c.Wait("it runs again", time.Minute, func(v *state.View) bool {
			j := v.Job(id)
			return j.State == api.Running && j.Last().Number > 0
		})
		if len(v.Job(id).Last().Ranks) != 4 {
			t.Error("not whole")
		}
	})
}

// TestStrictWaitsForFence: a job that saves by itself on one node starts elsewhere
// only when its lease has surely ended; the hosts' own oracle sees no overlap.
func TestStrictWaitsForFence(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		id := c.Submit(NewSpec("a", 2, Script{Steps: 100000, StepTime: 100 * ms}))
		c.WaitStep(id, 5, time.Minute)
		node := c.View().Job(id).Last().Ranks[0].Node
		cut := time.Now()
		c.Node(node).Cut()
		c.Wait("it runs elsewhere", 5*time.Minute, func(v *state.View) bool {
			j := v.Job(id)
			return j.State == api.Running && j.Last().Number == 1
		})
		if d := time.Since(cut); d < time.Minute {
			t.Errorf("it started elsewhere after %s, within the lease", d)
		}
		c.Node(node).Heal()
		c.Wait("the node returns and is free", time.Minute, func(v *state.View) bool {
			return v.Node(node).State == api.NodeReady && v.UseOf(node).CPU == 0
		})
	})
}

// TestFastMovesAtOnce: a job that checkpoints through Troupe starts elsewhere at once;
// on its return the cut-off node ends the old generation.
func TestFastMovesAtOnce(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		spec := NewSpec("a", 2, Script{Steps: 100000, StepTime: 100 * ms})
		spec.Checkpoint.Interval = "5steps"
		id := c.Submit(spec)
		// The class comes with an attempt, so the second one is fast.
		c.WaitStep(id, 7, time.Minute)
		first := c.View().Job(id).Last().Ranks[0].Node
		c.Node(first).KillRank(id, 0)
		c.Wait("the second attempt", time.Minute, func(v *state.View) bool {
			j := v.Job(id)
			return j.State == api.Running && j.Last().Number == 1
		})
		c.WaitStep(id, 12, time.Minute)
		cut := time.Now()
		node := c.View().Job(id).Last().Ranks[0].Node
		c.Node(node).Cut()
		c.Wait("it runs elsewhere", time.Minute, func(v *state.View) bool {
			j := v.Job(id)
			return j.State == api.Running && j.Last().Number == 2
		})
		if d := time.Since(cut); d > 20*time.Second {
			t.Errorf("it started elsewhere after %s", d)
		}
		if len(c.Hosts.Live(id)) != 4 {
			t.Errorf("the cut-off ranks should run on: %v", c.Hosts.Live(id))
		}
		c.Node(node).Heal()
		c.Wait("the old generation ends", time.Minute, func(v *state.View) bool {
			return v.UseOf(node).CPU == 0 && len(c.Hosts.Live(id)) == 2
		})
		c.WaitStep(id, 30, time.Minute)
	})
}

// TestHeadRestarted: with one voter, a restart within the lease touches no rank, and
// the replayed state is the one that was (P5, I7).
func TestHeadRestarted(t *testing.T) {
	for _, away := range []time.Duration{100 * ms, 5 * time.Second, 40 * time.Second} {
		Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
			spec := NewSpec("a", 4, Script{Steps: 900, StepTime: 100 * ms})
			spec.Checkpoint.Interval = "20steps"
			id := c.Submit(spec)
			c.WaitStep(id, 30, time.Minute)
			synctest.Wait()
			before, err := hashOf(c.Head(0).running().store)
			if err != nil {
				t.Fatal(err)
			}
			index := c.View().Index()
			c.Head(0).Kill()
			time.Sleep(away)
			c.History.stopAt(index)
			c.Head(0).Start()
			c.Wait("the head leads again", time.Minute, func(*state.View) bool { return c.Leader() != nil })
			if after, err := c.History.stopped(); err != nil || after != before {
				t.Errorf("the state after replay to index %d is not the one before: %v", index, err)
			}
			j := c.WaitState(id, 5*time.Minute, api.Succeeded)
			if n := c.Hosts.Starts(id); n != 4 || len(j.Attempts) != 1 {
				t.Errorf("head away for %s: %d ranks started, %d attempts", away, n, len(j.Attempts))
			}
			c.books()
		})
	}
}

// TestLeaderLost: with three heads the loss of any one restarts no rank (P5).
func TestLeaderLost(t *testing.T) {
	for _, how := range []string{"kill", "cut"} {
		Run(t, Options{Heads: 3, Nodes: four()[:2]}, func(c *Cluster) {
			spec := NewSpec("a", 4, Script{Steps: 400, StepTime: 100 * ms})
			spec.Checkpoint.Interval = "10steps"
			id := c.Submit(spec)
			c.WaitStep(id, 15, time.Minute)
			old := c.Leader()
			if how == "kill" {
				old.Kill()
			} else {
				old.Cut()
			}
			c.Wait("another head leads", 30*time.Second, func(*state.View) bool {
				l := c.Leader()
				return l != nil && l != old
			})
			c.WaitStep(id, 60, time.Minute)
			if how == "kill" {
				old.Start()
			} else {
				old.Heal()
			}
			j := c.WaitState(id, 5*time.Minute, api.Succeeded)
			if n := c.Hosts.Starts(id); n != 4 || len(j.Attempts) != 1 {
				t.Errorf("%s: %d ranks started, %d attempts", how, n, len(j.Attempts))
			}
			c.books()
		})
	}
}

// TestSlowReturn: a new leader counts a node's silence from its own beginning, so that
// nodes which need some seconds to find it lose nothing (I13).
func TestSlowReturn(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		id := c.Submit(NewSpec("a", 4, Script{Steps: 300, StepTime: 100 * ms}))
		c.WaitStep(id, 5, time.Minute)
		for _, n := range c.nodes {
			n.Cut()
		}
		c.Head(0).Restart(20 * time.Second)
		time.Sleep(7 * time.Second)
		for _, n := range c.nodes {
			n.Heal()
		}
		j := c.WaitState(id, time.Minute, api.Succeeded)
		if len(j.Attempts) != 1 || c.Hosts.Starts(id) != 4 {
			t.Errorf("%d attempts, %d ranks started", len(j.Attempts), c.Hosts.Starts(id))
		}
		for _, e := range c.View().RecentEvents("", 1000) {
			if e.Type == "node-lost" {
				t.Errorf("%s %s", e.Object, e.Text)
			}
		}
		c.books()
	})
}
