package schedule

import (
	"slices"
	"time"
)

// agenda is the planned starts of a profile, from one cycle to the next.
type agenda struct {
	list    []*plannedStart            // in order of turns; of the cycle before at its beginning
	known   map[*Request]*plannedStart // also those that have to be looked at again
	passing []*occupant                // what is known for one cycle only
	claims  []*plannedStart            // that have not come true yet
	cycle   uint64

	// plans are those of the requests of this cycle, by turn; missing ones are nil.
	plans     []*plannedStart
	replanned int64 // when the plan was gone on with last; 0: never
	work      int   // that this cycle has done for the plan, in nodes and spans looked at
}

// plannedStart is one planned start. What people are told of it never changes.
type plannedStart struct {
	request *Request
	spots   []spot
	chosen  []int64
	from    int64
	to      int64
	who     *occupant
	after   []*occupant // whose ends it waits for, the last to end first

	d     *demand // what was asked for when it was looked for
	by    *demand // what it was found for: the same, or that with the level open by then
	made  int64   // when it was looked for
	grown uint64
	turn  int
	cycle uint64
	mark  uint64
	in    bool // it has its place in the profile
	seen  bool // it is counted in the view
	// broken: it is not possible any more, and another one is to be looked for.
	broken bool
}

// begin goes through the planned starts of the cycle before: what waits no longer has none.
// Without an age that they may reach all are given up.
func (p *profile) begin(order []*Request, age time.Duration) {
	p.cycle++
	p.claims, p.work = nil, 0
	clear(p.plans)
	p.plans = slices.Grow(p.plans[:0], len(order))[:len(order)]
	if p.known == nil {
		p.known = map[*Request]*plannedStart{}
	}
	if age > 0 && len(p.known) > 0 {
		for i, r := range order {
			if e := p.known[r]; e != nil {
				e.turn, e.cycle, p.plans[i] = i, p.cycle, e
			}
		}
	}
	for _, e := range p.known {
		e.seen = false
		if e.cycle != p.cycle {
			p.forget(e)
		}
	}
	p.view.reset(len(p.nodes))
	p.list = slices.DeleteFunc(p.list, func(e *plannedStart) bool { return e.cycle != p.cycle })
	for _, e := range p.list { // the use of capacities was counted anew
		if e.in {
			p.pools.take(e.request, e.spots, e.from, e.to, e.who)
		}
	}
	slices.SortStableFunc(p.list, func(a, b *plannedStart) int { return a.turn - b.turn })
}

// close keeps the planned starts that have their places.
func (p *profile) close() []*plannedStart {
	p.list = p.list[:0]
	for _, e := range p.plans {
		switch {
		case e == nil:
		case e.in:
			p.list = append(p.list, e)
		case !e.broken:
			delete(p.known, e.request)
		}
	}
	return append(slices.Clone(p.claims), p.list...)
}

// drop takes a planned start out of the profile; it may come back in its turn.
func (p *profile) drop(e *plannedStart) {
	if e.in {
		e.in = false
		p.work += len(e.who.nodes)
		p.view.discount(e)
		p.unplan(e.who)
		if len(e.request.Spec.Uses) > 0 {
			p.pools.giveBack(e.who)
		}
	}
}

func (p *profile) forget(e *plannedStart) {
	p.drop(e)
	delete(p.known, e.request)
	if p.planOf(e.turn) == e {
		p.plans[e.turn] = nil
	}
}

// after is how many starts were planned after a turn.
func (p *profile) after(turn int) int {
	at, _ := slices.BinarySearchFunc(p.list, turn, func(e *plannedStart, turn int) int { return e.turn - turn })
	return len(p.list) - at
}

// planOf is what is planned for the request of a turn; nil: nothing.
func (p *profile) planOf(turn int) *plannedStart {
	if turn < 0 || turn >= len(p.plans) {
		return nil
	}
	return p.plans[turn]
}

// serves reports whether a planned start is one for a demand.
func (e *plannedStart) serves(d *demand) bool { return e.d.key == d.key || e.by.key == d.key }

// displace takes out the planned starts after a turn that begin on a node before a time.
func (p *profile) displace(ni, turn int, until int64) {
	for i := 0; i < len(p.nodes[ni].planned); {
		s := &p.nodes[ni].planned[i]
		if e := s.who.start; e.turn > turn && s.from < until {
			p.drop(e)
			i = 0
			continue
		}
		i++
	}
}

// add takes the place of a planned start for its time.
func (p *profile) add(e *plannedStart) {
	e.in = true
	p.known[e.request] = e
	p.plans[e.turn] = e
	for i, sp := range e.spots {
		if i == 0 || e.spots[i-1].node != sp.node {
			p.displace(sp.node, e.turn, e.to)
		}
		n := &p.nodes[sp.node]
		n.planned = addStay(n.planned, p.stayOf(sp, e.from, e.to, e.who))
		e.who.at(sp.node)
	}
	if e.turn < p.view.turn {
		p.view.count(e)
	}
	p.pools.take(e.request, e.spots, e.from, e.to, e.who)
}

// begun puts a group into the profile that has been placed in its turn.
func (p *profile) begun(r *Request, turn int, spots []spot) {
	if e := p.planOf(turn); e != nil {
		p.forget(e)
	}
	p.started(r, turn, spots)
}

// unplan forgets what was planned for the request of a turn that its quota refuses now.
func (c *cycle) unplan(turn int) {
	if c.times == nil && c.mem.hasPlan() && c.mem.times.known[c.order[turn]] != nil {
		c.profile()
	}
	if c.times != nil {
		if e := c.times.planOf(turn); e != nil {
			c.times.forget(e)
		}
	}
}

// hasPlan reports whether there are planned starts from the cycle before.
func (m *memory) hasPlan() bool {
	return m.times != nil && m.times.free == m.free && len(m.times.known) > 0
}

// closePlan hands the plan over to the result.
func (c *cycle) closePlan() {
	if c.times == nil {
		return
	}
	c.planned = c.times.close()
	c.before = make([]int, len(c.planned))
	for i, e := range c.planned {
		if c.before[i] = e.turn; e.turn < 0 {
			c.before[i] = slices.Index(c.order, e.request)
		}
	}
	c.booked, c.pools = c.times.booked, c.times.pools
	for i, r := range c.order {
		if !c.turns.all[i].claims {
			continue
		}
		for _, e := range c.times.claims {
			if e.request == r && c.fates[i].placed == 0 {
				c.fates[i].starts, c.fates[i].start = true, e.from
			}
		}
	}
}
