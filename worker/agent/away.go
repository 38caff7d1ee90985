package agent

import (
	"context"
	"time"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

const (
	// announceLimit is how long an announcement may take: an agent that is told to end ends.
	announceLimit = time.Second
	// fenceSlack is how much later than a shim the agent enforces the end of a lease.
	fenceSlack = 2 * time.Second
	// stepsLimit is how long fresh steps may take; what came until then is told.
	stepsLimit = 150 * time.Millisecond
	stepsPoll  = 10 * time.Millisecond
)

// AnnounceRestart tells the leader that this agent ends and will be started again, so that its node
// keeps its work meanwhile. Call it before Run's context ends; shims and ranks go on. The
// error says that no leader has heard it: then the node's silence is judged like any.
func (a *Agent) AnnounceRestart(ctx context.Context) error {
	a.mu.Lock()
	a.restarting = true
	b := a.nextBeat()
	open := a.open
	a.mu.Unlock()
	if !open {
		return bus.ErrDisconnected
	}
	b.Ports = a.Ports.Offer()
	var ack wire.HeartbeatAck
	return a.call(ctx, wire.HeadHeartbeat+a.NodeID, announceLimit, b, &ack)
}

// overdue ends a shim that should have ended its ranks and has not: the agent is the
// second to enforce a lease. True: the connection is of no more use.
func (x *alloc) overdue() bool {
	x.a.mu.Lock()
	l := x.lease()
	end := l.sent + l.orphan
	if x.class == wire.ClassStrict {
		end = l.sent + l.length
	}
	now := x.a.Clock.Boot()
	// The shim's own word counts as well: it may have heard of a leader by itself.
	late := x.until > 0 && l.sent > 0 && now > max(end, x.until)+fenceSlack
	runs := x.status.State == wire.AllocRunning || x.status.State == wire.AllocEnding
	x.a.mu.Unlock()
	if !late || !runs {
		return false
	}
	found, err := x.a.Launcher.Find(x.cfg)
	if err != nil || !found.Alive {
		return false
	}
	x.why = "did not end its ranks at the end of their lease"
	x.a.Logger.Error("a shim runs ranks beyond their lease; it is ended with them", "alloc", x.id)
	if err := x.a.Launcher.Sweep(context.Background(), x.cfg, found.Journal); err != nil {
		x.a.Logger.Error("what ran beyond its lease did not die", "alloc", x.id, "err", err)
	}
	return true
}

// onSteps tells how the ranks of this node advance, as their shims see it now: heartbeats
// are up to a second old, and the loss of another node may hang on it.
func (a *Agent) onSteps(ctx context.Context, m bus.Msg) {
	a.spawn(func() {
		asked := a.Clock.Boot()
		a.mu.Lock()
		var waiting []*alloc
		for _, x := range a.allocs {
			if x.status.State == wire.AllocRunning && !x.gone {
				x.askSteps = true
				waiting = append(waiting, x)
				wake(x.wake)
			}
		}
		a.mu.Unlock()
		for len(waiting) > 0 && a.Clock.Boot()-asked < stepsLimit && a.Clock.Sleep(ctx, stepsPoll) == nil {
			a.mu.Lock()
			left := waiting[:0]
			for _, x := range waiting {
				if x.heardAt < asked {
					left = append(left, x)
				}
			}
			waiting = left
			a.mu.Unlock()
		}
		a.mu.Lock()
		r := wire.StepsNow{Allocs: a.statuses()}
		a.mu.Unlock()
		a.respond(m, r)
	})
}

// stepsDuty asks a shim for its status when somebody waits for it. Agent.mu is held.
func (x *alloc) stepsDuty() (shim.AgentMessage, bool) {
	ask := x.askSteps
	x.askSteps = false
	return shim.AgentMessage{Type: "status"}, ask
}
