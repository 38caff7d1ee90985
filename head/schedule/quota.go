package schedule

import (
	"slices"
	"strings"

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

// account is a tenant or queue of the tree, with what is charged to it: the sum of what
// its groups hold, those of its children included (P8). Quantities are by number of the
// thing, see quotas.things.
type account struct {
	q          *api.Queue
	parent     *account
	guaranteed []int64 // unlimited: not limited by it
	limit      []int64 // unlimited: none
	keep       []int64 // of what is guaranteed, what is not lent
	used       []int64
	assured    []int64 // of used, by work that is not preemptible
	own        []int64 // see lend.go
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

// quotas is the tree of tenants and queues in one cycle. What is placed in it is charged
// at once, so no two requests get the same room.
type quotas struct {
	s      *Snapshot
	tree   *api.Tree
	byName map[string]*account
	things []string // that any quota names, in order
	typed  bool     // a quota names a class of devices
	keeps  bool     // something is not lent
	paths  map[[2]string]*charging
	// holders are those of the snapshot, and later what the cycle placed.
	holders []*Holder
	room    []int64 // free and kept by nobody; only where something is not lent
	nodes   map[string]*Node
}

func newQuotas(s *Snapshot) *quotas {
	q := &quotas{s: s, byName: map[string]*account{}, paths: map[[2]string]*charging{}, holders: s.Holders}
	if s.Queues == nil {
		q.tree = api.NewTree(nil)
		return q
	}
	q.tree = api.NewTree(s.Queues.List)
	for _, x := range s.Queues.List {
		for _, list := range []api.Amounts{x.Guaranteed, x.Limit} {
			for _, a := range list {
				q.things = append(q.things, a.Of)
			}
		}
	}
	if q.typed = slices.ContainsFunc(q.things, func(of string) bool { return strings.HasPrefix(of, ofModel) }); q.typed {
		q.things = append(q.things, ofGPU) // what is asked for of a class is known from that
	}
	slices.Sort(q.things)
	q.things = slices.Compact(q.things)
	for _, x := range s.Queues.List {
		q.byName[x.Name] = q.newAccount(x)
	}
	for _, a := range q.byName {
		if !q.circular(a.q) {
			a.parent = q.byName[a.q.Parent]
		}
	}
	if q.keeps {
		q.reserve()
	}
	for _, h := range s.Holders {
		// What is being released is charged to nobody's quota: it cannot be used any more,
		// and a process that does not die must not hold up its tenant's next job. The node
		// counts it until it is proven gone.
		if h.Spec == nil || h.Releasing {
			continue
		}
		c, needs := q.of(h.Spec.Tenant, h.Spec.Queue), q.heldBy(h)
		q.add(c, needs, h.Spec.Preemptible)
		if q.keeps {
			for i, n := range needs {
				q.room[i] += n - q.claim(c, i, n)
			}
		}
	}
	return q
}

func (q *quotas) newAccount(x *api.Queue) *account {
	n := len(q.things)
	block := make([]int64, 6*n)
	part := func(i int) []int64 { return block[i*n : (i+1)*n : (i+1)*n] }
	a := &account{q: x, guaranteed: part(0), limit: part(1), keep: part(2), used: part(3), assured: part(4), own: part(5)}
	for i, of := range q.things {
		a.guaranteed[i], a.limit[i] = unlimited, unlimited
		if g, ok := x.Guaranteed.Get(of); ok {
			a.guaranteed[i] = max(0, g)
			if lend, ok := x.Lend.Get(of); ok && onNodes(of) {
				a.keep[i] = max(0, a.guaranteed[i]-max(0, lend))
				q.keeps = q.keeps || a.keep[i] > 0
			}
		}
		if l, ok := x.Limit.Get(of); ok {
			a.limit[i] = max(0, l)
		}
	}
	return a
}

// circular: the way up never ends, in a tree that nobody checked.
func (q *quotas) circular(x *api.Queue) bool {
	steps := 0
	for a := q.byName[x.Parent]; a != nil; a = q.byName[a.q.Parent] {
		if steps++; steps > len(q.byName) {
			return true
		}
	}
	return false
}

// of is what requests of a tenant and queue are charged to.
func (q *quotas) of(tenant, queue string) *charging {
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
func (q *quotas) priority(c *charging, wanted int64) int64 {
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
func (q *quotas) needs(a amount, uses api.Amounts, bundles int64) []int64 {
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

func (q *quotas) heldBy(h *Holder) []int64 {
	out := q.needs(h.holds(), h.Spec.Uses, int64(len(h.Bundles)))
	if q.typed {
		for i := range h.Bundles {
			b := &h.Bundles[i]
			q.classify(out, b.Node, b.Devices, b.Share)
		}
	}
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
func (q *quotas) classifySpot(into []int64, node string, s spot) {
	n := q.node(node)
	if n == nil {
		return
	}
	each := int64(wholeShare)
	if s.class.share > 0 {
		each = s.class.share
	}
	for _, d := range s.devices {
		if i, ok := slices.BinarySearch(q.things, ofModel+n.GPUs[d].Model); ok {
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
			a.used[i] = satAdd(a.used[i], n)
			if !preemptible {
				a.assured[i] = satAdd(a.assured[i], n)
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
}

// lift takes what a holder is charged out of the tree, and puts it back.
func (q *quotas) lift(h *Holder) (back func()) {
	c, needs := q.of(h.Spec.Tenant, h.Spec.Queue), q.heldBy(h)
	change := func(sign int64) {
		for _, a := range c.path {
			for i, n := range needs {
				a.used[i] += sign * n
				if !h.Spec.Preemptible {
					a.assured[i] += sign * n
				}
			}
		}
	}
	change(-1)
	return func() { change(1) }
}
