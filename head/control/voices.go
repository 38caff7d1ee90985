package control

import (
	"context"
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// drainGrace is how long ranks of a node whose agent does not come back have to end, where
// their job says nothing.
const drainGrace = 30 * time.Second

// voice is what a leader heard of a node's shims while they speak for themselves.
type voice struct {
	boot   string
	called time.Time
	hungUp time.Time        // the newest end of a shim's connection that no call followed
	sent   map[string]int64 // newest call of each allocation
	said   map[string]said  // and what it said
}

// said is what a shim said of its allocation, and when.
type said struct {
	at     time.Time
	status wire.AllocStatus
}

// call takes a shim's call. again: the shim must prove first that it speaks now; old: it
// was overtaken and is no sign of life (I12).
func (s *sessions) call(node string, c *wire.ShimCall) (nonce string, again, old bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Nonce != s.nonce {
		return s.nonce, true, false
	}
	w := s.voices[node]
	if w == nil || w.boot != c.Boot {
		w = &voice{boot: c.Boot, sent: map[string]int64{}, said: map[string]said{}}
		s.voices[node] = w
	}
	if c.Sent <= w.sent[c.Alloc] {
		return s.nonce, false, true
	}
	now := s.clock.Now()
	w.sent[c.Alloc], w.called, w.hungUp = c.Sent, now, time.Time{}
	st := wire.AllocStatus{ID: c.Alloc, Job: c.Job, Generation: c.Generation, State: c.State, Steps: c.Steps, Answers: c.Answers}
	s.learn([]wire.AllocStatus{st}, now)
	w.said[c.Alloc] = said{now, st}
	if n := s.byID[node]; n != nil {
		n.allocs[c.Alloc] = st
	}
	return s.nonce, false, false
}

// newest is what was said last of an allocation, by the node's agent or by the shim
// itself. s.mu is held.
func (s *sessions) newest(node, alloc string) (st wire.AllocStatus, at time.Time, ok bool) {
	if n := s.byID[node]; n != nil {
		if st, ok = n.allocs[alloc]; ok {
			at = n.last
		}
	}
	if w := s.voices[node]; w != nil {
		if h, spoke := w.said[alloc]; spoke && h.at.After(at) {
			st, at, ok = h.status, h.at, true
		}
	}
	return st, at, ok
}

// calls reports whether the shim of an allocation has spoken for itself within the last d.
func (s *sessions) calls(node, alloc string, d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.voices[node]
	if w == nil {
		return false
	}
	h, ok := w.said[alloc]
	return ok && s.clock.Now().Sub(h.at) < d
}

// hangUp notes the end of a connection; false: it says nothing.
func (s *sessions) hangUp(node string, shim bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if shim {
		if w := s.voices[node]; w != nil {
			w.hungUp = now
			return true
		}
		return false
	}
	if n := s.byID[node]; n != nil && n.closed.IsZero() {
		n.closed = now
		return true
	}
	return false
}

// sight gathers what is known of a node's life.
func (s *sessions) sight(node string) sighting {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := sighting{heard: s.since}
	if n := s.byID[node]; n != nil {
		out.heard, out.closed, out.restarting = later(out.heard, n.last), n.closed, n.restarting
	}
	if w := s.voices[node]; w != nil {
		out.called, out.hungUp = w.called, w.hungUp
	}
	return out
}

// unheard: this leader has heard neither the node's agent nor a shim of it.
func (s *sessions) unheard(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[node] == nil && s.voices[node] == nil
}

// lastWord is the newest moment at which something of a node may have been acknowledged:
// every lease that runs there was granted before.
func (s *sessions) lastWord(node string) time.Time {
	w := s.sight(node)
	return later(w.heard, w.called)
}

// told takes steps that a node was asked for. They say how its ranks advance, and are no
// sign of the node's own life, since nothing tells when they were said.
func (s *sessions) told(node string, allocs []wire.AllocStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[node] != nil {
		s.learn(allocs, s.clock.Now())
	}
}

// excuse moves everything that was heard by the time that this head could not listen.
func (s *sessions) excuse(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	shift := func(t *time.Time) {
		if !t.IsZero() {
			*t = earlier(t.Add(d), now)
		}
	}
	shift(&s.since)
	for _, n := range s.byID {
		shift(&n.last)
		shift(&n.closed)
	}
	for _, w := range s.voices {
		shift(&w.called)
		shift(&w.hungUp)
	}
}

// leaseOf is how long a strict allocation of a job runs without an acknowledgement.
func (h *Head) leaseOf(j *state.Job) time.Duration {
	if j.Spec.Kind == api.KindService {
		return h.Timing.LeaseService
	}
	return h.Timing.LeaseStrict
}

// onShimCall answers a shim whose agent is gone, after a VerifyLeader as a heartbeat.
func (h *Head) onShimCall(ctx context.Context, node string, data []byte) (any, error) {
	var c wire.ShimCall
	if err := wire.Unmarshal(data, &c); err != nil {
		return nil, err
	}
	if len(c.Events) > wire.MaxCallEvents {
		return nil, fmt.Errorf("%d events in one call, at most %d are taken", len(c.Events), wire.MaxCallEvents)
	}
	n := h.Store.View().Node(node)
	if n == nil || n.Info.BootID != c.Boot {
		return nil, fmt.Errorf("a shim of boot %.64q calls, which is not the node's", c.Boot)
	}
	nonce, again, old := h.nodes.call(node, &c)
	if again {
		return wire.ShimAck{Sent: c.Sent, Nonce: nonce, Again: true, Position: h.position()}, nil
	}
	if old {
		return nil, nil //nolint:nilnil // its answer was given, or is under way
	}
	if n.State != api.NodeAgentless {
		h.lookNow()
	}
	if err := h.verify.ask(ctx); err != nil {
		return nil, err
	}
	var acked uint64
	if events := mayTell(h.Store.View(), &c); len(events) > 0 {
		if _, err := h.propose(ctx, state.KindFacts, state.Facts{Node: node, Events: events}); err != nil {
			return nil, err
		}
		acked = events[len(events)-1].Seq
	}
	h.hearAnswers([]wire.AllocStatus{{Job: c.Job, Answers: c.Answers}})
	h.spawn(ctx, func() {
		h.noteFirstSteps(ctx, []wire.AllocStatus{{ID: c.Alloc, Job: c.Job, Generation: c.Generation, Steps: c.Steps}})
	})
	verdicts := h.verdictsFor(ctx, node, &c)
	h.errands.hear(&c)
	ack := h.orders(h.Store.View(), node, &c)
	ack.Nonce, ack.Acked, ack.Verdicts = nonce, acked, verdicts
	if ack.Tasks = h.errands.of(c.Alloc); len(ack.Tasks) > 0 || waits(verdicts) {
		ack.Soon = unit.Duration(callSoon)
	}
	return ack, nil
}

// mayTell are the events of a call that count. A shim speaks of its own allocation alone,
// and that devices are free is for the agent to prove, which looks at them (P2).
func mayTell(v *state.View, c *wire.ShimCall) []wire.AllocEvent {
	devices := false
	if a := v.Alloc(c.Alloc); a != nil {
		for _, id := range a.Holds {
			hold := v.Hold(id)
			devices = devices || hold != nil && len(hold.Devices) > 0
		}
	}
	var out []wire.AllocEvent
	for i := range c.Events {
		e := &c.Events[i]
		if e.Kind == wire.EventGone && devices {
			break // what follows would overtake it
		}
		if e.Alloc == c.Alloc {
			out = append(out, *e)
		}
	}
	return out
}

// orders are the terms and orders of one allocation, derived from the state alone as
// desired state is. A shim without its agent is never told to start anything.
func (h *Head) orders(v *state.View, node string, c *wire.ShimCall) wire.ShimAck {
	ack := wire.ShimAck{Sent: c.Sent, Life: v.Meta().Life, Position: wire.Position{Term: v.Term(), Index: v.Index()}}
	n, a := v.Node(node), v.Alloc(c.Alloc)
	if a == nil || a.Node != node || a.Gone || n == nil {
		ack.End = true
		return ack
	}
	j := v.Job(a.Job)
	unwanted := j == nil || j.State.Terminal() || a.Leaving || !held(v, a)
	runs := c.State == wire.AllocRunning || c.State == wire.AllocEnding
	switch {
	case n.State == api.NodeLost && n.Hold != 0 && runs:
		grace := unit.Duration(drainGrace)
		if j != nil && j.Spec.ShutdownTimeout > 0 {
			grace = j.Spec.ShutdownTimeout
		}
		ack.Stop = &wire.StopOrder{Grace: grace, Reason: "the agent of its node has not come back"}
		return ack
	case unwanted:
		ack.End = true
		return ack
	}
	w := h.desiredAlloc(v, j, a)
	ack.Class, ack.Stop, ack.Grace = w.Class, w.Stop, j.Spec.FailureGrace
	switch {
	case w.Attempt == nil:
		ack.Over = c.Generation
	case w.Attempt.Generation > c.Generation:
		ack.Over = w.Attempt.Generation - 1
	}
	if at := w.Attempt; at != nil && at.Generation == c.Generation {
		ack.Proposal, ack.Generation = w.Proposal, at.Generation
		if at.Restore != nil && at.Restore.Verified {
			ack.Verified = at.Generation
		}
		if open := w.Proposal != nil && w.Proposal.State == wire.ProposalOpen; open || j.Drain != nil || h.saves.wanted(j.ID, c.Generation) {
			ack.Soon = unit.Duration(callSoon) // ranks may be holding
		}
	}
	if n.State != api.NodeLost && !a.Lost {
		ack.Lease, ack.Orphan = dur(h.leaseOf(j)), dur(h.Timing.Orphan)
	}
	return ack
}
