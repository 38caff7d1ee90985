package control

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// storeLog applies what is proposed, one batch after the other; gate, if there is one,
// lets each begin. Of a batch that it breaks off the rest never comes to be applied.
type storeLog struct {
	store *state.Store
	gate  chan struct{}

	mu      sync.Mutex
	index   uint64
	batches []int
	breakAt int // entries of a batch that it still applies, then all are; 0: no break
}

var errBroken = errors.New("the log broke off")

func (l *storeLog) Propose(ctx context.Context, entries ...[]byte) []Outcome {
	if l.gate != nil {
		<-l.gate
	}
	if ctx.Err() != nil {
		return slices.Repeat([]Outcome{{Err: ErrOutcomeUnknown}}, len(entries))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.batches = append(l.batches, len(entries))
	out := make([]Outcome, len(entries))
	for i, data := range entries {
		if l.breakAt > 0 && i >= l.breakAt {
			out[i].Err = errBroken
			continue
		}
		l.index++
		out[i].Value, out[i].Err = l.store.Apply(l.index, 1, data)
	}
	return out
}
func (l *storeLog) IsLeader() bool               { return true }
func (l *storeLog) Verify(context.Context) error { return nil }

// headWith is a head without loops on a cluster of one node with devices.
func headWith(t *testing.T, devices int) (*Head, *storeLog) {
	t.Helper()
	store, err := state.New()
	if err != nil {
		t.Fatal(err)
	}
	store.CheckAlways()
	l := &storeLog{store: store}
	h := New(Options{
		Store: store, Log: l, Clock: clock.Virtual(), Logger: slog.New(slog.DiscardHandler),
		Random: func(b []byte) error { _, err := io.ReadFull(rand.Reader, b); return err },
	})
	info := wire.NodeInfo{Name: "n", CPU: 100_000, Memory: 1 << 40, BootID: "b", Session: "s", Level: wire.Level}
	for i := range devices {
		info.GPUs = append(info.GPUs, api.GPU{UUID: fmt.Sprintf("GPU-%d", i), Model: "m", Usable: 1 << 30})
	}
	for _, c := range []command{
		{state.KindCreateCluster, state.CreateCluster{Cluster: "c", Life: "00000000"}},
		{state.KindRegisterNode, state.RegisterNode{ID: "n", Info: info}},
	} {
		if _, err := h.propose(t.Context(), c.kind, c.body); err != nil {
			t.Fatal(err)
		}
	}
	l.batches = nil
	return h, l
}

func groupOf(devices int64) api.GroupSpec {
	return api.GroupSpec{Bundles: []api.Bundle{{Resources: api.Resources{CPU: 1, GPUs: devices}}}}
}

// creations makes groups while the first one's entry is held up, so that all others arrive
// together.
func creations(h *Head, l *storeLog, specs []api.GroupSpec, keys []headapi.Idempotency) (made []headapi.Made, errs []error) {
	made, errs = make([]headapi.Made, len(specs)), make([]error, len(specs))
	var wg sync.WaitGroup
	for i := range specs {
		wg.Go(func() { made[i], errs[i] = h.CreateGroup(context.Background(), specs[i], keys[i]) })
		synctest.Wait() // they come in this order
	}
	close(l.gate)
	wg.Wait()
	return made, errs
}

// TestArrivals: what comes together goes into the log together, no two get the same device,
// and nobody waits for the loop who could be placed.
func TestArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20
		h, l := headWith(t, n)
		l.gate = make(chan struct{})
		specs := make([]api.GroupSpec, n)
		for i := range specs {
			specs[i] = groupOf(1)
		}
		made, errs := creations(h, l, specs, make([]headapi.Idempotency, n))
		v := h.Store.View()
		owner := map[string]string{}
		for i := range made {
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			g := v.Group(made[i].ID)
			if g.State != api.GroupPlaced {
				t.Fatalf("%d is %s, and the next turn would have to place it", i, g.State)
			}
			d := g.Placed[0].Devices[0]
			if owner[d] != "" {
				t.Errorf("%s is of %s and %s", d, owner[d], g.ID)
			}
			owner[d] = g.ID
		}
		if len(l.batches) != 2 || l.batches[0] != 1 || l.batches[1] != n-1 {
			t.Errorf("batches of %v; the first alone, then all that came meanwhile", l.batches)
		}
	})
}

