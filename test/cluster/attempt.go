package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// attempt is one start of the local ranks; simShim.mu guards it.
type attempt struct {
	spec     wire.AttemptSpec
	script   Script
	ranks    []*rank
	began    bool
	over     bool // ends, whatever comes
	killed   bool
	done     bool
	failed   bool
	exits    int64
	reason   string
	startup  error
	code     int64 // of a command that cannot be run, as a shell gives it
	verified chan struct{}
	restored bool
	ctx      context.Context //nolint:containedctx // ends with the attempt
	cancel   context.CancelFunc
	quit     *time.Timer
	agree    agreement
}

func (a *attempt) active() bool { return a != nil && !a.done }

func (a *attempt) steps() []wire.RankStep {
	out := make([]wire.RankStep, 0, len(a.ranks))
	for _, r := range a.ranks {
		out = append(out, r.report())
	}
	return out
}

// begin starts the ranks. s.mu is held.
func (s *simShim) begin(spec *wire.AttemptSpec) {
	ctx, cancel := context.WithCancel(s.n.c.ctx)
	a := &attempt{spec: *spec, ctx: ctx, cancel: cancel, verified: make(chan struct{})}
	s.att, s.state = a, wire.AllocIdle
	for k := range s.prepared {
		if k.gen < s.journal.Generation {
			delete(s.prepared, k)
		}
	}
	if r := spec.Restore; r == nil || r.Verified {
		a.restored = true
		close(a.verified)
	} else {
		s.verifyShare(a)
	}
	if a.script, a.startup = parseScript(spec.Command); a.startup != nil {
		a.code = 127
	}
	if a.startup == nil && spec.Number < a.script.NoStart {
		a.startup = errors.New("fork: resource temporarily unavailable")
	}
	for _, r := range spec.Ranks {
		a.ranks = append(a.ranks, &rank{s: s, a: a, spec: r, step: -1, ended: true})
	}
	time.AfterFunc(max(a.script.Start, time.Millisecond), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.launched(a)
		s.leave()
	})
}

func (s *simShim) launched(a *attempt) {
	if s.dead || a.done {
		return
	}
	if a.over && a.startup == nil {
		a.startup = errors.New("ended before the start")
	}
	if a.startup != nil {
		s.end(0, "", true)
		return
	}
	for _, r := range a.ranks {
		r.start()
	}
	a.began, s.state = true, wire.AllocRunning
	s.keepLooking(a)
	s.emit(wire.AllocEvent{Kind: wire.EventStarted, Generation: a.spec.Generation, PIDs: a.steps()})
}

// exited takes the end of a rank. s.mu is held.
func (s *simShim) exited(r *rank, x wire.RankExit) {
	a := r.a
	if r.told || s.dead {
		return
	}
	r.told = true
	x.Rank, x.Order, x.StepsDone = r.spec.Rank, a.exits, r.step
	a.exits++
	if x.Code != 0 && !x.ByShim {
		a.failed = true
	}
	s.emit(wire.AllocEvent{Kind: wire.EventRankExited, Generation: a.spec.Generation, Exit: &x})
	switch {
	case a.killed:
		s.conclude(a)
	case int(a.exits) == len(a.ranks):
		s.kill(a)
	case a.failed && !a.over:
		grace := a.spec.FailureGrace.D()
		if grace <= 0 {
			grace = defaultGrace
		}
		s.end(grace, "", true)
	}
}

// end ends the attempt; a second order can only make it sooner. s.mu is held.
func (s *simShim) end(grace time.Duration, reason string, quiet bool) {
	a := s.att
	if !a.active() {
		return
	}
	if a.reason == "" {
		a.reason = reason
	}
	a.over = true
	if a.killed {
		return
	}
	s.state = wire.AllocEnding
	if grace <= 0 || !a.began {
		s.kill(a)
		return
	}
	if a.quit == nil || a.quit.Stop() {
		a.quit = time.AfterFunc(grace, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.kill(a)
			s.leave()
		})
	}
	if quiet {
		return
	}
	for _, r := range slices.Clone(a.ranks) {
		if !r.ended && !a.script.Stubborn {
			r.kill(&wire.RankExit{Code: -1, Signal: 15, ByShim: true, Message: "terminated"})
		}
	}
}

// kill is SIGKILL to all that is left. s.mu is held.
func (s *simShim) kill(a *attempt) {
	if s.dead || a.done || a.killed {
		return
	}
	a.over = true
	if !a.began && a.startup == nil {
		return // launched comes and kills
	}
	a.killed = true
	s.state = wire.AllocEnding
	a.cancel()
	for _, r := range slices.Clone(a.ranks) {
		if !r.ended {
			r.kill(&wire.RankExit{Code: -1, Signal: 9, ByShim: true, Message: "killed"})
		}
	}
	s.conclude(a)
}

// conclude says that nothing of the attempt is left. s.mu is held.
func (s *simShim) conclude(a *attempt) {
	if a.done || !a.killed {
		return
	}
	for _, r := range a.ranks {
		if !r.ended || a.began && !r.told {
			return
		}
	}
	a.done = true
	if a.quit != nil {
		a.quit.Stop()
	}
	ev := wire.AllocEvent{Kind: wire.EventEnded, Generation: a.spec.Generation, Message: a.reason}
	if !a.began && a.reason == "" {
		ev.Kind, ev.Message, ev.Code = wire.EventStartFailed, fmt.Sprintf("cannot start: %v", a.startup), a.code
	}
	s.state = wire.AllocEnded
	s.emit(ev)
	switch {
	case s.ending:
		s.sayGone()
	case s.next != nil:
		next := s.next
		if s.n.boottime() >= s.lease {
			s.dropNext("the lease ended before the attempt could start")
			return
		}
		s.next = nil
		s.begin(next)
	}
}

// verifyShare compares this node's share of the restore step, with the real code on
// the simulated disk.
func (s *simShim) verifyShare(a *attempt) {
	r := a.spec.Restore
	share, shares := int(a.spec.GroupRank), int(max(1, a.spec.GroupWorld))
	s.n.c.spawn(func() {
		ev := wire.AllocEvent{Kind: wire.EventVerified, Generation: a.spec.Generation}
		m, digest, err := checkpoint.ReadManifest(s.n.disk(), r.Dir)
		switch {
		case err != nil:
			ev.Kind, ev.Message = wire.EventDamaged, err.Error()
		case digest != r.Digest:
			ev.Kind, ev.Message = wire.EventDamaged, "manifest.json: digest"
		default:
			v, err := checkpoint.VerifyShare(a.ctx, s.n.disk(), r.Dir, m, share, shares)
			if err != nil {
				return
			}
			if bad := v.Damaged(); len(bad) > 0 {
				ev.Kind, ev.Message = wire.EventDamaged, bad[0].String()
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.dead && !a.done && a.ctx.Err() == nil {
			s.emit(ev)
		}
	})
}
