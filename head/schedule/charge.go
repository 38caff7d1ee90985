package schedule

import (
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// needs is what a request takes of what quotas count, as far as it is known before it is
// placed.
func (c *cycle) needs(r *Request, d *demand) []int64 {
	return c.quotas.needs(d.sum(), r.Spec.Uses, int64(d.total))
}

// admitted says whether tenant and queue let the request be placed now.
func (c *cycle) admitted(r *Request, d *demand) bool {
	return c.quotas.admits(c.quotas.of(r.Spec.Tenant, r.Spec.Queue), r, c.needs(r, d))
}

// allowed is the demand as its quota allows it: without the models of which it may not
// have as many devices as it asks for.
func (c *cycle) allowed(r *Request, d *demand) *demand {
	if !c.quotas.typed {
		return d
	}
	models := c.quotas.barred(r, c.needs(r, d))
	if len(models) == 0 {
		return d
	}
	barred := newDemand(r, c.now).bar(models)
	if have := c.mem.byKey[barred.key]; have != nil {
		return have
	}
	c.mem.byKey[barred.key] = barred
	return barred
}

// placeWithin places request i of the order with fewer bundles of its roles, as many as
// its quota allows.
func (c *cycle) placeWithin(i int, d *demand) {
	r := c.order[i]
	if len(d.roles) == 0 {
		return
	}
	fewer := newDemand(r, c.now)
	fewer.within = func(bundles []api.Bundle) bool {
		needs := c.needsOf(r, bundles)
		return c.quotas.admits(c.quotas.of(r.Spec.Tenant, r.Spec.Queue), r, needs) && len(c.quotas.barred(r, needs)) == 0
	}
	got := placeFewer(c.free, fewer)
	if got.spots == nil || c.times != nil && !c.times.allows(r, i, got.spots, c.times.now) {
		return
	}
	if c.take(i, fewer, got.spots, got.chosen) && c.times != nil {
		c.times.begun(r, i, got.spots)
	}
}

func (c *cycle) needsOf(r *Request, bundles []api.Bundle) []int64 {
	var sum amount
	for i := range bundles {
		sum = sum.plus(amountOf(&bundles[i].Resources))
	}
	return c.quotas.needs(sum, r.Spec.Uses, int64(len(bundles)))
}

// take gives request i of the order its spots, takes them out of what is free and charges
// them; chosen are the bundles that they are for, nil: all. It does nothing if a quota does
// not allow them.
func (c *cycle) take(i int, d *demand, spots []spot, chosen []int64) bool {
	r := c.order[i]
	needs := c.needs(r, d)
	if chosen != nil {
		bundles := make([]api.Bundle, len(chosen))
		for k, b := range chosen {
			bundles[k] = r.Spec.Bundles[b]
		}
		needs = c.needsOf(r, bundles)
	}
	if c.quotas.typed {
		needs = slices.Clone(needs)
		for _, s := range spots {
			c.quotas.classifySpot(needs, c.free.nodes[s.node], s)
		}
		if !c.quotas.admits(c.quotas.of(r.Spec.Tenant, r.Spec.Queue), r, needs) {
			return false
		}
	}
	c.quotas.charge(r, needs)
	c.placed = append(c.placed, placedNow{request: r, at: c.free.commit(r.ID, spots, chosen), chosen: chosen, spots: spots})
	c.fates[i] = fate{placed: int32(len(c.placed))}
	return true
}

// Position is the place of a waiting group among the requests of its own queue, from 1;
// 0: it does not wait.
func (r *Result) Position(group string) int { return r.cycle.turns.position(group) }

// quotaReasons explains what tenant and queue of a request do not let it have.
func (x *explainer) quotaReasons(r *Request, d *demand) []api.Reason {
	q := x.quotas
	needs := q.needs(d.sum(), r.Spec.Uses, int64(d.total))
	fits := !x.c.refused[d.key] && place(x.free, d).spots != nil
	out := q.why(r, needs, fits)
	if models := q.barred(r, needs); len(out) == 0 && fits && len(models) > 0 {
		return q.whyModels(r, needs, models)
	}
	return out
}
