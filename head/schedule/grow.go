package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	pace "github.com/troupe-runtime/troupe/elastic/plan"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// Growth is a running elastic group that is to go on with more bundles. It keeps those that
// it has, and saves at an agreed step before it starts again.
type Growth struct {
	Group string
	To    int64
	Why   string
	// Bundles are those of a group with roles that it lacked, by their numbers; nil: it is
	// the group of an elastic job.
	Bundles []api.Placed
}

const (
	// settled is how long a group runs with one size before it may grow again, so that it
	// does not follow every gap between two jobs.
	settled = 5 * time.Minute
	// worth is how many times what a restart costs a growth must save.
	worth = 3
	// mostSizes bounds how many sizes are looked at for one group.
	mostSizes = 4096
)

// grow gives elastic groups what nobody waits for. Whatever waits comes first: of what has a
// planned start that is not moved, and for what has none, for whatever reason, nothing grows,
// since what it needs may become free beside this, unless nothing that ends would help it. Those that would miss their
// deadline get the least size that meets it, the earliest deadline first, before the others
// get what is left.
func (c *cycle) grow() {
	for i, r := range c.order {
		if f := &c.fates[i]; f.placed == 0 && !f.starts && (c.times == nil || !c.isHopeless(r, c.mem.demandOf(r, c.now))) {
			return
		}
	}
	var elastic []*Holder
	for _, h := range c.s.Holders {
		if !h.mayGrow() {
			continue
		}
		if until := h.Sized.Add(cmp.Or(c.s.Policy.GrowAfter, settled)); until.After(c.now) {
			c.lookAgain(until)
			continue
		}
		elastic = append(elastic, h)
	}
	slices.SortFunc(elastic, func(a, b *Holder) int {
		return cmp.Or(standingOf(b.Spec).compare(standingOf(a.Spec)), cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Group, b.Group))
	})
	var late, others []*Holder
	for _, h := range elastic {
		if h.late(c.now) {
			late = append(late, h)
		} else {
			others = append(others, h)
		}
	}
	slices.SortStableFunc(late, func(a, b *Holder) int { return a.Spec.Deadline.Compare(b.Spec.Deadline) })
	for _, h := range late {
		if g, ok := c.growInTime(h); ok {
			c.growths = append(c.growths, g)
		} else {
			others = append(others, h)
		}
	}
	for _, h := range others {
		if g, ok := c.growOne(h); ok {
			c.growths = append(c.growths, g)
		}
	}
	c.completeGroups()
}

// completeGroups gives groups that were placed with fewer bundles of their roles as many of
// the others as there is room for, in the order of their numbers. Nobody has to start again
// for that.
func (c *cycle) completeGroups() {
	var short []*Holder
	for _, h := range c.s.Holders {
		if h.Spec != nil && len(h.Lacks) > 0 && !h.Releasing && h.LeavingFor == "" && !c.evicted(h) {
			short = append(short, h)
		}
	}
	slices.SortFunc(short, func(a, b *Holder) int {
		return cmp.Or(standingOf(b.Spec).compare(standingOf(a.Spec)), cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Group, b.Group))
	})
	for _, h := range short {
		find := func(n int) ([]spot, func() []api.Placed) {
			bundles := make([]api.Bundle, n)
			for i := range bundles {
				bundles[i] = h.Lacks[i].Bundle
			}
			return c.beside(h, bundles)
		}
		n := len(h.Lacks)
		if got, _ := find(n); got == nil {
			n = searchFirst(n, func(k int) bool { got, _ := find(k + 1); return got == nil })
		}
		if n == 0 {
			continue
		}
		got, take := find(n)
		if got == nil {
			continue
		}
		g := Growth{Group: h.Group, To: int64(len(h.Bundles) + n), Why: "there is room for it, and nobody waits", Bundles: take()}
		for i := range g.Bundles {
			g.Bundles[i].Bundle = h.Lacks[i].Number
		}
		c.growths = append(c.growths, g)
	}
}

// evicted: this cycle told it to leave.
func (c *cycle) evicted(h *Holder) bool {
	return slices.ContainsFunc(c.evictions, func(e Eviction) bool {
		return slices.ContainsFunc(e.Victims, func(v Victim) bool { return v.Group == h.Group })
	})
}

// late: it is expected to end, and after its deadline, which is still to come.
func (h *Holder) late(now time.Time) bool {
	d := h.Spec.Deadline
	return !d.IsZero() && d.After(now) && h.Ends.After(d)
}

