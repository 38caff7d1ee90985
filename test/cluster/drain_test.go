package cluster

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/head/control"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// training is a job that never saves by itself: what is saved was agreed on.
func training(ranks, steps int64) api.JobSpec {
	spec := NewSpec("a", ranks, Script{Steps: steps, StepTime: 100 * ms})
	spec.Checkpoint.KeepLast = 100
	return spec
}

// drain drains a node through the leader, whichever that is by then.
func (c *Cluster) drain(node string, deadline time.Duration) {
	c.Wait("the node is drained by a leader", time.Minute, func(*state.View) bool {
		h := c.control()
		if h == nil {
			return false
		}
		ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
		defer cancel()
		_, err := h.DrainNode(ctx, node, true, deadline, "maintenance")
		return err == nil
	})
}

func (c *Cluster) nodeOf(id string) *api.Node {
	if h := c.control(); h != nil {
		nodes, _, err := h.Nodes(c.ctx)
		for _, n := range nodes {
			if err == nil && n.ID == id {
				return &n
			}
		}
	}
	return nil
}

func (c *Cluster) waitDrained(node string, limit time.Duration) {
	c.Wait(node+" is drained", limit, func(*state.View) bool {
		n := c.nodeOf(node)
		return n != nil && n.Cordon.Word() == "drained"
	})
}

func usesNode(a *state.Attempt, node string) bool {
	return slices.ContainsFunc(a.Ranks, func(r state.RankPlace) bool { return r.Node == node })
}

// TestNodeDrain: the ranks agree on a step while they train, save it and end; the job goes
// on elsewhere from that very step, uncharged.
func TestNodeDrain(t *testing.T) {
	Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
		id := c.Submit(training(4, 200))
		c.WaitStep(id, 20, time.Minute)
		old := c.View().Job(id).Last()
		node := old.Ranks[0].Node
		start := time.Now()
		c.drain(node, 0)
		c.waitDrained(node, time.Minute)
		t.Logf("drained after %s", time.Since(start))
		v := c.Wait("the next attempt runs", time.Minute, func(v *state.View) bool {
			j := v.Job(id)
			return j != nil && len(j.Attempts) == 2 && j.State == api.Running
		})
		j := v.Job(id)
		next := j.Last()
		if usesNode(next, node) || next.Restore == nil || next.Restore.Step != j.Proposal.Target {
			t.Errorf("attempt 1 on %v restores %+v, agreed was step %d", next.Ranks, next.Restore, j.Proposal.Target)
		}
		if l := j.Ledger; l.Failed != 0 || j.Attempts[0].Cause != api.CauseNone {
			t.Errorf("charged: %+v, %s", l, j.Attempts[0].Cause)
		}
		if j.Drain != nil {
			t.Errorf("the drain goes on: %+v", j.Drain)
		}
		if _, err := c.control().UncordonNode(c.ctx, node); err != nil {
			t.Fatal(err)
		}
		c.WaitState(id, 2*time.Minute, api.Succeeded)
		c.books()
	})
}

// TestDrainWithoutRoom: a gang that fits nowhere else waits whole, with its seniority and a
// reason that names the drain (P1, P7).
func TestDrainWithoutRoom(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		spec := training(2, 100)
		spec.Strategy = api.StrictSpread
		id := c.Submit(spec)
		c.WaitStep(id, 5, time.Minute)
		seq := c.View().Group(c.View().Job(id).Group).Seq
		c.drain("n1", 0)
		c.waitDrained("n1", time.Minute)
		j := c.WaitState(id, time.Minute, api.Queued)
		if g := c.View().Group(j.Group); g.Seq != seq || len(g.Placed) != 0 {
			t.Errorf("group %+v, seniority was %d", g, seq)
		}
		w, err := c.control().Why(c.ctx, "job/"+id)
		if err != nil || len(w.Reasons) == 0 {
			t.Errorf("why: %+v, %v", w, err)
		}
		t.Logf("why: %s", w.Answer)
		if _, err := c.control().UncordonNode(c.ctx, "n1"); err != nil {
			t.Fatal(err)
		}
		c.WaitState(id, time.Minute, api.Succeeded)
		c.books()
	})
}

