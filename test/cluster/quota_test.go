package cluster

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// limit gives tenant nlp so many CPUs, guaranteed and at most.
func (c *Cluster) limit(cpus int64) {
	c.T.Helper()
	n := api.Amounts{{Of: "cpu", N: cpus * 1000}}
	r := api.QueuesRequest{Queues: []api.Queue{{Name: "nlp", Tenant: true, Guaranteed: n, Limit: n}}}
	c.Wait("the leader takes the quota", time.Minute, func(*state.View) bool {
		h := c.control()
		return h != nil && h.PutQueues(c.ctx, r) == nil
	})
}

// charged is what tenant nlp is charged now, in CPUs.
func charged(v *state.View) int64 {
	a := v.QueueAccount("nlp")
	if a == nil {
		return 0
	}
	n, _ := a.Charged.Get("cpu")
	return n / 1000
}

// ofTenant is a training of nlp with a CPU a rank.
func ofTenant(name string, ranks, steps int64) api.JobSpec {
	s := training(ranks, steps)
	s.Name, s.Tenant = name, "nlp"
	s.Resources = api.Resources{CPU: 1000}
	return s
}

// A hundred submits at once where room is left for three: never more than three are
// charged, each that is cancelled is credited once, and the rest follow.
func TestSubmitsAtTheQuotaEdge(t *testing.T) { // I24
	Run(t, Options{Nodes: four()}, func(c *Cluster) {
		c.limit(3)
		var wg sync.WaitGroup
		ids := make([]string, 100)
		for i := range ids {
			wg.Go(func() {
				ids[i], _ = c.TrySubmit(ofTenant(fmt.Sprintf("j%d", i), 1, 1_000_000), headapi.Idempotency{})
			})
		}
		most := int64(0)
		c.Wait("three run", time.Minute, func(v *state.View) bool {
			most = max(most, charged(v))
			n := 0
			for _, j := range v.LiveJobs() {
				if j.State == api.Running {
					n++
				}
			}
			return n == 3
		})
		wg.Wait()
		if n := charged(c.View()); most > 3 || n != 3 {
			t.Errorf("charged %d, at most %d; the quota is 3", n, most)
		}
		for _, j := range c.View().LiveJobs() {
			if j.State != api.Running {
				continue
			}
			for range 2 { // twice
				if _, err := c.Stop(j.ID, time.Second, time.Minute); err != nil {
					t.Error(err)
				}
			}
		}
		c.Wait("the next three hold", time.Minute, func(v *state.View) bool {
			most = max(most, charged(v))
			return charged(v) == 3
		})
		if most > 3 {
			t.Errorf("after the cancels %d were charged", most)
		}
		for _, id := range ids {
			if id != "" {
				_, _ = c.Stop(id, time.Second, time.Minute) // as much as is left
			}
		}
		c.Wait("nothing is charged", time.Minute, func(v *state.View) bool { return charged(v) == 0 })
		c.books()
	})
}

// A gang that fills its tenant's quota loses a node: it moves at once, for what it leaves
// counts no more (P1). A quota below what runs takes nothing away, and lets it move too.
func TestReplacedAtTheQuotaEdge(t *testing.T) {
	for name, quota := range map[string]int64{"full": 3, "lowered": 1} {
		t.Run(name, func(t *testing.T) {
			Run(t, Options{Nodes: four()}, func(c *Cluster) {
				c.limit(3)
				s := ofTenant("gang", 3, 2000)
				s.Strategy = api.StrictSpread
				id := c.Submit(s)
				c.WaitStep(id, 10, time.Minute)
				if quota != 3 {
					c.limit(quota)
				}
				gone := c.View().Job(id).Last().Ranks[1].Node
				c.Node(gone).Kill()
				c.Wait("the gang runs elsewhere", 2*time.Minute, func(v *state.View) bool {
					j := v.Job(id)
					if n := charged(v); n != 3 {
						t.Fatalf("charged %d", n)
					}
					return j.State == api.Running && len(j.Attempts) > 1 && j.Last().Ranks[1].Node != gone
				})
			})
		})
	}
}

