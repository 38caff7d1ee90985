package supervise

import (
	"fmt"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// After says what follows an orderly end.
type After string

// What follows.
const (
	ThenStop   After = "stop"
	ThenMove   After = "move"
	ThenResize After = "resize"
	// ThenWait: the placement is given back, and the group waits for another one.
	ThenWait After = "wait"
)

// Drain is an orderly end of the group that was asked for and is not charged to anybody.
type Drain struct {
	After  After
	Reason string
	// Ordered: the ranks of the open attempt are told to end; whatever they do now is a
	// consequence.
	Ordered bool
	// Agreed: they have agreed to end after step Target. A rank that ends well at it or
	// later does so for that reason and has not finished its work.
	Agreed bool
	Target int64
	Saved  *int64 // the committed step that they ended with
}

// draining decides about an open attempt that is being ended in order; ok is false while
// it is to be judged like any other.
func draining(g *Group) (Decision, bool) {
	d, a := g.Drain, g.Attempt
	switch {
	case d.Ordered:
	case !d.leaving(a):
		return Decision{}, false
	case d.Saved == nil && len(a.evidence(g.Lost)) > 0:
		return Decision{}, false // it failed before it had saved
	}
	if !a.allGone() {
		return wait("", "attempt %d ends: %s; %s", a.Number, d.Reason, a.progress()), true
	}
	saved := "nothing was saved for it"
	if d.Saved != nil {
		saved = fmt.Sprintf("step %d is saved", *d.Saved)
	}
	text := fmt.Sprintf("attempt %d has ended, not charged: %s; %s", a.Number, d.Reason, saved)
	out := Decision{Action: Wait, End: &End{Cause: api.CauseNone, Ledger: g.Ledger.copy()}, Reason: reason("", "%s", text)}
	if d.After == ThenStop {
		out.Action, out.State = Finish, api.Stopped
		out.Reason = reason(api.ReasonStopped, "stopped: %s; %s", d.Reason, saved)
	}
	return out, true
}

// leaving: ranks have begun to end as agreed, and none for another reason.
func (d *Drain) leaving(a *Attempt) bool {
	if !d.Agreed || len(a.Exits) == 0 {
		return false
	}
	for i := range a.Exits {
		if e := &a.Exits[i]; e.clean() && e.StepsDone < d.Target {
			return false // its work was done before
		}
	}
	return true
}
