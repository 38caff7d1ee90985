package schedule

import (
	"cmp"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Groups of equal bundles are what jobs ask for. How many a node holds is one number,
// so every strategy is decided exactly, for any number of bundles, in one sort.

// placeEqualPacked serves PACK and STRICT_PACK: one node if there is one for all, else the
// fewest nodes, or with levels the fewest domains, and among the ways to use that many the
// one that leaves least over on the last.
func placeEqualPacked(a *area) outcome {
	need := int64(a.d.total)
	if a.room(0) < need {
		return outcome{proven: true}
	}
	if a.d.strategy == api.StrictPack || len(a.d.keep) == 0 {
		if ni := a.oneNode(need); ni >= 0 {
			return outcome{spots: a.o.takeMany(a.o.copyOf(ni), ni, a.d.classes[0], need, nil), proven: true}
		}
		if a.d.strategy == api.StrictPack {
			return outcome{proven: true}
		}
	}
	spots := make([]spot, 0, need)
	if a.o.topo == nil || len(a.d.keep) > 0 {
		return outcome{spots: a.fill(need, spots), proven: true}
	}
	return outcome{spots: a.pack(need, spots), proven: true}
}

// oneNode is the best node for all that is needed, -1 if none holds it: a kept one, the one
// that leaves fewest fragments, the one in the domain with least room, the tightest.
func (a *area) oneNode(need int64) int {
	d, c := a.d, a.d.classes[0]
	counts := a.tallies[0].node
	var scores []int64
	if a.o.mix != nil {
		scores = a.o.scoresOf(a.o.shapeOf(c), c, need)
	}
	best, least := fit{node: -1}, int64(0)
	a.each(func(ni int) {
		if int64(counts[ni]) < need {
			return
		}
		var score int64
		if scores != nil {
			score = steps(scores[ni])
		}
		kept := d.keep[a.o.nodes[ni].id]
		if best.node >= 0 && (best.kept && !kept || best.kept == kept && score > least) {
			return
		}
		f := fit{node: ni, kept: kept, domain: a.crowd(ni), waste: waste(a.o.nodes[ni], satMul(c.cpu, need), satMul(c.mem, need), satMul(c.thousandths(), need))}
		if best.node < 0 || kept != best.kept || score < least || betterFit(f, best) < 0 {
			best, least = f, score
		}
	})
	return best.node
}

// crowd is how much room the narrowest domain of the node has: what has least is used
// first, so that others stay free as a whole.
func (a *area) crowd(ni int) int64 {
	if a.o.topo == nil {
		return 0
	}
	for _, of := range slices.Backward(a.o.topo.of) {
		if di := of[ni]; di != none {
			return a.tallies[0].in[di]
		}
	}
	return 0
}

// fill takes what is needed from the fewest nodes of the area, which has room for it.
func (a *area) fill(need int64, spots []spot) []spot {
	counts := a.tallies[0].node
	var all []fit
	a.each(func(ni int) {
		if counts[ni] > 0 {
			all = append(all, a.d.fitFor(a.o, ni, a.d.classes[0], int64(counts[ni])))
		}
	})
	// Kept nodes are used first: a group that lost a node stays where the rest of it is,
	// even where another set of nodes would be smaller (P1).
	slices.SortFunc(all, func(x, y fit) int {
		if x.kept != y.kept {
			return betterFit(x, y)
		}
		return cmp.Or(cmp.Compare(counts[y.node], counts[x.node]), betterFit(x, y))
	})
	for i := 0; need > 0 && i < len(all); i++ {
		ni := all[i].node
		k := int64(counts[ni])
		if k >= need {
			ni, k = a.lastNode(all[i:], need), need
		}
		before := len(spots)
		spots = a.o.takeMany(a.o.copyOf(ni), ni, a.d.classes[0], k, spots)
		need -= int64(len(spots) - before)
	}
	return spots
}

// lastNode is the best fit for what is left among the nodes that hold all of it.
func (a *area) lastNode(all []fit, left int64) int {
	best := fit{node: -1}
	for _, x := range all {
		if int64(a.tallies[0].node[x.node]) < left {
			continue
		}
		if f := a.d.fitFor(a.o, x.node, a.d.classes[0], left); best.node < 0 || betterFit(f, best) < 0 {
			best = f
		}
	}
	return best.node
}

// placeEqualSpread uses as many nodes as possible and no node twice more often than
// another that still has room.
func placeEqualSpread(a *area) outcome {
	c, counts := a.d.classes[0], a.tallies[0].node
	var order []fit
	a.each(func(ni int) {
		if counts[ni] > 0 {
			order = append(order, a.d.fitFor(a.o, ni, c, 1))
		}
	})
	slices.SortFunc(order, betterFit)
	share := make([]int32, len(a.o.nodes))
	for left := a.d.total; left > 0; {
		before := left
		for _, f := range order {
			if left > 0 && share[f.node] < counts[f.node] {
				share[f.node]++
				left--
			}
		}
		if left == before {
			return outcome{proven: true}
		}
	}
	var spots []spot
	for ni, k := range share {
		if k > 0 {
			spots = a.o.takeMany(a.o.copyOf(ni), ni, c, int64(k), spots)
		}
	}
	return outcome{spots: spots, proven: true}
}

// placeStrictSpread gives every bundle a node of its own. Bundles are matched to nodes
// with augmenting paths over the kinds of bundle, so it is exact at any size.
func placeStrictSpread(a *area) outcome {
	d := a.d
	owner := make([]int, len(a.o.nodes)) // class that uses the node, -1 none
	for i := range owner {
		owner[i] = -1
	}
	orders := make([][]int, len(d.classes))
	rarest := make([]int, len(d.classes))
	for ci, c := range d.classes {
		var fits []fit
		a.each(func(ni int) {
			if a.tallies[ci].node[ni] > 0 {
				fits = append(fits, d.fitFor(a.o, ni, c, 1))
			}
		})
		slices.SortFunc(fits, betterFit)
		for _, f := range fits {
			orders[ci] = append(orders[ci], f.node)
		}
		rarest[ci] = ci
	}
	slices.SortStableFunc(rarest, func(a, b int) int { return cmp.Compare(len(orders[a]), len(orders[b])) })

	for _, ci := range rarest {
		for range d.classes[ci].bundles {
			if !augment(ci, orders, owner, make([]bool, len(d.classes))) {
				return outcome{proven: true}
			}
		}
	}
	var spots []spot
	for ni, ci := range owner {
		if ci >= 0 {
			spots = a.o.takeMany(a.o.copyOf(ni), ni, d.classes[ci], 1, spots)
		}
	}
	return outcome{spots: spots, proven: true}
}

// augment finds one more node for the class, moving other classes on where it must.
// Nodes of one class are interchangeable within it, so each class is entered once.
func augment(ci int, orders [][]int, owner []int, seen []bool) bool {
	seen[ci] = true
	for _, ni := range orders[ci] {
		if owner[ni] < 0 {
			owner[ni] = ci
			return true
		}
	}
	for _, ni := range orders[ci] {
		if other := owner[ni]; !seen[other] && augment(other, orders, owner, seen) {
			owner[ni] = ci
			return true
		}
	}
	return false
}
