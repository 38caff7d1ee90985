package schedule

import (
	"cmp"
	"slices"
)

// The spans of a line: for how long a node has room for how many bundles.

// spans are the same spans in two orders.
type spans struct {
	byFrom []span
	byTo   []span // without those that have no end
}

// span is n bundles of room on a node; none at one moment: the room there is another one
// from then on.
type span struct {
	from, to int64
	node     int32
	n        int32
}

func spansByFrom(a, b span) int {
	if a.from != b.from { // as they mostly are
		return cmp.Compare(a.from, b.from)
	}
	return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.to, b.to))
}

func spansByTo(a, b span) int {
	if a.to != b.to {
		return cmp.Compare(a.to, b.to)
	}
	return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.from, b.from))
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

// put takes out the spans of nodes and puts others in.
func (s *spans) put(gone []bool, fresh []span) {
	slices.SortFunc(fresh, spansByFrom)
	s.byFrom = merge(but(s.byFrom, gone), fresh, spansByFrom)
	fresh = slices.DeleteFunc(fresh, func(x span) bool { return x.to == forever })
	slices.SortFunc(fresh, spansByTo)
	s.byTo = merge(but(s.byTo, gone), fresh, spansByTo)
}

// but leaves out the spans of some nodes.
func but(list []span, nodes []bool) []span {
	kept := 0
	for i := range list {
		if !nodes[list[i].node] {
			if kept < i {
				list[kept] = list[i]
			}
			kept++
		}
	}
	return list[:kept]
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
	slices.SortFunc(changes, func(a, b happening) int {
		if a.at != b.at {
			return cmp.Compare(a.at, b.at)
		}
		return a.kind - b.kind
	})

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
