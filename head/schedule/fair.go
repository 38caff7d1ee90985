package schedule

import (
	"cmp"
	"math/bits"
	"slices"
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

// entryOf is the entry of what uses so many thousandths a second.
func entryOf(rate int64) int64 { return satMul(rate, int64(entry/time.Second)) }

// portion is a tenant, a queue or a user among its siblings: the one that has used least of
// its part has the next turn.
type portion struct {
	parent  *portion
	kids    map[string]*portion
	weight  int64
	account *account // nil: a user, or what a tenant has without a queue
	at      int      // its number
}

// shares is the tree by which turns are given. It only grows, so that those who look at a
// portion and what is above it need not care.
type shares struct {
	f      *frame
	policy string
	all    []*portion
	leaves map[[3]string]*portion
}

func newShares(f *frame, policy string) *shares {
	t := &shares{f: f, policy: policy, leaves: map[[3]string]*portion{}}
	t.add(nil)
	return t
}

func (t *shares) add(parent *portion) *portion {
	n := &portion{parent: parent, weight: 1, at: len(t.all)}
	t.all = append(t.all, n)
	return n
}

func (t *shares) kid(n *portion, name string) *portion {
	k := n.kids[name]
	if k == nil {
		if n.kids == nil {
			n.kids = map[string]*portion{}
		}
		k = t.add(n)
		n.kids[name] = k
	}
	return k
}

// leaf is where the requests of a user wait: below the queue, or below the tenant itself
// as if it had a queue without a name.
func (t *shares) leaf(tenant, queue, user string) *portion {
	key := [3]string{tenant, queue, user}
	if n := t.leaves[key]; n != nil {
		return n
	}
	a := t.f.of(tenant, queue)
	n := t.all[0]
	for _, part := range [][]*account{a.path[:a.shared], a.path[a.shared:]} {
		for _, x := range slices.Backward(part) {
			n = t.below(n, x)
		}
	}
	order := ""
	for _, q := range a.path {
		if order = q.q.Order; order != "" {
			break
		}
	}
	if n = t.kid(n, ""); cmp.Or(order, t.policy, OrderFair) == OrderFair {
		n = t.kid(n, "user "+user)
	}
	t.leaves[key] = n
	return n
}

func (t *shares) below(n *portion, a *account) *portion {
	k := t.kid(n, "of "+a.q.Name)
	if k.account == nil {
		if k.account = a; a.q.Weight != nil {
			k.weight = max(0, *a.q.Weight)
		}
	}
	return k
}

// use is what each portion has used before any turn is given: decayed use, and the entries
// of what runs.
func (t *shares) use(entries []int64, used map[string]int64) []int64 {
	out := make([]int64, len(t.all))
	for i, n := range t.all {
		if i < len(entries) {
			out[i] = entries[i]
		}
		if n.account != nil {
			out[i] = satAdd(out[i], max(0, used[n.account.q.Name]))
		}
	}
	return out
}

// compareUse compares use ÷ weight exactly; who has no weight comes last.
func compareUse(a, weightA, b, weightB int64) int {
	if weightA == weightB {
		return cmp.Compare(a, b)
	}
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

// merging gives the requests of strata their turns, one stratum after the other. There are
// many, so that all of it is numbers.
type merging struct {
	nodes []merged // one for each portion; the root is the first
	from  []queued // the stratum
	all   []*entrant
	list  []*Request // the same
}

// merged is a portion while turns are given: what it has used with those, the waiting of a
// leaf, the kids that have some, in a heap, and which is next.
type merged struct {
	use, weight int64
	parent      int32   // by number, as kids are; none: it is the root
	line        []int32 // of the stratum
	waiting     []int32
	next        int32 // of the stratum; none: nothing waits
	listed      bool
}

// begin makes room for a merge.
func (m *merging) begin(t *shares, use []int64, requests int) {
	if len(m.nodes) < len(t.all) {
		m.nodes = make([]merged, len(t.all)+len(t.all)/4)
	}
	for i, p := range t.all {
		n := &m.nodes[i]
		if n.use, n.weight, n.parent = use[i], p.weight, none; p.parent != nil {
			n.parent = int32(p.parent.at)
		}
	}
	m.all, m.list = make([]*entrant, 0, requests), make([]*Request, 0, requests)
}

func (m *merging) give(q *queued) { m.all, m.list = append(m.all, q.e), append(m.list, q.r) }

// stratum appends the requests of one stratum, given in the order of turns, so that at each
// step the portion that has used least gives its next one, and is charged its entry.
func (m *merging) stratum(list []queued) {
	m.from = list
	defer func() { m.from = nil }()
	if len(list) == 1 || list[0].overdue > 0 {
		for i := range list {
			q := &list[i]
			for at := int32(q.leaf); at != none; at = m.nodes[at].parent {
				m.nodes[at].use = satAdd(m.nodes[at].use, q.entry)
			}
			m.give(q)
		}
		return
	}
	for i := range list {
		at := int32(list[i].leaf)
		m.nodes[at].line = append(m.nodes[at].line, int32(i))
		for n := &m.nodes[at]; n.parent != none && !n.listed; n = &m.nodes[at] {
			n.listed = true
			m.nodes[n.parent].waiting = append(m.nodes[n.parent].waiting, at)
			at = n.parent
		}
	}
	m.settle(0)
	for range list {
		at := int32(0)
		for len(m.nodes[at].waiting) > 0 {
			at = m.nodes[at].waiting[0]
		}
		n := &m.nodes[at]
		q := &list[n.line[0]]
		n.line = n.line[1:]
		m.give(q)
		for ; at != none; at = m.nodes[at].parent {
			m.nodes[at].use = satAdd(m.nodes[at].use, q.entry)
			m.promote(at)
		}
	}
}

// settle makes heaps of what waits.
func (m *merging) settle(at int32) {
	n := &m.nodes[at]
	for _, k := range n.waiting {
		m.settle(k)
	}
	for i := len(n.waiting)/2 - 1; i >= 0; i-- {
		m.sink(n.waiting, i)
	}
	m.pick(n)
}

func (m *merging) pick(n *merged) {
	switch {
	case len(n.waiting) > 0:
		n.next = m.nodes[n.waiting[0]].next
	case len(n.line) > 0:
		n.next = n.line[0]
	default:
		n.next, n.line = none, n.line[:0]
	}
}

// promote puts a node right after the first of it was taken, below its parent, where it
// was the first.
func (m *merging) promote(at int32) {
	n := &m.nodes[at]
	m.pick(n)
	if n.parent == none {
		return
	}
	parent := &m.nodes[n.parent]
	if n.next == none {
		n.listed = false
		last := len(parent.waiting) - 1
		parent.waiting[0] = parent.waiting[last]
		parent.waiting = parent.waiting[:last]
	}
	m.sink(parent.waiting, 0)
}

// sink puts an element of a heap right that may be too far up.
func (m *merging) sink(heap []int32, i int) {
	for {
		k := 2*i + 1
		if k >= len(heap) {
			return
		}
		if k+1 < len(heap) && m.before(heap[k+1], heap[k]) {
			k++
		}
		if !m.before(heap[k], heap[i]) {
			return
		}
		heap[i], heap[k] = heap[k], heap[i]
		i = k
	}
}

// before: by use, then by whose next request has its turn first.
func (m *merging) before(a, b int32) bool {
	x, y := &m.nodes[a], &m.nodes[b]
	if c := compareUse(x.use, x.weight, y.use, y.weight); c != 0 {
		return c < 0
	}
	return byTurn(m.from[x.next].e, m.from[y.next].e) < 0
}

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
