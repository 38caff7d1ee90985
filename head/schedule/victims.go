package schedule

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// search is a look for victims for one group. It sees no more of a node than what the group
// could use there for as long as it runs: a reservation of somebody else, or what is kept or
// planned before it, leads the search elsewhere, and does not end it.
type search struct {
	c      *cycle
	r      *Request // who they would leave for
	turn   int
	least  *Request // r with as few bundles as its roles let it start with
	d      *demand  // of least
	chosen []int64  // the bundles of r that least has; nil: all

	base   *overlay     // what it could use with nobody gone
	narrow map[int]bool // the nodes of base that show less than what is free now
	why    string       // the last try failed for
}

// searchFor prepares a search, without a look at what is planned.
func (c *cycle) searchFor(r *Request, d *demand) *search {
	s := &search{c: c, r: r, turn: c.turns.at(r)}
	s.least, s.d, s.chosen = c.atLeast(r, d)
	s.look(false)
	return s
}

// look makes base; planned: with what is planned before the group taken out as well.
func (s *search) look(planned bool) {
	s.base, s.narrow = s.c.free, map[int]bool{}
	p := s.c.times
	if p == nil {
		return
	}
	p.trial = trial{group: s.r.ID}
	defer func() { p.trial = trial{} }()
	for ni := range p.nodes {
		t := &p.nodes[ni]
		if len(t.closed)+len(t.former) == 0 && s.r.Spec.Reservation == "" && (!planned || len(t.planned) == 0) {
			continue
		}
		if len(s.narrow) == 0 {
			s.base = s.c.free.clone()
		}
		s.narrow[ni] = true
		s.base.set(ni, s.throughout(ni))
	}
}

// throughout is what the group could use of a node for as long as it runs, with those gone
// that the trial says.
func (s *search) throughout(ni int) *nodeState {
	p := s.c.times
	n := p.window(ni, p.now, after(p.now, s.least.runs()), s.least, s.turn)
	if n == nil {
		n = p.free.nodes[ni]
	}
	out := n.clone()
	out.ready = out.ready && n != p.free.nodes[ni]
	p.spare, p.used = append(p.spare, p.used...), p.used[:0]
	return out
}

// freeWithout is what the group could use after victims have left.
func (s *search) freeWithout(vs []victim) *overlay {
	vs = whole(vs)
	o := s.base.clone()
	if p := s.c.times; p != nil {
		p.trial = trialOf(s.r, vs)
		defer func() { p.trial = trial{} }()
	}
	for _, v := range vs {
		left := v.h.Bundles[:len(v.h.Bundles)-len(v.gives())]
		for _, b := range v.gives() {
			ni, ok := s.c.at(b.Node)
			switch {
			case !ok:
			case s.narrow[ni]:
				o.set(ni, s.throughout(ni))
			default:
				n := o.nodes[ni].clone()
				n.giveBack(b)
				if n.held == v.h.Group && !slices.ContainsFunc(left, func(k Held) bool { return k.Node == b.Node }) {
					n.held = ""
				}
				o.set(ni, n)
			}
		}
	}
	return o
}

// at is the index of a node by its id.
func (c *cycle) at(node string) (int, bool) {
	if c.times != nil {
		ni, ok := c.times.at[node]
		return ni, ok
	}
	ni := c.free.find(node)
	return ni, ni >= 0
}

func trialOf(r *Request, vs []victim) trial {
	out := trial{group: r.ID, victims: map[string]int64{}}
	for _, v := range vs {
		out.victims[v.h.Group] = v.keeps
	}
	return out
}

// without finds where the group stands once victims have left; nil: nowhere.
func (s *search) without(vs []victim) []spot {
	allowed := s.c.allowedWithout(s.least, s.d, vs)
	if s.why = unhelpfulQuota; allowed == nil {
		return nil
	}
	o := s.freeWithout(vs)
	spots := placeLinked(o, allowed).spots
	if s.why = unhelpfulRoom; spots == nil {
		return nil
	}
	if s.undisturbed(spots, vs) {
		return spots
	}
	if s.why != unhelpfulCapacity || !s.limit(o, vs) {
		return nil
	}
	// On other nodes the capacities may be enough.
	if spots = placeLinked(o, allowed).spots; spots == nil || !s.undisturbed(spots, vs) {
		s.why = unhelpfulCapacity
		return nil
	}
	return spots
}

// limit leaves of each node as much as the capacities let the group use there.
func (s *search) limit(o *overlay, vs []victim) bool {
	p := s.c.times
	p.trial = trialOf(s.r, whole(vs))
	defer func() { p.trial = trial{} }()
	nodes := make([]int, len(o.nodes))
	for ni := range nodes {
		nodes[ni] = ni
	}
	return p.pools.limit(s.least, s.turn, s.d, o, nodes, p.now, after(p.now, s.least.runs()))
}

