package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// scale asks the leader, whichever that is by then, for another number of ranks.
func (c *Cluster) scale(job string, ranks int64) {
	c.T.Helper()
	c.Wait("a leader takes the new size", time.Minute, func(*state.View) bool {
		h := c.control()
		if h == nil {
			return false
		}
		ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
		defer cancel()
		_, err := h.Scale(ctx, job, ranks, "")
		return err == nil
	})
}

func (c *Cluster) waitRanks(job string, ranks int64, limit time.Duration) *state.Job {
	c.T.Helper()
	v := c.Wait(fmt.Sprintf("%s runs with %d ranks", job, ranks), limit, func(v *state.View) bool {
		j := v.Job(job)
		return j != nil && j.State == api.Running && j.Drain == nil && int64(len(j.Last().Ranks)) == ranks
	})
	return v.Job(job)
}

// continues: an attempt goes on from the step that the one before agreed to end with, and
// nobody is charged.
func continues(t *testing.T, j *state.Job) {
	t.Helper()
	last := j.Last()
	if last.Restore == nil || last.Restore.Step != j.Proposal.Target || j.Ledger.Failed != 0 {
		t.Errorf("attempt %d restores %+v, agreed was step %d, ledger %+v", last.Number, last.Restore, j.Proposal.Target, j.Ledger)
	}
}

// TestScale: a job grows and shrinks at agreed steps. Ranks that stay keep their place in
// the order, and with it their nodes.
func TestScale(t *testing.T) {
	Run(t, Options{Nodes: four()}, func(c *Cluster) {
		id := c.Submit(training(3, 300))
		c.WaitStep(id, 10, time.Minute)
		before := c.View().Job(id).Last().Ranks
		c.scale(id, 5)
		j := c.waitRanks(id, 5, time.Minute)
		continues(t, j)
		for r, p := range before {
			if now := j.Last().Ranks[r]; now.Node != p.Node {
				t.Errorf("rank %d went from %s to %s", r, p.Node, now.Node)
			}
		}
		c.WaitStep(id, j.Last().Restore.Step+10, time.Minute)
		before = j.Last().Ranks
		c.scale(id, 2)
		j = c.waitRanks(id, 2, time.Minute)
		continues(t, j)
		for r := range 2 {
			if now := j.Last().Ranks[r]; now.Node != before[r].Node {
				t.Errorf("rank %d went from %s to %s", r, before[r].Node, now.Node)
			}
		}
		c.WaitState(id, 2*time.Minute, api.Succeeded)
		c.books()
	})
}

// TestRanksPerNode: so many ranks on each node, exactly, at every size and after a loss.
func TestRanksPerNode(t *testing.T) {
	nodes := four()
	for i := range nodes {
		nodes[i].CPU = 3000 // one more would fit
	}
	Run(t, Options{Nodes: nodes}, func(c *Cluster) {
		spec := training(4, 600)
		spec.RanksPerNode = 2
		id := c.Submit(spec)
		each := func(j *state.Job, want int) {
			t.Helper()
			on := map[string]int{}
			for i, r := range j.Last().Ranks {
				on[r.Node]++
				if i%2 == 1 && r.Node != j.Last().Ranks[i-1].Node {
					t.Errorf("ranks %d and %d are on two nodes", i-1, i)
				}
			}
			for n, k := range on {
				if k != 2 {
					t.Errorf("%d ranks on %s", k, n)
				}
			}
			if len(on) != want {
				t.Errorf("on %v, want %d nodes", on, want)
			}
		}
		c.WaitStep(id, 10, time.Minute)
		each(c.View().Job(id), 2)
		if _, err := c.control().Scale(c.ctx, id, 5, ""); err == nil || !strings.Contains(err.Error(), "not a multiple of the 2") {
			t.Errorf("scale to 5: %v", err)
		}
		c.scale(id, 6)
		j := c.waitRanks(id, 6, time.Minute)
		each(j, 3)
		c.WaitStep(id, j.Last().Restore.Step+10, time.Minute)
		lost := j.Last().Ranks[0].Node
		c.Node(lost).Kill()
		c.Wait("it runs elsewhere", 2*time.Minute, func(v *state.View) bool {
			j := v.Job(id)
			return j.State == api.Running && len(j.Last().Ranks) == 6 && !usesNode(j.Last(), lost)
		})
		each(c.View().Job(id), 3)
		c.Node(lost).Boot()
		c.scale(id, 2)
		each(c.waitRanks(id, 2, time.Minute), 1)
		c.WaitState(id, 5*time.Minute, api.Succeeded)
		c.books()
	})
}

