package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// Time is virtual in these tests, so shims are scripted: what a real one does is
// tested in agent_test.go.

// scripted is a launcher whose shims a test plays.
type scripted struct {
	mu    sync.Mutex
	shims map[string]*script
}

// script is one shim: what it heard, and the connection that it has now.
type script struct {
	mu    sync.Mutex
	cfg   shim.Config
	heard []shim.AgentMessage
	at    []time.Time
	conn  *scriptConn
	dials int
	// first is what it says when somebody connects.
	first []shim.ShimMessage
	// now is its answer to status, unless it is silent.
	now             wire.AllocStatus
	until           int64 // what it says of its lease
	silent, stopped bool
	swept           int
	refuse          error // of everything that it is sent
}

type scriptConn struct {
	s      *script
	closed bool
	msgs   chan shim.ShimMessage
}

func (l *scripted) Start(_ context.Context, cfg shim.Config) (Shim, error) {
	if err := shim.WriteConfig(&cfg); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := wire.AllocStatus{ID: cfg.Alloc, Job: cfg.Job, State: wire.AllocIdle}
	s := &script{cfg: cfg, now: now, first: []shim.ShimMessage{{Type: "status", Status: &now}}}
	l.shims[cfg.Alloc] = s
	return s.dial(), nil
}

func (l *scripted) of(alloc string) *script {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shims[alloc]
}

func (l *scripted) Find(cfg shim.Config) (Found, error) {
	s := l.of(cfg.Alloc)
	if s == nil {
		return Found{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return Found{Alive: s.swept == 0, Stopped: s.stopped}, nil
}

func (l *scripted) Attach(_ context.Context, cfg shim.Config) (Shim, error) {
	if s := l.of(cfg.Alloc); s != nil {
		return s.dial(), nil
	}
	return nil, errors.New("dead")
}

func (l *scripted) Sweep(_ context.Context, cfg shim.Config, _ *shim.Journal) error {
	if s := l.of(cfg.Alloc); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.swept++
	}
	return nil
}

func (s *script) dial() Shim {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dials++
	c := &scriptConn{s: s, msgs: make(chan shim.ShimMessage, 1024)}
	s.conn = c
	for _, m := range s.first {
		c.msgs <- m
	}
	return c
}

func (s *script) say(m shim.ShimMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn.msgs <- m
}

func (s *script) event(seq uint64, kind wire.EventKind, gen uint64) {
	e := shim.ShimMessage{Type: "event", Event: &wire.AllocEvent{Alloc: s.cfg.Alloc, Seq: seq, Kind: kind, Generation: gen}}
	s.mu.Lock()
	s.first = append(s.first, e)
	switch kind {
	case wire.EventStarted:
		s.now.Generation, s.now.State = gen, wire.AllocRunning
	case wire.EventEnded:
		s.now.Generation, s.now.State = gen, wire.AllocEnded
	}
	s.mu.Unlock()
	s.say(e)
}

func (s *script) of(kind string) (list []shim.AgentMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.heard {
		if m.Type == kind {
			list = append(list, m)
		}
	}
	return list
}

func (c *scriptConn) Messages() <-chan shim.ShimMessage { return c.msgs }

func (c *scriptConn) Send(m shim.AgentMessage) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.heard = append(c.s.heard, m)
	c.s.at = append(c.s.at, time.Now())
	if c.closed {
		return errors.New("closed")
	}
	if m.Type == "status" && !c.s.silent {
		now := c.s.now
		c.msgs <- shim.ShimMessage{Type: "status", Status: &now, Until: c.s.until}
	}
	return c.s.refuse
}

func (c *scriptConn) Close() error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if !c.closed {
		c.closed = true
		close(c.msgs)
	}
	return nil
}

