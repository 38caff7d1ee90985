package schedule

import (
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// A claim is what a waiting group gets once those that were preempted for it have left. It
// is decided once, with the preemption, and kept until it comes true or cannot any more:
// capacity that becomes free meanwhile goes to nobody else, above all not to a victim that
// waits again.

// claims places the groups whose claims have come true, and takes what the others claim
// out of what is free.
func (c *cycle) claims() {
	for i, r := range c.order {
		if !c.turns.all[i].claims {
			continue
		}
		if why := c.free.cannot(r); why != "" {
			c.unclaim = append(c.unclaim, Unclaim{Group: r.ID, Why: why})
			continue
		}
		part, d := c.claimed(r, c.mem.demandOf(r, c.now), r.Claim)
		// Those that are to leave for it are charged until they have; their quota is what it gets.
		admitted := c.admitted(part, d)
		leavers := c.leaversFor(r)
		if !admitted && !c.admittedWithout(part, d, leavers) {
			c.unclaim = append(c.unclaim, Unclaim{Group: r.ID, Why: "its quota does not allow it any more"})
			continue
		}
		if spots := c.free.spotsAt(d, r.Claim); admitted && spots != nil && c.capacityFor(r, spots) && c.take(i, d, spots, chosenOf(r, r.Claim)) {
			if c.times != nil {
				c.times.started(part, -1, spots)
			}
			continue
		}
		if !c.someoneLeavesFor(r) {
			c.unclaim = append(c.unclaim, Unclaim{Group: r.ID, Why: "what was to leave for it has left, and the room, or a capacity, is not there"})
			continue
		}
		c.waits = append(c.waits, r)
		c.promise(r, part, d, r.Claim, leavers)
	}
}

// promise keeps what a request has claimed from everything after it: its room, its quota
// and its part of capacities, while those that leave for it still have theirs.
func (c *cycle) promise(r, part *Request, d *demand, claim []api.Placed, leavers []victim) {
	c.quotas.charge(part, c.needs(part, d))
	c.leaving = append(c.leaving, whole(leavers)...)
	if c.quotas.keeps {
		back := c.lift(nil)
		later := c.quotas.copied()
		back()
		c.quotas.later = later
	}
	of := r
	if len(r.Claim) == 0 { // it was decided in this cycle
		of = new(*r)
		of.Claim = claim
	}
	a := aside{of, d, c.free.setAside(d, claim)}
	c.aside = append(c.aside, a)
	if c.times != nil {
		c.times.claimed(a)
	}
}

// capacityFor: what runs and what others have claimed leaves the request its part of
// capacities.
func (c *cycle) capacityFor(r *Request, spots []spot) bool {
	if len(r.Spec.Uses) == 0 {
		return true
	}
	p := c.profile()
	return p.pools.holds(r, 0, spots, p.now, after(p.now, r.runs()))
}

// claimed is the part of a request that a claim is for: where its roles allow it, others
// leave for fewer bundles than it asks for.
func (c *cycle) claimed(r *Request, d *demand, claim []api.Placed) (*Request, *demand) {
	if chosen := chosenOf(r, claim); chosen != nil {
		return c.partOf(r, chosen)
	}
	return r, d
}

// chosenOf are the bundles of a request that a claim is for; nil: all.
func chosenOf(r *Request, claim []api.Placed) []int64 {
	if len(claim) >= len(r.Spec.Bundles) {
		return nil
	}
	out := make([]int64, len(claim))
	for i, p := range claim {
		out[i] = p.Bundle
	}
	return out
}

// aside is what was taken out of what is free for a claim that has not come true yet, by
// node.
type aside struct {
	request *Request
	demand  *demand // of what is claimed
	taken   map[int]stay
}

// cannot says why a claim will never come true: a node of it takes nothing any more.
func (o *overlay) cannot(r *Request) string {
	if len(r.Claim) > len(r.Spec.Bundles) {
		return "it asks for fewer bundles by now"
	}
	for _, p := range r.Claim {
		if p.Bundle < 0 || p.Bundle >= int64(len(r.Spec.Bundles)) {
			return fmt.Sprintf("it has no bundle %d any more", p.Bundle)
		}
		ni := o.find(p.Node)
		switch {
		case ni < 0:
			return fmt.Sprintf("node %s of its claim is gone", p.Node)
		case !o.nodes[ni].ready:
			return fmt.Sprintf("node %s of its claim takes nothing new: %s", o.nodes[ni].name, o.nodes[ni].why)
		}
		n := o.nodes[ni]
		for _, uuid := range p.Devices {
			d := slices.IndexFunc(n.gpus, func(g gpuState) bool { return g.uuid == uuid })
			if d < 0 || !n.gpus[d].healthy {
				return fmt.Sprintf("a device of its claim on node %s is gone or unhealthy", n.name)
			}
		}
		if why, ok := r.Avoid[p.Node]; ok {
			return fmt.Sprintf("it keeps off node %s of its claim: %s", n.name, why)
		}
	}
	return ""
}

// find is the index of a node by id, -1: none.
func (o *overlay) find(id string) int {
	return slices.IndexFunc(o.nodes, func(n *nodeState) bool { return n.id == id })
}

// someoneLeavesFor: one of those that are to leave for a group has not left yet.
func (c *cycle) someoneLeavesFor(r *Request) bool {
	return slices.ContainsFunc(c.s.Holders, func(h *Holder) bool { return h.leavesFor(r) })
}

// leavesFor: it has been told to leave for a group, and has not left it all yet.
func (h *Holder) leavesFor(r *Request) bool {
	return h.LeavingFor == r.ID || h.Releasing && slices.Contains(r.Leaving, h.Group)
}

// leaversFor are those that are to leave for a group and have not begun to give back.
func (c *cycle) leaversFor(r *Request) (out []victim) {
	for _, h := range c.s.Holders {
		if h.LeavingFor == r.ID && !h.Releasing && h.Spec != nil {
			out = append(out, victim{h: h, keeps: h.Keeps})
		}
	}
	return out
}

// classOf is the class of bundle i.
func (d *demand) classOf(i int) *class {
	for _, c := range d.classes {
		if slices.Contains(c.bundles, i) {
			return c
		}
	}
	return nil
}

// spotsAt are the spots of a placement that was decided before; nil while it is not free.
func (o *overlay) spotsAt(d *demand, at []api.Placed) []spot {
	if len(at) != d.total {
		return nil
	}
	tried := map[int]*nodeState{}
	spots := make([]spot, len(at))
	for i, p := range at {
		ni, cl := o.find(p.Node), d.classOf(i)
		if ni < 0 || cl == nil || !d.serves(o.nodes[ni], cl) {
			return nil
		}
		n := tried[ni]
		if n == nil {
			n = o.nodes[ni].clone()
			tried[ni] = n
		}
		if n.cpu < cl.cpu || n.mem < cl.mem {
			return nil
		}
		n.cpu -= cl.cpu
		n.mem -= cl.mem
		spots[i] = spot{node: ni, class: cl}
		for _, uuid := range p.Devices {
			k := slices.IndexFunc(n.gpus, func(g gpuState) bool { return g.uuid == uuid })
			if k < 0 {
				return nil
			}
			g := &n.gpus[k]
			switch {
			case cl.gpus > 0 && g.untouched():
				g.share, g.free = 0, 0
			case cl.share > 0 && g.shares(cl, 1) > 0:
				g.takeShare(cl)
			default:
				return nil
			}
			spots[i].devices = append(spots[i].devices, k)
		}
		if want := max(cl.gpus, min(1, cl.share)); int64(len(p.Devices)) != want {
			return nil
		}
	}
	return spots
}

// setAside takes from what is free as much of a claim as is there, and says what it was:
// of devices those that were free to the last, of the others nothing.
func (o *overlay) setAside(d *demand, at []api.Placed) map[int]stay {
	taken := map[int]stay{}
	for i, p := range at {
		ni, cl := o.find(p.Node), d.classOf(i)
		if ni < 0 || cl == nil {
			continue
		}
		n := o.nodes[ni].clone()
		part := taken[ni]
		part.cpu, part.mem = part.cpu+min(n.cpu, cl.cpu), part.mem+min(n.mem, cl.mem)
		n.cpu, n.mem = max(0, n.cpu-cl.cpu), max(0, n.mem-cl.mem)
		for k := range n.gpus {
			g := &n.gpus[k]
			if !slices.Contains(p.Devices, g.uuid) {
				continue
			}
			if cl.gpus > 0 {
				if g.untouched() {
					part.devices = append(part.devices, k)
				}
				g.share, g.free = 0, 0
			} else {
				g.share, g.free = max(0, g.share-cl.share), max(0, g.free-g.shareBytes(cl))
			}
		}
		o.set(ni, n)
		taken[ni] = part
	}
	return taken
}

// claimReason explains a group that others leave for; nil: none do.
func (c *cycle) claimReason(r *Request) []api.Reason {
	var who []string
	for _, h := range c.s.Holders {
		if h.leavesFor(r) {
			who = append(who, h.called())
		}
	}
	for i := range c.evictions {
		if e := &c.evictions[i]; e.Preemptor == r.ID {
			for _, v := range e.Victims {
				who = append(who, v.Name)
			}
		}
	}
	if len(who) == 0 {
		return nil
	}
	who = sortedCopy(who)
	why := api.Reason{
		Code: api.ReasonPreemption, Text: "room is made for it: " + shortList(who) + " " + leaveWord(len(who)) + " for it, saved first where that is possible",
		Frees: "the end of " + shortList(who) + ", which have been told",
	}
	why.Block(who)
	return []api.Reason{why}
}

func leaveWord(n int) string {
	if n == 1 {
		return "leaves"
	}
	return "leave"
}

// lookAgain asks for another cycle by a time, though nothing changes.
func (c *cycle) lookAgain(by time.Time) {
	if !by.IsZero() && (c.again.IsZero() || by.Before(c.again)) {
		c.again = by
	}
}
