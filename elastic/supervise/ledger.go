package supervise

import (
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

const (
	// refillEvery is the time of useful steps after which each class gets one restart back.
	refillEvery = time.Hour
	// defaultExcludeAfter failures of one node within faultWindow keep the job off it for
	// as long.
	defaultExcludeAfter = 3
	faultWindow         = time.Hour
	maxFaults           = 32
)

// refill gives back one restart of each class for every hour of useful steps. Under one
// budget for everything, as launch and actors have, failures are counted exactly.
func (g *Group) refill(l *Ledger, now time.Time) {
	useful := g.useful(now)
	if a := g.Attempt; a != nil && a.FirstStep {
		l.High = max(l.High, a.Newest)
	}
	if g.ActorMaxRestarts != nil || g.Policy.MaxRestarts != nil {
		return
	}
	l.Useful += useful
	for ; l.Useful >= refillEvery; l.Useful -= refillEvery {
		if l.User == 0 && l.Infra == 0 && l.Hang == 0 {
			l.Useful = 0 // nothing is owed, and hours are not saved up
			return
		}
		l.User, l.Infra, l.Hang = max(0, l.User-1), max(0, l.Infra-1), max(0, l.Hang-1)
		l.Refills++
	}
}

// useful is how long the attempt made steps that no attempt had made before: a job that
// fails again and again at the same step gets nothing back for doing it over.
func (g *Group) useful(now time.Time) time.Duration {
	a := g.Attempt
	if a == nil || a.FirstStepAt.IsZero() || a.Newest <= a.From {
		return 0
	}
	fresh := a.Newest - max(a.From, g.Ledger.High)
	took := now.Sub(a.FirstStepAt) - max(0, a.Idle)
	if fresh <= 0 || took <= 0 {
		return 0
	}
	return time.Duration(float64(took) * float64(fresh) / float64(a.Newest-a.From))
}

// shrinks: a node left a group that may be smaller. Under the one budget of launch, which
// counts failed attempts, that is a change of its membership and no failure.
func (g *Group) shrinks(e *evidence) bool {
	if g.Policy.MaxRestarts == nil || e.strength != lost || g.MinRanks <= 0 || g.Attempt == nil {
		return false
	}
	left := g.Attempt.World
	for i := range g.Attempt.Allocs {
		if x := &g.Attempt.Allocs[i]; x.Lost || slices.Contains(g.Lost, x.Node) {
			left -= int64(len(x.Ranks))
		}
	}
	return left >= g.MinRanks
}

// blame notes whose fault an infrastructure failure was.
func (l *Ledger) blame(e *evidence, now time.Time) {
	if e.cause != api.CauseInfra || e.failure.Node == "" {
		return
	}
	l.Faults = append(l.Faults, Fault{Node: e.failure.Node, At: now})
	if extra := len(l.Faults) - maxFaults; extra > 0 {
		l.Faults = l.Faults[extra:]
	}
}

// bar decides whether the job is to keep off a node from now on. Where there is no other
// node, doing so would only make it wait.
func (g *Group) bar(l *Ledger, node string) *Bar {
	limit := orDefault(g.Policy.ExcludeAfter, defaultExcludeAfter)
	if limit == 0 || node == "" || len(l.Faults) == 0 || l.Faults[len(l.Faults)-1].Node != node {
		return nil
	}
	if !slices.ContainsFunc(g.Ready, func(n string) bool { return n != node }) {
		return nil
	}
	newest := l.Faults[len(l.Faults)-1].At
	var n int64
	for _, f := range l.Faults {
		if d := newest.Sub(f.At); f.Node == node && d <= faultWindow && d >= -faultWindow {
			n++
		}
	}
	if n < limit {
		return nil
	}
	return &Bar{Node: node, Why: fmt.Sprintf("it was the root cause of %d failures within %s", n, faultWindow), For: faultWindow}
}

// BarReader keeps the job off a node that read a whole step as damaged.
func BarReader(node string) *Bar {
	return &Bar{Node: node, Why: "it read a checkpoint as damaged that another node read whole", For: faultWindow, Firm: true}
}

// Charge books an infrastructure failure that was found beside Decide, with the node that
// is to blame for it.
func (l Ledger) Charge(node string, now time.Time) Ledger {
	l = l.copy()
	l.Infra++
	l.Failed++
	l.blame(&evidence{cause: api.CauseInfra, failure: &api.Failure{Node: node}}, now)
	return l
}

// ill turns what a rank did on a device that is out of order into the machine's failure.
func (e evidence) ill(fault string) evidence {
	if fault == "" || e.strength == outside {
		return e
	}
	e.strength, e.cause, e.code, e.evidence = outside, api.CauseInfra, api.ReasonHealth, ""
	e.failure.Message = clip(fault+": "+e.failure.Message, maxMessage)
	return e
}

func (a *Attempt) gpuFault(alloc string) string {
	for i := range a.Allocs {
		if a.Allocs[i].ID == alloc {
			return a.Allocs[i].GPUFault
		}
	}
	return ""
}

// hangEvidence: its ranks have been silent for longer than a stall may last.
func hangEvidence(x *Alloc) evidence {
	return evidence{
		strength: outside, at: x.FailedAt, alloc: x.ID, cause: api.CauseHang, code: api.ReasonStalled,
		failure: &api.Failure{Rank: x.SlowRank, Node: x.Node, ExitCode: api.ExitFailed, Message: clip(printable(x.Overdue), maxMessage)},
	}
}

func isAre(what string, n int) string {
	if n == 1 {
		return what + " is"
	}
	return what + " are"
}
