package gang

import (
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// Replacement keeps every bundle on a living node where it is and asks the scheduler for
// the others; nil when they do not all fit.
func (c Cluster) Replacement(g *state.Group) []api.Placed {
	if out := c.onSpares(g); out != nil {
		return out
	}
	out := make([]api.Placed, len(g.RankBundles()))
	stays, avoid := map[string]bool{}, c.avoided(g.Job)
	spec := g.Spec
	spec.Bundles, spec.Roles, spec.Min = nil, nil, 0 // as many as it has
	var moved []int
	for i, b := range g.RankBundles() {
		if c.Stands(b) && avoid[b.Node] == "" {
			out[i] = api.Placed{Bundle: int64(i), Node: b.Node, Devices: b.Devices}
			stays[b.Node] = true
			continue
		}
		moved = append(moved, i)
		spec.Bundles = append(spec.Bundles, g.Spec.Bundles[i])
	}
	bundles := c.beside(g, spec, stays)
	if bundles == nil {
		return nil
	}
	for k, i := range moved {
		out[i] = api.Placed{Bundle: int64(i), Node: bundles[k].Node, Devices: bundles[k].Devices}
	}
	return out
}

// KeepPlace is how long the place of a gang that lost a part is kept for it where nobody
// says otherwise.
const KeepPlace = 10 * time.Minute

// AfterLoss moves the gang of a job that lost a part of its placement, in one entry of the
// log: whole elsewhere; else with the largest smaller size that is allowed and fits now;
// else it waits with its seniority, and its place is kept for it for as long as the operator
// says, or for keep (P1). It returns where it stands whole, nil if it does not.
func (c Cluster) AfterLoss(j *state.Job, g *state.Group, why string, keep time.Duration, try Try) (placement []api.Placed, ok bool) {
	placement = c.Replacement(g)
	if placement == nil && len(g.Lent) == 0 && c.smaller(j, g, why, try) {
		return nil, true
	}
	if d := c.View.Settings().Policy.Replacement; d != nil {
		keep = d.D()
	}
	return placement, try(state.KindReleaseGroup, state.ReleaseGroup{
		Group: g.ID, Placement: placement, Why: why, Former: c.Now.Add(keep).UnixNano(),
	})
}
