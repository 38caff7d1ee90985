package schedule

import "github.com/troupe-runtime/troupe/runtime/api"

// needs is what a request takes of what quotas count, as far as it is known before it is
// placed.
func (c *cycle) needs(r *Request, d *demand) []int64 {
	return c.quotas.needs(d.sum(), r.Spec.Uses, int64(d.total))
}

// admitted says whether tenant and queue let the request be placed now.
func (c *cycle) admitted(r *Request, d *demand) bool {
	return c.quotas.admits(r, c.needs(r, d))
}

// take gives request i of the order its spots, takes them out of what is free and charges
// them. It does neither if that would be too many of one class of devices.
func (c *cycle) take(i int, d *demand, spots []spot, chosen []int64) bool {
	r := c.order[i]
	needs := c.needs(r, d)
	if chosen != nil {
		var sum amount
		for _, b := range chosen {
			sum = sum.plus(amountOf(&r.Spec.Bundles[b].Resources))
		}
		needs = c.quotas.needs(sum, r.Spec.Uses, int64(len(chosen)))
	}
	if c.quotas.typed {
		for _, s := range spots {
			c.quotas.classifySpot(needs, c.free.nodes[s.node].id, s)
		}
		if !c.quotas.admits(r, needs) {
			return false
		}
	}
	c.quotas.charge(r, needs)
	c.decisions[i].Bundles = c.free.commit(r.ID, spots, chosen)
	c.decisions[i].Chosen = chosen
	c.placed = append(c.placed, placedNow{request: r, at: c.decisions[i].Bundles, spots: spots})
	return true
}

// Position is the place of a waiting group among the requests of its own queue, from 1;
// 0: it does not wait.
func (r *Result) Position(group string) int { return r.cycle.turns.position(group) }

// quotaReasons explains what tenant and queue of a request do not let it have.
func (x *explainer) quotaReasons(r *Request, d *demand) []api.Reason {
	q := x.quotas
	return q.why(r, q.needs(d.sum(), r.Spec.Uses, int64(d.total)), place(x.free, d).spots != nil)
}
