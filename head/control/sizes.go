package control

import (
	"github.com/troupe-runtime/troupe/head/gang"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// startSize is the size that a new job starts with, and where, if it starts now.
func (h *Head) startSize(v *state.View, id string, spec api.JobSpec, gs api.GroupSpec) (int64, []api.Placed) {
	return h.gangs(v).StartSize(spec, gs, func(gs api.GroupSpec) []api.Placed { return h.placeNow(v, id, gs) })
}

// submission is the arrival of a job whose group is made for it, in the size that it starts
// with.
func (h *Head) submission(cmd state.SubmitJob) *arrival {
	asked, gs := cmd.Spec.Ranks, *cmd.GroupSpec
	return &arrival{id: cmd.Group, spec: gs, command: func(v *state.View, placement []api.Placed) (command, error) {
		c := cmd
		c.Spec.Ranks, c.Placement = h.gangs(v).StartSize(cmd.Spec, gs, func(other api.GroupSpec) []api.Placed {
			if len(other.Bundles) == len(gs.Bundles) {
				return placement // planned with those that came with it
			}
			return h.placeNow(v, cmd.Group, other)
		})
		sized := gang.Sized(gs, asked, c.Spec.Ranks)
		c.GroupSpec = &sized
		return command{state.KindSubmitJob, c}, nil
	}}
}

// neverSized refuses a job none of whose sizes the cluster could hold even when empty.
func (h *Head) neverSized(v *state.View, spec api.JobSpec, gs api.GroupSpec) *api.Problem {
	p := h.never(v, gs)
	if p != nil && h.gangs(v).FitsSmaller(spec, gs) {
		return nil
	}
	return p
}
