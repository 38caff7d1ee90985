package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// cluster keeps the books that the head keeps of its nodes, and hands each cycle a snapshot
// in which what is unchanged is the same pointer.
type cluster struct {
	s       schedule.Snapshot
	planner *schedule.Planner
	at      map[string]int // node id → index
	device  map[string]int // UUID → index on its node
	waiting map[string]*schedule.Request
	seq     uint64
	last    *schedule.Result
}

func newCluster(nodes []*schedule.Node) *cluster {
	c := &cluster{planner: schedule.NewPlanner(), at: map[string]int{}, device: map[string]int{}, waiting: map[string]*schedule.Request{}}
	c.s.Nodes = nodes
	for i, n := range nodes {
		c.at[n.ID] = i
		for d := range n.GPUs {
			c.device[n.GPUs[d].UUID] = d
		}
	}
	return c
}

// submit lets a request wait.
func (c *cluster) submit(spec api.GroupSpec) *schedule.Request {
	c.seq++
	r := &schedule.Request{ID: fmt.Sprintf("g%d", c.seq), Seq: c.seq, Spec: spec}
	c.s.Pending = append(slices.Clip(c.s.Pending), r)
	c.waiting[r.ID] = r
	return r
}

// decide runs one cycle and books what it placed.
func (c *cluster) decide(now time.Time) []schedule.Decision { return c.cycle(c.planner.Plan, now) }

// plan goes on with the plan, as the head does when it has nothing to decide.
func (c *cluster) plan(now time.Time) []schedule.Decision { return c.cycle(c.planner.Replan, now) }

func (c *cluster) cycle(run func(*schedule.Snapshot, time.Time) *schedule.Result, now time.Time) []schedule.Decision {
	s := c.s
	c.last = run(&s, now)
	c.s.Nodes = slices.Clone(c.s.Nodes)
	for i := range c.last.Decisions {
		if d := &c.last.Decisions[i]; d.Bundles != nil {
			c.book(c.waiting[d.Group], d.Bundles, true)
		}
	}
	return c.last.Decisions
}

// book takes what a group holds, or gives it back.
func (c *cluster) book(r *schedule.Request, placed []api.Placed, take bool) {
	sign := int64(1)
	if take {
		sign = -1
	}
	owned := map[string]*schedule.Node{}
	for _, p := range placed {
		n := owned[p.Node]
		if n == nil {
			n = c.s.Own(c.at[p.Node])
			owned[p.Node] = n
		}
		b := &r.Spec.Bundles[p.Bundle]
		n.FreeCPU += b.CPU * unit.MilliCPU(sign)
		n.FreeMemory += b.Memory * unit.Bytes(sign)
		for _, uuid := range p.Devices {
			g := &n.GPUs[c.device[uuid]]
			switch {
			case b.Share > 0:
				g.Share += sign * b.Share
				g.Free += unit.Bytes(sign) * (g.Usable/1000*unit.Bytes(b.Share) + g.Usable%1000*unit.Bytes(b.Share)/1000)
			case take:
				g.Share, g.Free = 0, 0
			default:
				g.Share, g.Free = 1000, g.Usable
			}
		}
	}
}
