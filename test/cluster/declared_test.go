package cluster

import (
	"cmp"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// TestDeclaredIsRefused: what operators and users say about queues and reservations that
// cannot be meant is refused, in words that name what is wrong and what to do.
func TestDeclaredIsRefused(t *testing.T) {
	Run(t, Options{Nodes: four()[:1]}, func(c *Cluster) {
		h := c.control()
		queues := func(r api.QueuesRequest) error { return h.PutQueues(c.ctx, r) }
		reserve := func(r api.Reservation) error {
			r.Name, r.Start, r.End = "r", time.Now(), time.Now().Add(time.Hour)
			return h.PutReservation(c.ctx, api.ReservationRequest{Reservation: r})
		}
		submit := func(s api.JobSpec) error {
			_, err := c.TrySubmit(s, headapi.Idempotency{})
			return err
		}
		urgent := NewSpec("urgent", 1, Script{Steps: 1})
		urgent.Priority = 100_000
		hasty := urgent
		hasty.Name, hasty.Queue = "hasty", "short"
		uses := NewSpec("uses", 1, Script{Steps: 1})
		uses.Uses = api.Amounts{{Of: "storage", N: 1}}
		soon := func(name string) api.JobSpec { return NewSpec(name, 1, Script{Steps: 1}) }
		edit := func(r api.EditRequest) error {
			for _, j := range c.View().LiveJobs() {
				if j.Spec.Name == "waits" {
					_, err := h.EditJob(c.ctx, j.ID, r)
					return err
				}
			}
			return errors.New("no job waits")
		}
		gpus := func(n int64) api.Amounts { return api.Amounts{{Of: "gpu", N: n}} }
		for _, tc := range []struct {
			what string
			do   func() error
			want string // "": taken
		}{
			{"with no queue at all any priority goes", func() error { return submit(urgent) }, ""},
			{"a tenant, a queue", func() error {
				return queues(api.QueuesRequest{Queues: []api.Queue{{Name: "nlp", Tenant: true, Guaranteed: gpus(8000), Limit: gpus(8000)}, {Name: "short", Parent: "nlp", Guaranteed: gpus(4000)}}})
			}, ""},
			{"naming no queue overtakes nobody", func() error { s := urgent; s.Name = "again"; return submit(s) }, "priority 100000 is above 1000"},
			{"nor does naming one", func() error { return submit(hasty) }, "priority 100000 is above 1000"},
			{"what is above another", func() error { return queues(api.QueuesRequest{Remove: []string{"nlp"}}) }, "short stands below nlp; remove it first"},
			{"what another was promised, by name", func() error {
				return queues(api.QueuesRequest{Queues: []api.Queue{{Name: "nlp"}}})
			}, "queues: parent of short: \"nlp\" is a queue"},
			{"a lowest priority of -1 is one", func() error {
				least := int64(-1)
				if err := cmp.Or(queues(api.QueuesRequest{Queues: []api.Queue{{Name: "short", Parent: "nlp"}}}), queues(api.QueuesRequest{Queues: []api.Queue{{Name: "short", Parent: "nlp", MaxPriority: &least}}})); err != nil {
					return err
				}
				s := NewSpec("level", 1, Script{Steps: 1})
				s.Queue = "short"
				return submit(s)
			}, "priority 0 is above -1, the most that short may ask for"},
			{"more nodes than there can be", func() error { return reserve(api.Reservation{Tenant: "nlp", Count: math.MaxInt64}) }, "count: 9223372036854775807: 1 to 100000 nodes"},
			{"for a job that is not there", func() error { return reserve(api.Reservation{Job: "nobody", Count: 1}) }, `there is no job "nobody"`},
			{"a deadline that is past", func() error { s := soon("late"); s.Deadline = time.Now(); return submit(s) }, "is past, it is "},
			{"a group's deadline that is past", func() error {
				_, err := h.CreateGroup(c.ctx, api.GroupSpec{Wishes: api.Wishes{Deadline: time.Now().Add(-time.Hour)}, Bundles: []api.Bundle{{Resources: api.Resources{CPU: 1}}}}, headapi.Idempotency{})
				return err
			}, "name a time to come"},
			{"a deadline to come", func() error {
				s := soon("waits")
				s.Hold, s.Estimate, s.Deadline = true, unit.Duration(2*time.Hour), time.Now().Add(9*time.Hour)
				return submit(s)
			}, ""},
			{"a time limit below the estimate that stands", func() error { return edit(api.EditRequest{TimeLimit: new(unit.Duration(time.Hour))}) }, "2h0m0s is more than the time limit of 1h0m0s"},
			{"both of them", func() error {
				return edit(api.EditRequest{TimeLimit: new(unit.Duration(time.Hour)), Estimate: new(unit.Duration(time.Hour))})
			}, ""},
			{"an estimate above the time limit that stands", func() error { return edit(api.EditRequest{Estimate: new(unit.Duration(2 * time.Hour))}) }, "2h0m0s is more than the time limit of 1h0m0s"},
			{"another deadline that is past", func() error { return edit(api.EditRequest{Deadline: new(time.Now())}) }, "is past, it is "},
			{"no deadline any more", func() error { return edit(api.EditRequest{Deadline: new(time.Time)}) }, ""},
			{"a negative wait", func() error { return edit(api.EditRequest{MaxWait: new(unit.Duration(-1))}) }, "a wait cannot be negative"},
			{"a priority beyond all bounds", func() error { return edit(api.EditRequest{Priority: new(int64(math.MinInt64))}) }, "is not within ±1000000"},
			{"a tenant that nodes are reserved for", func() error {
				return cmp.Or(reserve(api.Reservation{Tenant: "nlp", Count: 1}), queues(api.QueuesRequest{Remove: []string{"short", "nlp"}}))
			}, "nodes are reserved for nlp by r; end that first"},
			{"a capacity that is not declared", func() error { return submit(uses) }, `no capacity is named "storage"`},
		} {
			err := tc.do()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%s: %v, want %q", tc.what, err, tc.want)
			}
		}
	})
}
