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

// reserve finds what the nodes below the root claim before anything is used: room is what
// is free in the cluster.
func (q *quotas) reserve() {
	for _, a := range q.all {
		for i := range q.things {
			claimed := max(a.keep[i], q.own[a.at+i])
			if a.parent != nil {
				q.own[a.parent.at+i] = satAdd(q.own[a.parent.at+i], claimed)
			} else if onNodes(q.things[i]) {
				q.room[i] = max(q.room[i]-min(claimed, mostClaimed), -mostClaimed)
			}
		}
	}
}

// freeOn is what a node has free of a thing; of a capacity nothing is kept.
func freeOn(n *Node, of string) int64 {
	if !n.Ready {
		return 0
	}
	switch of {
	case ofCPU:
		return max(0, int64(n.FreeCPU))
	case ofMemory:
		return max(0, int64(n.FreeMemory))
	}
	model, typed := strings.CutPrefix(of, ofModel)
	if !typed && of != ofGPU {
		return 0
	}
	var sum int64
	for d := range n.GPUs {
		if g := &n.GPUs[d]; g.Healthy && (!typed || g.Model == model) {
			sum = satAdd(sum, max(0, g.Share))
		}
	}
	return sum
}

func (q *frame) deepestFirst() []*account {
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
	if len(c.path) == 0 {
		return n
	}
	for a := c.path[0]; a != nil && n > 0; a = a.parent {
		own := &q.own[a.at+i]
		was := max(a.keep[i], *own)
		*own = satAdd(*own, n)
		n = max(a.keep[i], *own) - was
	}
	return n
}

// unclaim is the reverse of claim.
func (q *quotas) unclaim(c *charging, i int, n int64) int64 {
	if len(c.path) == 0 {
		return n
	}
	for a := c.path[0]; a != nil && n > 0; a = a.parent {
		own := &q.own[a.at+i]
		was := max(a.keep[i], *own)
		*own -= n
		n = was - max(a.keep[i], *own)
	}
	return n
}

// outside is claim without writing.
func (q *quotas) outside(c *charging, i int, n int64) int64 {
	if len(c.path) == 0 {
		return n
	}
	for a := c.path[0]; a != nil && n > 0; a = a.parent {
		own := q.own[a.at+i]
		n = max(a.keep[i], satAdd(own, n)) - max(a.keep[i], own)
	}
	return n
}

// kept: somebody keeps something that they do not use.
func (q *quotas) kept(c *charging, i int) bool {
	return slices.ContainsFunc(q.all, func(a *account) bool { return q.keepsFrom(a, c, i) })
}

func (q *quotas) keepsFrom(a *account, c *charging, i int) bool {
	return a.keep[i] > q.own[a.at+i] && !slices.Contains(c.path, a)
}

// keepers are the tenants and queues that keep something that they do not use, but for
// those on the way of a request.
func (q *quotas) keepers(c *charging, i int) []*account {
	var out []*account
	for _, a := range q.all {
		if q.keepsFrom(a, c, i) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b *account) int { return cmp.Compare(a.q.Name, b.q.Name) })
	return out
}
