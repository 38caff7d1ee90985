package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/agent"
	"github.com/troupe-runtime/troupe/worker/shim"
)

const (
	prepareEvery = 250 * time.Millisecond
	lastWords    = 5 * time.Second
	defaultGrace = 200 * time.Millisecond
	queueLength  = 4096
)

// simShim plays worker/shim: the same messages in the same order, the same rules for
// generations, leases and last words. Only its ranks are goroutines with a script.
type simShim struct {
	n   *Node
	cfg shim.Config

	mu       sync.Mutex
	dead     bool
	journal  shim.Journal
	conns    map[*simConn]bool
	class    wire.Class
	sent     time.Duration // of the newest renewal
	lease    time.Duration // end of it
	orphan   time.Duration // end of the orphan time
	span     time.Duration
	state    wire.AllocState
	att      *attempt
	next     *wire.AttemptSpec
	prepared map[prepareKey]*wire.Prepared
	errands  []wire.TaskReply // what the leader's own tasks came to
	fates    map[stepID]*fate
	ending   bool
	leaving  bool
	ticker   *time.Timer
	preparer *time.Timer
	voice    *shim.Voice
	agentAt  time.Duration // when an agent said something last
	ordered  string        // newest order to stop of the leader's own
	mute     context.CancelFunc
}

// fate is the verdict of a step: ranks that saved it wait until done is closed.
type fate struct {
	done      chan struct{}
	set       bool
	committed bool
}

type stepID struct {
	gen  uint64
	step int64
}

type prepareKey struct {
	gen        uint64
	step, rank int64
}

// simConn is one agent's connection.
type simConn struct {
	s      *simShim
	out    chan shim.ShimMessage
	closed bool
}

var _ agent.Shim = (*simConn)(nil)

func (c *simConn) Messages() <-chan shim.ShimMessage { return c.out }

// Send implements agent.Shim.
func (c *simConn) Send(m shim.AgentMessage) error {
	if c.s.n.isStunned() {
		return nil // whoever is stopped has not said it
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.closed || c.s.dead {
		return errors.New("broken pipe")
	}
	c.s.obey(c, &m)
	c.s.leave()
	return nil
}

// Close implements agent.Shim.
func (c *simConn) Close() error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.shut()
	c.s.leave()
	return nil
}

func (c *simConn) shut() {
	if !c.closed {
		c.closed = true
		close(c.out)
		delete(c.s.conns, c)
		c.s.speak()
	}
}

func (c *simConn) tell(m shim.ShimMessage) {
	if c.closed {
		return
	}
	select {
	case c.out <- m:
	default:
		c.shut() // a stuck agent is cut off and told everything again
	}
}

// newShim starts a shim on the node; it goes on with a dead one's numbers.
func (n *Node) newShim(cfg shim.Config) (*simShim, error) {
	s := &simShim{
		n: n, cfg: cfg, conns: map[*simConn]bool{}, class: wire.ClassFast, state: wire.AllocIdle,
		prepared: map[prepareKey]*wire.Prepared{}, fates: map[stepID]*fate{}, journal: shim.Journal{Version: shim.ProtocolVersion, Alloc: cfg.Alloc},
	}
	if old, err := shim.ReadJournal(cfg.Dir); err == nil {
		s.journal.Generation, s.journal.Seq, s.journal.Unacked = old.Generation, old.Seq, old.Unacked
	}
	s.journal.PID = n.nextPID()
	s.span = cfg.Orphan.D()
	if s.span <= 0 {
		s.span = 10 * time.Minute
	}
	s.orphan = n.boottime() + s.span
	if err := writeJournal(cfg.Dir, &s.journal); err != nil {
		return nil, err
	}
	if err := n.addShim(s); err != nil {
		return nil, err
	}
	s.speakUp()
	s.mu.Lock()
	s.watch()
	s.mu.Unlock()
	return s, nil
}

func (s *simShim) connect() (agent.Shim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return nil, errNoShim
	}
	c := &simConn{s: s, out: make(chan shim.ShimMessage, queueLength)}
	s.conns[c] = true
	s.agentAt = s.n.boottime()
	s.speak()
	c.tell(s.status())
	for i := range s.journal.Unacked {
		ev := s.journal.Unacked[i]
		c.tell(shim.ShimMessage{Type: "event", V: shim.ProtocolVersion, Event: &ev})
	}
	return c, nil
}

