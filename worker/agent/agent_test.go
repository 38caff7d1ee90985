package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
)

const hello = `echo "hello from $RANK of $WORLD_SIZE, attempt $TROUPE_ATTEMPT"; exec sleep 1000`

func TestLifeOfAnAllocation(t *testing.T) {
	w := newWorld(t)
	w.agent()
	if p := w.want(w.attempt("a1", 1, 4, hello)); p != (wire.Position{Term: 1, Index: 2}) {
		t.Fatalf("taken position %+v", p)
	}
	started := w.event("a1", wire.EventStarted, 1)
	ranks := pids(started)
	if len(ranks) != 4 {
		t.Fatalf("started with %+v", started.PIDs)
	}
	first := w.journal("a1")
	w.until("heartbeat with a running allocation", func() bool {
		n := len(w.beats)
		return n > 0 && len(w.beats[n-1].Allocs) == 1 && w.beats[n-1].Allocs[0].State == wire.AllocRunning
	})

	if err := unix.Kill(ranks[1], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.event("a1", wire.EventEnded, 1)
	exit := w.event("a1", wire.EventRankExited, 1).Exit
	if exit == nil || exit.Rank != 1 || exit.Signal != 9 || exit.ByShim || exit.Order != 0 {
		t.Fatalf("the first end told is %+v, want rank 1 by signal 9", exit)
	}

	w.want(w.attempt("a1", 2, 4, hello))
	again := pids(w.event("a1", wire.EventStarted, 2))
	if j := w.journal("a1"); j.Identity != first.Identity {
		t.Errorf("the next attempt has shim %+v, want the same %+v", j.Identity, first.Identity)
	}
	for _, pid := range ranks {
		if slices.Contains(again, pid) || alive(pid) {
			t.Errorf("process %d of the first attempt lives in the second", pid)
		}
	}

	w.output("a1", 1, 2)
	stopped := w.attempt("a1", 2, 4, hello)
	stopped.Stop = &wire.StopOrder{Grace: unit.Duration(10 * time.Second), Reason: "the user asked"}
	w.want(stopped)
	if e := w.event("a1", wire.EventEnded, 2); e.Message != "the user asked" {
		t.Errorf("ended with %q", e.Message)
	}
	w.want()
	w.event("a1", wire.EventGone, 0)
	eventually(t, "cleaning", func() error {
		for _, dir := range []string{w.sockets} {
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				return fmt.Errorf("%s holds %v", dir, left)
			}
		}
		left, err := os.ReadDir(w.dir("a1"))
		if len(left) != 2 {
			return fmt.Errorf("the folder holds %v, want output and %s (%w)", left, endedFile, err)
		}
		return nil
	})
	eventually(t, "the end of the shim", func() error {
		if first.Alive() {
			return fmt.Errorf("process %d lives", first.PID)
		}
		return nil
	})
	c := w.readLog(wire.ReadLog{Job: w.job("a1"), Alloc: "a1", Attempt: 1, Rank: 2, Stream: "stdout"})
	if want := "hello from 2 of 4, attempt 1\n"; string(c.Data) != want || !c.Ended || c.Error != "" {
		t.Errorf("output after the end: %+v, want %q and Ended", c, want)
	}
	want := []wire.EventKind{wire.EventStarted, wire.EventRankExited}
	if got := w.kinds("a1"); !slices.Equal(got[:2], want) || got[len(got)-1] != wire.EventGone {
		t.Errorf("events %v", got)
	}
}

// P6: shims and ranks outlive their agent, and the next one finds them.
func TestRestartFindsRunningRanks(t *testing.T) {
	w := newWorld(t)
	_, stop := w.agent()
	w.want(w.attempt("a1", 1, 4, hello))
	ranks := pids(w.event("a1", wire.EventStarted, 1))
	shimOf := w.journal("a1").Identity
	stop()

	_, stop = w.agent()
	regs := w.registered()
	last := regs[len(regs)-1]
	if len(last.Allocs) != 1 || last.Allocs[0].State != wire.AllocRunning || last.Allocs[0].Generation != 1 || last.Allocs[0].Job != w.job("a1") {
		t.Fatalf("registered again with %+v", last.Allocs)
	}
	if regs[0].Node.Session == last.Node.Session {
		t.Error("the session did not change")
	}
	// What happens while no agent is there is told by the next one.
	stop()
	if err := unix.Kill(ranks[3], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the attempt", func() error {
		for _, pid := range ranks {
			if alive(pid) {
				return fmt.Errorf("process %d lives", pid)
			}
		}
		return nil
	})
	w.agent()
	if x := w.event("a1", wire.EventRankExited, 1).Exit; x.Rank != 3 || x.Signal != 9 {
		t.Errorf("the first end told is %+v", x)
	}
	w.event("a1", wire.EventEnded, 1)
	if j := w.journal("a1"); j.Identity != shimOf || !j.Alive() {
		t.Errorf("shim %+v, want %+v alive", j.Identity, shimOf)
	}
	// The same shim serves the next attempt.
	w.want(w.attempt("a1", 2, 1, "true"))
	w.event("a1", wire.EventEnded, 2)
	w.want()
	w.event("a1", wire.EventGone, 0)
}

