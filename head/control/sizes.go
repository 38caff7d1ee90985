package control

import (
	"slices"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// checkSizes: the size that is asked for is an allowed one, and one that can be changed.
func checkSizes(s api.JobSpec, bad func(string, string, ...any)) {
	z := s.Sizes
	switch {
	case z == nil:
		return
	case !z.Any():
		bad("/sizes", "allows nothing: give min and max, or a set")
	case len(z.Set) > 0 && (z.Min != 0 || z.Max != 0 || z.Multiple != 0):
		bad("/sizes", "a set, or min and max; not both")
	case len(z.Set) == 0 && (z.Min < 1 || z.Max < z.Min):
		bad("/sizes", "min %d and max %d: at least 1, and not more than max", z.Min, z.Max)
	case !z.Allows(s.Ranks, s.Ranks):
		bad("/ranks", "%d is not one of the allowed sizes", s.Ranks)
	}
	if s.PlacementGroup != "" || s.Kind == api.KindActor {
		bad("/sizes", "a job in a placement group, or an actor, has one size")
	}
}

// checkPerNode: every size that the job may have fills whole nodes with so many ranks each.
func checkPerNode(s *api.JobSpec, bad func(string, string, ...any)) {
	n, z := s.RanksPerNode, s.Sizes
	switch {
	case n == 0:
	case n < 0 || n > maxRanks:
		bad("/ranksPerNode", "%d: 1 to %d, or 0 for what fits", n, maxRanks)
	case s.PlacementGroup != "" || s.Hosts != nil:
		bad("/ranksPerNode", "goes with a job that holds its own placement group")
	case s.Ranks%n != 0:
		bad("/ranksPerNode", "%d ranks are not a multiple of %d on each node", s.Ranks, n)
	case z.Any() && len(z.Set) == 0 && max(z.Multiple, 1)%n != 0, z.Any() && slices.ContainsFunc(z.Set, func(x int64) bool { return x%n != 0 }):
		bad("/sizes", "with %d ranks on each node all sizes are multiples of it; set multiple", n)
	}
}

// startSize is the size that a new job starts with: what is asked for, if it fits now; else
// with a deadline the smallest allowed one that meets it and fits now; else the largest that
// fits now; else the smallest that is in time, or without a deadline the smallest of all,
// which starts soonest.
func (h *Head) startSize(v *state.View, id string, spec api.JobSpec, gs api.GroupSpec) (int64, []api.Placed) {
	if placement := h.placeNow(v, id, gs); placement != nil || !spec.Sizes.Any() {
		return spec.Ranks, placement
	}
	below := spec.Sizes.Below(spec.Ranks, maxRanks)
	least := spec.Ranks
	for _, n := range below {
		least = n
	}
	if !spec.Deadline.IsZero() {
		takes := v.Expect(&state.Group{Spec: gs})
		if n, ok := schedule.LeastInTime(append(below, spec.Ranks), spec.Ranks, takes, spec.Deadline.Sub(h.Clock.Now())); ok {
			least = n
			gs.Bundles = slices.Repeat(gs.Bundles[:1], int(n))
			if placement := h.placeNow(v, id, gs); placement != nil {
				return n, placement
			}
		}
	}
	for _, n := range spec.Sizes.Below(spec.Ranks, mostSizes) {
		gs.Bundles = slices.Repeat(gs.Bundles[:1], int(n))
		if placement := h.placeNow(v, id, gs); placement != nil {
			return n, placement
		}
	}
	return least, nil
}

// neverSized refuses a job none of whose sizes the cluster could hold even when empty.
func (h *Head) neverSized(v *state.View, spec api.JobSpec, gs api.GroupSpec) *api.Problem {
	p := h.never(v, gs)
	if p == nil || !spec.Sizes.Any() {
		return p
	}
	s := h.snapshotOf(v)
	for _, n := range spec.Sizes.Below(spec.Ranks, maxRanks) {
		gs.Bundles = slices.Repeat(gs.Bundles[:1], int(n))
		if schedule.Never(s, gs) == nil {
			return nil
		}
	}
	return p
}
