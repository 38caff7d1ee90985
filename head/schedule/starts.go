package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
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

// Forecast is when a waiting group is planned to start, and what that rests on.
type Forecast struct {
	Start time.Time `json:"start"`
	// After names the groups whose end it waits for, the last to end first.
	After []string `json:"after,omitempty"`
	// Assumptions say for each of them why it is expected to have ended, and what is
	// assumed of the group itself.
	Assumptions []string `json:"assumptions,omitempty"`
	Nodes       []string `json:"nodes,omitempty"` // by name
}

// Forecast is the planned start of a waiting group; false: none is planned.
func (r *Result) Forecast(group string) (Forecast, bool) {
	i := slices.IndexFunc(r.planned, func(e *plannedStart) bool { return e.request.ID == group })
	if i < 0 {
		return Forecast{}, false
	}
	e := r.planned[i]
	f := Forecast{Start: moment(e.from)}
	for _, o := range e.after[:min(len(e.after), named)] {
		f.After = append(f.After, o.name)
		f.Assumptions = append(f.Assumptions, fmt.Sprintf("%s ends by %s: %s", o.name, stamp(o.ends), o.assumed))
	}
	f.Assumptions = append(f.Assumptions, fmt.Sprintf("%s runs for %s: %s", e.who.name, spell(e.request.runs()), e.request.assumed()))
	for _, sp := range e.spots {
		if name := r.left.nodes[sp.node].name; len(f.Nodes) == 0 || f.Nodes[len(f.Nodes)-1] != name {
			f.Nodes = append(f.Nodes, name)
		}
	}
	slices.SortFunc(f.Nodes, naturalCompare)
	f.Nodes = slices.Compact(f.Nodes)
	return f, true
}

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

// moves bounds how often the capacities are asked for a later moment for one request.
const moves = 16

// earliest finds the first moment from which the request fits for as long as it runs; nil:
// there is none as far as is known.
func (p *profile) earliest(r *Request, d *demand, notBefore int64, demandAt func(time.Time) *demand) *plannedStart {
	e := p.earliestOf(r, d, notBefore)
	// A preferred level is waited for until its time is over.
	if wait := r.Spec.LevelWait; d.required && wait != nil && !r.Since.IsZero() {
		opens := max(notBefore, after(nanos(r.Since), time.Duration(*wait)))
		if other := p.earliestOf(r, demandAt(moment(opens)), opens); other != nil && (e == nil || other.from < e.from) {
			e = other
		}
	}
	if e != nil {
		e.who = &occupant{group: r.ID, name: r.called(), ends: e.to, assumed: r.assumed(), from: e.from, start: e}
		e.after = p.waitsFor(e)
	}
	return e
}

func (p *profile) earliestOf(r *Request, d *demand, notBefore int64) *plannedStart {
	if len(d.classes) == 0 || d.incomplete() {
		return nil
	}
	// The earliest moment is one at which the room for one of the classes grows.
	var found *plannedStart
	for ci := range d.classes[:min(len(d.classes), exactBundles)] {
		if e := p.earliestBy(r, d, ci, notBefore); e != nil && (found == nil || e.from < found.from) {
			found = e
		}
	}
	return found
}

// earliestBy looks at the moments at which the room for a class grows.
func (p *profile) earliestBy(r *Request, d *demand, ci int, notBefore int64) *plannedStart {
	dur := int64(r.runs())
	l := p.lineOf(r, d, d.classes[ci])
	groupOf, groups, some := p.groups(d)
	if !some {
		return nil
	}
	var found *plannedStart
	for range moves {
		later := int64(0)
		l.earliest(d.needed(ci), dur, notBefore, groupOf, groups, func(at int64, enough func(int32) bool) bool {
			if t := p.pools.roomFrom(r, d.fewest(), at, at+dur); t > at {
				later = t
				return true
			}
			got := p.placeAt(r, d, at, enough)
			if got.spots == nil {
				return false
			}
			found = &plannedStart{request: r, spots: got.spots, chosen: got.chosen, from: at, to: after(at, r.runs())}
			return true
		})
		if found != nil || later <= notBefore || later >= forever-1 {
			break
		}
		notBefore = later
	}
	return found
}

