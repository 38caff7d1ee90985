package cluster

import (
	"errors"
	"fmt"
	"testing"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// What public bug reports about other schedulers say of books: what leaks, and what is
// counted twice. The second set of books looks on in all of them.

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
			for _, r := range rows {
				if r.Reason != nil && r.Reason.Code == api.ReasonQuota && (r.Planned == nil || r.Start.IsZero() || !r.Start.Equal(r.Planned.Start)) {
					t.Errorf("after %s: %s is refused by its quota and expected to start at %s, by %+v", after, r.Name, r.Start, r.Planned)
				}
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
