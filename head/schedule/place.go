package schedule

import (
	"cmp"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// class is a kind of bundle: those of a request that any node serves alike.
type class struct {
	cpu, mem, gpus, share, gpuMem int64
	labels                        map[string]string
	bundles                       []int // their indices in the request, ascending
}

// demand is a request as the placement looks at it.
type demand struct {
	classes  []*class // the most demanding first
	total    int      // bundles
	strategy api.Strategy
	perNode  int64 // bundles on each node that is used, exactly; 0: what fits
	pool     string
	keep     map[string]bool // node ids to prefer
	avoid    map[string]string
}

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
	proven bool
}

// exactBundles is how many bundles of different kinds are searched exhaustively.
// Groups of equal bundles and STRICT_SPREAD are decided exactly at any size.
const exactBundles = 8

func newDemand(r *Request) *demand {
	d := &demand{
		total: len(r.Spec.Bundles), strategy: strategyOf(r.Spec.Strategy), perNode: r.Spec.PerNode, pool: r.Spec.Pool,
		keep: make(map[string]bool, len(r.Keep)), avoid: r.Avoid,
	}
	for _, id := range r.Keep {
		d.keep[id] = true
	}
	byKey := map[string]*class{}
	key := ""
	for i := range r.Spec.Bundles {
		b := &r.Spec.Bundles[i]
		if i == 0 || !alike(&r.Spec.Bundles[i-1], b) {
			key = bundleKey(b)
		}
		c := byKey[key]
		if c == nil {
			c = &class{
				cpu: max(0, int64(b.CPU)), mem: max(0, int64(b.Memory)), gpus: max(0, b.GPUs),
				share: max(0, b.Share), gpuMem: max(0, int64(b.GPUMemory)), labels: b.Labels,
			}
			byKey[key] = c
			d.classes = append(d.classes, c)
		}
		c.bundles = append(c.bundles, i)
	}
	slices.SortStableFunc(d.classes, moreDemanding)
	return d
}

// moreDemanding orders classes: what is hardest to find a place for comes first.
func moreDemanding(a, b *class) int {
	return cmp.Or(
		cmp.Compare(b.gpus, a.gpus),
		cmp.Compare(b.share, a.share),
		cmp.Compare(b.gpuMem, a.gpuMem),
		cmp.Compare(b.mem, a.mem),
		cmp.Compare(b.cpu, a.cpu),
		cmp.Compare(len(b.labels), len(a.labels)),
	)
}

// serves reports whether the node may take bundles of the class at all.
func (d *demand) serves(n *nodeState, c *class) bool {
	return n.ready && d.inPool(n) && hasLabels(n, c) && !d.avoids(n)
}

func (d *demand) avoids(n *nodeState) bool {
	_, ok := d.avoid[n.id]
	return ok
}

func (d *demand) inPool(n *nodeState) bool { return d.pool == "" || n.pool == d.pool }

func hasLabels(n *nodeState, c *class) bool {
	for k, v := range c.labels {
		if have, ok := n.labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// place finds a node and devices for every bundle, or none for any (P1). It writes
// nothing.
func place(o *overlay, d *demand) outcome {
	if d.total == 0 || len(o.nodes) == 0 {
		return outcome{proven: true}
	}
	// Counts prune before any arrangement is looked at, and are a proof by themselves.
	counts := make([][]int64, len(d.classes))
	for ci, c := range d.classes {
		var sum int64
		counts[ci] = make([]int64, len(o.nodes))
		for ni := range o.nodes {
			if n := &o.nodes[ni]; d.serves(n, c) {
				counts[ci][ni] = d.capped(n.count(c, d.most(c)))
				sum += counts[ci][ni]
			}
		}
		if sum < int64(len(c.bundles)) {
			return outcome{proven: true}
		}
	}
	var got outcome
	switch {
	case d.perNode > 0 && len(d.classes) == 1:
		// Each node counts for perNode bundles or none, and their sum is a multiple: the
		// fewest nodes carry perNode each.
		got = placeEqualPacked(o, d, counts[0])
	case d.strategy == api.StrictSpread:
		got = placeStrictSpread(o, d, counts)
	case len(d.classes) == 1 && d.strategy == api.Spread:
		got = placeEqualSpread(o, d, counts[0])
	case len(d.classes) == 1:
		got = placeEqualPacked(o, d, counts[0])
	case d.total <= exactBundles:
		got = placeExact(o, d)
	case d.strategy == api.StrictPack:
		got = placeOneNode(o, d)
	case d.strategy == api.Spread:
		got = placeGreedySpread(o, d)
	default:
		got = placeGreedyPacked(o, d)
	}
	if got.spots != nil {
		got.spots = tidy(got.spots, d)
	}
	return got
}

// most is how many bundles of a class are of use on one node.
func (d *demand) most(c *class) int64 {
	if d.perNode > 0 {
		return d.perNode
	}
	return int64(len(c.bundles))
}

// capped is what a count is worth where each node holds so many bundles or none.
func (d *demand) capped(n int64) int64 {
	if d.perNode > 0 && n < d.perNode {
		return 0
	}
	return n
}

// tidy hands the spots of equal bundles out in the order of nodes and devices, so that
// bundle order, and with it rank order, follows the machines.
func tidy(spots []spot, d *demand) []spot {
	out := make([]spot, d.total)
	for _, c := range d.classes {
		var mine []spot
		for _, s := range spots {
			if s.class == c {
				mine = append(mine, s)
			}
		}
		slices.SortStableFunc(mine, func(a, b spot) int {
			return cmp.Or(cmp.Compare(a.node, b.node), slices.Compare(a.devices, b.devices))
		})
		for i, b := range c.bundles {
			out[b] = mine[i]
		}
	}
	return out
}

// fit ranks nodes for a load: kept nodes first, then the one with least left over.
type fit struct {
	node  int
	kept  bool
	waste int64
}

func betterFit(a, b fit) int {
	if a.kept != b.kept {
		if a.kept {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.waste, b.waste), cmp.Compare(a.node, b.node))
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
	n := &o.nodes[ni]
	return fit{
		node: ni, kept: d.keep[n.id],
		waste: waste(n, satMul(c.cpu, times), satMul(c.mem, times), satMul(c.thousandths(), times)),
	}
}

// takeMany takes n bundles of a class on a copy of the node; the caller has counted
// that they fit.
func takeMany(n *nodeState, ni int, c *class, times int64, into []spot) []spot {
	for range times {
		devices, ok := n.take(c)
		if !ok {
			return into
		}
		into = append(into, spot{node: ni, class: c, devices: devices})
	}
	return into
}
