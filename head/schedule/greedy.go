package schedule

import (
	"cmp"
	"slices"
)

// Groups of many different bundles are placed greedily: first by filling one node
// after the other, then bundle by bundle. What this does not find may exist; its
// outcome never claims a proof.

// placeOneNode serves STRICT_PACK: the best-fitting node that holds everything.
func placeOneNode(a *area) outcome {
	o, d := a.o, a.d
	all := make([]int8, len(d.classes))
	for ci, c := range d.classes {
		if len(c.bundles) > 127 {
			return placeOneNodeInOrder(a)
		}
		all[ci] = int8(len(c.bundles))
	}
	best, proven := fit{node: -1}, true
	var spots []spot
	for _, ni := range a.list() {
		if !d.servesAll(o.nodes[ni]) {
			continue
		}
		n := o.nodes[ni].clone()
		got, ok, exact := arrange(n, ni, d, all)
		proven = proven && (ok || exact)
		if !ok {
			continue
		}
		f := fit{node: ni, kept: d.keep[n.id], waste: d.wasteAfter(n)}
		if best.node < 0 || betterFit(f, best) < 0 {
			best, spots = f, got
		}
	}
	return outcome{spots: spots, proven: spots != nil || proven}
}

func (d *demand) servesAll(n *nodeState) bool {
	for _, c := range d.classes {
		if !d.serves(n, c) {
			return false
		}
	}
	return true
}

// placeOneNodeInOrder is for hundreds of bundles of a kind: no search among devices.
func placeOneNodeInOrder(a *area) outcome {
	o, d := a.o, a.d
	best := fit{node: -1}
	var spots []spot
	for _, ni := range a.list() {
		if !d.servesAll(o.nodes[ni]) {
			continue
		}
		n := o.nodes[ni].clone()
		var got []spot
		for _, c := range d.classes {
			got = o.takeMany(n, ni, c, int64(len(c.bundles)), got)
		}
		if len(got) < d.total {
			continue
		}
		f := fit{node: ni, kept: d.keep[n.id], waste: d.wasteAfter(n)}
		if best.node < 0 || betterFit(f, best) < 0 {
			best, spots = f, got
		}
	}
	return outcome{spots: spots}
}

// placeGreedyPacked fills nodes one after the other, always the one that takes most.
func placeGreedyPacked(a *area) outcome {
	o, d := a.o, a.d
	left := make([]int64, len(d.classes))
	todo := d.total
	for ci, c := range d.classes {
		left[ci] = int64(len(c.bundles))
	}
	used := make([]bool, len(o.nodes))
	var spots []spot
	for todo > 0 {
		best, most := fit{node: -1}, int64(0)
		var load []spot
		for _, ni := range a.list() {
			if used[ni] {
				continue
			}
			n := o.nodes[ni].clone()
			got, weight := fill(o, n, ni, d, left)
			if len(got) == 0 {
				continue
			}
			f := fit{node: ni, kept: d.keep[n.id], waste: d.wasteAfter(n)}
			if best.node < 0 || betterLoad(f, weight, best, most) {
				best, most, load = f, weight, got
			}
		}
		if best.node < 0 {
			return placeGreedySpread(a)
		}
		used[best.node] = true
		spots = append(spots, load...)
		todo -= len(load)
		for _, s := range load {
			left[slices.Index(d.classes, s.class)]--
		}
	}
	return outcome{spots: spots}
}

func betterLoad(a fit, aWeight int64, b fit, bWeight int64) bool {
	if a.kept != b.kept {
		return a.kept
	}
	return cmp.Or(cmp.Compare(bWeight, aWeight), betterFit(a, b)) < 0
}

// fill takes what fits of the bundles that are left, the most demanding first. Its
// weight counts GPUs before bundles.
func fill(o *overlay, n *nodeState, ni int, d *demand, left []int64) (spots []spot, weight int64) {
	for ci, c := range d.classes {
		if left[ci] == 0 || !d.serves(n, c) {
			continue
		}
		k := n.count(c, left[ci])
		spots = o.takeMany(n, ni, c, k, spots)
		weight = satAdd(weight, satMul(k, satAdd(1, c.thousandths())))
	}
	return spots, weight
}

// placeGreedySpread takes the most demanding bundles first and gives each the node
// with the fewest of the group, then the best fit.
func placeGreedySpread(a *area) outcome {
	o, d := a.o, a.d
	tried := o.clone()
	used := make([]int64, len(o.nodes))
	var spots []spot
	for _, c := range d.classes {
		for range c.bundles {
			best := fit{node: -1}
			for _, ni := range a.list() {
				n := tried.nodes[ni]
				if !d.serves(n, c) || n.count(c, 1) < 1 {
					continue
				}
				f := d.fitFor(tried, ni, c, 1)
				if best.node < 0 || cmp.Or(cmp.Compare(used[ni], used[best.node]), betterFit(f, best)) < 0 {
					best = f
				}
			}
			if best.node < 0 {
				return outcome{}
			}
			n := tried.nodes[best.node].clone()
			spots = tried.takeMany(n, best.node, c, 1, spots)
			tried.set(best.node, n)
			used[best.node]++
		}
	}
	return outcome{spots: spots}
}

// wasteAfter ranks a node whose copy already carries the load.
func (d *demand) wasteAfter(n *nodeState) int64 {
	if !d.wantsGPU() {
		return waste(n, 0, 0, 0)
	}
	var left int64
	for i := range n.gpus {
		if n.gpus[i].healthy {
			left += n.gpus[i].share
		}
	}
	return left*4 + part(n.cpu, n.capCPU) + part(n.mem, n.capMem)
}
