package schedule

import (
	"cmp"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Groups of few but different bundles are searched exhaustively. The search runs over
// the ways to divide the bundles into parts, each part going to a node of its own
// (8 different bundles divide in 4,140 ways), not over nodes. For each possible part
// only as many nodes as there are bundles need to be remembered: if a solution used a
// worse one, one of the remembered ones would be free to take its place.

// loadSet is how many bundles of each class a part has.
type loadSet []int8

// placeExact decides PACK, SPREAD and STRICT_PACK for at most exactBundles bundles.
func placeExact(a *area) outcome {
	o, d := a.o, a.d
	s := &partition{a: a, o: o, d: d, want: make(loadSet, len(d.classes)), proven: true}
	for ci, c := range d.classes {
		s.want[ci] = int8(len(c.bundles))
	}
	s.index()
	s.nodesForParts()
	s.divide(slices.Clone(s.want), s.size-1, nil)
	if s.best == nil {
		return outcome{proven: s.proven}
	}
	var spots []spot
	for i, p := range s.best {
		ni := s.bestNodes[i]
		n := o.nodes[ni].clone()
		got, _, _ := arrange(n, ni, d, s.load(p))
		spots = append(spots, got...)
	}
	return outcome{spots: spots, proven: s.proven}
}

// partition is one search. A part is a number: its load in mixed radix.
type partition struct {
	a      *area
	o      *overlay
	d      *demand
	want   loadSet
	radix  []int
	size   int
	nodes  [][]fit // for each part, the best nodes that hold it
	proven bool    // no bound cut the search short

	best      []int // parts
	bestNodes []int
	bestCost  cost
}

// cost orders solutions; smaller is better.
type cost struct {
	parts int   // negative for SPREAD
	moved int   // bundles not on a kept node
	waste int64 // left over on the nodes used
}

func (s *partition) compare(a, b cost) int {
	if len(s.d.keep) > 0 && s.d.strategy != api.Spread {
		// A group that lost a node stays where the rest of it is (P1).
		return cmp.Or(cmp.Compare(a.moved, b.moved), cmp.Compare(a.parts, b.parts), cmp.Compare(a.waste, b.waste))
	}
	return cmp.Or(cmp.Compare(a.parts, b.parts), cmp.Compare(a.moved, b.moved), cmp.Compare(a.waste, b.waste))
}

func (s *partition) index() {
	s.size = 1
	s.radix = make([]int, len(s.want))
	for ci := range s.want {
		s.radix[ci] = s.size
		s.size *= int(s.want[ci]) + 1
	}
}

func (s *partition) load(p int) loadSet {
	l := make(loadSet, len(s.want))
	for ci := range s.want {
		l[ci] = int8(p / s.radix[ci] % (int(s.want[ci]) + 1))
	}
	return l
}

// nodesForParts finds, for every part, the best nodes that hold it. What holds a part
// holds every smaller one, so a part is tried only where its smaller ones fit.
func (s *partition) nodesForParts() {
	s.nodes = make([][]fit, s.size)
	loads := make([]loadSet, s.size)
	for p := range loads {
		loads[p] = s.load(p)
	}
	fits := make([]bool, s.size)
	s.a.each(func(ni int) {
		if !slices.ContainsFunc(s.a.tallies, func(t tally) bool { return t.node[ni] > 0 }) {
			return
		}
		fits[0] = true
		for p := 1; p < s.size; p++ {
			fits[p] = s.fitsPart(ni, p, loads[p], fits)
			if fits[p] {
				s.remember(ni, p, loads[p])
			}
		}
	})
}

func (s *partition) fitsPart(ni, p int, load loadSet, fits []bool) bool {
	n := s.o.nodes[ni]
	for ci, k := range load {
		if k > 0 && (!fits[p-s.radix[ci]] || !s.d.serves(n, s.d.classes[ci])) {
			return false
		}
	}
	copied := n.clone()
	_, ok, exact := arrange(copied, ni, s.d, load)
	s.proven = s.proven && (ok || exact)
	return ok
}

func (s *partition) remember(ni, p int, load loadSet) {
	n := s.o.nodes[ni]
	var cpu, mem, gpu int64
	for ci, k := range load {
		c := s.d.classes[ci]
		cpu = satAdd(cpu, satMul(c.cpu, int64(k)))
		mem = satAdd(mem, satMul(c.mem, int64(k)))
		gpu = satAdd(gpu, satMul(c.thousandths(), int64(k)))
	}
	f := fit{node: ni, kept: s.d.keep[n.id], waste: waste(n, cpu, mem, gpu)}
	list := s.nodes[p]
	at, _ := slices.BinarySearchFunc(list, f, betterFit)
	if at >= exactBundles {
		return
	}
	list = slices.Insert(list, at, f)
	s.nodes[p] = list[:min(len(list), exactBundles)]
}

// divide enumerates the divisions of what is left into parts, each no larger than the
// one before so that every division comes up once.
func (s *partition) divide(left loadSet, largest int, parts []int) {
	rest := 0
	for ci, k := range left {
		rest += int(k) * s.radix[ci]
	}
	if rest == 0 {
		s.consider(parts)
		return
	}
	if s.d.strategy == api.StrictPack && len(parts) > 0 {
		return
	}
	if s.d.strategy != api.Spread && s.best != nil && len(s.d.keep) == 0 && len(parts) >= len(s.best) {
		return // more nodes than the best known
	}
	for p := min(largest, rest); p > 0; p-- {
		if len(s.nodes[p]) == 0 {
			continue
		}
		load := s.load(p)
		fits := true
		for ci := range left {
			fits = fits && load[ci] <= left[ci]
		}
		if !fits {
			continue
		}
		next := make(loadSet, len(left))
		for ci := range left {
			next[ci] = left[ci] - load[ci]
		}
		s.divide(next, p, append(parts, p))
	}
}

// consider matches the parts to different nodes and keeps the best solution.
func (s *partition) consider(parts []int) {
	nodes := s.match(parts)
	if nodes == nil {
		return
	}
	c := cost{parts: len(parts)}
	if s.d.strategy == api.Spread {
		c.parts = -c.parts
	}
	for i, p := range parts {
		for _, f := range s.nodes[p] {
			if f.node != nodes[i] {
				continue
			}
			c.waste = satAdd(c.waste, f.waste)
			if !f.kept {
				for _, k := range s.load(p) {
					c.moved += int(k)
				}
			}
		}
	}
	if s.best == nil || s.compare(c, s.bestCost) < 0 {
		s.best, s.bestNodes, s.bestCost = slices.Clone(parts), nodes, c
	}
}

// match gives each part a node of its own, the better ones first; nil: impossible.
func (s *partition) match(parts []int) []int {
	taken := map[int]int{} // node → part
	for i := range parts {
		if !s.matchOne(parts, i, taken, map[int]bool{}) {
			return nil
		}
	}
	nodes := make([]int, len(parts))
	for ni, i := range taken {
		nodes[i] = ni
	}
	return nodes
}

func (s *partition) matchOne(parts []int, i int, taken map[int]int, seen map[int]bool) bool {
	for _, f := range s.nodes[parts[i]] {
		if _, used := taken[f.node]; !used && !seen[f.node] {
			taken[f.node] = i
			return true
		}
	}
	for _, f := range s.nodes[parts[i]] {
		if seen[f.node] {
			continue
		}
		seen[f.node] = true
		if s.matchOne(parts, taken[f.node], taken, seen) {
			taken[f.node] = i
			return true
		}
	}
	return false
}
