package schedule

import (
	"cmp"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// overlay is what is free on every node, as this cycle sees it.
type overlay struct {
	nodes []nodeState // in natural order of names: rank order follows it
}

// nodeState is one node's free capacity. It is copied, with its devices, to try
// something out.
type nodeState struct {
	id, name, pool string
	labels         map[string]string
	ready          bool
	why            string
	cpu, mem       int64
	capCPU, capMem int64
	gpus           []gpuState
}

type gpuState struct {
	uuid    string
	usable  int64
	free    int64
	share   int64 // thousandths left
	healthy bool
	why     string
}

// wholeShare is one device in thousandths.
const wholeShare = 1000

func newOverlay(nodes []*Node) *overlay {
	o := &overlay{nodes: make([]nodeState, 0, len(nodes))}
	for i := range nodes {
		n := nodes[i]
		st := nodeState{
			id: n.ID, name: n.Name, pool: n.Pool, labels: n.Labels, ready: n.Ready, why: n.Why,
			// A node that is over its capacity has nothing free; it never has less.
			cpu: max(0, int64(n.FreeCPU)), mem: max(0, int64(n.FreeMemory)),
			capCPU: max(0, int64(n.CPU)), capMem: max(0, int64(n.Memory)),
		}
		if st.name == "" {
			st.name = n.ID
		}
		for _, g := range n.GPUs {
			st.gpus = append(st.gpus, gpuState{
				uuid: g.UUID, usable: max(0, int64(g.Usable)), free: max(0, int64(g.Free)),
				share: min(max(0, g.Share), wholeShare), healthy: g.Healthy, why: g.Why,
			})
		}
		o.nodes = append(o.nodes, st)
	}
	slices.SortStableFunc(o.nodes, func(a, b nodeState) int {
		return cmp.Or(naturalCompare(a.name, b.name), cmp.Compare(a.id, b.id))
	})
	return o
}

// emptied is the same cluster with nothing held and everything well: what it could
// ever hold.
func emptied(nodes []*Node) *overlay {
	o := newOverlay(nodes)
	for i := range o.nodes {
		n := &o.nodes[i]
		n.ready = true
		n.cpu, n.mem = n.capCPU, n.capMem
		for d := range n.gpus {
			g := &n.gpus[d]
			g.free, g.share, g.healthy = g.usable, wholeShare, true
		}
	}
	return o
}

func (o *overlay) clone() *overlay {
	c := &overlay{nodes: make([]nodeState, len(o.nodes))}
	for i := range o.nodes {
		c.nodes[i] = o.nodes[i].clone()
	}
	return c
}

func (n *nodeState) clone() nodeState {
	c := *n
	c.gpus = slices.Clone(n.gpus)
	return c
}

// untouched reports whether the whole device may go to one bundle: nobody holds any
// of it (P2).
func (g *gpuState) untouched() bool {
	return g.healthy && g.share == wholeShare && g.free == g.usable
}

// shareBytes is the memory that a share of this device takes.
func (g *gpuState) shareBytes(c *class) int64 {
	if c.gpuMem > 0 {
		return c.gpuMem
	}
	// usable × share ÷ 1000 without the product overflowing.
	return g.usable/wholeShare*c.share + g.usable%wholeShare*c.share/wholeShare
}

// shares is how many shares of the class the device has room for.
func (g *gpuState) shares(c *class, limit int64) int64 {
	if !g.healthy {
		return 0
	}
	n := min(limit, g.share/c.share)
	if b := g.shareBytes(c); b > 0 {
		n = min(n, g.free/b)
	}
	return n
}

// count is how many bundles of one class the node holds beside what it holds now, at
// most limit. It is exact: bundles of one class differ in nothing.
func (n *nodeState) count(c *class, limit int64) int64 {
	k := limit
	if c.cpu > 0 {
		k = min(k, n.cpu/c.cpu)
	}
	if c.mem > 0 {
		k = min(k, n.mem/c.mem)
	}
	switch {
	case c.gpus > 0:
		var devices int64
		for d := range n.gpus {
			if g := &n.gpus[d]; g.untouched() && g.usable >= c.gpuMem {
				devices++
			}
		}
		k = min(k, devices/c.gpus)
	case c.share > 0:
		var shares int64
		for d := range n.gpus {
			if shares >= k {
				break
			}
			shares += n.gpus[d].shares(c, k)
		}
		k = min(k, shares)
	}
	return max(0, k)
}

// take gives one bundle of the class its resources and returns its devices by index:
// whole devices with the lowest index first, a share on the device that it fills best.
// ok is false, and nothing is taken, when it does not fit.
func (n *nodeState) take(c *class) (devices []int, ok bool) {
	if n.count(c, 1) < 1 {
		return nil, false
	}
	n.cpu -= c.cpu
	n.mem -= c.mem
	switch {
	case c.gpus > 0:
		for d := range n.gpus {
			if g := &n.gpus[d]; int64(len(devices)) < c.gpus && g.untouched() && g.usable >= c.gpuMem {
				g.share, g.free = 0, 0
				devices = append(devices, d)
			}
		}
	case c.share > 0:
		best := -1
		for d := range n.gpus {
			if n.gpus[d].shares(c, 1) < 1 {
				continue
			}
			if best < 0 || fuller(&n.gpus[d], &n.gpus[best]) {
				best = d
			}
		}
		n.gpus[best].takeShare(c)
		devices = []int{best}
	}
	return devices, true
}

func (g *gpuState) takeShare(c *class) {
	g.free -= g.shareBytes(c)
	g.share -= c.share
}

// fuller orders devices for shares: the one with least left first, which keeps whole
// devices whole.
func fuller(a, b *gpuState) bool {
	return cmp.Or(cmp.Compare(a.share, b.share), cmp.Compare(a.free, b.free)) < 0
}

// commit takes the spots of a whole gang out of the overlay and names them.
func (o *overlay) commit(spots []spot) []api.Placed {
	out := make([]api.Placed, len(spots))
	for i, sp := range spots {
		n := &o.nodes[sp.node]
		n.cpu -= sp.class.cpu
		n.mem -= sp.class.mem
		out[i] = api.Placed{Bundle: int64(i), Node: n.id}
		for _, d := range sp.devices {
			g := &n.gpus[d]
			if sp.class.gpus > 0 {
				g.share, g.free = 0, 0
			} else {
				g.takeShare(sp.class)
			}
			out[i].Devices = append(out[i].Devices, g.uuid)
		}
	}
	return out
}

// naturalCompare orders names the way people number machines: n2 before n10.
func naturalCompare(a, b string) int {
	for a != "" && b != "" {
		da, db := digits(a), digits(b)
		if da > 0 && db > 0 {
			x, y := trimZeros(a[:da]), trimZeros(b[:db])
			if c := cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)); c != 0 {
				return c
			}
			a, b = a[da:], b[db:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

func trimZeros(s string) string {
	for len(s) > 1 && s[0] == '0' {
		s = s[1:]
	}
	return s
}
