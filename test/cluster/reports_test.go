package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Cases of public bug reports about other schedulers, as far as they are of state: what
// leaks, what is counted twice, what comes back to life. The second set of books looks on
// in all of them.

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

// TestRestartIsChargedWhole: the ranks of a gang are charged until the gang has ended,
// whichever of them have, and once when it starts again.
func TestRestartIsChargedWhole(t *testing.T) {
	Run(t, Options{Nodes: four()}, func(c *Cluster) {
		c.limit(3)
		s := ofTenant("gang", 3, 100)
		s.Command = NewSpec("gang", 3, Script{Steps: 100, StepTime: 100 * ms, Dies: []Death{{Attempt: 0, Rank: 2, Step: 20, Code: 1}}}).Command
		id := c.Submit(s)
		second := c.Submit(ofTenant("second", 1, 10))
		c.Wait("it runs again", time.Minute, func(v *state.View) bool {
			if n := charged(v); n > 3 {
				t.Fatalf("charged %d", n)
			}
			j := v.Job(id)
			return j.State == api.Running && len(j.Attempts) == 2
		})
		if n := charged(c.View()); n != 3 || c.View().Job(second).State != api.Queued {
			t.Errorf("charged %d, the second is %s", n, c.View().Job(second).State)
		}
		c.WaitState(id, time.Minute, api.Succeeded)
		c.WaitState(second, time.Minute, api.Succeeded)
		c.books()
	})
}

// TestWhatEndedIsChargedNothing: however a job ends, its tenant is charged nothing in the
// entry that ends it, and the next one starts.
func TestWhatEndedIsChargedNothing(t *testing.T) {
	zero := int64(0)
	for name, end := range map[string]func(c *Cluster, s *api.JobSpec) func(id string){
		"it cannot start": func(_ *Cluster, s *api.JobSpec) func(string) {
			s.Command = NewSpec("x", 3, Script{Steps: 1, NoStart: 100}).Command
			return func(string) {}
		},
		"its program fails": func(_ *Cluster, s *api.JobSpec) func(string) {
			s.Command = NewSpec("x", 3, Script{Steps: 5, StepTime: 100 * ms, Exit: 3}).Command
			return func(string) {}
		},
		"its time is over": func(_ *Cluster, s *api.JobSpec) func(string) {
			s.TimeLimit = unit.Duration(5 * time.Second)
			return func(string) {}
		},
		"it is stopped before it starts": func(_ *Cluster, s *api.JobSpec) func(string) {
			s.Hold = true
			return nil
		},
		"it is stopped": func(c *Cluster, _ *api.JobSpec) func(string) {
			return func(id string) { _, _ = c.Stop(id, time.Second, time.Minute) }
		},
		"its node is lost for good": func(c *Cluster, s *api.JobSpec) func(string) {
			s.Restart.Infra = &zero
			return func(id string) {
				c.WaitStep(id, 3, time.Minute)
				c.firstNode(id).Kill()
			}
		},
		"its owner has gone, out of sight": func(c *Cluster, s *api.JobSpec) func(string) {
			s.Owner = &api.Owner{BootID: c.Node("n1").boot(), PID: 4242, StartTime: 1}
			return func(id string) {
				c.WaitStep(id, 3, time.Minute)
				n := c.Node("n1")
				n.CutAgent()
				n.EndOwner(id)
				c.goBy(30 * time.Second)
				n.Heal()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			Run(t, Options{Nodes: four()}, func(c *Cluster) {
				c.limit(3)
				s := ofTenant("gang", 3, 1_000_000)
				s.Restart.MaxRestarts, s.Restart.NoBackoff = &zero, true
				do := end(c, &s)
				id := c.Submit(s)
				next := c.Submit(ofTenant("next", 3, 10))
				if do != nil {
					do(id)
				} else if _, err := c.Stop(id, 0, time.Minute); err != nil {
					t.Fatal(err)
				}
				c.WaitState(id, 30*time.Minute, api.Failed, api.Stopped, api.Succeeded)
				c.WaitState(next, 5*time.Minute, api.Succeeded)
				if n := charged(c.View()); n != 0 {
					t.Errorf("charged %d", n)
				}
			})
		})
	}
}

