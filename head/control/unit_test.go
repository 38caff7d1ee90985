package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// TestCanonical: every wrong field of a spec is named at once, by its pointer, and a
// right one comes back with its defaults.
func TestCanonical(t *testing.T) {
	ok := func() api.JobSpec { return api.JobSpec{Name: "a", Command: []string{"true"}} }
	s, errs := canonical(ok())
	if len(errs) != 0 || s.Ranks != 1 || s.Kind != api.KindTraining || s.Strategy != api.Pack || s.Checkpoint.KeepLast != 3 || s.Resources.CPU == 0 {
		t.Fatalf("%+v %v", s, errs)
	}
	again, errs := canonical(s)
	if len(errs) != 0 || fmt.Sprint(again) != fmt.Sprint(s) {
		t.Errorf("canonical is not stable: %+v and %+v", s, again)
	}
	minus := int64(-1)
	for pointer, change := range map[string]func(*api.JobSpec){
		"/name":                      func(s *api.JobSpec) { s.Name = "a/b" },
		"/run":                       func(s *api.JobSpec) { s.Run = "-x" },
		"/kind":                      func(s *api.JobSpec) { s.Kind = "magic" },
		"/actor":                     func(s *api.JobSpec) { s.Kind = api.KindActor },
		"/ranks":                     func(s *api.JobSpec) { s.Ranks = -1 },
		"/ranksPerNode":              func(s *api.JobSpec) { s.RanksPerNode = -1 },
		"/command":                   func(s *api.JobSpec) { s.Command = nil },
		"/command/0":                 func(s *api.JobSpec) { s.Command = []string{"a\x00b"} },
		"/workingDir":                func(s *api.JobSpec) { s.WorkingDir = "here" },
		"/env":                       func(s *api.JobSpec) { s.Env = map[string]string{"A=B": "c"} },
		"/restart/maxRestarts":       func(s *api.JobSpec) { s.Restart.MaxRestarts = &minus },
		"/restart/infrastructure":    func(s *api.JobSpec) { s.Restart.Infra = &minus },
		"/checkpoint/interval":       func(s *api.JobSpec) { s.Checkpoint.Interval = "often" },
		"/checkpoint/store":          func(s *api.JobSpec) { s.Checkpoint.Store = "rel" },
		"/checkpoint/keepLast":       func(s *api.JobSpec) { s.Checkpoint.KeepLast = -1 },
		"/checkpoint/fromStep":       func(s *api.JobSpec) { s.Checkpoint.FromStep = &minus },
		"/shutdownTimeout":           func(s *api.JobSpec) { s.ShutdownTimeout = -1 },
		"/resources":                 func(s *api.JobSpec) { s.PlacementGroup, s.Resources.CPU = "g", 1 },
		"/bundles":                   func(s *api.JobSpec) { s.Bundles = []int64{0} },
		"/bundles/1":                 func(s *api.JobSpec) { s.PlacementGroup, s.Ranks, s.Bundles = "g", 2, []int64{0, 0} },
		"/owner":                     func(s *api.JobSpec) { s.Owner = &api.Owner{PID: 1} },
		"/env /name /workingDir":     func(s *api.JobSpec) { s.Name, s.WorkingDir, s.Env = "", "x", map[string]string{"": ""} },
		"/command /name":             func(s *api.JobSpec) { s.Name, s.Command = strings.Repeat("n", 64), []string{""} },
		"/ranks /restart/user /kind": func(s *api.JobSpec) { s.Ranks, s.Kind, s.Restart.User = 1<<40, "x", &minus },
	} {
		spec := ok()
		change(&spec)
		_, errs := canonical(spec)
		var got []string
		for _, e := range errs {
			got = append(got, e.Pointer)
		}
		want := strings.Fields(pointer)
		sort.Strings(got)
		sort.Strings(want)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("named %v, want %v: %v", got, want, errs)
		}
	}
}

