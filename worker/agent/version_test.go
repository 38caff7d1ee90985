package agent

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// A shim of the version before is found, told what it understands and never ended for what
// it does not say.
func TestOlderShim(t *testing.T) {
	b, err := os.ReadFile("../shim/testdata/v1/shim.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	simulated(t, nil, func(w *world, _ *Agent, l *scripted) {
		time.Sleep(time.Second)
		id := w.prefix + "a1"
		var said []shim.ShimMessage
		for line := range strings.Lines(strings.ReplaceAll(string(b), "ALLOC", id)) {
			var m shim.ShimMessage
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
			said = append(said, m)
		}
		al := w.attempt("a1", 1, 1, "true")
		al.Class = wire.ClassStrict
		w.want(al)
		time.Sleep(time.Second)
		s := l.of(id)
		s.say(said[1])
		s.say(said[2])
		s.mu.Lock()
		s.now = *said[2].Status
		s.mu.Unlock()
		// The head is silent for longer than the lease: the shim's business, since it says
		// nothing of its end.
		w.set(func() { w.mute[wire.HeadHeartbeat] = true })
		time.Sleep(2 * w.lease)
		w.set(func() { w.mute[wire.HeadHeartbeat] = false })
		time.Sleep(5 * time.Second)
		s.mu.Lock()
		swept := s.swept
		s.mu.Unlock()
		if swept != 0 {
			t.Error("an older shim was ended for what it does not say")
		}
		al.Stop = &wire.StopOrder{Reason: "a rank is gone", Quiet: true}
		w.want(al)
		time.Sleep(time.Second)
		synctest.Wait()
		stops := s.of("stop")
		if len(stops) == 0 {
			t.Fatal("it was not told to stop")
		}
		raw := mustJSON(t, stops[0])
		var old struct { // as version 1 reads it
			Type string
			Stop struct{ Grace, Reason string }
		}
		if err := json.Unmarshal(raw, &old); err != nil || old.Type != "stop" || old.Stop.Reason != "a rank is gone" {
			t.Errorf("%s: %v", raw, err)
		}
		s.say(said[3])
		s.say(said[4])
		time.Sleep(time.Second)
		var kinds []string
		for _, k := range w.kinds("a1") {
			kinds = append(kinds, string(k))
		}
		if got := strings.Join(kinds, " "); got != "started rank-exited ended" {
			t.Errorf("the head heard %s", got)
		}
	})
}

// A shim that lets its lease pass and runs on is ended by the agent, the second to
// enforce it.
func TestAgentEnforcesTheLease(t *testing.T) {
	simulated(t, nil, func(w *world, a *Agent, l *scripted) {
		time.Sleep(time.Second)
		id := w.prefix + "a1"
		al := w.attempt("a1", 1, 1, "true")
		al.Class = wire.ClassStrict
		w.want(al)
		time.Sleep(time.Second)
		s := l.of(id)
		s.event(1, wire.EventStarted, 1)
		until := int64(a.Clock.Boot() + 3*w.lease)
		s.mu.Lock()
		s.now, s.until = wire.AllocStatus{ID: id, Generation: 1, State: wire.AllocRunning}, until
		s.mu.Unlock()
		w.set(func() { w.mute[wire.HeadHeartbeat] = true })
		time.Sleep(2 * w.lease)
		swept := func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.swept
		}
		if n := swept(); n != 0 {
			t.Error("it was ended though it had heard of a leader by itself")
		}
		time.Sleep(90 * time.Second)
		if swept() == 0 {
			t.Error("a shim that runs beyond its lease goes on")
		}
	})
}