// TestScaleWaitsForRoom: a job that is to grow runs on until there is room (DESIGN §6).
func TestScaleWaitsForRoom(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		id := c.Submit(training(1, 600))
		other := c.Submit(NewSpec("other", 1, Script{Steps: 100, StepTime: 100 * ms}))
		c.WaitStep(id, 10, time.Minute)
		c.scale(id, 2)
		c.WaitStep(id, 50, time.Minute)
		if j := c.View().Job(id); len(j.Attempts) != 1 || j.Drain == nil {
			t.Fatalf("%d attempts, drain %+v", len(j.Attempts), j.Drain)
		}
		c.WaitState(other, time.Minute, api.Succeeded)
		continues(t, c.waitRanks(id, 2, time.Minute))
		c.WaitState(id, 2*time.Minute, api.Succeeded)
		c.books()
	})
}

// TestScaleSurvivesLeader: a head that ends at any point of a resize costs no step.
func TestScaleSurvivesLeader(t *testing.T) {
	for _, point := range []string{"drain-job", "propose", "decide", "prepared", "commit", "facts", "supervise", "resize"} {
		t.Run(point, func(t *testing.T) {
			Run(t, Options{Nodes: four()}, func(c *Cluster) {
				id := c.Submit(training(3, 150))
				c.WaitStep(id, 10, time.Minute)
				c.Trip(point, 1, func() { c.crashLeader(time.Second) })
				c.scale(id, 4)
				j := c.waitRanks(id, 4, 2*time.Minute)
				if !c.Tripped() {
					t.Fatal("the point was never passed")
				}
				continues(t, j)
				c.WaitState(id, 2*time.Minute, api.Succeeded)
				c.books()
			})
		})
	}
}

// TestLossToSmallerSize: after a loss a gang that does not fit as it was goes on with the
// largest smaller size that is allowed, and with none that is not (P1).
func TestLossToSmallerSize(t *testing.T) {
	for _, x := range []struct {
		sizes *api.Sizes
		want  int64 // 0: it waits
	}{
		{&api.Sizes{Min: 2, Max: 4}, 3},
		{&api.Sizes{Set: []int64{2, 4}}, 2},
		{&api.Sizes{Min: 4, Max: 4}, 0},
		{nil, 0},
	} {
		Run(t, Options{Nodes: four()}, func(c *Cluster) {
			spec := training(4, 300)
			spec.Strategy, spec.Sizes, spec.Checkpoint.Interval = api.StrictSpread, x.sizes, "5steps"
			id := c.Submit(spec)
			c.WaitStep(id, 20, time.Minute)
			lost := c.View().Job(id).Last().Ranks[1].Node
			c.Node(lost).Kill()
			if x.want == 0 {
				c.WaitState(id, time.Minute, api.Queued)
			} else {
				j := c.waitRanks(id, x.want, time.Minute)
				if usesNode(j.Last(), lost) || j.Last().Restore == nil {
					t.Errorf("%+v", j.Last())
				}
			}
			c.Node(lost).Boot()
			c.WaitState(id, 2*time.Minute, api.Succeeded)
			c.books()
		})
	}
}

// TestSmallestStartsFirst: a job that may have several sizes starts with what fits now.
func TestSmallestStartsFirst(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		spec := training(8, 50)
		spec.Sizes = &api.Sizes{Min: 1, Max: 8}
		id := c.Submit(spec)
		if n := c.waitRanks(id, 2, time.Minute).Spec.Ranks; n != 2 {
			t.Errorf("%d ranks", n)
		}
		c.WaitState(id, time.Minute, api.Succeeded)
		c.books()
	})
}

// A job that does not fit as it is starts with the least size that meets its deadline, and
// without a deadline with the largest that fits.
func TestStartSizeMeetsTheDeadline(t *testing.T) {
	for _, tc := range []struct {
		name     string
		deadline time.Duration // 0: none
		want     int64
		expect   time.Duration
	}{
		{"none", 0, 4, 504 * time.Minute},
		{"three ranks meet it", 12 * time.Hour, 3, 648 * time.Minute},
		{"no size that fits meets it", 7 * time.Hour, 4, 504 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			Run(t, Options{Nodes: four()}, func(c *Cluster) {
				c.WaitState(c.Submit(NewSpec("other", 4, Script{Steps: 1000000, StepTime: 100 * ms})), time.Minute, api.Running)
				spec := NewSpec("a", 6, Script{Steps: 1000000, StepTime: 100 * ms})
				spec.Sizes, spec.Estimate = &api.Sizes{Min: 1, Max: 6}, unit.Duration(6*time.Hour)
				if tc.deadline > 0 {
					spec.Deadline = time.Now().Add(tc.deadline + time.Second)
				}
				id := c.Submit(spec)
				v := c.View()
				if n, expect := v.Job(id).Spec.Ranks, time.Duration(v.Group(v.Job(id).Group).Expect); n != tc.want || expect != tc.expect {
					t.Errorf("it starts with %d ranks and is expected to take %s, want %d and %s", n, expect, tc.want, tc.expect)
				}
			})
		})
	}
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
