package control

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

const ms = time.Millisecond

// moment is one of these tests, in ms; never: zero.
func moment(n int) time.Time { return time.Unix(1000, 0).Add(time.Duration(n) * ms) }

func TestJudge(t *testing.T) {
	timing := Timing{}.withDefaults()
	for _, k := range []struct {
		name string
		s    sighting
		now  int
		want api.NodeState
		next int // when to look again; 0: not compared
	}{
		{"heard", sighting{heard: moment(0)}, 1000, api.NodeReady, 2500},
		{"late", sighting{heard: moment(0)}, 2499, api.NodeReady, 2500},
		{"silent", sighting{heard: moment(0)}, 2500, api.NodeSuspect, 3500},
		{"silent for long", sighting{heard: moment(0)}, 3500, api.NodeLost, 0},
		{"closed a moment ago", sighting{heard: moment(0), closed: moment(200)}, 300, api.NodeReady, 1300},
		{"closed", sighting{heard: moment(0), closed: moment(200)}, 1300, api.NodeSuspect, 1700},
		{"closed and no shim calls", sighting{heard: moment(0), closed: moment(200)}, 1700, api.NodeLost, 0},
		{"closed after silence", sighting{heard: moment(0), closed: moment(3000)}, 3500, api.NodeLost, 0},
		{"shims call", sighting{heard: moment(0), closed: moment(200), called: moment(700)}, 1700, api.NodeAgentless, 4200},
		{"a shim calls at once", sighting{heard: moment(0), closed: moment(200), called: moment(450)}, 500, api.NodeAgentless, 0},
		{"shims call on", sighting{heard: moment(0), closed: moment(200), called: moment(60_000)}, 61_000, api.NodeAgentless, 63_500},
		{"an old call says nothing", sighting{heard: moment(0), closed: moment(200), called: moment(-5)}, 1700, api.NodeLost, 0},
		{"shims fell silent", sighting{heard: moment(0), closed: moment(200), called: moment(5000)}, 8500, api.NodeLost, 0},
		{"shims were closed", sighting{heard: moment(0), closed: moment(200), called: moment(5000), hungUp: moment(5500)}, 6999, api.NodeSuspect, 7000},
		{"shims were closed for long", sighting{heard: moment(0), closed: moment(200), called: moment(5000), hungUp: moment(5500)}, 7000, api.NodeLost, 0},
		{"agent stopped, shims call", sighting{heard: moment(0), called: moment(2900)}, 3500, api.NodeAgentless, 0},
		{"agent stopped, one call", sighting{heard: moment(0), called: moment(2400)}, 5899, api.NodeAgentless, 5900},
		{"agent stopped, shims silent again", sighting{heard: moment(0), called: moment(2400)}, 5900, api.NodeLost, 0},
		{"announced", sighting{heard: moment(0), closed: moment(10), called: moment(119_000), restarting: true}, 119_500, api.NodeAgentless, 120_010},
		{"announced, too long", sighting{heard: moment(0), closed: moment(10), called: moment(120_000), restarting: true, state: api.NodeAgentless, hold: moment(120_010)}, 120_010, api.NodeLost, 0},
		{"unannounced, too long", sighting{heard: moment(0), closed: moment(10), called: moment(300_000), state: api.NodeAgentless, hold: moment(300_010)}, 300_010, api.NodeLost, 0},
		{"the log's hold counts", sighting{heard: moment(0), closed: moment(10), called: moment(5000), state: api.NodeAgentless, hold: moment(400_000)}, 5500, api.NodeAgentless, 8500},
		{"announced and idle", sighting{heard: moment(0), closed: moment(10), restarting: true}, 60_000, api.NodeAgentless, 0},
		{"announced, and its shims are dead", sighting{heard: moment(0), closed: moment(10), restarting: true, busy: true}, 1510, api.NodeLost, 0},
		{"unannounced and idle", sighting{heard: moment(0), closed: moment(10)}, 1510, api.NodeLost, 0},
		{"back", sighting{heard: moment(9000), called: moment(8900), state: api.NodeAgentless, hold: moment(300_000)}, 9500, api.NodeReady, 0},
	} {
		f := timing.judge(&k.s, moment(k.now))
		if f.state != k.want || k.next != 0 && !f.next.Equal(moment(k.next)) {
			t.Errorf("%s: %s (%s), look again at %d; want %s at %d", k.name, f.state, f.why, f.next.Sub(moment(0)).Milliseconds(), k.want, k.next)
		}
		if f.state != api.NodeReady && f.why == "" {
			t.Errorf("%s: no reason", k.name)
		}
	}
}

