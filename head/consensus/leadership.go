package consensus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// leaderRetry is how long a leader waits before it tries again to enable what failed.
const leaderRetry = time.Second

// Term returns the node's current term.
func (n *Node) Term() uint64 { return n.raft.CurrentTerm() }

// ID returns this head's stable id.
func (n *Node) ID() string { return n.cfg.NodeID }

// AppliedIndex is the newest log index that the machine's state holds. Entries of
// Raft itself do not move it.
func (n *Node) AppliedIndex() uint64 { return n.fsm.index.Load() }

// IsLeader says whether this node believes that it leads; Verify asks the others.
func (n *Node) IsLeader() bool {
	select {
	case <-n.stopped:
		return false
	default:
		return n.raft.State() == raft.Leader
	}
}

// Leader returns the leader as far as this node knows, or zero.
func (n *Node) Leader() Peer {
	addr, id := n.raft.LeaderWithID()
	return Peer{ID: string(id), Addr: string(addr)}
}

// WaitLeader returns the leader as soon as this node knows of one.
func (n *Node) WaitLeader(ctx context.Context) (Peer, error) {
	news := make(chan raft.Observation, 1)
	obs := raft.NewObserver(news, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	n.raft.RegisterObserver(obs)
	defer n.raft.DeregisterObserver(obs)
	for {
		if p := n.Leader(); p.ID != "" {
			return p, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return Peer{}, fmt.Errorf("consensus: no leader: %w", context.Cause(ctx))
		case <-n.stopped:
			return Peer{}, fmt.Errorf("%w: %w", ErrStopped, n.stopCause())
		case <-n.closed:
			return Peer{}, ErrClosed
		}
	}
}

// RunLeadership calls onGain each time this node has become leader and its state
// holds everything that was committed before (barrier and verification are done),
// and onLoss after each onGain, when leadership was lost, ctx ended, or the node
// stopped. It returns when ctx ends (nil) or the node stopped or closed. One call at
// a time.
//
// onGain runs on its own goroutine, may return after enabling components or stay for
// the term, and must return soon after its ctx ends; onLoss comes only then, so the
// two never overlap. Lost and at once regained is a loss and a gain, with the new
// term. An error of onGain is a loss and, while the term lasts, a new try.
func (n *Node) RunLeadership(ctx context.Context, onGain func(ctx context.Context, term uint64) error, onLoss func()) error {
	return (&office{
		term:    n.raft.CurrentTerm,
		leads:   n.IsLeader,
		changes: n.raft.LeaderCh(),
		hold:    func(ctx context.Context, term uint64) { n.lead(ctx, term, onGain, onLoss) },
	}).follow(ctx, n)
}

// office turns notifications of leadership into terms that begin and end one after
// the other.
type office struct {
	term    func() uint64
	leads   func() bool
	changes <-chan bool // of several changes it keeps only the newest
	hold    func(ctx context.Context, term uint64)

	end  context.CancelFunc // nil: not in office
	done chan struct{}
	held uint64 // the term
}

func (o *office) follow(ctx context.Context, n *Node) error {
	defer o.leave()
	if o.leads() {
		o.enter(ctx)
	}
	for {
		select {
		case leads := <-o.changes:
			if leads {
				o.enter(ctx)
			} else {
				o.leave()
			}
		case <-ctx.Done():
			return nil
		case <-n.stopped:
			return fmt.Errorf("%w: %w", ErrStopped, n.stopCause())
		case <-n.closed:
			return ErrClosed
		}
	}
}

func (o *office) enter(ctx context.Context) {
	now := o.term()
	if o.end != nil && now == o.held {
		return // told of what the state already showed
	}
	o.leave() // lost and regained since the last look
	ctx, o.end = context.WithCancel(ctx)
	o.held, o.done = now, make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		o.hold(ctx, now)
	}(o.done)
}

func (o *office) leave() {
	if o.end != nil {
		o.end()
		<-o.done
		o.end = nil
	}
}

// lead is one term of leadership.
func (n *Node) lead(ctx context.Context, term uint64, onGain func(context.Context, uint64) error, onLoss func()) {
	for ctx.Err() == nil {
		err := n.confirm(ctx, term)
		if err == nil {
			err = onGain(ctx, term)
			if err == nil {
				<-ctx.Done()
			}
			onLoss()
		}
		if err == nil || errors.Is(err, ErrClosed) || errors.Is(err, ErrStopped) || ctx.Err() != nil {
			return
		}
		n.cfg.Logger.Warn("leader could not start its work, will try again", "term", term, "error", err)
		t := time.NewTimer(leaderRetry)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// confirm makes sure that the state is complete and the term still this one.
func (n *Node) confirm(ctx context.Context, term uint64) error {
	if err := n.Barrier(ctx); err != nil {
		return fmt.Errorf("barrier: %w", err)
	}
	if err := n.Verify(ctx); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	if now := n.raft.CurrentTerm(); now != term {
		return fmt.Errorf("term %d has ended: %w", term, ErrNotLeader)
	}
	return nil
}

// Stats is the node at one moment, for status pages and metrics.
type Stats struct {
	NodeID        string
	State         string // follower, candidate, leader, shutdown
	Leader        Peer
	Term          uint64
	Voters        int
	FirstIndex    uint64 // of the log
	LastIndex     uint64 // of the log
	CommitIndex   uint64
	AppliedIndex  uint64 // of the machine
	Queued        int    // proposals waiting
	QueuedBytes   int
	LogBytes      int64 // on disk, allocated
	Appends       uint64
	AppendSeconds float64 // all appends together
}

// Stats returns the node's figures.
func (n *Node) Stats() Stats {
	s := Stats{
		NodeID: n.cfg.NodeID, Leader: n.Leader(), Term: n.Term(),
		LastIndex: n.raft.LastIndex(), CommitIndex: n.raft.CommitIndex(), AppliedIndex: n.AppliedIndex(),
		Appends: n.log.appends.Load(), AppendSeconds: time.Duration(n.log.appendNanos.Load()).Seconds(),
	}
	switch n.raft.State() {
	case raft.Leader:
		s.State = "leader"
	case raft.Candidate:
		s.State = "candidate"
	case raft.Follower:
		s.State = "follower"
	default:
		s.State = "shutdown"
	}
	for _, srv := range n.raft.GetConfiguration().Configuration().Servers {
		if srv.Suffrage == raft.Voter {
			s.Voters++
		}
	}
	s.FirstIndex, _ = n.log.FirstIndex()
	if !n.cfg.InMem {
		s.LogBytes = segmentBytes(n.log.path)
	}
	n.mu.Lock()
	s.Queued, s.QueuedBytes = n.queued, n.bytes
	n.mu.Unlock()
	return s
}
