package consensus

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// patience bounds every wait of a test that could hang; nothing asserts speed.
const patience = 60 * time.Second

func testCtx(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func testConfig(dir string) Config {
	return Config{Dir: dir, SegmentSize: 64 << 10, VerifySnapshot: verifyTestSnapshot}
}

func initDir(t *testing.T) Config {
	t.Helper()
	c := testConfig(filepath.Join(t.TempDir(), "raft"))
	if err := Init(c); err != nil {
		t.Fatalf("Init: %v", err)
	}
	return c
}

func open(t *testing.T, c Config) (*Node, *testMachine) {
	t.Helper()
	m := &testMachine{}
	n, err := Open(c, m)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { n.Close() })
	return n, m
}

// lead waits until the node leads and its state is complete.
func lead(t *testing.T, n *Node) {
	t.Helper()
	ctx := testCtx(t)
	for {
		if _, err := n.WaitLeader(ctx); err != nil {
			t.Fatalf("WaitLeader: %v (state %+v)", err, n.Stats())
		}
		err := n.Barrier(ctx)
		if err == nil {
			return
		}
		if !errors.Is(err, ErrNotLeader) || ctx.Err() != nil {
			t.Fatalf("Barrier: %v", err)
		}
	}
}

func propose(t *testing.T, n *Node, data string) Result {
	t.Helper()
	r, err := n.Propose(testCtx(t), []byte(data))
	if err != nil {
		t.Fatalf("Propose(%.40q): %v", data, err)
	}
	return r
}

func closeNode(t *testing.T, n *Node) {
	t.Helper()
	if err := n.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

func TestProposeRestartReplay(t *testing.T) {
	c := initDir(t)
	var want []string
	var id string
	var lastIndex uint64
	for round := range 3 {
		n, m := open(t, c)
		lead(t, n)
		if got := m.all(); !slices.Equal(got, want) {
			t.Fatalf("round %d: replay gave %d entries, want %d", round, len(got), len(want))
		}
		if id == "" {
			id = n.ID()
		}
		if n.ID() != id || id == "" {
			t.Fatalf("node id %q, was %q", n.ID(), id)
		}
		for i := range 40 {
			// Some are large, so that segments of 64 KiB roll over.
			e := fmt.Sprintf("r%d-%d-%s", round, i, strings.Repeat("x", i%7*1000))
			r := propose(t, n, e)
			want = append(want, e)
			if r.Value != len(want) || r.Index <= lastIndex {
				t.Fatalf("result %+v, want value %d and an index over %d", r, len(want), lastIndex)
			}
			lastIndex = r.Index
			if n.AppliedIndex() < r.Index {
				t.Fatalf("applied %d after the answer for %d", n.AppliedIndex(), r.Index)
			}
		}
		if err := n.Verify(testCtx(t)); err != nil {
			t.Fatalf("Verify: %v", err)
		}
		if s := n.Stats(); s.State != "leader" || s.Voters != 1 || s.Leader.ID != id || s.LogBytes == 0 {
			t.Fatalf("stats %+v", s)
		}
		closeNode(t, n)
		closeNode(t, n) // a second Close answers the same
		if _, err := n.Propose(testCtx(t), []byte("late")); !errors.Is(err, ErrClosed) {
			t.Fatalf("Propose after Close: %v", err)
		}
	}
}

func TestProposeErrors(t *testing.T) {
	c := initDir(t)
	n, m := open(t, c)
	lead(t, n)
	if _, err := n.Propose(testCtx(t), make([]byte, MaxProposal+1)); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("too large: %v", err)
	}
	if _, err := n.Propose(testCtx(t), make([]byte, MaxProposal)); err != nil {
		t.Fatalf("largest allowed: %v", err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := n.Propose(ended, []byte("x")); !errors.Is(err, context.Canceled) || errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("ended context: %v", err)
	}
	if got := len(m.all()); got != 1 {
		t.Fatalf("%d entries applied, want 1", got)
	}

	// A caller that gives up while its entry waits does not know the outcome.
	gate := make(chan struct{})
	m.mu.Lock()
	m.gate = gate
	m.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { _, err := n.Propose(ctx, []byte("given up")); got <- err }()
	waitFor(t, func() error {
		if s := n.Stats(); s.Queued != 1 {
			return fmt.Errorf("queued %d", s.Queued)
		}
		return nil
	})
	cancel()
	if err := <-got; !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, context.Canceled) {
		t.Fatalf("given up: %v", err)
	}

	// The queue takes MaxQueued and sheds the rest.
	var wg sync.WaitGroup
	for range MaxQueued - 1 {
		wg.Go(func() {
			if _, err := n.Propose(testCtx(t), []byte("queued")); err != nil {
				t.Errorf("queued: %v", err)
			}
		})
	}
	waitFor(t, func() error {
		if s := n.Stats(); s.Queued != MaxQueued {
			return fmt.Errorf("queued %d", s.Queued)
		}
		return nil
	})
	if _, err := n.Propose(testCtx(t), []byte("one more")); !errors.Is(err, ErrBusy) {
		t.Fatalf("one more: %v", err)
	}
	close(gate)
	wg.Wait()
	if got := len(m.all()); got != 1+MaxQueued {
		t.Fatalf("%d entries applied, want %d", got, 1+MaxQueued)
	}
}

func waitFor(t *testing.T, cond func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still not: %v", err)
		}
		<-tick.C
	}
}

