package control

import (
	"context"
	"fmt"
	"slices"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// stillLeaving reports whether an allocation of a job's former placement has not ended on a
// node where its ranks are to start.
func stillLeaving(v *state.View, j *state.Job, ranks []state.RankStart) bool {
	for _, a := range v.AllocsOf(j.ID) {
		if a.Leaving && !a.Gone && slices.ContainsFunc(ranks, func(r state.RankStart) bool { return r.Node == a.Node }) {
			return true
		}
	}
	return false
}

// Scale asks for another number of ranks of a job that holds its own placement group.
func (h *Head) Scale(ctx context.Context, id string, ranks int64, reason string) (api.Job, error) {
	if err := h.leader(); err != nil {
		return api.Job{}, err
	}
	v := h.Store.View()
	j, err := v.Resolve(id)
	if err != nil {
		return api.Job{}, h.problemOf(err)
	}
	if ranks < 1 || ranks > maxRanks {
		return api.Job{}, invalid([]api.FieldError{{Pointer: "/ranks", Detail: fmt.Sprintf("%d: 1 to %d", ranks, maxRanks)}})
	}
	if ranks == j.Spec.Ranks && j.Drain == nil {
		return h.Job(ctx, j.ID)
	}
	g := v.Group(j.Group)
	if g != nil && g.Job == j.ID {
		spec := g.Spec
		spec.Bundles = slices.Repeat(g.Spec.Bundles[:1], int(ranks))
		if p := h.never(v, spec); p != nil {
			return api.Job{}, p
		}
	}
	text := "resize to " + counted(int(ranks), "rank")
	if reason != "" {
		text += ": " + reason
	}
	if _, err := h.propose(ctx, state.KindDrainJob, state.DrainJob{Job: j.ID, Drain: state.Drain{Kind: state.DrainResize, Ranks: ranks, Reason: text}}); err != nil {
		return api.Job{}, h.problemOf(err)
	}
	h.Kick()
	return h.Job(ctx, j.ID)
}
