package supervise

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Restarts that each class has, where the policy says nothing.
const (
	defaultUser  = 3
	defaultInfra = 20
	defaultHang  = 3
)

// The back-off: from the third restart within the window on, doubling.
const (
	burstWindow  = 10 * time.Minute
	burstFree    = 2
	backoffFirst = 500 * time.Millisecond
	backoffMost  = time.Minute
	// maxRecent failures are remembered: so many are within the window when every
	// attempt fails at once and the back-off is at its longest.
	maxRecent = 10
)

// firstStepTime is how long an attempt counts as not past its first step when no rank
// publishes steps. A script that never does and fails after an hour made progress.
const firstStepTime = 5 * time.Minute

func (l Ledger) copy() Ledger {
	l.Recent = slices.Clone(l.Recent)
	l.Faults = slices.Clone(l.Faults)
	return l
}

// charge books a failure (P9). same says that the attempt before failed in the same
// way, both before their first step.
func charge(g *Group, e *evidence, now time.Time) (l Ledger, same bool) {
	l = g.Ledger.copy()
	g.refill(&l, now)
	l.Before = ""
	if g.shrinks(e) {
		return l, false
	}
	l.Failed++
	switch e.cause {
	case api.CauseUser:
		l.User++
	case api.CauseInfra:
		l.Infra++
	case api.CauseHang:
		l.Hang++
	case api.CauseNone:
	}
	l.Recent = append(l.Recent, now)
	if extra := len(l.Recent) - maxRecent; extra > 0 {
		l.Recent = l.Recent[extra:]
	}
	l.blame(e, now)
	if stopsEarly(g) && e.cause == api.CauseUser && e.strength != connection && beforeFirstStep(g.Attempt, e, now) {
		l.Before = digest(e.evidence)
	}
	return l, l.Before != "" && l.Before == g.Ledger.Before
}

// stopsEarly: services and actors have no steps, and are to be there for ever; a budget
// of restarts for the whole group, as launch gives, is spent exactly.
func stopsEarly(g *Group) bool {
	return g.ActorMaxRestarts == nil && g.Policy.MaxRestarts == nil && g.Kind != api.KindService
}

func beforeFirstStep(a *Attempt, e *evidence, now time.Time) bool {
	if a.FirstStep {
		return false
	}
	for i := range a.Exits {
		// -1 is none; a report without the field says 0, which is no proof of a step.
		if a.Exits[i].StepsDone > 0 {
			return false
		}
	}
	at := e.at
	if at.IsZero() {
		at = now
	}
	return a.Created.IsZero() || at.Sub(a.Created) < firstStepTime
}

// budget is one row of the table of budgets, after a charge.
type budget struct {
	used, limit int64
	unlimited   bool
	kind        string // of restarts: "user ", "infrastructure ", "hang ", "" for all
}

// budgetOf is the budget that a cause counts against: of an actor its own, under a
// fixed maximum that one for every class, else that of the class.
func budgetOf(g *Group, l *Ledger, cause api.Cause) budget {
	p := g.Policy
	switch {
	case g.ActorMaxRestarts != nil && *g.ActorMaxRestarts < 0:
		return budget{used: l.Failed, unlimited: true}
	case g.ActorMaxRestarts != nil:
		return budget{used: l.Failed, limit: *g.ActorMaxRestarts}
	case p.MaxRestarts != nil:
		return budget{used: l.Failed, limit: max(0, *p.MaxRestarts)}
	}
	switch cause {
	case api.CauseInfra:
		return budget{used: l.Infra, limit: orDefault(p.Infra, defaultInfra), kind: "infrastructure "}
	case api.CauseHang:
		return budget{used: l.Hang, limit: orDefault(p.Hang, defaultHang), kind: "hang "}
	case api.CauseUser, api.CauseNone:
	}
	return budget{used: l.User, limit: orDefault(p.User, defaultUser), kind: "user "}
}

func orDefault(v *int64, def int64) int64 {
	if v == nil {
		return def
	}
	return max(0, *v)
}

// exhausted: the failure just charged would need a restart beyond the limit.
func (b budget) exhausted() bool { return !b.unlimited && b.used > b.limit }

// said is for an attempt that will be followed by another.
func (b budget) said() string {
	if b.unlimited {
		return fmt.Sprintf("restart %d of any number", b.used)
	}
	if b.kind == "" {
		return fmt.Sprintf("restart %d of %d allowed", b.used, b.limit)
	}
	return fmt.Sprintf("restart %d of %d for %sfailures", b.used, b.limit, b.kind)
}

// reason is why there is no further attempt.
func (b budget) reason(e *evidence) api.Reason {
	if b.limit == 0 {
		code := e.code
		if code != api.ReasonUserError && code != api.ReasonNodeLost {
			code = api.ReasonBudget
		}
		r := reason(code, "%s; no restarts are allowed", e.said())
		r.Need, r.Have = "1 restart", "0 restarts"
		return r
	}
	r := reason(api.ReasonBudget, "%d of %d %s used; last: %s", b.limit, b.limit, many(b.limit, b.kind+"restart"), e.said())
	r.Need, r.Have = fmt.Sprintf("%d %s", b.used, many(b.used, "restart")), fmt.Sprintf("%d %s", b.limit, many(b.limit, "restart"))
	return r
}

// burst is how many of the newest failures lie within the window, seen from the
// newest.
func (l *Ledger) burst() int {
	if len(l.Recent) == 0 {
		return 0
	}
	newest := l.Recent[len(l.Recent)-1]
	n := 0
	for _, t := range l.Recent {
		if d := newest.Sub(t); d <= burstWindow && d >= -burstWindow {
			n++
		}
	}
	return n
}

// backoff is how much longer the next attempt has to wait.
func backoff(g *Group, now time.Time) time.Duration {
	l := &g.Ledger
	n := l.burst()
	if g.Policy.NoBackoff || n <= burstFree {
		return 0
	}
	full := backoffFirst
	for i := burstFree + 1; i < n && full < backoffMost; i++ {
		full *= 2
	}
	full = min(full, backoffMost)
	d := jitter(full, g.Job, l.Failed)
	// The clock of a new leader may be behind: never wait longer than the whole.
	return min(d, max(0, d-now.Sub(l.Recent[len(l.Recent)-1])))
}

// jitter takes up to half of d off, as the job and its count of failures say: spread
// over jobs, and the same on every head.
func jitter(d time.Duration, job string, failed int64) time.Duration {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s/%d", job, failed) // never fails, by its contract
	part := time.Duration(mix(h.Sum64()) % 1024)
	return d - d/2*part/1024
}

// mix spreads the few low bits in which two near inputs differ over all of them.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}
