package control

import (
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// session is what a leader knows of a node beside the state: volatile, high-rate.
type session struct {
	id    string // of the agent's start
	seq   uint64 // of the newest registration or heartbeat
	last  time.Time
	ports []int64
	// used are ports that were handed out; the agent offers them until the attempt
	// arrives there, and they must not go to another one meanwhile.
	used   map[int64]time.Time
	allocs map[string]wire.AllocStatus
	gpus   []api.GPU
	// closed is when its connection ended, zero if something was heard since.
	closed     time.Time
	restarting bool // it has announced that the agent is started again
	// sent is the desired state that was pushed last; taken says that it arrived.
	sent   []byte
	sentAt time.Time
	taken  bool
	busy   bool // a push is under way
	// over is closed when this session answers no more: a later one was opened, or the
	// node was declared lost.
	over    chan struct{}
	overSet bool
}

// portRest is how long a port that was handed out stays out of the pool.
const portRest = 10 * time.Second

// sessions holds all of them.
type sessions struct {
	mu    sync.Mutex
	clock clock.Clock
	since time.Time // this head leads since
	// arrived is when a node opened a session last.
	arrived time.Time
	byID    map[string]*session
	voices  map[string]*voice // of shims that speak for themselves, by node
	nonce   string            // of this leadership
	paces   map[string]*pace  // by job
}

func newSessions(c clock.Clock) *sessions {
	return &sessions{clock: c, byID: map[string]*session{}, voices: map[string]*voice{}, paces: map[string]*pace{}}
}

// lead forgets what a former leadership knew; every node gets the full grace.
func (s *sessions) lead(now time.Time, nonce string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since, s.arrived, s.byID = now, now, map[string]*session{}
	s.voices, s.paces, s.nonce = map[string]*voice{}, map[string]*pace{}, nonce
}

func (s *sessions) open(node, id string, seq uint64, ports []int64, allocs []wire.AllocStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.byID[node]; old != nil && old.id == id && old.seq >= seq {
		return // overtaken by what the session said later
	}
	n := &session{id: id, seq: seq, last: s.clock.Now(), ports: ports, allocs: map[string]wire.AllocStatus{}, over: make(chan struct{})}
	for _, a := range allocs {
		n.allocs[a.ID] = a
	}
	s.learn(allocs, n.last)
	if old := s.byID[node]; old != nil {
		old.end() // of the same agent, too: what was sent over its former connection may be lost
	}
	s.byID[node] = n
	s.arrived = n.last
}

// end tells those that wait for an answer of this session that none will come.
func (n *session) end() {
	if !n.overSet {
		n.overSet = true
		close(n.over)
	}
}

// lost ends the session of a node that was declared lost.
func (s *sessions) lost(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.byID[node]; n != nil {
		n.end()
	}
}

// ending returns a channel that is closed once the node's present session is over; nil,
// which never is, when this leader knows of none.
func (s *sessions) ending(node string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.byID[node]; n != nil {
		return n.over
	}
	return nil
}

// beat records a heartbeat; false when the session is not known.
func (s *sessions) beat(node string, b wire.Heartbeat) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.byID[node]
	if n == nil || n.id != b.Session {
		return false
	}
	if b.Seq <= n.seq {
		return true // late or told twice: no sign of life (I12)
	}
	n.seq = b.Seq
	n.last, n.ports, n.closed, n.restarting = s.clock.Now(), b.Ports, time.Time{}, b.Restarting
	s.learn(b.Allocs, n.last)
	n.allocs = make(map[string]wire.AllocStatus, len(b.Allocs))
	for _, a := range b.Allocs {
		n.allocs[a.ID] = a
	}
	if b.GPUs != nil {
		n.gpus = b.GPUs
	}
	return true
}

// arriving reports whether a node has come back to this leader within the last d.
func (s *sessions) arriving(d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock.Now().Sub(s.arrived) < d
}

func (s *sessions) leadingFor() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock.Now().Sub(s.since)
}

// lastBeat is when a node was heard last; zero when this leader never heard it.
func (s *sessions) lastBeat(node string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.byID[node]; n != nil {
		return n.last
	}
	return time.Time{}
}

// takePort takes one of the ports that a node holds for master ports.
func (s *sessions) takePort(node string) (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.byID[node]
	if n == nil || len(n.ports) == 0 {
		return 0, false
	}
	now := s.clock.Now()
	for port, at := range n.used {
		if now.Sub(at) > portRest {
			delete(n.used, port)
		}
	}
	for _, p := range n.ports {
		if _, taken := n.used[p]; !taken {
			if n.used == nil {
				n.used = map[int64]time.Time{}
			}
			n.used[p] = now
			return p, true
		}
	}
	return 0, false
}

// steps returns the newest published steps of an allocation's ranks.
func (s *sessions) steps(node, alloc string) ([]wire.RankStep, wire.AllocState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, _, _ := s.newest(node, alloc)
	return a.Steps, a.State
}

// devices is what a node's agent said last of its devices, by UUID.
func (s *sessions) devices(node string) map[string]api.GPU {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.byID[node]
	if n == nil || n.gpus == nil {
		return nil
	}
	out := make(map[string]api.GPU, len(n.gpus))
	for _, g := range n.gpus {
		out[g.UUID] = g
	}
	return out
}

// said is the same as it was told: nobody changes it.
func (s *sessions) said(node string) []api.GPU {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.byID[node]; n != nil {
		return n.gpus
	}
	return nil
}

func (s *sessions) known(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[node] != nil
}
