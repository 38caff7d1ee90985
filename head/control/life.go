package control

import (
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Limits of the judgement on who is lost (DESIGN §7). They are promises, so none is a
// setting; what a test makes shorter is Timing.
const (
	// closedSuspect is a little more than a heartbeat's period: an agent that has another
	// connection already was heard by then.
	closedSuspect = 1100 * time.Millisecond
	holdRestart   = 2 * time.Minute // work of an agent that has announced its restart
	holdSilent    = 5 * time.Minute // of one that has not
	// backIn is beyond the longest pause between two tries of an agent that lost its head:
	// a leader that has never heard a node waits so long for it.
	backIn = 12 * time.Second
	// mostPace bounds what the ranks' own pace adds to the time until a node is lost.
	mostPace = 10 * time.Minute
	// unknownPace stands for a pace that was not measured yet.
	unknownPace = 5 * time.Second
)

// sighting is what a leader knows of one node's life. Times are of its own clock.
type sighting struct {
	heard  time.Time // the agent, last; never before the leadership or what excuses it
	called time.Time // any of its shims, last; zero: never
	// closed is when the agent's connection ended, zero when it was heard since; likewise
	// the last of its shims'.
	closed, hungUp time.Time
	restarting     bool // the agent has announced that it will be started again
	busy           bool // something is allocated there
	hold           time.Time
	state          api.NodeState // as logged
}

// finding is the judgement on one node: what its state should be, why, and when to look
// again if nothing is heard meanwhile.
type finding struct {
	state api.NodeState
	why   string
	hold  time.Time // of an agentless node
	next  time.Time
	// quiet is since when nothing of the node was heard, and wait how long its peers must
	// stand still as well before it is lost.
	quiet time.Time
	wait  time.Duration
}

// judge says how a node is doing, from what was heard and from nothing else. It never
// answers lost while something of the node speaks, and knows nothing of peers.
func (t *Timing) judge(s *sighting, now time.Time) finding {
	away, since := false, s.heard
	if !s.closed.IsZero() {
		// A shim calls only when it has lost its agent.
		since, away = s.closed, now.Sub(s.closed) >= closedSuspect || s.called.After(s.closed)
	}
	silent := now.Sub(s.heard)
	if silent >= t.Suspect {
		away = true
	}
	if !away {
		next := s.heard.Add(t.Suspect)
		if !s.closed.IsZero() {
			next = earlier(next, s.closed.Add(closedSuspect))
		}
		return finding{state: api.NodeReady, next: next}
	}
	why := fmt.Sprintf("silent for %s", silent.Round(100*time.Millisecond))
	if !s.closed.IsZero() {
		why = fmt.Sprintf("its connection ended %s ago", now.Sub(s.closed).Round(100*time.Millisecond))
	}
	if f, ok := t.agentless(s, since, now, why); ok {
		return f
	}
	f := finding{state: api.NodeSuspect, why: why, quiet: s.heard, wait: t.Lost}
	if s.called.After(f.quiet) {
		f.quiet = s.called
	}
	end := f.quiet.Add(t.Lost)
	// A closed connection says more than silence: whatever lives calls within a second.
	switch {
	case s.closed.IsZero():
	case !s.called.After(s.closed):
		f.wait, end = t.Closed, earlier(end, s.closed.Add(t.Closed))
	case !s.hungUp.IsZero():
		f.wait, end = t.Closed, earlier(end, later(s.hungUp, s.closed).Add(t.Closed))
	}
	if f.next = end; !now.Before(end) {
		f.state = api.NodeLost
		f.why += " and no shim speaks for it"
	}
	return f
}

// agentless: the agent is away and its shims speak for themselves, or it has announced to
// be back and nothing was left that could speak.
func (t *Timing) agentless(s *sighting, since, now time.Time, why string) (finding, bool) {
	speaks := s.called.After(since) && now.Sub(s.called) < t.Lost
	if !s.hungUp.IsZero() { // one of them; others call within a second
		speaks = speaks && now.Sub(s.hungUp) < closedSuspect
	}
	idle := s.restarting && !s.busy
	if !speaks && !idle {
		return finding{}, false
	}
	f := finding{state: api.NodeAgentless, why: "its agent is gone: " + why, hold: s.hold, next: now.Add(t.Lost)}
	if speaks {
		if f.next = s.called.Add(t.Lost); !s.hungUp.IsZero() {
			f.next = s.hungUp.Add(closedSuspect)
		}
	}
	if s.restarting {
		f.why = "its agent is being started again"
	}
	if s.state != api.NodeAgentless || s.hold.IsZero() {
		f.hold = since.Add(holdSilent)
		if s.restarting {
			f.hold = since.Add(holdRestart)
		}
	}
	f.next = earlier(f.next, f.hold)
	if !now.Before(f.hold) {
		f.state = api.NodeLost
		f.why = fmt.Sprintf("its agent has not come back for %s", now.Sub(since).Round(time.Second))
		f.quiet, f.wait = time.Time{}, 0 // its ranks advance, and are ended all the same
	}
	return f, true
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
