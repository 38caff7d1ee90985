package schedule

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// many is a full cluster with tenants, users and quotas, in which nothing fits.
func many(waiting, running, tenantsIn, users int) *Snapshot {
	var nodes []nodeBuilder
	for i := range running {
		nodes = append(nodes, aNode(fmt.Sprintf("n%d", i)).gpus(8, 72))
	}
	s := cluster(nodes...)
	for _, n := range s.Nodes {
		for d := range n.GPUs {
			n.GPUs[d].Share, n.GPUs[d].Free = 0, 0
		}
	}
	s.Queues = &Queues{Used: map[string]int64{}}
	for i := range tenantsIn {
		t := lends(guaranteed(tenant(fmt.Sprintf("t%d", i)), int64(running*8/tenantsIn)), int64(running*4/tenantsIn))
		s.Queues.List = append(s.Queues.List, t, queue(fmt.Sprintf("q%d", i), t.Name))
		s.Queues.Used[t.Name] = int64(i) * 1e6
	}
	of := func(i int) (string, string, string) {
		return fmt.Sprintf("t%d", i%tenantsIn), fmt.Sprintf("q%d", i%tenantsIn), fmt.Sprintf("u%d", i%users)
	}
	for i := range running {
		tenant, queue, user := of(i)
		h := working(fmt.Sprintf("h%d", i), tenant, queue, user, 8, i%2 == 0)
		s.Holders = append(s.Holders, &h)
	}
	for i := range waiting {
		tenant, queue, user := of(i * 7)
		r := gang(fmt.Sprintf("g%d", i), 1+i%4, gpus(int64(1+i%8))).of(tenant, queue).user(user).waited(time.Duration(waiting-i) * time.Second).expect(time.Duration(1+i%97) * time.Minute)
		r.request.Seq = uint64(i + 1)
		s.pending(r)
	}
	return s
}

// BenchmarkOrder is order and quotas of a cycle: of a new planner, of one for which nothing
// has changed, and of one after one request came and one group ended.
func BenchmarkOrder(b *testing.B) {
	s := many(10_000, 3000, 20, 200)
	b.Run("new", func(b *testing.B) {
		for range b.N {
			c := &cycle{s: s, now: epoch, mem: &memory{}}
			c.mem.keepRequests(s.Pending)
			c.line()
		}
	})
	again := func(b *testing.B, next func(i int) *Snapshot) {
		m := &memory{}
		for i := range b.N + 1 {
			if i == 1 {
				b.ResetTimer()
			}
			x := next(i)
			c := &cycle{s: x, now: epoch, mem: m}
			m.keepRequests(x.Pending)
			c.line()
		}
	}
	b.Run("same", func(b *testing.B) { again(b, func(int) *Snapshot { return s }) })
	b.Run("one more", func(b *testing.B) {
		again(b, func(i int) *Snapshot {
			x := *s
			r := *s.Pending[i%len(s.Pending)]
			r.ID, r.Seq = "new", uint64(20_000+i)
			x.Pending = append(slices.Clone(s.Pending), &r)
			return &x
		})
	})
	b.Run("one ended", func(b *testing.B) {
		again(b, func(i int) *Snapshot {
			x := *s
			i %= len(s.Holders)
			x.Holders = slices.Delete(slices.Clone(s.Holders), i, i+1)
			return &x
		})
	})
}