// TestDrainDeadline: a script that never calls should_checkpoint is ended by TERM, and the
// event says so; one that agrees to nothing is ended at the deadline and not before.
func TestDrainDeadline(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		spec := NewSpec("deaf", 2, Script{Steps: 600, StepTime: 100 * ms, Deaf: true})
		id := c.Submit(spec)
		c.WaitStep(id, 5, time.Minute)
		node := c.View().Job(id).Last().Ranks[0].Node
		c.drain(node, 0)
		c.waitDrained(node, time.Minute)
		said := false
		for _, e := range c.View().RecentEvents("job/"+id, 100) {
			said = said || e.Type == "drain-ordered"
			t.Log(e.Type, e.Text)
		}
		if j := c.View().Job(id); !said || j.Ledger.Failed != 0 {
			t.Errorf("told %v, ledger %+v", said, j.Ledger)
		}
		if _, err := c.Stop(id, time.Second, time.Minute); err != nil {
			t.Fatal(err)
		}
		c.books()
	})
}

// TestStopWithCheckpoint: STOPPED, with the newest step saved.
func TestStopWithCheckpoint(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		id := c.Submit(training(4, 2000))
		c.WaitStep(id, 30, time.Minute)
		ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
		defer cancel()
		j, err := c.control().StopSaved(ctx, id, 0, "enough")
		if err != nil || j.State != api.Stopped || j.Committed == nil || *j.Committed < 30 {
			t.Fatalf("%+v, %v", j, err)
		}
		p := c.View().Job(id).Proposal
		if *j.Committed != p.Target || len(j.Attempts) != 1 || len(c.Hosts.Live(id)) > 0 {
			t.Errorf("committed %d, agreed %d, %d attempts", *j.Committed, p.Target, len(j.Attempts))
		}
		c.books()
	})
}

// TestProposeCheckpoint: the ranks save after agreed steps and go on; two in a row.
func TestProposeCheckpoint(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		id := c.Submit(training(4, 200))
		c.WaitStep(id, 5, time.Minute)
		for k := range 3 {
			before := len(committedSteps(c.View(), "a"))
			c.control().ProposeCheckpoint(id)
			c.Wait(fmt.Sprintf("save %d", k), time.Minute, func(v *state.View) bool { return len(committedSteps(v, "a")) > before })
		}
		j := c.WaitState(id, time.Minute, api.Succeeded)
		if len(j.Attempts) != 1 || j.Proposal.Number < 3 {
			t.Errorf("%d attempts, %d proposals", len(j.Attempts), j.Proposal.Number)
		}
		c.books()
	})
}

// TestDrainSurvivesLeader: a head that ends at any point of an agreement and of a drain
// costs no step: the job goes on from the step that was agreed on.
func TestDrainSurvivesLeader(t *testing.T) {
	for _, heads := range []int{1, 3} {
		for _, point := range []string{
			"drain-node", "drain-job", "propose", "heartbeat", "desired", "decide", "prepared", "commit", "done", "facts", "supervise", "release",
		} {
			t.Run(fmt.Sprintf("%s of %d heads", point, heads), func(t *testing.T) {
				Run(t, Options{Heads: heads, Nodes: four()[:3]}, func(c *Cluster) {
					id := c.Submit(training(4, 150))
					c.WaitStep(id, 10, time.Minute)
					node := c.View().Job(id).Last().Ranks[0].Node
					c.Trip(point, 1, func() { c.crashLeader(time.Second) })
					c.drain(node, 0)
					c.waitDrained(node, 3*time.Minute)
					if !c.Tripped() {
						t.Fatal("the point was never passed")
					}
					j := c.WaitState(id, 3*time.Minute, api.Succeeded)
					last := j.Last()
					if usesNode(last, node) || last.Restore == nil || last.Restore.Step != j.Proposal.Target || j.Ledger.Failed != 0 {
						t.Errorf("attempts %d, the last on %v restores %+v, agreed %+v, ledger %+v", len(j.Attempts), last.Ranks, last.Restore, j.Proposal, j.Ledger)
					}
					c.books()
				})
			})
		}
	}
}

// TestNodeLostDuringProposal: an open proposal is dropped when a node of the group falls
// silent, none is opened while it is, and the job recovers from the loss as ever.
func TestNodeLostDuringProposal(t *testing.T) {
	for _, point := range []string{"propose", "decide", "prepared"} {
		t.Run(point, func(t *testing.T) {
			Run(t, Options{Nodes: four()}, func(c *Cluster) {
				spec := training(3, 100)
				spec.Strategy = api.StrictSpread
				id := c.Submit(spec)
				c.WaitStep(id, 10, time.Minute)
				ranks := c.View().Job(id).Last().Ranks
				lost := ranks[1].Node
				c.Trip(point, 1, func() { c.spawn(c.Node(lost).Kill) })
				c.drain(ranks[0].Node, 0)
				c.waitDrained(ranks[0].Node, 3*time.Minute)
				if _, err := c.control().UncordonNode(c.ctx, ranks[0].Node); err != nil {
					t.Fatal(err)
				}
				j := c.WaitState(id, 5*time.Minute, api.Succeeded)
				if usesNode(j.Last(), lost) {
					t.Errorf("it runs on %v", j.Last().Ranks)
				}
				c.Node(lost).Boot() // the proof that nothing of it is left
				c.books()
			})
		})
	}
}

