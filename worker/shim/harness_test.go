package shim_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
	"github.com/troupe-runtime/troupe/worker/saver"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// TestMain lets the test binary stand in for troupe: it is its own shim and saver,
// in the same hidden modes.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "shim":
			os.Exit(shim.Main(os.Args[1:]))
		case "saver":
			os.Exit(saver.Main())
		}
	}
	code := m.Run()
	if programs != "" {
		os.RemoveAll(programs)
	}
	os.Exit(code)
}

// patience is how long a condition may take on a busy machine before a test fails.
const patience = 30 * time.Second

// modes are the two kinds of containment that every program must be ended in.
var modes = []string{"cgroup", "fallback"}

func eachMode(t *testing.T, f func(t *testing.T, mode string)) {
	t.Helper()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			if c := shim.Capabilities(); mode == "cgroup" && c.KillRoot == "" {
				t.Skipf("no writable cgroup2 mount with cgroup.kill: %v", c.Why)
			}
			f(t, mode)
		})
	}
}

// agent is the test's side of one shim.
type agent struct {
	t      *testing.T
	cfg    shim.Config
	proc   *os.Process
	c      *shim.Client
	gen    uint64
	events []wire.AllocEvent
	last   *wire.AllocStatus
	saves  []*wire.Prepared
	staged []*wire.Prepared
	noAck  bool
	exit   chan error
}

type option func(*shim.Config)

func newAgent(t *testing.T, mode string, opts ...option) *agent {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sock, err := os.MkdirTemp("", "tsh")
	if err != nil {
		t.Fatal(err)
	}
	name := strings.ToLower(strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()))
	cfg := shim.Config{
		Alloc: fmt.Sprintf("%s-%d", name, os.Getpid()), Job: "job-7f3k", JobName: "job", Run: "run-a", Node: "node-a",
		Dir: filepath.Join(t.TempDir(), "alloc"), SocketDir: filepath.Join(sock, "s"),
		Cookie: fmt.Sprintf("cookie-%d-%s", os.Getpid(), name), Binary: exe, Orphan: unit.Duration(10 * time.Minute),
	}
	if mode == "fallback" {
		cfg.Containment = "fallback"
	}
	for _, o := range opts {
		o(&cfg)
	}
	a := &agent{t: t, cfg: cfg, exit: make(chan error, 1)}
	a.launch()
	t.Cleanup(func() {
		a.kill()
		res := a.sweep()
		if !res.Clean() {
			t.Errorf("after the sweep: %v", res.Error())
		}
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(cfg.Dir, "shim.log"))
			t.Logf("shim.log:\n%s", log)
			t.Logf("events: %s", a.dump())
		}
		os.RemoveAll(sock)
	})
	a.dial()
	return a
}

func (a *agent) launch() {
	a.t.Helper()
	exe, _ := os.Executable()
	p, err := shim.Launch(exe, []string{"shim"}, a.cfg)
	if err != nil {
		a.t.Fatal(err)
	}
	a.proc, a.events, a.last = p, nil, nil
	go func() { _, err := p.Wait(); a.exit <- err }()
}

func (a *agent) socket() string { return filepath.Join(a.cfg.SocketDir, shim.AgentSocket) }

func (a *agent) dial() {
	a.t.Helper()
	c, err := shim.DialWait(a.socket(), patience)
	if err != nil {
		a.t.Fatal(err)
	}
	a.c = c
	a.until("a first status", func() bool { return a.last != nil })
}

// kill ends the shim as a crash would.
func (a *agent) kill() {
	if a.proc != nil {
		a.proc.Kill()
		<-a.exit
		a.proc = nil
	}
	if a.c != nil {
		a.c.Close()
	}
}

// sweep is what an agent does after the death of a shim (P6).
func (a *agent) sweep() process.Result {
	res, _, err := shim.Sweep(context.Background(), a.cfg.Dir)
	if err != nil {
		a.t.Errorf("sweep: %v", err)
	}
	return res
}

func (a *agent) renew(lease, orphan time.Duration, class wire.Class) {
	a.t.Helper()
	if err := a.c.Renew(shim.BootTime(), lease, orphan, class); err != nil {
		a.t.Fatal(err)
	}
}

func (a *agent) spec(ranks int, command ...string) *wire.AttemptSpec {
	a.gen++
	s := &wire.AttemptSpec{
		Number: int64(a.gen - 1), Generation: a.gen, World: int64(ranks), MasterAddr: "127.0.0.1",
		GroupWorld: 1, MaxRestarts: 3, Command: command, WorkingDir: a.t.TempDir(),
	}
	for i := range ranks {
		s.Ranks = append(s.Ranks, wire.RankSpec{Rank: int64(i), LocalRank: int64(i)})
	}
	return s
}

