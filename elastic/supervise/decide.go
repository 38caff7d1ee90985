package supervise

import (
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Decide says what to do with a worker group now. It is level-triggered: it looks only
// at the facts, so it may be asked again at any time, by any leader, and answers the
// same. The caller carries the decision out in one log entry and asks again.
//
// An attempt that failed is closed first: End is set and the action is Wait (or Finish,
// when no restart is left). Asked again with Attempt.Ended, the answer is Replace if
// the placement lost a node, Wait with a Delay while the back-off lasts, and then Start.
func Decide(g Group, now time.Time) Decision {
	switch {
	case g.State.Terminal():
		// P9: a terminal state is final.
		return wait("", "%s is %s, which is final", g.Job, g.State)
	case g.StopAsked || g.OwnerGone:
		return stopping(&g)
	case g.Attempt == nil || g.Attempt.Ended:
		return between(&g, now)
	}
	return during(&g, now)
}

func wait(code api.ReasonCode, format string, args ...any) Decision {
	return Decision{Action: Wait, Reason: reason(code, format, args...)}
}

func reason(code api.ReasonCode, format string, args ...any) api.Reason {
	return api.Reason{Code: code, Text: clip(fmt.Sprintf(format, args...), maxReason)}
}

// stopping ends the group because somebody asked for it or its owner is gone. Whatever
// the ranks do meanwhile is a consequence and charged to nobody.
func stopping(g *Group) Decision {
	code, text := api.ReasonStopped, "stopped by request"
	if g.StopReason != "" {
		text = "stopped: " + g.StopReason
	}
	if !g.StopAsked {
		code, text = api.ReasonOwnerGone, "stopped: the process that owns the job is gone"
	}
	limit := g.StopAsked && g.TimeLimit
	if limit {
		code, text = api.ReasonLimit, g.StopReason
	}
	a := g.Attempt
	if a != nil && !a.Ended && !a.allGone() {
		return Decision{Action: Stop, Reason: reason(code, "%s; %s", text, a.progress())}
	}
	d := Decision{Action: Finish, State: api.Stopped, Reason: reason(code, "%s", text)}
	if limit {
		d.State, d.ExitCode = api.Failed, api.ExitRetry
	}
	if a != nil && !a.Ended {
		d.End = &End{Cause: api.CauseNone, Ledger: g.Ledger.copy()}
	}
	return d
}

// between decides while no attempt is open.
func between(g *Group, now time.Time) Decision {
	switch {
	case g.Drain != nil && g.Drain.After == ThenStop:
		return Decision{Action: Finish, State: api.Stopped, Reason: reason(api.ReasonStopped, "stopped: %s", g.Drain.Reason)}
	case g.State == api.Held || g.State == api.Suspended:
		return wait(api.ReasonHeld, "%s is %s", g.Job, g.State)
	case len(g.Lost) > 0:
		// A gang must be whole before it starts, also if the node was lost between
		// placement and start (P1).
		d := Decision{Action: Replace, Reason: reason(api.ReasonNodeLost, "the placement lost %s", list("node", g.Lost))}
		d.Reason.Blockers = append([]string(nil), g.Lost...)
		return d
	case len(g.Barred) > 0:
		d := Decision{Action: Replace, Reason: reason(api.ReasonExcluded, "%s excluded from this job after repeated failures", isAre(list("node", g.Barred), len(g.Barred)))}
		d.Reason.Blockers = append([]string(nil), g.Barred...)
		return d
	case !g.Placed:
		return wait(api.ReasonFit, "%s waits for its placement", g.Job)
	case g.Drain != nil && g.Drain.After == ThenWait:
		return Decision{Action: Release, Reason: reason(api.ReasonPreempted, "%s", g.Drain.Reason)}
	case g.Drain != nil && g.Drain.After == ThenMove:
		return Decision{Action: Replace, Reason: reason(api.ReasonHealth, "%s", g.Drain.Reason)}
	case g.Drain != nil && g.Drain.After == ThenResize:
		return Decision{Action: Resize, Reason: reason("", "%s", g.Drain.Reason)}
	}
	if g.Attempt == nil {
		return Decision{Action: Start, Reason: reason("", "placed: attempt 0 starts")}
	}
	next := g.Attempt.Number + 1
	if g.Attempt.Again {
		next--
		return Decision{Action: Start, Number: next, Reason: reason("", "attempt %d starts with the next master port", next)}
	}
	if d := backoff(g, now); d > 0 {
		w := wait(api.ReasonPolicy, "attempt %d starts in %s: %d failures within %s", next, round(d), g.Ledger.burst(), burstWindow)
		w.Delay = d
		return w
	}
	return Decision{Action: Start, Number: next, Reason: reason("", "attempt %d starts after attempt %d ended", next, g.Attempt.Number)}
}

// during decides while an attempt is open.
func during(g *Group, now time.Time) Decision {
	a := g.Attempt
	if len(a.Allocs) == 0 || a.World <= 0 {
		return wait("", "attempt %d has no ranks yet", a.Number)
	}
	if g.Drain != nil {
		if d, ok := draining(g); ok {
			return d
		}
	}
	if d, done := success(g); done {
		return d
	}
	if alloc := a.damaged(); alloc != nil {
		return rollBack(g, alloc)
	}
	found := a.evidence(g.Lost)
	if alloc := a.portUsed(); alloc != nil && onlyConnections(found) {
		return Decision{
			Action: Wait, End: &End{Cause: api.CauseNone, Ledger: g.Ledger.copy(), Again: true},
			Reason: reason(api.ReasonHealth, "attempt %d: the master port was taken on %s; the next port is tried, not charged", a.Number, alloc.Node),
		}
	}
	if len(found) > 0 {
		if d := settle(g, found, now); d > 0 {
			w := wait("", "attempt %d failed: %s; waiting for the root cause", a.Number, found[0].said())
			w.Delay = d
			w.Abort, w.Delay = abort(a, found, now, d)
			return w
		}
		return failed(g, root(found), now)
	}
	if a.allGone() {
		return failed(g, a.unexplained(), now)
	}
	if a.allStarted() && (g.State == api.Starting || g.State == api.Recovering || g.State == api.Reserved || g.State == api.Queued) {
		return Decision{Action: Run, Reason: reason("", "attempt %d: %s started", a.Number, allRanks(a.World))}
	}
	return wait("", "attempt %d: %s", a.Number, a.progress())
}

// connectionTime is how long connection errors alone may stand before the attempt's
// other ranks are ended: whoever caused them has mostly a moment more to live, and is to
// say so itself.
const connectionTime = time.Second

// abort says why the ranks on other nodes are to be ended while the cause is waited for
// for delay more, or when to ask again.
func abort(a *Attempt, found []evidence, now time.Time, delay time.Duration) (string, time.Duration) {
	if len(a.Allocs) < 2 {
		return "", delay // the shim has seen it all and acts by itself
	}
	e := root(found)
	if e.strength > connection || e.at.IsZero() {
		return clip(e.said(), maxMessage), delay
	}
	if left := connectionTime - now.Sub(e.at); left > 0 && left <= connectionTime {
		return "", min(delay, left)
	}
	return clip(e.said(), maxMessage), delay
}

// success: every rank ended with 0 by itself, and nothing of the attempt is left.
func success(g *Group) (Decision, bool) {
	a := g.Attempt
	if a.finished() < a.World || !a.allGone() {
		return Decision{}, false
	}
	return Decision{
		Action: Finish, State: api.Succeeded,
		End:    &End{Cause: api.CauseNone, Ledger: g.Ledger.copy()},
		Reason: reason("", "%s ended with exit code 0", allRanks(a.World)),
	}, true
}

// rollBack: the step to restore is damaged. Nobody is charged, and it ends, because
// each roll-back frees a step and there are finitely many (P4).
func rollBack(g *Group, alloc *Alloc) Decision {
	a := g.Attempt
	step := "the restore step"
	if a.Restore != nil {
		step = fmt.Sprintf("step %d", *a.Restore)
	}
	text := fmt.Sprintf("%s is damaged: %s (found by %s)", step, alloc.Damaged, alloc.Node)
	return Decision{
		Action: Wait, RollBack: clip(alloc.Damaged, maxReason),
		End: &End{
			Cause:   api.CauseNone,
			Failure: &api.Failure{Rank: -1, Node: alloc.Node, ExitCode: api.ExitRetry, Message: clip(text, maxMessage)},
			Ledger:  g.Ledger.copy(),
		},
		Reason: reason(api.ReasonRestore, "attempt %d: %s; rolled back, not charged", a.Number, text),
	}
}

// failed charges the root cause and decides whether another attempt is left.
func failed(g *Group, e evidence, now time.Time) Decision {
	l, same := charge(g, &e, now)
	d := Decision{Action: Wait, End: &End{Cause: e.cause, Failure: e.failure, Ledger: l}}
	left := budgetOf(g, &l, e.cause)
	if g.shrinks(&e) {
		d.End.Cause = api.CauseNone // the ledger counts no failure
		d.Reason = reason(e.code, "attempt %d: %s; within the group's least size, so not counted", g.Attempt.Number, e.said())
		d.Reason.Where = e.failure.Node
		return d
	}
	switch {
	case same:
		d.Action, d.State, d.ExitCode = Finish, api.Failed, e.failure.ExitCode
		d.Reason = reason(api.ReasonSameFailure, "the same failure twice before the first step: %s", e.said())
	case left.exhausted():
		d.Action, d.State, d.ExitCode = Finish, api.Failed, e.failure.ExitCode
		d.Reason = left.reason(&e)
	default:
		d.Reason = reason(e.code, "attempt %d failed: %s; %s", g.Attempt.Number, e.said(), left.said())
	}
	d.Reason.Where = e.failure.Node
	if d.Action != Finish {
		d.End.Bar = g.bar(&l, e.failure.Node)
	}
	return d
}

// onlyConnections: nothing but peers that could not reach each other. Without a master
// port that is what they say, on every node but the one that knows why.
func onlyConnections(found []evidence) bool {
	for _, e := range found {
		if e.strength != connection {
			return false
		}
	}
	return true
}