// TestCutNodeFreesTheOthers: ranks that hold for a verdict are freed when it is dropped,
// and the node that was cut off learns of it when it is back.
func TestCutNodeFreesTheOthers(t *testing.T) {
	Run(t, Options{Nodes: four()[:2], Timing: control.Timing{Lost: time.Minute}}, func(c *Cluster) {
		spec := training(2, 200)
		spec.Strategy = api.StrictSpread
		id := c.Submit(spec)
		c.WaitStep(id, 10, time.Minute)
		n := c.Node("n2")
		c.Trip("propose", 1, n.Cut)
		c.control().ProposeCheckpoint(id)
		c.Wait("the proposal is dropped", time.Minute, func(v *state.View) bool {
			p := v.Job(id).Proposal
			return p != nil && p.Code == "node"
		})
		c.Wait("a minute", time.Minute, func(v *state.View) bool { return v.Node("n2").State == api.NodeSuspect })
		n.Heal()
		c.control().ProposeCheckpoint(id)
		c.Wait("a step is saved", time.Minute, func(v *state.View) bool { return len(committedSteps(v, "a")) > 0 })
		j := c.WaitState(id, time.Minute, api.Succeeded)
		if len(j.Attempts) != 1 {
			t.Errorf("%d attempts", len(j.Attempts))
		}
		c.books()
	})
}

// TestDrainDuringFailure: a rank that fails while the others agree is a failure like any
// other, and the job still leaves the node.
func TestDrainDuringFailure(t *testing.T) {
	Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
		id := c.Submit(training(4, 150))
		c.WaitStep(id, 10, time.Minute)
		node := c.View().Job(id).Last().Ranks[0].Node
		c.Trip("propose", 1, func() { c.spawn(func() { c.Node(node).KillRank(id, 0) }) })
		c.drain(node, 0)
		c.waitDrained(node, time.Minute)
		j := c.WaitState(id, time.Minute, api.Succeeded)
		if usesNode(j.Last(), node) || j.Ledger.Failed != 1 {
			t.Errorf("on %v, ledger %+v", j.Last().Ranks, j.Ledger)
		}
		c.books()
	})
}

// TestUndrain: a drain that is taken back before the ranks have agreed changes nothing.
func TestUndrain(t *testing.T) {
	Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
		spec := training(4, 150)
		id := c.Submit(spec)
		c.WaitStep(id, 10, time.Minute)
		node := c.View().Job(id).Last().Ranks[0].Node
		undrained := false
		c.Trip("propose", 1, func() {
			undrained = true
			c.spawn(func() {
				if _, err := c.control().UncordonNode(c.ctx, node); err != nil {
					c.fail("undrain: %v", err)
				}
			})
		})
		c.drain(node, 0)
		j := c.WaitState(id, time.Minute, api.Succeeded)
		if !undrained || len(j.Attempts) != 1 {
			t.Errorf("undrained %v, %d attempts", undrained, len(j.Attempts))
		}
		c.books()
	})
}

// TestUndrainWhileItEnds: ranks that were told to end do so, and the head proposes nothing
// meanwhile that it could know to be refused.
func TestUndrainWhileItEnds(t *testing.T) {
	Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
		spec := NewSpec("a", 2, Script{Steps: 1 << 30, StepTime: 100 * ms, Stubborn: true})
		spec.Kind = api.KindService
		id := c.Submit(spec)
		c.WaitStep(id, 5, time.Minute)
		node := c.View().Job(id).Last().Ranks[0].Node
		c.drain(node, 0)
		c.Wait("its ranks are told to end", time.Minute, func(v *state.View) bool { return v.Job(id).Ending() })
		if _, err := c.control().UncordonNode(c.ctx, node); err != nil {
			t.Fatal(err)
		}
		before := c.History.Refusals()
		c.Wait("the next attempt", 5*time.Minute, func(v *state.View) bool { return len(v.Job(id).Attempts) == 2 })
		if after := c.History.Refusals(); after > before+3 {
			t.Errorf("%d proposals were refused meanwhile", after-before)
		}
		c.WaitState(id, time.Minute, api.Running)
	})
}
