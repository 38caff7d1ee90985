package schedule

import (
	"fmt"
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
		h := &Holder{Group: fmt.Sprintf("h%d", i), GPUs: rapid.Int64Range(0, 2).Draw(t, "held"), Spec: &api.GroupSpec{}, User: "ann",
			Releasing: rapid.IntRange(0, 4).Draw(t, "releasing") == 0}
		place(h.Spec)
		s.Holders = append(s.Holders, h)
	}
	s.Queues.Used = map[string]int64{"t0": rapid.Int64Range(0, 1e7).Draw(t, "used")}
	return s
}
