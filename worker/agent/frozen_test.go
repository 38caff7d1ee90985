package agent

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
)

// A shim that does not answer is ended: at once when it was stopped, later when it may
// only be slow. One that nothing depends on is left alone.
func TestSilentShimIsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		stopped, runs bool
		after, by     time.Duration
	}{
		"stopped":         {true, true, 5 * time.Second, 7 * time.Second},
		"silent":          {false, true, 30 * time.Second, 32 * time.Second},
		"stopped at rest": {true, false, time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, nil, func(w *world, _ *Agent, l *scripted) {
				time.Sleep(time.Second)
				w.want(w.attempt("a1", 1, 1, "true"))
				time.Sleep(time.Second)
				s := l.of(w.prefix + "a1")
				s.event(1, wire.EventStarted, 1)
				if !c.runs {
					s.event(2, wire.EventEnded, 1)
				}
				time.Sleep(time.Minute) // it answers
				set := func(silent bool) {
					s.mu.Lock()
					s.silent, s.stopped = silent, silent && c.stopped
					s.mu.Unlock()
				}
				for range 3 { // shorter silences are forgiven, and do not add up
					set(true)
					time.Sleep(3 * time.Second)
					set(false)
					time.Sleep(2 * time.Second)
				}
				set(true)
				time.Sleep(c.after - time.Second)
				if k := w.kinds("a1"); k[len(k)-1] == wire.EventShimLost {
					t.Fatalf("ended too soon: %v", k)
				}
				time.Sleep(time.Second + max(0, c.by-c.after))
				synctest.Wait()
				k := w.kinds("a1")
				if lost := k[len(k)-1] == wire.EventShimLost; lost != c.runs {
					t.Errorf("events %v", k)
				}
			})
		})
	}
}

// An order that a shim does not take up is a reason to look, too.
func TestSilentShimThatIsToEnd(t *testing.T) {
	simulated(t, nil, func(w *world, _ *Agent, l *scripted) {
		time.Sleep(time.Second)
		w.want(w.attempt("a1", 1, 1, "true"))
		time.Sleep(time.Second)
		s := l.of(w.prefix + "a1")
		s.event(1, wire.EventStarted, 1)
		s.event(2, wire.EventEnded, 1)
		time.Sleep(time.Minute)
		s.mu.Lock()
		s.silent, s.stopped = true, true
		s.mu.Unlock()
		w.want()
		time.Sleep(10 * time.Second)
		w.event("a1", wire.EventShimLost, 0)
	})
}

// A shim that takes nothing is not asked again without a pause.
func TestShimThatTakesNothing(t *testing.T) {
	simulated(t, nil, func(w *world, _ *Agent, l *scripted) {
		time.Sleep(time.Second)
		w.want(w.attempt("a1", 1, 1, "true"))
		time.Sleep(time.Second)
		s := l.of(w.prefix + "a1")
		s.mu.Lock()
		s.refuse = errors.New("no")
		before := s.dials
		s.mu.Unlock()
		time.Sleep(time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := s.dials - before; n < 30 || n > 200 {
			t.Errorf("%d connections in a minute, want about two a second", n)
		}
	})
}

// P6, with a real shim: its ranks end with it, and what they started too.
func TestStoppedShimIsEnded(t *testing.T) {
	w := newWorld(t)
	w.agent()
	w.want(w.attempt("a1", 1, 2, escape))
	w.event("a1", wire.EventStarted, 1)
	j, cookie := w.journal("a1"), w.configs()[0].Cookie
	if err := unix.Kill(j.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	e := w.event("a1", wire.EventShimLost, 1)
	if !strings.Contains(e.Message, "was stopped by a signal") {
		t.Errorf("message %q", e.Message)
	}
	if left := process.Find(process.Target{Cookie: cookie}); len(left) > 0 || j.Alive() {
		t.Errorf("told lost with %+v alive, the shim %t", left, j.Alive())
	}
}

// A class holds at once: a gang that shrinks to one node starts under the new one.
func TestClassIsToldBeforeTheStart(t *testing.T) {
	before := func(w *world) { w.lease = time.Hour }
	simulated(t, before, func(w *world, _ *Agent, l *scripted) {
		time.Sleep(1500 * time.Millisecond)
		w.want(w.attempt("a1", 1, 1, "true"))
		time.Sleep(time.Second)
		s := l.of(w.prefix + "a1")
		s.event(1, wire.EventStarted, 1)
		s.event(2, wire.EventEnded, 1)
		time.Sleep(100 * time.Millisecond)
		w.set(func() { w.mute[wire.HeadHeartbeat] = true }) // no renewal comes to help
		time.Sleep(time.Minute)
		next := w.attempt("a1", 2, 1, "true")
		next.Class = wire.ClassStrict
		w.want(next)
		time.Sleep(time.Second)
		s.mu.Lock()
		defer s.mu.Unlock()
		var class wire.Class
		told := false
		for _, m := range s.heard {
			switch {
			case m.Type == "renew":
				class = m.Class
			case m.Type == "start" && m.Attempt.Generation == 2:
				if told = true; class != wire.ClassStrict {
					t.Errorf("started under class %q", class)
				}
			}
		}
		if !told {
			t.Error("not started")
		}
	})
}

// What cannot be handed to a shim fails, once, with its size.
func TestAttemptThatIsTooLarge(t *testing.T) {
	w := newWorld(t)
	w.agent()
	al := w.attempt("a1", 1, 1, "true")
	al.Attempt.Env = map[string]string{"LARGE": strings.Repeat("x", 2<<20)}
	w.want(al)
	if e := w.event("a1", wire.EventStartFailed, 1); !strings.Contains(e.Message, "2097") || e.Code != 0 {
		t.Errorf("%+v", e)
	}
	w.want(w.attempt("a1", 2, 1, "true"))
	w.event("a1", wire.EventEnded, 2) // the head checks that no number is missing
	if k := w.kinds("a1"); len(k) != 4 {
		t.Errorf("events %v, want start-failed, started, rank-exited, ended", k)
	}
}

// An agent that was started again has no environment: a rank without it would be
// another than the one that was asked for.
func TestUnknownEnvironmentFailsTheStart(t *testing.T) {
	w := newWorld(t)
	w.agent()
	al := w.attempt("a1", 1, 1, "true")
	al.Attempt.LaunchEnv = "of-a-former-life"
	w.want(al)
	if e := w.event("a1", wire.EventStartFailed, 1); !strings.Contains(e.Message, "launch the job again") || e.Code != 0 {
		t.Errorf("%+v", e)
	}
	if k := w.kinds("a1"); len(k) != 1 {
		t.Errorf("events %v", k)
	}
}

// The largest environment that is taken can be handed over.
func TestLargestEnvironment(t *testing.T) {
	w := newWorld(t)
	a, _ := w.agent()
	var env []string
	size := 2
	for i := int64(0); size < maxEnv-2000; i++ {
		env = append(env, "N"+itoa(i)+"="+strings.Repeat("x", 990))
		size += len(env[i]) + 3
	}
	if err := a.LocalEnv("large", env); err != nil {
		t.Fatal(err)
	}
	al := w.attempt("a1", 1, 1, `[ "${#N7}" = 990 ]`)
	al.Attempt.LaunchEnv = "large"
	w.want(al)
	w.event("a1", wire.EventStarted, 1)
	if x := w.event("a1", wire.EventRankExited, 1).Exit; x.Code != 0 {
		t.Errorf("%+v", x)
	}
}
