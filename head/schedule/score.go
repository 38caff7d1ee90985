package schedule

import (
	"math"
	"slices"
)

// The score of a node is what taking it adds to the expected fragmentation of the cluster:
// how much of the free devices the next request, drawn from the mix of requests, could not
// use (Weng et al., "Beware of Fragmentation", ATC '23). A device's free part counts as a
// fragment for a request that does not fit its node at all, or that wants more of a device
// than that.

// allows is which groups of the mix may use a node at all, by its labels and pool. Nodes
// that differ in nothing that the mix asks for share the answer, of which this is the number.
func (m *mix) allows(n *nodeState) int32 {
	var of [mostShapes]byte
	bits := of[:len(m.masks)]
	for i, c := range m.masks {
		if c.inPool(n) && hasLabels(n, c) {
			bits[i] = 1
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at, known := m.numbers[string(bits)]
	if !known {
		out := make([]bool, len(bits))
		for i := range bits {
			out[i] = bits[i] == 1
		}
		if m.numbers == nil {
			m.numbers = map[string]int32{}
		}
		at = int32(len(m.allowed))
		m.numbers[string(bits)] = at
		m.allowed = append(m.allowed, out)
	}
	return at
}

// allowedBy is the answer of a number.
func (m *mix) allowedBy(number int32) []bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.allowed[number]
}

// scoreStep is what two nodes must differ by to be told apart by their fragments: a
// sixteenth of a device. Below that the tighter node is the better choice; on the openb
// traces 40 to 140 thousandths do alike, and without a step half a per cent less is placed.
const scoreStep = wholeShare / 16 * mixParts

// steps is a score in whole steps, to the nearest.
func steps(score int64) int64 {
	n := (score + scoreStep/2) / scoreStep
	if (score+scoreStep/2)%scoreStep < 0 {
		n--
	}
	return n
}

// fragments is how much of the node's free devices the next request cannot use, expected:
// thousandths of a device times mixParts.
func (m *mix) fragments(n *nodeState, allows []bool) int64 {
	var free, whole int64
	var untouched int64
	for d := range n.gpus {
		g := &n.gpus[d]
		if !g.healthy {
			continue
		}
		free += g.share
		if g.untouched() {
			untouched++
			whole += g.share
		}
	}
	if free == 0 {
		return 0
	}
	var sum int64
	for gi := range m.groups {
		g := &m.groups[gi]
		if !allows[g.mask] {
			sum += g.weight * free
			continue
		}
		var unusable int64
		if g.share > 0 {
			c := class{share: g.share, gpuMem: g.gpuMem}
			for d := range n.gpus {
				if x := &n.gpus[d]; x.healthy && x.shares(&c, 1) == 0 {
					unusable += x.share
				}
			}
		} else if untouched < g.gpus {
			unusable = free
		} else {
			unusable = free - whole
		}
		if unusable == free {
			sum += g.weight * free
			continue
		}
		for i := range g.sizes {
			if s := &g.sizes[i]; s.cpu > n.cpu || s.mem > n.mem {
				sum += s.weight * free
			} else {
				sum += s.weight * unusable
			}
		}
	}
	return sum
}

// scores is what each node is worth for so many bundles of a class at once: the smaller
// the better.
type scores struct {
	mix  *mix
	upTo int
	node []int64
}

// scoresOf scores the nodes that have room for so many bundles of the class. The shape has
// been asked for just before.
func (o *overlay) scoresOf(s *shape, c *class, times int64) []int64 {
	x := s.scores[times]
	changed, ok := []int32(nil), false
	if x != nil && x.mix == o.mix {
		changed, ok = o.idx.since(x.upTo)
	}
	if !ok {
		x = &scores{mix: o.mix, node: make([]int64, len(o.nodes))}
		if s.scores == nil || len(s.scores) > 8 {
			s.scores = map[int64]*scores{}
		}
		s.scores[times] = x
		for ni, k := range s.node {
			if int64(k) >= times {
				x.node[ni] = o.score(int32(ni), c, times)
			}
		}
	}
	for _, ni := range changed {
		if int64(s.node[ni]) >= times {
			x.node[ni] = o.score(ni, c, times)
		}
	}
	x.upTo = o.idx.end()
	return x.node
}

// score is what so many bundles of the class add to the fragments of a node.
func (o *overlay) score(ni int32, c *class, times int64) int64 {
	n := o.nodes[ni]
	allows := o.allows(int(ni))
	before := o.mix.fragments(n, allows)
	after := o.copyOf(int(ni))
	for range times {
		var ok bool
		if o.taken, ok = after.takeFor(c, o.mix, allows, o.taken[:0]); !ok {
			return math.MaxInt64
		}
	}
	return o.mix.fragments(after, allows) - before
}

// expect is the mix that is gone by from now on; nil: none.
func (o *overlay) expect(m *mix) {
	o.mix = m
	clear(o.allowed)
}

// allows is which groups of the mix may use the node.
func (o *overlay) allows(ni int) []bool {
	if o.mix == nil {
		return nil
	}
	if len(o.allowed) != len(o.nodes) {
		o.allowed = make([]int32, len(o.nodes))
	}
	if o.allowed[ni] == 0 {
		o.allowed[ni] = 1 + o.mix.allows(o.nodes[ni])
	}
	return o.mix.allowedBy(o.allowed[ni] - 1)
}

// shareDevice is the device of the node for one share: where it leaves least that the next
// request cannot use, then the one that it fills best.
func (n *nodeState) shareDevice(c *class, m *mix, allows []bool) int {
	best, least := -1, int64(0)
	for d := range n.gpus {
		if n.gpus[d].shares(c, 1) < 1 {
			continue
		}
		if m == nil {
			if best < 0 || fuller(&n.gpus[d], &n.gpus[best]) {
				best = d
			}
			continue
		}
		if slices.ContainsFunc(n.gpus[:d], func(g gpuState) bool { return g.like(&n.gpus[d]) }) {
			continue
		}
		before := n.gpus[d]
		n.gpus[d].takeShare(c)
		left := m.fragments(n, allows)
		n.gpus[d] = before
		if best < 0 || left < least || left == least && fuller(&n.gpus[d], &n.gpus[best]) {
			best, least = d, left
		}
	}
	return best
}
