// Package survey turns the replicated state into what the scheduler looks at. The leading
// head and the simulator do it here, so that both decide alike. It remembers what it made
// of each record: what the log did not touch is handed over as the same pointer, and costs
// nothing. What to do about it is decided in head/schedule; nothing here reads a clock or
// knows a node's agent.
package survey

import (
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// Seen is what whoever leads knows beside the state.
type Seen struct {
	// Devices is what a node's agent said last of its devices; nil: nothing, for any node.
	Devices func(node string) []api.GPU
	// Skip leaves out a pending group that something else forms; nil: none is left out.
	Skip func(v *state.View, g *state.Group) bool
}

// Survey makes snapshots of one store, each from the one before. It may be used by several
// goroutines.
type Survey struct {
	store *state.Store
	seen  Seen

	mu      sync.Mutex
	index   uint64 // of the last snapshot; 0: there is none
	nodes   sorted[*schedule.Node]
	said    map[string][]api.GPU // of each node's devices, in the last snapshot
	pending sorted[*schedule.Request]
	holders sorted[[]*schedule.Holder]
	// timed are pending groups whose request depends on the time besides.
	timed    map[string]bool
	declared declared
	// queues is the tree with its use, as of a time; what was charged since changes it.
	queues *schedule.Queues
	usedAt int64
	// mix is what is expected to be asked for next; what was asked for since changes it.
	mix   []schedule.Shape
	mixed bool
}

// New makes a survey that remembers nothing yet.
func New(store *state.Store, seen Seen) *Survey {
	return &Survey{store: store, seen: seen}
}

// Snapshot is what the scheduler looks at, at a view and a time in nanoseconds. The slices
// are the caller's; what they point at is shared and must not be changed (see
// schedule.Snapshot.Own).
func (s *Survey) Snapshot(v *state.View, now int64) *schedule.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index != 0 && v.Index() < s.index {
		// Somebody still looks at an older view; the memory is that of a newer one.
		return New(s.store, s.seen).Snapshot(v, now)
	}
	changes, ok := s.store.Changes(s.index, v.Index())
	if s.index == 0 || !ok {
		s.whole(v, now)
	} else {
		s.follow(v, now, changes)
	}
	s.index = v.Index()
	s.devices(v)
	out := &schedule.Snapshot{
		Nodes: s.nodes.list(), Pending: s.pending.list(), Holders: make([]*schedule.Holder, 0, len(s.holders.values)),
	}
	for _, hs := range s.holders.values {
		out.Holders = append(out.Holders, hs...)
	}
	if s.queues == nil || now-s.usedAt >= useFresh || now < s.usedAt {
		s.queues, s.usedAt = queuesOf(v, s.declared.queues, now), now
	}
	if !s.mixed {
		// A mix that is the same stays the same list, by which a planner knows it.
		if m := schedule.MixOf(v.Asked()); !sameMix(s.mix, m) {
			s.mix = m
		}
		s.mixed = true
	}
	s.declared.give(out, s.queues)
	out.Mix = s.mix
	out.Lost = v.LostToPreemption(now)
	return out
}

// whole reads everything.
func (s *Survey) whole(v *state.View, now int64) {
	s.nodes, s.pending, s.holders = sorted[*schedule.Node]{}, sorted[*schedule.Request]{}, sorted[[]*schedule.Holder]{}
	s.said, s.timed = map[string][]api.GPU{}, map[string]bool{}
	for _, n := range v.Nodes() {
		s.node(v, n.ID)
	}
	for _, g := range v.PendingGroups() {
		s.request(v, g.ID, now)
	}
	var last string
	for _, h := range v.Holds() {
		if h.Group != last {
			s.holder(v, h.Group)
		}
		last = h.Group
	}
	s.declared, s.queues, s.mixed = readDeclared(v), nil, false
}

// follow reads what was changed since the last snapshot.
func (s *Survey) follow(v *state.View, now int64, changes []state.Change) {
	nodes, groups, others := map[string]bool{}, map[string]bool{}, false
	for _, c := range changes {
		switch c.Table {
		case state.ChangedNode:
			nodes[c.ID] = true
		case state.ChangedGroup:
			groups[c.ID] = true
		case state.ChangedRun:
			if r := v.Run(c.ID); r != nil {
				if j := v.Job(r.Job); j != nil {
					groups[j.Group] = true
				}
			}
		case state.ChangedQuota:
			s.queues = nil
		case state.ChangedShape:
			s.mixed = false
		case state.ChangedOther:
			others = true
		}
	}
	for id := range nodes {
		s.node(v, id)
	}
	for id := range s.timed {
		groups[id] = true
	}
	for id := range groups {
		s.request(v, id, now)
		s.holder(v, id)
	}
	if others {
		s.declared, s.queues, s.mixed = readDeclared(v), nil, false
	}
}

func sameMix(a, b []schedule.Shape) bool {
	return slices.EqualFunc(a, b, func(x, y schedule.Shape) bool { return reflect.DeepEqual(x, y) })
}

// devices looks at what agents say now of their devices, which no log entry tells.
func (s *Survey) devices(v *state.View) {
	if s.seen.Devices == nil {
		return
	}
	for _, id := range s.nodes.keys {
		if !sameHealth(s.said[id], s.seen.Devices(id)) {
			s.node(v, id)
		}
	}
}

func sameHealth(a, b []api.GPU) bool {
	return slices.EqualFunc(a, b, func(x, y api.GPU) bool {
		return x.UUID == y.UUID && x.Health == y.Health && x.Note == y.Note
	})
}

// node reads one node again.
func (s *Survey) node(v *state.View, id string) {
	n := v.Node(id)
	if n == nil {
		s.nodes.remove(id)
		delete(s.said, id)
		return
	}
	var said []api.GPU
	if s.seen.Devices != nil {
		said = s.seen.Devices(id)
	}
	s.said[id] = said
	s.nodes.set(id, Node(v, n, said))
}

// request reads one group again, if it waits.
func (s *Survey) request(v *state.View, id string, now int64) {
	delete(s.timed, id)
	g := v.Group(id)
	if g == nil || g.State != api.GroupPending || g.Parked != "" || s.seen.Skip != nil && s.seen.Skip(v, g) {
		s.pending.remove(id)
		return
	}
	r := Request(v, g, now)
	if j := v.Job(g.Job); j != nil && len(j.Excluded) > 0 {
		s.timed[id] = true
	}
	s.pending.set(id, r)
}

// holder reads again what one group holds.
func (s *Survey) holder(v *state.View, id string) {
	if hs := Holders(v, id); len(hs) > 0 {
		s.holders.set(id, hs)
	} else {
		s.holders.remove(id)
	}
}

// sorted is a map in the order of its keys.
type sorted[T any] struct {
	keys   []string
	values []T
}

func (m *sorted[T]) find(key string) (int, bool) {
	return slices.BinarySearchFunc(m.keys, key, strings.Compare)
}

func (m *sorted[T]) set(key string, value T) {
	i, ok := m.find(key)
	if ok {
		m.values[i] = value
		return
	}
	m.keys = slices.Insert(m.keys, i, key)
	m.values = slices.Insert(m.values, i, value)
}

func (m *sorted[T]) remove(key string) {
	if i, ok := m.find(key); ok {
		m.keys = slices.Delete(m.keys, i, i+1)
		m.values = slices.Delete(m.values, i, i+1)
	}
}

// list is a copy that the caller may change and append to.
func (m *sorted[T]) list() []T { return append(make([]T, 0, len(m.values)+1), m.values...) }
