package cluster

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// hitRank kills rank 0 of a job on a node from outside and waits for the next attempt.
func (c *Cluster) hitRank(job, node string) {
	c.T.Helper()
	before := c.View().Job(job).Last().Number
	c.WaitState(job, time.Minute, api.Running)
	c.WaitStep(job, c.View().Job(job).Last().Pace.From+1, time.Minute)
	if !c.Node(node).KillRank(job, 0) {
		c.T.Fatalf("rank 0 of %s does not run on %s\n%s", job, node, c.Describe())
	}
	c.Wait("the next attempt", 5*time.Minute, func(v *state.View) bool {
		j := v.Job(job)
		return j.Last().Number > before || j.State == api.Queued
	})
}

// TestNodeExcluded: after three kills from outside on the same node within an hour the
// gang goes elsewhere, and one event says why.
func TestNodeExcluded(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		id := c.Submit(NewSpec("a", 2, Script{Steps: 1 << 30, StepTime: 100 * ms}))
		c.WaitState(id, time.Minute, api.Running)
		first := c.View().Job(id).Last().Ranks[0].Node
		for range 3 {
			c.hitRank(id, first)
		}
		c.WaitState(id, time.Minute, api.Running)
		j := c.View().Job(id)
		if got := j.Last().Ranks[0].Node; got == first {
			t.Fatalf("it is still on %s\n%s", got, c.Describe())
		}
		if j.Last().Number != 3 || j.Ledger.Infra != 3 || len(j.Ledger.Faults) != 3 {
			t.Errorf("attempt %d, %+v", j.Last().Number, j.Ledger)
		}
		said := 0
		for _, e := range c.View().RecentEvents("job/"+id, 100) {
			if e.Type == "node-excluded" {
				said++
				if !strings.Contains(e.Text, first) || !strings.Contains(e.Text, "3 failures within 1h") {
					t.Errorf("the event says %q", e.Text)
				}
			}
		}
		w, err := c.Leader().running().control.Why(context.Background(), "job/"+id)
		if err != nil || said != 1 || len(w.Reasons) != 1 || w.Reasons[0].Code != api.ReasonExcluded || w.Reasons[0].Where != first {
			t.Errorf("%d events, why says %+v, %v", said, w.Reasons, err)
		}
		got, err := c.Leader().running().control.Job(context.Background(), id)
		if err != nil || len(got.Excluded) != 1 || got.Excluded[0].Node != first || !got.Excluded[0].Until.After(got.Excluded[0].Since) {
			t.Errorf("%+v, %v", got.Excluded, err)
		}
	})
}

// TestExclusionWaits: where the other node is taken the gang waits, naming the node that
// it keeps off, and takes it again when its time is over.
func TestExclusionWaits(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		id := c.Submit(NewSpec("a", 2, Script{Steps: 1 << 30, StepTime: 100 * ms}))
		c.WaitState(id, time.Minute, api.Running)
		c.WaitState(c.Submit(NewSpec("b", 2, Script{Steps: 1 << 30, StepTime: 100 * ms})), time.Minute, api.Running)
		first := c.View().Job(id).Last().Ranks[0].Node
		for range 3 {
			c.hitRank(id, first)
		}
		v := c.WaitState(id, 5*time.Minute, api.Queued)
		excluded := time.Unix(0, v.Excluded[0].At)
		w, err := c.Leader().running().control.Why(context.Background(), "job/"+id)
		if err != nil || len(w.Reasons) == 0 || w.Reasons[0].Code != api.ReasonExcluded || !strings.Contains(w.Reasons[0].Text, first) || w.Reasons[0].Frees == "" {
			t.Fatalf("%+v %v", w, err)
		}
		c.WaitState(id, 2*time.Hour, api.Running)
		if d := time.Since(excluded); d < time.Hour || d > time.Hour+time.Minute {
			t.Errorf("it runs again after %s", d)
		}
		// The failures before the exclusion are more than an hour old by now.
		c.hitRank(id, first)
		c.WaitState(id, time.Minute, api.Running)
	})
}

