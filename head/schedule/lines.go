package schedule

import (
	"fmt"
	"slices"
)

// line is where and when one class of bundles has room, for requests with the same
// reservations: for each node the spans of time in which it holds so many of them. It
// answers when a request could start at the earliest from counts alone.
//
// What changed since is kept beside the rest, which is long, until it is worth it to put
// the two together.
type line struct {
	d     *demand
	c     *class
	asker *Request // for which closed nodes are open
	main  spans
	side  spans    // of the nodes that are stale in main
	stale []bool   // by node
	many  int      // how many are
	seen  int      // how much of the profile's log is in it
	sums  []uint64 // by node: the planned starts that are in it, see view
	work  int      // spans that were looked at
}

type lineKey struct {
	class, avoid, access string
	look                 look
}

// look is what a start is looked for for. Each kind goes on from about the turn where it was
// last, so that each has lines of its own: few nodes have changed for them.
type look int8

const (
	lookOn    look = iota // the plan is gone on with, turn by turn
	lookFirst             // nothing is planned before it
	lookLate              // little is planned after it
)

// lineOf is the line of a class for a look, brought up to date.
func (p *profile) lineOf(r *Request, d *demand, c *class) *line {
	key := lineKey{class: c.key, access: p.accessOf(r), look: p.look}
	if len(d.avoid) > 0 {
		key.avoid = fmt.Sprintf("%q", sortedKeys(d.avoid))
	}
	l := p.lines[key]
	if l == nil {
		l = &line{d: d, c: c, asker: r, seen: len(p.log), stale: make([]bool, len(p.nodes)), sums: slices.Clone(p.view.sums)}
		for ni := range p.nodes {
			l.main.byFrom = p.spans(l, ni, l.main.byFrom)
		}
		l.main.sort()
		p.lines[key] = l
		return l
	}
	l.d, l.c, l.asker = d, c, r
	l.catchUp(p)
	return l
}

// catchUp looks again at the nodes that changed since, or of which other starts are seen.
func (l *line) catchUp(p *profile) {
	changed := p.changed[:0]
	for _, ni := range p.log[l.seen:] {
		if !p.isChanged[ni] {
			p.isChanged[ni] = true
			changed = append(changed, ni)
		}
	}
	l.seen = len(p.log)
	for ni, sum := range p.view.sums {
		if sum == l.sums[ni] {
			continue
		}
		l.sums[ni] = sum
		if !p.isChanged[ni] {
			p.isChanged[ni] = true
			changed = append(changed, int32(ni))
		}
	}
	p.changed = changed
	if len(changed) == 0 {
		return
	}
	fresh := p.fresh[:0]
	for _, ni := range changed {
		fresh = p.spans(l, int(ni), fresh)
		if !l.stale[ni] {
			l.stale[ni] = true
			l.many++
		}
	}
	p.fresh = fresh
	l.side.put(p.isChanged, fresh)
	for _, ni := range changed {
		p.isChanged[ni] = false
	}
	if l.many > 64+len(p.nodes)/8 {
		l.main.put(l.stale, l.side.byFrom)
		l.side.byFrom, l.side.byTo, l.many = l.side.byFrom[:0], l.side.byTo[:0], 0
		clear(l.stale)
	}
}

// tries bounds how many moments are looked at one by one; after that ever more are left
// out between two, so that a line of any length takes few looks.
const tries = 8

// earliest calls try with the moments, from notBefore on, at which one group of nodes has
// room for need bundles over dur, in order, until it answers yes. The last of them is
// never left out.
//
// groupOf says which group a node is in, nil: all are in one; sums has room for each group
// and is zero.
func (l *line) earliest(need int64, dur, notBefore int64, groupOf []int32, sums []int64, try func(at int64, enough func(node int32) bool) bool) bool {
	group := func(s *span) int32 {
		if groupOf == nil {
			return 0
		}
		return groupOf[s.node]
	}
	full := 0 // groups with enough
	add := func(s *span, n int64) {
		g := group(s)
		if g < 0 {
			return
		}
		before := sums[g] >= need
		sums[g] += n
		switch is := sums[g] >= need; {
		case is && !before:
			full++
		case before && !is:
			full--
		}
	}
	enough := func(node int32) bool {
		if groupOf == nil {
			return true
		}
		g := groupOf[node]
		return g >= 0 && sums[g] >= need
	}
	looked, skip := 0, 0
	grew := false
	begins, ends := walk{l: l, order: spansByFrom, a: l.main.byFrom, b: l.side.byFrom}, walk{l: l, order: spansByTo, a: l.main.byTo, b: l.side.byTo}
	for s := begins.next(); s != nil; {
		at := max(s.from, notBefore)
		for ; s != nil && max(s.from, notBefore) == at; s = begins.next() {
			l.work++
			if lasts(s, at, dur) {
				add(s, int64(s.n))
				grew = true
			}
			grew = grew || s.n == 0
		}
		for e := ends.peek(); e != nil && e.to-dur < at; e = ends.peek() {
			// It was counted if it is long enough, at a moment before.
			if lasts(e, max(e.from, notBefore), dur) {
				add(e, -int64(e.n))
			}
			ends.next()
		}
		if full == 0 || !grew {
			continue
		}
		if skip > 0 && s != nil {
			skip--
			continue
		}
		grew = false
		if try(at, enough) {
			return true
		}
		if looked++; looked >= tries {
			skip = 1 << min(looked-tries, 16)
		}
	}
	return false
}

// walk goes through the spans of a line in one of their orders.
type walk struct {
	l     *line
	order func(a, b span) int
	a, b  []span // of main, without the stale ones, and of the side
}

func (w *walk) peek() *span {
	for len(w.a) > 0 && w.l.stale[w.a[0].node] {
		w.a = w.a[1:]
	}
	switch {
	case len(w.a) == 0 && len(w.b) == 0:
		return nil
	case len(w.b) == 0 || len(w.a) > 0 && w.order(w.a[0], w.b[0]) <= 0:
		return &w.a[0]
	}
	return &w.b[0]
}

func (w *walk) next() *span {
	s := w.peek()
	switch {
	case s == nil:
	case len(w.a) > 0 && s == &w.a[0]:
		w.a = w.a[1:]
	default:
		w.b = w.b[1:]
	}
	return s
}

// lasts reports whether a span is long enough from a moment on.
func lasts(s *span, at, dur int64) bool {
	return s.to == forever || s.to-dur >= max(at, s.from)
}

// covering adds what each node has room for over a time, and lists the nodes.
func (l *line) covering(at, dur int64, room []int32, nodes []int) []int {
	for side, list := range [][]span{l.main.byFrom, l.side.byFrom} {
		for i := range list {
			s := &list[i]
			if s.from > at {
				break
			}
			if side == 0 && l.stale[s.node] || !lasts(s, at, dur) {
				continue
			}
			if room[s.node] == 0 {
				nodes = append(nodes, int(s.node))
			}
			room[s.node] += s.n
		}
	}
	return nodes
}
