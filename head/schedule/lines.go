package schedule

import (
	"cmp"
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

// spans are the same spans in two orders.
type spans struct {
	byFrom []span
	byTo   []span // without those that have no end
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

// span is n bundles of room on a node; none at one moment: the room there is another one
// from then on.
type span struct {
	from, to int64
	node     int32
	n        int32
}

func spansByFrom(a, b span) int {
	return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.node, b.node), cmp.Compare(a.to, b.to))
}

func spansByTo(a, b span) int {
	return cmp.Or(cmp.Compare(a.to, b.to), cmp.Compare(a.node, b.node), cmp.Compare(a.from, b.from))
}

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

func (s *spans) sort() {
	slices.SortFunc(s.byFrom, spansByFrom)
	s.byTo = s.byTo[:0]
	for _, x := range s.byFrom {
		if x.to != forever {
			s.byTo = append(s.byTo, x)
		}
	}
	slices.SortFunc(s.byTo, spansByTo)
}

// put takes out spans and puts others in.
func (s *spans) put(gone func(span) bool, fresh []span) {
	slices.SortFunc(fresh, spansByFrom)
	s.byFrom = merge(slices.DeleteFunc(s.byFrom, gone), fresh, spansByFrom)
	fresh = slices.DeleteFunc(fresh, func(x span) bool { return x.to == forever })
	slices.SortFunc(fresh, spansByTo)
	s.byTo = merge(slices.DeleteFunc(s.byTo, gone), fresh, spansByTo)
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
	l.side.put(func(s span) bool { return p.isChanged[s.node] }, fresh)
	for _, ni := range changed {
		p.isChanged[ni] = false
	}
	if l.many > 64+len(p.nodes)/8 {
		l.main.put(func(s span) bool { return l.stale[s.node] }, l.side.byFrom)
		l.side, l.many = spans{}, 0
		clear(l.stale)
	}
}

// merge puts two sorted lists together, in the room of the first.
func merge(a, b []span, order func(a, b span) int) []span {
	i, j := len(a)-1, len(b)-1
	a = append(a, b...)
	for k := len(a) - 1; j >= 0; k-- {
		if i >= 0 && order(a[i], b[j]) > 0 {
			a[k] = a[i]
			i--
		} else {
			a[k] = b[j]
			j--
		}
	}
	return a
}

// happening is something that happens on a node at a time.
type happening struct {
	at   int64
	kind int // in this order at one time
	stay *stay
}

const (
	givesBack = iota
	opens
	closes
	takes
)

// spans adds what a node has room for, over time. Room for n bundles from one time to
// another is one span; room for more within it is another, on top.
func (p *profile) spans(l *line, ni int, out []span) []span {
	n := p.free.nodes[ni]
	if !n.ready || !l.c.inPool(n) || !hasLabels(n, l.c) || l.d.avoids(n) {
		return out
	}
	t := &p.nodes[ni]
	p.work += 4 + len(t.running) + len(t.planned) + len(t.closed)
	changes := p.happens[:0]
	state := p.blank(ni)
	shut := 0
	if opensAt, closesAt, ok := p.confined(ni, l.asker); ok {
		if opensAt > p.now {
			shut++
			changes = append(changes, happening{opensAt, opens, nil})
		}
		changes = append(changes, happening{max(p.now, closesAt), closes, nil})
	}
	for i := range t.running {
		changes = append(changes, happening{t.running[i].to, givesBack, &t.running[i]})
	}
	for i := range t.planned {
		s := &t.planned[i]
		if s.who.start.turn >= p.view.turn {
			continue
		}
		if s.from <= p.now {
			state.takeOut(s)
		} else {
			changes = append(changes, happening{s.from, takes, s})
		}
		changes = append(changes, happening{s.to, givesBack, s})
	}
	for i := range t.former {
		if f := &t.former[i]; !f.opens(l.asker) {
			state.takeOut(&f.stay)
			changes = append(changes, happening{f.to, givesBack, &f.stay})
		}
	}
	for i := range t.closed {
		c := &t.closed[i]
		if c.opens(l.asker) {
			continue
		}
		if c.from <= p.now {
			shut++
		} else {
			changes = append(changes, happening{c.from, closes, nil})
		}
		if c.to != forever {
			changes = append(changes, happening{c.to, opens, nil})
		}
	}
	p.happens = changes
	slices.SortFunc(changes, func(a, b happening) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind)) })

	room := func() int32 {
		if shut > 0 {
			return 0
		}
		return l.c.room(state)
	}
	open := p.open[:0] // a stack: what began last ends first
	var sum int32
	level := func(at int64, n int32) {
		if n > sum {
			open = append(open, span{from: at, node: int32(ni), n: n - sum})
		}
		for excess := sum - n; excess > 0; {
			top := &open[len(open)-1]
			ends := *top
			ends.n, ends.to = min(top.n, excess), at
			out = append(out, ends)
			excess -= ends.n
			if top.n -= ends.n; top.n == 0 {
				open = open[:len(open)-1]
			}
		}
		sum = n
	}
	level(p.now, room())
	for i := 0; i < len(changes); {
		at, gave := changes[i].at, false
		for ; i < len(changes) && changes[i].at == at; i++ {
			switch c := &changes[i]; c.kind {
			case givesBack:
				gave = true
				state.putBack(c.stay)
			case takes:
				state.takeOut(c.stay)
			case opens:
				shut--
			case closes:
				shut++
			}
		}
		before := sum
		if level(at, room()); sum == before && sum > 0 && gave {
			// The same number of bundles, but they may be others than before.
			out = append(out, span{from: at, to: at, node: int32(ni)})
		}
	}
	for _, s := range open {
		s.to = forever
		out = append(out, s)
	}
	p.open = open[:0]
	p.spare, p.used = append(p.spare, state), p.used[:len(p.used)-1]
	return out
}

// tries bounds how many moments are looked at one by one; after that ever more are left
// out between two, so that a line of any length takes few looks.
const tries = 8

// earliest calls try with the moments, from notBefore on, at which one group of nodes has
// room for need bundles over dur, in order, until it answers yes. The last of them is
// never left out.
func (l *line) earliest(need int64, dur, notBefore int64, groupOf []int32, groups int, try func(at int64, enough func(node int32) bool) bool) bool {
	sums := make([]int64, max(1, groups))
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
