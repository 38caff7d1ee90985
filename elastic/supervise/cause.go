package supervise

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// How strong a sign of the root cause a fact is. A rank that loses its peer ends with a
// connection error, and often before the peer's own end is reported; so such an error
// is a consequence as long as there is anything else.
type strength int

const (
	weakest    strength = iota // nothing but the fact that it is over
	connection                 // an error of a connection to a peer
	ownDoing                   // an exception, an exit code, a crash, a start that failed
	outside                    // killed from outside, out of memory
	lost                       // the node is gone
)

// Times for which an attempt over several nodes waits for the root cause to be told.
const (
	// settleTime is beyond the failure grace: what else failed is then on its way.
	settleTime = time.Second
	// lostTime is for connection errors alone: a silent node is declared lost after
	// 3.5 s, and its peers' errors must not be charged to the user before that.
	lostTime = 5 * time.Second
	// defaultGrace is the failure grace of a group that has none of its own.
	defaultGrace = 200 * time.Millisecond
)

// evidence is one fact that says why an attempt failed.
type evidence struct {
	strength strength
	at       time.Time // zero: unknown, long ago
	order    int64     // within one allocation
	alloc    string
	cause    api.Cause
	code     api.ReasonCode
	failure  *api.Failure
	evidence string // what is compared to find the same failure again; "" for nothing
}

// said is the failure in one line: what, which rank, where.
func (e *evidence) said() string {
	s := e.failure.Message
	switch {
	case e.failure.Rank >= 0 && e.failure.Node != "":
		s += fmt.Sprintf(" (rank %d on %s)", e.failure.Rank, e.failure.Node)
	case e.failure.Rank >= 0:
		s += fmt.Sprintf(" (rank %d)", e.failure.Rank)
	}
	return s
}

// evidence gathers what failed, in the order of the log: first the exits, then what
// is known of allocations.
func (a *Attempt) evidence(lostNodes []string) []evidence {
	var out []evidence
	seen := map[int64]bool{}
	for i := range a.Exits {
		e := &a.Exits[i]
		if seen[e.Rank] {
			continue // told twice
		}
		seen[e.Rank] = true
		if !e.ByShim && !e.clean() {
			out = append(out, exitEvidence(e).ill(a.gpuFault(e.Alloc)))
		}
	}
	for i := range a.Allocs {
		x := &a.Allocs[i]
		if x.StartFailed != "" && !x.PortUsed {
			out = append(out, startEvidence(x))
		}
		if x.Overdue != "" && !x.Ended && !x.Lost {
			out = append(out, hangEvidence(x))
		}
		if (x.Lost || slices.Contains(lostNodes, x.Node) && !x.Ended) && !a.doneOn(x) {
			out = append(out, evidence{
				strength: lost, at: x.FailedAt, alloc: x.ID, cause: api.CauseInfra, code: api.ReasonNodeLost,
				failure: &api.Failure{
					Rank: -1, Node: x.Node, ExitCode: api.ExitRetry,
					Message: fmt.Sprintf("node %s was lost with %s", x.Node, ranks(x.Ranks)),
				},
			})
		}
	}
	return out
}

func ranks(rs []int64) string {
	names := make([]string, len(rs))
	for i, r := range rs {
		names[i] = fmt.Sprint(r)
	}
	if len(names) == 0 {
		return "no rank"
	}
	return list("rank", names)
}

func exitEvidence(e *Exit) evidence {
	f := &api.Failure{
		Rank: e.Rank, Node: e.Node, ExitCode: e.Code, OOM: e.OOM,
		Message: clip(printable(e.Message), maxMessage), Traceback: clipTail(e.Traceback, maxTraceback),
	}
	out := evidence{
		strength: ownDoing, at: e.At, order: e.Order, alloc: e.Alloc,
		cause: api.CauseUser, code: api.ReasonUserError, failure: f, evidence: e.Traceback,
	}
	switch {
	case e.Signal > 0 && e.Signal < 128:
		f.Signal = SignalName(e.Signal)
		f.ExitCode = 128 + e.Signal
	case e.Code <= 0:
		f.ExitCode = api.ExitFailed // never a success, whatever was reported
	}
	switch {
	case e.OOM:
		// Its own limit, so its own doing; but nothing that a peer could have caused.
		out.strength = outside
		f.Message = fallback(f.Message, "out of memory: killed within the limit of its bundle")
	case e.Signal == sigKill:
		out.strength, out.cause, out.code = outside, api.CauseInfra, api.ReasonHealth
		f.Message = fallback(f.Message, fmt.Sprintf("killed from outside by signal %d (%s)", e.Signal, f.Signal))
	case e.Disk != "":
		// Its own write failed, but no program can do anything about a full or broken disk.
		out.cause, out.code, out.evidence = api.CauseInfra, api.ReasonHealth, ""
		f.Message = clip(printable(e.Disk)+": "+fallback(f.Message, fmt.Sprintf("exit code %d", f.ExitCode)), maxMessage)
	case isConnectionError(e.Message) || e.Message == "" && isConnectionError(lastLine(e.Traceback)):
		out.strength = connection
	}
	if f.Signal != "" {
		f.Message = fallback(f.Message, fmt.Sprintf("ended by signal %d (%s)", e.Signal, f.Signal))
	}
	f.Message = fallback(f.Message, fmt.Sprintf("exit code %d", f.ExitCode))
	return out
}

