package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestInMemoryRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Config{InMem: true, Memory: NewMemory(), NodeID: "a", VerifySnapshot: verifyTestSnapshot}
		if _, err := Open(c, &testMachine{}); !errors.Is(err, ErrNotInitialized) {
			t.Fatalf("Open before Init: %v", err)
		}
		if err := Init(c); err != nil {
			t.Fatal(err)
		}
		if err := Init(c); !errors.Is(err, ErrAlreadyInitialized) {
			t.Fatalf("Init twice: %v", err)
		}
		var want []string
		for round := range 3 {
			m := &testMachine{}
			n, err := Open(c, m)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Open(c, &testMachine{}); !errors.Is(err, ErrLocked) {
				t.Fatalf("second Open: %v", err)
			}
			lead(t, n)
			if got := m.all(); !slices.Equal(got, want) {
				t.Fatalf("round %d: %q, want %q", round, got, want)
			}
			e := fmt.Sprint(round)
			propose(t, n, e)
			want = append(want, e)
			if err := n.Snapshot(testCtx(t)); err != nil {
				t.Fatal(err)
			}
			closeNode(t, n)
		}
	})
}

func TestInMemoryAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, m := open(t, Config{InMem: true})
		lead(t, n)
		propose(t, n, "a")
		if got := m.all(); len(got) != 1 {
			t.Fatalf("applied %q", got)
		}
		closeNode(t, n)
	})
}

// recv receives, or fails the test after a virtual minute: timers that tick for ever
// would keep a bubble alive for ever.
func recv[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("still no %s after a minute", what)
		panic("unreachable")
	}
}

type cluster struct {
	t     *testing.T
	net   *MemoryNetwork
	peers []Peer
	mem   map[string]*Memory
	nodes map[string]*Node
	state map[string]*testMachine
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{
		t: t, net: NewMemoryNetwork(200 * time.Millisecond), mem: map[string]*Memory{},
		nodes: map[string]*Node{}, state: map[string]*testMachine{},
		peers: []Peer{{"a", "addr-a"}, {"b", "addr-b"}, {"c", "addr-c"}},
	}
	for _, p := range c.peers {
		c.mem[p.ID] = NewMemory()
		cfg := c.config(p)
		if err := Init(cfg); err != nil {
			t.Fatal(err)
		}
		c.start(p)
	}
	return c
}

func (c *cluster) config(p Peer) Config {
	return Config{
		InMem: true, Memory: c.mem[p.ID], NodeID: p.ID, Addr: p.Addr, Peers: c.peers,
		Transport: c.net.Join(p.Addr), SnapshotThreshold: 50, TrailingLogs: 100,
		VerifySnapshot: verifyTestSnapshot,
	}
}

func (c *cluster) start(p Peer) {
	m := &testMachine{}
	n, err := Open(c.config(p), m)
	if err != nil {
		c.t.Fatalf("Open %s: %v", p.ID, err)
	}
	c.nodes[p.ID], c.state[p.ID] = n, m
}

func (c *cluster) stop() {
	for _, n := range c.nodes {
		closeNode(c.t, n)
	}
}

func (c *cluster) peer(id string) Peer {
	for _, p := range c.peers {
		if p.ID == id {
			return p
		}
	}
	return Peer{}
}

// leader waits until one of the nodes leads with its state complete.
func (c *cluster) leader(not string) *Node {
	c.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		for id, n := range c.nodes {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			ok := id != not && n.IsLeader() && n.Barrier(ctx) == nil
			cancel()
			if ok {
				return n
			}
		}
		time.Sleep(10 * time.Millisecond) // virtual
	}
	c.t.Fatal("no leader after a minute")
	return nil
}

// agree waits until every node holds want.
func (c *cluster) agree(want []string) {
	c.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for id, m := range c.state {
		for !slices.Equal(m.all(), want) {
			if time.Now().After(deadline) {
				c.t.Fatalf("node %s holds %d entries, want %d: %+v", id, len(m.all()), len(want), c.nodes[id].Stats())
			}
			time.Sleep(10 * time.Millisecond) // virtual
		}
	}
}

