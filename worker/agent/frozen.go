package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// How many polls a shim may leave unanswered. They are counted, not timed: an agent that
// was stopped itself must not find its shims guilty of it.
const (
	stoppedPolls = int(5 * time.Second / pollSteps)  // of a shim that was stopped by a signal
	silentPolls  = int(30 * time.Second / pollSteps) // of one that seems to run: a slow disk can hold it up
)

// poll asks a shim for its status while something depends on it. A shim that does not
// answer is ended: its ranks could not be stopped, nor their ends be heard. False: the
// connection is of no more use.
func (x *alloc) poll(ctx context.Context) bool {
	if x.overdue() {
		return false
	}
	if !x.depends() {
		x.asked = 0
		return true
	}
	if x.asked >= stoppedPolls {
		found, err := x.a.Launcher.Find(x.cfg)
		if err == nil && found.Alive && (found.Stopped || x.asked >= silentPolls) {
			x.freeze(ctx, found)
			return false
		}
	}
	x.asked++
	return x.sh.Send(shim.AgentMessage{Type: "status"}) == nil
}

// depends reports whether an attempt runs, whose steps are worth asking for, or
// something that the shim was told is not done yet.
func (x *alloc) depends() bool {
	x.a.mu.Lock()
	defer x.a.mu.Unlock()
	switch x.status.State {
	case wire.AllocRunning, wire.AllocEnding, wire.AllocDirty:
		return true
	case wire.AllocIdle, wire.AllocEnded, wire.AllocGone:
	}
	return !x.greeted || x.told.end || x.told.start > x.status.Generation
}

// freeze ends a shim that lives and does not answer, and all that it has started. What
// is left to do is what a dead shim leaves to do (P6).
func (x *alloc) freeze(ctx context.Context, found Found) {
	state := "did not answer"
	if found.Stopped {
		state = "was stopped by a signal and did not answer"
	}
	x.why = fmt.Sprintf("%s for %s and was ended", state, time.Duration(x.asked)*pollSteps)
	x.asked = 0
	x.a.Logger.Error("a shim does not answer; it is ended with its ranks", "alloc", x.id, "why", x.why)
	if err := x.a.Launcher.Sweep(ctx, x.cfg, found.Journal); err != nil {
		x.a.Logger.Error("what a silent shim had started did not die", "alloc", x.id, "err", err)
	}
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
