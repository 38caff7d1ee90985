package cluster

import (
	"context"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/control"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// What users ask of jobs that wait or are to wait, and what operators declare meanwhile.

// parkAbout asks to hold, release, suspend, resume, edit or requeue a job, each at any
// moment of its life; what is refused is refused.
func (s *simulation) parkAbout(job string) {
	priority := int64(s.rng.IntN(4))
	preemptible := s.rng.IntN(2) == 0
	tenant := []string{"", "nlp"}[s.rng.IntN(2)]
	asks := []func(ctx context.Context, h *control.Head) error{
		func(ctx context.Context, h *control.Head) error { _, err := h.HoldJob(ctx, job, "held"); return err },
		func(ctx context.Context, h *control.Head) error { _, err := h.ReleaseJob(ctx, job, ""); return err },
		func(ctx context.Context, h *control.Head) error {
			_, err := h.SuspendJob(ctx, job, 20*time.Second, "suspended")
			return err
		},
		func(ctx context.Context, h *control.Head) error { _, err := h.ResumeJob(ctx, job, ""); return err },
		func(ctx context.Context, h *control.Head) error {
			_, err := h.EditJob(ctx, job, api.EditRequest{Priority: &priority, Preemptible: &preemptible, Tenant: &tenant})
			return err
		},
		func(ctx context.Context, h *control.Head) error {
			_, err := h.Requeue(ctx, job, headapi.Idempotency{})
			if err == nil {
				s.mu.Lock()
				s.again[job] = true
				s.mu.Unlock()
			}
			return err
		},
	}
	for range 1 + s.rng.IntN(3) {
		s.ask(asks[s.rng.IntN(len(asks))])
	}
}

// declare gives tenant nlp another quota, pauses it, or keeps nodes for it or for nobody,
// for a while.
func (s *simulation) declare() bool {
	h := s.c.control()
	if h == nil {
		return false
	}
	cpus := int64(1000 * (2 + s.rng.IntN(8)))
	switch id, span := s.node().ID, time.Duration(1+s.rng.IntN(60))*time.Second; s.rng.IntN(4) {
	case 0:
		s.ask(func(ctx context.Context, h *control.Head) error { return h.PutQueues(ctx, quotaOf(cpus)) })
	case 1:
		s.ask(func(ctx context.Context, h *control.Head) error { return h.PauseQueue(ctx, "nlp", "the test says so") })
	case 2:
		s.ask(func(ctx context.Context, h *control.Head) error {
			return h.PutReservation(ctx, api.ReservationRequest{Reservation: api.Reservation{
				Name: "kept", Tenant: "nlp", Nodes: []string{id}, Start: time.Now().Add(span / 2), End: time.Now().Add(span * 2),
			}})
		})
	case 3:
		s.ask(func(ctx context.Context, h *control.Head) error {
			return h.PutReservation(ctx, api.ReservationRequest{Reservation: api.Reservation{
				Name: "fans", Maintenance: "fans", Count: 1, Start: time.Now().Add(span / 2), End: time.Now().Add(span * 2),
			}})
		})
	}
	s.later(time.Second, 40*time.Second, func() {
		s.ask(func(ctx context.Context, h *control.Head) error { return h.PauseQueue(ctx, "nlp", "") })
	})
	return true
}

// quotaOf limits and guarantees tenant nlp as many CPUs, and half as many GPUs, of which its
// queue may have half; 0: without a limit.
func quotaOf(milli int64) api.QueuesRequest {
	q, short := api.Queue{Name: "nlp", Tenant: true}, api.Queue{Name: "short", Parent: "nlp"}
	if milli > 0 {
		n := api.Amounts{{Of: "cpu", N: milli}, {Of: "gpu", N: milli / 2}}
		q.Guaranteed, q.Limit, q.Lend = n, n, api.Amounts{{Of: "cpu", N: milli / 2}}
		short.Limit = api.Amounts{{Of: "cpu", N: milli / 2}, {Of: "gpu", N: milli / 4}}
	}
	return api.QueuesRequest{Queues: []api.Queue{q, short}}
}

// found makes the tenant, its queue and a capacity, once there is a head to ask.
func (s *simulation) found() {
	s.c.Wait("the tenant is made", time.Minute, func(*state.View) bool {
		h := s.c.control()
		return h != nil && h.PutQueues(s.c.ctx, quotaOf(0)) == nil &&
			h.PutCapacity(s.c.ctx, api.CapacityRequest{Capacity: api.Capacity{Name: "pipe", Total: 4}}) == nil
	})
}

// unpark lets everything go on that somebody keeps.
func (s *simulation) unpark() {
	h := s.c.control()
	if h == nil {
		return
	}
	ctx, cancel := context.WithTimeout(s.c.ctx, 5*time.Second)
	defer cancel()
	v := s.c.View()
	// All of it is tried again by the caller.
	if q := v.Queue("nlp"); q != nil && (q.Spec.Paused != "" || len(q.Spec.Limit) > 0) {
		_ = h.PutQueues(ctx, quotaOf(0))
	}
	for _, r := range v.Reservations() {
		_ = h.RemoveReservation(ctx, r.Name, 0)
	}
	wakes := map[api.JobState]func(ctx context.Context, id, reason string) (api.Job, error){
		api.Held: h.ReleaseJob, api.Suspended: h.ResumeJob,
	}
	for _, j := range v.LiveJobs() {
		if wake := wakes[j.State]; wake != nil {
			_, _ = wake(ctx, j.ID, "")
		}
	}
}

// wishes draws what a job says to queues and to the plan.
func (s *simulation) wishes(spec *api.JobSpec) {
	r := s.rng
	if r.IntN(3) == 0 {
		spec.Tenant = "nlp"
		spec.Queue = []string{"", "short"}[r.IntN(2)]
	}
	if r.IntN(6) == 0 {
		spec.Uses = api.Amounts{{Of: "pipe", N: 1}}
	}
	if r.IntN(3) == 0 {
		spec.Estimate = unit.Duration(time.Duration(1+r.IntN(60)) * time.Second)
	}
	spec.Hold = r.IntN(12) == 0
	spec.WholeNodes = r.IntN(12) == 0
}