// start renews and starts.
func (a *agent) start(s *wire.AttemptSpec, env ...string) {
	a.t.Helper()
	a.renew(time.Minute, 10*time.Minute, wire.ClassFast)
	if err := a.c.Start(s, env); err != nil {
		a.t.Fatal(err)
	}
}

// take handles one message.
func (a *agent) take(m shim.ShimMessage) {
	switch {
	case m.Status != nil:
		a.last = m.Status
	case m.Event != nil:
		a.events = append(a.events, *m.Event)
		if !a.noAck {
			_ = a.c.Ack(m.Event.Seq)
		}
	case m.Prepared != nil && m.Prepared.Staged:
		a.staged = append(a.staged, m.Prepared)
	case m.Prepared != nil:
		a.saves = append(a.saves, m.Prepared)
	}
}

// until takes messages until the condition holds.
func (a *agent) until(what string, cond func() bool) {
	a.t.Helper()
	deadline := time.After(patience)
	for !cond() {
		select {
		case m, ok := <-a.c.Messages():
			if !ok {
				a.t.Fatalf("the shim hung up before %s: %v; events: %s", what, a.c.Err(), a.dump())
			}
			a.take(m)
		case <-deadline:
			a.t.Fatalf("no %s after %s; status %+v; events: %s", what, patience, a.last, a.dump())
		}
	}
}

func (a *agent) event(kind wire.EventKind, gen uint64) *wire.AllocEvent {
	for i := range a.events {
		if e := &a.events[i]; e.Kind == kind && (gen == 0 || e.Generation == gen) {
			return e
		}
	}
	return nil
}

func (a *agent) wait(kind wire.EventKind) *wire.AllocEvent {
	a.t.Helper()
	gen := a.gen
	a.until("event "+string(kind), func() bool { return a.event(kind, gen) != nil })
	return a.event(kind, gen)
}

func (a *agent) exits(gen uint64) map[int64]*wire.RankExit {
	m := map[int64]*wire.RankExit{}
	for _, e := range a.events {
		if e.Kind == wire.EventRankExited && e.Generation == gen {
			m[e.Exit.Rank] = e.Exit
		}
	}
	return m
}

func (a *agent) dump() string {
	var b strings.Builder
	for _, e := range a.events {
		fmt.Fprintf(&b, "\n  #%d %s g%d %s", e.Seq, e.Kind, e.Generation, e.Message)
		if e.Exit != nil {
			fmt.Fprintf(&b, " %+v", *e.Exit)
		}
	}
	return b.String()
}

// ranksAlive lists what lives of the allocation besides shim and saver.
func (a *agent) ranksAlive() []process.Proc {
	j, err := shim.ReadJournal(a.cfg.Dir)
	t := process.Target{Cookie: a.cfg.Cookie, Root: 0}
	if err == nil {
		t.Groups = j.Groups
	}
	var list []process.Proc
	// A program that has dropped its mark is known by its file alone.
	if bin, err := built(); err == nil {
		exes, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, exe := range exes {
			if to, err := os.Readlink(exe); err != nil || to != bin {
				continue
			}
			var pid int
			fmt.Sscanf(exe, "/proc/%d/exe", &pid)
			if p, err := process.ReadProc(pid); err == nil && !p.Dead() {
				list = append(list, p)
			}
		}
	}
	for _, p := range process.Find(t) {
		if p.Name != "troupe-saver" && !isSaver(p.PID) {
			list = append(list, p)
		}
	}
	return list
}

func isSaver(pid int) bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.HasPrefix(string(b), "troupe-saver\x00")
}

func (a *agent) nothingLeft() {
	a.t.Helper()
	if l := a.ranksAlive(); len(l) > 0 {
		a.t.Errorf("still alive: %+v", l)
	}
}

func (a *agent) output(attempt, rank int64, stream string) string {
	a.t.Helper()
	b, err := os.ReadFile(filepath.Join(a.cfg.Dir, shim.OutputDir, fmt.Sprint(attempt), fmt.Sprint(rank), stream+".log"))
	if err != nil {
		a.t.Fatal(err)
	}
	return string(b)
}

// end asks the shim to leave and waits until it has.
func (a *agent) end() {
	a.t.Helper()
	if err := a.c.End(); err != nil {
		a.t.Fatal(err)
	}
	a.until("event gone", func() bool { return a.event(wire.EventGone, 0) != nil })
	select {
	case <-a.exit:
		a.proc = nil
	case <-time.After(patience):
		a.t.Fatal("the shim did not leave after its last words")
	}
}
