package shim_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// ran reports whether a rank of the attempt has run; its command makes the file.
func ran(s *wire.AttemptSpec) bool {
	_, err := os.Stat(filepath.Join(s.WorkingDir, "ran"))
	return err == nil
}

func (a *agent) order(kinds ...wire.EventKind) string {
	var list []string
	for _, e := range a.events {
		for _, k := range kinds {
			if e.Kind == k {
				list = append(list, fmt.Sprintf("%s%d", k, e.Generation))
			}
		}
	}
	return strings.Join(list, " ")
}

// An owner can be gone long before its job is placed. The generation that comes then
// has an end all the same: nobody else would ever tell one.
func TestStartWithoutAnOwnerHasAnEnd(t *testing.T) {
	owner, kill := sleeper(t)
	kill()
	a := newAgent(t, "fallback", func(c *shim.Config) { c.Owner = owner })
	a.until("owner-gone", func() bool { return a.event(wire.EventOwnerGone, 0) != nil })
	s := a.spec(1, "touch", "ran")
	a.start(s)
	if e := a.wait(wire.EventEnded); !strings.Contains(e.Message, "owns the job") {
		t.Errorf("ended: %q", e.Message)
	}
	if a.last = nil; a.c.Status() != nil {
		t.Fatal("no status")
	}
	a.until("a status", func() bool { return a.last != nil })
	if a.last.Generation != 1 || a.last.State != wire.AllocEnded || ran(s) || a.event(wire.EventStarted, 0) != nil {
		t.Errorf("status %+v, ran %t", a.last, ran(s))
	}
	a.end()
}

// The next attempt may be on its way when the owner dies: both generations end, the
// older one first.
func TestOwnerDiesBetweenAttempts(t *testing.T) {
	owner, kill := sleeper(t)
	a := newAgent(t, "fallback", func(c *shim.Config) { c.Owner = owner })
	a.start(a.spec(2, hostile(t, "ignore-term")...))
	a.wait(wire.EventStarted)
	kill()
	a.until("owner-gone", func() bool { return a.event(wire.EventOwnerGone, 0) != nil })
	s := a.spec(1, "touch", "ran")
	a.start(s)
	a.wait(wire.EventEnded)
	if got := a.order(wire.EventStarted, wire.EventEnded); got != "started1 ended1 ended2" || ran(s) {
		t.Errorf("order %s, ran %t", got, ran(s))
	}
	a.nothingLeft()
}

// An attempt that waits for an older one and is given up has its end after the older
// one has: an end says that nothing runs here.
func TestDroppedAttemptEndsAfterTheOlder(t *testing.T) {
	a := newAgent(t, "fallback")
	a.start(a.spec(1, hostile(t, "ignore-term")...))
	a.wait(wire.EventStarted)
	old := a.gen
	a.start(a.spec(1, "touch", "ran"))
	if err := a.c.Stop(&wire.StopOrder{Reason: "stopped"}); err != nil {
		t.Fatal(err)
	}
	a.wait(wire.EventEnded)
	if a.event(wire.EventEnded, old) == nil || a.order(wire.EventEnded) != "ended1 ended2" {
		t.Errorf("order %s", a.order(wire.EventEnded))
	}
}

// Once the job goes on without its owner, so do its later attempts.
func TestDisownedJobStartsAgain(t *testing.T) {
	owner, kill := sleeper(t)
	a := newAgent(t, "fallback", func(c *shim.Config) { c.Owner = owner })
	kill()
	a.until("owner-gone", func() bool { return a.event(wire.EventOwnerGone, 0) != nil })
	if err := a.c.Send(shim.AgentMessage{Type: "disown"}); err != nil {
		t.Fatal(err)
	}
	s := a.spec(1, "touch", "ran")
	a.start(s)
	a.wait(wire.EventEnded)
	if !ran(s) {
		t.Error("the attempt did not run")
	}
}

// What the agent cannot hand over uses its generation up, in the shim's numbering.
func TestStartThatTheAgentFails(t *testing.T) {
	a := newAgent(t, "fallback")
	s := a.spec(1, "touch", "ran")
	fail := shim.AgentMessage{Type: "start", Attempt: &wire.AttemptSpec{Number: s.Number, Generation: s.Generation}, Failure: "it is too large"}
	for range 2 {
		if err := a.c.Send(fail); err != nil { // without a lease: nothing is started
			t.Fatal(err)
		}
	}
	e := a.wait(wire.EventStartFailed)
	if e.Message != "cannot start: it is too large" || e.Code != 0 {
		t.Errorf("%+v", e)
	}
	a.start(s)
	a.start(a.spec(1, "true"))
	a.wait(wire.EventEnded)
	if got := a.order(wire.EventStartFailed, wire.EventStarted, wire.EventEnded); got != "start-failed1 started2 ended2" || ran(s) {
		t.Errorf("order %s, ran %t", got, ran(s))
	}
}