// Whatever was heard and when: nothing that spoke within the last 1.5 s is lost unless it
// was held for minutes, and a node of which nothing was heard for 3.5 s is.
func TestPropJudge(t *testing.T) {
	timing := Timing{}.withDefaults()
	rapid.Check(t, func(t *rapid.T) {
		drawn := func(name string) time.Time {
			if rapid.Bool().Draw(t, name+"?") {
				return time.Time{}
			}
			return moment(rapid.IntRange(0, 20_000).Draw(t, name))
		}
		s := sighting{
			heard: moment(rapid.IntRange(0, 20_000).Draw(t, "heard")), called: drawn("called"), closed: drawn("closed"), hungUp: drawn("hungUp"),
			restarting: rapid.Bool().Draw(t, "restarting"), busy: rapid.Bool().Draw(t, "busy"),
		}
		if s.closed.Before(s.heard) {
			s.closed = time.Time{} // what was heard since opens it again
		}
		if s.hungUp.Before(s.called) {
			s.hungUp = time.Time{}
		}
		now := moment(20_000 + rapid.IntRange(0, 10_000).Draw(t, "now"))
		f := timing.judge(&s, now)
		quiet := now.Sub(later(s.heard, s.called))
		switch {
		case f.state == api.NodeLost && quiet < timing.Closed:
			t.Fatalf("lost %s after it spoke: %+v", quiet, f)
		case f.state != api.NodeLost && quiet >= timing.Lost && (!s.restarting || s.busy):
			t.Fatalf("%s after %s of silence: %+v", f.state, quiet, f)
		case f.state != api.NodeLost && !f.next.After(now) && f.state != api.NodeReady:
			t.Fatalf("no later look: %+v", f)
		}
	})
}

func TestPace(t *testing.T) {
	now := moment(0)
	steps := func(rank, step int64, age time.Duration) []wire.RankStep {
		return []wire.RankStep{{Rank: rank, Step: step, Age: unit.Duration(age)}}
	}
	p := &pace{}
	p.note(5, steps(0, -1, 0), now)
	if !p.advanced.IsZero() || p.p99() != unknownPace {
		t.Error("a rank without a step has published one")
	}
	p.note(5, steps(0, 3, 200*ms), now)
	p.note(5, steps(1, 3, 100*ms), now)
	if want := now.Add(-100 * ms); !p.advanced.Equal(want) {
		t.Errorf("advanced at %v, want %v", p.advanced, want)
	}
	for i := range int64(99) {
		now = now.Add(400 * ms)
		p.note(5, steps(0, 5+2*i, 0), now)
	}
	if d := p.p99(); d < 200*ms || d > 300*ms {
		t.Errorf("p99 %s of steps of 200 ms", d)
	}
	last := p.advanced
	p.note(5, steps(0, 7, 0), now.Add(time.Second))   // told late
	p.note(4, steps(0, 9e9, 0), now.Add(time.Minute)) // P3
	if !p.advanced.Equal(last) {
		t.Error("an old step is an advance")
	}
	if d := p.standstill(1500 * ms); d != 1500*ms {
		t.Errorf("standstill %s", d)
	}
	now = now.Add(4 * time.Second)
	for i := range int64(5) {
		now = now.Add(4 * time.Second)
		p.note(5, steps(0, 300+i, 0), now)
	}
	if d := p.standstill(1500 * ms); d != 8*time.Second {
		t.Errorf("standstill %s with slow steps", d)
	}
	p.note(6, steps(0, 0, 0), now)
	if len(p.ranks) != 1 || p.p99() != 4*time.Second {
		t.Error("the next attempt does not start from the pace of the one before")
	}
}

// TestVoices: a call of a former leadership, or one that was overtaken, is no sign of life.
func TestVoices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSessions(clock.Virtual())
		s.lead(time.Now(), "new")
		time.Sleep(time.Second)
		c := wire.ShimCall{Alloc: "a.1", Job: "a", Boot: "b", Sent: 10, Nonce: "old"}
		nonce, again, _ := s.call("n1", &c)
		if !again || nonce != "new" || !s.unheard("n1") {
			t.Errorf("%q %v", nonce, again)
		}
		c.Nonce = "new"
		if _, again, old := s.call("n1", &c); again || old || !s.sight("n1").called.Equal(time.Now()) {
			t.Error("a call is no sign of life")
		}
		heard := time.Now()
		time.Sleep(time.Second)
		for _, sent := range []int64{10, 3} {
			c.Sent = sent
			if _, _, old := s.call("n1", &c); !old {
				t.Error("an old call was taken")
			}
		}
		if !s.hangUp("n1", true) || s.hangUp("n1", false) {
			t.Error("the end of a connection that nobody had")
		}
		if w := s.sight("n1"); !w.called.Equal(heard) || w.hungUp.IsZero() || !s.lastWord("n1").Equal(heard) {
			t.Errorf("%+v", w)
		}
		c.Sent = 11
		s.call("n1", &c)
		if w := s.sight("n1"); !w.hungUp.IsZero() {
			t.Error("another shim's end outlives a call")
		}
		time.Sleep(10 * time.Second)
		s.excuse(9 * time.Second)
		if d := time.Since(s.sight("n1").called); d != time.Second {
			t.Errorf("silent for %s with 9 s excused", d)
		}
		s.excuse(time.Hour)
		if d := time.Since(s.sight("n1").called); d != 0 {
			t.Errorf("silent for %s", d)
		}
	})
}