// undisturbed: with victims gone the group could run there from now on without being in the
// way of what is planned before it, reserved, or kept.
func (s *search) undisturbed(spots []spot, vs []victim) bool {
	p := s.c.times
	if p == nil {
		return true
	}
	p.trial = trialOf(s.r, whole(vs))
	defer func() { p.trial = trial{} }()
	if s.why = unhelpfulCapacity; !p.pools.holds(s.least, s.turn, spots, p.now, after(p.now, s.least.runs())) {
		return false
	}
	s.why = unhelpfulTime
	return p.allows(s.least, s.turn, spots, p.now)
}

// helps reports whether it would be enough if all of those left; else why is why not.
func (s *search) helps(all []victim) bool {
	if s.without(all) != nil {
		return true
	}
	if s.why == unhelpfulTime {
		s.look(true)
		if s.without(all) != nil {
			return true
		}
	}
	if s.why == unhelpfulRoom && len(s.narrow) > 0 {
		// Would it, were it not for what is reserved, kept or planned?
		base, narrow := s.base, s.narrow
		s.base, s.narrow = s.c.free, nil
		if placeLinked(s.freeWithout(all), s.d).spots != nil {
			s.why = unhelpfulTime
		}
		s.base, s.narrow = base, narrow
	}
	return false
}

// victimsFor finds the victims for one group, and where it then stands with which of its
// bundles; none with the reason why no preemption helps.
func (c *cycle) victimsFor(r *Request, d *demand, gone map[*Holder]bool) (out []victim, at outcome, s *search, why unhelpful) {
	all, soon := c.candidates(r, gone)
	c.lookAgain(soon)
	if len(all) == 0 {
		return nil, outcome{}, nil, unhelpful{unhelpfulRoom, soon}
	}
	s = c.searchFor(r, d)
	if !s.helps(all) {
		why = unhelpful{s.why, soon}
		if why.text != unhelpfulRoom { // it may be otherwise later, with nothing having changed
			if at := c.now.Add(unhelpfulFor); soon.IsZero() || at.Before(soon) {
				why.until = at
			}
		}
		return nil, outcome{}, nil, why
	}
	// The fewest of the cheapest with which it fits: more room never makes it fit less.
	few := 1 + searchFirst(len(all), func(k int) bool { return s.without(all[:k+1]) != nil })
	out = s.giveBack(slices.Clone(all[:few]))
	if len(out) == 0 {
		return nil, outcome{}, nil, unhelpful{"nothing has to leave for it", soon}
	}
	out = whole(out)
	spots := s.without(out)
	if spots == nil {
		return nil, outcome{}, nil, unhelpful{"no set of victims stood the last check", soon}
	}
	var price int64
	for _, v := range out {
		price = satAdd(price, v.price)
	}
	if most := c.s.Policy.MaxLost; most > 0 && satAdd(c.s.Lost, price) > satMul(most, 3_600_000) {
		return nil, outcome{}, nil, unhelpful{fmt.Sprintf("preempting for it would lose %s; no more than %d GPU-hours are to be lost in an hour, %s were already",
			gpuTime(price), most, gpuTime(c.s.Lost)), c.now}
	}
	return out, s.widest(d, out, outcome{spots: spots, chosen: s.chosen}), s, unhelpful{}
}

// giveBack lets those victims stay that turn out not to be needed: those on nodes that the
// group does not use, all at once; then, the most expensive first, each without which it
// still fits; then as much of the elastic ones as they need not give.
func (s *search) giveBack(out []victim) []victim {
	used := map[string]bool{}
	for _, sp := range s.without(out) {
		used[s.base.nodes[sp.node].id] = true
	}
	near := slices.DeleteFunc(slices.Clone(out), func(v victim) bool {
		return !slices.ContainsFunc(v.h.Bundles, func(b Held) bool { return used[b.Node] })
	})
	if s.without(near) != nil {
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
		if s.without(rest) != nil {
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
			if s.without(more) != nil {
				out = more
				break
			}
		}
	}
	return out
}