// TestThreeNodesFailOver: of three, the leader is cut off, another one takes over, no
// acknowledged write is lost, the old one learns and follows (P5).
func TestThreeNodesFailOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stop()
		var want []string
		put := func(n *Node, e string) {
			t.Helper()
			propose(t, n, e)
			want = append(want, e)
		}
		old := c.leader("")
		for i := range 10 {
			put(old, fmt.Sprint("before-", i))
		}
		for id, n := range c.nodes {
			if n != old {
				if _, err := n.Propose(testCtx(t), []byte("x")); !errors.Is(err, ErrNotLeader) {
					t.Fatalf("follower %s: %v", id, err)
				}
				if n.Leader().ID != old.ID() {
					t.Fatalf("follower %s thinks %+v leads", id, n.Leader())
				}
			}
		}

		// Watch the leadership of the node that will lose it.
		type edge struct {
			gained bool
			term   uint64
		}
		edges := make(chan edge, 16)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			ended <- old.RunLeadership(ctx,
				func(_ context.Context, term uint64) error { edges <- edge{true, term}; return nil },
				func() { edges <- edge{} })
		}()
		gained := recv(t, "gain", edges)
		if !gained.gained || gained.term != old.Term() {
			t.Fatalf("edge %+v in term %d", gained, old.Term())
		}

		c.net.Cut(c.peer(old.ID()).Addr)
		// Written to a leader without followers: its outcome is unknown, and here it
		// must in the end not be there.
		lost := make(chan error, 1)
		go func() { _, err := old.Propose(testCtx(t), []byte("lost")); lost <- err }()
		neu := c.leader(old.ID())
		for i := range 200 { // enough for snapshots, so that the old one needs one
			put(neu, fmt.Sprint("after-", i))
		}
		if err := neu.Snapshot(testCtx(t)); err != nil {
			t.Fatal(err)
		}
		if err := recv(t, "answer", lost); !errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, ErrNotLeader) {
			t.Fatalf("proposal to the cut-off leader: %v", err)
		}
		if e := recv(t, "loss", edges); e.gained {
			t.Fatalf("edge %+v, want a loss", e)
		}
		if err := old.Verify(testCtx(t)); !errors.Is(err, ErrNotLeader) {
			t.Fatalf("cut-off leader verified: %v", err)
		}

		c.net.Heal(c.peer(old.ID()).Addr)
		c.agree(want)

		// Restart one: its memory disk has what it had.
		victim := c.peer(neu.ID())
		cancel()
		if err := recv(t, "end of RunLeadership", ended); err != nil {
			t.Fatal(err)
		}
		closeNode(t, neu)
		delete(c.nodes, victim.ID)
		delete(c.state, victim.ID)
		third := c.leader("")
		put(third, "while one is away")
		c.start(victim)
		c.agree(want)
	})
}

// TestRunLeadershipRegained: a leader that loses its office and regains it, twice
// while its components are still shutting down, is disabled once and enabled once
// again, under the newest term.
func TestRunLeadershipRegained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stop()
		n := c.leader("")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var edges []string // written by one goroutine at a time: that is what is tested
		gained, release := make(chan uint64, 8), make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			ended <- n.RunLeadership(ctx, func(ctx context.Context, term uint64) error {
				edges = append(edges, "gain")
				gained <- term
				<-ctx.Done()
				<-release // slow to let go
				return nil
			}, func() { edges = append(edges, "loss") })
		}()
		first := recv(t, "gain", gained)

		var others []string
		for _, p := range c.peers {
			if p.ID != n.ID() {
				others = append(others, p.Addr)
				c.net.Cut(p.Addr)
			}
		}
		// An entry that only this node has: with one other node reachable, only this
		// node can be elected.
		onlyHere := func() {
			t.Helper()
			if _, err := n.Propose(testCtx(t), []byte("only here")); !errors.Is(err, ErrOutcomeUnknown) {
				t.Fatalf("Propose without followers: %v", err)
			}
			if n.IsLeader() {
				t.Fatal("still leader after losing a proposal")
			}
			// A leader that stepped down still sends one message to each follower, after
			// a back-off of up to ten seconds.
			time.Sleep(15 * time.Second) // virtual
		}
		onlyHere()
		for range 2 {
			c.net.Heal(others[0])
			if got := c.leader(""); got != n {
				close(release)
				t.Fatalf("%s leads, want %s", got.ID(), n.ID())
			}
			c.net.Cut(others[0])
			onlyHere()

		}
		c.net.Heal(others[0])
		if got := c.leader(""); got != n {
			close(release)
			t.Fatalf("%s leads, want %s", got.ID(), n.ID())
		}
		if n.Term() <= first {
			t.Fatalf("term %d after %d", n.Term(), first)
		}
		close(release)
		if second := recv(t, "second gain", gained); second != n.Term() {
			t.Fatalf("enabled in term %d, the node is in %d", second, n.Term())
		}
		cancel()
		if err := recv(t, "end of RunLeadership", ended); err != nil {
			t.Fatal(err)
		}
		if want := []string{"gain", "loss", "gain", "loss"}; !slices.Equal(edges, want) {
			t.Fatalf("edges %v, want %v", edges, want)
		}
	})
}