// TestExclusionThatCannotBe: where the other nodes could never hold the gang, it keeps
// its node, because it would only wait for that.
func TestExclusionThatCannotBe(t *testing.T) {
	Run(t, Options{Nodes: []NodeOptions{{ID: "n1", CPU: 1000}, {ID: "n2", CPU: 4000}, {ID: "n3", CPU: 1000}}}, func(c *Cluster) {
		spec := NewSpec("a", 2, Script{Steps: 1 << 30, StepTime: 100 * ms})
		spec.Strategy = api.StrictPack
		id := c.Submit(spec)
		c.WaitState(id, time.Minute, api.Running)
		for range 3 {
			c.hitRank(id, "n2")
		}
		c.WaitState(id, time.Minute, api.Running)
		if j := c.View().Job(id); j.Last().Number != 3 || len(j.Excluded) != 0 {
			t.Errorf("attempt %d, keeps off %v", j.Last().Number, j.Excluded)
		}
	})
}

// TestNoExclusion: switched off, the gang stays where it is.
func TestNoExclusion(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		never := int64(0)
		spec := NewSpec("a", 2, Script{Steps: 1 << 30, StepTime: 100 * ms})
		spec.Restart.ExcludeAfter = &never
		id := c.Submit(spec)
		c.WaitState(id, time.Minute, api.Running)
		first := c.View().Job(id).Last().Ranks[0].Node
		for range 4 {
			c.hitRank(id, first)
		}
		c.WaitState(id, time.Minute, api.Running)
		if got := c.View().Job(id).Last().Ranks[0].Node; got != first || len(c.View().Job(id).Excluded) != 0 {
			t.Errorf("it is on %s, keeps off %v", got, c.View().Job(id).Excluded)
		}
	})
}

// TestCountIsGlobal: case 5: failures on one node and then on another are one count, and
// every rank of an attempt is given the same.
func TestCountIsGlobal(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		three := int64(3)
		spec := NewSpec("a", 4, Script{Steps: 1 << 30, StepTime: 100 * ms, Dies: []Death{
			{Attempt: 0, Rank: 0, Step: 5, Code: 1},
			{Attempt: 1, Rank: 3, Step: 6, Code: 1},
			{Attempt: 2, Rank: 0, Step: 7, Code: 1},
			{Attempt: 3, Rank: 3, Step: 8, Code: 9},
		}})
		spec.Restart = api.RestartPolicy{MaxRestarts: &three, NoBackoff: true}
		id := c.Submit(spec)
		j := c.WaitState(id, 10*time.Minute, api.Failed)
		if j.Last().Number != 3 || j.Ledger.Failed != 4 || *j.ExitCode != 9 {
			t.Errorf("attempt %d, %d failures, exit code %d", j.Last().Number, j.Ledger.Failed, *j.ExitCode)
		}
		for i := range j.Attempts {
			if j.Attempts[i].Number != int64(i) {
				t.Errorf("attempt %d stands at %d", j.Attempts[i].Number, i)
			}
		}
	})
}