// A second order never lengthens an end, and a shorter one shortens it. Whatever is
// too long here is longer than the test's patience.
func TestEarlierEndStands(t *testing.T) {
	const long = unit.Duration(10 * patience)
	const stubborn = `trap "" TERM; touch ready; while :; do sleep 0.1; done`
	t.Run("a stop after a failure", func(t *testing.T) {
		a := newAgent(t, "fallback")
		s := a.spec(2, "sh", "-c", `if [ $RANK = 0 ]; then while [ ! -e ready ]; do sleep 0.01; done; exit 3; fi; `+stubborn)
		s.FailureGrace = unit.Duration(500 * time.Millisecond)
		a.start(s)
		a.until("the failure", func() bool { return a.exits(1)[0] != nil })
		if err := a.c.Stop(&wire.StopOrder{Grace: long, Reason: "too late"}); err != nil {
			t.Fatal(err)
		}
		a.wait(wire.EventEnded)
	})
	t.Run("a short stop after a long one", func(t *testing.T) {
		a := newAgent(t, "fallback")
		s := a.spec(1, "sh", "-c", stubborn)
		a.start(s)
		eventually(t, "a rank that ignores TERM", func() error {
			_, err := os.Stat(filepath.Join(s.WorkingDir, "ready"))
			return err
		})
		for _, grace := range []unit.Duration{long, unit.Duration(50 * time.Millisecond), long} {
			if err := a.c.Stop(&wire.StopOrder{Grace: grace}); err != nil {
				t.Fatal(err)
			}
		}
		a.wait(wire.EventEnded)
	})
}

func listenTCP(t *testing.T, port int64) (net.Listener, int64) {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, int64(l.Addr().(*net.TCPAddr).Port)
}

func TestTakenMasterPort(t *testing.T) {
	a := newAgent(t, "fallback")
	l, port := listenTCP(t, 0)
	s := a.spec(2, "touch", "ran")
	s.MasterPort = port
	a.start(s)
	if e := a.wait(wire.EventPortUsed); !strings.Contains(e.Message, fmt.Sprint(port)) || ran(s) {
		t.Errorf("%q, ran %t", e.Message, ran(s))
	}
	// A node without rank 0 does not care.
	s = a.spec(1, "touch", "ran")
	s.MasterPort, s.Ranks[0].Rank = port, 1
	a.start(s)
	a.wait(wire.EventEnded)
	if !ran(s) {
		t.Error("a node that does not host rank 0 did not start")
	}
	l.Close()
	s = a.spec(1, "touch", "ran")
	s.MasterPort = port
	a.start(s)
	a.wait(wire.EventEnded)
	if got := a.order(wire.EventPortUsed, wire.EventStartFailed, wire.EventEnded); got != "port-used1 ended2 ended3" || !ran(s) {
		t.Errorf("order %s, ran %t", got, ran(s))
	}
}

// Between the look and rank 0's own try somebody may take the port. Only if it is taken
// still when all ranks are gone, it was somebody else; a script that takes it twice has
// itself to blame.
func TestMasterPortIsTakenMeanwhile(t *testing.T) {
	const script = `while [ ! -e go ]; do sleep 0.01; done
echo 'Traceback (most recent call last):
  File "train.py", line 3, in <module>
OSError: [Errno 98] Address already in use' >&2
exit 1`
	for _, other := range []bool{true, false} {
		a := newAgent(t, "fallback")
		l, port := listenTCP(t, 0)
		l.Close()
		s := a.spec(2, "sh", "-c", script)
		s.MasterPort = port
		a.start(s)
		a.wait(wire.EventStarted)
		if other {
			listenTCP(t, port)
		}
		if err := os.WriteFile(filepath.Join(s.WorkingDir, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		end := wire.EventEnded
		if other {
			end = wire.EventPortUsed
		}
		a.wait(end)
		if got := a.order(wire.EventPortUsed, wire.EventEnded); got != string(end)+"1" {
			t.Errorf("other=%t: %s", other, got)
		}
		x := a.exits(1)
		if x[0] == nil || x[1] == nil || x[0].Code != 1 || x[0].ByShim != other || !strings.Contains(x[0].Message, "in use") {
			t.Errorf("other=%t: exits %+v %+v", other, x[0], x[1])
		}
	}
}

// An actor's arguments may be larger than what a rank may say.
func TestBusReplyOfALargeActor(t *testing.T) {
	a := newAgent(t, "fallback")
	for _, size := range []int{256 << 10, shim.MaxBusReply} {
		s := a.spec(1, "sleep", "1000")
		s.Actor = &api.ActorSpec{Class: "model", Args: make([]byte, size)}
		s.ActorBus = &api.BusAccess{URLs: []string{"nats://127.0.0.1:1"}}
		a.start(s)
		a.wait(wire.EventStarted)
		h := a.helper()
		h.ok(shim.RankRequest{Op: "hello", V: 1, Generation: a.gen})
		if err := shim.WriteFrame(h.c, shim.MaxRankFrame, shim.RankRequest{Op: "bus"}); err != nil {
			t.Fatal(err)
		}
		var rep shim.RankReply
		if err := shim.ReadFrame(h.c, shim.MaxBusReply, &rep); err != nil {
			t.Fatal(err)
		}
		if fits := size < shim.MaxBusReply; rep.OK != fits || fits && len(rep.ActorArgs) != size || !fits && rep.Error == "" {
			t.Errorf("%d bytes: ok %t with %d bytes, %s", size, rep.OK, len(rep.ActorArgs), rep.Error)
		}
		h.ok(shim.RankRequest{Op: "phase"}) // the connection is as good as before
	}
}
