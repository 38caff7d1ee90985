package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// since waits for a condition and says how long it took.
func (c *Cluster) since(start time.Time, what string, limit time.Duration, cond func(v *state.View) bool) time.Duration {
	c.T.Helper()
	c.Wait(what, limit, cond)
	synctest.Wait()
	return time.Since(start)
}

// firstIsGone: no rank of the job's first attempt runs anywhere.
func (c *Cluster) firstIsGone(job string) func(*state.View) bool {
	first := fmt.Sprintf("generation %d,", c.View().Job(job).Attempts[0].Generation)
	return func(*state.View) bool {
		return !slices.ContainsFunc(c.Hosts.Live(job), func(p string) bool { return strings.Contains(p, first) })
	}
}

func nodeIs(id string, s api.NodeState) func(*state.View) bool {
	return func(v *state.View) bool { return v.Node(id).State == s }
}

func runs(job string, attempt int64) func(*state.View) bool {
	return func(v *state.View) bool {
		j := v.Job(job)
		return j.State == api.Running && j.Last().Number == attempt
	}
}

// untouched fails if a rank of the job was started again.
func (c *Cluster) untouched(job string, ranks int) {
	c.T.Helper()
	if n := c.Hosts.Starts(job); n != ranks || len(c.View().Job(job).Attempts) != 1 {
		c.T.Errorf("%d ranks were started in %d attempts, want %d in one\n%s", n, len(c.View().Job(job).Attempts), ranks, c.Describe())
	}
}

// TestNodeKilledFigure: every process of a node is killed at once; the kernel closes its
// connections, so the node is lost within 2 s and its work runs elsewhere within 3 s.
// That holds for groups that publish no step and for those with steps of up to 0.5 s,
// and the ranks that are left end with it, though they hang in their collective.
func TestNodeKilledFigure(t *testing.T) {
	for name, script := range map[string]Script{
		"fast steps":     {Steps: 100000, StepTime: 100 * ms, Silent: true},
		"slow steps":     {Steps: 100000, StepTime: 450 * ms, Silent: true},
		"no step yet":    {Steps: 100000, StepTime: 10 * time.Minute, Silent: true},
		"peers complain": {Steps: 100000, StepTime: 100 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
				id := c.Submit(NewSpec("a", 4, script))
				c.Wait("it runs", time.Minute, runs(id, 0))
				time.Sleep(20*time.Second + time.Duration(c.rng.IntN(1000))*ms)
				dead := c.View().Job(id).Last().Ranks[0].Node
				left := c.View().Job(id).Last().Ranks[3].Node
				start := time.Now()
				c.Node(dead).KillProcesses()
				lost := c.since(start, "it is lost", time.Minute, nodeIs(dead, api.NodeLost))
				if lost > 2*time.Second {
					t.Errorf("lost after %s", lost)
				}
				ended := c.since(start, "its peers end", time.Minute, c.firstIsGone(id))
				if d := ended - lost; d > 500*ms {
					t.Errorf("ranks on %s ended %s after the loss", left, d)
				}
				elsewhere := c.since(start, "it runs elsewhere", time.Minute, runs(id, 1))
				if elsewhere > 3*time.Second {
					t.Errorf("running elsewhere after %s", elsewhere)
				}
				t.Logf("lost after %s, peers ended after %s, running elsewhere after %s", lost, ended, elsewhere)
			})
		})
	}
}

// TestCutOffFigure: a node that nothing is heard of any more is lost within 4 s, and fast
// work runs elsewhere within 6 s.
func TestCutOffFigure(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		spec := NewSpec("a", 2, Script{Steps: 100000, StepTime: 100 * ms})
		spec.Checkpoint.Interval = "5steps"
		id := c.Submit(spec)
		c.WaitStep(id, 107, time.Minute)
		if cl := c.View().Job(id).Last().Class; cl != wire.ClassFast {
			t.Fatalf("a run that has prepared steps is %s", cl)
		}
		node := c.View().Job(id).Last().Ranks[0].Node
		start := time.Now()
		c.Node(node).Cut()
		lost := c.since(start, "it is lost", time.Minute, nodeIs(node, api.NodeLost))
		elsewhere := c.since(start, "it runs elsewhere", time.Minute, runs(id, 1))
		if lost > 4*time.Second || elsewhere > 6*time.Second {
			t.Errorf("lost after %s, running elsewhere after %s", lost, elsewhere)
		}
		t.Logf("lost after %s, running elsewhere after %s", lost, elsewhere)
	})
}

