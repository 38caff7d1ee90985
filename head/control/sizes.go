package control

import (
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// startSize is the size that a new job starts with, and where, if it starts now.
func (h *Head) startSize(v *state.View, id string, spec api.JobSpec, gs api.GroupSpec) (int64, []api.Placed) {
	return h.gangs(v).StartSize(spec, gs, func(gs api.GroupSpec) []api.Placed { return h.placeNow(v, id, gs) })
}

// neverSized refuses a job none of whose sizes the cluster could hold even when empty.
func (h *Head) neverSized(v *state.View, spec api.JobSpec, gs api.GroupSpec) *api.Problem {
	p := h.never(v, gs)
	if p != nil && h.gangs(v).FitsSmaller(spec, gs) {
		return nil
	}
	return p
}
