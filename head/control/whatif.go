package control

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// foresee completes the explanation of what waits.
func (h *Head) foresee(v *state.View, group string, w api.Why, waits bool, whatIf []string) (api.Why, error) {
	if !waits {
		return w, nil
	}
	h.forecast(v, group, &w)
	if len(whatIf) == 0 {
		return w, nil
	}
	return w, h.whatIf(v, group, whatIf, &w)
}

// forecast adds to an explanation where a waiting group stands in its queue and when it is
// planned to start, with what that rests on.
func (h *Head) forecast(v *state.View, group string, w *api.Why) {
	r := h.plan(v)
	if r == nil {
		return
	}
	w.Position = int64(r.Position(group))
	w.Planned = plannedView(r, group)
}

// plannedView is when a waiting group is planned to start; nil: no start is planned.
func plannedView(r *schedule.Result, group string) *api.Planned {
	f, ok := r.Forecast(group)
	if !ok {
		return nil
	}
	return &api.Planned{Start: f.Start, After: f.After, Assumptions: f.Assumptions, Nodes: f.Nodes}
}

// whatIf says what would become of a waiting group if it were otherwise: with each of its
// constraints dropped for itself, or with the changes that are named.
func (h *Head) whatIf(v *state.View, group string, asked []string, w *api.Why) error {
	s, now := h.snapshotOf(v), h.Clock.Now()
	i := slices.IndexFunc(s.Pending, func(r *schedule.Request) bool { return r.ID == group })
	if i < 0 {
		return nil // it does not wait
	}
	var changes []string
	for _, a := range asked {
		if a != "" && a != "any" {
			changes = append(changes, a)
		}
	}
	if len(changes) < len(asked) {
		for _, a := range schedule.Alternatives(s, group, now) {
			w.Alternatives = append(w.Alternatives, api.Alternative(a))
		}
	}
	if len(changes) == 0 {
		return nil
	}
	r := *s.Pending[i]
	r.Spec.Bundles = slices.Clone(r.Spec.Bundles)
	for k, c := range changes {
		if why := changeRequest(&r, c); why != "" {
			return invalid([]api.FieldError{{Pointer: "/whatIf/" + strconv.Itoa(k), Detail: why}})
		}
	}
	if err := h.wouldRefuse(v, s.Pending[i].Spec, r.Spec); err != nil {
		return err
	}
	a := api.Alternative(schedule.Try(s, &r, now))
	a.Change = "with " + strings.Join(changes, ", ")
	w.Alternatives = append(w.Alternatives, a)
	return nil
}

// wouldRefuse says why a changed request would be refused, as its submission would be: a
// name that nothing has is no reason to wait.
func (h *Head) wouldRefuse(v *state.View, is, would api.GroupSpec) error {
	if errs := schedule.Validate(would); len(errs) > 0 {
		return invalid(errs)
	}
	if would.Tenant != is.Tenant || would.Queue != is.Queue || would.Pool != is.Pool || would.Priority != is.Priority {
		if p := admit(v, asking{tenant: would.Tenant, queue: would.Queue, pool: would.Pool, priority: would.Priority}); p != nil {
			return p
		}
	}
	if name := would.Reservation; name != "" && name != is.Reservation && v.Reservation(name) == nil {
		return invalid([]api.FieldError{{Pointer: "/reservation", Detail: fmt.Sprintf("there is no reservation %.80q; troupe reservation list names them", name)}})
	}
	if p := h.never(v, would); p != nil {
		return p
	}
	return nil
}

// changeRequest sets one thing of a request, as "ranks=8"; why it cannot be is returned.
func changeRequest(r *schedule.Request, change string) (why string) {
	key, value, ok := strings.Cut(change, "=")
	if !ok {
		return change + ": write NAME=VALUE"
	}
	number := func(least, most int64) (n int64) {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < least || n > most {
			why = change + ": a number from " + strconv.FormatInt(least, 10) + " to " + strconv.FormatInt(most, 10)
		}
		return n
	}
	yes := func() bool {
		b, err := strconv.ParseBool(value)
		if err != nil {
			why = change + ": true or false"
		}
		return b
	}
	switch key {
	case "ranks", "bundles":
		if n := number(1, schedule.MaxBundles); why == "" {
			r.Spec.Bundles = slices.Repeat(r.Spec.Bundles[:1], int(n))
		}
	case "gpus":
		n := number(0, schedule.MaxGPUs)
		for i := range r.Spec.Bundles {
			r.Spec.Bundles[i].GPUs = n
		}
	case "priority":
		r.Spec.Priority = number(-schedule.MaxPriority, schedule.MaxPriority)
	case "pool":
		r.Spec.Pool = value
	case "queue":
		r.Spec.Queue = value
	case "tenant":
		r.Spec.Tenant = value
	case "level":
		r.Spec.Level, r.Spec.LevelWait = value, nil
	case "strategy":
		r.Spec.Strategy = api.Strategy(strings.ToUpper(value))
	case "reservation":
		r.Spec.Reservation = value
	case "preemptible":
		r.Spec.Preemptible = yes()
	case "whole-nodes":
		r.Spec.WholeNodes = yes()
	case "time":
		d, err := unit.ParseDuration(value)
		if err != nil || d <= 0 {
			return change + ": a duration, as 2h"
		}
		r.Spec.TimeLimit, r.Spec.Estimate, r.Expect = d, 0, time.Duration(d)
	default:
		return change + ": may be changed: ranks, gpus, priority, pool, queue, tenant, level, strategy, reservation, preemptible, whole-nodes, time"
	}
	return why
}
