package gang

import (
	"slices"

	"github.com/troupe-runtime/troupe/elastic/plan"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// MaxRanks bounds the ranks of a job.
const MaxRanks = 4096

// mostStartSizes bounds how many sizes are compared with a deadline.
const mostStartSizes = 1 << 16

// CheckSizes: the size that is asked for is an allowed one, and one that can be changed.
func CheckSizes(s *api.JobSpec, bad func(string, string, ...any)) {
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

// CheckPerNode: every size that the job may have fills whole nodes with so many ranks each.
func CheckPerNode(s *api.JobSpec, bad func(string, string, ...any)) {
	n, z := s.RanksPerNode, s.Sizes
	switch {
	case n == 0:
	case n < 0 || n > MaxRanks:
		bad("/ranksPerNode", "%d: 1 to %d, or 0 for what fits", n, MaxRanks)
	case s.PlacementGroup != "" || s.Hosts != nil:
		bad("/ranksPerNode", "goes with a job that holds its own placement group")
	case s.Ranks%n != 0:
		bad("/ranksPerNode", "%d ranks are not a multiple of %d on each node", s.Ranks, n)
	case z.Any() && len(z.Set) == 0 && max(z.Multiple, 1)%n != 0, z.Any() && slices.ContainsFunc(z.Set, func(x int64) bool { return x%n != 0 }):
		bad("/sizes", "with %d ranks on each node all sizes are multiples of it; set multiple", n)
	}
}

// StartSize is the size that a new job starts with, and where, if it starts now; place asks
// the scheduler about a request that is not in the log yet. It is what is asked for, if that
// fits now, and a larger one only if with a deadline nothing less is in time. Else with a
// deadline it is the smallest allowed one that meets it and fits now; else the largest that
// fits now; else the smallest that is in time, or without a deadline the smallest of all,
// which starts soonest.
func (c Cluster) StartSize(spec api.JobSpec, gs api.GroupSpec, place func(api.GroupSpec) []api.Placed) (int64, []api.Placed) {
	if !spec.Sizes.Any() {
		return spec.Ranks, place(gs)
	}
	with := func(n int64) []api.Placed { return place(Sized(gs, spec.Ranks, n)) }
	below := spec.Sizes.Below(spec.Ranks, mostStartSizes)
	least, inTime := spec.Ranks, int64(0)
	for _, n := range below {
		least = n
	}
	if !spec.Deadline.IsZero() {
		takes, within := c.View.Expect(&state.Group{Spec: gs}), spec.Deadline.Sub(c.Now)
		sizes := slices.Concat(below, []int64{spec.Ranks}, spec.Sizes.Above(spec.Ranks, mostStartSizes))
		if n, ok := schedule.LeastInTime(sizes, spec.Ranks, takes, within); ok {
			least, inTime = n, n
		}
	}
	if inTime > spec.Ranks {
		if placement := with(inTime); placement != nil {
			return inTime, placement
		}
	}
	if placement := with(spec.Ranks); placement != nil {
		return spec.Ranks, placement
	}
	if inTime > 0 && inTime < spec.Ranks {
		if placement := with(inTime); placement != nil {
			return inTime, placement
		}
	}
	for _, n := range below[:min(len(below), mostSizes)] {
		if placement := with(n); placement != nil {
			return n, placement
		}
	}
	return least, nil
}

// FitsSmaller reports whether the cluster and its quota could hold a job with fewer ranks
// than it asks for, if nothing else ran.
func (c Cluster) FitsSmaller(spec api.JobSpec, gs api.GroupSpec) bool {
	below := spec.Sizes.Below(spec.Ranks, mostStartSizes)
	if len(below) == 0 {
		return false
	}
	s := c.Snapshot()
	return slices.ContainsFunc(below, func(n int64) bool {
		g := Sized(gs, spec.Ranks, n)
		return schedule.NeverAllowed(s, &g) == nil && schedule.Never(s, g) == nil
	})
}

// Sized is the group of a job with n ranks instead of from: its bundles are alike, and how
// long it says that it takes goes with its size.
func Sized(gs api.GroupSpec, from, n int64) api.GroupSpec {
	gs.Bundles = slices.Repeat(gs.Bundles[:1], int(n))
	if gs.Estimate > 0 && n != from {
		gs.Estimate = unit.Duration(plan.WithRanks(gs.Estimate.D(), from, n))
		if gs.TimeLimit > 0 {
			gs.Estimate = min(gs.Estimate, gs.TimeLimit)
		}
	}
	return gs
}
