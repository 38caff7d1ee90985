package schedule

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// grounds is what explanations go by as long as the nodes have what they have: the empty
// cluster, and what it could never hold. Results of several cycles share it.
type grounds struct {
	once  sync.Once
	empty *overlay
	at    map[string]int // node id → index in any overlay

	mu    sync.Mutex
	never map[string]*api.Reason // by demand
	holds map[string][]bool      // by class and node: whether the empty node holds one
	room  map[string][]int32     // and how many
	// listed are the holders that were looked at last, named the same by name.
	listed, named []*Holder
}

// byName is the holders in the order in which people read them, not to be changed. Few change from one cycle
// to the next.
func (g *grounds) byName(holders []*Holder) []*Holder {
	g.mu.Lock()
	defer g.mu.Unlock()
	var gone, came []*Holder
	_, was, is := changedPart(g.listed, holders)
	follow(was, is, func(int) {}, func(i int) { gone = append(gone, was[i]) }, func(i int) { came = append(came, is[i]) })
	if len(gone)+len(came) == 0 && len(g.named) == len(holders) {
		g.listed = holders
		return slices.Clip(g.named)
	}
	out := slices.Clone(g.named)
	if len(gone) > 0 {
		out = slices.DeleteFunc(out, among(gone))
	}
	out = sortTail(append(out, came...), len(out), holdersByName)
	if len(out) != len(holders) { // something is listed twice, or has changed its place
		out = slices.SortedFunc(slices.Values(holders), holdersByName)
	}
	g.listed, g.named = holders, out
	return slices.Clip(out)
}

func holdersByName(a, b *Holder) int {
	return cmp.Or(naturalCompare(a.called(), b.called()), cmp.Compare(a.Group, b.Group))
}

// mostNever bounds how many answers are kept, mostHolds of how many classes.
const (
	mostNever = 4096
	mostHolds = 64
)

// fill looks at the nodes of a snapshot, once.
func (g *grounds) fill(s *Snapshot) {
	g.once.Do(func() {
		g.empty = emptied(s.Nodes, s.Levels)
		g.at = make(map[string]int, len(g.empty.nodes))
		for ni, n := range g.empty.nodes {
			g.at[n.id] = ni
		}
		g.never, g.holds, g.room = map[string]*api.Reason{}, map[string][]bool{}, map[string][]int32{}
	})
}

// servers is by node whether it would hold anything of a demand if it were empty, for each
// class.
func (g *grounds) servers(d *demand) [][]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([][]bool, len(d.classes))
	for i, c := range d.classes {
		out[i] = byNode(g, g.holds, c, func(n *nodeState) bool { return c.inPool(n) && hasLabels(n, c) && n.count(c, 1) > 0 })
	}
	return out
}

// rooms is by node how many bundles of a class it would hold if it were empty.
func (g *grounds) rooms(c *class) []int32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return byNode(g, g.room, c, c.room)
}

// byNode is what is remembered of the empty nodes for a class, or is found by looking at each.
func byNode[T any](g *grounds, remembered map[string][]T, c *class, find func(*nodeState) T) []T {
	known := remembered[c.key]
	if known == nil {
		if len(remembered) >= mostHolds {
			clear(remembered)
		}
		known = make([]T, len(g.empty.nodes))
		for ni, n := range g.empty.nodes {
			known[ni] = find(n)
		}
		remembered[c.key] = known
	}
	return known
}

// neverOf is Never for a demand, remembered.
func (g *grounds) neverOf(d *demand, r *Request) *api.Reason {
	g.mu.Lock()
	defer g.mu.Unlock()
	why, ok := g.never[d.key]
	if !ok {
		if len(g.never) >= mostNever {
			clear(g.never)
		}
		why = never(g.empty, newDemand(&Request{Spec: r.Spec}, time.Time{}))
		g.never[d.key] = why
	}
	return why
}

// sameCapacity reports whether two states of a node are of the same machine.
func (n *nodeState) sameCapacity(m *nodeState) bool {
	if n.capCPU != m.capCPU || n.capMem != m.capMem || len(n.gpus) != len(m.gpus) {
		return false
	}
	for d := range n.gpus {
		if n.gpus[d].uuid != m.gpus[d].uuid || n.gpus[d].usable != m.gpus[d].usable {
			return false
		}
	}
	return true
}
