package control

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/elastic/plan"
	"github.com/troupe-runtime/troupe/head/declare"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Queues lists tenants and queues in the order of their names, with what is charged to
// them. A name that is used without a record, as the default one, is listed as well.
func (h *Head) Queues(context.Context) ([]api.QueueStatus, uint64, error) {
	v := h.Store.View()
	now := h.Clock.Now().UnixNano()
	half := int64(v.Settings().HalfLifeOfUse())
	byName := map[string]*api.QueueStatus{}
	var order []string
	row := func(name string) *api.QueueStatus {
		if x := byName[name]; x != nil {
			return x
		}
		x := &api.QueueStatus{Queue: api.Queue{Name: name, Tenant: true}}
		byName[name] = x
		order = append(order, name)
		return x
	}
	for _, q := range v.Queues() {
		x := row(q.Name)
		x.Queue, x.By, x.Changed, x.Index = q.Spec, q.By, at(q.Changed), q.Index
	}
	for _, a := range v.Accounts() {
		if name, ok := state.QueueOf(a); ok {
			x := row(name)
			x.Charged, x.Assured, x.Used = a.Charged, a.Assured, a.UsedAt(now, half)
		}
	}
	tree := v.Tree()
	waits := map[string][]time.Duration{}
	for _, g := range v.Groups() {
		for _, name := range state.ChargedTo(tree, g.Spec.Tenant, g.Spec.Queue) {
			x := row(name)
			switch {
			case g.State == api.GroupPlaced:
				x.Running++
			case g.State == api.GroupPending && g.Parked != "":
				x.Parked++
			case g.State == api.GroupPending:
				x.Pending++
				waits[name] = append(waits[name], time.Duration(now-cmp.Or(g.Since, g.Created)))
			}
		}
	}
	slices.Sort(order)
	out := make([]api.QueueStatus, 0, len(order))
	for _, name := range order {
		x := byName[name]
		if w := waits[name]; len(w) > 0 {
			slices.Sort(w)
			x.Waits = unit.Duration(max(0, w[(len(w)-1)/2]))
		}
		out = append(out, *x)
	}
	return out, v.Index(), nil
}

// PutQueues replaces tenants and queues.
func (h *Head) PutQueues(ctx context.Context, r api.QueuesRequest) error {
	v := h.Store.View()
	var others []*api.Queue
	for _, q := range v.QueueSpecs() {
		named := slices.ContainsFunc(r.Queues, func(x api.Queue) bool { return x.Name == q.Name })
		if !r.Whole && !named && !slices.Contains(r.Remove, q.Name) {
			others = append(others, q)
		}
	}
	for _, q := range others {
		if slices.Contains(r.Remove, q.Parent) {
			return conflict("troupe queue remove "+q.Name, "%s stands below %s; remove it first, or give it another parent", q.Name, q.Parent)
		}
	}
	if errs := declare.Queues(r.Queues, others, v); len(errs) > 0 {
		return invalid(errs)
	}
	return h.change(ctx, state.KindPutQueues, state.PutQueues{
		Queues: r.Queues, Remove: r.Remove, Whole: r.Whole, If: r.IfVersion, By: h.who(ctx), Why: r.Reason,
	})
}

// PauseQueue stops starts in a tenant or queue; without a reason they go on.
func (h *Head) PauseQueue(ctx context.Context, name, reason string) error {
	q := h.Store.View().Queue(name)
	if q == nil {
		return notFound("queue", name)
	}
	spec := q.Spec
	spec.Paused = reason
	return h.change(ctx, state.KindPutQueues, state.PutQueues{Queues: []api.Queue{spec}, If: q.Index, By: h.who(ctx)})
}

// change proposes one command on behalf of somebody.
func (h *Head) change(ctx context.Context, kind state.Kind, body any) error {
	if err := h.leader(); err != nil {
		return err
	}
	if _, err := h.propose(ctx, kind, body); err != nil {
		return h.problemOf(err)
	}
	h.Kick()
	return nil
}

