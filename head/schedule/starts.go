package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
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
	tooLong  map[timeKey]time.Duration // that did not fit now, or any longer
	hopeless map[timeKey]time.Duration // that have no start at all, or any longer
	planned  map[string]int            // by pool
	looked   int                       // starts that were looked for
	line     map[string]int64          // by pool, before which nothing else starts (NoBackfill)
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
	for i := range c.placed {
		p.started(c.placed[i].request, -1, c.placed[i].spots)
	}
	for i := range c.aside {
		p.claimed(c.aside[i], c.mem.demandOf(c.aside[i].request, c.now))
	}
	for _, h := range c.s.Holders {
		if len(h.Lent) > 0 && h.Spec != nil && len(h.Spec.Bundles) > 0 {
			r := &Request{ID: h.Group, Name: h.Name, User: h.User, Spec: *h.Spec, Former: h.Lent}
			p.former(r, newDemand(r, c.now))
		}
	}
	for _, r := range c.order {
		if r.keepsFormer(c.now) {
			p.former(r, c.mem.demandOf(r, c.now))
			c.lookAgain(r.FormerUntil)
		}
	}
	c.timely = timely{
		tooLong: map[timeKey]time.Duration{}, hopeless: map[timeKey]time.Duration{}, planned: map[string]int{}, line: map[string]int64{},
	}
	return p
}

// timed reports whether more than what is free now decides on a request.
func (c *cycle) timed(r *Request) bool {
	return len(c.s.Reservations) > 0 || len(r.Spec.Uses) > 0 || r.Spec.Reservation != ""
}

// startNow finds a place for the request of a turn that it may take now; without spots it
// waits.
func (c *cycle) startNow(turn int, r *Request, d *demand, failed map[*demand]bool) outcome {
	if _, behind := c.lined(r); behind {
		return outcome{}
	}
	timed := c.timed(r)
	if !timed && failed[d] {
		return outcome{}
	}
	if c.times == nil && c.mem.hasPlan() {
		c.profile()
	}
	// Where its start was planned for by now, so that those after it find what they were
	// promised.
	if c.times != nil {
		if e := c.times.known[r]; e != nil && e.from <= c.times.now && e.d.key == d.key && c.times.allows(r, turn, e.spots, c.times.now) {
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
			failed[d] = true
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
	for pool, at := range c.timely.line {
		if pool == "" || r.Spec.Pool == "" || pool == r.Spec.Pool {
			starts, yes = max(starts, at), true
		}
	}
	return starts, yes
}

// inLine holds up what comes after a request that waits.
func (c *cycle) inLine(r *Request, start int64) {
	if c.s.Policy.NoBackfill {
		c.timely.line[r.Spec.Pool] = max(c.timely.line[r.Spec.Pool], start)
	}
}

// planStart finds the earliest start of a request that waits and takes its place for then.
func (c *cycle) planStart(turn int, r *Request, d *demand) time.Time {
	p := c.profile()
	notBefore := p.now
	if after, behind := c.lined(r); behind {
		notBefore = after
	}
	key := timeKey{d, p.accessOf(r)}
	if c.timely.planned[r.Spec.Pool] >= cmp.Or(max(0, c.s.Policy.Planned), planned) || notBefore == forever {
		c.inLine(r, forever)
		return time.Time{}
	}
	e := p.known[r]
	if e != nil && (e.d.key != d.key || e.from <= p.now || e.from < notBefore || !e.in && !p.allows(r, turn, e.spots, e.from)) {
		p.forget(e)
		e = nil
	}
	old := e != nil && e.grown != c.free.grown && p.now-e.made >= int64(c.age)
	if longest, known := c.timely.hopeless[key]; (e == nil || old) && c.timely.looked < c.looks() && (!known || r.runs() < longest) {
		c.timely.looked++
		if e != nil {
			p.forget(e)
		}
		p.truncate(turn)
		if e = p.earliest(r, d, notBefore, func(t time.Time) *demand { return c.mem.demandOf(r, t) }); e == nil {
			c.timely.hopeless[key] = r.runs()
		} else {
			e.d, e.made, e.grown, e.turn, e.cycle = d, p.now, c.free.grown, turn, p.cycle
		}
	}
	if e == nil {
		c.inLine(r, forever)
		return time.Time{}
	}
	if !e.in {
		p.add(e)
	}
	c.timely.planned[r.Spec.Pool]++
	c.inLine(r, e.from)
	return moment(e.from)
}

// looks is how many starts one cycle looks for. With an age that a plan may reach, that is
// the first ones at once, and the others as cycles go by.
func (c *cycle) looks() int {
	const first, then = 50, 16
	switch {
	case c.age == 0:
		return math.MaxInt
	case len(c.times.list) < first:
		return first
	}
	return then
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
func (p *profile) claimed(a aside, d *demand) {
	r := a.request
	e := &plannedStart{request: r, from: after(p.now, releaseTime)}
	for _, h := range p.s.Holders {
		if h.LeavingFor == r.ID || h.Releasing && slices.Contains(r.Leaving, h.Group) {
			end, _ := h.ends(p.now)
			e.from = max(e.from, end)
		}
	}
	e.to = after(e.from, r.runs())
	e.who = &occupant{group: r.ID, name: r.called(), ends: e.to, assumed: r.assumed(), from: e.from, start: e, passing: true}
	e.turn = -1
	p.passing = append(p.passing, e.who)
	for i, at := range r.Claim {
		ni, ok := p.at[at.Node]
		c := d.classOf(i)
		if !ok || c == nil {
			continue
		}
		sp := spot{node: ni, class: c}
		for k := range p.free.nodes[ni].gpus {
			if slices.Contains(at.Devices, p.free.nodes[ni].gpus[k].uuid) {
				sp.devices = append(sp.devices, k)
			}
		}
		e.spots = append(e.spots, sp)
		p.nodes[ni].planned = append(p.nodes[ni].planned, p.stayOf(sp, p.now, e.to, e.who))
		e.who.nodes = append(e.who.nodes, ni)
	}
	// What was set aside of it is not free now, and is when it ends.
	for ni, st := range a.taken {
		st.from, st.to, st.who = p.now, e.to, e.who
		p.run(ni, st)
	}
	e.after = p.waitsFor(e)
	p.claims = append(p.claims, e)
	p.pools.take(r, e.spots, p.now, e.to)
}
