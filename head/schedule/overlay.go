package schedule

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// overlay is what is free on every node, as this cycle sees it. The state of a node is
// never changed in place: set puts another one there, so a copy of an overlay is a copy of
// pointers, and what was tried can be taken back.
type overlay struct {
	nodes []*nodeState // in natural order of names: rank order follows it
	topo  *topology    // nil: no levels
	links *linkState   // nil: links are not checked
	mix   *mix         // nil: nothing is known of what is asked for
	// allowed is the number of what the mix allows on each node, from 1; 0: it was not asked for.
	allowed []int32
	idx     *index
	log     []change
	tried   nodeState // see copyOf
	taken   []int     // devices of it
	// version counts changes, grown those that may have made room.
	version, grown uint64
}

// change is one node's state before it was set.
type change struct {
	ni  int
	old *nodeState
}

// nodeState is one node's free capacity. It is copied, with its devices, to try
// something out.
type nodeState struct {
	id, name, pool string
	labels         map[string]string
	ready          bool
	why            string
	held           string // the group that has the whole node; "" for none
	cpu, mem       int64
	capCPU, capMem int64
	gpus           []gpuState
	sick           bool  // a device is not healthy
	limit          int64 // bundles that it may hold in all; 0: what fits
}

// wholeShare is one device in thousandths.
const wholeShare = 1000

// newOverlay looks at nodes alone.
func newOverlay(nodes []*Node) *overlay {
	o := &overlay{nodes: make([]*nodeState, 0, len(nodes)), idx: &index{}}
	for _, n := range nodes {
		o.nodes = append(o.nodes, stateOf(n))
	}
	slices.SortStableFunc(o.nodes, func(a, b *nodeState) int {
		return cmp.Or(naturalCompare(a.name, b.name), cmp.Compare(a.id, b.id))
	})
	return o
}

// overlayOf is the whole of a snapshot: nodes, whole nodes in use, levels, links, mix.
func overlayOf(s *Snapshot, now time.Time) *overlay {
	var m memory
	return m.overlay(s, now)
}

func stateOf(n *Node) *nodeState {
	st := &nodeState{
		id: n.ID, name: n.Name, pool: n.Pool, labels: n.Labels, ready: n.Ready, why: n.Why,
		// A node that is over its capacity has nothing free; it never has less.
		cpu: max(0, int64(n.FreeCPU)), mem: max(0, int64(n.FreeMemory)),
		capCPU: max(0, int64(n.CPU)), capMem: max(0, int64(n.Memory)),
	}
	if st.name == "" {
		st.name = n.ID
	}
	if len(n.GPUs) > 0 {
		st.gpus = make([]gpuState, len(n.GPUs))
	}
	devices := make([]device, len(n.GPUs))
	for i, g := range n.GPUs {
		devices[i] = device{uuid: g.UUID, model: g.Model, why: g.Why}
		st.gpus[i] = gpuState{
			device: &devices[i], usable: max(0, int64(g.Usable)), free: max(0, int64(g.Free)),
			share: min(max(0, g.Share), wholeShare), healthy: g.Healthy,
		}
		st.sick = st.sick || !g.Healthy
	}
	return st
}

// emptied is the same cluster with nothing held and everything well: what it could
// ever hold.
func emptied(nodes []*Node, levels []api.Level) *overlay {
	o := newOverlay(nodes)
	for _, n := range o.nodes {
		n.ready, n.sick = true, false
		n.cpu, n.mem = n.capCPU, n.capMem
		for d := range n.gpus {
			g := &n.gpus[d]
			g.free, g.share, g.healthy = g.usable, wholeShare, true
		}
	}
	o.topo = newTopology(levels, o.nodes)
	return o
}

// clone is a copy that remembers nothing of how it came about.
func (o *overlay) clone() *overlay {
	return &overlay{nodes: slices.Clone(o.nodes), topo: o.topo, links: o.links, mix: o.mix, idx: &index{}}
}

// copyOf is a copy of a node's state to try something out on, until the next one is asked for.
func (o *overlay) copyOf(ni int) *nodeState {
	gpus := o.tried.gpus
	o.tried = *o.nodes[ni]
	o.tried.gpus = append(gpus[:0], o.tried.gpus...)
	return &o.tried
}

func (n *nodeState) clone() *nodeState {
	c := *n
	c.gpus = slices.Clone(n.gpus)
	return &c
}

// set puts another state of a node in place.
func (o *overlay) set(ni int, n *nodeState) {
	old := o.nodes[ni]
	o.log = append(o.log, change{ni, old})
	o.nodes[ni] = n
	o.version++
	if n.roomier(old) {
		o.grown++
	}
	o.idx.touch(ni)
}

