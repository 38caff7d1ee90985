package schedule

import (
	"cmp"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// memory is what a Planner keeps between cycles. All of it can be had again from a
// snapshot.
type memory struct {
	demands, opened map[*Request]*demand
	byKey           map[string]*demand

	books  books
	lineup lineup

	given   []Shape // the mix that the snapshot named
	counts  kindCounts
	derived []weighed // what the mix was made of, if it named none

	free      *overlay
	nodes     []*Node // that free was made of, as the snapshot listed them
	at, from  []int   // where each is in free, and where each of free comes from
	levels    []api.Level
	held      map[string]string // see heldWhole
	holders   []*Holder
	wholes    int // of them that hold whole nodes
	times     *profile
	grounds   *grounds
	linkWords uint64 // counts changes of what links are worth
	cycle     uint64 // counts cycles
	vain      vains
}

// keepRequests forgets what is known of requests that wait no longer.
func (m *memory) keepRequests(pending []*Request) {
	if m.demands == nil || len(m.demands)+len(m.opened) > 2*len(pending)+64 {
		m.demands, m.opened, m.byKey = map[*Request]*demand{}, map[*Request]*demand{}, map[string]*demand{}
		m.lineup = lineup{}
	}
}

// overlay is the overlay of the snapshot: the last one, with what has changed.
func (m *memory) overlay(s *Snapshot, now time.Time) *overlay {
	changed, ok := m.changed(s)
	if !ok {
		m.rebuild(s, now)
		return m.free
	}
	o := m.free
	// What the last cycle took is taken back, unless the snapshot says the same.
	for _, c := range o.log {
		changed = append(changed, m.from[c.ni])
	}
	held := m.heldWhole(s.Holders)
	for i, n := range m.nodes {
		if len(held)+len(m.held) > 0 && held[n.ID] != m.held[n.ID] {
			changed = append(changed, i)
		}
	}
	slices.Sort(changed)
	for _, i := range slices.Compact(changed) {
		st := stateOf(s.Nodes[i])
		st.held = held[st.id]
		if old := o.nodes[m.at[i]]; !st.same(old) {
			if !st.sameCapacity(old) {
				m.grounds = &grounds{}
			}
			o.set(m.at[i], st)
		}
	}
	o.log = o.log[:0]
	m.nodes = s.Nodes
	m.held = held
	links := newLinkState(s, o, now)
	if !links.same(o.links) {
		m.linkWords++
	}
	o.links = links
	if mx := m.mixFor(s); !mx.same(o.mix) {
		o.expect(mx)
	}
	return o
}

// changed lists the nodes of the snapshot that are other ones than before; false: the
// nodes, their names, labels or levels are not those that they were.
func (m *memory) changed(s *Snapshot) ([]int, bool) {
	if m.free == nil || len(s.Nodes) != len(m.nodes) || !slices.Equal(s.Levels, m.levels) {
		return nil, false
	}
	var changed []int
	for i, n := range s.Nodes {
		if n == m.nodes[i] {
			continue
		}
		old := m.free.nodes[m.at[i]]
		if n.ID != old.id || cmp.Or(n.Name, n.ID) != old.name || n.Pool != old.pool || !sameLabels(n.Labels, old.labels) {
			return nil, false
		}
		changed = append(changed, i)
	}
	return changed, true
}

func (m *memory) rebuild(s *Snapshot, now time.Time) {
	var version, grown uint64
	if m.free != nil {
		version, grown = m.free.version, m.free.grown
	}
	o := newOverlay(s.Nodes)
	m.held = m.heldWhole(s.Holders)
	for _, n := range o.nodes {
		n.held = m.held[n.id]
	}
	o.topo = newTopology(s.Levels, o.nodes)
	o.links = newLinkState(s, o, now)
	m.given, m.derived, m.grounds = nil, nil, &grounds{}
	o.mix = m.mixFor(s)
	o.version, o.grown = version+1, grown+1
	m.linkWords++
	m.free, m.nodes, m.levels = o, s.Nodes, slices.Clone(s.Levels)
	m.from = origins(s.Nodes)
	m.at = make([]int, len(m.from))
	for place, i := range m.from {
		m.at[i] = place
	}
}

// heldWhole is which group has a node for itself, by the id of the node. Where no group has
// one, only the holders that changed are looked at.
func (m *memory) heldWhole(holders []*Holder) map[string]string {
	_, was, is := changedPart(m.holders, holders)
	for _, h := range was {
		m.wholes -= h.whole()
	}
	for _, h := range is {
		m.wholes += h.whole()
	}
	m.holders = holders
	if m.wholes == 0 {
		return nil
	}
	held := map[string]string{}
	for _, h := range holders {
		if h.whole() == 0 {
			continue
		}
		for _, id := range h.Nodes {
			held[id] = cmp.Or(h.Group, h.Name, "another group")
		}
	}
	return held
}

// whole is 1 for a group that has its nodes for itself.
func (h *Holder) whole() int {
	if h.Spec != nil && h.Spec.WholeNodes {
		return 1
	}
	return 0
}

// origins is the nodes of a snapshot in the order of an overlay made of it.
func origins(nodes []*Node) []int {
	order := make([]int, len(nodes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := nodes[a], nodes[b]
		return cmp.Or(naturalCompare(cmp.Or(x.Name, x.ID), cmp.Or(y.Name, y.ID)), cmp.Compare(x.ID, y.ID))
	})
	return order
}