// TestReleaseIsRepeated: what a head tells a node to end does not get there for a while,
// though the node is heard: it is told again until it has ended, and stays charged.
func TestReleaseIsRepeated(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		c.limit(2)
		id := c.Submit(ofTenant("gang", 2, 1_000_000))
		c.WaitStep(id, 3, time.Minute)
		n, h := c.Node("n1"), c.Leader()
		c.Bus.CutOneWay(h.identity(), n.identity())
		c.Bus.CutOneWay(h.identity(), shimIdentity+n.ID)
		next := c.Submit(ofTenant("next", 2, 10))
		c.spawn(func() { _, _ = c.Stop(id, time.Second, 5*time.Minute) })
		c.goBy(3 * time.Second) // six words of the head and more
		if u := c.View().UseOf("n1").CPU; u != 2000 || len(c.Hosts.Live(id)) == 0 || c.View().Job(next).State == api.Running {
			t.Errorf("n1 is charged %d, %v runs, the next is %s", u, c.Hosts.Live(id), c.View().Job(next).State)
		}
		c.Bus.Heal(h.identity(), n.identity())
		c.Bus.Heal(h.identity(), shimIdentity+n.ID)
		c.WaitState(next, 5*time.Minute, api.Succeeded)
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

// TestRequeueStandsWhereItComes: a job that is requeued has no turn of its former life: it
// waits from now on, and what it used then counts at once.
func TestRequeueStandsWhereItComes(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		c.Wait("a leader takes the tenants", time.Minute, func(*state.View) bool {
			h := c.control()
			return h != nil && h.PutQueues(c.ctx, api.QueuesRequest{Queues: []api.Queue{{Name: "x", Tenant: true}, {Name: "y", Tenant: true}}}) == nil
		})
		job := func(name, tenant string, steps int64) api.JobSpec {
			s := NewSpec(name, 2, Script{Steps: steps, StepTime: 100 * ms})
			s.Tenant, s.Resources = tenant, api.Resources{CPU: 1000}
			return s
		}
		gpu := NewSpec("used", 1, Script{Steps: 3000, StepTime: 100 * ms})
		gpu.Tenant = "x"
		used := c.Submit(gpu)
		c.WaitState(used, 10*time.Minute, api.Succeeded)
		c.goBy(10 * time.Hour) // it would be old by now
		blocks := c.Submit(job("blocks", "y", 1_000_000))
		c.WaitState(blocks, time.Minute, api.Running)
		h := c.control()
		asked := time.Now()
		again, err := h.Requeue(c.ctx, used, headapi.Idempotency{})
		if err != nil {
			t.Fatal(err)
		}
		g := c.View().Group(c.View().Job(again.ID).Group)
		if since := time.Unix(0, max(g.Since, g.Created)); since.Before(asked) || g.Seq < c.View().Group(c.View().Job(blocks).Group).Seq {
			t.Errorf("it waits since %s, asked for at %s; its seniority is %d", since, asked, g.Seq)
		}
		rows, _, err := h.QueueOrder(c.ctx, "")
		if err != nil || len(rows) != 1 || rows[0].Since.Before(asked) {
			t.Errorf("%+v, %v", rows, err)
		}
		// What a tenant may ask for is looked at anew.
		low := int64(-1)
		if err := h.PutQueues(c.ctx, api.QueuesRequest{Queues: []api.Queue{{Name: "x", Tenant: true, MaxPriority: &low}}}); err != nil {
			t.Fatal(err)
		}
		var p *api.Problem
		if _, err := h.Requeue(c.ctx, used, headapi.Idempotency{}); !errors.As(err, &p) || p.Exit != api.ExitDenied {
			t.Errorf("it is requeued with a priority that it may not have any more: %v", err)
		}
	})
}

// TestQueueCountsAreTheSets: what is said of how many wait, are parked and run is how many
// there are, after each thing that happens.
func TestQueueCountsAreTheSets(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		c.limit(3)
		check := func(after string) {
			t.Helper()
			c.goBy(time.Second)
			var want [3]int64
			for _, g := range c.View().Groups() {
				switch {
				case g.Spec.Tenant != "nlp":
				case g.State == api.GroupPlaced:
					want[0]++
				case g.State == api.GroupPending && g.Parked != "":
					want[1]++
				case g.State == api.GroupPending:
					want[2]++
				}
			}
			qs, _, err := c.control().Queues(c.ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, q := range qs {
				if got := [3]int64{q.Running, q.Parked, q.Pending}; q.Name == "nlp" && got != want {
					t.Errorf("after %s: running, parked, pending are %v, there are %v", after, got, want)
				}
			}
			rows, _, err := c.control().QueueOrder(c.ctx, "nlp")
			if err != nil || int64(len(rows)) != want[2] {
				t.Errorf("after %s: %d stand in the order, %d wait; %v", after, len(rows), want[2], err)
			}
		}
		var ids []string
		for i := range 6 {
			ids = append(ids, c.Submit(ofTenant(fmt.Sprintf("j%d", i), 1, 1_000_000)))
			check("a submission")
		}
		h := c.control()
		_, _ = h.HoldJob(c.ctx, ids[5], "")
		check("a hold")
		_, _ = c.Stop(ids[0], time.Second, time.Minute)
		check("a stop")
		_, _ = c.Stop(ids[5], time.Second, time.Minute)
		check("a stop of what is held")
		_, _ = h.SuspendJob(c.ctx, ids[1], time.Second, "")
		c.WaitState(ids[1], time.Minute, api.Suspended)
		check("a suspension")
		c.firstNode(ids[2]).Kill()
		c.goBy(30 * time.Second)
		check("a loss")
		c.crashLeader(time.Second)
		c.goBy(30 * time.Second)
		check("another leader")
	})
}

