package survey

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Node is one node; said is what its agent said last of its devices.
func Node(v *state.View, n *state.Node, said []api.GPU) *schedule.Node {
	u := v.UseOf(n.ID)
	out := &schedule.Node{
		ID: n.ID, Name: n.Info.Name, Ready: n.Schedulable(), Why: n.WhyNot(), Labels: n.Info.Labels,
		Pool: n.Info.Labels["pool"], CPU: n.Info.CPU, Memory: n.Info.Memory,
		FreeCPU: n.Info.CPU - u.CPU, FreeMemory: n.Info.Memory - u.Memory, GPUs: make([]schedule.GPU, 0, len(n.Info.GPUs)),
	}
	for i, g := range n.Info.GPUs {
		now := saidOf(said, i, g.UUID)
		d := u.Devices[g.UUID]
		gpu := schedule.GPU{
			UUID: g.UUID, Model: g.Model, Usable: unit.Bytes(g.Usable),
			Free: unit.Bytes(g.Usable) - d.Memory, Share: 1000 - d.Share,
			Healthy: Healthy(g.Health, now.Health), Why: cmp.Or(now.Note, g.Note),
		}
		if d.Whole {
			gpu.Free, gpu.Share = 0, 0
		}
		out.GPUs = append(out.GPUs, gpu)
	}
	return out
}

// saidOf finds a device in what an agent said, mostly at its own place.
func saidOf(said []api.GPU, i int, uuid string) api.GPU {
	if i < len(said) && said[i].UUID == uuid {
		return said[i]
	}
	for _, g := range said {
		if g.UUID == uuid {
			return g
		}
	}
	return api.GPU{}
}

// Healthy: a device is offered only while nothing says otherwise.
func Healthy(words ...string) bool {
	for _, w := range words {
		if w != "" && w != "ok" {
			return false
		}
	}
	return true
}

// Request is one group that waits; now is in nanoseconds.
func Request(v *state.View, g *state.Group, now int64) *schedule.Request {
	j := v.Job(g.Job)
	r := &schedule.Request{
		ID: g.ID, Name: Name(v, g), User: g.User, Spec: g.Spec, Seq: g.Seq, Since: at(g.Since),
		Expect: time.Duration(max(0, g.Expect-g.Ran)), Claim: g.Claim, Leaving: g.Leaving, Keep: g.Keep, Avoid: Avoided(j, now),
		Former: g.Former, FormerUntil: at(g.FormerUntil),
	}
	if g.Expect > 0 && r.Expect == 0 {
		r.Expect = time.Second // it has held more than was expected, and is about to end
	}
	if j != nil {
		r.Evictions = j.Evictions
	}
	return r
}

// at is a time of the log; zero for none.
func at(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// Avoided are the nodes that a job keeps off at a time, with what people are to know of it.
func Avoided(j *state.Job, now int64) map[string]string {
	if j == nil || len(j.Excluded) == 0 {
		return nil
	}
	out := map[string]string{}
	for _, x := range j.Barred(now) {
		out[x.Node] = fmt.Sprintf("excluded until %s: %s", time.Unix(0, x.Until).UTC().Format("15:04:05"), x.Why)
	}
	return out
}

// Name is what people know a group by: its job, its own name, else its id.
func Name(v *state.View, g *state.Group) string { return cmp.Or(g.Job, g.Spec.Name, g.ID) }

// Holders are what a group holds, and what it held and nobody has proven free yet.
func Holders(v *state.View, group string) []*schedule.Holder {
	var kept, leaving *schedule.Holder
	for _, hold := range v.HoldsOf(group) {
		at := &kept
		if hold.Releasing {
			at = &leaving
		}
		if *at == nil {
			*at = newHolder(v, group, hold.Releasing)
		}
		x := *at
		x.Bundles = append(x.Bundles, schedule.Held{
			Node: hold.Node, CPU: hold.Need.CPU, Memory: hold.Need.Memory, Devices: hold.Devices,
			Share: hold.Need.Share, GPUMemory: hold.Need.GPUMemory,
		})
		x.CPU += hold.Need.CPU
		x.Memory += hold.Need.Memory
		x.GPUs += hold.Need.GPUs
		if len(x.Nodes) == 0 || x.Nodes[len(x.Nodes)-1] != hold.Node {
			x.Nodes = append(x.Nodes, hold.Node)
		}
	}
	if kept != nil && kept.Sizes != nil {
		keepsFirst(v, group, kept)
	}
	var out []*schedule.Holder
	for _, x := range []*schedule.Holder{kept, leaving} {
		if x != nil {
			out = append(out, x)
		}
	}
	return out
}

// keepsFirst puts the bundles of a group that may shrink into the order in which it keeps
// them, so that the scheduler knows what it would give back.
func keepsFirst(v *state.View, group string, x *schedule.Holder) {
	g := v.Group(group)
	if g == nil {
		return
	}
	j := v.Job(g.Job)
	if j == nil || len(g.Placed) != len(x.Bundles) {
		return
	}
	bundles := make([]schedule.Held, 0, len(x.Bundles))
	for _, i := range j.BundlesByRank(g) {
		b := g.Placed[i]
		for _, h := range x.Bundles {
			if h.Node == b.Node && slices.Equal(h.Devices, b.Devices) {
				bundles = append(bundles, h)
				break
			}
		}
	}
	if len(bundles) == len(x.Bundles) {
		x.Bundles = bundles
	}
}

func newHolder(v *state.View, group string, releasing bool) *schedule.Holder {
	x := &schedule.Holder{Group: group, Name: group, Releasing: releasing}
	g := v.Group(group)
	if g == nil {
		return x
	}
	x.Name, x.Spec, x.User, x.Seq, x.Started = Name(v, g), &g.Spec, g.User, g.Seq, at(g.Begun)
	if g.Expect > 0 && g.Begun != 0 {
		x.Ends = at(g.Begun + max(0, g.Expect-g.Ran))
	}
	if a := g.Asked; a != nil && !releasing && g.State == api.GroupPlaced {
		for n, b := range a.Bundles {
			if g.Position(int64(n)) < 0 {
				x.Lacks = append(x.Lacks, schedule.Lacking{Number: int64(n), Bundle: b})
			}
		}
	}
	price(v, g, x)
	return x
}
