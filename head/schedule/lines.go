package schedule

import (
	"cmp"
	"fmt"
	"slices"
)

// line is where and when one class of bundles has room, for requests with the same
// reservations: for each node the spans of time in which it holds so many of them. It
// answers when a request could start at the earliest from counts alone.
type line struct {
	d      *demand
	c      *class
	asker  *Request // for which closed nodes are open
	byFrom []span
	byTo   []span // without those that have no end
	seen   int    // how much of the profile's log is in it
}

type lineKey struct {
	class, avoid, access string
}

// span is n bundles of room on a node.
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

// lineOf is the line of a class, brought up to date.
func (p *profile) lineOf(r *Request, d *demand, c *class) *line {
	key := lineKey{class: c.key, access: p.accessOf(r)}
	if len(d.avoid) > 0 {
		key.avoid = fmt.Sprintf("%q", sortedKeys(d.avoid))
	}
	l := p.lines[key]
	if l == nil {
		l = &line{d: d, c: c, asker: r, seen: len(p.log)}
		for ni := range p.nodes {
			l.byFrom = p.spans(l, ni, l.byFrom)
		}
		l.sort()
		p.lines[key] = l
		return l
	}
	if l.seen < len(p.log) {
		l.catchUp(p)
	}
	return l
}

func (l *line) sort() {
	slices.SortFunc(l.byFrom, spansByFrom)
	l.byTo = l.byTo[:0]
	for _, s := range l.byFrom {
		if s.to != forever {
			l.byTo = append(l.byTo, s)
		}
	}
	slices.SortFunc(l.byTo, spansByTo)
}

// catchUp looks again at the nodes that changed since.
func (l *line) catchUp(p *profile) {
	stale := map[int32]bool{}
	var fresh []span
	for _, ni := range p.log[l.seen:] {
		if !stale[ni] {
			stale[ni] = true
			fresh = p.spans(l, int(ni), fresh)
		}
	}
	l.seen = len(p.log)
	old := func(s span) bool { return stale[s.node] }
	slices.SortFunc(fresh, spansByFrom)
	l.byFrom = merge(slices.DeleteFunc(l.byFrom, old), fresh, spansByFrom)
	fresh = slices.DeleteFunc(fresh, func(s span) bool { return s.to == forever })
	slices.SortFunc(fresh, spansByTo)
	l.byTo = merge(slices.DeleteFunc(l.byTo, old), fresh, spansByTo)
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
	changes := make([]happening, 0, len(t.running)+2*len(t.planned)+2*len(t.closed))
	state := n.clone()
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
		if s.from <= p.now {
			state.takeOut(s)
		} else {
			changes = append(changes, happening{s.from, takes, s})
		}
		changes = append(changes, happening{s.to, givesBack, s})
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
	slices.SortFunc(changes, func(a, b happening) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind)) })

	room := func() int32 {
		if shut > 0 {
			return 0
		}
		return l.c.room(state)
	}
	var open []span // a stack: what began last ends first
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
		at := changes[i].at
		for ; i < len(changes) && changes[i].at == at; i++ {
			switch c := &changes[i]; c.kind {
			case givesBack:
				state.putBack(c.stay)
			case takes:
				state.takeOut(c.stay)
			case opens:
				shut--
			case closes:
				shut++
			}
		}
		level(at, room())
	}
	for _, s := range open {
		s.to = forever
		out = append(out, s)
	}
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
	ended, looked, skip := 0, 0, 0
	grew := false
	for i := 0; i < len(l.byFrom); {
		at := max(l.byFrom[i].from, notBefore)
		for ; i < len(l.byFrom) && max(l.byFrom[i].from, notBefore) == at; i++ {
			if s := &l.byFrom[i]; lasts(s, at, dur) {
				add(s, int64(s.n))
				grew = true
			}
		}
		for ; ended < len(l.byTo) && l.byTo[ended].to-dur < at; ended++ {
			// It was counted if it is long enough, at a moment before.
			if s := &l.byTo[ended]; lasts(s, max(s.from, notBefore), dur) {
				add(s, -int64(s.n))
			}
		}
		if full == 0 || !grew {
			continue
		}
		if skip > 0 && i < len(l.byFrom) {
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

// lasts reports whether a span is long enough from a moment on.
func lasts(s *span, at, dur int64) bool {
	return s.to == forever || s.to-dur >= max(at, s.from)
}

// covering adds the nodes with room over a time, each once, in order.
func (l *line) covering(at, dur int64, in map[int32]bool) {
	for i := range l.byFrom {
		s := &l.byFrom[i]
		if s.from > at {
			return
		}
		if lasts(s, at, dur) {
			in[s.node] = true
		}
	}
}
