package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	beatEvery   = time.Second
	beatSpacing = 20 * time.Millisecond // changes within it travel in one heartbeat
	beatTimeout = 5 * time.Second
	// renewEvery is how much newer a lease must be for a shim to be told. On a node where much
	// begins and ends heartbeats follow each other closely, and each concerns every shim.
	renewEvery   = beatEvery / 2
	maxBeats     = 5 // on their way at once
	callTimeout  = 5 * time.Second
	minBackoff   = 50 * time.Millisecond
	maxBackoff   = 2 * time.Second
	fetchEvery   = 10 * time.Second
	gpuEvery     = 5 * time.Second
	gpuFirstRead = 6 * time.Second
)

// backoff grows from minBackoff to maxBackoff, with jitter, so that agents that lost
// the same head do not return in step.
type backoff struct{ d time.Duration }

func (b *backoff) next() time.Duration {
	b.d = min(max(2*b.d, minBackoff), maxBackoff)
	return b.d/2 + rand.N(b.d/2+1)
}

func (b *backoff) reset() { b.d = 0 }

// call sends one request and decodes the answer into reply.
func (a *Agent) call(ctx context.Context, subject string, limit time.Duration, body, reply any) error {
	var data []byte
	if body != nil {
		var err error
		if data, err = wire.Marshal(body); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	raw, err := a.Bus.Request(ctx, subject, data)
	if err != nil {
		return err
	}
	return wire.Unmarshal(raw, reply)
}

// subscribe takes the node's subjects. A handler only hands over.
func (a *Agent) subscribe(ctx context.Context) (func(), error) {
	var undo []func()
	all := func() {
		for _, f := range undo {
			f()
		}
	}
	for _, s := range []struct {
		subject string
		handle  func(context.Context, bus.Msg)
	}{
		{wire.NodeDesired(a.NodeID), a.onDesired},
		{wire.NodeVerdict(a.NodeID), a.onVerdict},
		{wire.NodeTask(a.NodeID), a.onTask},
		{wire.NodeLog(a.NodeID), a.onLog},
		{wire.NodeSteps(a.NodeID), a.onSteps},
		{wire.NodeStacks(a.NodeID), a.onStacks},
		{wire.NodeFault(a.NodeID), a.onFault},
		{wire.NodeSignal(a.NodeID), a.onSignal},
		{wire.NodeStartCheck(a.NodeID), a.onStartCheck},
	} {
		var wait backoff
		for {
			f, err := a.Bus.Subscribe(s.subject, func(m bus.Msg) {
				if ctx.Err() == nil {
					s.handle(ctx, m)
				}
			})
			if err == nil {
				undo = append(undo, f)
				break
			}
			if errors.Is(err, bus.ErrClosed) {
				return all, err
			}
			a.Logger.Warn("a subject could not be subscribed to; trying again", "subject", s.subject, "err", err)
			if err := a.Clock.Sleep(ctx, wait.next()); err != nil {
				return all, nil //nolint:nilerr // Run was told to end
			}
		}
	}
	return all, nil
}

// respond answers a request of the head.
func (a *Agent) respond(m bus.Msg, reply any) {
	data, err := wire.Marshal(reply)
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil {
		a.Logger.Debug("an answer was not sent", "subject", m.Subject, "err", err)
	}
}

// keepSession registers, for ever if need be, and sends heartbeats once a second and
// on change.
func (a *Agent) keepSession(ctx context.Context) {
	var wait backoff
	for ctx.Err() == nil {
		if !a.isOpen() {
			if a.register(ctx) {
				wait.reset()
				wake(a.wakeFetch)
				wake(a.wakeReport)
				wake(a.wakeNotice)
			} else {
				_ = a.Clock.Sleep(ctx, beatSpacing)
				a.pause(ctx, a.wakeSession, wait.next())
				continue
			}
		}
		a.beat(ctx)
		_ = a.Clock.Sleep(ctx, beatSpacing)
		a.pause(ctx, a.wakeSession, beatEvery-beatSpacing)
	}
}

// pause waits for d, or less when c is woken.
func (a *Agent) pause(ctx context.Context, c <-chan struct{}, d time.Duration) {
	t := a.Clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-c:
	case <-t.C():
	}
}

func (a *Agent) isOpen() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open
}

// closeSession makes the agent register again.
func (a *Agent) closeSession(why string) {
	a.mu.Lock()
	was := a.open
	a.open = false
	a.mu.Unlock()
	if was {
		a.Logger.Info("registering again", "reason", why)
		wake(a.wakeSession)
	}
}