// TestCauseOfPreemptionIsKept: why a job waits is who it left for, however often it is
// looked at, and whoever leads, until it runs again; that it did stays in its record.
func TestCauseOfPreemptionIsKept(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		low := c.Submit(preemptible("low", 2, 3000))
		c.WaitStep(low, 5, time.Minute)
		c.goBy(2 * time.Minute)
		high := c.Submit(important("high", 2, 3000))
		c.WaitState(low, time.Minute, api.Queued)
		kept := func(after string) {
			t.Helper()
			if r := c.View().Job(low).Reason; r == nil || r.Code != api.ReasonPreempted || !strings.Contains(r.Text, high) {
				t.Errorf("after %s: %+v", after, r)
			}
		}
		kept("the end")
		other := c.Submit(important("other", 2, 10))
		c.goBy(time.Minute)
		kept("other work")
		c.crashLeader(time.Second)
		c.goBy(30 * time.Second)
		kept("another leader")
		_, _ = c.Stop(other, 0, time.Minute)
		c.WaitState(high, 10*time.Minute, api.Succeeded)
		c.WaitState(low, 20*time.Minute, api.Succeeded)
		if e := eventsOf(c.View(), "job/"+low); strings.Count(e, "job-preempted") != 1 {
			t.Errorf("events: %s", e)
		}
	})
}

// TestScaleWithinQuota: a job of three of five grows to five; eight are refused by the name
// of the quota; what others use is waited for, and the ranks run on meanwhile.
func TestScaleWithinQuota(t *testing.T) {
	Run(t, Options{Nodes: four()}, func(c *Cluster) {
		c.limit(5)
		id := c.Submit(ofTenant("gang", 3, 1_000_000))
		c.WaitStep(id, 10, time.Minute)
		_, err := c.control().Scale(c.ctx, id, 8, "")
		var p *api.Problem
		if !errors.As(err, &p) || p.Exit != api.ExitNever || !strings.Contains(p.Detail, "tenant nlp guarantees 5 CPU, 3 in use; the request asks for 8 CPU") {
			t.Errorf("eight of five: %v", err)
		}
		other := c.Submit(ofTenant("other", 1, 100))
		c.WaitState(other, time.Minute, api.Running)
		c.scale(id, 5)
		c.goBy(5 * time.Second)
		if j := c.View().Job(id); len(j.Last().Ranks) != 3 || charged(c.View()) != 4 {
			t.Errorf("%d ranks, charged %d", len(j.Last().Ranks), charged(c.View()))
		}
		c.WaitState(other, 5*time.Minute, api.Succeeded)
		c.waitRanks(id, 5, 5*time.Minute)
		if n := charged(c.View()); n != 5 {
			t.Errorf("charged %d", n)
		}
	})
}

// TestTenResizes: ten other sizes are asked for within a second. The last one holds; there
// is one size at a time, and what is charged is what runs.
func TestTenResizes(t *testing.T) {
	Run(t, Options{Nodes: four()}, func(c *Cluster) {
		c.limit(8)
		id := c.Submit(ofTenant("gang", 3, 1_000_000))
		c.WaitStep(id, 10, time.Minute)
		var said []error
		for i := range 10 {
			_, err := c.control().Scale(c.ctx, id, []int64{6, 1, 8, 2, 7, 3, 5, 1, 8, 4}[i], "")
			said = append(said, err)
			c.goBy(100 * ms)
		}
		if said[9] != nil {
			t.Fatalf("the last one was refused: %v", said[9])
		}
		c.waitRanks(id, 4, 5*time.Minute)
		c.goBy(time.Minute)
		j := c.View().Job(id)
		if len(j.Last().Ranks) != 4 || j.Drain != nil || charged(c.View()) != 4 || len(c.Hosts.Live(id)) != 4 || j.Ledger.Failed != 0 {
			t.Errorf("%d ranks, drain %+v, charged %d, %v runs, ledger %+v", len(j.Last().Ranks), j.Drain, charged(c.View()), c.Hosts.Live(id), j.Ledger)
		}
	})
}

// TestShrinkWakesWhoWaits: room that a job gives back by itself goes to who waits for it.
func TestShrinkWakesWhoWaits(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		id := c.Submit(training(4, 1_000_000))
		c.WaitStep(id, 10, time.Minute)
		next := c.Submit(NewSpec("next", 2, Script{Steps: 10, StepTime: 100 * ms}))
		c.goBy(10 * time.Second)
		if s := c.View().Job(next).State; s != api.Queued {
			t.Fatalf("the next is %s", s)
		}
		c.scale(id, 2)
		c.WaitState(next, time.Minute, api.Succeeded)
		c.waitRanks(id, 2, time.Minute)
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
