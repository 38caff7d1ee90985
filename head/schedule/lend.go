package schedule

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// What is guaranteed to a tenant or queue and not used by it may be used by preemptible
// work of others, but for the part that it keeps, which is what is guaranteed less what it
// lends. A node claims the larger of what it keeps and its own: what is used in it, and
// what its children claim. What the nodes below the root claim together, and do not use, is
// not free for others.

// mostClaimed keeps sums of what is kept within an integer.
const mostClaimed = math.MaxInt64 / 4

// reserve finds what is free in the cluster and kept by nobody, before anything is used.
func (q *quotas) reserve() {
	q.room = make([]int64, len(q.things))
	for i, of := range q.things {
		q.room[i] = q.freeOf(of)
	}
	for _, a := range q.deepestFirst() {
		for i := range q.things {
			claimed := max(a.keep[i], a.own[i])
			if a.parent != nil {
				a.parent.own[i] = satAdd(a.parent.own[i], claimed)
			} else if onNodes(q.things[i]) {
				q.room[i] = max(q.room[i]-min(claimed, mostClaimed), -mostClaimed)
			}
		}
	}
}

// freeOf is what the nodes have free; of a capacity nothing is kept.
func (q *quotas) freeOf(of string) int64 {
	model, typed := strings.CutPrefix(of, ofModel)
	var sum int64
	for _, n := range q.s.Nodes {
		if !n.Ready {
			continue
		}
		switch {
		case of == ofCPU:
			sum = satAdd(sum, max(0, int64(n.FreeCPU)))
		case of == ofMemory:
			sum = satAdd(sum, max(0, int64(n.FreeMemory)))
		case of == ofGPU || typed:
			for d := range n.GPUs {
				if g := &n.GPUs[d]; g.Healthy && (!typed || g.Model == model) {
					sum = satAdd(sum, max(0, g.Share))
				}
			}
		default:
			return math.MaxInt64
		}
	}
	return sum
}

func (q *quotas) deepestFirst() []*account {
	depth := func(a *account) (n int) {
		for ; a != nil && n <= len(q.byName); a = a.parent {
			n++
		}
		return n
	}
	out := make([]*account, 0, len(q.byName))
	for _, a := range q.byName {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *account) int {
		return cmp.Or(cmp.Compare(depth(b), depth(a)), cmp.Compare(a.q.Name, b.q.Name))
	})
	return out
}

// claim adds a use and says how much of it comes from what nobody keeps: what is kept on
// the way to the root is used up first. A queue of nobody's has its own way.
func (q *quotas) claim(c *charging, i int, n int64) int64 {
	out := q.outside(c, i, n)
	if len(c.path) > 0 {
		for a := c.path[0]; a != nil && n > 0; a = a.parent {
			was := max(a.keep[i], a.own[i])
			a.own[i] = satAdd(a.own[i], n)
			n = max(a.keep[i], a.own[i]) - was
		}
	}
	return out
}

// outside is claim without writing.
func (q *quotas) outside(c *charging, i int, n int64) int64 {
	if len(c.path) == 0 {
		return n
	}
	for a := c.path[0]; a != nil && n > 0; a = a.parent {
		n = max(a.keep[i], satAdd(a.own[i], n)) - max(a.keep[i], a.own[i])
	}
	return n
}

// keepers are the tenants and queues that keep something that they do not use, but for
// those on the way of a request.
func (q *quotas) keepers(c *charging, i int) []*account {
	var out []*account
	for _, a := range q.byName {
		if a.keep[i] > a.own[i] && !slices.Contains(c.path, a) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b *account) int { return cmp.Compare(a.q.Name, b.q.Name) })
	return out
}