// atLeast is a request with as few bundles as its roles let it start with: nobody has to
// leave for more than that. chosen are the bundles; nil: all of them are needed.
func (c *cycle) atLeast(r *Request, d *demand) (least *Request, part *demand, chosen []int64) {
	if d.fewest() >= int64(d.total) {
		return r, d, nil
	}
	spare := d.fewest()
	for i := range d.roles {
		spare -= minimum(&d.roles[i])
	}
	first := int64(0)
	for i := range d.roles {
		n := minimum(&d.roles[i])
		more := min(max(0, spare), d.roles[i].Bundles-n) // of the first roles, where the group needs more
		spare -= more
		for k := range n + more {
			chosen = append(chosen, first+k)
		}
		first += d.roles[i].Bundles
	}
	least, part = c.partOf(r, chosen)
	return least, part, chosen
}

// partOf is a request for some of its bundles, all of which it then needs.
func (c *cycle) partOf(r *Request, chosen []int64) (*Request, *demand) {
	part := *r
	part.Spec.Roles, part.Spec.Min, part.Spec.Bundles = nil, 0, make([]api.Bundle, len(chosen))
	for i, b := range chosen {
		part.Spec.Bundles[i] = r.Spec.Bundles[b]
	}
	return &part, newDemand(&part, c.now)
}

// widest is where a group with roles stands with as many bundles as there is room for once
// victims have left that let it have the fewest.
func (s *search) widest(d *demand, vs []victim, at outcome) outcome {
	if at.chosen == nil {
		return at
	}
	c, r := s.c, s.r
	defer c.lift(vs)()
	wide := newDemand(r, c.now)
	wide.within = func(bundles []api.Bundle) bool {
		needs := c.needsOf(r, bundles)
		return c.quotas.admits(c.quotas.of(r.Spec.Tenant, r.Spec.Queue), r, needs) && len(c.quotas.barred(r, needs)) == 0
	}
	o := s.freeWithout(vs)
	got := outcome{}
	if wide.within(r.Spec.Bundles) {
		got = place(o, wide)
	} else {
		got = placeFewer(o, wide)
	}
	if got.spots == nil || !s.undisturbed(got.spots, vs) {
		return at
	}
	return got
}

// evict records the decision: who leaves, and what the group has claimed for itself. What
// of the claim is free already is set aside for the rest of the cycle.
func (c *cycle) evict(s *search, d *demand, vs []victim, at outcome, gone map[*Holder]bool) {
	r := s.r
	e := Eviction{Preemptor: r.ID, Claim: s.freeWithout(vs).commit(r.ID, at.spots, at.chosen)}
	for _, v := range vs {
		gone[v.h] = true
		why := fmt.Sprintf("preempted for %s (%s)", cmp.Or(r.Name, r.ID), standingText(&r.Spec, v.h.Spec))
		e.Victims = append(e.Victims, Victim{Group: v.h.Group, Name: v.h.called(), Keeps: v.keeps, Why: why, Lost: v.price})
	}
	c.evictions = append(c.evictions, e)
	part, d := c.claimed(r, d, e.Claim)
	c.promise(r, part, d, e.Claim, vs)
}

// leaves is a holder of what a victim gives back, for the books.
func (v *victim) leaves() *Holder {
	return v.h.With(v.gives())
}

// With is a holder like this one that has some of its bundles, and is charged for those.
func (h *Holder) With(bundles []Held) *Holder {
	out := *h
	out.Bundles = bundles
	out.CPU, out.Memory, out.GPUs = 0, 0, 0
	for i := range bundles {
		b := &bundles[i]
		out.CPU, out.Memory = out.CPU+b.CPU, out.Memory+b.Memory
		if b.Share == 0 {
			out.GPUs += int64(len(b.Devices))
		}
	}
	return &out
}

// admittedWithout says whether tenant and queue let the request be placed once victims have
// left: work that was lent room gives it back.
func (c *cycle) admittedWithout(r *Request, d *demand, vs []victim) bool {
	return c.allowedWithout(r, d, vs) != nil
}

// lift takes what victims are charged out of the quotas, and puts it back; those of the
// claims before them are charged as well until they have left.
func (c *cycle) lift(vs []victim) (back func()) {
	if len(c.quotas.things) == 0 {
		return func() {} // nothing is counted
	}
	var backs []func()
	for _, v := range append(whole(vs), c.leaving...) {
		backs = append(backs, c.quotas.lift(v.leaves()))
	}
	later := c.quotas.later
	c.quotas.later = nil // now it is later
	return func() {
		c.quotas.later = later
		for _, f := range slices.Backward(backs) {
			f()
		}
	}
}

// allowedWithout is the demand as its quota allows it once victims have left, those of the
// claims before it included; nil: not at all.
func (c *cycle) allowedWithout(r *Request, d *demand, vs []victim) *demand {
	defer c.lift(vs)()
	if !c.admitted(r, d) {
		return nil
	}
	return c.allowed(r, d)
}
