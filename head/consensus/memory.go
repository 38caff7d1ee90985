package consensus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Memory is the disk of one in-memory node: what is in it survives Close and is
// there for the next Open, as a simulated restart needs. One node uses it at a time.
type Memory struct {
	mu     sync.Mutex
	log    *raft.InmemStore
	snaps  []*memorySnapshot // oldest first
	node   string
	seq    int
	inited bool
	open   bool
}

// NewMemory returns an empty disk.
func NewMemory() *Memory { return &Memory{log: raft.NewInmemStore()} }

type memoryLog struct{ *raft.InmemStore }

func (memoryLog) Close() error { return nil }

type memorySnapshot struct {
	meta raft.SnapshotMeta
	body []byte
}

// take marks the disk as used; the counterpart of the folder's lock.
func (m *Memory) take() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open {
		return &LockedError{Dir: "in memory"}
	}
	m.open = true
	return nil
}

func (m *Memory) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open = false
}

func (m *Memory) initialized() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.inited
}

// memorySnapshots is the snapshot store of a Memory.
type memorySnapshots struct {
	m      *Memory
	retain int
	verify func(io.Reader) error
}

var _ raft.SnapshotStore = (*memorySnapshots)(nil)

func (s *memorySnapshots) Create(_ raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.m.seq++
	return &memorySink{s: s, snap: memorySnapshot{meta: raft.SnapshotMeta{
		Version: 1, ID: fmt.Sprintf("%d-%d-%d", index, term, s.m.seq), Index: index, Term: term,
		Configuration: conf, ConfigurationIndex: confIndex,
	}}}, nil
}

func (s *memorySnapshots) List() ([]*raft.SnapshotMeta, error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	var out []*raft.SnapshotMeta
	for _, snap := range slices.Backward(s.m.snaps) {
		meta := snap.meta
		out = append(out, &meta)
	}
	return out, nil
}

func (s *memorySnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	for _, snap := range s.m.snaps {
		if snap.meta.ID == id {
			meta := snap.meta
			return &meta, io.NopCloser(bytes.NewReader(snap.body)), nil
		}
	}
	return nil, nil, fmt.Errorf("consensus: no snapshot %s", id)
}

type memorySink struct {
	s    *memorySnapshots
	snap memorySnapshot
	buf  bytes.Buffer
	done bool
}

func (k *memorySink) ID() string                  { return k.snap.meta.ID }
func (k *memorySink) Write(p []byte) (int, error) { return k.buf.Write(p) }
func (k *memorySink) Cancel() error               { k.done = true; return nil }

func (k *memorySink) Close() error {
	if k.done {
		return nil
	}
	k.done = true
	k.snap.body = k.buf.Bytes()
	k.snap.meta.Size = int64(len(k.snap.body))
	if k.s.verify != nil {
		if err := k.s.verify(bytes.NewReader(k.snap.body)); err != nil {
			return damagedFolder("snapshot %s read back after writing: %v", k.snap.meta.ID, err)
		}
	}
	k.s.m.mu.Lock()
	defer k.s.m.mu.Unlock()
	k.s.m.snaps = append(k.s.m.snaps, &k.snap)
	if over := len(k.s.m.snaps) - k.s.retain; over > 0 {
		k.s.m.snaps = slices.Delete(k.s.m.snaps, 0, over)
	}
	return nil
}

// MemoryNetwork joins in-memory nodes, for tests and the simulated cluster. It may be
// used inside a testing/synctest bubble.
type MemoryNetwork struct {
	timeout time.Duration

	mu    sync.Mutex
	nodes map[string]*MemoryTransport
	cut   map[string]bool
}

// NewMemoryNetwork returns a network whose messages are lost after timeout.
func NewMemoryNetwork(timeout time.Duration) *MemoryNetwork {
	return &MemoryNetwork{timeout: timeout, nodes: map[string]*MemoryTransport{}, cut: map[string]bool{}}
}

// MemoryTransport is one node's end of a MemoryNetwork.
type MemoryTransport struct {
	*raft.InmemTransport
	net  *MemoryNetwork
	addr string
}

var (
	_ raft.Transport   = (*MemoryTransport)(nil)
	_ raft.WithPreVote = (*MemoryTransport)(nil)
)

// AppendEntriesPipeline refuses: one message at a time in flight, as over TLS, where
// a pipeline can leave a follower behind for ever after its disk stalled.
func (t *MemoryTransport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// Close takes the node off the network.
func (t *MemoryTransport) Close() error {
	t.net.mu.Lock()
	defer t.net.mu.Unlock()
	if t.net.nodes[t.addr] == t {
		delete(t.net.nodes, t.addr)
	}
	t.net.rewire()
	return t.InmemTransport.Close()
}

// Join gives the node at addr its transport; a second Join replaces the first, as
// after a restart.
func (n *MemoryNetwork) Join(addr string) *MemoryTransport {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, in := raft.NewInmemTransportWithTimeout(raft.ServerAddress(addr), n.timeout)
	t := &MemoryTransport{InmemTransport: in, net: n, addr: addr}
	n.nodes[addr] = t
	n.rewire()
	return t
}

// Cut separates a node from all others.
func (n *MemoryNetwork) Cut(addr string) { n.set(addr, true) }

// Heal ends a Cut.
func (n *MemoryNetwork) Heal(addr string) { n.set(addr, false) }

func (n *MemoryNetwork) set(addr string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[addr] = cut
	n.rewire()
}

func (n *MemoryNetwork) rewire() {
	for a, ta := range n.nodes {
		ta.DisconnectAll()
		for b, tb := range n.nodes {
			if a != b && !n.cut[a] && !n.cut[b] {
				ta.Connect(raft.ServerAddress(b), tb.InmemTransport)
			}
		}
	}
}

// lonelyTransport is the transport of one voter: it has no peers and no listener.
func lonelyTransport(addr string) raft.Transport {
	_, t := raft.NewInmemTransport(raft.ServerAddress(addr))
	return t
}

var errNoMemory = errors.New("consensus: an in-memory cluster needs Config.Memory to be initialized")