// TestMachineErrorStops: an entry that the machine cannot follow stops the replica,
// before it and after a restart, and nothing is applied after it.
func TestMachineErrorStops(t *testing.T) {
	for _, tc := range []struct{ data, says string }{{"unknown", "unknown kind"}, {"panic", "panicked"}} {
		t.Run(tc.data, func(t *testing.T) {
			c := initDir(t)
			n, m := open(t, c)
			lead(t, n)
			propose(t, n, "before")
			if _, err := n.Propose(testCtx(t), []byte(tc.data)); !errors.Is(err, ErrOutcomeUnknown) {
				t.Fatalf("Propose: %v", err)
			}
			for round := range 2 {
				select {
				case err := <-n.Fatal():
					if !strings.Contains(err.Error(), tc.says) {
						t.Fatalf("round %d: fatal %v", round, err)
					}
				case <-time.After(patience):
					t.Fatalf("round %d: no fatal error; %+v", round, n.Stats())
				}
				if n.IsLeader() {
					t.Fatal("still leader")
				}
				if _, err := n.Propose(testCtx(t), []byte("after")); !errors.Is(err, ErrStopped) {
					t.Fatalf("round %d: Propose: %v", round, err)
				}
				if got := m.all(); !slices.Equal(got, []string{"before"}) {
					t.Fatalf("round %d: applied %q", round, got)
				}
				closeNode(t, n)
				if round == 0 {
					n, m = open(t, c)
				}
			}
		})
	}
}

func TestConcurrentUse(t *testing.T) {
	c := initDir(t)
	n, m := open(t, c)
	lead(t, n)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 50 {
				if _, err := n.Propose(testCtx(t), fmt.Appendf(nil, "%d-%d", w, i)); err != nil {
					t.Errorf("Propose: %v", err)
					return
				}
				switch i % 10 {
				case 3:
					if err := n.Verify(testCtx(t)); err != nil {
						t.Errorf("Verify: %v", err)
					}
				case 5:
					if err := n.Barrier(testCtx(t)); err != nil {
						t.Errorf("Barrier: %v", err)
					}
				case 7:
					if err := n.Snapshot(testCtx(t)); err != nil {
						t.Errorf("Snapshot: %v", err)
					}
				}
				_ = n.Stats()
			}
		})
	}
	wg.Wait()
	got := m.all()
	slices.Sort(got)
	if len(slices.Compact(got)) != 400 {
		t.Fatalf("%d distinct entries, want 400", len(got))
	}
	// Close while others propose: each is answered, one way or another.
	for range 4 {
		wg.Go(func() {
			for {
				_, err := n.Propose(testCtx(t), []byte("late"))
				if errors.Is(err, ErrClosed) {
					return
				}
				if err != nil && !errors.Is(err, ErrOutcomeUnknown) {
					t.Errorf("Propose during Close: %v", err)
					return
				}
			}
		})
	}
	closeNode(t, n)
	wg.Wait()
}

func TestRunLeadershipOneVoter(t *testing.T) {
	c := initDir(t)
	n, _ := open(t, c)
	lead(t, n)
	propose(t, n, "a")
	closeNode(t, n)

	n, m := open(t, c)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	gains, losses := make(chan uint64, 8), make(chan struct{}, 8)
	ended := make(chan error, 1)
	tries := 0
	go func() {
		ended <- n.RunLeadership(ctx, func(_ context.Context, term uint64) error {
			if got := m.all(); !slices.Equal(got, []string{"a"}) {
				t.Errorf("enabled with %q applied", got)
			}
			gains <- term
			if tries++; tries == 1 {
				return errors.New("first try fails")
			}
			return nil
		}, func() { losses <- struct{}{} })
	}()
	first := <-gains
	<-losses
	if again := <-gains; again != first || first != n.Term() {
		t.Fatalf("terms %d and %d, node has %d", first, again, n.Term())
	}
	cancel()
	<-losses
	if err := <-ended; err != nil {
		t.Fatalf("RunLeadership: %v", err)
	}
	if len(gains)+len(losses) != 0 {
		t.Fatalf("%d gains and %d losses too many", len(gains), len(losses))
	}
}

// TestOfficeLostAndRegained: a notification that hides a loss, since only the newest
// is kept, ends the old term before the new one begins; one of the same term is no
// news.
func TestOfficeLostAndRegained(t *testing.T) {
	n := &Node{stopped: make(chan struct{}), closed: make(chan struct{})}
	changes := make(chan bool)
	var term atomic.Uint64
	var holding atomic.Int32
	begun := make(chan uint64, 4)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	o := &office{
		term: term.Load, leads: func() bool { return true }, changes: changes,
		hold: func(ctx context.Context, term uint64) {
			if holding.Add(1) != 1 {
				t.Error("two terms at once")
			}
			begun <- term
			<-ctx.Done()
			holding.Add(-1)
		},
	}
	term.Store(3)
	go func() { ended <- o.follow(ctx, n) }()
	changes <- true // what follow had already seen
	term.Store(5)
	changes <- true
	changes <- true
	changes <- false
	term.Store(6)
	changes <- true
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	close(begun)
	var got []uint64
	for term := range begun {
		got = append(got, term)
	}
	if !slices.Equal(got, []uint64{3, 5, 6}) {
		t.Fatalf("terms %v, want 3, 5, 6", got)
	}
	if holding.Load() != 0 {
		t.Fatal("still in office")
	}
}