// mark and back take back what was set since.
func (o *overlay) mark() int { return len(o.log) }

func (o *overlay) back(mark int) {
	for i := len(o.log) - 1; i >= mark; i-- {
		c := o.log[i]
		o.nodes[c.ni] = c.old
		o.idx.touch(c.ni)
	}
	if len(o.log) > mark {
		o.version++
		o.grown++
	}
	o.log = o.log[:mark]
}

// roomier reports whether a node may hold something that it did not hold before.
func (n *nodeState) roomier(old *nodeState) bool {
	if n.ready && !old.ready || n.held == "" && old.held != "" || n.cpu > old.cpu || n.mem > old.mem ||
		n.pool != old.pool || n.capCPU != old.capCPU || n.capMem != old.capMem || len(n.gpus) != len(old.gpus) ||
		!sameLabels(n.labels, old.labels) {
		return true
	}
	for d := range n.gpus {
		g, was := &n.gpus[d], &old.gpus[d]
		if g.free > was.free || g.share > was.share || g.healthy && !was.healthy || g.usable != was.usable || g.model != was.model {
			return true
		}
	}
	return false
}

// same reports whether two states differ in nothing that a decision depends on.
func (n *nodeState) same(m *nodeState) bool {
	return n.id == m.id && n.name == m.name && n.pool == m.pool && n.ready == m.ready && n.why == m.why && n.held == m.held &&
		n.cpu == m.cpu && n.mem == m.mem && n.capCPU == m.capCPU && n.capMem == m.capMem &&
		slices.EqualFunc(n.gpus, m.gpus, func(a, b gpuState) bool { return a.same(&b) }) && sameLabels(n.labels, m.labels)
}

// idle reports whether the whole node is there for the taking: nothing of it is held and
// every device is well.
func (n *nodeState) idle() bool {
	if n.cpu < n.capCPU || n.mem < n.capMem {
		return false
	}
	for d := range n.gpus {
		if !n.gpus[d].untouched() {
			return false
		}
	}
	return true
}

// count is how many bundles of one class the node holds beside what it holds now, at
// most limit. It is exact: bundles of one class differ in nothing.
func (n *nodeState) count(c *class, limit int64) int64 {
	k := limit
	if n.limit > 0 {
		k = min(k, n.limit)
	}
	if c.cpu > 0 {
		k = min(k, n.cpu/c.cpu)
	}
	if c.mem > 0 {
		k = min(k, n.mem/c.mem)
	}
	switch {
	case k <= 0:
		return 0
	case c.gpus > 0:
		var devices int64
		for d := range n.gpus {
			if g := &n.gpus[d]; g.untouched() && g.suits(c) {
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

// takeFor gives one bundle of the class its resources and adds its devices by index: whole
// devices with the lowest index first, a share on the device that it fills best for a mix of
// what is expected next; nil: by size alone. ok is false, and nothing is taken, when it does
// not fit.
func (n *nodeState) takeFor(c *class, m *mix, allows []bool, devices []int) (_ []int, ok bool) {
	if n.count(c, 1) < 1 {
		return devices, false
	}
	n.cpu -= c.cpu
	n.mem -= c.mem
	switch {
	case c.gpus > 0:
		left := c.gpus
		for d := range n.gpus {
			if g := &n.gpus[d]; left > 0 && g.untouched() && g.suits(c) {
				g.share, g.free = 0, 0
				devices = append(devices, d)
				left--
			}
		}
	case c.share > 0:
		best := n.shareDevice(c, m, allows)
		n.gpus[best].takeShare(c)
		devices = append(devices, best)
	}
	return devices, true
}

// commit takes the spots of a whole gang out of the overlay and names them. chosen are the
// bundles that the spots are for; nil: all, in order.
func (o *overlay) commit(group string, spots []spot, chosen []int64) []api.Placed {
	out := make([]api.Placed, len(spots))
	at, n := -1, (*nodeState)(nil)
	for i, sp := range spots {
		if sp.node != at {
			if n != nil {
				o.set(at, n)
			}
			at, n = sp.node, o.nodes[sp.node].clone()
		}
		n.cpu -= sp.class.cpu
		n.mem -= sp.class.mem
		if sp.class.whole {
			n.held = cmp.Or(group, "another group")
		}
		out[i] = api.Placed{Bundle: int64(i), Node: n.id}
		if chosen != nil {
			out[i].Bundle = chosen[i]
		}
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
	if n != nil {
		o.set(at, n)
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

func sameLabels(a, b map[string]string) bool { return len(a) == len(b) && maps.Equal(a, b) }
