package control

import (
	"cmp"
	"context"
	"sort"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// snapshotOf turns a view into what the scheduler looks at.
func (h *Head) snapshotOf(v *state.View) *schedule.Snapshot {
	s := &schedule.Snapshot{}
	for _, n := range v.Nodes() {
		s.Nodes = append(s.Nodes, nodeOf(v, n, h.nodes.devices(n.ID)))
	}
	for _, g := range v.PendingGroups() {
		if ofHosts(v, g) {
			continue // gather forms it
		}
		s.Pending = append(s.Pending, h.requestOf(v, g))
	}
	s.Holders = holdersOf(v)
	return s
}

// nodeOf is one node; now is what its agent said last of devices by UUID.
func nodeOf(v *state.View, n *state.Node, now map[string]api.GPU) *schedule.Node {
	u := v.UseOf(n.ID)
	out := &schedule.Node{
		ID: n.ID, Name: n.Info.Name, Ready: n.Schedulable(), Why: whyNot(n), Labels: n.Info.Labels,
		Pool: n.Info.Labels["pool"], CPU: n.Info.CPU, Memory: n.Info.Memory,
		FreeCPU: n.Info.CPU - u.CPU, FreeMemory: n.Info.Memory - u.Memory,
	}
	for _, g := range n.Info.GPUs {
		d := u.Devices[g.UUID]
		gpu := schedule.GPU{
			UUID: g.UUID, Model: g.Model, Usable: unit.Bytes(g.Usable),
			Free: unit.Bytes(g.Usable) - d.Memory, Share: 1000 - d.Share,
			Healthy: healthy(g.Health, now[g.UUID].Health), Why: cmp.Or(now[g.UUID].Note, g.Note),
		}
		if d.Whole {
			gpu.Free, gpu.Share = 0, 0
		}
		out.GPUs = append(out.GPUs, gpu)
	}
	return out
}

// healthy: a device is offered only while nothing says otherwise.
func healthy(words ...string) bool {
	for _, w := range words {
		if w != "" && w != "ok" {
			return false
		}
	}
	return true
}

func (h *Head) requestOf(v *state.View, g *state.Group) *schedule.Request {
	return &schedule.Request{ID: g.ID, Name: groupName(v, g), Spec: g.Spec, Seq: g.Seq, Keep: g.Keep, Avoid: h.avoided(v, g.Job)}
}

// groupName is what people know a group by: its job, its own name, else its id.
func groupName(v *state.View, g *state.Group) string {
	switch {
	case g.Job != "":
		return g.Job
	case g.Spec.Name != "":
		return g.Spec.Name
	}
	return g.ID
}

// holdersOf sums what each group holds, released or not.
func holdersOf(v *state.View) []*schedule.Holder {
	byGroup := map[string]*schedule.Holder{}
	for _, hold := range v.Holds() {
		id := hold.Group
		if hold.Releasing {
			id += " (releasing)"
		}
		x := byGroup[id]
		if x == nil {
			x = &schedule.Holder{Group: hold.Group, Name: hold.Group, Releasing: hold.Releasing}
			if g := v.Group(hold.Group); g != nil {
				x.Name = groupName(v, g)
			}
			byGroup[id] = x
		}
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
	out := make([]*schedule.Holder, 0, len(byGroup))
	for _, x := range byGroup {
		out = append(out, x)
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Group != out[j].Group {
			return out[i].Group < out[j].Group
		}
		return !out[i].Releasing && out[j].Releasing
	})
	return out
}

// schedule places what waits and fits.
func (h *Head) schedule(ctx context.Context) {
	order, byID := h.plan(h.Store.View())
	for _, id := range order {
		if b := byID[id].Bundles; b != nil {
			h.try(ctx, state.KindPlaceGroup, state.PlaceGroup{Group: id, Placement: b})
		}
	}
}

// placeNow asks the scheduler for a request that is not in the log yet, so that
// record and placement can share one entry. What waits already keeps its turn.
func (h *Head) placeNow(v *state.View, id string, spec api.GroupSpec) []api.Placed {
	r := &schedule.Request{ID: id, Name: id, Spec: spec, Seq: v.Index() + 1}
	bundles, _ := planOne(h.snapshotOf(v), r, h.Clock.Now())
	return bundles
}

// planOne adds a request to a snapshot and returns what is decided on it.
func planOne(s *schedule.Snapshot, r *schedule.Request, now time.Time) ([]api.Placed, []api.Reason) {
	s.Pending = append(s.Pending, r)
	for _, d := range schedule.Plan(s, now) {
		if d.Group == r.ID {
			return d.Bundles, d.Reasons
		}
	}
	return nil, nil
}

// planned is the scheduler's word on everything that waits, at one index.
type planned struct {
	mu    sync.Mutex
	index uint64
	byID  map[string]schedule.Decision
	order []string
	until int64 // when an exclusion ends that it went by; 0: none does
}

// plan asks the scheduler once for each index: the loop, every list and every `why`
// at that index share the answer.
func (h *Head) plan(v *state.View) ([]string, map[string]schedule.Decision) {
	h.planned.mu.Lock()
	defer h.planned.mu.Unlock()
	now := h.Clock.Now()
	if h.planned.byID != nil && h.planned.index == v.Index() && (h.planned.until == 0 || now.UnixNano() < h.planned.until) {
		return h.planned.order, h.planned.byID
	}
	byID := map[string]schedule.Decision{}
	var order []string
	if len(v.PendingGroups()) > 0 {
		for _, d := range schedule.Plan(h.snapshotOf(v), now) {
			byID[d.Group] = d
			order = append(order, d.Group)
		}
	}
	if v.Index() >= h.planned.index {
		h.planned.index, h.planned.byID, h.planned.order = v.Index(), byID, order
		h.planned.until = nextReturn(v, now.UnixNano())
	}
	return order, byID
}

// reasonsFor explains why a waiting group waits, by the scheduler's own words (P7).
func (h *Head) reasonsFor(v *state.View, group string) []api.Reason {
	_, byID := h.plan(v)
	return byID[group].Reasons
}
