package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// serve talks to a shim until the connection ends or the allocation is gone.
func (x *alloc) serve(ctx context.Context) {
	poll := x.a.Clock.NewTimer(pollSteps)
	defer poll.Stop()
	for x.tell() {
		select {
		case <-ctx.Done():
			return
		case <-x.wake:
		case <-poll.C():
			poll.Reset(pollSteps)
			if !x.poll(ctx) {
				x.hangUp()
				return
			}
		case m, ok := <-x.sh.Messages():
			if !ok {
				x.hangUp() // reconnect finds out why
				return
			}
			x.asked = 0
			x.hear(ctx, &m)
			if x.isGone() || x.isReleasing() {
				return
			}
		}
	}
	x.hangUp()
	// It can be reached at once and yet take nothing: that must not turn into a busy loop.
	x.retry = min(max(2*x.retry, minRetry), maxRetry)
	x.pause(ctx, x.retry)
}

// hear takes one message of the shim. What it does not know it ignores: the shim may
// be of a newer build.
func (x *alloc) hear(ctx context.Context, m *shim.ShimMessage) {
	switch {
	case m.Status != nil && m.Status.ID == x.id:
		x.a.mu.Lock()
		if st := *m.Status; !x.gone {
			changed := st.State != x.status.State || st.Generation != x.status.Generation ||
				!slices.Equal(st.Answers, x.status.Answers) || !stepped(x.status.Steps) && stepped(st.Steps)
			if st.Job == "" {
				st.Job = x.status.Job
			}
			x.status, x.shimPID = st, m.PID
			x.heardAt, x.until = x.a.Clock.Boot(), time.Duration(m.Until)
			if st.State == wire.AllocEnded || st.State == wire.AllocGone {
				x.over = max(x.over, st.Generation)
			}
			if changed {
				wake(x.a.wakeSession)
			}
		}
		x.a.mu.Unlock()
		x.greeted = true
		x.settle()
	case m.Event != nil && m.Event.Alloc == x.id:
		x.a.mu.Lock()
		x.takeLocked(*m.Event)
		x.a.mu.Unlock()
		x.releasePort()
	case m.Type == "stacks":
		x.answered(m)
	case m.Prepared != nil && m.Prepared.Alloc == x.id:
		x.a.prepared(ctx, *m.Prepared)
	default:
		x.a.Logger.Debug("a shim's message was ignored", "alloc", x.id, "type", m.Type)
	}
}

// ackEvery is how many events are acknowledged to a shim in one message.
const ackEvery = 16

// stepped reports whether any of the ranks has made a step.
func stepped(steps []wire.RankStep) bool {
	return slices.ContainsFunc(steps, func(s wire.RankStep) bool { return s.Step >= 0 })
}

// takeLocked notes an event once, in order, to be reported. Agent.mu is held.
func (x *alloc) takeLocked(ev wire.AllocEvent) {
	if ev.Seq <= x.seq {
		return // told again after a reconnect
	}
	if x.keepsBack(&ev) {
		return
	}
	x.seq = ev.Seq
	x.pending = append(x.pending, ev)
	switch ev.Kind {
	case wire.EventStarted:
		x.status.Generation = max(x.status.Generation, ev.Generation)
		x.status.State, x.status.Steps = wire.AllocRunning, ev.PIDs
	case wire.EventEnded, wire.EventStartFailed, wire.EventPortUsed:
		x.status.Generation = max(x.status.Generation, ev.Generation)
		x.status.State, x.status.Steps = wire.AllocEnded, nil
		x.over = max(x.over, ev.Generation)
	case wire.EventDirty:
		x.status.State = wire.AllocDirty
	case wire.EventGone, wire.EventShimLost:
		x.status.State, x.status.Steps = wire.AllocGone, nil
		x.over = max(x.over, x.status.Generation)
		x.gone = true
	case wire.EventRankExited, wire.EventVerified, wire.EventDamaged, wire.EventOwnerGone, wire.EventFallback,
		wire.EventStalled, wire.EventResumed, wire.EventOverdue:
	}
	wake(x.a.wakeReport) // at once: a recovery begins with this message, and no heartbeat has to say it too
}

