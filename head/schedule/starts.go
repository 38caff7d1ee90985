package schedule

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Requests are looked at in the order of turns. What fits starts; what does not gets a
// planned start: the earliest time from which it fits for as long as it is expected to run,
// beside what runs, what is reserved and the starts planned before. Its nodes and devices
// are then taken for that time, so whatever comes later in the order, to start now or
// later, delays no start planned before it. A request beyond its longest wait comes before
// all others in the order, which is what pins its start.
//
// Beyond the planned ones the rule is the same (EASY): it starts if it delays none.

// planned is how many starts are planned for the requests of one pool.
const planned = 1000

// timely is what a cycle knows of time. Room only shrinks within a cycle, so what was
// refused is refused again without a look.
type timely struct {
	tooLong map[timeKey]time.Duration // that did not fit now, or any longer
	pools   map[string]*poolLine
	last    *poolLine // that was asked for
	some    bool      // a start is planned
	left    bool      // one was not looked for, so that what comes after it gets none sooner
}

// poolLine is the line before one pool.
type poolLine struct {
	pool    string
	planned int   // starts
	starts  int64 // before which nothing else does (NoBackfill)
}

// lineOf is the line that a request stands in.
func (t *timely) lineOf(r *Request) *poolLine {
	if t.last == nil || t.last.pool != r.Spec.Pool {
		if t.last = t.pools[r.Spec.Pool]; t.last == nil {
			t.last = &poolLine{pool: r.Spec.Pool}
			t.pools[r.Spec.Pool] = t.last
		}
	}
	return t.last
}

// hopeless is what of a demand has no start at all: what runs so long, or longer, with the
// same access. It stays so until there is more of something.
type hopeless struct {
	longest time.Duration
	access  string
	grown   uint64
	links   uint64
	rules   uint64
}

func (c *cycle) isHopeless(r *Request, d *demand) bool {
	h, p := &d.hopeless, c.times
	return h.longest > 0 && h.grown == c.free.grown && h.links == c.mem.linkWords && h.rules == p.rules &&
		h.longest <= r.runs() && h.access == p.accessOf(r)
}

// timeKey is equal for requests that fit at the same times, if they run equally long.
type timeKey struct {
	d      *demand
	access string
}

// profile is made, or brought up to date, when something first does not fit, or depends on
// time anyway.
func (c *cycle) profile() *profile {
	if c.times != nil {
		return c.times
	}
	if p := c.mem.times; p != nil && p.free == c.free {
		p.follow(c.s, c.now)
	} else {
		c.mem.times = newProfile(c.s, c.free, c.now)
	}
	p := c.mem.times
	c.times = p
	p.begin(c.order, c.age)
	if since := p.now - p.replanned; p.replanned == 0 || since < 0 || since >= int64(c.age) {
		c.replan = true
	}
	if c.replan {
		p.replanned = p.now
	}
	for i := range c.placed {
		p.started(c.placed[i].request, -1, c.placed[i].spots)
	}
	for i := range c.aside {
		p.claimed(c.aside[i])
	}
	for _, h := range c.s.Holders {
		if len(h.Lent) > 0 && h.Spec != nil && len(h.Spec.Bundles) > 0 {
			r := &Request{ID: h.Group, Name: h.Name, User: h.User, Spec: *h.Spec, Former: h.Lent}
			p.former(r, newDemand(r, c.now))
		}
	}
	for i, r := range c.order {
		if c.turns.all[i].former && r.keepsFormer(c.now) {
			p.former(r, c.mem.demandOf(r, c.now))
			c.lookAgain(r.FormerUntil)
		}
	}
	c.timely = timely{
		tooLong: map[timeKey]time.Duration{}, pools: map[string]*poolLine{},
	}
	return p
}

// timed reports whether more than what is free now decides on a request.
func (c *cycle) timed(r *Request) bool {
	return len(c.s.Reservations) > 0 || r.timed()
}

