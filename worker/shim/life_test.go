package shim_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// eventually waits for a condition of the outside world and reports the last state.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// P6: shim dead → ranks die with it, and what they started goes with the agent's sweep.
func TestRanksDieWithTheShim(t *testing.T) {
	eachMode(t, func(t *testing.T, mode string) {
		a := newAgent(t, mode)
		s := a.spec(3, "sh", "-c", "setsid sleep 1000 & sleep 1000 & sleep 1000")
		a.start(s)
		pids := a.wait(wire.EventStarted).PIDs
		eventually(t, "grandchildren", func() error {
			if n := len(a.ranksAlive()); n < 3+9 {
				return fmt.Errorf("%d processes, want 12", n)
			}
			return nil
		})
		a.kill()
		for _, p := range pids {
			eventually(t, "death of the ranks with their shim", func() error {
				if q, err := process.ReadProc(int(p.PID)); err == nil && !q.Dead() {
					return fmt.Errorf("rank %d lives: %+v", p.Rank, q)
				}
				return nil
			})
		}
		j, alive, err := shim.FindShim(a.cfg.Dir)
		if err != nil || alive {
			t.Fatalf("the dead shim is found: %+v %v %v", j, alive, err)
		}
		if res := a.sweep(); !res.Clean() {
			t.Error(res.Error())
		}
		a.nothingLeft()
		if g := j.Groups.Kill; g != "" {
			if _, err := os.Stat(g); !os.IsNotExist(err) {
				t.Errorf("group %s is left: %v", g, err)
			}
		}
	})
}

func TestRanksOutliveTheAgent(t *testing.T) {
	a := newAgent(t, "cgroup", fallbackIfNone)
	a.noAck = true
	a.start(a.spec(2, "sh", "-c", "while [ ! -e stop ]; do sleep 0.02; done; exit 4"))
	pids := a.wait(wire.EventStarted).PIDs
	dir := a.workdir(pids[0].PID)
	a.c.Close()
	for _, p := range pids {
		if q, err := process.ReadProc(int(p.PID)); err != nil || q.Dead() {
			t.Fatalf("rank %d died with the agent's connection: %v", p.Rank, err)
		}
	}
	if _, alive, err := shim.FindShim(a.cfg.Dir); !alive || err != nil {
		t.Fatalf("the shim is not found: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end in the journal", func() error {
		j, err := shim.ReadJournal(a.cfg.Dir)
		if err != nil {
			return err
		}
		for _, e := range j.Unacked {
			if e.Kind == wire.EventEnded {
				return nil
			}
		}
		return fmt.Errorf("%d unacknowledged events, none is ended", len(j.Unacked))
	})

	// The next agent hears everything that was not acknowledged, once and in order.
	a.events, a.last, a.noAck = nil, nil, false
	a.dial()
	if a.last.State != wire.AllocEnded || a.last.Generation != 1 {
		t.Errorf("status: %+v", a.last)
	}
	a.wait(wire.EventEnded)
	var kinds []string
	for i, e := range a.events {
		kinds = append(kinds, string(e.Kind))
		if i > 0 && e.Seq != a.events[i-1].Seq+1 {
			t.Errorf("seq %d follows %d", e.Seq, a.events[i-1].Seq)
		}
	}
	if got := strings.Join(kinds, " "); !strings.HasSuffix(got, "started rank-exited rank-exited ended") {
		t.Errorf("events: %s", got)
	}
	a.c.Close()
	// What was acknowledged is not told again.
	eventually(t, "an empty journal", func() error {
		j, err := shim.ReadJournal(a.cfg.Dir)
		if err == nil && len(j.Unacked) > 0 {
			err = fmt.Errorf("%d unacknowledged", len(j.Unacked))
		}
		return err
	})
	a.events, a.last = nil, nil
	a.dial()
	if err := a.c.Status(); err != nil {
		t.Fatal(err)
	}
	a.last = nil
	a.until("a second status", func() bool { return a.last != nil })
	if len(a.events) != 0 {
		t.Errorf("told again: %s", a.dump())
	}
	a.end()
}

func fallbackIfNone(c *shim.Config) {
	if shim.Capabilities().KillRoot == "" {
		c.Containment = "fallback"
	}
}

func (a *agent) workdir(pid int64) string {
	a.t.Helper()
	dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		a.t.Fatal(err)
	}
	return dir
}