// simulated runs f in a bubble with an agent and a head.
func simulated(t *testing.T, before func(*world), f func(w *world, a *Agent, l *scripted)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		if before != nil {
			before(w)
		}
		l := &scripted{shims: map[string]*script{}}
		o := w.options()
		o.Clock, o.Launcher, o.NoSocket, o.BootID = clock.Virtual(), l, true, "boot"
		for _, f := range w.change {
			f(&o)
		}
		a, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		f(w, a, l)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (w *world) counts() (sessions, beats int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.sessions), len(w.beats)
}

func TestHeartbeatsAndRegistration(t *testing.T) {
	simulated(t, func(w *world) { w.refuse = "not yet" }, func(w *world, a *Agent, _ *scripted) {
		time.Sleep(time.Hour)
		if s, b := w.counts(); s != 0 || b != 0 {
			t.Fatalf("%d sessions and %d heartbeats while refused", s, b)
		}
		w.set(func() { w.refuse = "" })
		time.Sleep(maxBackoff + time.Second)
		if s, _ := w.counts(); s != 1 {
			t.Fatalf("%d sessions, want 1", s)
		}
		_, before := w.counts()
		time.Sleep(time.Minute)
		if _, after := w.counts(); after-before < 59 || after-before > 61 {
			t.Errorf("%d heartbeats in an idle minute, want 60", after-before)
		}
		// A head that has forgotten the session gets it again.
		w.set(func() { w.known = "" })
		time.Sleep(5 * time.Second)
		if s, _ := w.counts(); s != 2 {
			t.Errorf("%d sessions, want 2", s)
		}
		// A cut-off agent goes on for ever and returns at once.
		w.mem.CutAll("node-" + node)
		time.Sleep(time.Hour)
		_, before = w.counts()
		w.mem.HealAll("node-" + node)
		time.Sleep(100 * time.Millisecond)
		if _, after := w.counts(); after == before {
			t.Error("no heartbeat right after the connection is back")
		}
	})
}

// P3: nothing starts without a lease, and a lease runs from the sending of the
// heartbeat that was acknowledged.
func TestLease(t *testing.T) {
	const delay = 300 * time.Millisecond
	var a *Agent
	before := func(w *world) {
		w.mute[wire.HeadHeartbeat] = true
		w.lease = 10 * time.Second
	}
	simulated(t, before, func(w *world, agent *Agent, l *scripted) {
		a = agent
		synctest.Wait()
		w.want(w.attempt("a1", 1, 1, "true"))
		time.Sleep(time.Minute)
		s := l.of(w.prefix + "a1")
		if len(s.of("start")) != 0 {
			t.Fatal("started without a lease")
		}
		w.set(func() { w.mute[wire.HeadHeartbeat] = false })
		w.mem.SetDelay(func(from, _, _ string) time.Duration {
			if from == "head" {
				return delay
			}
			return 0
		})
		time.Sleep(10 * time.Second)
		s.mu.Lock()
		var order []string
		now, n := a.Clock.Boot(), len(s.heard)
		for i, m := range s.heard {
			order = append(order, m.Type)
			if m.Type != "renew" {
				continue
			}
			told := now - time.Since(s.at[i])
			if age := told - time.Duration(m.SentAt); age < delay || age > delay+10*time.Millisecond {
				t.Errorf("renewal %d: sent %v before it was told, want the %v of its acknowledgement", i, age, delay)
			}
			if m.Lease.D() != 10*time.Second || m.Class != wire.ClassFast {
				t.Errorf("renewal %+v", m)
			}
		}
		s.mu.Unlock()
		if n < 10 || order[0] != "renew" || order[1] != "start" {
			t.Fatalf("heard %v; want a renewal, the start, and more renewals", order)
		}
		// The shim takes it; it is not told again.
		s.event(1, wire.EventStarted, 1)
		synctest.Wait()
		starts := len(s.of("start"))
		time.Sleep(10 * time.Second)
		if got := len(s.of("start")); got != starts {
			t.Errorf("a start that was taken was told %d times more", got-starts)
		}
		// Cut off: no renewal of what was not acknowledged, nothing new is started.
		w.mem.CutAll("node-" + node)
		renewals := len(s.of("renew"))
		a.mu.Lock()
		next := w.attempt("a1", 2, 1, "true")
		a.mu.Unlock()
		time.Sleep(11 * time.Second)
		a.take(t.Context(), wire.Desired{Position: wire.Position{Term: 2}, Allocs: []wire.Alloc{next}})
		time.Sleep(time.Minute)
		if got := len(s.of("renew")); got > renewals+1 {
			t.Errorf("%d renewals while cut off", got-renewals)
		}
		if slices.ContainsFunc(s.of("start"), func(m shim.AgentMessage) bool { return m.Attempt.Generation == 2 }) {
			t.Error("started with a lease that was over")
		}
	})
}