// A held job does not start, a suspended one holds nothing, saves its step and keeps its
// seniority, and what its tenant may not have is refused before anything is looked at.
func TestHoldSuspendResume(t *testing.T) {
	Run(t, Options{Nodes: four()}, func(c *Cluster) {
		c.limit(2)
		s := ofTenant("first", 2, 400)
		s.Hold = true
		id := c.Submit(s)
		later := c.Submit(ofTenant("later", 2, 400))
		c.WaitStep(later, 5, time.Minute)
		h := c.control()
		if _, err := h.SuspendJob(c.ctx, later, 0, "for the first"); err != nil {
			t.Fatal(err)
		}
		j := c.WaitState(later, time.Minute, api.Suspended)
		if n := charged(c.View()); n != 0 || c.View().NewestCommitted(j.Run()) == nil {
			t.Errorf("suspended, it is charged %d and has saved %v", n, c.View().NewestCommitted(j.Run()))
		}
		if _, err := h.ReleaseJob(c.ctx, id, ""); err != nil {
			t.Fatal(err)
		}
		c.WaitStep(id, 5, time.Minute)
		if _, err := h.ResumeJob(c.ctx, later, ""); err != nil {
			t.Fatal(err)
		}
		w, err := h.Why(c.ctx, "job/"+later)
		if err != nil || len(w.Reasons) == 0 || w.Reasons[0].Code != api.ReasonQuota || !strings.Contains(w.Reasons[0].Text, id) {
			t.Errorf("%+v, %v", w, err)
		}
		c.WaitState(id, 5*time.Minute, api.Succeeded)
		j = c.WaitState(later, 5*time.Minute, api.Succeeded)
		if j.Last().Restore == nil || j.Ledger.Failed != 0 {
			t.Errorf("it did not go on from its step: %+v, %+v", j.Last().Restore, j.Ledger)
		}
		for field, spec := range map[string]api.JobSpec{
			"/tenant":   {Tenant: "nobody"},
			"/queue":    {Tenant: "nlp", Queue: "slow"},
			"/priority": {Tenant: "nlp", Priority: 1001},
		} {
			x := ofTenant("x", 1, 1)
			x.Tenant, x.Queue, x.Priority = spec.Tenant, spec.Queue, spec.Priority
			_, err := h.Submit(c.ctx, x, headapi.Idempotency{})
			var p *api.Problem
			if !errors.As(err, &p) || len(p.Errors) != 1 || p.Errors[0].Pointer != field {
				t.Errorf("%s: %v", field, err)
			}
		}
		c.books()
	})
}

// A job that has held what it runs on for its time limit is ended, and says so.
func TestTimeLimit(t *testing.T) {
	Run(t, Options{Nodes: four()}, func(c *Cluster) {
		s := training(2, 1_000_000)
		s.TimeLimit = unit.Duration(30 * time.Second)
		id := c.Submit(s)
		j := c.WaitState(id, 2*time.Minute, api.Failed)
		if j.Reason == nil || j.Reason.Code != api.ReasonLimit || j.ExitCode == nil || *j.ExitCode != api.ExitRetry {
			t.Errorf("%+v, exit %v", j.Reason, j.ExitCode)
		}
		if held := time.Duration(j.Ended - j.Created); held < 30*time.Second || held > 70*time.Second {
			t.Errorf("it ended after %s", held)
		}
		c.books()
	})
}

// What its tenant's quota would never let start is refused when it is submitted; what
// names no pool goes to the one that its queue may use.
func TestSubmitWithinTenantAndQueue(t *testing.T) {
	Run(t, Options{Nodes: four()}, func(c *Cluster) {
		c.limit(3)
		c.Submit(ofTenant("runs", 2, 1_000_000))
		c.Wait("it holds", time.Minute, func(v *state.View) bool { return charged(v) == 2 })
		h := c.control()
		_, err := h.Submit(c.ctx, ofTenant("large", 4, 10), headapi.Idempotency{})
		var p *api.Problem
		if !errors.As(err, &p) || p.Exit != api.ExitNever ||
			p.Detail != "quota: tenant nlp guarantees 3 CPU, 2 in use; the request asks for 4 CPU" || p.Help != "ask for less, or have the quota raised: troupe quota get nlp" {
			t.Errorf("refused with %+v", err)
		}
		id, err := c.TrySubmit(ofTenant("waits", 3, 10), headapi.Idempotency{})
		if err != nil || c.View().Job(id).State != api.Queued {
			t.Errorf("what fits the quota when the other has ended: %v", err)
		}
		if err := h.PutQueues(c.ctx, api.QueuesRequest{Queues: []api.Queue{{Name: "q", Parent: "nlp", Pools: []string{"batch"}}, {Name: "two", Parent: "nlp", Pools: []string{"a", "b"}}}}); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct{ queue, pool, want string }{{"q", "", "batch"}, {"q", "batch", "batch"}, {"q", "a", ""}, {"two", "", ""}, {"two", "b", "b"}} {
			s := ofTenant("pool-"+tc.queue+tc.pool, 1, 10)
			s.Queue, s.Pool, s.Hold = tc.queue, tc.pool, true
			id, err := h.Submit(c.ctx, s, headapi.Idempotency{})
			switch {
			case tc.want == "" && (!errors.As(err, &p) || p.Exit != api.ExitDenied):
				t.Errorf("%+v: %v", tc, err)
			case tc.want == "" || errors.As(err, &p) && p.Exit == api.ExitNever && strings.Contains(p.Detail, fmt.Sprintf("%q", tc.want)):
				// No node is of that pool, which is said of the pool that was filled in.
			case err != nil || c.View().Job(id.ID).Spec.Pool != tc.want:
				t.Errorf("%+v: %v", tc, err)
			}
		}
	})
}