// QueueOrder lists what waits, in the order in which it is looked at: in one tenant or
// queue and below it or, with an empty name, in all.
func (h *Head) QueueOrder(_ context.Context, name string) ([]api.OrderRow, uint64, error) {
	v := h.Store.View()
	if name != "" && v.Queue(name) == nil && v.QueueAccount(name) == nil && name != api.DefaultQueue {
		return nil, 0, notFound("queue", name)
	}
	out := []api.OrderRow{}
	result := h.plan(v)
	if result == nil {
		return out, v.Index(), nil
	}
	byID := map[string]*schedule.Request{}
	for _, r := range h.snapshotOf(v).Pending {
		byID[r.ID] = r
	}
	tree := v.Tree()
	for _, d := range result.All() {
		r := byID[d.Group]
		if r == nil || name != "" && !slices.Contains(state.ChargedTo(tree, r.Spec.Tenant, r.Spec.Queue), name) {
			continue
		}
		row := api.OrderRow{
			Position: int64(result.Position(d.Group)), Group: d.Group, Name: r.Name, User: r.User, Tenant: tenantOf(tree, r.Spec.Tenant, r.Spec.Queue), Queue: r.Spec.Queue,
			Priority: r.Spec.Priority, Need: needOf(&r.Spec), Since: r.Since, Expect: unit.Duration(r.Expect), Start: d.Start,
		}
		// What its quota refuses has no place in the plan, and is expected to start all the same.
		if row.Planned = plannedView(result, d.Group); row.Planned != nil {
			row.Start = row.Planned.Start
		}
		if d.Bundles == nil {
			if rs := result.Why(d.Group); len(rs) > 0 {
				row.Reason = &rs[0]
			}
		}
		out = append(out, row)
	}
	return out, v.Index(), nil
}

// tenantOf is the tenant that a request is charged to first: its own, or that of its queue.
func tenantOf(tree *api.Tree, tenant, queue string) string {
	path, _ := tree.Path(tenant, queue) // one that is wrong has the name that it was given
	for _, q := range path {
		if q.Tenant {
			return q.Name
		}
	}
	return tenant
}

// chargedTenant is tenantOf for one request, without a tree of all.
func chargedTenant(v *state.View, tenant, queue string) string {
	q := v.Queue(queue)
	for range 64 { // no tree is as deep
		if q == nil {
			return tenant
		}
		if q.Spec.Tenant {
			return q.Name
		}
		q = v.Queue(q.Spec.Parent)
	}
	return tenant
}

// needOf sums what a request asks for.
func needOf(s *api.GroupSpec) api.Amounts {
	var gpu, cpu, memory int64
	for i := range s.Bundles {
		b := &s.Bundles[i]
		gpu += b.GPUs*1000 + b.Share
		cpu += int64(b.CPU)
		memory += int64(b.Memory)
	}
	var out api.Amounts
	for _, x := range []api.Amount{{Of: "cpu", N: cpu}, {Of: "gpu", N: gpu}, {Of: "memory", N: memory}} {
		if x.N > 0 {
			out = append(out, x)
		}
	}
	for _, u := range s.Uses {
		out = out.With(u.Of, u.N*int64(len(s.Bundles)))
	}
	return out
}

// Usage sums what jobs had of GPUs since a time, by tenant, queue or user. It knows the
// jobs that are kept.
func (h *Head) Usage(_ context.Context, by string, since time.Time) ([]api.UsageRow, uint64, error) {
	v := h.Store.View()
	now := h.Clock.Now()
	rows := map[string]*api.UsageRow{}
	tree := v.Tree()
	for _, j := range v.Jobs() {
		if end := at(j.Ended); j.Ended != 0 && end.Before(since) {
			continue
		}
		name := tenantOf(tree, j.Spec.Tenant, j.Spec.Queue)
		switch by {
		case "user":
			name = j.User
		case "queue":
			name = j.Spec.Queue
		}
		x := rows[name]
		if x == nil {
			x = &api.UsageRow{Of: name}
			rows[name] = x
		}
		all, _ := plan.Account(h.planJob(v, j), now)
		gpus := (j.Spec.Resources.GPUs*1000 + j.Spec.Resources.Share) * j.Spec.Ranks
		held := all.Sum() - all.Waiting
		x.GPUSeconds += int64(held/time.Second) * gpus / 1000
		x.Useful += int64(all.Useful/time.Second) * gpus / 1000
		x.Lost += int64(all.Lost/time.Second) * gpus / 1000
		x.Jobs++
		if !j.State.Terminal() {
			x.Live++
		}
	}
	out := make([]api.UsageRow, 0, len(rows))
	for _, x := range rows {
		out = append(out, *x)
	}
	slices.SortFunc(out, func(a, b api.UsageRow) int {
		return cmp.Or(cmp.Compare(b.GPUSeconds, a.GPUSeconds), cmp.Compare(a.Of, b.Of))
	})
	return out, v.Index(), nil
}
