package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// What the operator does not set.
const (
	// protectedFor is how long work that has just started is left alone.
	protectedFor = time.Minute
	// mostPreemptors is how many different demands one cycle looks for victims for, and
	// mostGiveBacks how many of those that were found it tries to let stay.
	mostPreemptors = 8
	mostGiveBacks  = 64
)

// Preemption ends less important work for more important work, and only with the proof
// that the waiting group then fits, with everything it asks for, on one overlay. It is
// stable: a victim is of a lower rank than who it leaves for, and ranks are ordered, so
// that no two groups can end each other and a victim that asks again evicts nobody.

// standing is how important work is: guaranteed work before opportunistic, then by
// priority. Admission order refines it; it never contradicts it.
type standing struct {
	guaranteed bool
	priority   int64
}

func standingOf(s *api.GroupSpec) standing {
	return standing{guaranteed: !s.Preemptible, priority: s.Priority}
}

func (a standing) compare(b standing) int {
	if a.guaranteed != b.guaranteed {
		if a.guaranteed {
			return 1
		}
		return -1
	}
	return cmp.Compare(a.priority, b.priority)
}

// victim is a holder that may leave, or shrink, at a price.
type victim struct {
	h     *Holder
	price int64 // GPU-seconds of work that would be lost, in thousandths
	each  int64 // price for each device that becomes free
	keeps int64 // bundles that it goes on with; 0: none
}

// gives is what it holds and is to give back.
func (v *victim) gives() []Held { return v.h.Bundles[min(v.keeps, int64(len(v.h.Bundles))):] }

// preempt is phase 5: for the most important groups that wait, who must leave.
func (c *cycle) preempt() {
	if c.s.Policy.NoPreempt {
		return
	}
	lowest, some := c.lowestVictim()
	if !some {
		return
	}
	gone := map[*Holder]bool{}
	tried := map[asked]standing{}
	searches := 0
	c.mem.vain.follow(c)
	for i, r := range c.order {
		if c.decisions[i].Bundles != nil || len(r.Claim) > 0 {
			continue
		}
		rank := standingOf(&r.Spec)
		if rank.compare(lowest) <= 0 {
			continue
		}
		d := c.mem.demandOf(r, c.now)
		ask := asked{d, c.turns.all[i].c, r.Spec.Reservation}
		if before, ok := tried[ask]; ok && before.compare(rank) >= 0 {
			continue // an equal demand of this or a higher rank, for the same tenant and queue, found nothing
		}
		if v, ok := c.mem.vain.still(ask, rank, c.now); ok && len(gone) == 0 {
			tried[ask] = rank
			c.unhelpful[r.ID] = v.why
			c.lookAgain(v.until)
			continue
		}
		if searches++; searches > mostPreemptors {
			c.lookAgain(c.now.Add(replanPause))
			return
		}
		out, at, why := c.victimsFor(r, d, gone)
		if out == nil {
			tried[ask] = rank
			c.unhelpful[r.ID] = why.text
			if len(gone) == 0 {
				c.mem.vain.last[ask] = vain{rank: rank, why: why.text, until: why.until}
			}
			continue
		}
		c.evict(r, d, out, at, gone)
	}
}

// lowestVictim is the least important standing among what may be ended at all.
func (c *cycle) lowestVictim() (lowest standing, some bool) {
	for _, h := range c.s.Holders {
		if !h.mayLeave() {
			continue
		}
		if rank := standingOf(h.Spec); !some || rank.compare(lowest) < 0 {
			lowest, some = rank, true
		}
	}
	return lowest, some
}

// mayLeave: what it holds is known, and nobody has told it to leave.
func (h *Holder) mayLeave() bool {
	return h.Spec != nil && h.Spec.Preemptible && !h.Releasing && !h.Fixed && h.LeavingFor == "" && len(h.Bundles) > 0
}

// candidates are the holders that may leave for a group, the cheapest for each device
// first; soon is when the protection of another one ends.
func (c *cycle) candidates(r *Request, gone map[*Holder]bool) (out []victim, soon time.Time) {
	rank := standingOf(&r.Spec)
	protect := cmp.Or(c.s.Policy.Protect, protectedFor)
	for _, h := range c.s.Holders {
		if gone[h] || !h.mayLeave() || rank.compare(standingOf(h.Spec)) <= 0 {
			continue
		}
		if until := h.Started.Add(protect); !h.Started.IsZero() && until.After(c.now) {
			if soon.IsZero() || until.Before(soon) {
				soon = until
			}
			continue
		}
		price := h.lostWork(c.now)
		devices := max(1, h.devices())
		if n := h.smallest(); n > 0 {
			// Giving up what is more than its smallest size loses nothing but a restart.
			surplus := max(1, devices*(int64(len(h.Bundles))-n)/int64(len(h.Bundles)))
			cost := satMul(devices, h.Restart.Milliseconds())
			out = append(out, victim{h: h, price: cost, each: cost / surplus, keeps: n})
		}
		out = append(out, victim{h: h, price: price, each: price / devices})
	}
	slices.SortFunc(out, func(a, b victim) int {
		return cmp.Or(
			// The surplus of elastic work goes before anything is ended.
			cmp.Compare(min(1, b.keeps), min(1, a.keeps)),
			standingOf(a.h.Spec).compare(standingOf(b.h.Spec)),
			cmp.Compare(a.each, b.each),
			cmp.Compare(b.h.Seq, a.h.Seq), // the youngest first
			cmp.Compare(a.h.Group, b.h.Group),
		)
	})
	return out, soon
}