// TestArrivalsEach: one that cannot be, one that was there before and one for which there is
// no room are answered for themselves; the others stand, in the order in which they came.
func TestArrivalsEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, l := headWith(t, 3)
		again := headapi.Idempotency{Key: "k", Fingerprint: "f"}
		old, err := h.CreateGroup(t.Context(), groupOf(0), again)
		if err != nil {
			t.Fatal(err)
		}
		l.gate = make(chan struct{})
		twice := headapi.Idempotency{Key: "twice", Fingerprint: "f"}
		specs := []api.GroupSpec{groupOf(1), groupOf(4), groupOf(1), groupOf(1), groupOf(2), groupOf(1)}
		keys := []headapi.Idempotency{{}, {}, twice, twice, {}, {Key: "k", Fingerprint: "other"}}
		made, errs := creations(h, l, specs, keys)
		for i, code := range map[int]string{1: "TRP-S014", 5: "TRP-A423"} {
			if p, ok := errors.AsType[*api.Problem](errs[i]); !ok || p.Code != code {
				t.Errorf("%d: %v, want %s", i, errs[i], code)
			}
		}
		v := h.Store.View()
		for i, want := range map[int]api.GroupState{0: api.GroupPlaced, 2: api.GroupPlaced, 3: api.GroupPlaced, 4: api.GroupPending} {
			if errs[i] != nil || v.Group(made[i].ID).State != want {
				t.Errorf("%d: %v, %+v; want %s", i, errs[i], v.Group(made[i].ID), want)
			}
		}
		if made[2].ID != made[3].ID || made[3].Previously.IsZero() {
			t.Errorf("one key made %+v and %+v", made[2], made[3])
		}
		if a, b := v.Group(made[2].ID).Seq, v.Group(made[4].ID).Seq; a >= b {
			t.Errorf("the third stands at %d, the fifth at %d", a, b)
		}
		if again, err := h.CreateGroup(t.Context(), groupOf(0), again); err != nil || again.ID != old.ID {
			t.Errorf("again: %+v, %v", again, err)
		}
	})
}

// TestArrivalsBroken: where the log breaks off in the middle of a batch, what is in it
// stands, and each of the rest hears of it.
func TestArrivalsBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, l := headWith(t, 8)
		l.gate, l.breakAt = make(chan struct{}), 2
		specs := []api.GroupSpec{groupOf(1), groupOf(1), groupOf(1), groupOf(1), groupOf(1)}
		made, errs := creations(h, l, specs, make([]headapi.Idempotency, len(specs)))
		for i := range specs {
			p, failed := errors.AsType[*api.Problem](errs[i])
			if want := i > 2; failed != want || failed && !p.Retryable || !failed && h.Store.View().Group(made[i].ID) == nil {
				t.Errorf("%d: %+v, %v", i, made[i], errs[i])
			}
		}
		if n := len(h.Store.View().Groups()); n != 3 {
			t.Errorf("%d groups", n)
		}
	})
}

// TestArrivalGone: who goes away before his turn leaves nothing, and takes nothing from
// those who stay, even if it is his turn.
func TestArrivalGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, l := headWith(t, 8)
		l.gate = make(chan struct{})
		var wg sync.WaitGroup
		errs := make([]error, 3)
		ctxs := make([]context.Context, 3)
		ends := make([]context.CancelFunc, 3)
		for i := range errs {
			ctxs[i], ends[i] = context.WithCancel(t.Context())
			wg.Go(func() { _, errs[i] = h.CreateGroup(ctxs[i], groupOf(1), headapi.Idempotency{}) })
			synctest.Wait()
		}
		ends[0]() // its entry is under way
		ends[1]() // it waits
		synctest.Wait()
		close(l.gate)
		wg.Wait()
		ends[2]()
		if errs[0] != nil || errs[1] == nil || errs[2] != nil {
			t.Errorf("%v", errs)
		}
		if n := len(h.Store.View().Groups()); n != 2 {
			t.Errorf("%d groups; of the one that went away there should be none", n)
		}
	})
}

// TestArrivalsBound: more than may wait are told to come again.
func TestArrivalsBound(t *testing.T) {
	var q arrivals
	for range maxArrivals {
		if err := q.add(&arrival{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.add(&arrival{}); !errors.Is(err, errManyArrivals) {
		t.Errorf("%v", err)
	}
	for n := maxArrivals; n > 0; {
		got := len(q.next())
		if got == 0 || got > mostTogether {
			t.Fatalf("%d at once, %d left", got, n)
		}
		n -= got
	}
	if len(q.next()) != 0 || q.add(&arrival{}) != nil {
		t.Error("there is no room although all have gone")
	}
}

// TestPlaceTogether: what one turn of the loop places is one batch of the log, whose parts
// stand for themselves.
func TestPlaceTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, l := headWith(t, 8)
		// Whoever proposed them found no room.
		var all []command
		for i := range 6 {
			spec := groupOf(1)
			spec.Strategy, spec.Tenant, spec.Queue = api.Pack, "default", "default"
			all = append(all, command{state.KindCreateGroup, state.CreateGroup{ID: fmt.Sprint("g", i), Spec: spec}})
		}
		h.tryAll(t.Context(), all)
		if n := len(h.Store.View().PendingGroups()); n != 6 {
			t.Fatalf("%d wait", n)
		}
		l.batches, l.breakAt = nil, 4
		h.schedule(t.Context())
		if n := len(h.Store.View().PendingGroups()); n != 2 || len(l.batches) != 1 || l.batches[0] != 6 {
			t.Errorf("%d wait after batches of %v, of which the log took 4", n, l.batches)
		}
		l.breakAt = 0
		h.schedule(t.Context())
		if n := len(h.Store.View().PendingGroups()); n != 0 {
			t.Errorf("%d wait", n)
		}
	})
}
