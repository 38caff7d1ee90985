package schedule

import (
	"math"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// books are the quotas that a planner keeps from cycle to cycle: what holders are charged,
// and what nodes have free. Each cycle gets a copy that it charges what it places. A change
// costs what it is about; sums so large that they could not be taken back are made anew.
type books struct {
	frame  *frame
	sum    quotas // of the holders
	huge   bool
	listed []*Holder // as the snapshot listed them
	held   []charged // the same
	// entries is the use of shares that holders count at once, see shares.
	shares  *shares
	entries []int64

	nodes   []*Node
	devices map[string]*Node // by id, as far as their devices go; only where classes count
	free    []int64          // on nodes, by thing; only where something is not lent
}

// charged is what a holder is charged; without a way nothing.
type charged struct {
	c           *charging
	needs       []int64
	preemptible bool
	share       *portion
	entry       int64
}

// open gives a cycle its quotas.
func (b *books) open(s *Snapshot) *quotas {
	b.follow(s)
	q := &quotas{frame: b.frame, s: s, holders: s.Holders, nodes: b.devices, room: slices.Clone(b.sum.room)}
	q.used, q.assured, q.own = slices.Clone(b.sum.used), slices.Clone(b.sum.assured), slices.Clone(b.sum.own)
	for i := range q.room {
		// What the nodes have free came last, so that it is not bound to the holders.
		if onNodes(q.things[i]) {
			q.room[i] += b.free[i]
		} else {
			q.room[i] = math.MaxInt64
		}
	}
	return q
}

func (b *books) follow(s *Snapshot) {
	list := s.queueList()
	if b.frame == nil || !slices.Equal(b.frame.list, list) {
		*b = books{frame: newFrame(list)}
		b.shares = newShares(b.frame, s.Policy.Order)
		b.listed = nil
	} else if b.shares.policy != s.Policy.Order || len(b.shares.leaves) > 2*(len(s.Holders)+len(s.Pending))+64 {
		b.shares, b.listed = newShares(b.frame, s.Policy.Order), nil
	}
	again := b.followNodes(s.Nodes) || b.huge || b.listed == nil
	b.sum.s = s
	if !again {
		b.followHolders(s.Holders)
	}
	if again || b.huge {
		b.recount(s)
	}
	b.listed = s.Holders
	if b.listed == nil {
		b.listed = []*Holder{}
	}
}

// followHolders charges what is another one than before. Most are the same, at both ends of
// the list.
func (b *books) followHolders(is []*Holder) {
	from, gone, came := changedPart(b.listed, is)
	held := b.held[from : from+len(gone)]
	now := make([]charged, 0, len(came))
	follow(gone, came,
		func(i int) { now = append(now, held[i]) },
		func(i int) { b.charge(held[i], -1) },
		func(i int) {
			h := b.chargedOf(came[i])
			b.charge(h, 1)
			now = append(now, h)
		})
	b.held = slices.Replace(b.held, from, from+len(gone), now...)
}

func (s *Snapshot) queueList() (list []*api.Queue) {
	if s.Queues != nil {
		list = s.Queues.List
	}
	return list
}

// recount makes all sums anew.
func (b *books) recount(s *Snapshot) {
	n := len(b.frame.all) * len(b.frame.things)
	b.sum = quotas{frame: b.frame, s: s, nodes: b.devices}
	b.sum.used, b.sum.assured, b.sum.own = make([]int64, n), make([]int64, n), make([]int64, n)
	if b.frame.keeps {
		b.sum.room = make([]int64, len(b.frame.things))
		b.sum.reserve()
	}
	b.huge, b.entries = false, nil
	b.held = make([]charged, len(s.Holders))
	for i, h := range s.Holders {
		b.held[i] = b.chargedOf(h)
		b.charge(b.held[i], 1)
	}
}

// chargedOf is what a holder is charged. What is being released is charged to nobody's
// quota: it cannot be used any more, and a process that does not die must not hold up its
// tenant's next job. The node counts it until it is proven gone.
func (b *books) chargedOf(h *Holder) charged {
	if h.Spec == nil || h.Releasing {
		return charged{}
	}
	return charged{
		c: b.frame.of(h.Spec.Tenant, h.Spec.Queue), needs: b.sum.heldBy(h), preemptible: h.Spec.Preemptible,
		share: b.shares.leaf(h.Spec.Tenant, h.Spec.Queue, h.User), entry: entryOf(useRate(h.holds())),
	}
}

func (b *books) charge(h charged, sign int) {
	if h.c == nil {
		return
	}
	if sign > 0 {
		b.sum.hold(h.c, h.needs, h.preemptible)
	} else {
		b.sum.unhold(h.c, h.needs, h.preemptible)
	}
	for _, a := range h.c.path {
		for i := range h.needs {
			b.huge = b.huge || b.sum.used[a.at+i] > mostClaimed || b.sum.own[a.at+i] > mostClaimed
		}
	}
	for p := h.share; p != nil; p = p.parent {
		b.entries = grown(b.entries, p.at)
		if sign > 0 {
			b.entries[p.at] = satAdd(b.entries[p.at], h.entry)
		} else {
			b.entries[p.at] -= h.entry
		}
		b.huge = b.huge || b.entries[p.at] > mostClaimed
	}
}

// grown is a list that has at least a place at.
func grown(list []int64, at int) []int64 {
	if at < len(list) {
		return list
	}
	return append(list, make([]int64, at+1-len(list))...)
}

// followNodes keeps count of what nodes have free; true: what classes devices are of has
// changed.
func (b *books) followNodes(nodes []*Node) bool {
	f := b.frame
	if !f.typed && !f.keeps {
		return false
	}
	again := b.nodes == nil || len(nodes) != len(b.nodes)
	big := func(n int64) bool { return n > mostClaimed }
	if !again && f.keeps {
		again = slices.ContainsFunc(b.free, big)
	}
	changed := false
	for i := range nodes {
		if again {
			break
		}
		if old, n := b.nodes[i], nodes[i]; old != n {
			changed = true
			if f.typed && !sameDevices(old, n) {
				again = true
			}
			for t, of := range f.things {
				if f.keeps {
					b.free[t] += freeOn(n, of) - freeOn(old, of)
				}
			}
		}
	}
	if f.keeps && slices.ContainsFunc(b.free, big) {
		again = true
	}
	if !again {
		if changed {
			copy(b.nodes, nodes)
		}
		return false
	}
	b.nodes = append([]*Node{}, nodes...)
	if f.keeps {
		b.free = make([]int64, len(f.things))
		for t, of := range f.things {
			for _, n := range nodes {
				b.free[t] = satAdd(b.free[t], freeOn(n, of))
			}
		}
	}
	if f.typed {
		b.devices = make(map[string]*Node, len(nodes))
		for _, n := range nodes {
			b.devices[n.ID] = n
		}
	}
	return f.typed
}

func sameDevices(a, b *Node) bool {
	return a.ID == b.ID && slices.EqualFunc(a.GPUs, b.GPUs, func(x, y GPU) bool { return x.UUID == y.UUID && x.Model == y.Model })
}

// follow tells two lists apart, the second of which is mostly the first: same, gone and
// came are called for each element, in the order of the lists. Something that only changed
// its place may be gone and come.
func follow[T comparable](was, is []T, same, gone, came func(int)) {
	const near = 8
	ahead := func(list []T, from int, x T) bool {
		return slices.Contains(list[from:min(len(list), from+near)], x)
	}
	i, k := 0, 0
	for i < len(was) && k < len(is) {
		switch {
		case was[i] == is[k]:
			same(i)
			i, k = i+1, k+1
		case ahead(is, k, was[i]):
			came(k)
			k++
		case ahead(was, i, is[k]):
			gone(i)
			i++
		default:
			gone(i)
			came(k)
			i, k = i+1, k+1
		}
	}
	for ; i < len(was); i++ {
		gone(i)
	}
	for ; k < len(is); k++ {
		came(k)
	}
}