// devices is how many devices a holder has, at least in part; without any, its CPUs count.
func (h *Holder) devices() int64 {
	var n int64
	for i := range h.Bundles {
		n += int64(len(h.Bundles[i].Devices))
	}
	if n == 0 {
		n = int64(h.CPU) / 1000
	}
	return n
}

// smallest is the smallest size that a holder may go on with, 0: it has one size.
func (h *Holder) smallest() int64 {
	if least := h.Sizes.Least(); least < int64(len(h.Bundles)) {
		return least
	}
	return 0
}

// lostWork prices the end of a holder: its devices times what is not committed and what
// starting again takes, more each time it was preempted before. Work that can save when it
// is asked to loses at most what the save takes.
func (h *Holder) lostWork(now time.Time) int64 {
	since := h.Started
	if h.Committed.After(since) {
		since = h.Committed
	}
	lost := max(0, now.Sub(since))
	if h.SaveCost > 0 {
		lost = min(lost, h.SaveCost)
	}
	ms := satAdd(lost.Milliseconds(), max(0, h.Restart.Milliseconds()))
	return satMul(satMul(ms, max(1, h.devices())), satAdd(1, max(0, h.Evictions)))
}

// victimsFor finds the victims for one group and where it then stands; nil with the reason
// why no preemption helps.
func (c *cycle) victimsFor(r *Request, d *demand, gone map[*Holder]bool) (out []victim, spots []spot, why unhelpful) {
	all, soon := c.candidates(r, gone)
	c.lookAgain(soon)
	why.until = soon
	without := func(vs []victim) []spot {
		allowed := c.allowedWithout(r, d, vs)
		if why.text = unhelpfulQuota; allowed == nil {
			return nil
		}
		spots := placeLinked(c.withoutVictims(vs), allowed).spots
		if why.text = unhelpfulRoom; spots == nil {
			return nil
		}
		ok, delays := c.delaysNone(r, spots, vs)
		if why.text = delays; !ok {
			return nil
		}
		return spots
	}
	if len(all) == 0 {
		return nil, nil, unhelpful{unhelpfulRoom, soon}
	}
	if without(all) == nil {
		if why.text != unhelpfulRoom { // it may be otherwise later, with nothing having changed
			if at := c.now.Add(unhelpfulFor); soon.IsZero() || at.Before(soon) {
				why.until = at
			}
		}
		return nil, nil, why
	}
	// The fewest of the cheapest with which it fits: more room never makes it fit less.
	few := 1 + searchFirst(len(all), func(k int) bool { return without(all[:k+1]) != nil })
	out = slices.Clone(all[:few])
	at := without(out)

	// Give back: those on nodes that the group does not use, all at once; then, the most
	// expensive first, each without which it still fits; then as much of the elastic ones
	// as they need not give.
	used := map[string]bool{}
	for _, s := range at {
		used[c.free.nodes[s.node].id] = true
	}
	near := slices.DeleteFunc(slices.Clone(out), func(v victim) bool {
		return !slices.ContainsFunc(v.h.Bundles, func(b Held) bool { return used[b.Node] })
	})
	if without(near) != nil {
		out = near
	}
	tries := 0
	byPrice := slices.Clone(out)
	slices.SortStableFunc(byPrice, func(a, b victim) int { return cmp.Compare(b.price, a.price) })
	for _, v := range byPrice {
		if tries++; tries > mostGiveBacks || len(out) == 1 && v.keeps == 0 {
			break
		}
		rest := slices.DeleteFunc(slices.Clone(out), func(o victim) bool { return o.h == v.h && o.keeps == v.keeps })
		if without(rest) != nil {
			out = rest
		}
	}
	for i := range out {
		if out[i].keeps == 0 {
			continue
		}
		for _, n := range out[i].h.Sizes.Below(int64(len(out[i].h.Bundles)), mostGiveBacks) {
			more := slices.Clone(out)
			more[i].keeps = n
			if without(more) != nil {
				out = more
				break
			}
		}
	}
	if len(out) == 0 {
		return nil, nil, unhelpful{"nothing has to leave for it", soon}
	}
	out = whole(out)
	if at = without(out); at == nil {
		return nil, nil, unhelpful{"no set of victims stood the last check", soon}
	}
	var price int64
	for _, v := range out {
		price = satAdd(price, v.price)
	}
	if most := c.s.Policy.MaxLost; most > 0 && satAdd(c.s.Lost, price) > satMul(most, 3_600_000) {
		return nil, nil, unhelpful{fmt.Sprintf("preempting for it would lose %s; no more than %d GPU-hours are to be lost in an hour, %s were already",
			gpuTime(price), most, gpuTime(c.s.Lost)), c.now}
	}
	return out, at, unhelpful{}
}

