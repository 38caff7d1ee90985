package schedule

import (
	"cmp"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// spot is where one bundle goes.
type spot struct {
	node    int // index in the overlay
	class   *class
	devices []int
}

// outcome of a placement: spots has one entry for each bundle, in order, or is nil.
// proven says that the search was exhaustive, so that nil means impossible and not
// only not found.
type outcome struct {
	spots  []spot
	chosen []int64 // the bundles that spots are for; nil: all
	proven bool
}

// exactBundles is how many bundles of different kinds are searched exhaustively.
// Groups of equal bundles and STRICT_SPREAD are decided exactly at any size.
const exactBundles = 8

// place finds a node and devices for every bundle, or none for any (P1). It writes
// nothing.
func place(o *overlay, d *demand) outcome {
	if d.total == 0 || len(o.nodes) == 0 || d.incomplete() {
		return outcome{proven: true}
	}
	if got := placeLinked(o, d); got.spots != nil || len(d.roles) == 0 {
		return got
	}
	return placeFewer(o, d)
}

// placeAll decides a demand without a look at links.
func placeAll(o *overlay, d *demand) outcome {
	a := &area{o: o, d: d, tallies: make([]tally, len(d.classes)), in: none}
	// Counts prune before any arrangement is looked at, and are a proof by themselves.
	for ci, c := range d.classes {
		a.tallies[ci] = o.tallyOf(d, c)
		if a.tallies[ci].total < int64(len(c.bundles)) {
			return outcome{proven: true}
		}
	}
	got := a.leveled()
	if got.spots != nil {
		got.spots = tidy(got.spots, d)
	}
	return got
}

// area is where a demand is to be placed: the whole cluster, or one domain of it.
type area struct {
	o       *overlay
	d       *demand
	tallies []tally
	in      int32   // domain; none: everywhere
	nodes   []int32 // of the area, if listed; else all
	listed  bool
}

// each calls f for the nodes of the area, in their order.
func (a *area) each(f func(ni int)) {
	if !a.listed {
		for ni := range a.o.nodes {
			f(ni)
		}
		return
	}
	for _, ni := range a.nodes {
		f(int(ni))
	}
}

// list is the nodes of the area on which there is room for anything of the demand.
func (a *area) list() []int {
	var out []int
	a.each(func(ni int) {
		if slices.ContainsFunc(a.tallies, func(t tally) bool { return t.node[ni] > 0 }) {
			out = append(out, ni)
		}
	})
	return out
}

// within is the part of the area in a domain.
func (a *area) within(di int32) *area {
	sub := *a
	sub.in, sub.nodes, sub.listed = di, a.o.topo.domains[di].nodes, true
	return &sub
}

// room is how many bundles of a class the area has room for.
func (a *area) room(ci int) int64 {
	if a.in == none {
		return a.tallies[ci].total
	}
	return a.tallies[ci].in[a.in]
}

// enough reports whether each class by itself has room in the area.
func (a *area) enough() bool {
	for ci, c := range a.d.classes {
		if a.room(ci) < int64(len(c.bundles)) {
			return false
		}
	}
	return true
}

// place decides the demand within the area.
func (a *area) place() outcome {
	d := a.d
	switch {
	case d.perNode > 0 && len(d.classes) == 1:
		// Each node counts for perNode bundles or none, and their sum is a multiple: the
		// fewest nodes carry perNode each.
		return placeEqualPacked(a)
	case d.strategy == api.StrictSpread:
		return placeStrictSpread(a)
	case len(d.classes) == 1 && d.strategy == api.Spread:
		return placeEqualSpread(a)
	case len(d.classes) == 1:
		return placeEqualPacked(a)
	case d.total <= exactBundles:
		return placeExact(a)
	case d.strategy == api.StrictPack:
		return placeOneNode(a)
	case d.strategy == api.Spread:
		return placeGreedySpread(a)
	default:
		return placeGreedyPacked(a)
	}
}

// tidy hands the spots of equal bundles out in the order of nodes and devices, so that
// bundle order, and with it rank order, follows the machines.
func tidy(spots []spot, d *demand) []spot {
	byPlace := func(a, b spot) int {
		return cmp.Or(cmp.Compare(a.node, b.node), slices.Compare(a.devices, b.devices))
	}
	if len(d.classes) == 1 && len(spots) == d.total {
		slices.SortStableFunc(spots, byPlace)
		return spots
	}
	out := make([]spot, d.total)
	mine := make([]spot, 0, len(spots))
	for _, c := range d.classes {
		mine = mine[:0]
		for _, s := range spots {
			if s.class == c {
				mine = append(mine, s)
			}
		}
		slices.SortStableFunc(mine, byPlace)
		for i, b := range c.bundles {
			out[b] = mine[i]
		}
	}
	return out
}

// fit ranks nodes for a load: kept nodes first, then the one with least left over.
type fit struct {
	node   int
	kept   bool
	domain int64 // room in its domain, where that counts
	waste  int64
}

func betterFit(a, b fit) int {
	if a.kept != b.kept {
		if a.kept {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.domain, b.domain), cmp.Compare(a.waste, b.waste), cmp.Compare(a.node, b.node))
}

// waste is what would be left of a node after a load, in thousandths of a device or of
// its capacity. GPUs outweigh the rest, so that whole nodes stay whole. Work without
// GPUs keeps off nodes that have any, used or not: it would take the CPUs that the
// next GPU job needs, and slow down the one that is there.
func waste(n *nodeState, cpu, mem, gpuThousandths int64) int64 {
	var left int64
	for i := range n.gpus {
		switch {
		case gpuThousandths == 0:
			left += wholeShare
		case n.gpus[i].healthy:
			left += n.gpus[i].share
		}
	}
	return max(0, left-gpuThousandths)*4 + part(n.cpu-cpu, n.capCPU) + part(n.mem-mem, n.capMem)
}

// part is have ÷ of in thousandths, without overflow.
func part(have, of int64) int64 {
	if have <= 0 || of <= 0 {
		return 0
	}
	if of < 1<<40 {
		return min(have, of) * wholeShare / of
	}
	return min(have, of) / (of / wholeShare)
}

func (c *class) thousandths() int64 { return satAdd(satMul(c.gpus, wholeShare), c.share) }

func (d *demand) fitFor(o *overlay, ni int, c *class, times int64) fit {
	n := o.nodes[ni]
	return fit{
		node: ni, kept: d.keep[n.id],
		waste: waste(n, satMul(c.cpu, times), satMul(c.mem, times), satMul(c.thousandths(), times)),
	}
}

// takeMany adds the spots of so many bundles of a class on a node; the caller has counted
// that they fit. n is a copy of the state of the node, or of what is left of it.
func (o *overlay) takeMany(n *nodeState, ni int, c *class, times int64, into []spot) []spot {
	allows := o.allows(ni)
	devices := make([]int, 0, min(int64(len(n.gpus)), satMul(times, max(c.gpus, min(1, c.share)))))
	for range times {
		before := len(devices)
		all, ok := n.takeFor(c, o.mix, allows, devices)
		if !ok {
			return into
		}
		devices = all
		into = append(into, spot{node: ni, class: c, devices: all[before:len(all):len(all)]})
	}
	return into
}
