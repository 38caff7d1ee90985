package schedule

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// drawTree makes a valid tree of tenants and queues with quotas in GPUs.
func drawTree(t *rapid.T) []*api.Queue {
	var list []*api.Queue
	quota := func(q *api.Queue) *api.Queue {
		of := rapid.SampledFrom([]string{"gpu", "gpu", "gpu:a", "cpu"}).Draw(t, "of")
		if rapid.Bool().Draw(t, "guaranteed") {
			g := rapid.Int64Range(0, 8).Draw(t, "guarantee") * 500
			q.Guaranteed = q.Guaranteed.With(of, g)
			if rapid.Bool().Draw(t, "lends") {
				q.Lend = q.Lend.With(of, rapid.Int64Range(0, 4).Draw(t, "lend")*500)
			}
		}
		if rapid.Bool().Draw(t, "limited") {
			q.Limit = q.Limit.With(of, rapid.Int64Range(0, 10).Draw(t, "limit")*500)
		}
		if rapid.IntRange(0, 3).Draw(t, "weighted") == 0 {
			q.Weight = new(rapid.Int64Range(0, 3).Draw(t, "weight"))
		}
		q.Order = rapid.SampledFrom([]string{"", "", OrderFair, OrderFIFO, OrderShort, OrderDeadline}).Draw(t, "order")
		if rapid.IntRange(0, 9).Draw(t, "pause") == 0 {
			q.Paused = "maintenance"
		}
		return q
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "tenants") {
		name := fmt.Sprintf("t%d", i)
		list = append(list, quota(tenant(name)))
		if rapid.Bool().Draw(t, "has a queue") {
			list = append(list, quota(queue(name+"-q", name)))
		}
		if rapid.Bool().Draw(t, "has a tenant") {
			list = append(list, quota(&api.Queue{Name: name + "-t", Parent: name, Tenant: true}))
		}
	}
	if rapid.Bool().Draw(t, "nobody's queue") {
		list = append(list, quota(queue("shared", "")))
	}
	return list
}

// drawQueues is drawSnapshot with a tree, users, holders and waiting times.
func drawQueues(t *rapid.T) *Snapshot {
	s := drawSnapshot(t).queues(drawTree(t)...)
	for _, n := range s.Nodes {
		for d := range n.GPUs {
			n.GPUs[d].Model = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "model")
		}
	}
	place := func(spec *api.GroupSpec) {
		q := rapid.SampledFrom(s.Queues.List).Draw(t, "queue")
		spec.Tenant, spec.Queue = q.Name, ""
		if !q.Tenant {
			spec.Tenant, spec.Queue = q.Parent, q.Name
			if q.Parent == "" {
				spec.Tenant = rapid.SampledFrom([]string{"t0", "", "default"}).Draw(t, "tenant")
			}
		}
		if rapid.IntRange(0, 9).Draw(t, "mistaken") == 0 {
			spec.Queue = "no such"
		}
		spec.Preemptible = rapid.Bool().Draw(t, "preemptible")
	}
	for _, r := range s.Pending {
		place(&r.Spec)
		r.User = rapid.SampledFrom([]string{"", "ann", "bob"}).Draw(t, "user")
		if rapid.Bool().Draw(t, "known wait") {
			r.Since = epoch.Add(-time.Duration(rapid.IntRange(0, 200).Draw(t, "waited")) * time.Hour)
		}
		r.Expect = time.Duration(rapid.IntRange(0, 50).Draw(t, "expect")) * time.Hour
		r.Spec.MaxWait = unit.Duration(rapid.SampledFrom([]time.Duration{0, 0, 5 * time.Hour}).Draw(t, "longest"))
		if rapid.IntRange(0, 2).Draw(t, "has a deadline") == 0 {
			r.Spec.Deadline = epoch.Add(time.Duration(rapid.IntRange(-5, 50).Draw(t, "deadline")) * time.Hour)
		}
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "holders") {
		h := &Holder{
			Group: fmt.Sprintf("h%d", i), GPUs: rapid.Int64Range(0, 2).Draw(t, "held"), Spec: &api.GroupSpec{}, User: "ann",
			Releasing: rapid.IntRange(0, 4).Draw(t, "releasing") == 0,
		}
		place(h.Spec)
		s.Holders = append(s.Holders, h)
	}
	s.Queues.Used = map[string]int64{"t0": rapid.Int64Range(0, 1e7).Draw(t, "used")}
	return s
}