// P3: an older or equal generation starts nothing; a newer one ends the older first.
func TestGenerationsFence(t *testing.T) {
	eachMode(t, func(t *testing.T, mode string) {
		a := newAgent(t, mode)
		a.gen = 4
		a.start(a.spec(2, hostile(t, "ignore-term")...))
		a.wait(wire.EventStarted)
		for _, gen := range []uint64{1, 4, 5} {
			s := a.spec(2, "touch", "ran")
			a.gen--
			s.Generation = gen
			a.last = nil
			a.start(s)
			a.until("a status in answer", func() bool { return a.last != nil })
			if a.last.Generation != 5 || a.last.State != wire.AllocRunning {
				t.Errorf("after generation %d: %+v", gen, a.last)
			}
			if _, err := os.Stat(filepath.Join(s.WorkingDir, "ran")); err == nil {
				t.Errorf("generation %d ran", gen)
			}
		}
		old := a.event(wire.EventStarted, 5).PIDs
		s := a.spec(2, "sh", "-c", fmt.Sprintf("kill -0 %d %d 2>err; echo $? > out", old[0].PID, old[1].PID))
		a.start(s)
		a.wait(wire.EventEnded)
		if e := a.event(wire.EventEnded, 5); e == nil || !strings.Contains(e.Message, "generation 6") {
			t.Errorf("end of generation 5: %+v", e)
		}
		if b, _ := os.ReadFile(filepath.Join(s.WorkingDir, "out")); strings.TrimSpace(string(b)) == "0" {
			t.Error("two generations were alive together")
		}
		var order []string
		for _, e := range a.events {
			if e.Kind == wire.EventEnded || e.Kind == wire.EventStarted {
				order = append(order, fmt.Sprintf("%s%d", e.Kind, e.Generation))
			}
		}
		if got := strings.Join(order, " "); got != "started5 ended5 started6 ended6" {
			t.Errorf("order: %s", got)
		}
	})
}

func TestNothingStartsWithoutALease(t *testing.T) {
	a := newAgent(t, "fallback")
	s := a.spec(1, "touch", "ran")
	try := func(what string) {
		t.Helper()
		a.last = nil
		if err := a.c.Start(s, nil); err != nil {
			t.Fatal(err)
		}
		a.until("a status in answer", func() bool { return a.last != nil })
		if a.last.Generation != 0 || a.last.State != wire.AllocIdle {
			t.Errorf("%s: %+v", what, a.last)
		}
	}
	try("without a lease")
	old := shim.BootTime() - int64(time.Hour)
	if err := a.c.Renew(old, time.Minute, 10*time.Hour, wire.ClassFast); err != nil {
		t.Fatal(err)
	}
	try("with a lease that is over")
	a.start(s)
	a.wait(wire.EventEnded)
	if _, err := os.Stat(filepath.Join(s.WorkingDir, "ran")); err != nil {
		t.Error(err)
	}
}

func TestLeaseAndOrphanTimeEndRanks(t *testing.T) {
	cases := []struct {
		name          string
		class         wire.Class
		lease, orphan time.Duration
		want          string
	}{
		{"strict at the end of the lease", wire.ClassStrict, 600 * time.Millisecond, time.Hour, "lease ended"},
		{"fast at the orphan time", wire.ClassFast, time.Hour, 600 * time.Millisecond, "orphan time"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a := newAgent(t, "fallback")
			a.renew(10*time.Second, 10*time.Minute, c.class)
			if err := a.c.Start(a.spec(2, hostile(t, "ignore-term")...), nil); err != nil {
				t.Fatal(err)
			}
			a.wait(wire.EventStarted)
			a.renew(c.lease, c.orphan, c.class)
			e := a.wait(wire.EventEnded)
			if !strings.Contains(e.Message, c.want) {
				t.Errorf("ended: %q", e.Message)
			}
			a.nothingLeft()
			// A late renewal revives nothing.
			a.renew(time.Minute, time.Minute, c.class)
			a.last = nil
			a.c.Status()
			a.until("a status", func() bool { return a.last != nil })
			if a.last.State != wire.AllocEnded {
				t.Errorf("after a late renewal: %+v", a.last)
			}
			a.nothingLeft()
		})
	}
}

