package cluster

import (
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// TestFaultsWhileVictimsLeave: between the entry that tells a victim to leave and its end
// something is lost. The claim comes true or is given up, all work ends, and nothing stays
// charged or claimed.
func TestFaultsWhileVictimsLeave(t *testing.T) {
	for name, fault := range map[string]func(c *Cluster, low, high string){
		"the head":           func(c *Cluster, _, _ string) { c.crashLeader(5 * time.Second) },
		"the victim's agent": func(c *Cluster, low, _ string) { c.firstNode(low).RestartAgent() },
		"the victim's node": func(c *Cluster, low, _ string) {
			n := c.firstNode(low)
			n.Kill()
			c.goBy(30 * time.Second)
			n.Boot()
		},
		"a rank of the victim": func(c *Cluster, low, _ string) { c.firstNode(low).KillRank(low, 0) },
		"the victim, stopped":  func(c *Cluster, low, _ string) { _, _ = c.Stop(low, time.Second, 5*time.Minute) },
		"the preemptor, held": func(c *Cluster, _, high string) {
			_, _ = c.control().HoldJob(c.ctx, high, "wait")
			c.goBy(time.Minute)
			_, _ = c.control().ReleaseJob(c.ctx, high, "go on")
		},
		"the preemptor, stopped": func(c *Cluster, _, high string) { _, _ = c.Stop(high, time.Second, 5*time.Minute) },
		"the victim, suspended": func(c *Cluster, low, _ string) {
			_, _ = c.control().SuspendJob(c.ctx, low, time.Minute, "")
			c.Wait("it is suspended, or runs on", 5*time.Minute, func(v *state.View) bool {
				j := v.Job(low)
				return j.State.Terminal() || j.State == api.Suspended || j.State == api.Queued || j.State == api.Running && j.Drain == nil
			})
			_, _ = c.control().ResumeJob(c.ctx, low, "")
		},
	} {
		for _, deaf := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
					each := int64(c.View().Nodes()[0].Info.CPU / 1000)
					spec := preemptible("low", each, 2000)
					if deaf { // it is given its grace, whole, which leaves time
						spec.Command = NewSpec("low", each, Script{Steps: 2000, StepTime: 100 * ms, Deaf: true, Stubborn: true}).Command
					}
					low := c.Submit(spec)
					c.WaitStep(low, 5, time.Minute)
					c.goBy(2 * time.Minute)
					high := c.Submit(important("high", each, 50))
					c.Wait("the victim is told", time.Minute, func(v *state.View) bool { return v.Job(low).Drain != nil })
					fault(c, low, high)
					end := func(s api.JobState) bool { return s.Terminal() }
					c.Wait("both have ended", 30*time.Minute, func(v *state.View) bool { return end(v.Job(low).State) && end(v.Job(high).State) })
					if v := c.View(); len(v.Claims()) != 0 {
						t.Errorf("claims are left: %+v", v.Claims()[0])
					} else if s := v.Job(high).State; s != api.Succeeded && s != api.Stopped {
						t.Errorf("it is %s: %+v", s, v.Job(high).Reason)
					}
					c.books()
				})
			})
		}
	}
}

// firstNode is the node of a job's first rank.
func (c *Cluster) firstNode(job string) *Node { return c.Node(c.View().Job(job).Last().Ranks[0].Node) }