func (r *Request) timed() bool { return len(r.Spec.Uses) > 0 || r.Spec.Reservation != "" }

// startNow finds a place for the request of a turn that it may take now; without spots it
// waits.
func (c *cycle) startNow(turn int, r *Request, d *demand) outcome {
	if _, behind := c.lined(r); behind {
		return outcome{}
	}
	timed := c.timed(r)
	if !timed && d.failedIn == c.mem.cycle {
		return outcome{}
	}
	if c.times == nil && c.mem.hasPlan() {
		c.profile()
	}
	// Where its start was planned for by now, so that those after it find what they were
	// promised.
	if c.times != nil {
		if e := c.times.planOf(turn); e != nil && !e.broken && e.from <= c.times.now && e.serves(d) && c.times.allows(r, turn, e.spots, c.times.now) {
			return outcome{spots: e.spots, chosen: e.chosen, proven: true}
		}
	}
	if c.times != nil && len(c.timely.tooLong) > 0 {
		if dur, ok := c.timely.tooLong[timeKey{d, c.times.accessOf(r)}]; ok && dur <= r.runs() {
			return outcome{}
		}
	}
	if !timed {
		got := c.try(d)
		if got.spots == nil {
			d.failedIn = c.mem.cycle
			return got
		}
		if c.times == nil || c.times.allows(r, turn, got.spots, c.times.now) {
			return got
		}
	}
	p := c.profile()
	got := p.placeNow(turn, r, d)
	if got.spots == nil {
		c.timely.tooLong[timeKey{d, p.accessOf(r)}] = r.runs()
	}
	return got
}

// lined reports whether a request stands behind one that holds up the line, and when that
// one starts: forever if that is not known. A request for any pool is in the line of all.
func (c *cycle) lined(r *Request) (starts int64, yes bool) {
	if !c.s.Policy.NoBackfill {
		return 0, false
	}
	for pool, l := range c.timely.pools {
		if l.starts > 0 && (pool == "" || r.Spec.Pool == "" || pool == r.Spec.Pool) {
			starts, yes = max(starts, l.starts), true
		}
	}
	return starts, yes
}

// inLine holds up what comes after a request that waits.
func (c *cycle) inLine(r *Request, start int64) {
	if c.s.Policy.NoBackfill {
		l := c.timely.lineOf(r)
		l.starts = max(l.starts, start)
	}
}

// planStart finds the earliest start of a request that waits and takes its place for then;
// false: none is planned.
func (c *cycle) planStart(turn int, r *Request, d *demand) (start int64, ok bool) {
	p := c.profile()
	notBefore := p.now
	if after, behind := c.lined(r); behind {
		notBefore = after
	}
	if c.timely.lineOf(r).planned >= cmp.Or(max(0, c.s.Policy.Planned), planned) || notBefore == forever {
		c.inLine(r, forever)
		return 0, false
	}
	e := p.planOf(turn)
	if e != nil && !e.broken && (!e.serves(d) || e.from <= p.now || e.from < notBefore || (!e.in || len(r.Spec.Uses) > 0) && !p.allows(r, turn, e.spots, e.from)) {
		p.drop(e)
		e.broken = true
	}
	if (e != nil || !c.isHopeless(r, d)) && c.looks(e, r) {
		if e != nil {
			p.forget(e)
		}
		if e = p.earliest(turn, r, d, notBefore, func(t time.Time) *demand { return c.mem.demandOf(r, t) }); e == nil {
			d.hopeless = hopeless{r.runs(), p.accessOf(r), c.free.grown, c.mem.linkWords, p.rules}
		} else {
			e.d, e.made, e.grown, e.cycle = d, p.now, c.free.grown, p.cycle
		}
	}
	if e == nil || e.broken {
		c.inLine(r, forever)
		return 0, false
	}
	if !e.in {
		p.add(e)
	}
	c.timely.lineOf(r).planned++
	c.timely.some = true
	c.inLine(r, e.from)
	return e.from, true
}