// TestIntervalByTime: a job that saves every 20 s does so at steps that all ranks agree
// on, also under a new leader and in the next attempt.
func TestIntervalByTime(t *testing.T) {
	Run(t, Options{Heads: 3, Nodes: four()[:2]}, func(c *Cluster) {
		spec := NewSpec("a", 4, Script{Steps: 1 << 30, StepTime: 100 * ms})
		spec.Checkpoint.Interval = "20s"
		id := c.Submit(spec)
		c.WaitState(id, time.Minute, api.Running)
		c.WaitStep(id, 1, time.Minute)
		begun := time.Now()
		committed := func() (n int) {
			for _, e := range c.View().RecentEvents("job/"+id, 1000) {
				if e.Type == "checkpoint-committed" {
					n++
				}
			}
			return n
		}
		c.clock.Sleep(c.ctx, 105*time.Second)
		if n := committed(); n < 4 || n > 5 {
			t.Errorf("%d steps were committed in %s", n, time.Since(begun))
		}
		before := committed()
		c.Leader().Kill()
		c.Wait("another leader", time.Minute, func(*state.View) bool { return c.Leader() != nil })
		c.clock.Sleep(c.ctx, 5*time.Second)
		if n := committed(); n != before {
			t.Errorf("the new leader asks at once: %d steps, %d before", n, before)
		}
		c.clock.Sleep(c.ctx, 60*time.Second)
		if n := committed(); n < 6 || n > 9 {
			t.Errorf("%d steps were committed in %s", n, time.Since(begun))
		}
		c.Node("n1").KillRank(id, 0)
		c.Wait("the next attempt restores a step of the time", time.Minute, func(v *state.View) bool {
			last := v.Job(id).Last()
			return last.Number == 1 && last.Restore != nil
		})
		c.WaitState(id, time.Minute, api.Running)
		before = committed()
		c.clock.Sleep(c.ctx, 45*time.Second)
		if n := committed() - before; n < 1 || n > 3 {
			t.Errorf("%d steps were committed in 45 s of the next attempt", n)
		}
	})
}

// TestTimeIsAccounted: the parts of a job's time add up to the whole, before and after a
// change of the leader, and while it waits.
func TestTimeIsAccounted(t *testing.T) {
	Run(t, Options{Heads: 3, Nodes: four()[:2]}, func(c *Cluster) {
		spec := NewSpec("a", 4, Script{Steps: 1 << 30, StepTime: 100 * ms, Start: 5 * time.Second, Dies: []Death{{Attempt: 0, Rank: 1, Step: 300, Code: 1}}})
		spec.Checkpoint.Interval = "100steps"
		id := c.Submit(spec)
		account := func() api.Goodput {
			t.Helper()
			l := c.Leader()
			if l == nil {
				t.Fatal("nobody leads")
			}
			g, err := l.running().control.Goodput(context.Background(), id)
			if err != nil {
				t.Fatal(err)
			}
			var sum time.Duration
			for _, p := range g.Parts() {
				sum += p.Time.D()
			}
			if whole := time.Since(time.Unix(0, c.View().Job(id).Created)); sum != g.Wall.D() || sum != whole {
				t.Errorf("the parts are %s, the wall %s, the whole %s", sum, g.Wall, whole)
			}
			return g
		}
		account()
		c.Wait("the second attempt makes steps", 2*time.Minute, func(v *state.View) bool {
			last := v.Job(id).Last()
			return last != nil && last.Number == 1 && last.Pace.First != 0
		})
		c.clock.Sleep(c.ctx, 10*time.Second)
		g := account()
		// Ten seconds of 300 steps were not committed, or all but the last.
		if g.Restarts != 1 || g.Useful.D() < 25*time.Second || g.Restarting.D() < 5*time.Second || g.Starting.D() < 5*time.Second || g.Lost.D() > 11*time.Second {
			t.Errorf("%+v", g)
		}
		c.Leader().Kill()
		c.Wait("another leader", time.Minute, func(*state.View) bool { return c.Leader() != nil })
		c.clock.Sleep(c.ctx, 5*time.Second)
		after := account()
		if after.Lost != g.Lost || after.Starting != g.Starting || after.Restarting != g.Restarting || after.Useful < g.Useful {
			t.Errorf("before %+v\nafter %+v", g, after)
		}
		rows, _, err := c.Leader().running().control.History(context.Background(), id)
		if err != nil || len(rows) != 2 || rows[0].LostWork.D() != after.Lost.D() || rows[1].RecoveryTime == nil || rows[0].Cause != api.CauseUser {
			t.Errorf("%+v %v", rows, err)
		}
		fails, _, err := c.Leader().running().control.Failures(context.Background(), id)
		if err != nil || len(fails) == 0 || !fails[0].Root || fails[0].Rank != 1 || fails[0].Kind != "user" {
			t.Errorf("%+v %v", fails, err)
		}
	})
}
