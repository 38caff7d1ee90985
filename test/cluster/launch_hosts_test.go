package cluster

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/head/control"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// launchHosts are n hosts of a launch, h1 with one rank, the others with two.
func launchHosts(n int) []NodeOptions {
	var out []NodeOptions
	for i := 1; i <= n; i++ {
		ranks := min(i, 2)
		out = append(out, NodeOptions{ID: fmt.Sprintf("h%d", i), Labels: map[string]string{api.LabelRanks: strconv.Itoa(ranks)}})
	}
	return out
}

func launchSpec(min, max, restarts int64) api.JobSpec {
	spec := NewSpec("l", 1, Script{Steps: 100000, StepTime: 100 * ms})
	spec.Restart = api.RestartPolicy{MaxRestarts: &restarts, NoBackoff: true}
	spec.Hosts = &api.HostsSpec{Min: min, Max: max}
	return spec
}

// onHosts is the hosts of a running attempt in rank order, "h1 h2 h2"; "" before.
func onHosts(j *state.Job, attempt int64) string {
	if j == nil || j.State != api.Running || j.Last() == nil || j.Last().Number != attempt {
		return ""
	}
	var names []string
	for _, r := range j.Last().Ranks {
		names = append(names, r.Node)
	}
	return strings.Join(names, " ")
}

// endLaunch gives every host back and ends the job: then the books must be balanced.
func (c *Cluster) endLaunch(job string) {
	c.T.Helper()
	for _, n := range c.nodes {
		if !n.Up() {
			n.Boot()
		}
	}
	c.Wait("every host is back", time.Minute, func(v *state.View) bool {
		for _, n := range v.Nodes() {
			if n.State != api.NodeReady {
				return false
			}
		}
		return true
	})
	if !c.View().Job(job).State.Terminal() {
		if _, err := c.Stop(job, -1, time.Minute); err != nil {
			c.T.Errorf("stop: %v", err)
		}
	}
	c.books()
}

func (c *Cluster) waitHosts(job string, attempt int64, want string) {
	c.T.Helper()
	c.Wait(fmt.Sprintf("attempt %d on %s", attempt, want), 2*time.Minute, func(v *state.View) bool { return onHosts(v.Job(job), attempt) == want })
}

// Hosts come and go within MIN:MAX with no restart allowed, and the leader dies at each
// turn: nothing is charged, ranks follow the hosts that stay, nothing else is formed.
func TestLaunchHostsComeAndGo(t *testing.T) {
	for _, heads := range []int{1, 3} {
		Run(t, Options{Nodes: launchHosts(4), Heads: heads, Seed: 11}, func(c *Cluster) {
			turn := func() {
				if heads == 3 {
					h := c.Leader()
					h.Kill()
					h.Start()
				}
			}
			c.Node("h3").Kill()
			c.Node("h4").Kill()
			c.Wait("two hosts are lost", time.Minute, func(v *state.View) bool {
				return v.Node("h3").State == api.NodeLost && v.Node("h4").State == api.NodeLost
			})
			id := c.Submit(launchSpec(2, 3, 0))
			c.waitHosts(id, 0, "h1 h2 h2") // after the last call: a third did not come
			turn()
			c.Node("h3").Boot()
			c.waitHosts(id, 1, "h1 h2 h2 h3 h3")
			c.Node("h4").Boot() // one too many
			c.WaitStep(id, 3, time.Minute)
			c.Node("h2").Kill()
			turn()
			c.waitHosts(id, 2, "h1 h3 h3 h4 h4")
			c.Node("h2").Boot() // it waits now
			c.WaitStep(id, 3, time.Minute)
			v := c.View()
			if j := v.Job(id); onHosts(j, 2) == "" || j.Ledger.Failed != 0 {
				t.Errorf("%d heads: attempt %d, %s, ledger %+v", heads, j.Last().Number, j.State, j.Ledger)
			}
			c.endLaunch(id)
		})
	}
}

// What is left is below MIN: that is a failure, and counts. The verdict does not depend
// on how fast the host comes back.
func TestLaunchBelowMin(t *testing.T) {
	for _, away := range []time.Duration{200 * ms, 20 * time.Second} {
		for budget, want := range map[int64]api.JobState{0: api.Failed, 1: api.Running} {
			Run(t, Options{Nodes: launchHosts(2), Seed: uint64(budget)}, func(c *Cluster) {
				id := c.Submit(launchSpec(2, 2, budget))
				c.waitHosts(id, 0, "h1 h2 h2")
				c.WaitStep(id, 2, time.Minute)
				c.Node("h2").KillProcesses()
				c.clock.Sleep(c.ctx, away)
				c.Node("h2").Recover()
				j := c.WaitState(id, 3*time.Minute, want, api.Failed)
				if j.State == api.Running && onHosts(j, 0) != "" {
					c.waitHosts(id, 1, "h1 h2 h2")
					j = c.View().Job(id)
				}
				if j.State != want || j.Ledger.Failed != 1 {
					t.Errorf("away for %s with %d restarts: %s, ledger %+v", away, budget, j.State, j.Ledger)
				}
				c.endLaunch(id)
			})
		}
	}
}

// Too few hosts for too long: the job ends, resumably, and says so; before that it says
// what it waits for (P7).
func TestLaunchGivesUp(t *testing.T) {
	Run(t, Options{Nodes: launchHosts(1)}, func(c *Cluster) {
		spec := launchSpec(2, 2, 0)
		id := c.Submit(spec)
		j, err := c.Leader().running().control.Job(c.ctx, id)
		if err != nil || j.State != api.Queued || j.Reason == nil || !strings.Contains(j.Reason.Text, "1 of at least 2 hosts") {
			t.Errorf("it waits for %+v, %v", j.Reason, err)
		}
		begin := c.clock.Now()
		got := c.WaitState(id, 15*time.Minute, api.Failed)
		if d := c.clock.Now().Sub(begin); d < 9*time.Minute || d > 11*time.Minute || got.ExitCode == nil || *got.ExitCode != api.ExitRetry {
			t.Errorf("after %s: %+v, code %v", d, got.Reason, got.ExitCode)
		}
		c.endLaunch(id)
	})
}

// The timing of a launch over hosts: a host that dies is out within four seconds.
func TestLaunchNoticesSoon(t *testing.T) {
	Run(t, Options{Nodes: launchHosts(3), Timing: control.Timing{Suspect: 2 * time.Second, Lost: 3500 * ms}}, func(c *Cluster) {
		id := c.Submit(launchSpec(2, 3, 0))
		c.waitHosts(id, 0, "h1 h2 h2 h3 h3")
		c.WaitStep(id, 3, time.Minute)
		begin := c.clock.Now()
		c.Node("h2").Kill()
		c.waitHosts(id, 1, "h1 h3 h3")
		if d := c.clock.Now().Sub(begin); d > 8*time.Second {
			t.Errorf("it took %s", d)
		}
		c.endLaunch(id)
	})
}
