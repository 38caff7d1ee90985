// Package gang decides where one gang goes on, beside all that waits: with which size a job
// starts, where it goes after a loss or with another size, which of its spare nodes stand
// in, and which rank gets which bundle. It asks the scheduler and answers with commands;
// who leads proposes them. The head and the simulator decide here, so that both do alike.
// Nothing here reads a clock or knows a node's agent.
package gang

import (
	"maps"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/head/survey"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// Cluster is what is decided about.
type Cluster struct {
	View *state.View
	Now  time.Time
	// Snapshot is what the scheduler looks at; another one each time, for it is changed.
	Snapshot func() *schedule.Snapshot
}

// Try proposes a command and reports whether it was taken.
type Try func(kind state.Kind, command any) bool

// avoided are the nodes that a job keeps off now.
func (c Cluster) avoided(job string) map[string]string {
	return survey.Avoided(c.View.Job(job), c.Now.UnixNano())
}

// Stands reports whether a bundle may stay where it is.
func (c Cluster) Stands(b state.Bundle) bool {
	n := c.View.Node(b.Node)
	return n != nil && n.State == api.NodeReady && !n.Draining() && !c.Dirty(b.Hold)
}

// Dirty reports whether processes that do not die may still use a hold.
func (c Cluster) Dirty(hold string) bool {
	h := c.View.Hold(hold)
	return h != nil && slices.ContainsFunc(c.View.AllocsIn(h.Group), func(a *state.Alloc) bool {
		return !a.Gone && a.Dirty != "" && slices.Contains(a.Holds, hold)
	})
}

// PlanOne adds a request to what waits and returns where it is placed; nil: nowhere now.
func (c Cluster) PlanOne(s *schedule.Snapshot, r *schedule.Request) []api.Placed {
	s.Pending = append(s.Pending, r)
	for _, d := range schedule.NewPlanner().Plan(s, c.Now).Decisions {
		if d.Group == r.ID {
			return d.Bundles
		}
	}
	return nil
}

// beside asks the scheduler for further bundles of a group, some of which stand on the
// given nodes.
func (c Cluster) beside(g *state.Group, spec api.GroupSpec, stays map[string]bool) []api.Placed {
	if spec.Level != "" && spec.LevelWait != nil {
		// A level that is preferred is that of the others first, and then any.
		near := spec
		near.LevelWait = nil
		if out := c.beside(g, near, stays); out != nil {
			return out
		}
		spec.Level, spec.LevelWait = "", nil
	}
	s := c.Snapshot()
	c.freeSpares(s, g) // the entry that places the gang gives them back first
	if stay := keepOnly(s, g.ID, stays); stay+len(spec.Bundles) <= len(g.RankBundles()) {
		s.Queues = nil // it takes no more than it had, which no quota takes from it
	}
	avoid := schedule.Beside(s, &spec, stays, c.Now)
	if avoid == nil {
		avoid = map[string]string{}
	}
	maps.Copy(avoid, c.avoided(g.Job))
	return c.PlanOne(s, &schedule.Request{ID: g.ID, Name: survey.Name(c.View, g), Spec: spec, Seq: g.Seq, Avoid: avoid})
}

// keepOnly leaves of what a group holds what stays where it is: the rest is released in the
// entry that places it anew, and counts against no quota beside what replaces it. It
// answers how many bundles stay.
func keepOnly(s *schedule.Snapshot, group string, stays map[string]bool) (stay int) {
	for i, x := range s.Holders {
		if x.Group != group || x.Releasing {
			continue
		}
		left := slices.DeleteFunc(slices.Clone(x.Bundles), func(b schedule.Held) bool { return !stays[b.Node] })
		s.Holders[i] = x.With(left)
		stay += len(left)
	}
	return stay
}
