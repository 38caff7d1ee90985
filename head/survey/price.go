package survey

import (
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// What starting ranks again and saving on demand take where it was not measured.
const (
	restartCost = 30 * time.Second
	saveCost    = 10 * time.Second
)

// price says what ending or shrinking a placed group would cost, and whether it can.
func price(v *state.View, g *state.Group, x *schedule.Holder) {
	x.Lent = g.Lent
	for _, j := range v.JobsOf(g.ID) {
		if j.State.Terminal() {
			continue
		}
		d := j.Drain
		if j.ID != g.Job || j.Stop != nil || j.OwnerGone || j.Spec.Hosts != nil || d != nil && d.For == "" && d.Kind != state.DrainResize {
			x.Fixed = true
			continue
		}
		if d != nil {
			if x.LeavingFor = d.For; d.Kind == state.DrainResize {
				x.Keeps = d.Ranks
			}
		} else if j.Spec.Sizes.Any() && len(g.SpareBundles()) == 0 {
			x.Sizes = j.Spec.Sizes
		}
		if last := j.Last(); d == nil && j.State == api.Running && last != nil {
			x.Sized = at(max(last.Running, last.Created))
		}
		x.Evictions = j.Evictions
		if c := v.NewestCommitted(j.Run()); c != nil {
			x.Committed = at(c.Committed)
		}
		if j.Spec.Kind == api.KindTraining {
			x.Restart = restartCost
			x.SaveCost = saves(j)
		}
	}
}

// saves is how long the job takes to save on demand; 0: it cannot, as far as is known.
func saves(j *state.Job) time.Duration {
	last := j.Last()
	switch {
	case last == nil || !last.FirstStep || last.NoSaves != "" || j.ClassOf() != wire.ClassFast:
		return 0
	case last.Pace.Saves > 0:
		return max(time.Second, time.Duration(last.Pace.Saving/last.Pace.Saves))
	}
	return saveCost
}
