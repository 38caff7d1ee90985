package cluster

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// preemptible is a training that may be ended for more important work.
func preemptible(name string, ranks, steps int64) api.JobSpec {
	spec := NewSpec(name, ranks, Script{Steps: steps, StepTime: 100 * ms})
	spec.Checkpoint.KeepLast = 100
	spec.Preemptible = true
	spec.Resources.CPU = 1000
	return spec
}

// important is work that fits only where others leave.
func important(name string, ranks, steps int64) api.JobSpec {
	spec := NewSpec(name, ranks, Script{Steps: steps, StepTime: 100 * ms})
	spec.Priority = 10
	spec.Resources.CPU = 1000
	return spec
}

// goBy lets virtual time go by, and everything settle that it brings.
func (c *Cluster) goBy(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// eventsOf are the types of a job's events.
func eventsOf(v *state.View, object string) string {
	var out []string
	for _, e := range v.RecentEvents(object, 100) {
		out = append(out, e.Type)
	}
	return strings.Join(out, " ")
}

// TestPreemption: the victim saves at an agreed step, ends, waits with its seniority and a
// reason that names who it left for; the other starts where it was decided; when that is
// done the victim goes on from the step that it saved, uncharged.
func TestPreemption(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		all := c.View().Nodes()[0].Info.CPU / 1000 * 2
		low := c.Submit(preemptible("low", int64(all), 3000))
		c.WaitStep(low, 20, time.Minute)
		seq := c.View().Group(c.View().Job(low).Group).Seq
		c.goBy(2 * time.Minute) // it is protected at first
		high := c.Submit(important("high", 2, 50))
		v := c.Wait("the victim waits", time.Minute, func(v *state.View) bool { return v.Job(low).State == api.Queued })
		j := v.Job(low)
		if j.Reason == nil || j.Reason.Code != api.ReasonPreempted || !strings.Contains(j.Reason.Text, high) || j.Evictions != 1 {
			t.Errorf("%+v, %d evictions", j.Reason, j.Evictions)
		}
		if g := v.Group(j.Group); g.Seq != seq {
			t.Errorf("its seniority was %d and is %d", seq, g.Seq)
		}
		if ck := v.NewestCommitted(j.Run()); ck == nil || j.Proposal == nil || ck.Step != j.Proposal.Target {
			t.Errorf("saved %+v, agreed on %+v", ck, j.Proposal)
		}
		c.WaitState(high, 2*time.Minute, api.Succeeded)
		c.WaitState(low, 6*time.Minute, api.Succeeded)
		v = c.View()
		j = v.Job(low)
		if j.Ledger.Failed != 0 || len(j.Attempts) != 2 || j.Attempts[1].Restore == nil || j.Attempts[1].Restore.Step != j.Proposal.Target {
			t.Errorf("charged %d, %d attempts, %+v", j.Ledger.Failed, len(j.Attempts), j.Last().Restore)
		}
		if e := eventsOf(v, "job/"+low); strings.Count(e, "job-preempted") != 1 {
			t.Errorf("events: %s", e)
		}
		c.books()
	})
}

// TestPreemptionOfTwo: a group that needs the room of two victims, of which one leaves much
// sooner, gets both: what the first gave back is held for it, though the first waits again
// and would fit there. Each is preempted once.
func TestPreemptionOfTwo(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		each := int64(c.View().Nodes()[0].Info.CPU / 1000)
		quick := preemptible("quick", each, 4000)
		slow := preemptible("slow", each, 4000)
		// It never asks whether to save: it is given its grace, whole.
		slow.Command = NewSpec("slow", each, Script{Steps: 4000, StepTime: 100 * ms, Deaf: true, Stubborn: true}).Command
		a, b := c.Submit(quick), c.Submit(slow)
		c.WaitStep(a, 5, time.Minute)
		c.WaitStep(b, 5, time.Minute)
		c.goBy(2 * time.Minute)
		high := c.Submit(important("high", 2*each, 50))
		c.WaitState(high, 5*time.Minute, api.Succeeded)
		v := c.View()
		for _, id := range []string{a, b} {
			if n := v.Job(id).Evictions; n != 1 {
				t.Errorf("%s was preempted %d times", id, n)
			}
		}
		c.Wait("both run again", 2*time.Minute, func(v *state.View) bool {
			return v.Job(a).State == api.Running && v.Job(b).State == api.Running
		})
	})
}

// TestPreemptorGone: who others were to leave for is stopped before they have agreed: they
// stay and go on.
func TestPreemptorGone(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		each := int64(c.View().Nodes()[0].Info.CPU / 1000)
		low := c.Submit(preemptible("low", each, 3000))
		c.WaitStep(low, 5, time.Minute)
		c.goBy(2 * time.Minute)
		high := c.Submit(important("high", each, 50))
		c.Wait("the victim is told", time.Minute, func(v *state.View) bool { return v.Job(low).Drain != nil })
		if _, err := c.control().Stop(c.ctx, high, 0, "changed my mind"); err != nil {
			t.Fatal(err)
		}
		c.WaitState(low, 6*time.Minute, api.Succeeded)
		v := c.View()
		if len(v.Claims()) != 0 {
			t.Errorf("claims are left: %+v", v.Claims()[0])
		}
		c.books()
	})
}