func TestVerdicts(t *testing.T) {
	simulated(t, nil, func(w *world, _ *Agent, l *scripted) {
		time.Sleep(time.Second)
		id := w.prefix + "a1"
		al := w.attempt("a1", 1, 1, "true")
		al.Attempt.Restore = &wire.RestoreSpec{Step: 3}
		w.want(al)
		time.Sleep(time.Second)
		s := l.of(id)
		s.event(1, wire.EventStarted, 1)
		p := shim.ShimMessage{Type: "prepared", Prepared: &wire.Prepared{Alloc: id, Run: "test", Generation: 1, Step: 4, World: 1}}
		foreign := shim.ShimMessage{Type: "prepared", Prepared: &wire.Prepared{Alloc: "other", Generation: 1, Step: 5}}
		for range 3 {
			s.say(p)
			s.say(foreign)
			time.Sleep(250 * time.Millisecond)
		}
		w.mu.Lock()
		n := len(w.prepared)
		w.mu.Unlock()
		if n != 3 || len(s.of("verdict")) != 0 {
			t.Fatalf("%d reports and verdicts %+v; want 3 reports and none yet", n, s.of("verdict"))
		}
		w.set(func() { w.verdict, w.offset = "committed", 1 })
		s.say(p)
		time.Sleep(10 * time.Millisecond)
		if v := s.of("verdict"); len(v) != 0 {
			t.Fatalf("the answer about another step was passed on: %+v", v)
		}
		w.set(func() { w.offset = 0 })
		s.say(p)
		time.Sleep(10 * time.Millisecond)
		if v := s.of("verdict"); len(v) != 1 || v[0].Verdict.State != "committed" || v[0].Verdict.Step != 4 {
			t.Fatalf("verdicts %+v", v)
		}
		// A verdict that the head pushes goes to the shim too, and only to its own.
		for _, v := range []wire.Verdict{
			{Alloc: id, Generation: 1, Step: 6, State: "dropped"},
			{Alloc: id, Generation: 1, Step: 7, State: "pending"},
			{Alloc: "other", Generation: 1, Step: 8, State: "dropped"},
		} {
			data, err := wire.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.conn.Publish(wire.NodeVerdict(node), data); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Millisecond)
		if v := s.of("verdict"); len(v) != 2 || v[1].Verdict.Step != 6 {
			t.Errorf("verdicts %+v", v)
		}
		// P4: resume_point may answer once every share is whole.
		if len(s.of("verified")) != 0 {
			t.Error("told verified before it was")
		}
		al.Attempt.Restore = &wire.RestoreSpec{Step: 3, Verified: true}
		w.want(al)
		time.Sleep(10 * time.Second)
		if v := s.of("verified"); len(v) != 1 || v[0].Verified() != 1 {
			t.Errorf("told verified: %+v, want once", v)
		}
	})
}

