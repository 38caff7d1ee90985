package shim_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
	"github.com/troupe-runtime/troupe/worker/shim"
	"github.com/troupe-runtime/troupe/worker/warm"
)

// warmScript is one that is taken to need torch and starts quickly without.
const warmScript = "# torch\nimport sys, time\nprint('up', flush=True)\nif sys.argv[1:]: time.sleep(1000)\n"

func (a *agent) script(name, text string) string {
	a.t.Helper()
	path := filepath.Join(a.work(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// forkserver is the allocation's only forkserver, by what it carries.
func (a *agent) forkserver() int {
	a.t.Helper()
	var found []int
	lists, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range lists {
		b, _ := os.ReadFile(path)
		if env := string(b); strings.Contains(env, process.CookieEnv+"="+a.cfg.Cookie+"\x00") && strings.Contains(env, "TROUPE_WARM=") {
			var pid int
			fmt.Sscanf(path, "/proc/%d/environ", &pid)
			if p, err := process.ReadProc(pid); err == nil && !p.Dead() {
				found = append(found, pid)
			}
		}
	}
	if len(found) > 1 {
		a.t.Errorf("forkservers: %v", found)
	}
	if len(found) == 0 {
		return 0
	}
	return found[0]
}

// A forkserver may die at any time: its ranks live on, the next start falls back to exec and
// says so, and the one after is warm again. Dead shim, dead forkserver (P6).
func TestForkserverDies(t *testing.T) {
	python := torchPython(t)
	if python == "" {
		return
	}
	eachMode(t, func(t *testing.T, mode string) {
		a := newAgent(t, mode, warmly(""))
		script := a.script("s.py", warmScript)
		attempt := func() []wire.RankStep {
			s := a.spec(2, python, script, "stay")
			s.WorkingDir = a.work()
			a.start(s)
			pids := a.wait(wire.EventStarted).PIDs
			a.untilOutput(a.gen, 0, "up")
			return pids
		}
		pids := attempt()
		first := a.forkserver()
		if first == 0 || len(a.fallbacks()) > 0 {
			t.Fatalf("no warm start: forkserver %d, %q", first, a.fallbacks())
		}
		syscall.Kill(first, syscall.SIGKILL)
		eventually(t, "the forkserver's end", func() error {
			if a.forkserver() != 0 {
				return fmt.Errorf("process %d lives", first)
			}
			return nil
		})
		for _, p := range pids {
			if q, err := process.ReadProc(int(p.PID)); err != nil || q.Dead() {
				t.Errorf("rank %d died with the forkserver: %+v %v", p.Rank, q, err)
			}
		}
		attempt()
		a.until("the fallback", func() bool { return len(a.fallbacks()) == 1 })
		if f := a.fallbacks()[0]; !strings.Contains(f, "SIGKILL") {
			t.Errorf("fallback: %s", f)
		}
		attempt()
		if n := len(a.fallbacks()); n != 1 || a.forkserver() == 0 {
			t.Errorf("the third attempt is not warm: %q", a.fallbacks())
		}
		// It may also die while it is asked, when its connection breaks before its end is known.
		// Another signal, because the same text is told once.
		syscall.Kill(a.forkserver(), syscall.SIGALRM)
		attempt()
		a.until("the second fallback", func() bool { return len(a.fallbacks()) == 2 })
		if f := a.fallbacks()[1]; !strings.Contains(f, "SIGALRM") {
			t.Errorf("second fallback: %s", f)
		}
		last := 0
		eventually(t, "another forkserver", func() error {
			if last = a.forkserver(); last == 0 {
				return errors.New("there is none")
			}
			return nil
		})
		a.kill()
		eventually(t, "the forkserver's end with its shim", func() error {
			if q, err := process.ReadProc(last); err == nil && !q.Dead() {
				return fmt.Errorf("%+v lives", q)
			}
			return nil
		})
	})
}

// What a fork would do otherwise than a fresh start is started by exec, with the reason.
func TestColdForAReason(t *testing.T) {
	python := torchPython(t)
	if python == "" {
		return
	}
	a := newAgent(t, "cgroup", fallbackIfNone, warmly(filepath.Join(t.TempDir(), "warm.json")))
	script := a.script("s.py", warmScript)
	cases := []struct {
		name   string
		do     func(*wire.AttemptSpec)
		reason string // "": nothing is told
	}{
		{"no-warm", func(s *wire.AttemptSpec) { s.NoWarm = true }, ""},
		{"option", func(s *wire.AttemptSpec) { s.Command = []string{python, "-I", script} }, "-I"},
		{"variable", func(s *wire.AttemptSpec) { s.Env = map[string]string{"PYTHONINSPECT": "1"} }, "PYTHONINSPECT"},
		{"threads", func(s *wire.AttemptSpec) { s.Env = map[string]string{"OMP_NUM_THREADS": "2"} }, ""},
		{"no torch named", func(s *wire.AttemptSpec) { s.Command = []string{python, a.script("plain.py", "print('up')")} }, ""},
		{"hidden module", func(*wire.AttemptSpec) { a.script("json.py", "") }, "hides the installed module json"},
	}
	told := 0
	for _, c := range cases {
		s := a.spec(2, python, script)
		s.WorkingDir = a.work()
		c.do(s)
		a.start(s)
		a.wait(wire.EventEnded)
		if got := a.output(s.Number, 0, "stdout"); !strings.Contains(got, "up") {
			t.Errorf("%s: it said %q", c.name, got)
		}
		f := a.fallbacks()[told:]
		told += len(f)
		if (c.reason == "") != (len(f) == 0) || len(f) > 0 && !strings.Contains(f[0], c.reason) {
			t.Errorf("%s: %q, want %q", c.name, f, c.reason)
		}
	}
	a.end()
}

// What a script imports late is known after its first step, however the rank ends.
func TestLearnsFromAStep(t *testing.T) {
	python := torchPython(t)
	if python == "" {
		return
	}
	sdk, err := filepath.Abs("../../sdk/python")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ act, module string }{
		"step":              {"troupe.step(1)", "mailbox"},
		"should_checkpoint": {"troupe.should_checkpoint(1)", "mailbox"},
		"nothing":           {"pass", ""},
	} {
		t.Run(name, func(t *testing.T) {
			store := filepath.Join(t.TempDir(), "warm.json")
			a := newAgent(t, "cgroup", fallbackIfNone, warmly(store))
			script := a.script("s.py", `# torch
import os, signal, troupe
troupe.init()
def late():
    import mailbox
    `+c.act+`
    print("there", flush=True)
    signal.pause()
late()
`)
			s := a.spec(1, python, script)
			s.WorkingDir, s.Env = a.work(), map[string]string{"PYTHONPATH": sdk, "OMP_NUM_THREADS": "1"}
			a.start(s)
			pids := a.wait(wire.EventStarted).PIDs
			a.untilOutput(a.gen, 0, "there")
			if f := a.fallbacks(); len(f) > 0 {
				t.Fatalf("not forked: %q", f)
			}
			has := func() bool {
				for _, x := range readLearned(t, store) {
					if slices.Contains(x.Modules, "mailbox") {
						return true
					}
				}
				return false
			}
			if c.module != "" { // while it runs
				eventually(t, "what it imported is known", func() error {
					if !has() {
						return fmt.Errorf("%+v", readLearned(t, store))
					}
					return nil
				})
			}
			syscall.Kill(int(pids[0].PID), syscall.SIGKILL)
			a.wait(wire.EventEnded)
			if has() != (c.module != "") {
				t.Errorf("known: %v", has())
			}
			a.end()
		})
	}
}

func readLearned(t *testing.T, store string) []warm.Learned {
	t.Helper()
	var f struct{ Scripts []warm.Learned }
	b, err := os.ReadFile(store)
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return f.Scripts
}

// A spare becomes the shim of an allocation, with its forkserver; one that nobody adopts
// ends with its agent.
func TestSpare(t *testing.T) {
	python := torchPython(t)
	if python == "" {
		return
	}
	a := newAgent(t, "cgroup", fallbackIfNone, warmly(""))
	a.end()
	exe, _ := os.Executable()
	script := a.script("s.py", warmScript)
	attempt := a.spec(2, python, script, "stay")
	attempt.WorkingDir = a.work()
	sp, ok := shim.AttemptSpec(&a.cfg, attempt, nil)
	if !ok {
		t.Fatal("no forkserver can serve the script")
	}
	spareConfig := a.cfg
	spareConfig.Alloc, spareConfig.Dir = a.cfg.Alloc+"-spare", a.cfg.Dir+"-spare"
	spareConfig.SocketDir, spareConfig.Orphan = a.cfg.SocketDir+"p", unit.Duration(0)
	begin := func() *shim.Spare {
		c, err := shim.StartSpare(exe, []string{"shim"}, spareConfig, &sp)
		if err != nil {
			t.Fatal(err)
		}
		<-c.Ready()
		if why := c.Fits(&sp); why != "" {
			t.Fatal(why)
		}
		return c
	}
	gone := func(c *shim.Spare) {
		t.Helper()
		<-c.Ended
		if pid := a.forkserver(); pid != 0 {
			t.Errorf("forkserver %d is left", pid)
		}
		if err := c.Clear(); err != nil {
			t.Error(err)
		}
		for _, dir := range []string{spareConfig.Dir, spareConfig.SocketDir} {
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("%s is left: %v", dir, err)
			}
		}
	}
	c := begin()
	c.Close()
	gone(c)

	c = begin()
	pid := a.forkserver()
	if err := c.Adopt(a.cfg); err != nil {
		t.Fatal(err)
	}
	a.proc = c.Process
	go func() { <-c.Ended; a.exit <- nil }()
	a.events, a.last = nil, nil
	a.dial()
	c.Close()
	if err := c.Clear(); err != nil {
		t.Error(err)
	}
	a.gen = a.last.Generation
	attempt = a.spec(2, python, script, "stay")
	attempt.WorkingDir = a.work()
	a.start(attempt)
	ranks := a.wait(wire.EventStarted).PIDs
	a.untilOutput(a.gen, 1, "up")
	if f := a.fallbacks(); len(f) > 0 || a.forkserver() != pid {
		t.Errorf("forkserver %d, was %d: %q", a.forkserver(), pid, f)
	}
	for _, r := range ranks {
		if p, err := process.ReadProc(int(r.PID)); err != nil || p.PPID != c.Process.Pid {
			t.Errorf("rank %d is no child of the shim: %+v %v", r.Rank, p, err)
		}
	}
	a.end()
	a.nothingLeft()
	<-c.Ended
}