// mayGrow: it runs, can save, and nothing else is asked of it.
func (h *Holder) mayGrow() bool {
	if h.Spec == nil || h.Sizes == nil || h.Fixed || h.Releasing || h.LeavingFor != "" || h.SaveCost <= 0 || h.Sized.IsZero() {
		return false
	}
	return len(h.Spec.Roles) == 0 && len(h.Spec.Bundles) > 0 && int64(len(h.Bundles)) == int64(len(h.Spec.Bundles))
}

// on is the nodes, by id, that a holder has bundles on.
func (h *Holder) on() map[string]bool {
	out := map[string]bool{}
	for i := range h.Bundles {
		out[h.Bundles[i].Node] = true
	}
	return out
}

// beside finds room for bundles of a group beyond those that it holds, and says how to take
// it; nil: there is none.
func (c *cycle) beside(h *Holder, bundles []api.Bundle) (got []spot, take func() []api.Placed) {
	spec := *h.Spec
	spec.Bundles, spec.Roles, spec.Min = bundles, nil, 0
	r := &Request{ID: h.Group, Name: h.Name, User: h.User, Spec: spec, Seq: h.Seq, Expect: h.left(c.now), Since: c.now}
	linked := c.free
	if !spec.WholeNodes || linked.links == nil {
		linked = nil
	}
	r.Avoid = besideOn(c.s, &spec, h.on(), linked)
	d := newDemand(r, c.now)
	if !c.admitted(r, d) {
		return nil, nil
	}
	got = c.startNow(len(c.order), r, d).spots
	return got, func() []api.Placed {
		c.quotas.charge(r, c.needs(r, d))
		return c.free.commit(r.ID, got, nil)
	}
}

// more is so many bundles more that an elastic group needs to have a size.
func (h *Holder) more(to int64) []api.Bundle {
	return slices.Repeat(h.Spec.Bundles[:1], int(to)-len(h.Bundles))
}

// growInTime gives a late group the least size that meets its deadline, if there is room.
func (c *cycle) growInTime(h *Holder) (Growth, bool) {
	n := int64(len(h.Bundles))
	until := h.Spec.Deadline.Sub(c.now) - h.Restart - h.SaveCost
	to, ok := LeastInTime(h.Sizes.Above(n, mostSizes), n, h.left(c.now), until)
	if !ok {
		return Growth{}, false
	}
	got, take := c.beside(h, h.more(to))
	if got == nil {
		return Growth{}, false
	}
	take()
	return Growth{Group: h.Group, To: to, Why: fmt.Sprintf("with %d ranks it would end %s after its deadline, with %d before it",
		n, h.Ends.Sub(h.Spec.Deadline).Round(time.Second), to)}, true
}

// growOne finds the largest size with room for it that is worth a restart.
func (c *cycle) growOne(h *Holder) (Growth, bool) {
	n := int64(len(h.Bundles))
	sizes := h.Sizes.Above(n, mostSizes)
	room := func(k int) bool { got, _ := c.beside(h, h.more(sizes[k])); return got != nil }
	if len(sizes) == 0 || !room(0) {
		return Growth{}, false
	}
	to := sizes[searchFirst(len(sizes)+1, func(k int) bool { return k == len(sizes) || !room(k) })-1]
	saved, ok := h.gain(n, to, c.now)
	if !ok {
		return Growth{}, false
	}
	got, take := c.beside(h, h.more(to))
	if got == nil {
		return Growth{}, false
	}
	take()
	return Growth{Group: h.Group, To: to, Why: fmt.Sprintf("there is room for %d ranks and nobody waits: it ends about %s sooner", to, saved.Round(time.Second))}, true
}

// left is how long it is still expected to run, 0: not known.
func (h *Holder) left(now time.Time) time.Duration {
	if h.Ends.IsZero() {
		return 0
	}
	return max(time.Second, h.Ends.Sub(now))
}

// gain is how much sooner a group is expected to end with another size; false when that is
// not worth starting it again.
func (h *Holder) gain(from, to int64, now time.Time) (time.Duration, bool) {
	left := h.left(now)
	if left == 0 {
		left = 24 * time.Hour
	}
	saved := left - pace.WithRanks(left, from, to)
	return saved, saved > worth*(h.Restart+h.SaveCost)
}