// A shim that has neither agent nor leader ends its ranks, says so in its journal,
// and leaves nothing, itself included.
func TestOrphanLeaves(t *testing.T) {
	eachMode(t, func(t *testing.T, mode string) {
		a := newAgent(t, mode)
		a.start(a.spec(2, hostile(t, "family")...))
		a.untilOutput(1, 0, "ready")
		a.renew(time.Hour, 300*time.Millisecond, wire.ClassFast)
		a.c.Close()
		select {
		case <-a.exit:
			a.proc = nil
		case <-time.After(patience):
			t.Fatal("the orphan stays")
		}
		j, alive, err := shim.FindShim(a.cfg.Dir)
		if err != nil || alive || !j.Gone {
			t.Fatalf("journal %+v, alive %v, %v", j, alive, err)
		}
		var kinds []string
		for _, e := range j.Unacked {
			kinds = append(kinds, string(e.Kind))
		}
		if got := strings.Join(kinds, " "); !strings.HasSuffix(got, "rank-exited rank-exited ended gone") {
			t.Errorf("events: %s", got)
		}
		a.nothingLeft()
		if _, err := os.Stat(a.cfg.SocketDir); !os.IsNotExist(err) {
			t.Errorf("the socket folder is left: %v", err)
		}
		if g := j.Groups.Kill; g != "" {
			if _, err := os.Stat(g); !os.IsNotExist(err) {
				t.Errorf("group %s is left: %v", g, err)
			}
		}
	})
}

func TestOwnerDeathEndsRanks(t *testing.T) {
	owner := exec.Command("sleep", "1000")
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { owner.Process.Kill(); owner.Wait() })
	p, err := process.ReadProc(owner.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	boot, err := process.BootID()
	if err != nil {
		t.Fatal(err)
	}
	id := &api.Owner{BootID: boot, PID: int64(p.PID), StartTime: p.Start}
	a := newAgent(t, "fallback", func(c *shim.Config) { c.Owner = id })
	a.start(a.spec(2, hostile(t, "ignore-term")...))
	a.wait(wire.EventStarted)
	owner.Process.Kill()
	owner.Wait()
	a.until("owner-gone", func() bool { return a.event(wire.EventOwnerGone, 0) != nil })
	if e := a.wait(wire.EventEnded); !strings.Contains(e.Message, "owns the job") {
		t.Errorf("ended: %q", e.Message)
	}
	a.nothingLeft()

	// Another process with the owner's pid is not the owner.
	self, _ := process.ReadProc(os.Getpid())
	id2 := &api.Owner{BootID: boot, PID: int64(self.PID), StartTime: self.Start + 1}
	b := newAgent(t, "cgroup", fallbackIfNone, func(c *shim.Config) { c.Owner = id2; c.Alloc += "-b"; c.Cookie += "-b" })
	b.until("owner-gone", func() bool { return b.event(wire.EventOwnerGone, 0) != nil })
}

func TestOneShimForAnAllocation(t *testing.T) {
	a := newAgent(t, "fallback")
	exe, _ := os.Executable()
	out, err := exec.Command(exe, "shim", filepath.Join(a.cfg.Dir, shim.ConfigFile)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another shim") {
		t.Errorf("second shim: %v: %s", err, out)
	}
	a.start(a.spec(1, "true"))
	a.wait(wire.EventEnded)
}