func (a *Agent) register(ctx context.Context) bool {
	a.mu.Lock()
	a.seq++
	req := wire.RegisterRequest{
		Seq: a.seq,
		Node: wire.NodeInfo{
			Name: a.Name, Address: a.Address, BootID: a.BootID, Labels: a.Labels, CPU: a.CPU, Memory: a.Memory,
			GPUs: slices.Clone(a.gpus), Version: a.Version, Level: wire.Level, Session: a.session, Started: a.started, StateDir: a.StateDir,
			Leaving: a.leaving.asked,
		},
		Allocs: a.statuses(),
	}
	a.mu.Unlock()
	req.Ports = a.Ports.Offer()
	var rep wire.RegisterReply
	err := a.call(ctx, wire.HeadRegister+a.NodeID, callTimeout, req, &rep)
	if err == nil && rep.Error != "" {
		err = errors.New("refused: " + rep.Error)
	}
	if err != nil {
		if text := err.Error(); ctx.Err() == nil && text != a.refusal {
			a.refusal = text // once, not every two seconds of a long outage
			a.Logger.Warn("the head does not take this node yet; trying again", "node", a.NodeID, "err", err)
		}
		return false
	}
	a.refusal = ""
	a.mu.Lock()
	if a.life != rep.Life {
		// Another cluster, or one restored from a backup: its log counts anew.
		a.life, a.newest = rep.Life, wire.Position{}
	}
	if a.newest.Less(rep.Position) {
		a.newest = rep.Position // what was desired before this node was known is void
	}
	a.open = true
	a.leaving.told = req.Node.Leaving
	a.mu.Unlock()
	a.Logger.Info("registered", "node", a.NodeID, "cluster", rep.Cluster, "session", a.session)
	return true
}

// statuses is what runs here, by id. a.mu is held.
func (a *Agent) statuses() []wire.AllocStatus {
	list := make([]wire.AllocStatus, 0, len(a.allocs))
	now := a.Clock.Boot()
	for _, x := range a.allocs {
		st := x.status
		if st.Fetch = nil; x.work.fetch != nil {
			st.Fetch = x.work.fetch.progress()
		}
		if len(st.Steps) > 0 && x.heardAt > 0 {
			st.Steps = slices.Clone(st.Steps)
			for i := range st.Steps {
				if age := &st.Steps[i].Age; *age > 0 {
					*age += unit.Duration(now - x.heardAt) // as old as it is when this is said
				}
			}
		}
		list = append(list, st)
	}
	slices.SortFunc(list, func(p, q wire.AllocStatus) int {
		if p.ID < q.ID {
			return -1
		}
		return 1
	})
	return list
}

// beat sends one heartbeat beside the loop: one that waits for its answer must not
// hold up the next.
func (a *Agent) beat(ctx context.Context) {
	select {
	case a.beats <- struct{}{}:
	default:
		return // maxBeats are unanswered; the next second is another
	}
	a.mu.Lock()
	b := a.nextBeat()
	a.mu.Unlock()
	a.portsUsed.Store(0)
	b.Ports = a.Ports.Offer()
	a.spawn(func() {
		defer func() { <-a.beats }()
		// The lease runs from before the sending: that can only make it shorter.
		sent := a.Clock.Boot()
		var ack wire.HeartbeatAck
		if err := a.call(ctx, wire.HeadHeartbeat+a.NodeID, beatTimeout, b, &ack); err != nil {
			if ctx.Err() == nil {
				a.Logger.Debug("a heartbeat was not acknowledged", "seq", b.Seq, "err", err)
			}
			return
		}
		a.acknowledged(b, ack, sent)
	})
}

// nextBeat is what the next heartbeat says. a.mu is held.
func (a *Agent) nextBeat() wire.Heartbeat {
	a.seq++
	b := wire.Heartbeat{Session: a.session, Seq: a.seq, Allocs: a.statuses(), Restarting: a.restarting}
	if !a.gpusTold {
		b.GPUs = slices.Clone(a.gpus)
	}
	return b
}

func (a *Agent) acknowledged(b wire.Heartbeat, ack wire.HeartbeatAck, sent time.Duration) {
	switch {
	case ack.Unknown:
		a.closeSession("the head does not know this session")
		return
	case ack.Seq != b.Seq || ack.Lease <= 0 || ack.Orphan <= 0:
		a.Logger.Warn("an acknowledgement that does not fit its heartbeat was ignored", "seq", b.Seq, "answer", ack.Seq)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if b.GPUs != nil && slices.EqualFunc(b.GPUs, a.gpus, sameGPU) {
		a.gpusTold = true
	}
	for i := range ack.Terms {
		if x := a.allocs[ack.Terms[i].ID]; x != nil {
			x.terms(&ack.Terms[i], ack.Position)
		}
	}
	if sent <= a.lease.sent {
		return // a later heartbeat was acknowledged before this one
	}
	a.lease = lease{sent: sent, length: ack.Lease.D(), orphan: ack.Orphan.D()}
	for _, x := range a.allocs {
		wake(x.wake)
	}
}

func sameGPU(p, q api.GPU) bool {
	if (p.Used == nil) != (q.Used == nil) || p.Used != nil && *p.Used != *q.Used {
		return false
	}
	p.Used, q.Used = nil, nil
	return p == q
}

// readGPUs looks at the devices now.
func (a *Agent) readGPUs(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, gpuFirstRead)
	defer cancel()
	devices, err := a.GPU.Devices(ctx)
	if err != nil {
		if ctx.Err() == nil {
			a.Logger.Warn("the GPUs could not be read", "err", err)
		}
		return
	}
	held, marks := a.claims("")
	list := make([]api.GPU, 0, len(devices))
	for i := range devices {
		list = append(list, a.view(&devices[i], held, marks))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.EqualFunc(list, a.gpus, sameGPU) {
		a.gpus, a.gpusTold = list, false
	}
}

func (a *Agent) keepGPUs(ctx context.Context) {
	for a.Clock.Sleep(ctx, gpuEvery) == nil {
		a.readGPUs(ctx)
	}
}
