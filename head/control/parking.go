package control

import (
	"context"
	"fmt"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// onJob does something to a job on somebody's behalf and returns it as it stands then.
func (h *Head) onJob(ctx context.Context, id string, f func(v *state.View, j *state.Job) (state.Kind, any, error)) (api.Job, error) {
	if err := h.leader(); err != nil {
		return api.Job{}, err
	}
	v := h.Store.View()
	j, err := v.Resolve(id)
	if err != nil {
		return api.Job{}, h.problemOf(err)
	}
	kind, body, err := f(v, j)
	if err != nil {
		return api.Job{}, err
	}
	if _, err := h.propose(ctx, kind, body); err != nil {
		return api.Job{}, h.problemOf(err)
	}
	h.Kick()
	return h.Job(ctx, j.ID)
}

func conflict(help, format string, args ...any) *api.Problem {
	p := problem(409, "TRP-A409", api.ExitConflict, "conflict", format, args...)
	p.Help = help
	return p
}

// HoldJob keeps a waiting job from starting.
func (h *Head) HoldJob(ctx context.Context, id, reason string) (api.Job, error) {
	return h.onJob(ctx, id, func(_ *state.View, j *state.Job) (state.Kind, any, error) {
		if last := j.Last(); last != nil && last.Ended == 0 {
			return 0, nil, conflict("troupe job suspend "+j.ID, "job %s runs; a hold is for what waits", j.ID)
		}
		return state.KindParkJob, state.ParkJob{Job: j.ID, State: api.Held, Reason: reason, By: h.who(ctx)}, nil
	})
}

// ReleaseJob lets a held job wait again.
func (h *Head) ReleaseJob(ctx context.Context, id, reason string) (api.Job, error) {
	return h.onJob(ctx, id, func(_ *state.View, j *state.Job) (state.Kind, any, error) {
		if j.State == api.Suspended {
			return 0, nil, conflict("troupe job resume "+j.ID, "job %s is suspended, not held", j.ID)
		}
		return state.KindParkJob, state.ParkJob{Job: j.ID, State: api.Queued, Reason: reason, By: h.who(ctx)}, nil
	})
}

// SuspendJob lets the ranks of a job save and end; then it holds nothing and keeps its
// seniority. It answers at once; the job is SUSPENDED when it is done.
func (h *Head) SuspendJob(ctx context.Context, id string, deadline time.Duration, reason string) (api.Job, error) {
	if reason == "" {
		reason = "suspended on request"
	}
	return h.onJob(ctx, id, func(_ *state.View, j *state.Job) (state.Kind, any, error) {
		if last := j.Last(); last == nil || last.Ended != 0 {
			return state.KindParkJob, state.ParkJob{Job: j.ID, State: api.Suspended, Reason: reason, By: h.who(ctx)}, nil
		}
		d := state.Drain{Kind: state.DrainSuspend, Reason: reason}
		if deadline > 0 {
			d.Deadline = h.Clock.Now().Add(deadline).UnixNano()
		}
		return state.KindDrainJob, state.DrainJob{Job: j.ID, Drain: d}, nil
	})
}

// ResumeJob lets a suspended job wait again with its seniority; one whose ranks have not
// agreed to end yet just goes on.
func (h *Head) ResumeJob(ctx context.Context, id, reason string) (api.Job, error) {
	return h.onJob(ctx, id, func(_ *state.View, j *state.Job) (state.Kind, any, error) {
		switch {
		case j.State == api.Held:
			return 0, nil, conflict("troupe job release "+j.ID, "job %s is held, not suspended", j.ID)
		case j.State != api.Suspended && j.Drain != nil && j.Drain.Kind == state.DrainSuspend:
			why := reason
			if why == "" {
				why = "resumed on request"
			}
			return state.KindCancelDrain, state.CancelDrain{Job: j.ID, Why: why}, nil
		}
		return state.KindParkJob, state.ParkJob{Job: j.ID, State: api.Queued, Reason: reason, By: h.who(ctx)}, nil
	})
}

// Requeue submits a job that has ended once more: a new job of the same run, which starts
// from its newest checkpoint (P9).
func (h *Head) Requeue(ctx context.Context, id string, key headapi.Idempotency) (headapi.Made, error) {
	j, err := h.Store.View().Resolve(id)
	if err != nil {
		return headapi.Made{}, h.problemOf(err)
	}
	switch {
	case !j.State.Terminal():
		return headapi.Made{}, conflict("troupe job suspend "+j.ID+", or stop it first",
			"job %s is %s; only what has ended is requeued", j.ID, j.State)
	case j.Spec.Hosts != nil || j.Spec.LaunchEnv != "":
		return headapi.Made{}, conflict("start the launch again", "job %s is a launch; its hosts start it", j.ID)
	}
	s := j.Spec
	s.Owner, s.Hold, s.Checkpoint.FromStep = nil, false, nil
	if len(h.pastDeadline(s.Deadline)) > 0 {
		s.Deadline = time.Time{} // it has none any more that could be met
	}
	return h.Submit(ctx, s, key)
}

// EditJob changes queue, priority and limits of a waiting job.
func (h *Head) EditJob(ctx context.Context, id string, r api.EditRequest) (api.Job, error) {
	return h.onJob(ctx, id, func(v *state.View, j *state.Job) (state.Kind, any, error) {
		a := askingOf(j.Spec)
		if r.Queue != nil {
			a.queue = *r.Queue
		}
		if r.Tenant != nil {
			a.tenant = *r.Tenant
		}
		if r.Priority != nil {
			a.priority = *r.Priority
		}
		if p := admit(v, a); p != nil {
			return 0, nil, p
		}
		if errs := h.wrongAfter(v, j, r); len(errs) > 0 {
			return 0, nil, invalid(errs)
		}
		c := state.EditJob{
			Job: j.ID, If: r.IfVersion, Queue: r.Queue, Tenant: r.Tenant, Priority: r.Priority, TimeLimit: r.TimeLimit,
			Estimate: r.Estimate, MaxWait: r.MaxWait, Preempt: r.Preemptible, By: h.who(ctx),
		}
		if r.Deadline != nil {
			ns := int64(0)
			if !r.Deadline.IsZero() {
				ns = r.Deadline.UnixNano()
			}
			c.Deadline = &ns
		}
		return state.KindEditJob, c, nil
	})
}

// wrongAfter says what of a job's request would be wrong once it is changed: with what it
// asked for already, and not by itself alone.
func (h *Head) wrongAfter(v *state.View, j *state.Job, r api.EditRequest) []api.FieldError {
	g := v.Group(j.Group)
	if g == nil {
		return nil // the state says why it cannot be changed
	}
	s := g.Spec
	set(&s.TimeLimit, r.TimeLimit)
	set(&s.Estimate, r.Estimate)
	set(&s.MaxWait, r.MaxWait)
	set(&s.Deadline, r.Deadline)
	set(&s.Priority, r.Priority)
	set(&s.Queue, r.Queue)
	set(&s.Tenant, r.Tenant)
	errs := schedule.Validate(s)
	if r.Deadline != nil {
		errs = append(errs, h.pastDeadline(s.Deadline)...)
	}
	return errs
}

func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

// pastDeadline refuses a deadline that nothing can meet any more; zero is none.
func (h *Head) pastDeadline(d time.Time) []api.FieldError {
	now := h.Clock.Now()
	if d.IsZero() || d.After(now) {
		return nil
	}
	return []api.FieldError{{Pointer: "/deadline", Detail: fmt.Sprintf("%s is past, it is %s; name a time to come, or leave it out",
		d.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))}}
}

// limit ends a job that has held what it runs on for longer than its time limit; else it
// says when to look again.
func (h *Head) limit(ctx context.Context, v *state.View, j *state.Job) (wait time.Duration) {
	g := v.Group(j.Group)
	if j.Spec.TimeLimit <= 0 || j.Stop != nil || g == nil || g.Begun == 0 || g.Job != j.ID {
		return 0
	}
	left := j.Spec.TimeLimit.D() - g.Held(h.Clock.Now().UnixNano())
	if left > 0 {
		return left
	}
	h.try(ctx, state.KindStopJob, state.StopJob{
		Job: j.ID, GraceNS: int64(j.Spec.ShutdownTimeout), Code: api.ReasonLimit,
		Reason: fmt.Sprintf("its time limit of %s is reached", j.Spec.TimeLimit),
	})
	return 0
}