// drawNextQueues is the snapshot after some of what was decided came true and time passed:
// groups ended or are ending, requests came and went, quotas and their use changed.
func drawNextQueues(t *rapid.T, s *Snapshot, ds []Decision, step int) *Snapshot {
	next := drawNext(t, s, ds, step)
	place := func(spec *api.GroupSpec) {
		q := rapid.SampledFrom(next.Queues.List).Draw(t, "queue")
		if spec.Tenant, spec.Queue = q.Name, ""; !q.Tenant {
			spec.Tenant, spec.Queue = "t0", q.Name
		}
	}
	next.Holders = slices.Clone(next.Holders)
	for i := 0; i < len(next.Holders); i++ {
		switch rapid.IntRange(0, 6).Draw(t, "holder") {
		case 0:
			next.Holders = slices.Delete(next.Holders, i, i+1)
			i--
		case 1:
			h := *next.Holders[i]
			h.Releasing = !h.Releasing
			next.Holders[i] = &h
		case 2:
			h := *next.Holders[i]
			h.GPUs, h.Group = rapid.Int64Range(0, 4).Draw(t, "held"), h.Group+"x"
			next.Holders = slices.Insert(next.Holders, rapid.IntRange(0, i).Draw(t, "at"), &h)
			i++
		}
	}
	for i, r := range next.Pending {
		switch rapid.IntRange(0, 9).Draw(t, "request") {
		case 0:
			again := *r
			again.Since = epoch.Add(-time.Duration(rapid.IntRange(0, 200).Draw(t, "waited")) * time.Hour)
			place(&again.Spec)
			next.Pending[i] = &again
		case 1:
			next.Pending[0], next.Pending[i] = r, next.Pending[0]
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "other use") == 0 {
		q := *next.Queues
		q.Used = map[string]int64{"t0": rapid.Int64Range(0, 1e7).Draw(t, "used"), "shared": 7200}
		next.Queues = &q
	}
	if rapid.IntRange(0, 5).Draw(t, "another quota") == 0 {
		q := *next.Queues
		q.List = slices.Clone(q.List)
		i := rapid.IntRange(0, len(q.List)-1).Draw(t, "of")
		x := *q.List[i]
		x.Limit = api.Amounts{{Of: "gpu", N: rapid.Int64Range(0, 8).Draw(t, "limit") * 500}}
		q.List[i] = &x
		next.Queues = &q
	}
	if rapid.IntRange(0, 9).Draw(t, "another order") == 0 {
		next.Policy.Order = rapid.SampledFrom([]string{OrderFair, OrderFIFO}).Draw(t, "order")
	}
	return next
}

// A planner with a history charges and orders as one without any does (P8).
func TestPropBooksAreKeptFromCycleToCycle(t *testing.T) {
	reused := 0
	checkUntil(t, func() bool { return reused > 0 }, func(t *rapid.T) {
		s := drawQueues(t)
		p, now := NewPlanner(), epoch
		for step := range rapid.IntRange(2, 8).Draw(t, "cycles") {
			before := p.mem.lineup.all
			got, fresh := p.Plan(s, now), NewPlanner().Plan(s, now)
			if len(before) > 0 && len(p.mem.lineup.all) > 0 && &before[0] == &p.mem.lineup.all[0] {
				reused++
			}
			a, b := fresh.cycle.quotas, got.cycle.quotas
			if !slices.Equal(a.used, b.used) || !slices.Equal(a.assured, b.assured) || !slices.Equal(a.own, b.own) || !slices.Equal(a.room, b.room) {
				t.Fatalf("cycle %d: charged\n%v %v %v %v\nwith a history\n%v %v %v %v", step, a.used, a.assured, a.own, a.room, b.used, b.assured, b.own, b.room)
			}
			all := got.All()
			for i, x := range fresh.All() {
				y := all[i]
				if x.Bundles == nil {
					x.Reasons = fresh.Why(x.Group)
				}
				if y.Bundles == nil {
					y.Reasons = got.Why(y.Group)
				}
				if a, b := fmt.Sprintf("%+v", x), fmt.Sprintf("%+v", y); a != b {
					t.Fatalf("cycle %d: %s\nwith a history %s", step, a, b)
				}
			}
			if !fresh.Again.Equal(got.Again) {
				t.Fatalf("cycle %d: again at %s, with a history at %s", step, fresh.Again, got.Again)
			}
			s = drawNextQueues(t, s, got.All(), step)
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 3600, 200_000}).Draw(t, "seconds")) * time.Second)
		}
	})
	if reused == 0 {
		t.Error("no order was ever used again; the property proved nothing")
	}
}
