package consensus

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Node is one running replica. All methods may be called by anyone at any time.
type Node struct {
	cfg     Config
	machine Machine
	log     *checkedLog
	fsm     *fsm
	raft    *raft.Raft
	trans   raft.Transport
	release func() // gives the folder back
	// shutdown ends Raft and waits for it; nil before Raft ran.
	shutdown func()
	started  chan struct{} // closed when Open is through, whether raft is set or not

	fatal   chan error    // the cause, once
	stopped chan struct{} // closed when the replica stopped itself
	closed  chan struct{} // closed by Close

	mu       sync.Mutex // guards what follows
	cause    error
	closing  bool
	closeErr error
	queued   int // proposals
	bytes    int // of them
	calls    int // proposals and every other call into Raft
	idle     chan struct{}
}

// drainTime is how long Close and a stop wait for calls under way to be answered.
const drainTime = 5 * time.Second

func (n *Node) start(snaps raft.SnapshotStore) (err error) {
	defer close(n.started)
	n.log.fail = n.fail
	n.log.onStuck = n.stuck
	n.log.running.Store(true)
	n.fsm = &fsm{machine: n.machine, fail: n.fail}
	var store raft.LogStore = n.log
	if n.cfg.Transport != nil {
		// Followers are fed from it; one voter reads nothing back while it runs.
		if store, err = raft.NewLogCache(logCacheEntries, n.log); err != nil {
			return err
		}
	}
	r, err := n.newRaft(store, snaps)
	if err != nil {
		return err
	}
	n.shutdown = sync.OnceFunc(func() {
		if err := r.Shutdown().Error(); err != nil {
			n.cfg.Logger.Warn("raft did not end well", "error", err)
		}
	})
	n.fsm.running.Store(true)
	servers := r.GetConfiguration().Configuration().Servers
	if len(servers) > 0 && !slices.ContainsFunc(servers, func(s raft.Server) bool { return string(s.ID) == n.cfg.NodeID }) {
		// It would wait for a leader for ever.
		n.shutdown()
		return damagedFolder("this head is %q, and the cluster in its log has %s: the file %s was altered, or the head was removed", n.cfg.NodeID, serverNames(servers), filepath.Join(n.cfg.Dir, fileNode))
	}
	if len(servers) > 1 && n.cfg.Transport == nil {
		n.shutdown()
		return fmt.Errorf("%w: the cluster has %d heads; this one needs a transport to reach them", ErrConfig, len(servers))
	}
	n.raft = r
	return nil
}

// serverNames lists the heads of a configuration.
func serverNames(servers []raft.Server) string {
	names := make([]string, len(servers))
	for i, s := range servers {
		names[i] = strconv.Quote(string(s.ID))
	}
	return strings.Join(names, ", ")
}

// newRaft starts Raft. It reads the stores on a goroutine of its own, which the
// checked log may end, and turns Raft's panics about them into errors.
func (n *Node) newRaft(store raft.LogStore, snaps raft.SnapshotStore) (r *raft.Raft, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			err = damagedFolder("log and snapshots do not fit together (%v)", p)
			if cause, ok := p.(error); ok && (errors.Is(cause, ErrStorage) || errors.Is(cause, ErrDamagedLog)) {
				err = cause
			}
		}()
		r, err = raft.NewRaft(n.cfg.raftConfig(), n.fsm, store, n.log, snaps, n.trans)
	}()
	<-done
	switch {
	case err != nil:
		return nil, fmt.Errorf("consensus: start: %w", err)
	case r == nil:
		return nil, fmt.Errorf("consensus: start: %w", n.stopCause())
	}
	return r, nil
}

// fail stops the replica: no new proposals, no leadership, and after what is under
// way was answered, no Raft. The first cause wins.
func (n *Node) fail(cause error) {
	n.mu.Lock()
	if n.cause != nil || n.closing {
		n.mu.Unlock()
		return
	}
	n.cause = cause
	n.mu.Unlock()
	n.cfg.Logger.Error("the replica stops", "error", cause)
	close(n.stopped)
	n.fatal <- cause
	go func() {
		<-n.started
		if n.raft != nil { // else Open returns the cause
			n.drain(time.Second)
			n.shutdown()
		}
	}()
}

