package control

import (
	"context"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/elastic/plan"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// planJob is a job as the account of its time looks at it, with what this leader hears of
// its live attempt: what is durable is in the log, the rest is heard again by any leader.
func (h *Head) planJob(v *state.View, j *state.Job) plan.Job {
	p := v.PlanJob(j)
	last := j.Last()
	if last == nil || last.Ended != 0 || len(p.Attempts) == 0 {
		return p
	}
	a := &p.Attempts[len(p.Attempts)-1]
	heard := h.heard(v, last)
	a.Newest, a.Saving = max(a.Newest, heard.newest), time.Duration(heard.saving)
	a.Upload, a.Uploads = time.Duration(heard.upload), heard.uploads
	if since := last.Pace.Since; since != 0 {
		a.Stalled += max(0, h.Clock.Now().Sub(time.Unix(0, since)))
	}
	return p
}

// goodput is where the time of a job went until now.
func (h *Head) goodput(v *state.View, j *state.Job) api.Goodput {
	now := h.Clock.Now()
	all, _ := plan.Account(h.planJob(v, j), now)
	out := api.Goodput{
		Job: j.ID, Wall: dur(all.Sum()), Ratio: all.Ratio(), Useful: dur(all.Useful), Waiting: dur(all.Waiting), Starting: dur(all.Starting),
		Checkpointing: dur(all.Checkpointing), Stalled: dur(all.Stalled), Restarting: dur(all.Restarting), Lost: dur(all.Lost), AsOf: now.UTC(),
	}
	if last := j.Last(); last != nil {
		out.Restarts = last.Number
		out.Saves = h.heard(v, last).saves
	}
	for i := range len(j.Attempts) - 1 {
		out.Saves += j.Attempts[i].Pace.Saves
	}
	return out
}

// Goodput answers for one job, by id or unique prefix.
func (h *Head) Goodput(_ context.Context, id string) (api.Goodput, error) {
	v := h.Store.View()
	j, err := v.Resolve(id)
	if err != nil {
		return api.Goodput{}, h.problemOf(err)
	}
	return h.goodput(v, j), nil
}

// History lists the attempts of a job that are kept, oldest first, with what they cost.
func (h *Head) History(_ context.Context, id string) ([]api.History, uint64, error) {
	v := h.Store.View()
	j, err := v.Resolve(id)
	if err != nil {
		return nil, 0, h.problemOf(err)
	}
	p := h.planJob(v, j)
	_, each := plan.Account(p, h.Clock.Now())
	out := make([]api.History, 0, len(j.Attempts))
	for i := range j.Attempts {
		a := &j.Attempts[i]
		row := api.History{
			Attempt: a.Number, Generation: a.Generation, Start: at(a.Created), Running: at(a.Running), FirstStep: at(a.Pace.First), End: at(a.Ended),
			Ranks: j.Spec.Ranks, Kept: a.Pace.Kept, Cause: a.Cause, Root: a.Failure, LostWork: dur(each[i].Lost), Useful: dur(each[i].Useful),
		}
		if len(a.Ranks) > 0 {
			row.Ranks = int64(len(a.Ranks))
		}
		for _, r := range a.Ranks {
			if n := nodeName(v, r.Node); !slices.Contains(row.Nodes, n) {
				row.Nodes = append(row.Nodes, n)
			}
		}
		if a.FirstStep || a.Restore != nil {
			from := a.Pace.From
			row.From = &from
		}
		if newest := p.Attempts[i].Newest; a.FirstStep && newest >= 0 {
			row.Newest = &newest
		}
		if d, ok := p.Recovery(i); ok {
			r := dur(d)
			row.RecoveryTime = &r
		}
		out = append(out, row)
	}
	return out, v.Index(), nil
}

// Failures lists what failed in a job: attempts in order, the root cause of each first.
func (h *Head) Failures(_ context.Context, id string) ([]api.FailureRow, uint64, error) {
	v := h.Store.View()
	j, err := v.Resolve(id)
	if err != nil {
		return nil, 0, h.problemOf(err)
	}
	out := []api.FailureRow{}
	for i := range j.Attempts {
		out = append(out, failuresOf(v, &j.Attempts[i])...)
	}
	return out, v.Index(), nil
}

func failuresOf(v *state.View, a *state.Attempt) []api.FailureRow {
	var out []api.FailureRow
	root := int64(-2) // a rank that none is
	if f := a.Failure; f != nil {
		row := api.FailureRow{
			Time: at(a.Ended), Attempt: a.Number, Rank: f.Rank, Node: f.Node, Kind: string(a.Cause), Root: true,
			ExitCode: f.ExitCode, Signal: f.Signal, Message: f.Message, Traceback: f.Traceback,
		}
		if a.Cause == api.CauseNone {
			row.Kind = api.KindRestart
		}
		for _, e := range a.Exits {
			if e.Rank == f.Rank && f.Rank >= 0 {
				row.Time = at(e.At) // when it ended, not when that was found to be the root
			}
		}
		root = f.Rank
		out = append(out, row)
	}
	places := map[string]string{}
	for _, r := range a.Ranks {
		places[r.Alloc] = nodeName(v, r.Node)
	}
	for _, e := range a.Exits {
		if e.Rank == root || e.ByShim || e.Code == 0 && e.Signal == 0 {
			continue
		}
		row := api.FailureRow{
			Time: at(e.At), Attempt: a.Number, Rank: e.Rank, Node: places[e.Alloc], Kind: api.KindConsequence,
			ExitCode: exitCode(e.RankExit), Message: state.ExitText(e.RankExit),
		}
		if a.Ended == 0 {
			row.Kind = "not settled" // the root cause is still being looked for
		}
		out = append(out, row)
	}
	return out
}

func exitCode(e wire.RankExit) int64 {
	if e.Signal > 0 {
		return 128 + e.Signal
	}
	return e.Code
}
