package cluster

import (
	"context"
	"path"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// agentless kills the agent of a node that ranks of a job run on.
func (c *Cluster) agentless(id string, rank int) (node string) {
	node = c.View().Job(id).Last().Ranks[rank].Node
	c.Node(node).KillAgent()
	c.Wait("it is agentless", time.Minute, nodeIs(node, api.NodeAgentless))
	return node
}

// agreedEnd checks that the ranks of a job's first attempt have agreed on their end: told by
// TERM they would leave later steps behind.
func (c *Cluster) agreedEnd(id string) (target int64) {
	c.T.Helper()
	j := c.View().Job(id)
	p := j.Proposal
	if p == nil || !p.Stop || j.Ledger.Failed != 0 || j.Attempts[0].Cause != api.CauseNone {
		c.T.Fatalf("proposal %+v, ledger %+v, attempt 0 ended by %q\n%s", p, j.Ledger, j.Attempts[0].Cause, c.Describe())
	}
	return p.Target
}

// TestAgentlessNodeDrains: the ranks of a node without an agent hear a proposal from their
// shim's own connection, agree, save and leave; so the job goes on elsewhere from that step.
func TestAgentlessNodeDrains(t *testing.T) {
	for _, agents := range []string{"one", "every"} {
		t.Run(agents+" agent of the job is gone", func(t *testing.T) {
			Run(t, Options{Nodes: four()}, func(c *Cluster) {
				id := c.Submit(training(4, 600))
				c.WaitStep(id, 20, time.Minute)
				node := c.agentless(id, 0)
				if agents == "every" {
					c.agentless(id, 3)
				}
				c.drain(node, 0)
				c.waitDrained(node, 30*time.Second)
				v := c.Wait("the next attempt runs", time.Minute, runs(id, 1))
				target := c.agreedEnd(id)
				next := v.Job(id).Last()
				if usesNode(next, node) || next.Restore == nil || next.Restore.Step != target {
					t.Errorf("attempt 1 on %v restores %+v, agreed was step %d", next.Ranks, next.Restore, target)
				}
				c.WaitState(id, 5*time.Minute, api.Succeeded)
				for _, n := range []string{"n1", "n2", "n3", "n4"} {
					c.Node(n).StartAgent()
				}
				c.books()
			})
		})
	}
}

// TestAgentlessNodeStops: a job wholly on nodes without agents is stopped with a checkpoint:
// no agent is left to write the manifest and the mark, so a shim of the job does.
func TestAgentlessNodeStops(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		id := c.Submit(training(2, 6000))
		c.WaitStep(id, 30, time.Minute)
		node := c.agentless(id, 0)
		ctx, cancel := context.WithTimeout(c.ctx, 30*time.Second)
		defer cancel()
		j, err := c.control().StopSaved(ctx, id, 0, "enough")
		if err != nil || j.State != api.Stopped || j.Committed == nil {
			t.Fatalf("%+v, %v\n%s", j, err, c.Describe())
		}
		if target := c.agreedEnd(id); *j.Committed != target {
			t.Errorf("committed %d, agreed %d", *j.Committed, target)
		}
		c.Node(node).StartAgent()
		ck := c.View().NewestCommitted("a")
		c.Wait("its mark is written", time.Minute, func(*state.View) bool {
			_, err := c.Disk.Stat(path.Join(ck.Dir, checkpoint.CommittedFile))
			return err == nil
		})
		c.books()
	})
}

// TestAgentlessNodeSaves: a save by agreement goes on without the agent, and the ranks go on
// after it; the agent that comes back finds everything as it should be.
func TestAgentlessNodeSaves(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		id := c.Submit(training(2, 400))
		c.WaitStep(id, 20, time.Minute)
		node := c.agentless(id, 0)
		for k := range 2 {
			c.control().ProposeCheckpoint(id)
			c.Wait("a step is saved", 30*time.Second, func(v *state.View) bool { return len(committedSteps(v, "a")) > k })
		}
		ck := c.View().NewestCommitted("a")
		c.Wait("its mark is written", 10*time.Second, func(*state.View) bool {
			_, err := c.Disk.Stat(path.Join(ck.Dir, checkpoint.CommittedFile))
			return err == nil
		})
		if n := c.View().Node(node); n.State != api.NodeAgentless {
			t.Errorf("%s is %s", node, n.State)
		}
		c.Node(node).StartAgent()
		if j := c.WaitState(id, 2*time.Minute, api.Succeeded); len(j.Attempts) != 1 {
			t.Errorf("%d attempts", len(j.Attempts))
		}
		c.books()
	})
}
