package gang

import (
	"github.com/troupe-runtime/troupe/elastic/supervise"
	"github.com/troupe-runtime/troupe/head/state"
)

// DrainFacts is what the supervisor must know of an orderly end.
func DrainFacts(v *state.View, j *state.Job) *supervise.Drain {
	d := j.Drain
	if d == nil {
		return nil
	}
	out := &supervise.Drain{After: supervise.After(d.Kind), Reason: d.Reason}
	if d.Leaves() {
		out.After = supervise.ThenWait
	}
	if last := j.Last(); last != nil {
		out.Ordered = d.Ordered != "" && d.Generation == last.Generation
	}
	if p := j.AgreedEnd(); p != nil {
		out.Agreed, out.Target = true, p.Target
	}
	if ck := v.SavedEnd(j); ck != nil {
		out.Saved = &ck.Step
	}
	return out
}
