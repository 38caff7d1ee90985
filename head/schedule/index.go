package schedule

import (
	"cmp"
	"slices"
)

// How many bundles of a class each node has room for, and each domain, is counted once and
// then only for the nodes that changed. The sums rule a domain, or the whole cluster, out
// before a node is looked at.

// mostOnNode bounds a count: no group has more bundles.
const mostOnNode = MaxBundles

// mostCounts bounds the memory of an index, in counts of one node for one class.
const mostCounts = 16 << 20

// tally is how many bundles of one class there is room for.
type tally struct {
	node  []int32
	in    []int64 // by domain
	total int64
}

// index keeps the tallies of the classes that are asked for.
type index struct {
	shapes map[string]*shape
	asked  uint64
	// touched lists the nodes that changed, the oldest first; first is the position of the
	// one at its head among all that ever did.
	touched []int32
	first   int
}

// shape is the tally of one class and what its nodes are worth to it.
type shape struct {
	tally
	upTo   int // position in what was touched
	asked  uint64
	scores map[int64]*scores // by how many bundles
}

func (x *index) touch(ni int) {
	x.touched = append(x.touched, int32(ni))
}

// end is the position after what was touched last.
func (x *index) end() int { return x.first + len(x.touched) }

// trim forgets what was touched long ago: what did not keep up is counted again.
func (x *index) trim(nodes int) {
	if len(x.touched) > 4*nodes+1024 {
		x.first, x.touched = x.end(), x.touched[:0]
	}
}

// since lists what was touched from a position on; false: it is too long ago.
func (x *index) since(position int) ([]int32, bool) {
	if position < x.first {
		return nil, false
	}
	return x.touched[position-x.first:], true
}

// shapeOf counts a class, or what changed of it since it was asked for last.
func (o *overlay) shapeOf(c *class) *shape {
	x := o.idx
	x.asked++
	x.trim(len(o.nodes))
	s := x.shapes[c.key]
	if s == nil {
		if x.shapes == nil {
			x.shapes = map[string]*shape{}
		}
		x.forget(len(o.nodes))
		s = &shape{upTo: -1}
		x.shapes[c.key] = s
	}
	s.asked = x.asked
	changed, ok := x.since(s.upTo)
	if !ok {
		s.count(o, c)
	}
	for _, ni := range changed {
		if k := c.room(o.nodes[ni]); k != s.node[ni] {
			s.add(o, ni, int64(k)-int64(s.node[ni]))
			s.node[ni] = k
		}
	}
	s.upTo = x.end()
	return s
}

func (s *shape) count(o *overlay, c *class) {
	s.tally = tally{node: make([]int32, len(o.nodes))}
	s.scores = nil
	if o.topo != nil {
		s.in = make([]int64, len(o.topo.domains))
	}
	for ni, n := range o.nodes {
		if k := c.room(n); k > 0 {
			s.node[ni] = k
			s.add(o, int32(ni), int64(k))
		}
	}
}

func (t *tally) add(o *overlay, ni int32, k int64) {
	t.total += k
	if o.topo == nil {
		return
	}
	for _, of := range o.topo.of {
		if di := of[ni]; di != none {
			t.in[di] += k
		}
	}
}

// forget makes room for one more shape: the half asked for longest ago goes.
func (x *index) forget(nodes int) {
	if most := max(64, mostCounts/max(1, nodes)); len(x.shapes) < most {
		return
	}
	var ages []uint64
	for _, s := range x.shapes {
		ages = append(ages, s.asked)
	}
	slices.SortFunc(ages, cmp.Compare[uint64])
	middle := ages[len(ages)/2]
	for key, s := range x.shapes {
		if s.asked <= middle {
			delete(x.shapes, key)
		}
	}
}

// tallyOf is the tally of a class for one demand: without the nodes that it keeps off.
func (o *overlay) tallyOf(d *demand, c *class) tally {
	t := o.shapeOf(c).tally
	if len(d.avoid) == 0 {
		return t
	}
	without := tally{node: slices.Clone(t.node), in: slices.Clone(t.in), total: t.total}
	for ni, n := range o.nodes {
		if k := without.node[ni]; k > 0 && d.avoids(n) {
			without.add(o, int32(ni), -int64(k))
			without.node[ni] = 0
		}
	}
	return without
}

// room is how many bundles of the class the node takes now, of one request.
func (c *class) room(n *nodeState) int32 {
	if !c.mayUse(n) {
		return 0
	}
	most := int64(mostOnNode)
	if c.onNode > 0 {
		most = c.onNode
	}
	k := n.count(c, most)
	if c.exactly && k < c.onNode {
		return 0
	}
	return int32(k)
}
