package schedule

import (
	"cmp"
	"container/heap"
	"math/bits"
	"time"
)

// entry is the use that a start costs at once, as if it had run for so long: many requests
// at one moment would else all look as if nobody had used anything. What runs counts so as
// well, beside its decayed use.
const entry = time.Hour

// coresOfDevice is how many cores count as much as one device, in work without devices.
const coresOfDevice = 32

// useRate is what a second of an amount counts in fair use: thousandths of devices, and of
// cores where there are none.
func useRate(a amount) int64 {
	if gpus := satAdd(satMul(a.gpus, wholeShare), a.share); gpus > 0 {
		return gpus
	}
	return max(1, a.cpu/coresOfDevice)
}

// portion is a tenant, a queue or a user among its siblings: the one that has used least of
// its part has the next turn.
type portion struct {
	parent *portion
	kids   map[string]*portion
	weight int64
	used   int64 // decayed use and entries
	had    int64 // used, before any turn was given
	// While a stratum is merged: the waiting of a leaf, the kids that have some, and which
	// is next.
	line    []*entrant
	waiting kidHeap
	next    *entrant
	listed  bool
}

func newPortion(parent *portion) *portion { return &portion{parent: parent, weight: 1} }

func (n *portion) kid(name string) *portion {
	k := n.kids[name]
	if k == nil {
		if n.kids == nil {
			n.kids = map[string]*portion{}
		}
		k = newPortion(n)
		n.kids[name] = k
	}
	return k
}

// portions is the tree by which turns are given.
type portions struct {
	root   *portion
	q      *quotas
	policy string
	used   map[string]int64
	leaves map[[3]string]*portion
}

func newPortions(s *Snapshot, q *quotas) *portions {
	t := &portions{root: newPortion(nil), q: q, policy: s.Policy.Order, leaves: map[[3]string]*portion{}}
	if s.Queues != nil {
		t.used = s.Queues.Used
	}
	for _, h := range s.Holders {
		if h.Spec == nil || h.Releasing {
			continue
		}
		n := t.leaf(h.Spec.Tenant, h.Spec.Queue, h.User)
		n.charge(useRate(h.holds()))
	}
	return t
}

func (t *portions) leafOf(r *Request) *portion { return t.leaf(r.Spec.Tenant, r.Spec.Queue, r.User) }

// leaf is where the requests of a user wait: below the queue, or below the tenant itself
// as if it had a queue without a name.
func (t *portions) leaf(tenant, queue, user string) *portion {
	key := [3]string{tenant, queue, user}
	if n := t.leaves[key]; n != nil {
		return n
	}
	a := t.q.of(tenant, queue)
	n := t.root
	for _, part := range [][]*account{a.path[:a.shared], a.path[a.shared:]} {
		for i := len(part) - 1; i >= 0; i-- {
			n = t.below(n, part[i])
		}
	}
	order := ""
	for _, q := range a.path {
		if order = q.q.Order; order != "" {
			break
		}
	}
	if n = n.kid(""); cmp.Or(order, t.policy, OrderFair) == OrderFair {
		n = n.kid("user " + user)
	}
	t.leaves[key] = n
	return n
}

func (t *portions) below(n *portion, a *account) *portion {
	name := "of " + a.q.Name
	if k := n.kids[name]; k != nil {
		return k
	}
	k := n.kid(name)
	k.used = max(0, t.used[a.q.Name])
	if a.q.Weight != nil {
		k.weight = max(0, *a.q.Weight)
	}
	return k
}

// begin remembers the use before turns are given.
func (n *portion) begin() {
	n.had = n.used
	for _, k := range n.kids {
		k.begin()
	}
}

// charge is the entry of what uses so many thousandths a second.
func (n *portion) charge(rate int64) {
	use := satMul(rate, int64(entry/time.Second))
	for ; n != nil; n = n.parent {
		n.used = satAdd(n.used, use)
	}
}

// compareUse compares use ÷ weight exactly; who has no weight comes last.
func compareUse(a, weightA, b, weightB int64) int {
	if (weightA == 0) != (weightB == 0) {
		return yesFirst(weightA != 0, weightB != 0)
	}
	if weightA == 0 {
		weightA, weightB = 1, 1
	}
	hiA, loA := bits.Mul64(uint64(a), uint64(weightB))
	hiB, loB := bits.Mul64(uint64(b), uint64(weightA))
	return cmp.Or(cmp.Compare(hiA, hiB), cmp.Compare(loA, loB))
}

// parted is where the ways to two leaves part.
func parted(a, b *portion) (x, y *portion) {
	above := func(n *portion) (out []*portion) {
		for ; n != nil; n = n.parent {
			out = append(out, n)
		}
		return out
	}
	as, bs := above(a), above(b)
	for i, j := len(as)-1, len(bs)-1; i >= 0 && j >= 0; i, j = i-1, j-1 {
		if as[i] != bs[j] {
			return as[i], bs[j]
		}
	}
	return a, b
}

// merge appends the requests of one stratum, given in the order of turns, so that at each
// step the portion that has used least gives its next one, and is charged its entry.
func (t *portions) merge(stratum []*entrant, into []*entrant) []*entrant {
	if len(stratum) == 1 || stratum[0].overdue > 0 {
		for _, c := range stratum {
			c.leaf.charge(c.rate)
			into = append(into, c)
		}
		return into
	}
	for _, c := range stratum {
		c.leaf.line = append(c.leaf.line, c)
		for n := c.leaf; n.parent != nil && !n.listed; n = n.parent {
			n.listed = true
			n.parent.waiting = append(n.parent.waiting, n)
		}
	}
	t.root.settle()
	for range stratum {
		n := t.root
		for len(n.waiting) > 0 {
			n = n.waiting[0]
		}
		c := n.line[0]
		n.line = n.line[1:]
		n.charge(c.rate)
		into = append(into, c)
		for ; n != nil; n = n.parent {
			n.promote()
		}
	}
	return into
}

// settle finds the next of each node from the leaves up.
func (n *portion) settle() {
	for _, k := range n.waiting {
		k.settle()
	}
	heap.Init(&n.waiting)
	n.pick()
}

func (n *portion) pick() {
	switch {
	case len(n.waiting) > 0:
		n.next = n.waiting[0].next
	case len(n.line) > 0:
		n.next = n.line[0]
	default:
		n.next, n.line = nil, nil
	}
}

// promote puts a node right after the first of it was taken, below its parent, where it
// was the first.
func (n *portion) promote() {
	n.pick()
	switch {
	case n.parent == nil:
	case n.next == nil:
		n.listed = false
		heap.Pop(&n.parent.waiting)
	default:
		heap.Fix(&n.parent.waiting, 0)
	}
}

// kidHeap is ordered by use, then by whose next request has its turn first.
type kidHeap []*portion

func (h kidHeap) Len() int      { return len(h) }
func (h kidHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h kidHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	return cmp.Or(compareUse(a.used, a.weight, b.used, b.weight), byTurn(a.next, b.next)) < 0
}
func (h *kidHeap) Push(x any) { *h = append(*h, x.(*portion)) }
func (h *kidHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

var _ heap.Interface = (*kidHeap)(nil)

// holds is what a holder has of everything that is counted.
func (h *Holder) holds() amount {
	a := amount{gpus: max(0, h.GPUs), cpu: max(0, int64(h.CPU)), mem: max(0, int64(h.Memory))}
	for i := range h.Bundles {
		if s := h.Bundles[i].Share; s > 0 {
			a.share = satAdd(a.share, s)
		}
	}
	return a
}