// TestGrowth: an elastic job that began small grows by itself when there is room and nobody
// waits: it saves at an agreed step and goes on from it, so that no step is made twice, on
// the nodes that it had and others; and it gives its surplus back to more important work.
func TestGrowth(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		first := c.Submit(preemptible("first", 2, 1500)) // one node
		spec := NewSpec("grows", 4, Script{Steps: 40_000, StepTime: 100 * ms})
		spec.Checkpoint.KeepLast = 100
		spec.Checkpoint.Interval = "50steps" // that it can save is known once it has
		spec.Sizes = &api.Sizes{Min: 1, Max: 4}
		spec.Preemptible = true
		id := c.Submit(spec)
		c.WaitStep(id, 20, time.Minute)
		if n := c.View().Job(id).Spec.Ranks; n != 2 {
			t.Fatalf("it began with %d ranks", n)
		}
		c.WaitState(first, 5*time.Minute, api.Succeeded)
		v := c.Wait("it has grown", 20*time.Minute, func(v *state.View) bool {
			j := v.Job(id)
			return j.State == api.Running && len(j.Attempts) == 2 && j.Spec.Ranks == 4
		})
		j := v.Job(id)
		if r := j.Last().Restore; r == nil || r.Step != j.Proposal.Target || j.Ledger.Failed != 0 {
			t.Errorf("it goes on from %+v, agreed was %d; charged %d", r, j.Proposal.Target, j.Ledger.Failed)
		}
		if a, b := j.Attempts[0].Ranks, j.Last().Ranks; a[0].Node != b[0].Node || a[1].Node != b[1].Node {
			t.Errorf("rank order changed: %+v, %+v", a, b)
		}
		c.goBy(2 * time.Minute)
		high := c.Submit(important("high", 2, 50))
		c.WaitState(high, 5*time.Minute, api.Succeeded)
		j = c.View().Job(id)
		if j.Evictions != 0 || len(j.Attempts) < 3 || j.Attempts[2].Failure != nil || len(j.Attempts[2].Ranks) != 2 {
			t.Errorf("%d evictions, %d attempts", j.Evictions, len(j.Attempts))
		}
	})
}

// TestFormerPlace: a gang that lost a node, and fits nowhere, keeps the place of the rest of
// it (P1): other work does not get it, preemptible work uses it and leaves when the node is
// back, and the gang is whole again.
func TestFormerPlace(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		gang := important("gang", 4, 400)
		gang.Checkpoint.Interval = "20steps"
		id := c.Submit(gang)
		c.WaitStep(id, 50, time.Minute)
		lost := c.View().Job(id).Last().Ranks[3].Node
		c.Node(lost).Kill()
		c.WaitState(id, time.Minute, api.Queued)
		other := c.Submit(NewSpec("other", 1, Script{Steps: 50, StepTime: 100 * ms}))
		guest := c.Submit(preemptible("guest", 1, 100_000))
		c.Wait("preemptible work uses it", 2*time.Minute, func(v *state.View) bool { return v.Job(guest).State == api.Running })
		c.goBy(3 * time.Minute)
		if s := c.View().Job(other).State; s != api.Queued {
			t.Errorf("other work is %s", s)
		}
		c.Node(lost).Boot()
		c.WaitState(id, 5*time.Minute, api.Succeeded)
		v := c.View()
		if j := v.Job(id); len(j.Attempts) != 2 || v.Job(guest).Evictions != 1 {
			t.Errorf("%d attempts, the guest was preempted %d times", len(j.Attempts), v.Job(guest).Evictions)
		}
		c.WaitState(other, 10*time.Minute, api.Succeeded)
	})
}

// TestLentSpare: a spare node that is lent works for preemptible jobs and for nobody else;
// when a node of its job is lost, they save and leave, and the ranks start there.
func TestLentSpare(t *testing.T) {
	Run(t, Options{Nodes: four()[:3]}, func(c *Cluster) {
		gang := important("gang", 4, 3000)
		gang.Checkpoint.Interval, gang.SpareNodes, gang.LendSpares = "20steps", 1, true
		id := c.Submit(gang)
		c.WaitStep(id, 50, time.Minute)
		v := c.Wait("a spare node is planned", time.Minute, func(v *state.View) bool { return len(v.Group(v.Job(id).Group).Lent) > 0 })
		spare := v.Group(v.Job(id).Group).Lent[0].Node
		other := c.Submit(NewSpec("other", 1, Script{Steps: 50, StepTime: 100 * ms}))
		guest := c.Submit(preemptible("guest", 2, 100_000))
		v = c.Wait("preemptible work uses it", 2*time.Minute, func(v *state.View) bool { return v.Job(guest).State == api.Running })
		if at := v.Job(guest).Last().Ranks[0].Node; at != spare {
			t.Errorf("the guest runs on %s, the spare node is %s", at, spare)
		}
		c.goBy(90 * time.Second)
		v = c.View()
		if s := v.Job(other).State; s != api.Queued {
			t.Errorf("other work is %s", s)
		}
		lost := v.Job(id).Last().Ranks[3].Node
		c.Node(lost).Kill()
		v = c.Wait("its ranks run on the spare node", 3*time.Minute, func(v *state.View) bool {
			j := v.Job(id)
			return j.State == api.Running && len(j.Attempts) == 2
		})
		if !usesNode(v.Job(id).Last(), spare) || v.Job(guest).Evictions != 1 {
			t.Errorf("it runs on %+v; the guest was preempted %d times", v.Job(id).Last().Ranks, v.Job(guest).Evictions)
		}
		c.WaitState(id, 20*time.Minute, api.Succeeded)
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