// watch enforces what depends on time. s.mu is held.
func (s *simShim) watch() {
	if s.dead {
		return
	}
	s.speak()
	now := s.n.boottime()
	at := s.orphan
	if s.class == wire.ClassStrict {
		at = s.lease
	}
	if now >= at && s.att.active() && !s.att.killed {
		why := "no leader was heard of for the orphan time"
		if s.class == wire.ClassStrict {
			why = "the lease ended without a renewal"
		}
		s.dropNext(why)
		s.end(0, why, true)
	}
	if now >= s.orphan && len(s.conns) == 0 && !s.ending {
		s.finish("no agent and no leader was heard of for the orphan time")
	}
	wait := 250 * time.Millisecond
	if at > now {
		wait = min(at-now, time.Second)
	}
	s.ticker = time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watch()
		s.leave()
	})
}

func (s *simShim) flush() {
	if err := writeJournal(s.cfg.Dir, &s.journal); err != nil && !s.n.cutPower() {
		s.n.c.fail("a journal was not written: %v", err)
	}
}

func (s *simShim) emit(ev wire.AllocEvent) {
	s.journal.Seq++
	ev.Alloc, ev.Seq, ev.At = s.cfg.Alloc, s.journal.Seq, time.Now().UnixNano()
	s.journal.Unacked = append(s.journal.Unacked, ev)
	s.voice.News()
	s.flush()
	s.tell(shim.ShimMessage{Type: "event", V: shim.ProtocolVersion, PID: s.journal.PID, Event: &ev})
}

func (s *simShim) tell(m shim.ShimMessage) {
	for c := range s.conns {
		c.tell(m)
	}
}

func (s *simShim) status() shim.ShimMessage {
	st := &wire.AllocStatus{ID: s.cfg.Alloc, Job: s.cfg.Job, Generation: s.journal.Generation, State: s.state}
	if s.att.active() && s.att.began {
		st.Steps, st.Answers = s.att.steps(), s.att.agree.shim.Answers()
	}
	until := s.orphan
	if s.class == wire.ClassStrict {
		until = s.lease
	}
	return shim.ShimMessage{Type: "status", V: shim.ProtocolVersion, PID: s.journal.PID, Status: st, Until: int64(until)}
}

// obey carries out one message of an agent.
func (s *simShim) obey(c *simConn, m *shim.AgentMessage) {
	s.agentAt = s.n.boottime()
	s.speak()
	switch m.Type {
	case "hello", "status":
		c.tell(s.status())
	case "renew":
		s.renew(m)
	case "start":
		if m.Attempt != nil {
			s.start(m.Attempt)
		}
	case "stop":
		if m.Stop != nil {
			s.dropNext(m.Stop.Reason)
			s.end(m.Stop.Grace.D(), m.Stop.Reason, m.Stop.Quiet)
		}
	case "verdict":
		s.verdict(m.Verdict)
	case "verified":
		if a := s.att; a.active() && !a.restored && (m.Verified() == 0 || m.Verified() == a.spec.Generation) {
			a.restored = true
			close(a.verified)
		}
	case "propose":
		s.propose(m.Generation, m.Proposal)
	case "ack":
		s.ack(m.Seq)
	case "end":
		s.finish("the allocation ended")
	}
}

func (s *simShim) renew(m *shim.AgentMessage) {
	sent := min(time.Duration(m.SentAt), s.n.boottime())
	if sent < s.sent {
		return
	}
	s.sent = sent
	if m.Class != "" {
		s.class = m.Class
		if s.att != nil {
			for _, r := range s.att.ranks {
				s.n.c.Hosts.reclass(r.proc, m.Class)
			}
		}
	}
	s.lease = sent + m.Lease.D()
	if m.Orphan.D() > 0 {
		s.span = m.Orphan.D()
	}
	s.orphan = sent + s.span
}

func (s *simShim) ack(seq uint64) {
	n := 0
	for n < len(s.journal.Unacked) && s.journal.Unacked[n].Seq <= seq {
		n++
	}
	if n > 0 {
		s.journal.Unacked = slices.Clone(s.journal.Unacked[n:])
		s.flush()
	}
}

// start takes an attempt, by the rules of worker/shim (P3).
func (s *simShim) start(spec *wire.AttemptSpec) {
	switch {
	case spec.Generation <= s.journal.Generation, s.ending, s.n.boottime() >= s.lease:
		s.tell(s.status())
		return
	}
	s.journal.Generation = spec.Generation
	s.flush()
	if s.att.active() {
		s.dropNext("superseded before it could start")
		s.next = spec
		s.end(0, fmt.Sprintf("superseded by generation %d", spec.Generation), true)
		return
	}
	s.begin(spec)
}

func (s *simShim) dropNext(why string) {
	if s.next == nil {
		return
	}
	gen := s.next.Generation
	s.next = nil
	s.emit(wire.AllocEvent{Kind: wire.EventEnded, Generation: gen, Message: why})
}

