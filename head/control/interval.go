package control

import (
	"context"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/elastic/plan"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// savingPlan says how often a job saves and by what that was chosen; nil when the script
// decides by itself.
func (h *Head) savingPlan(v *state.View, j *state.Job) *api.SavingPlan {
	i, err := plan.ParseInterval(j.Spec.Checkpoint.Interval)
	if err != nil || i == (plan.Interval{}) {
		return nil
	}
	c, saves := h.costs(v, j)
	out := &api.SavingPlan{
		Interval: i.String(), Steps: i.Steps, Every: dur(i.Every), Stall: dur(c.Stall), Upload: dur(c.Upload), Restart: dur(c.Restart), MTBF: dur(c.MTBF),
		Saves: saves, Failures: j.Ledger.Failed, Best: dur(c.Best()),
	}
	if i.Auto {
		out.Every = out.Best
	}
	return out
}

// Saving says how often a run saves, of its newest job or of the one that is named.
func (h *Head) Saving(_ context.Context, run string) *api.SavingPlan {
	v := h.Store.View()
	if r := v.Run(run); r != nil {
		if j := v.Job(r.Job); j != nil {
			return h.savingPlan(v, j)
		}
		for _, j := range slices.Backward(v.Jobs()) { // the run has no live job
			if j.Run() == run {
				return h.savingPlan(v, j)
			}
		}
		return nil
	}
	j, err := v.Resolve(run)
	if err != nil {
		return nil
	}
	return h.savingPlan(v, j)
}

// costs are what was measured of a job's saves, restarts and failures.
func (h *Head) costs(v *state.View, j *state.Job) (plan.Costs, int64) {
	p := h.planJob(v, j)
	var saves int64
	for i := range j.Attempts {
		saves += j.Attempts[i].Pace.Saves
	}
	if last := j.Last(); last != nil && last.Ended == 0 {
		saves += h.heard(v, last).saves
		a := &p.Attempts[len(p.Attempts)-1]
		a.Ended = h.Clock.Now() // it ran until now
	}
	return p.Costs(saves, j.Ledger.Failed, j.Spec.Ranks), saves
}

// saveByTime lets the ranks of each job whose interval is a time, or automatic, agree on a
// step to save when that time has come. It runs in the loop of the leadership alone.
func (h *Head) saveByTime() {
	v := h.Store.View()
	asked := map[string]time.Time{}
	for _, j := range v.LiveJobs() {
		if at, ok := h.asked[j.ID]; ok {
			asked[j.ID] = at
		}
		if h.saveDue(v, j, asked[j.ID]) && h.ProposeCheckpoint(j.ID) {
			asked[j.ID] = h.Clock.Now()
		}
	}
	h.asked = asked
}

// saveDue reports whether a job is to save now. It is asked once for each interval: what
// was asked for stands until the ranks have agreed.
func (h *Head) saveDue(v *state.View, j *state.Job, asked time.Time) bool {
	last := j.Last()
	i, err := plan.ParseInterval(j.Spec.Checkpoint.Interval)
	if err != nil || i.Every == 0 && !i.Auto || last == nil || last.Ended != 0 || j.State != api.Running || last.Pace.First == 0 {
		return false
	}
	newest := asked
	if c := v.NewestCommitted(j.Run()); c != nil && c.Generation == last.Generation {
		if at := time.Unix(0, c.Committed); at.After(newest) {
			newest = at
		}
	}
	var c plan.Costs
	if i.Auto {
		c, _ = h.costs(v, j)
	}
	return i.Due(c, time.Unix(0, last.Pace.First), newest, h.Clock.Now())
}