func (x *alloc) releasePort() {
	x.a.mu.Lock()
	done := x.port != 0 && len(x.numbers) > 0 && x.over >= x.numbers[len(x.numbers)-1].generation
	x.a.mu.Unlock()
	if done {
		x.a.Ports.Release(x.port)
		x.port = 0
	}
}

// tell says to the shim what it has not heard yet. False: the connection is broken.
func (x *alloc) tell() bool {
	x.a.mu.Lock()
	list := x.duties(x.a.Clock.Boot())
	x.a.mu.Unlock()
	for _, m := range list {
		if m.Type == "start" {
			m = x.bound(m)
			x.beforeStart(m.Attempt)
		}
		err := x.sh.Send(m)
		if m.Type == "start" && errors.Is(err, shim.ErrFrameSize) {
			x.a.Logger.Error("an attempt is too large to be handed to its shim", "alloc", x.id, "err", err)
			err = x.sh.Send(failedStart(m.Attempt, fmt.Sprintf("command, environment and arguments are too large to be handed over: %v", err)))
		}
		if m.Type == "start" && err == nil && m.Failure == "" {
			// A spare would be for a folder that goes with this allocation.
			if x.warm = nil; m.Attempt.Package == "" {
				x.warm = x.spareOf(m.Attempt, m.Env)
			}
		}
		if err != nil {
			x.a.Logger.Warn("a shim did not take a message", "alloc", x.id, "type", m.Type, "err", err)
			return false
		}
	}
	if len(list) > 0 {
		x.retry = 0
	}
	return true
}

// failedStart is the start of an attempt that cannot be handed over.
func failedStart(at *wire.AttemptSpec, why string) shim.AgentMessage {
	return shim.AgentMessage{Type: "start", Attempt: &wire.AttemptSpec{Number: at.Number, Generation: at.Generation}, Failure: why}
}

// duties lists what the shim must be told now and notes it as told. The lease comes
// first, since nothing starts without one. Agent.mu is held.
func (x *alloc) duties(now time.Duration) []shim.AgentMessage {
	var list []shim.AgentMessage
	if !x.greeted {
		return nil // what it runs is not known yet
	}
	// A class holds from the moment it is known: an attempt must not start under the old one.
	l := x.lease()
	if l.sent > 0 && (x.told.lease == 0 || l.sent >= x.told.lease+renewEvery || l.length != x.told.length || x.class != x.told.class) {
		x.told.lease, x.told.length, x.told.class = l.sent, l.length, x.class
		list = append(list, shim.AgentMessage{
			Type: "renew", SentAt: int64(l.sent), Lease: unit.Duration(l.length), Orphan: unit.Duration(l.orphan), Class: x.class,
		})
	}
	if m, ok := x.stepsDuty(); ok {
		list = append(list, m)
	}
	acked := x.acked
	if x.gone && x.a.ending {
		acked = x.seq // the shim need not wait for a head that goes down too
	}
	// What is acknowledged a shim only forgets, so it is told of many at once, and of the last:
	// then it may leave.
	if acked > x.told.acked && (x.gone || acked >= x.told.acked+ackEvery) {
		x.told.acked = acked
		list = append(list, shim.AgentMessage{Type: "ack", Seq: acked})
	}
	for i := range x.verdict {
		list = append(list, shim.AgentMessage{Type: "verdict", Verdict: &x.verdict[i]})
	}
	x.verdict = nil
	list = append(list, x.orders...)
	x.orders = nil
	if x.gone || !x.known {
		return list
	}
	if x.want == nil {
		if !x.told.end {
			x.told.end = true
			list = append(list, shim.AgentMessage{Type: "end"})
		}
		return list
	}
	if x.want.Owner == nil && x.cfg.Owner != nil && !x.told.disowned {
		x.told.disowned = true
		list = append(list, shim.AgentMessage{Type: "disown"})
	}
	if m, ok := x.startDuty(now); ok {
		list = append(list, m)
	}
	if o, key := x.stopDuty(); o != nil && key != x.told.stop {
		x.told.stop = key
		list = append(list, shim.AgentMessage{Type: "stop", Stop: o})
	}
	if p, at := x.want.Proposal, x.want.Attempt; p != nil && at != nil && at.Generation == x.status.Generation && *p != x.told.proposal {
		x.told.proposal = *p
		list = append(list, shim.AgentMessage{Type: "propose", Generation: at.Generation, Proposal: p})
	}
	if at := x.want.Attempt; at != nil && at.Restore != nil && at.Restore.Verified &&
		at.Generation == x.status.Generation && x.told.verified != at.Generation {
		x.told.verified = at.Generation
		list = append(list, shim.AgentMessage{Type: "verified", Verdict: &wire.Verdict{Generation: at.Generation}})
	}
	return list
}

