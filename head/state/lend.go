package state

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// What a tenant or queue is guaranteed and does not lend is kept free for it. The scheduler
// sees to that; here it is checked once more, since what was decided before others that are
// in the log by now may lend more together than each for itself. Work that may be preempted
// takes of what nobody keeps, and of what is kept on its own way.
//
// While anybody keeps anything, two more accounts follow the holds: what each queue or
// tenant was asked for directly, and what is held in all.
const (
	accountOwn  = "own/"
	accountHeld = "held"
)

// keeps is how much of a thing a tenant or queue does not lend.
func keeps(q *api.Queue, of string) int64 {
	guaranteed, ok := q.Guaranteed.Get(of)
	lent, some := q.Lend.Get(of)
	if !ok || !some || !ofNodes(of) {
		return 0
	}
	return max(0, max(0, guaranteed)-max(0, lent))
}

// ofNodes: nodes have it, and not a capacity.
func ofNodes(of string) bool {
	return of == "gpu" || of == "cpu" || of == "memory" || strings.HasPrefix(of, "gpu:")
}

// notLent are the things of which anybody keeps anything, in order.
func (v *View) notLent() []string {
	var out []string
	for _, q := range v.Queues() {
		for _, a := range q.Spec.Lend {
			if keeps(&q.Spec, a.Of) > 0 {
				out = append(out, a.Of)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// follows are the things whose use the bill follows for what is kept.
func (b *bill) follows() []string {
	if !b.looked {
		b.kept, b.looked = b.t.notLent(), true
	}
	return b.kept
}

// lends adds a hold to the accounts of what is kept, or with sign -1 takes it out.
func (b *bill) lends(h *Hold, sign int64) {
	for _, of := range b.follows() {
		n, _ := h.Amounts().Get(of)
		if n == 0 {
			continue
		}
		b.add(accountHeld, due{of: of}, sign*n)
		if !h.Releasing {
			b.add(ownOf(b.way(h.Tenant, h.Queue)), due{of: of}, sign*n)
		}
	}
}

// way is the tenants and queues of the tree that requests are charged to.
func (b *bill) way(tenant, queue string) []*api.Queue {
	if b.tree == nil {
		b.tree = b.t.Tree()
	}
	path, err := b.tree.Path(tenant, queue)
	if err != nil {
		return nil
	}
	return path
}

// ownOf is the account of what the narrowest of a way was asked for directly.
func ownOf(way []*api.Queue) string {
	if len(way) == 0 {
		return accountOwn
	}
	return accountOwn + way[0].Name
}

// overLent says of what the bill would lend more to preemptible work than is lent; "": of
// nothing.
func (b *bill) overLent(spec *api.GroupSpec) string {
	if !spec.Preemptible {
		return ""
	}
	way := b.way(spec.Tenant, spec.Queue)
	for _, of := range b.follows() {
		d := due{of: of}
		if b.by[ownOf(way)][d] <= 0 {
			continue // it takes no more than it had
		}
		k, was := b.keepersOf(of, b.by), b.keepersOf(of, nil)
		if k.claimed <= was.claimed {
			continue // it comes from what is kept for itself
		}
		if keeper := k.unused(way); keeper != nil {
			have := b.t.account(accountHeld)
			if free := b.t.capacity(of) - have.of(d); k.claimed > free+was.used {
				return fmt.Sprintf("%d of %s are kept free for %s, and %d would be left", k.left(keeper), of, keeper.Name, free-b.by[accountHeld][d])
			}
		}
	}
	return ""
}

// keepers is the tree as far as one thing is concerned: what is used in each node of it, with
// what those below it claim; what the widest claim together, and what is used in all.
type keepers struct {
	of            string
	list          []*Queue
	own           map[string]int64
	claimed, used int64
}

// keepersOf is the tree with what a bill adds.
func (b *bill) keepersOf(of string, added map[string]map[due]int64) *keepers {
	k := &keepers{of: of, list: b.t.Queues(), own: map[string]int64{}}
	d := due{of: of}
	depth := map[string]int{}
	for _, q := range k.list {
		depth[q.Name] = len(b.tree.Above(q.Name))
	}
	k.list = slices.Clone(k.list)
	slices.SortFunc(k.list, func(x, y *Queue) int {
		return cmp.Or(cmp.Compare(depth[y.Name], depth[x.Name]), strings.Compare(x.Name, y.Name))
	})
	use := func(name string) int64 {
		a := b.t.account(accountOwn + name)
		n := a.of(d) + added[accountOwn+name][d]
		k.used += n
		return n
	}
	k.claimed = use("")
	for _, q := range k.list { // the deepest first
		k.own[q.Name] += use(q.Name)
		claims := max(keeps(&q.Spec, of), k.own[q.Name])
		if q.Spec.Parent != "" && b.tree.Get(q.Spec.Parent) != nil {
			k.own[q.Spec.Parent] += claims
		} else {
			k.claimed += claims
		}
	}
	return k
}

// unused is the first that keeps something which it does not use, but for those on a way.
func (k *keepers) unused(way []*api.Queue) *api.Queue {
	for _, q := range k.list {
		if k.left(&q.Spec) > 0 && !slices.ContainsFunc(way, func(x *api.Queue) bool { return x.Name == q.Name }) {
			return &q.Spec
		}
	}
	return nil
}

func (k *keepers) left(q *api.Queue) int64 { return keeps(q, k.of) - k.own[q.Name] }

// capacity is what the nodes that take work have of a thing, and what is held on the others.
func (t *tx) capacity(of string) int64 {
	var sum int64
	for _, n := range t.Nodes() {
		if !n.Schedulable() {
			for _, h := range t.HoldsOn(n.ID) {
				held, _ := h.Amounts().Get(of)
				sum += held
			}
			continue
		}
		model, typed := strings.CutPrefix(of, "gpu:")
		switch of {
		case "cpu":
			sum += int64(n.Info.CPU)
		case "memory":
			sum += int64(n.Info.Memory)
		default:
			for i := range n.Info.GPUs {
				if !typed || n.Info.GPUs[i].Model == model {
					sum += 1000
				}
			}
		}
	}
	return sum
}