// TestSessions: what came late or twice is no sign of life, and a registration that
// was overtaken undoes nothing (I12).
func TestSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSessions(clock.Virtual())
		s.lead(time.Now(), "nonce")
		if s.beat("n1", wire.Heartbeat{Session: "a", Seq: 1}) || s.known("n1") {
			t.Error("a session was made by a heartbeat")
		}
		s.open("n1", "a", 1, []int64{7}, nil)
		time.Sleep(2 * time.Second)
		if !s.beat("n1", wire.Heartbeat{Session: "a", Seq: 3}) || time.Since(s.sight("n1").heard) != 0 {
			t.Error("a heartbeat is no sign of life")
		}
		time.Sleep(2 * time.Second)
		for seq := range uint64(4) {
			if !s.beat("n1", wire.Heartbeat{Session: "a", Seq: seq, Ports: []int64{99}}) {
				t.Error("a late heartbeat of the session makes it unknown")
			}
		}
		s.open("n1", "a", 2, []int64{99}, nil)
		if d := time.Since(s.sight("n1").heard); d != 2*time.Second {
			t.Errorf("after late messages the node is silent for %s", d)
		}
		if p, ok := s.takePort("n1"); ok {
			t.Errorf("port %d of a late message was taken", p)
		}
		if s.beat("n1", wire.Heartbeat{Session: "b", Seq: 9}) {
			t.Error("another session's heartbeat was taken")
		}
		s.open("n1", "b", 1, []int64{5, 6}, nil)
		first, _ := s.takePort("n1")
		second, _ := s.takePort("n1")
		if _, third := s.takePort("n1"); first == second || third {
			t.Errorf("ports %d and %d", first, second)
		}
		if s.beat("n1", wire.Heartbeat{Session: "a", Seq: 100}) {
			t.Error("the former session's heartbeat was taken")
		}
	})
}

// fakeLog counts verifications and fails on demand.
type fakeLog struct {
	verified atomic.Int64
	fail     atomic.Bool
	gate     chan struct{}
}

func (l *fakeLog) Propose(_ context.Context, entries ...[]byte) []Outcome {
	return slices.Repeat([]Outcome{{Err: errors.New("no log")}}, len(entries))
}
func (l *fakeLog) IsLeader() bool { return true }
func (l *fakeLog) Verify(context.Context) error {
	if l.gate != nil {
		<-l.gate
	}
	l.verified.Add(1)
	if l.fail.Load() {
		return errors.New("deposed")
	}
	return nil
}

// TestVerifier: a heartbeat is answered only after a verification that began after it
// came, many share one, and none is answered by a head that does not lead.
func TestVerifier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLog{gate: make(chan struct{})}
		v := newVerifier(l)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { v.loop(ctx) })
		var answered, refused atomic.Int64
		ask := func() {
			wg.Go(func() {
				if v.ask(ctx) == nil {
					answered.Add(1)
				} else {
					refused.Add(1)
				}
			})
		}
		ask()
		synctest.Wait() // its verification is under way
		for range 50 {
			ask()
		}
		synctest.Wait()
		l.gate <- struct{}{}
		synctest.Wait()
		if n := answered.Load(); n != 1 {
			t.Errorf("%d were answered by a verification that began before they came", n)
		}
		l.fail.Store(true)
		close(l.gate)
		time.Sleep(time.Second)
		synctest.Wait()
		if answered.Load() != 1 || refused.Load() != 50 {
			t.Errorf("%d answered, %d refused by a head that does not lead", answered.Load(), refused.Load())
		}
		if n := l.verified.Load(); n > 3 {
			t.Errorf("%d verifications for two batches", n)
		}
		cancel()
		wg.Wait()
	})
}

// TestOutcomeUnknown: a request that was first sent before the oldest kept key is
// never carried out a second time (I16).
func TestOutcomeUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := state.New()
		if err != nil {
			t.Fatal(err)
		}
		h := New(Options{Store: store, Log: &fakeLog{}, Clock: clock.Virtual()})
		for _, k := range []struct {
			key  headapi.Idempotency
			code string
		}{
			{headapi.Idempotency{}, ""},
			{headapi.Idempotency{Key: "k"}, ""},
			{headapi.Idempotency{Key: "k", FirstSent: time.Now().Add(-time.Hour)}, ""},
			{headapi.Idempotency{Key: "k", FirstSent: time.Now().Add(-25 * time.Hour)}, "TRP-A410"},
		} {
			_, known, err := h.replay(store.View(), k.key)
			var p *api.Problem
			if known || k.code == "" && err != nil || k.code != "" && (!errors.As(err, &p) || p.Code != k.code) {
				t.Errorf("%+v: known %v, %v", k.key, known, err)
			}
		}
	})
}