// gpuTime prints GPU-milliseconds.
func gpuTime(ms int64) string { return fmt.Sprintf("%.1f GPU-hours", float64(ms)/3_600_000) }

// searchFirst is the smallest k below n for which ok holds; ok(n-1) does, and once it holds
// it holds for all larger ones.
func searchFirst(n int, ok func(int) bool) int {
	lo, hi := 0, n-1
	for lo < hi {
		if mid := (lo + hi) / 2; ok(mid) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// whole leaves of each holder one entry: who leaves does not shrink as well.
func whole(vs []victim) []victim {
	var out []victim
	for _, v := range vs {
		if v.keeps > 0 && slices.ContainsFunc(vs, func(o victim) bool { return o.h == v.h && o.keeps == 0 }) {
			continue
		}
		out = append(out, v)
	}
	return out
}

// withoutVictims is what would be free after victims have left.
func (c *cycle) withoutVictims(vs []victim) *overlay {
	o := c.free.clone()
	at := map[string]int{}
	for ni := range o.nodes {
		at[o.nodes[ni].id] = ni
	}
	for _, v := range whole(vs) {
		for _, b := range v.gives() {
			if ni, ok := at[b.Node]; ok {
				n := o.nodes[ni].clone()
				n.giveBack(b)
				if n.held == v.h.Group {
					n.held = ""
				}
				o.set(ni, n)
			}
		}
	}
	return o
}

// evict records the decision: who leaves, and what the group has claimed for itself. What
// of the claim is free already is set aside for the rest of the cycle.
func (c *cycle) evict(r *Request, d *demand, vs []victim, at []spot, gone map[*Holder]bool) {
	o := c.withoutVictims(vs)
	e := Eviction{Preemptor: r.ID, Claim: o.commit(r.ID, at, nil)}
	for _, v := range vs {
		gone[v.h] = true
		why := fmt.Sprintf("preempted for %s (%s)", cmp.Or(r.Name, r.ID), standingText(&r.Spec, v.h.Spec))
		e.Victims = append(e.Victims, Victim{Group: v.h.Group, Name: v.h.called(), Keeps: v.keeps, Why: why, Lost: v.price})
	}
	c.evictions = append(c.evictions, e)
	c.promise(r, d, e.Claim, vs)
}

func standingText(r, victim *api.GroupSpec) string {
	if !r.Preemptible && victim.Preemptible {
		return "guaranteed work before preemptible"
	}
	return fmt.Sprintf("priority %d over %d", r.Priority, victim.Priority)
}

// delaysNone: with victims gone the group could run there from now on without being in the
// way of what is planned before it, reserved, or kept; else what it is that does not let it.
func (c *cycle) delaysNone(r *Request, spots []spot, vs []victim) (ok bool, delays string) {
	p := c.times
	if p == nil {
		return true, ""
	}
	p.trial = trial{group: r.ID, victims: map[string]int64{}}
	for _, v := range whole(vs) {
		p.trial.victims[v.h.Group] = v.keeps
	}
	defer func() { p.trial = trial{} }()
	if !p.pools.holds(r, c.turns.at(r), spots, p.now, after(p.now, r.runs())) {
		return false, unhelpfulCapacity
	}
	return p.allows(r, c.turns.at(r), spots, p.now), unhelpfulTime
}

// admittedWithout says whether tenant and queue let the request be placed once victims have
// left: work that was lent room gives it back.
func (c *cycle) admittedWithout(r *Request, d *demand, vs []victim) bool {
	return c.allowedWithout(r, d, vs) != nil
}

// allowedWithout is the demand as its quota allows it once victims have left, those of the
// claims before it included, which are charged; nil: not at all.
func (c *cycle) allowedWithout(r *Request, d *demand, vs []victim) *demand {
	vs = whole(vs)
	if len(c.quotas.things) == 0 {
		vs = nil // nothing is counted
	} else if len(c.leaving) > 0 {
		vs = append(vs, c.leaving...)
	}
	for _, v := range vs {
		given := *v.h
		given.Bundles = v.gives()
		given.CPU, given.Memory, given.GPUs = 0, 0, 0
		for i := range given.Bundles {
			b := &given.Bundles[i]
			given.CPU, given.Memory = given.CPU+b.CPU, given.Memory+b.Memory
			if b.Share == 0 {
				given.GPUs += int64(len(b.Devices))
			}
		}
		defer c.quotas.lift(&given)()
	}
	if !c.admitted(r, d) {
		return nil
	}
	return c.allowed(r, d)
}