// stuck tells of an append that does not come back.
func (n *Node) stuck(d time.Duration) {
	n.mu.Lock()
	waiting := n.calls
	n.mu.Unlock()
	if waiting == 0 {
		return
	}
	n.cfg.Logger.Warn("the disk is stuck: an append to the log has not come back", "after", d, "waiting", waiting, "dir", n.cfg.Dir)
	if n.cfg.OnStuck != nil {
		n.cfg.OnStuck(d)
	}
	if n.cfg.Transport != nil {
		// Raft goes on sending heartbeats while its disk hangs; only the end of the
		// process lets another head lead.
		n.fail(storageError("append to the log", n.log.path, fmt.Errorf("no answer for %s", d)))
	}
}

// begin counts a call into Raft; a proposal also takes its place in the queue.
func (n *Node) begin(proposal bool, size int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closing:
		return ErrClosed
	case n.cause != nil:
		return fmt.Errorf("%w: %w", ErrStopped, n.cause)
	}
	if proposal {
		if n.queued >= MaxQueued || n.bytes+size > MaxQueuedBytes {
			return fmt.Errorf("%w (%d proposals, %d bytes)", ErrBusy, n.queued, n.bytes)
		}
		n.queued++
		n.bytes += size
	}
	n.calls++
	return nil
}

func (n *Node) end(proposal bool, size int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if proposal {
		n.queued--
		n.bytes -= size
	}
	if n.calls--; n.calls == 0 && n.idle != nil {
		close(n.idle)
		n.idle = nil
	}
}

// drain waits until no call is under way. Raft leaves calls unanswered that it holds
// when it shuts down.
func (n *Node) drain(limit time.Duration) {
	n.mu.Lock()
	if n.calls == 0 {
		n.mu.Unlock()
		return
	}
	if n.idle == nil {
		n.idle = make(chan struct{})
	}
	idle := n.idle
	n.mu.Unlock()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-idle:
	case <-t.C:
	}
}

func (n *Node) stopCause() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cause
}

// ask runs one call into Raft that has a future.
func (n *Node) ask(ctx context.Context, call func() raft.Future) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := n.begin(false, 0); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer n.end(false, 0)
		done <- call().Error()
	}()
	select {
	case err := <-done:
		switch {
		case err == nil:
			return nil
		case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrLeadershipTransferInProgress):
			return ErrNotLeader
		case errors.Is(err, raft.ErrRaftShutdown):
			return ErrClosed
		}
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-n.stopped:
		return fmt.Errorf("%w: %w", ErrStopped, n.stopCause())
	case <-n.closed:
		return ErrClosed
	}
}

// Verify asks most voters whether this node still leads; nil means that it did at
// some moment after the call. For a linearizable read: read first, then Verify.
func (n *Node) Verify(ctx context.Context) error {
	return n.ask(ctx, n.raft.VerifyLeader)
}

// Barrier returns once everything that was in the log before it is applied here.
// ErrNotLeader elsewhere than on the leader.
func (n *Node) Barrier(ctx context.Context) error {
	return n.ask(ctx, func() raft.Future { return n.raft.Barrier(0) })
}

// Snapshot writes a snapshot now, verifies it and shortens the log. Nothing new to
// write is no error.
func (n *Node) Snapshot(ctx context.Context) error {
	err := n.ask(ctx, func() raft.Future { return n.raft.Snapshot() })
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	return err
}

// Fatal delivers, at most once, why the replica stopped itself. The process should
// then exit: what is in memory may not be what the log says.
func (n *Node) Fatal() <-chan error { return n.fatal }

// Close ends the node in order: calls under way are answered, the folder is released.
// A second Close returns what the first did. ErrStorage if the disk does not let go
// within seconds.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closing {
		n.mu.Unlock()
		<-n.closed
		return n.closeErr
	}
	n.closing = true
	n.mu.Unlock()
	defer close(n.closed)

	n.drain(drainTime)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.shutdown()
	}()
	t := time.NewTimer(2 * drainTime)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		// Its goroutine hangs in a write; closing files under it would not help.
		n.closeErr = storageError("finish writing", n.log.path, errors.New("no answer"))
		return n.closeErr
	}
	n.closeErr = n.releaseStores()
	return n.closeErr
}

// releaseStores closes what Open opened.
func (n *Node) releaseStores() error {
	var err error
	if c, ok := n.trans.(raft.WithClose); ok && n.shutdown == nil { // else Raft closed it
		err = c.Close()
	}
	if n.log != nil {
		err = errors.Join(err, storageError("close the log", n.log.path, n.log.raw.Close()))
	}
	if n.release != nil {
		n.release()
	}
	return err
}
