package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/page"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
)

// endOrder says how an attempt is ended.
type endOrder struct {
	grace  time.Duration // 0: SIGKILL at once
	reason string
	quiet  bool // no SIGTERM first: peers of a failed rank are to say what they see
}

// end ends the attempt. A second order can only make it sooner.
func (s *shim) end(o endOrder) {
	a := s.att
	if !a.active() {
		return
	}
	if a.reason == "" {
		a.reason = o.reason
	}
	a.over = true
	if a.killed {
		return
	}
	s.state = wire.AllocEnding
	launching := !a.began && a.startup == nil
	if o.grace <= 0 || launching {
		s.kill(a)
		return
	}
	if !o.quiet {
		for _, r := range a.ranks {
			if !r.ended {
				r.byShim = true
				r.stopBy = page.Monotonic() + int64(o.grace)
				r.page.stop(r.stopBy)
				s.rip.signal(r.pid, unix.SIGTERM)
			}
		}
	}
	// One that has fired cannot be stopped any more, and kills.
	by := s.now() + o.grace
	if a.quitAt == nil || by < a.quitBy && a.quitAt.Stop() {
		a.quitBy = by
		a.quitAt = time.AfterFunc(o.grace, func() { s.post(func() { s.kill(a) }) })
	}
}

// kill sends SIGKILL to all that is left and waits until it is gone. While the
// ranks are still being started it is called again when they have been.
func (s *shim) kill(a *attempt) {
	if a.done || a.killed {
		return
	}
	a.over = true
	a.cancel()
	if !a.began && a.startup == nil {
		return // launched comes, with an error, and kills
	}
	a.killed = true
	s.state = wire.AllocEnding
	for _, r := range a.ranks {
		if !r.ended {
			r.byShim = true
		}
	}
	s.sweep(a)
}

func (s *shim) sweep(a *attempt) {
	t := s.target()
	go func() {
		keep, release := s.warm.spawn.hold()
		defer release()
		t.Keep = append(t.Keep, keep...)
		res := process.Sweep(context.Background(), t)
		if res.Clean() {
			t.Groups.Fresh()
		}
		s.post(func() { s.sweptOut(a, res) })
	}()
}

func (s *shim) sweptOut(a *attempt, res process.Result) {
	if !res.Clean() {
		// P2: what did not die is named, and the allocation holds its devices until it has.
		if !a.dirty {
			a.dirty = true
			s.state = wire.AllocDirty
			s.emit(wire.AllocEvent{Kind: wire.EventDirty, Generation: a.spec.Generation, Message: res.Error().Error()})
		}
		time.AfterFunc(redirty, func() { s.post(func() { s.sweep(a) }) })
		return
	}
	a.swept = true
	s.conclude(a)
}

// conclude says that nothing of the attempt is left, once that is so and every
// rank's end was told.
func (s *shim) conclude(a *attempt) {
	if a.done || !a.swept || a.began && a.told < len(a.ranks) {
		return
	}
	a.done = true
	for _, r := range a.ranks {
		r.page.remove()
		os.Remove(s.stackFile(a.spec.Generation, r.spec.Rank))
	}
	ev := wire.AllocEvent{Kind: wire.EventEnded, Generation: a.spec.Generation, Message: a.reason}
	switch {
	case a.began:
		if err := s.blame(a); err != nil {
			ev.Kind, ev.Message = wire.EventPortUsed, err.Error()
		}
		s.tellHeld(a)
	case a.reason != "":
	case errors.Is(a.startup, errPortUsed):
		ev.Kind, ev.Message = wire.EventPortUsed, a.startup.Error()
	default:
		ev.Kind, ev.Message, ev.Code = wire.EventStartFailed, fmt.Sprintf("cannot start: %v", a.startup), unusableCode(a.startup)
	}
	s.state = wire.AllocEnded
	s.emit(ev)
	if o := s.next; o != nil {
		s.next = nil
		s.take(o)
	}
	if s.ending && !s.att.active() {
		s.sayGone()
	}
}

// dropNext gives up an attempt that waits for an older one to end. Its generation was
// taken, so its end is told, when the older one has ended: then nothing runs here.
func (s *shim) dropNext(why string) {
	if s.next != nil && s.next.dropped == "" {
		s.next.dropped = why
	}
}

// stop ends all ranks at the agent's word.
func (s *shim) stop(o *wire.StopOrder) {
	if o == nil {
		return
	}
	s.dropNext(o.Reason)
	s.end(endOrder{grace: min(o.Grace.D(), maxSpan), reason: o.Reason, quiet: o.Quiet})
}

// watchMemory is the memory limit of a machine without a memory controller: the
// largest rank of an allocation that is over it is killed, as the kernel would.
func (s *shim) watchMemory(now time.Duration) {
	limit := int64(s.cfg.Limits.Memory)
	a := s.att
	if limit <= 0 || s.groups.Memory != "" || a.killed || !a.began || now-s.lastRSS < watchRSS {
		return
	}
	s.lastRSS = now
	var sum, most int64
	var worst *rank
	for _, r := range a.ranks {
		if r.ended {
			continue
		}
		n := process.RSS(process.Target{Root: r.pid})
		sum += n
		if n > most {
			most, worst = n, r
		}
	}
	if sum > limit && worst != nil && !worst.oom {
		worst.oom = true
		s.rip.signal(worst.pid, unix.SIGKILL)
	}
}