// startDuty is the start of an attempt that the shim has not seen. Even one that is
// to be stopped is started first, so that its generation gets an end in the record;
// no program of it runs then. It is told again with each renewal until the shim has
// taken it. Agent.mu is held.
func (x *alloc) startDuty(now time.Duration) (shim.AgentMessage, bool) {
	at := x.want.Attempt
	switch {
	case at == nil || at.Generation <= x.status.Generation || at.Generation <= x.failed:
		return shim.AgentMessage{}, false
	case !x.lease().valid(now):
		return shim.AgentMessage{}, false // P3: nothing starts without a lease
	case x.told.start == at.Generation && x.a.lease.sent < x.told.startAt+renewEvery:
		return shim.AgentMessage{}, false
	}
	m := shim.AgentMessage{Type: "start", Attempt: x.a.launches.local(at)}
	if at.Package != "" {
		var ok bool
		if m, ok = x.inPackage(at); !ok {
			return m, false // this goroutine is woken when it is there
		}
	}
	if at.LaunchEnv != "" {
		env, ok := x.a.env.get(at.LaunchEnv)
		if m.Env = env; !ok {
			// Without it the ranks would be others than those that were asked for.
			m = failedStart(at, "the environment of the launch command is kept in memory and lost, since the agent of this node was started again: launch the job again")
		}
	}
	x.told.start, x.told.startAt, x.told.stop = at.Generation, x.a.lease.sent, ""
	return m, true
}

// stopDuty is the order to end what runs, and its identity: an order holds for the
// attempt that it met. Agent.mu is held.
func (x *alloc) stopDuty() (*wire.StopOrder, string) {
	newest := max(x.status.Generation, x.told.start)
	if newest == 0 || newest <= x.over {
		return nil, ""
	}
	o := x.want.Stop
	if o == nil {
		if x.want.Attempt != nil {
			return nil, "" // a newer one than what runs ends that itself
		}
		// Between two attempts: whatever still runs is of an attempt that is over.
		o = &wire.StopOrder{Grace: unit.Duration(failureGrace), Reason: "the attempt is over"}
	}
	return o, fmt.Sprintf("%d %d %s", newest, o.Grace, o.Reason)
}

// failureGrace is how long ranks live on after their attempt has failed elsewhere.
const failureGrace = 200 * time.Millisecond

// beforeStart notes the attempt's number, for readers of its output, and takes its
// master port out of the offer.
func (x *alloc) beforeStart(at *wire.AttemptSpec) {
	x.a.mu.Lock()
	if !slices.ContainsFunc(x.numbers, func(n attemptNumber) bool { return n.generation == at.Generation }) {
		x.numbers = append(x.numbers, attemptNumber{at.Number, at.Generation})
		if len(x.numbers) > maxNumbers {
			x.numbers = slices.Clone(x.numbers[1:])
		}
	}
	x.a.mu.Unlock()
	if at.GroupRank == 0 && at.MasterPort != 0 && x.port != at.MasterPort {
		if x.port != 0 {
			x.a.Ports.Release(x.port)
		}
		x.port = at.MasterPort
		x.a.Ports.Use(x.port)
		x.a.portsUsed.Add(1)
		if x.a.portsUsed.Load() >= heldPorts/4 {
			wake(x.a.wakeSession) // before the head runs out of those that it knows
		}
	}
}
