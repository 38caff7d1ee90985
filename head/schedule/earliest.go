package schedule

import (
	"cmp"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// moves bounds how often the capacities are asked for a later moment for one request.
const moves = 16

// earliest finds the first moment from which the request of a turn fits for as long as it
// runs, beside the starts planned before it; nil: there is none as far as is known.
func (p *profile) earliest(turn int, r *Request, d *demand, notBefore int64, demandAt func(time.Time) *demand) *plannedStart {
	p.see(turn)
	e := p.earliestOf(turn, r, d, notBefore)
	// A preferred level is waited for until its time is over.
	if wait := r.Spec.LevelWait; d.required && wait != nil && !r.Since.IsZero() {
		opens := max(notBefore, after(nanos(r.Since), time.Duration(*wait)))
		if other := p.earliestOf(turn, r, demandAt(moment(opens)), opens); other != nil && (e == nil || other.from < e.from) {
			e = other
		}
	}
	if e != nil {
		e.turn = turn
		p.view.mark(e)
		e.who = &occupant{group: r.ID, name: r.called(), ends: e.to, assumed: r.assumed(), from: e.from, start: e}
		e.after = p.waitsFor(e)
	}
	return e
}

func (p *profile) earliestOf(turn int, r *Request, d *demand, notBefore int64) *plannedStart {
	if len(d.classes) == 0 || d.incomplete() {
		return nil
	}
	// The earliest moment is one at which the room for one of the classes grows.
	var found *plannedStart
	for ci := range d.classes[:min(len(d.classes), exactBundles)] {
		if e := p.earliestBy(turn, r, d, ci, notBefore); e != nil && (found == nil || e.from < found.from) {
			found = e
		}
	}
	return found
}

// earliestBy looks at the moments at which the room for a class grows.
func (p *profile) earliestBy(turn int, r *Request, d *demand, ci int, notBefore int64) *plannedStart {
	dur := int64(r.runs())
	l := p.lineOf(r, d, d.classes[ci])
	defer func() { p.work, l.work = p.work+l.work, 0 }()
	groupOf, groups, some := p.groups(d)
	if !some {
		return nil
	}
	var found *plannedStart
	for range moves {
		later := int64(0)
		p.rooms = slices.Grow(p.rooms[:0], groups)[:groups]
		clear(p.rooms)
		l.earliest(d.needed(ci), dur, notBefore, groupOf, p.rooms, func(at int64, enough func(int32) bool) bool {
			if t := p.pools.roomFrom(r, turn, d.fewest(), at, at+dur); t > at {
				later = t
				return true
			}
			got := p.placeAt(turn, r, d, at, enough)
			if got.spots == nil {
				return false
			}
			found = &plannedStart{request: r, by: d, spots: got.spots, chosen: got.chosen, from: at, to: after(at, r.runs())}
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

// placeAt finds a place for the request of a turn that is free for it from a moment on, for as long as
// it runs, on nodes that may be part of one.
func (p *profile) placeAt(turn int, r *Request, d *demand, at int64, may func(node int32) bool) outcome {
	if len(d.classes) == 0 {
		return outcome{}
	}
	to := after(at, r.runs())
	if p.room == nil {
		p.room = make([]int32, len(p.nodes))
	}
	nodes := p.lineOf(r, d, d.classes[0]).covering(at, int64(r.runs()), p.room, p.covered[:0])
	p.covered = nodes
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
		p.covered = nodes
	}
	for _, ni := range nodes {
		p.room[ni] = 0
	}
	if len(d.classes) > 1 {
		few = nodes
	}
	barred := func(ni int) bool { return !may(int32(ni)) }
	p.chosen = append(p.chosen[:0], few...)
	if got := p.placeAmong(r, d, turn, slices.DeleteFunc(p.chosen, barred), at, to); got.spots != nil || len(few) == len(nodes) {
		return got
	}
	return p.placeAmong(r, d, turn, slices.DeleteFunc(nodes, barred), at, to)
}

// placeNow finds a place for the request of a turn that it may take now, beside the starts
// planned before it.
func (p *profile) placeNow(turn int, r *Request, d *demand) outcome {
	if len(d.classes) == 0 {
		return outcome{}
	}
	to := after(p.now, r.runs())
	nodes := p.covered[:0]
	defer func() { p.covered = nodes[:0] }()
	for ci, c := range d.classes {
		for ni, k := range p.free.tallyOf(d, c).node {
			if k == 0 || p.room[ni] > 0 {
				continue
			}
			if t := &p.nodes[ni]; len(t.planned)+len(t.closed)+len(t.former) > 0 || r.Spec.Reservation != "" {
				n := p.window(ni, p.now, to, r, turn)
				if n == nil {
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
	return nodes[:0]
}

// enough reports whether a group of nodes has room for the most demanding class.
func (p *profile) enough(d *demand, nodes []int) bool {
	groupOf, groups, some := p.groups(d)
	if !some {
		return false
	}
	sums := p.zeros(groups)
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

// zeros are so many sums, until they are asked for again.
func (p *profile) zeros(n int) []int64 {
	p.sums = slices.Grow(p.sums[:0], n)[:n]
	clear(p.sums)
	return p.sums
}

// roomiest are some of the nodes that have most room, with several times what is needed:
// enough to choose from.
func (p *profile) roomiest(nodes []int, need int64) []int {
	const times, least = 4, 16
	if len(nodes) <= least {
		return nodes
	}
	out := append(p.roomy[:0], nodes...)
	p.roomy = out
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
	p.work += 16 * len(nodes)
	for _, ni := range nodes {
		if n := p.window(ni, at, to, r, turn); n != nil {
			o.set(ni, n)
		}
	}
	defer func() { p.spare = append(p.spare, p.used...); p.used = p.used[:0] }()
	got := place(o, d)
	if got.spots == nil || p.pools.holds(r, turn, got.spots, at, to) {
		return got
	}
	if !p.pools.limit(r, turn, d, o, nodes, at, to) {
		return outcome{}
	}
	if got = place(o, d); got.spots == nil || !p.pools.holds(r, turn, got.spots, at, to) {
		return outcome{}
	}
	return got
}
