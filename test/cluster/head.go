package cluster

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/head/consensus"
	"github.com/troupe-runtime/troupe/head/control"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Head is one head: its log in memory survives, everything else is made anew at each
// start and comes back by replay.
type Head struct {
	ID  string
	c   *Cluster
	mem *consensus.Memory

	mu   sync.Mutex
	life *headLife
}

// headLife is one life of a head's process.
type headLife struct {
	store   *state.Store
	node    *consensus.Node
	conn    bus.Conn
	control *control.Head
	stop    context.CancelFunc
	done    chan struct{}
}

func (h *Head) identity() string { return "head-" + h.ID }

// points are the trip wires of commands.
var points = map[state.Kind]string{
	state.KindCommitCheckpoint: "commit", state.KindCheckpointDone: "done", state.KindSupervise: "supervise",
	state.KindFacts: "facts", state.KindRollBack: "roll-back", state.KindReleaseGroup: "release", state.KindSubmitJob: "submit",
	state.KindPlaceGroup: "place", state.KindTombstone: "tombstone", state.KindCreateGroup: "create-group",
	state.KindPropose: "propose", state.KindDecide: "decide", state.KindDrainJob: "drain-job", state.KindOrderEnd: "order-end",
	state.KindDrainNode: "drain-node", state.KindResizeGroup: "resize", state.KindCancelDrain: "cancel-drain",
	state.KindNodeNotice: "node-notice", state.KindSetSpares: "spares", state.KindPreempt: "preempt", state.KindDropClaim: "drop-claim",
	state.KindParkJob: "park-job", state.KindEditJob: "edit-job", state.KindCompleteGroup: "complete-group", state.KindPutQueues: "put-queues", state.KindPutReservation: "put-reservation",
}

// machine puts the store under the log and shows every command to the checker.
type machine struct {
	*state.Store
	c    *Cluster
	head string
}

func (m machine) Apply(index, term uint64, data []byte) (any, error) {
	before := m.Store.View()
	r, err := m.Store.Apply(index, term, data)
	if err != nil {
		m.c.fail("%s at index %d: %v", m.head, index, err)
		return r, err
	}
	if m.c.History.applied(m.head, index, data, before, m.Store, r) {
		m.c.pass(points[state.Kind(data[0])])
	}
	return r, nil
}

func (m machine) Snapshot() (consensus.Snapshot, error) { return m.Store.Snapshot(), nil }

// proposer is what the loops see of the log.
type proposer struct{ n *consensus.Node }

func (p proposer) Propose(ctx context.Context, entries ...[]byte) []control.Outcome {
	out := make([]control.Outcome, len(entries))
	for i, r := range p.n.ProposeAll(ctx, entries) {
		out[i] = control.Outcome{Value: r.Value, Err: r.Err}
	}
	return out
}
func (p proposer) Verify(ctx context.Context) error { return p.n.Verify(ctx) }
func (p proposer) IsLeader() bool                   { return p.n.IsLeader() }

func (h *Head) config() consensus.Config {
	c := consensus.Config{
		InMem: true, Memory: h.mem, NodeID: h.ID, Addr: "addr-" + h.ID, VerifySnapshot: state.Verify,
		SnapshotThreshold: 400, TrailingLogs: 800, Logger: h.c.logger("raft-" + h.ID),
	}
	if h.c.Options.Heads > 1 {
		c.Peers = h.c.peers
		c.Transport = h.c.net.Join(c.Addr)
	}
	return c
}

// Start starts the head, unless it runs.
func (h *Head) Start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.life != nil {
		return
	}
	store, err := state.New()
	if err != nil {
		h.c.fail("%s: %v", h.ID, err)
		return
	}
	store.CheckAlways()
	node, err := consensus.Open(h.config(), machine{store, h.c, h.ID})
	if err != nil {
		h.c.fail("%s: open the log: %v", h.ID, err)
		return
	}
	conn := h.c.Bus.Connect(h.identity(), bus.Permission{
		Publish: []string{"n.>"}, Subscribe: []string{"head.>"}, Inbox: wire.InboxPrefix(h.identity()),
	})
	ctl := control.New(control.Options{
		Name: h.ID, Store: store, Log: proposer{node}, Bus: conn, Clock: h.c.clock, Logger: h.c.logger(h.ID),
		Timing: h.c.Options.Timing, Random: h.c.random, BusSecret: []byte("sim"),
	})
	unwatch := h.c.Bus.OnClosed(h.identity(), func(x bus.Closed) {
		if id, ok := strings.CutPrefix(x.User, nodeIdentity); ok {
			ctl.Closed(id, false)
		}
		if id, ok := strings.CutPrefix(x.User, shimIdentity); ok {
			ctl.Closed(id, true)
		}
	})
	ctx, cancel := context.WithCancel(h.c.ctx)
	context.AfterFunc(ctx, unwatch)
	l := &headLife{store: store, node: node, conn: conn, control: ctl, stop: cancel, done: make(chan struct{})}
	h.life = l
	h.c.spawn(func() {
		defer close(l.done)
		err := node.RunLeadership(ctx, func(ctx context.Context, term uint64) error {
			if err := ctl.Init(ctx, state.CreateCluster{Cluster: "sim", Life: "0badcafe", Store: storeDir}); err != nil {
				return err
			}
			return ctl.Lead(ctx, term)
		}, ctl.Follow)
		if err != nil && ctx.Err() == nil {
			h.c.fail("%s: leadership ended: %v", h.ID, err)
		}
	})
	h.c.spawn(func() {
		select {
		case err := <-node.Fatal():
			h.c.fail("%s: the replica stopped: %v", h.ID, err)
		case <-ctx.Done():
		}
	})
}

// Kill ends the head's process: nothing of it is heard any more, its log stays.
func (h *Head) Kill() {
	h.mu.Lock()
	l := h.life
	h.life = nil
	h.mu.Unlock()
	if l == nil {
		return
	}
	l.conn.Close()
	l.stop()
	<-l.done
	if err := l.node.Close(); err != nil {
		h.c.T.Logf("%s: close: %v", h.ID, err)
	}
}

// Restart kills the head and starts it again after d.
func (h *Head) Restart(d time.Duration) {
	h.Kill()
	time.Sleep(d)
	h.Start()
}

// Cut takes the head off both networks, Heal brings it back.
func (h *Head) Cut() {
	h.c.Bus.Cut(h.identity(), "*")
	if h.c.net != nil {
		h.c.net.Cut("addr-" + h.ID)
	}
}

// Heal ends a Cut.
func (h *Head) Heal() {
	h.c.Bus.Heal(h.identity(), "*")
	if h.c.net != nil {
		h.c.net.Heal("addr-" + h.ID)
	}
}

func (h *Head) running() *headLife {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.life
}

func (h *Head) leads() bool {
	l := h.running()
	return l != nil && l.node.IsLeader() && l.control.Ready(context.Background()) == nil
}