// escape leaves the session and the process group of its rank, keeping the mark.
const escape = `setsid sh -c 'exec sleep 1000' >/dev/null 2>&1 & echo $! >"$(dirname $TORCHELASTIC_ERROR_FILE)/pid"; exec sleep 1000`

// P6: the ranks of a dead shim are swept within a second, by the agent.
func TestDeadShimIsSwept(t *testing.T) {
	w := newWorld(t)
	w.agent()
	w.want(w.attempt("a1", 1, 2, escape))
	w.event("a1", wire.EventStarted, 1)
	j := w.journal("a1")
	cookie := w.configs()[0].Cookie
	eventually(t, "the escaped processes", func() error {
		if n := len(process.Find(process.Target{Cookie: cookie})); n < 4 {
			return fmt.Errorf("%d processes with the mark", n)
		}
		return nil
	})
	if err := unix.Kill(j.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e := w.event("a1", wire.EventShimLost, 1)
	if left := process.Find(process.Target{Cookie: cookie}); len(left) > 0 {
		t.Errorf("told lost with %+v alive", left)
	}
	if e.Message == "" {
		t.Error("the loss has no message")
	}
	w.until("gone in a heartbeat", func() bool {
		n := len(w.beats)
		return len(w.beats[n-1].Allocs) == 1 && w.beats[n-1].Allocs[0].State == wire.AllocGone
	})
	w.want()
	w.until("nothing in a heartbeat", func() bool { return len(w.beats[len(w.beats)-1].Allocs) == 0 })
}

// P6: all dead: the next agent sweeps before it registers.
func TestSweepBeforeRegistration(t *testing.T) {
	w := newWorld(t)
	_, stop := w.agent()
	w.want(w.attempt("a1", 1, 2, escape))
	w.event("a1", wire.EventStarted, 1)
	cookie := w.configs()[0].Cookie
	stop()
	// A process that belongs to the allocation and that PDEATHSIG does not reach.
	orphan, err := os.StartProcess("/bin/sleep", []string{"sleep", "1000"}, &os.ProcAttr{Env: []string{process.CookieEnv + "=" + cookie}})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = orphan.Wait() }()
	j := w.journal("a1")
	if err := unix.Kill(j.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the shim's death", func() error {
		if j.Alive() {
			return errors.New("alive")
		}
		return nil
	})
	if !alive(orphan.Pid) {
		t.Fatal("the orphan is dead already")
	}
	w.set(func() {
		w.onReg = func() {
			if left := process.Find(process.Target{Cookie: cookie}); len(left) > 0 {
				t.Errorf("registered with %+v alive", left)
			}
		}
	})
	w.agent()
	regs := w.registered()
	if got := regs[len(regs)-1].Allocs; len(got) != 1 || got[0].State != wire.AllocGone {
		t.Errorf("registered with %+v", got)
	}
	w.event("a1", wire.EventShimLost, 0)
}

// P3: nothing older than the newest is taken, neither positions nor generations.
func TestOldOrdersAreIgnored(t *testing.T) {
	w := newWorld(t)
	w.agent()
	w.want(w.attempt("a1", 2, 1, hello))
	pid := pids(w.event("a1", wire.EventStarted, 2))[0]
	// A deposed leader wants nothing here.
	if p := w.push(wire.Desired{Position: wire.Position{Term: 0, Index: 99}}); p != (wire.Position{Term: 1, Index: 2}) {
		t.Errorf("answered an old position with %+v", p)
	}
	// A position that is newer, with a generation that is older.
	w.want(w.attempt("a1", 1, 1, "touch "+filepath.Join(w.state, "ran")))
	w.want(w.attempt("a1", 1, 1, "touch "+filepath.Join(w.state, "ran")), w.attempt("b1", 3, 1, "true"))
	w.event("b1", wire.EventEnded, 3)
	if !alive(pid) {
		t.Error("an old order ended a newer rank")
	}
	if _, err := os.Stat(filepath.Join(w.state, "ran")); err == nil {
		t.Error("an older generation was started")
	}
	if k := w.kinds("a1"); len(k) != 1 {
		t.Errorf("events %v", k)
	}
	w.want()
	w.event("a1", wire.EventGone, 0)
	w.event("b1", wire.EventGone, 0)
}

func TestStopBeforeStart(t *testing.T) {
	w := newWorld(t)
	w.agent()
	al := w.attempt("a1", 1, 1, "touch "+filepath.Join(w.t.TempDir(), "ran"))
	al.Stop = &wire.StopOrder{Reason: "too late"}
	w.want(al)
	w.event("a1", wire.EventEnded, 1)
	w.want()
	w.event("a1", wire.EventGone, 0)
}