// What one cycle does for the plan where planned starts may reach an age, in nodes and
// spans of time that are looked at: nothing of it depends on how fast the machine is.
const (
	// replanWork is for one Replan: about a hundredth of a second.
	replanWork = 1 << 17
	// promiseWork is for the first of the line, and for starts that were planned and are not
	// possible any more.
	promiseWork = 1 << 14
	// promiseAfter is how many starts may be planned after one that is not possible any more
	// for another one to be looked for at once.
	promiseAfter = 64
	// replanPause is how soon a plan is gone on with that is not whole.
	replanPause = 100 * time.Millisecond
)

// looks reports whether the start of a request that waits is looked for now, given the one
// that is planned.
func (c *cycle) looks(e *plannedStart, r *Request) bool {
	p := c.times
	switch {
	case c.age == 0:
		p.look = lookOn
		return e == nil || e.broken
	case e != nil && !e.broken:
		if e.grown == c.free.grown {
			return false
		}
		if again := after(e.made, c.age); again > p.now {
			c.lookAgain(moment(again))
			return false
		}
	}
	fresh := e == nil && c.timely.left
	// What one start takes may have to be looked for again for all after it.
	promised := !c.timely.some || e != nil && e.broken && p.after(e.turn) <= promiseAfter
	switch {
	case !c.timely.some:
		p.look = lookFirst
	case c.replan:
		p.look = lookOn
	default:
		p.look = lookLate
	}
	if !fresh && (c.replan && p.work < replanWork || promised && p.work < promiseWork) {
		return true
	}
	c.timely.left = c.timely.left || e == nil
	c.lookAgain(c.now.Add(replanPause))
	return false
}

// accessOf is equal for requests to which the same reservations are open and which use as
// much of the same capacities.
func (p *profile) accessOf(r *Request) string {
	if len(p.booked) == 0 && len(p.kept) == 0 && len(r.Spec.Uses) == 0 && r.Spec.Reservation == "" {
		return ""
	}
	var b strings.Builder
	p.formerAccess(&b, r)
	for i := range p.booked {
		if p.booked[i].serves(r) {
			fmt.Fprintf(&b, "%q ", p.booked[i].Name)
		}
	}
	fmt.Fprintf(&b, "%q", r.Spec.Reservation)
	for _, u := range r.Spec.Uses {
		fmt.Fprintf(&b, " %q=%d", u.Of, u.N)
	}
	return b.String()
}

// claimed puts a claim that has not come true yet into the profile. Whatever of its place
// comes free goes to it; it starts when the last of those that leave for it has left.
func (p *profile) claimed(a aside) {
	r, d := a.request, a.demand
	e := &plannedStart{request: r, from: after(p.now, releaseTime)}
	for _, h := range p.s.Holders {
		if h.leavesFor(r) {
			end, _ := h.ends(p.now)
			e.from = max(e.from, end)
		}
	}
	e.to = after(e.from, r.runs())
	e.who = &occupant{group: r.ID, name: r.called(), ends: e.to, assumed: r.assumed(), from: e.from, start: e, passing: true}
	e.turn = -1
	p.passing = append(p.passing, e.who)
	for i, at := range r.Claim {
		sp, ok := p.spotOf(d, i, at)
		if !ok {
			continue
		}
		ni := sp.node
		e.spots = append(e.spots, sp)
		p.nodes[ni].planned = addStay(p.nodes[ni].planned, p.stayOf(sp, p.now, e.to, e.who))
		e.who.at(ni)
	}
	// What was set aside of it is not free now, and is when it ends.
	for ni, st := range a.taken {
		st.from, st.to, st.who = p.now, e.to, e.who
		p.run(ni, st)
	}
	e.after = p.waitsFor(e)
	p.claims = append(p.claims, e)
	p.pools.take(r, e.spots, p.now, e.to, e.who)
}