// TestFastFromTheFirstPreparedStep: nothing needs to be committed, nor a second attempt.
func TestFastFromTheFirstPreparedStep(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		spec := NewSpec("a", 2, Script{Steps: 100000, StepTime: 100 * ms})
		spec.Checkpoint.Interval = "5steps"
		id := c.Submit(spec)
		c.WaitStep(id, 2, time.Minute)
		if cl := c.View().Job(id).Last().Class; cl != wire.ClassStrict {
			t.Errorf("a run on one node that saves by itself is %s", cl)
		}
		c.Wait("the class changes", time.Minute, func(v *state.View) bool {
			return v.Run("a").Fast && v.Job(id).Last().Class == wire.ClassFast
		})
		var order []string
		for _, e := range c.View().RecentEvents("", 100) {
			if e.Type == "run-fast" || e.Type == "checkpoint-committed" {
				order = append(order, e.Type)
			}
		}
		if order[0] != "run-fast" {
			t.Errorf("%v", order)
		}
		c.Wait("the shim hears of it", 3*time.Second, func(v *state.View) bool {
			s := c.Node(v.Job(id).Last().Ranks[0].Node).shimOf(id)
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.class == wire.ClassFast
		})
	})
}

// TestAgentKilledAlone: the agent is gone, its shims speak for themselves: nothing
// restarts, and the next agent finds them within 3 s.
func TestAgentKilledAlone(t *testing.T) {
	for name, spec := range map[string]func() api.JobSpec{
		"over two nodes": func() api.JobSpec { return NewSpec("a", 4, Script{Steps: 3000, StepTime: 100 * ms}) },
		// Its lease is 60 s: the shim's own calls renew it.
		"strict on one node": func() api.JobSpec { return NewSpec("a", 2, Script{Steps: 3000, StepTime: 100 * ms}) },
	} {
		t.Run(name, func(t *testing.T) {
			Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
				js := spec()
				id := c.Submit(js)
				c.WaitStep(id, 60, time.Minute)
				node := c.View().Job(id).Last().Ranks[0].Node
				start := time.Now()
				c.Node(node).KillAgent()
				if d := c.since(start, "it is agentless", time.Minute, nodeIs(node, api.NodeAgentless)); d > 2*time.Second {
					t.Errorf("known as agentless after %s", d)
				}
				other := c.Submit(NewSpec("b", 4, Script{Steps: 3, StepTime: 100 * ms}))
				time.Sleep(150 * time.Second)
				if s := c.View().Job(other).State; s != api.Queued {
					t.Errorf("new work that needs the node is %s", s)
				}
				c.untouched(id, int(js.Ranks))
				start = time.Now()
				c.Node(node).StartAgent()
				if d := c.since(start, "it is back", time.Minute, nodeIs(node, api.NodeReady)); d > 3*time.Second {
					t.Errorf("taken up again after %s", d)
				}
				j := c.WaitState(id, 10*time.Minute, api.Succeeded)
				c.untouched(j.ID, int(js.Ranks))
				c.WaitState(other, time.Minute, api.Succeeded)
				for _, e := range c.View().RecentEvents("", 1000) {
					if e.Type == "node-lost" {
						t.Errorf("%s %s", e.Object, e.Text)
					}
				}
				c.books()
			})
		})
	}
}

