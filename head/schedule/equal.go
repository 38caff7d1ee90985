package schedule

import (
	"cmp"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Groups of equal bundles are what jobs ask for. How many a node holds is one number,
// so every strategy is decided exactly, for any number of bundles, in one sort.

// placeEqualPacked serves PACK and STRICT_PACK: the fewest nodes, and among the ways
// to use that many the one that leaves least over on the last.
func placeEqualPacked(o *overlay, d *demand, counts []int64) outcome {
	c := d.classes[0]
	left := int64(d.total)
	var candidates []int
	for ni, k := range counts {
		if k > 0 && (d.strategy != api.StrictPack || k >= left) {
			candidates = append(candidates, ni)
		}
	}
	if len(candidates) == 0 {
		return outcome{proven: true}
	}

	// Kept nodes are used first: a group that lost a node stays where the rest of it is,
	// even where another set of nodes would be smaller (P1).
	slices.SortFunc(candidates, func(a, b int) int {
		fa, fb := d.fitFor(o, a, c, counts[a]), d.fitFor(o, b, c, counts[b])
		if fa.kept != fb.kept {
			return betterFit(fa, fb)
		}
		return cmp.Or(cmp.Compare(counts[b], counts[a]), betterFit(fa, fb))
	})
	var spots []spot
	for i := 0; left > 0 && i < len(candidates); i++ {
		ni := candidates[i]
		if k := counts[ni]; k >= left {
			ni = lastNode(o, d, counts, candidates[i:], left)
		}
		n := o.nodes[ni].clone()
		before := len(spots)
		spots = takeMany(&n, ni, c, min(left, counts[ni]), spots)
		left -= int64(len(spots) - before)
	}
	if left > 0 {
		return outcome{proven: true}
	}
	return outcome{spots: spots, proven: true}
}

// lastNode is the best fit for what is left among the nodes that hold all of it.
func lastNode(o *overlay, d *demand, counts []int64, candidates []int, left int64) int {
	best := fit{node: -1}
	for _, ni := range candidates {
		if counts[ni] < left {
			continue
		}
		if f := d.fitFor(o, ni, d.classes[0], left); best.node < 0 || betterFit(f, best) < 0 {
			best = f
		}
	}
	return best.node
}

// placeEqualSpread uses as many nodes as possible and no node twice more often than
// another that still has room.
func placeEqualSpread(o *overlay, d *demand, counts []int64) outcome {
	c := d.classes[0]
	var order []fit
	for ni, k := range counts {
		if k > 0 {
			order = append(order, d.fitFor(o, ni, c, 1))
		}
	}
	slices.SortFunc(order, betterFit)
	share := make([]int64, len(o.nodes))
	for left := int64(d.total); left > 0; {
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
			n := o.nodes[ni].clone()
			spots = takeMany(&n, ni, c, k, spots)
		}
	}
	return outcome{spots: spots, proven: true}
}

// placeStrictSpread gives every bundle a node of its own. Bundles are matched to nodes
// with augmenting paths over the kinds of bundle, so it is exact at any size.
func placeStrictSpread(o *overlay, d *demand, counts [][]int64) outcome {
	owner := make([]int, len(o.nodes)) // class that uses the node, -1 none
	for i := range owner {
		owner[i] = -1
	}
	orders := make([][]int, len(d.classes))
	rarest := make([]int, len(d.classes))
	for ci, c := range d.classes {
		var fits []fit
		for ni, k := range counts[ci] {
			if k > 0 {
				fits = append(fits, d.fitFor(o, ni, c, 1))
			}
		}
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
			n := o.nodes[ni].clone()
			spots = takeMany(&n, ni, d.classes[ci], 1, spots)
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