// finish ends the allocation.
func (s *simShim) finish(reason string) {
	if s.ending {
		return
	}
	s.ending = true
	s.dropNext(reason)
	if s.att.active() {
		s.end(0, reason, true)
		return
	}
	s.sayGone()
}

func (s *simShim) sayGone() {
	if s.leaving {
		return
	}
	s.state, s.leaving, s.journal.Gone = wire.AllocGone, true, true
	s.emit(wire.AllocEvent{Kind: wire.EventGone, Generation: s.journal.Generation})
	time.AfterFunc(lastWords, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.exit()
	})
}

// leave ends the process once its last words are heard, or nobody is there to hear
// them. s.mu is held.
func (s *simShim) leave() {
	if s.leaving && (len(s.journal.Unacked) == 0 || len(s.conns) == 0 && !s.voice.Answered(3*time.Second)) {
		s.exit()
	}
}

func (s *simShim) exit() {
	if s.dead {
		return
	}
	s.dead = true
	s.mute()
	s.ticker.Stop()
	if s.preparer != nil {
		s.preparer.Stop()
	}
	for c := range s.conns {
		c.shut()
	}
	s.n.dropShim(s)
}

// die is SIGKILL of the shim: its ranks die with it, except stragglers, which last
// until somebody sweeps or the kernel is through.
func (s *simShim) die(stragglers bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return
	}
	s.exit()
	if a := s.att; a != nil {
		a.over, a.killed = true, true
		for i, r := range a.ranks {
			if stragglers && i%2 == 1 && s.class == wire.ClassFast && !r.ended {
				s.n.straggle(s.cfg.Alloc, r)
				continue
			}
			r.kill(nil)
		}
		a.cancel()
	}
}

// prepare takes a rank's finished step and tells it until a verdict comes.
func (s *simShim) prepare(p *wire.Prepared) {
	s.prepared[prepareKey{p.Generation, p.Step, p.Rank}] = p
	s.tell(shim.ShimMessage{Type: "prepared", V: shim.ProtocolVersion, PID: s.journal.PID, Prepared: p})
	s.voice.News()
	if s.preparer == nil {
		s.preparer = time.AfterFunc(prepareEvery, s.repeat)
	}
}

func (s *simShim) repeat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.preparer = nil
	if s.dead || len(s.prepared) == 0 {
		return
	}
	for _, k := range s.preparedKeys() {
		s.tell(shim.ShimMessage{Type: "prepared", V: shim.ProtocolVersion, PID: s.journal.PID, Prepared: s.prepared[k]})
	}
	s.preparer = time.AfterFunc(prepareEvery, s.repeat)
}

func (s *simShim) preparedKeys() []prepareKey {
	keys := make([]prepareKey, 0, len(s.prepared))
	for k := range s.prepared {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b prepareKey) int { return int(a.step-b.step)*1000 + int(a.rank-b.rank) })
	return keys
}

func (s *simShim) verdict(v *wire.Verdict) {
	if v == nil || v.State != "committed" && v.State != "dropped" {
		return
	}
	for k := range s.prepared {
		if k.gen == v.Generation && k.step == v.Step {
			delete(s.prepared, k)
		}
	}
	if f := s.fate(v.Generation, v.Step); !f.set {
		f.set, f.committed = true, v.State == "committed"
		close(f.done)
		s.n.c.heard(s.cfg.Run, v) // the first word is the last; later ones are not listened to
	}
}

func (s *simShim) fate(gen uint64, step int64) *fate {
	k := stepID{gen, step}
	if s.fates[k] == nil {
		s.fates[k] = &fate{done: make(chan struct{})}
	}
	return s.fates[k]
}

// ownerGone is the end of the process that owns the job, as the shim on its host sees
// it: told at once, the ranks end two seconds later.
func (s *simShim) ownerGone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return
	}
	s.emit(wire.AllocEvent{Kind: wire.EventOwnerGone, Generation: s.journal.Generation, Message: "the owner ended"})
	time.AfterFunc(2*time.Second, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.dead {
			s.dropNext("the process that owns the job ended")
			s.end(0, "the process that owns the job ended", true)
			s.leave()
		}
	})
}

// EndOwner ends the process that owns a job whose owner is on this node; false: no
// shim here watches one.
func (n *Node) EndOwner(job string) bool {
	s := n.shimOf(job)
	if s == nil || s.cfg.Owner == nil || s.cfg.Owner.BootID != n.boot() {
		return false
	}
	s.ownerGone()
	return true
}