// TestAgentStaysAway: work is held for 120 s if the restart was announced, else for 5 min.
// Then it is ended with grace and runs elsewhere, and what it held is free on the word of
// its shims, though no agent has come back.
func TestAgentStaysAway(t *testing.T) {
	for _, announced := range []bool{true, false} {
		Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
			id := c.Submit(NewSpec("a", 4, Script{Steps: 100000, StepTime: 100 * ms}))
			c.WaitStep(id, 5, time.Minute)
			node := c.View().Job(id).Last().Ranks[0].Node
			hold := 5 * time.Minute
			if announced {
				hold = 2 * time.Minute
				c.Node(node).LeaveAgent()
			} else {
				c.Node(node).KillAgent()
			}
			start := time.Now()
			time.Sleep(hold - 5*time.Second)
			c.untouched(id, 4)
			c.Wait("it runs elsewhere", time.Minute, runs(id, 1))
			if d := time.Since(start); d < hold || d > hold+10*time.Second {
				t.Errorf("announced %v: it moved after %s", announced, d)
			}
			c.Wait("what it held is free", time.Minute, func(v *state.View) bool { return v.UseOf(node).CPU == 0 })
			if len(c.Hosts.Live(id)) != 4 {
				t.Errorf("%v", c.Hosts.Live(id))
			}
			c.Node(node).StartAgent()
			c.Wait("it is back", time.Minute, nodeIs(node, api.NodeReady))
		})
	}
}

// TestIdleNodeRestartsQuietly: an announced restart of a node without work is no loss.
func TestIdleNodeRestartsQuietly(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		c.Node("n1").LeaveAgent()
		c.Wait("it is away", time.Minute, nodeIs("n1", api.NodeAgentless))
		time.Sleep(time.Minute)
		c.Node("n1").StartAgent()
		c.Wait("it is back", 3*time.Second, nodeIs("n1", api.NodeReady))
	})
}

// TestManagementNetworkSilent: the head hears nothing of a node for 30 s while the ranks go
// on, which their peers prove: nothing restarts, whichever way the network is silent.
func TestManagementNetworkSilent(t *testing.T) {
	for name, cut := range map[string]func(c *Cluster, n *Node){
		"both ways":     func(_ *Cluster, n *Node) { n.Cut() },
		"to the head":   func(c *Cluster, n *Node) { c.Bus.CutOneWay(n.identity(), c.Head(0).identity()) },
		"from the head": func(c *Cluster, n *Node) { c.Bus.CutOneWay(c.Head(0).identity(), n.identity()) },
	} {
		t.Run(name, func(t *testing.T) {
			Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
				spec := NewSpec("a", 4, Script{Steps: 600, StepTime: 100 * ms})
				id := c.Submit(spec)
				c.WaitStep(id, 50, time.Minute)
				node := c.Node(c.View().Job(id).Last().Ranks[3].Node)
				cut(c, node)
				if name != "from the head" {
					c.Wait("it is suspect", 10*time.Second, nodeIs(node.ID, api.NodeSuspect))
				}
				time.Sleep(30 * time.Second)
				node.Heal()
				c.Bus.Heal(node.identity(), c.Head(0).identity())
				c.Wait("it is back", 10*time.Second, nodeIs(node.ID, api.NodeReady))
				c.WaitState(id, 5*time.Minute, api.Succeeded)
				c.untouched(id, 4)
				for _, e := range c.View().RecentEvents("", 1000) {
					if e.Type == "node-lost" {
						t.Errorf("%s %s", e.Object, e.Text)
					}
				}
				c.books()
			})
		})
	}
}

// TestPeersEndAtOnce: when a rank is gone, those on other nodes end within the failure
// grace, not when their collective gives up; the cause that is charged is its own.
func TestPeersEndAtOnce(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		id := c.Submit(NewSpec("a", 4, Script{Steps: 100000, StepTime: 100 * ms, Silent: true, Dies: []Death{{Attempt: 0, Rank: 0, Step: 30, Code: 7}}}))
		c.WaitStep(id, 29, time.Minute)
		c.Wait("rank 0 is gone", time.Minute, func(*state.View) bool { return len(c.Hosts.Live(id)) < 4 })
		start := time.Now()
		d := c.since(start, "every rank is gone", time.Minute, c.firstIsGone(id))
		if d > 400*ms {
			t.Errorf("the last rank ended %s after the first", d)
		}
		v := c.Wait("the next attempt", time.Minute, runs(id, 1))
		if f := v.Job(id).Attempts[0].Failure; f == nil || f.Rank != 0 || f.ExitCode != 7 {
			t.Errorf("charged to %+v", f)
		}
		t.Logf("peers on the other node ended after %s, the next attempt ran after %s", d, time.Since(start))
	})
}