// groups divides the nodes into those that have to have room together: all, those of one
// domain, or each for itself. False: there is no such level.
func (p *profile) groups(d *demand) ([]int32, int, bool) {
	switch {
	case d.required:
		li := p.free.topo.level(d.level)
		if li < 0 {
			return nil, 0, false
		}
		return p.free.topo.of[li], len(p.free.topo.domains), true
	case d.strategy == api.StrictPack:
		if p.alone == nil {
			p.alone = make([]int32, len(p.nodes))
			for ni := range p.alone {
				p.alone[ni] = int32(ni)
			}
		}
		return p.alone, len(p.nodes), true
	}
	return nil, 1, true
}

// fewest is how many bundles the demand starts with at least.
func (d *demand) fewest() int64 {
	if len(d.roles) == 0 {
		return int64(d.total)
	}
	var sum int64
	for i := range d.roles {
		sum = satAdd(sum, minimum(&d.roles[i]))
	}
	return max(sum, d.least)
}

// needed is how many bundles of a class there must be.
func (d *demand) needed(ci int) int64 {
	return max(0, int64(len(d.classes[ci].bundles))-(int64(d.total)-d.fewest()))
}

// placeAt finds a place for a request that is free for it from a moment on, for as long as
// it runs, on nodes that may be part of one.
func (p *profile) placeAt(r *Request, d *demand, at int64, may func(node int32) bool) outcome {
	if len(d.classes) == 0 {
		return outcome{}
	}
	to := after(at, r.runs())
	if p.room == nil {
		p.room = make([]int32, len(p.nodes))
	}
	nodes := p.lineOf(r, d, d.classes[0]).covering(at, int64(r.runs()), p.room, nil)
	some := p.enough(d, nodes)
	few := nodes
	if some && len(d.classes) == 1 && !d.required {
		few = p.roomiest(nodes, d.needed(0))
	}
	for _, ni := range nodes {
		p.room[ni] = 0
	}
	if !some {
		return outcome{}
	}
	for _, c := range d.classes[1:] {
		nodes = p.lineOf(r, d, c).covering(at, int64(r.runs()), p.room, nodes)
	}
	for _, ni := range nodes {
		p.room[ni] = 0
	}
	if len(d.classes) > 1 {
		few = nodes
	}
	barred := func(ni int) bool { return !may(int32(ni)) }
	if got := p.placeAmong(r, d, math.MaxInt, slices.DeleteFunc(slices.Clone(few), barred), at, to); got.spots != nil || len(few) == len(nodes) {
		return got
	}
	return p.placeAmong(r, d, math.MaxInt, slices.DeleteFunc(nodes, barred), at, to)
}

// placeNow finds a place for the request of a turn that it may take now, beside the starts
// planned before it.
func (p *profile) placeNow(turn int, r *Request, d *demand) outcome {
	if len(d.classes) == 0 {
		return outcome{}
	}
	to := after(p.now, r.runs())
	var nodes []int
	for ci, c := range d.classes {
		for ni, k := range p.free.tallyOf(d, c).node {
			if k == 0 || p.room[ni] > 0 {
				continue
			}
			n := p.free.nodes[ni]
			if t := &p.nodes[ni]; len(t.planned)+len(t.closed) > 0 || r.Spec.Reservation != "" {
				if n = p.window(ni, p.now, to, r, turn); n == nil {
					continue
				}
				if k = c.room(n); k == 0 {
					continue
				}
			}
			nodes = append(nodes, ni)
			p.room[ni] = k
		}
		p.spare, p.used = append(p.spare, p.used...), p.used[:0]
		if ci == 0 && !p.enough(d, nodes) {
			nodes = p.blankRoom(nodes)
			break
		}
	}
	few := nodes
	if len(d.classes) == 1 && !d.required {
		few = p.roomiest(nodes, d.needed(0))
	}
	p.blankRoom(nodes)
	if got := p.placeAmong(r, d, turn, few, p.now, to); got.spots != nil || len(few) == len(nodes) {
		return got
	}
	return p.placeAmong(r, d, turn, nodes, p.now, to)
}