// A shim that follows a dead one counts on: no seq twice, no generation again.
func TestNextShimGoesOn(t *testing.T) {
	a := newAgent(t, "cgroup", fallbackIfNone)
	a.noAck = true
	a.start(a.spec(1, "sleep", "1000"))
	a.wait(wire.EventStarted)
	last := a.events[len(a.events)-1].Seq
	a.kill()
	a.sweep()
	a.events, a.last = nil, nil
	a.launch()
	a.dial()
	if a.last.Generation != 1 || a.last.State != wire.AllocIdle {
		t.Errorf("status: %+v", a.last)
	}
	s := a.spec(1, "true")
	a.start(s)
	a.wait(wire.EventEnded)
	if e := a.event(wire.EventStarted, 2); e == nil || e.Seq <= last {
		t.Errorf("started: %+v after seq %d", e, last)
	}
	if a.event(wire.EventStarted, 1) == nil {
		t.Error("what the dead shim could not tell is lost")
	}
}

// The process lives whatever arrives on its sockets.
func TestMalformedFrames(t *testing.T) {
	a := newAgent(t, "fallback")
	a.start(a.spec(1, "sleep", "1000"))
	a.wait(wire.EventStarted)
	bad := map[string][]byte{
		"zero length":    {0, 0, 0, 0},
		"huge length":    {0xff, 0xff, 0xff, 0xff, 'x'},
		"no JSON":        []byte("\x00\x00\x00\x04nope"),
		"wrong type":     []byte("\x00\x00\x00\x0b{\"op\":false}"),
		"half a length":  {0, 0},
		"half a frame":   []byte("\x00\x00\x00\x20{"),
		"a rank's limit": append([]byte{0, 1, 0, 1}, make([]byte, 65537)...),
		"deep":           append([]byte{0, 0, 0xff, 0xff}, []byte(strings.Repeat("[", 0xffff))...),
		"text":           []byte("GET / HTTP/1.1\r\n\r\n"),
	}
	for name, frame := range bad {
		for _, sock := range []string{shim.RankSocket, shim.AgentSocket} {
			c, err := net.Dial("unix", filepath.Join(a.cfg.SocketDir, sock))
			if err != nil {
				t.Fatalf("%s on %s: %v", name, sock, err)
			}
			c.Write(frame)
			c.(*net.UnixConn).CloseWrite()
			c.SetReadDeadline(time.Now().Add(patience))
			if sock == shim.RankSocket && name != "half a length" {
				var rep shim.RankReply
				if err := shim.ReadFrame(c, shim.MaxRankFrame, &rep); err != nil || rep.OK || rep.Code != "usage" {
					t.Errorf("%s: reply %+v, %v", name, rep, err)
				}
			}
			for err == nil {
				_, err = c.Read(make([]byte, 4096))
			}
			if os.IsTimeout(err) {
				t.Errorf("%s on %s: the connection stays open", name, sock)
			}
			c.Close()
		}
	}
	a.last = nil
	a.c.Status()
	a.until("a status", func() bool { return a.last != nil })
	if a.last.State != wire.AllocRunning {
		t.Errorf("status: %+v", a.last)
	}
}

// An idle shim with four ranks stays small.
func TestShimIsSmall(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "troupe-shim")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin, "github.com/troupe-runtime/troupe/cmd/troupe-shim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is shipped
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	a := newAgent(t, "cgroup", fallbackIfNone)
	a.end()
	p, err := shim.Launch(bin, nil, a.cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.proc, a.events, a.last = p, nil, nil
	go func() { _, err := p.Wait(); a.exit <- err }()
	a.dial()
	a.start(a.spec(4, "sleep", "1000"))
	a.wait(wire.EventStarted)
	// It gives back what only a start needs, a moment after it.
	var kib int64
	eventually(t, "at most 8 MiB with four ranks", func() error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid))
		if err != nil {
			return err
		}
		for l := range strings.Lines(string(b)) {
			fmt.Sscanf(l, "VmRSS: %d kB", &kib)
		}
		if kib == 0 || kib > 8<<10 {
			return fmt.Errorf("it takes %d KiB", kib)
		}
		return nil
	})
	t.Logf("resident: %d KiB", kib)
	a.end()
}