// Between two attempts the ranks of a node that did not fail end too.
func TestRanksEndBetweenAttempts(t *testing.T) {
	w := newWorld(t)
	w.agent()
	w.want(w.attempt("a1", 1, 2, hello))
	w.event("a1", wire.EventStarted, 1)
	between := w.attempt("a1", 1, 2, hello)
	between.Attempt = nil
	w.want(between)
	w.event("a1", wire.EventEnded, 1)
	if j := w.journal("a1"); !j.Alive() {
		t.Error("the shim ended with the attempt")
	}
}

func TestShimThatCannotStart(t *testing.T) {
	for name, argv := range map[string][]string{
		"absent": {"/nonexistent/shim"},
		"fails":  {"/bin/sh", "-c", "echo no luck >&2; exit 3"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			_, stop := w.agent(func(o *Options) { o.ShimPath = argv })
			w.want(w.attempt("a1", 1, 1, "true"))
			e := w.event("a1", wire.EventStartFailed, 1)
			if name == "fails" && !strings.Contains(e.Message, "no luck") {
				t.Errorf("message %q lacks what the shim said", e.Message)
			}
			w.want(w.attempt("a1", 2, 1, "true"))
			w.event("a1", wire.EventStartFailed, 2)
			w.want(w.attempt("a1", 2, 1, "true")) // says nothing new
			w.want(w.attempt("a1", 2, 1, "true"), w.attempt("c1", 3, 1, "true"))
			w.event("c1", wire.EventStartFailed, 3)
			if k := w.kinds("a1"); len(k) != 2 {
				t.Errorf("events %v, want one for each generation", k)
			}
			stop()
			// Repaired: the numbers go on.
			w.agent()
			w.event("a1", wire.EventShimLost, 0)
			w.want(w.attempt("b1", 3, 1, "true"))
			w.event("b1", wire.EventEnded, 3)
			w.want()
			w.event("b1", wire.EventGone, 0)
		})
	}
}

func TestShimStartsAfterFailure(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(w.t.TempDir(), "shim")
	w.agent(func(o *Options) { o.ShimPath = []string{path} })
	w.want(w.attempt("a1", 1, 1, "true"))
	w.event("a1", wire.EventStartFailed, 1)
	if err := os.Symlink(shimProgram, path); err != nil {
		t.Fatal(err)
	}
	w.want(w.attempt("a1", 2, 1, "true"))
	w.event("a1", wire.EventEnded, 2) // the head checks that no number is missing
	w.want()
	w.event("a1", wire.EventGone, 0)
}

func TestTwoAgentsOnOneFolder(t *testing.T) {
	w := newWorld(t)
	_, stop := w.agent()
	if _, err := New(w.options()); !errors.Is(err, ErrLocked) {
		t.Fatalf("a second agent: %v, want ErrLocked", err)
	}
	stop()
	o := w.options()
	o.NodeID = "other"
	if _, err := New(o); !errors.Is(err, ErrNode) {
		t.Fatalf("another node's folder: %v, want ErrNode", err)
	}
	a, err := New(w.options())
	if err != nil {
		t.Fatalf("after the first has stopped: %v", err)
	}
	a.Close()
	o = w.options()
	o.SocketRoot = "/" + strings.Repeat("s", MaxSocketRoot)
	if _, err := New(o); !errors.Is(err, ErrSocketRoot) {
		t.Fatalf("a long name for sockets: %v, want ErrSocketRoot", err)
	}
}

func TestNodeID(t *testing.T) {
	dir := t.TempDir()
	id, err := NodeID(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := NodeID(dir); err != nil || again != id || !validNode(id) {
		t.Fatalf("%q then %q, %v", id, again, err)
	}
	if err := os.WriteFile(filepath.Join(dir, nodeIDFile), []byte("a.b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if id, err := NodeID(dir); err == nil {
		t.Fatalf("took %q from a damaged file", id)
	}
}

// P11: an embedded cluster goes down with everything, though its head is silent.
func TestEndAll(t *testing.T) {
	w := newWorld(t)
	a, _ := w.agent()
	w.want(w.attempt("a1", 1, 2, escape), w.attempt("b1", 2, 1, `trap "" TERM; sleep 1000`))
	w.event("a1", wire.EventStarted, 1)
	w.event("b1", wire.EventStarted, 2)
	var cookies []string
	for _, c := range w.configs() {
		cookies = append(cookies, c.Cookie)
	}
	w.set(func() { w.mute[wire.HeadReport] = true })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := a.EndAll(ctx); err != nil {
		t.Fatal(err)
	}
	for _, c := range cookies {
		if left := process.Find(process.Target{Cookie: c}); len(left) > 0 {
			t.Errorf("alive after EndAll: %+v", left)
		}
	}
	w.want(w.attempt("c1", 3, 1, "true")) // nothing starts any more
	if n := len(w.configs()); n != 2 {
		t.Errorf("%d allocations after EndAll, want the 2 that ended", n)
	}
}