// blankRoom forgets the room of nodes, and gives none.
func (p *profile) blankRoom(nodes []int) []int {
	for _, ni := range nodes {
		p.room[ni] = 0
	}
	return nil
}

// enough reports whether a group of nodes has room for the most demanding class.
func (p *profile) enough(d *demand, nodes []int) bool {
	groupOf, groups, some := p.groups(d)
	if !some {
		return false
	}
	sums := make([]int64, groups)
	for _, ni := range nodes {
		g := int32(0)
		if groupOf != nil {
			g = groupOf[ni]
		}
		if g < 0 {
			continue
		}
		if sums[g] += int64(p.room[ni]); sums[g] >= d.needed(0) {
			return true
		}
	}
	return false
}

// roomiest are some of the nodes that have most room, with several times what is needed:
// enough to choose from.
func (p *profile) roomiest(nodes []int, need int64) []int {
	const times, least = 4, 16
	if len(nodes) <= least {
		return nodes
	}
	out := slices.Clone(nodes)
	slices.SortFunc(out, func(a, b int) int {
		x, y := min(int64(p.room[a]), need), min(int64(p.room[b]), need)
		return cmp.Or(cmp.Compare(y, x), cmp.Compare(a, b))
	})
	var sum int64
	for i, ni := range out {
		if sum >= satMul(times, need) && i >= least {
			return out[:i]
		}
		sum = satAdd(sum, int64(p.room[ni]))
	}
	return out
}

// placeAmong is placeOn, first on what is reserved for the request.
func (p *profile) placeAmong(r *Request, d *demand, turn int, nodes []int, at, to int64) outcome {
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	// Its own reservation is used before what others could use too.
	if own := p.own(r, nodes, at, to); len(own) > 0 && len(own) < len(nodes) {
		if got := p.placeOn(r, d, turn, own, at, to); got.spots != nil {
			return got
		}
	}
	return p.placeOn(r, d, turn, nodes, at, to)
}

// placeOn is place on some nodes with what they have free throughout a time.
func (p *profile) placeOn(r *Request, d *demand, turn int, nodes []int, at, to int64) outcome {
	o := p.scratch
	defer o.back(o.mark())
	for _, ni := range nodes {
		if n := p.window(ni, at, to, r, turn); n != nil {
			o.set(ni, n)
		}
	}
	defer func() { p.spare = append(p.spare, p.used...); p.used = p.used[:0] }()
	got := place(o, d)
	if got.spots == nil || p.pools.holds(r, got.spots, at, to) {
		return got
	}
	if !p.pools.limit(r, d, o, nodes, at, to) {
		return outcome{}
	}
	if got = place(o, d); got.spots == nil || !p.pools.holds(r, got.spots, at, to) {
		return outcome{}
	}
	return got
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

// waitsFor lists who has to have ended on the nodes of a planned start before it, the last
// to end first. Those that hold nothing that it needs are not told apart from the others.
func (p *profile) waitsFor(e *plannedStart) []*occupant {
	seen := map[*occupant]bool{}
	var out []*occupant
	node := -1
	for _, sp := range e.spots {
		if sp.node == node {
			continue
		}
		node = sp.node
		for _, stays := range [][]stay{p.nodes[node].running, p.nodes[node].planned} {
			for i := range stays {
				if s := &stays[i]; s.to <= e.from && !seen[s.who] {
					seen[s.who] = true
					out = append(out, s.who)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b *occupant) int {
		return cmp.Or(cmp.Compare(b.ends, a.ends), naturalCompare(a.name, b.name), cmp.Compare(a.group, b.group))
	})
	return out
}