func fallback(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// startEvidence: nothing ran on this node. A command that does not exist is the user's
// doing, with the shell's exit codes; anything else is the machine's.
func startEvidence(x *Alloc) evidence {
	text := clip(printable(x.StartFailed), maxMessage)
	out := evidence{
		strength: ownDoing, at: x.FailedAt, alloc: x.ID, cause: api.CauseInfra, code: api.ReasonHealth,
		failure: &api.Failure{Rank: -1, Node: x.Node, ExitCode: api.ExitRetry, Message: fmt.Sprintf("could not start on %s: %s", x.Node, text)},
	}
	if x.StartCode > 0 {
		out.cause, out.code, out.failure.ExitCode = api.CauseUser, api.ReasonUserError, x.StartCode
		out.evidence = "start: " + x.StartFailed
	}
	return out
}

// settle is how much longer to wait before the root cause is chosen; 0: choose now.
// Attempts on one node are settled at once, by the order in which their ranks ended,
// since their shim saw it; except if all it saw is a connection error, whose cause may
// have a few milliseconds more to live.
func settle(g *Group, found []evidence, now time.Time) time.Duration {
	a := g.Attempt
	if a.allGone() {
		return 0
	}
	best := found[0]
	first := best.at
	for _, e := range found[1:] {
		if e.strength > best.strength {
			best = e
		}
		if e.at.Before(first) {
			first = e.at
		}
	}
	switch {
	case best.strength >= outside: // nothing stronger can follow
		return 0
	case len(a.Allocs) == 1 && best.strength != connection:
		return 0
	}
	grace := g.FailureGrace
	if grace <= 0 {
		grace = defaultGrace
	}
	limit := satAdd(grace, settleTime)
	if best.strength == connection {
		limit = satAdd(grace, lostTime)
		if g.Silent && len(a.Allocs) > 1 {
			return settleTime // a new leader, say, has its grace before it calls a node lost
		}
	}
	if first.IsZero() {
		return 0
	}
	// A clock that was set back must not make this longer than it is.
	return min(limit, max(0, limit-now.Sub(first)))
}

func satAdd(a, b time.Duration) time.Duration {
	if a > time.Duration(1<<62) {
		return 1 << 62
	}
	return a + b
}

// root chooses the root cause: the strongest sign, and of equal ones the first. Within
// an allocation the shim's order counts, across them the order of the log.
func root(found []evidence) evidence {
	best := found[0]
	for _, e := range found[1:] {
		if e.strength > best.strength ||
			e.strength == best.strength && e.alloc == best.alloc && cmp.Less(e.order, best.order) {
			best = e
		}
	}
	return best
}

// RootCause is the failure that an attempt would be charged with by what is known of
// it, and its class; nil if nothing failed. It is for display: Decide may still wait
// for stronger evidence.
func RootCause(a Attempt) (*api.Failure, api.Cause) {
	if alloc := a.damaged(); alloc != nil {
		return &api.Failure{Rank: -1, Node: alloc.Node, ExitCode: api.ExitRetry, Message: clip(printable(alloc.Damaged), maxMessage)}, api.CauseNone
	}
	if found := a.evidence(nil); len(found) > 0 {
		e := root(found)
		return e.failure, e.cause
	}
	if len(a.Allocs) > 0 && a.World > 0 && a.allGone() && a.finished() < a.World {
		e := a.unexplained()
		return e.failure, e.cause
	}
	return nil, api.CauseNone
}
