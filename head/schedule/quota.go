package schedule

import (
	"slices"
	"strings"
	"sync"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Names of what quotas count beside capacities.
const (
	ofGPU    = "gpu"    // thousandths of devices
	ofModel  = "gpu:"   // + model: of one class of the same devices
	ofCPU    = "cpu"    // thousandths
	ofMemory = "memory" // bytes
)

// unlimited stands for a quantity that is not given.
const unlimited = -1

// account is a tenant or queue of the tree. Quantities are by number of the thing, see
// frame.things. What is charged to it stands in quotas.
type account struct {
	q          *api.Queue
	parent     *account
	at         int     // where its quantities begin
	guaranteed []int64 // unlimited: not limited by it
	limit      []int64 // unlimited: none
	keep       []int64 // of what is guaranteed, what is not lent
}

// called is the account for people.
func (a *account) called() string {
	if a.q.Tenant {
		return "tenant " + a.q.Name
	}
	return "queue " + a.q.Name
}

// charging is what the requests of one tenant and queue are charged to.
type charging struct {
	path   []*account // from the narrowest to the widest
	shared int        // so many of them are queues of nobody's, the rest the tenant and above
	wrong  error      // why they cannot be charged
}

// frame is a tree of tenants and queues as quotas look at it. Nothing of it changes, but
// that it remembers who is charged where.
type frame struct {
	list   []*api.Queue
	tree   *api.Tree
	byName map[string]*account
	all    []*account // the deepest first
	things []string   // that any quota names, in order
	typed  bool       // a quota names a class of devices
	keeps  bool       // something is not lent

	mu    sync.Mutex
	paths map[[2]string]*charging
	held  map[*Holder][]int64 // see heldBy
}

// quotas is the tree in one cycle, with what is charged to it: the sum of what groups hold,
// those of children included (P8). What is placed in it is charged at once, so no two
// requests get the same room.
type quotas struct {
	*frame
	s *Snapshot
	// holders are those of the snapshot, and later what the cycle placed.
	holders []*Holder
	charges
	room []int64 // free and kept by nobody; only where something is not lent
	// later is how it will be once those that leave for claims have left: what they use of what
	// is not lent is then kept again. nil: the same as now.
	later *quotas
	nodes map[string]*Node
}

// charges are what is charged, all accounts after each other.
type charges struct {
	used    []int64
	assured []int64 // of used, by work that is not preemptible
	own     []int64 // see lend.go
}

func newQuotas(s *Snapshot) *quotas { return (&books{}).open(s) }

func newFrame(list []*api.Queue) *frame {
	f := &frame{list: slices.Clone(list), tree: api.NewTree(list), byName: map[string]*account{}, paths: map[[2]string]*charging{}}
	for _, x := range list {
		for _, given := range []api.Amounts{x.Guaranteed, x.Limit} {
			for _, a := range given {
				f.things = append(f.things, a.Of)
			}
		}
	}
	if f.typed = slices.ContainsFunc(f.things, func(of string) bool { return strings.HasPrefix(of, ofModel) }); f.typed {
		f.things = append(f.things, ofGPU) // what is asked for of a class is known from that
	}
	slices.Sort(f.things)
	f.things = slices.Compact(f.things)
	for _, x := range list {
		f.byName[x.Name] = f.newAccount(x)
	}
	for _, a := range f.byName {
		if !f.circular(a.q) {
			a.parent = f.byName[a.q.Parent]
		}
	}
	f.all = f.deepestFirst()
	for i, a := range f.all {
		a.at = i * len(f.things)
	}
	return f
}

func (f *frame) newAccount(x *api.Queue) *account {
	n := len(f.things)
	block := make([]int64, 3*n)
	part := func(i int) []int64 { return block[i*n : (i+1)*n : (i+1)*n] }
	a := &account{q: x, guaranteed: part(0), limit: part(1), keep: part(2)}
	for i, of := range f.things {
		a.guaranteed[i], a.limit[i] = unlimited, unlimited
		if g, ok := x.Guaranteed.Get(of); ok {
			a.guaranteed[i] = max(0, g)
			if lend, ok := x.Lend.Get(of); ok && onNodes(of) {
				a.keep[i] = max(0, a.guaranteed[i]-max(0, lend))
				f.keeps = f.keeps || a.keep[i] > 0
			}
		}
		if l, ok := x.Limit.Get(of); ok {
			a.limit[i] = max(0, l)
		}
	}
	return a
}

// circular: the way up never ends, in a tree that nobody checked.
func (q *frame) circular(x *api.Queue) bool {
	steps := 0
	for a := q.byName[x.Parent]; a != nil; a = q.byName[a.q.Parent] {
		if steps++; steps > len(q.byName) {
			return true
		}
	}
	return false
}

// of is what requests of a tenant and queue are charged to.
func (q *frame) of(tenant, queue string) *charging {
	q.mu.Lock()
	defer q.mu.Unlock()
	key := [2]string{tenant, queue}
	if c := q.paths[key]; c != nil {
		return c
	}
	c := &charging{}
	q.paths[key] = c
	path, err := q.tree.Path(tenant, queue)
	if err != nil {
		c.wrong = err
		return c
	}
	for _, x := range path {
		c.path = append(c.path, q.byName[x.Name])
	}
	if len(path) > 0 && !path[0].Tenant {
		owned := slices.IndexFunc(path, func(x *api.Queue) bool { return x.Tenant })
		if owned > 0 && path[owned-1].Parent != path[owned].Name {
			c.shared = owned
		}
	}
	return c
}

// priority is what a request's own counts, within what its queue allows.
func (q *frame) priority(c *charging, wanted int64) int64 {
	if len(c.path) == 0 {
		return wanted
	}
	most := int64(defaultMaxPriority)
	for _, a := range c.path {
		if a.q.MaxPriority != nil {
			most = *a.q.MaxPriority
			break
		}
	}
	return min(wanted, most)
}

// needs is an amount by number of the thing. Which class of devices a request gets is
// known once it is placed.
func (q *frame) needs(a amount, uses api.Amounts, bundles int64) []int64 {
	out := make([]int64, len(q.things))
	for i, of := range q.things {
		switch of {
		case ofGPU:
			out[i] = satAdd(satMul(a.gpus, wholeShare), a.share)
		case ofCPU:
			out[i] = a.cpu
		case ofMemory:
			out[i] = a.mem
		default:
			n, _ := uses.Get(of)
			out[i] = satMul(max(0, n), bundles)
		}
	}
	return out
}

// heldBy is what a holder has, by number of the thing; it is not to be changed.
func (q *quotas) heldBy(h *Holder) []int64 {
	if q.typed { // nodes may tell something else of their devices by now
		out := q.needs(h.holds(), h.Spec.Uses, int64(len(h.Bundles)))
		for i := range h.Bundles {
			b := &h.Bundles[i]
			q.classify(out, b.Node, b.Devices, b.Share)
		}
		return out
	}
	q.mu.Lock()
	out := q.held[h]
	q.mu.Unlock()
	if out != nil {
		return out
	}
	out = q.needs(h.holds(), h.Spec.Uses, int64(len(h.Bundles)))
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held == nil || len(q.held) > 2*len(q.s.Holders)+64 {
		q.held = map[*Holder][]int64{}
	}
	q.held[h] = out
	return out
}

// classify counts the devices of a bundle in their classes, beside their number in all:
// one physical device counts once in each.
func (q *quotas) classify(into []int64, node string, devices []string, share int64) {
	n := q.node(node)
	if n == nil {
		return
	}
	if share <= 0 {
		share = wholeShare
	}
	for _, uuid := range devices {
		d := slices.IndexFunc(n.GPUs, func(g GPU) bool { return g.UUID == uuid })
		if d < 0 {
			continue
		}
		if i, ok := slices.BinarySearch(q.things, ofModel+n.GPUs[d].Model); ok {
			into[i] = satAdd(into[i], share)
		}
	}
}

// classifySpot is classify for a bundle that is about to be placed.
func (q *frame) classifySpot(into []int64, n *nodeState, s spot) {
	each := int64(wholeShare)
	if s.class.share > 0 {
		each = s.class.share
	}
	for _, d := range s.devices {
		if i, ok := slices.BinarySearch(q.things, ofModel+n.gpus[d].model); ok {
			into[i] = satAdd(into[i], each)
		}
	}
}

func (q *quotas) node(id string) *Node {
	if q.nodes == nil {
		q.nodes = make(map[string]*Node, len(q.s.Nodes))
		for _, n := range q.s.Nodes {
			q.nodes[n.ID] = n
		}
	}
	return q.nodes[id]
}

// add charges the way to the root.
func (q *quotas) add(c *charging, needs []int64, preemptible bool) {
	for _, a := range c.path {
		for i, n := range needs {
			q.used[a.at+i] = satAdd(q.used[a.at+i], n)
			if !preemptible {
				q.assured[a.at+i] = satAdd(q.assured[a.at+i], n)
			}
		}
	}
}

// charge is what a placement takes; the next admit sees it.
func (q *quotas) charge(r *Request, needs []int64) {
	c := q.of(r.Spec.Tenant, r.Spec.Queue)
	q.add(c, needs, r.Spec.Preemptible)
	if q.keeps {
		for i, n := range needs {
			q.room[i] -= q.claim(c, i, n)
		}
	}
	if q.later != nil {
		q.later.charge(r, needs)
	}
}

// hold charges what a holder has, whose room is not in what is free.
func (q *quotas) hold(c *charging, needs []int64, preemptible bool) {
	q.add(c, needs, preemptible)
	if q.keeps {
		for i, n := range needs {
			q.room[i] += n - q.claim(c, i, n)
		}
	}
}

// unhold is the reverse of hold.
func (q *quotas) unhold(c *charging, needs []int64, preemptible bool) {
	for _, a := range c.path {
		for i, n := range needs {
			q.used[a.at+i] -= n
			if !preemptible {
				q.assured[a.at+i] -= n
			}
		}
	}
	if q.keeps {
		for i, n := range needs {
			q.room[i] -= n - q.unclaim(c, i, n)
		}
	}
}

// lift takes what a holder is charged out of the tree, as if it had left its nodes, and
// puts it back.
func (q *quotas) lift(h *Holder) (back func()) {
	c, needs := q.of(h.Spec.Tenant, h.Spec.Queue), q.heldBy(h)
	room := slices.Clone(q.room)
	q.unhold(c, needs, h.Spec.Preemptible)
	if q.keeps {
		for i, n := range needs {
			q.room[i] += n
		}
	}
	return func() {
		q.hold(c, needs, h.Spec.Preemptible)
		copy(q.room, room)
	}
}