// Every event arrives, once and in order, whatever the bus and the connection to the
// shim do. The head of these tests checks the numbers.
func TestReportsSurviveLoss(t *testing.T) {
	simulated(t, nil, func(w *world, _ *Agent, l *scripted) {
		time.Sleep(time.Second)
		w.want(w.attempt("a1", 1, 1, "true"), w.attempt("b1", 2, 1, "true"))
		time.Sleep(time.Second)
		w.mem.SetLoss(0.4, 0.2)
		const events = 60
		for n := range uint64(events) {
			for _, id := range []string{"a1", "b1"} {
				s := l.of(w.prefix + id)
				s.event(n+1, wire.EventFallback, 0)
				if n%7 == 3 {
					s.mu.Lock()
					c := s.conn
					s.mu.Unlock()
					c.Close() // the connection breaks; the shim lives
				}
			}
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(20 * time.Minute)
		w.mem.SetLoss(0, 0)
		time.Sleep(time.Minute)
		for _, id := range []string{"a1", "b1"} {
			s := l.of(w.prefix + id)
			acks := s.of("ack")
			if len(acks) == 0 || acks[len(acks)-1].Seq != events {
				t.Errorf("%s heard acknowledgements up to %+v, want %d", id, acks[max(0, len(acks)-1):], events)
			}
			if s.dials < 8 {
				t.Errorf("%d connections, want one more for each that broke", s.dials)
			}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.events) != 2*events {
			t.Errorf("the head has %d events, want %d", len(w.events), 2*events)
		}
	})
}

// A shim tells everything again to a connection that is new; the head hears it once.
func TestReconnectRepeatsNothing(t *testing.T) {
	simulated(t, nil, func(w *world, _ *Agent, l *scripted) {
		time.Sleep(time.Second)
		w.want(w.attempt("a1", 1, 1, "true"))
		time.Sleep(time.Second)
		s := l.of(w.prefix + "a1")
		s.event(1, wire.EventStarted, 1)
		time.Sleep(time.Second)
		s.mu.Lock()
		c := s.conn
		s.mu.Unlock()
		c.Close()
		time.Sleep(time.Second)
		s.event(2, wire.EventEnded, 1)
		time.Sleep(time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		if s.dials != 2 || len(w.events) != 2 || w.repeats != 0 {
			t.Errorf("%d connections, %d events, %d told again; want 2, 2 and none", s.dials, len(w.events), w.repeats)
		}
	})
}

// Acknowledgements may overtake each other; a lease never gets shorter by that.
func TestLateAcknowledgement(t *testing.T) {
	simulated(t, nil, func(_ *world, a *Agent, _ *scripted) {
		time.Sleep(time.Second)
		now := a.Clock.Boot()
		beat := wire.Heartbeat{Seq: 99}
		ack := wire.HeartbeatAck{Seq: 99, Lease: unit.Duration(time.Minute), Orphan: unit.Duration(time.Hour)}
		a.acknowledged(beat, ack, now)
		a.acknowledged(beat, ack, now-time.Second)
		for _, bad := range []wire.HeartbeatAck{{Seq: 98, Lease: ack.Lease, Orphan: ack.Orphan}, {Seq: 99, Lease: -1, Orphan: ack.Orphan}, {Seq: 99}} {
			a.acknowledged(beat, bad, now+time.Second)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.lease.sent != now || !a.lease.valid(now+59*time.Second) || a.lease.valid(now+time.Minute) {
			t.Errorf("lease %+v, want it from %v on", a.lease, now)
		}
	})
}

// P2, P6: a shim that died without a word is reported, with the numbers going on.
func TestShimLostKeepsCounting(t *testing.T) {
	simulated(t, nil, func(w *world, _ *Agent, l *scripted) {
		time.Sleep(time.Second)
		w.want(w.attempt("a1", 1, 1, "true"))
		time.Sleep(time.Second)
		s := l.of(w.prefix + "a1")
		s.event(1, wire.EventStarted, 1)
		synctest.Wait()
		l.mu.Lock()
		delete(l.shims, w.prefix+"a1")
		l.mu.Unlock()
		s.conn.Close()
		time.Sleep(time.Second)
		w.mu.Lock()
		got := fmt.Sprint(len(w.events), w.events[len(w.events)-1].Kind, w.events[len(w.events)-1].Seq)
		w.mu.Unlock()
		if got != fmt.Sprint(2, wire.EventShimLost, 2) {
			t.Errorf("within a second the head has %s", got)
		}
	})
}
