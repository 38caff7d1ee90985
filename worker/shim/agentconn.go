package shim

import (
	"errors"
	"io"
	"log"
	"net"
	"os"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
)

// Names of the sockets in Config.SocketDir.
const (
	AgentSocket = "agent.sock"
	RankSocket  = "rank.sock"
)

const (
	maxAgents  = 8
	agentQueue = 4096 // messages that wait for a slow agent before it is cut off
	writeLimit = 10 * time.Second
)

// agentConn is one connection of an agent. Messages are queued: a stuck agent never
// holds up the shim, it is cut off and told everything again when it returns.
type agentConn struct {
	c    *net.UnixConn
	out  chan *ShimMessage
	once sync.Once
	done chan struct{}
}

func (a *agentConn) queue(m *ShimMessage) {
	select {
	case a.out <- m:
	default:
		a.c.Close()
	}
}

// finish sends what is queued and closes.
func (a *agentConn) finish() {
	a.once.Do(func() { close(a.out) })
	select {
	case <-a.done:
	case <-time.After(time.Second):
	}
	a.c.Close()
}

func (a *agentConn) write() {
	defer close(a.done)
	for m := range a.out {
		_ = a.c.SetWriteDeadline(time.Now().Add(writeLimit))
		if err := WriteFrame(a.c, MaxAgentFrame, m); err != nil {
			a.c.Close()
			for range a.out { //nolint:revive // drained until the loop closes it
			}
			return
		}
	}
}

func (s *shim) acceptAgents(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(50 * time.Millisecond) // out of descriptors: later
			continue
		}
		if err := process.CheckPeer(c); err != nil {
			log.Printf("agent socket: %v", err)
			c.Close()
			continue
		}
		a := &agentConn{c: c, out: make(chan *ShimMessage, agentQueue), done: make(chan struct{})}
		s.post(func() { s.welcome(a) })
	}
}

// welcome starts every connection with a status, then everything unacknowledged.
func (s *shim) welcome(a *agentConn) {
	if len(s.agents) >= maxAgents {
		a.c.Close()
		return
	}
	s.flush() // what others are about to hear must not be heard twice here
	go a.write()
	a.queue(s.status())
	for i := range s.journal.Unacked {
		ev := s.journal.Unacked[i]
		a.queue(&ShimMessage{Type: "event", V: AgentProtocol, Event: &ev})
	}
	s.agents[a], s.agentAt = true, s.now()
	s.speak(s.agentAt)
	go s.readAgent(a)
}

func (s *shim) readAgent(a *agentConn) {
	defer s.post(func() {
		delete(s.agents, a)
		s.speak(s.now())
		a.once.Do(func() { close(a.out) })
	})
	for {
		var m AgentMessage
		if err := ReadFrame(a.c, MaxAgentFrame, &m); err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				log.Printf("agent socket: %v", err)
			}
			a.c.Close()
			return
		}
		s.post(func() { s.obey(a, &m) })
	}
}

// obey carries out one message of an agent. What it does not know it ignores: a
// shim outlives agents, and a newer one may say more.
func (s *shim) obey(a *agentConn, m *AgentMessage) {
	s.agentAt = s.now()
	s.speak(s.agentAt)
	switch m.Type {
	case "hello", "status":
		s.flush() // a status never overtakes an event
		a.queue(s.status())
	case "renew":
		s.lease.renew(m, s.now())
	case "start":
		if m.Attempt != nil {
			s.start(startOrder{spec: *m.Attempt, env: m.Env, cpus: m.CPUs, failure: m.Failure, dropped: m.Dropped})
		}
	case "stop":
		s.stop(m.Stop)
	case "disown":
		s.owner.disowned = true
	case "verdict":
		s.verdict(m.Verdict)
	case "propose":
		s.propose(m.Generation, m.Proposal)
	case "verified":
		s.verified(m.Verified())
	case "ack":
		s.ack(m.Seq)
	case "signal":
		s.signalRanks(m.Signal)
	case "fault":
		s.fault(m.Fault)
	case "stacks":
		ask := m.Ask
		s.stacks(func(list []wire.RankStack) {
			if s.agents[a] {
				a.queue(&ShimMessage{Type: "stacks", V: ProtocolVersion, PID: os.Getpid(), Ask: ask, Stacks: list})
			}
		})
	case "end":
		s.finish("the allocation ended")
	}
}

// Verified is the generation that a verified message speaks of: that of Attempt, or
// 0, the current one, when it names none.
func (m *AgentMessage) Verified() uint64 {
	if m.Attempt != nil {
		return m.Attempt.Generation
	}
	if m.Verdict != nil {
		return m.Verdict.Generation
	}
	return 0
}

// verified lets resume_point answer: every share of the restore step is whole.
func (s *shim) verified(generation uint64) {
	a := s.att
	if a == nil || a.restored || generation != 0 && generation != a.spec.Generation {
		return
	}
	a.restored = true
	close(a.verified)
}