// TestAgentlessNodeObeys: a stop and the end of an attempt reach a node without an agent,
// and what happens there is heard.
func TestAgentlessNodeObeys(t *testing.T) {
	Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
		id := c.Submit(NewSpec("a", 4, Script{Steps: 100000, StepTime: 100 * ms, Silent: true}))
		c.WaitStep(id, 60, time.Minute)
		first, last := c.View().Job(id).Last().Ranks[0].Node, c.View().Job(id).Last().Ranks[3].Node
		c.Node(first).KillAgent()
		c.Wait("it is agentless", time.Minute, nodeIs(first, api.NodeAgentless))
		c.Node(last).KillRank(id, 3)
		start := time.Now()
		if d := c.since(start, "every rank is gone", time.Minute, c.firstIsGone(id)); d > 2*time.Second {
			t.Errorf("ranks on the agentless node ended %s later", d)
		}
		// Whoever has to start anyway does not wait for the agent for long.
		if d := c.since(start, "it runs elsewhere", time.Minute, runs(id, 1)); d > 20*time.Second {
			t.Errorf("running elsewhere after %s", d)
		}
		c.WaitStep(id, 5, time.Minute)
		second := c.View().Job(id).Last().Ranks[0].Node
		c.Node(second).KillAgent()
		c.Wait("it is agentless", time.Minute, nodeIs(second, api.NodeAgentless))
		if !c.Node(second).KillRank(id, 0) {
			t.Fatal("rank 0 does not run there")
		}
		c.Wait("its end is heard", 5*time.Second, func(v *state.View) bool {
			return v.Job(id).Last().Number > 1 || v.Job(id).Attempts[1].Ended != 0
		})
		if f := c.View().Job(id).Attempts[1].Failure; f == nil || f.Rank != 0 {
			t.Errorf("charged to %+v", f)
		}
		if j, err := c.Stop(id, time.Second, time.Minute); err != nil || j.State != api.Stopped {
			t.Errorf("%v %v", j.State, err)
		}
		for _, n := range []string{first, second} {
			c.Node(n).StartAgent()
		}
		c.books()
	})
}

// TestAgentStopped: an agent that is stopped holds its connection and says nothing; its
// shims notice and call.
func TestAgentStopped(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		id := c.Submit(NewSpec("a", 4, Script{Steps: 400, StepTime: 100 * ms}))
		c.WaitStep(id, 5, time.Minute)
		n := c.Node("n1")
		n.Stun(true)
		c.Wait("it is agentless", 10*time.Second, nodeIs("n1", api.NodeAgentless))
		time.Sleep(20 * time.Second)
		n.Stun(false)
		c.Wait("it is back", 10*time.Second, nodeIs("n1", api.NodeReady))
		c.WaitState(id, 5*time.Minute, api.Succeeded)
		c.untouched(id, 4)
		c.books()
	})
}

// TestShimFreesNoDevice: that a device is free is proved by an agent, which looks at it; the
// word of a shim on an agentless node is not enough (P2).
func TestShimFreesNoDevice(t *testing.T) {
	nodes := four()[:3]
	for i := range nodes {
		nodes[i].GPUs = "fake:1x80GiB"
	}
	Run(t, Options{Nodes: nodes}, func(c *Cluster) {
		spec := NewSpec("a", 2, Script{Steps: 100000, StepTime: 100 * ms})
		spec.Resources.GPUs, spec.Strategy = 1, api.StrictSpread
		id := c.Submit(spec)
		c.WaitStep(id, 60, time.Minute)
		node := c.View().Job(id).Last().Ranks[0].Node
		c.Node(node).KillAgent()
		c.Wait("it runs elsewhere", 10*time.Minute, runs(id, 1))
		time.Sleep(time.Minute)
		if u := c.View().UseOf(node); len(u.Devices) != 1 {
			t.Errorf("%s is charged %+v before its agent has looked", node, u)
		}
		c.Node(node).StartAgent()
		c.Wait("the device is free", time.Minute, func(v *state.View) bool { return len(v.UseOf(node).Devices) == 0 })
	})
}
