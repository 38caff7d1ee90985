package shim_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// torchPython is a Python with torch; without one, as in a short run, a test that needs it
// is left out.
func torchPython(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		return ""
	}
	python := os.Getenv("TROUPE_PYTHON")
	if python == "" {
		python = "python3"
	}
	if exec.CommandContext(t.Context(), python, "-c", "import torch").Run() != nil {
		t.Log("needs torch; left out")
		return ""
	}
	return python
}

// warmly gives the shim a forkserver's Python side: the tree's own.
func warmly(store string) option {
	return func(c *shim.Config) {
		hook, err := filepath.Abs("../../sdk/python/troupe/_warm")
		if err != nil {
			panic(err)
		}
		c.Warm = &shim.WarmConfig{Hook: hook, Store: store}
	}
}

func (a *agent) fallbacks() []string {
	var list []string
	for _, e := range a.events {
		if e.Kind == wire.EventFallback && strings.Contains(e.Message, "by exec") {
			list = append(list, e.Message)
		}
	}
	return list
}

// forkservers lists the allocation's forkserver processes.
func (a *agent) forkservers() []int {
	j, err := shim.ReadJournal(a.cfg.Dir)
	if err != nil || j.Groups.Kill == "" {
		return nil
	}
	b, _ := os.ReadFile(filepath.Join(j.Groups.Kill, "warm", "cgroup.procs"))
	var pids []int
	for f := range strings.FieldsSeq(string(b)) {
		var pid int
		fmt.Sscan(f, &pid)
		pids = append(pids, pid)
	}
	return pids
}

// run runs one attempt of two ranks to its end and returns how they ended and what they said.
func (a *agent) run(noWarm bool, env map[string]string, command ...string) string {
	a.t.Helper()
	s := a.spec(2, command...)
	s.WorkingDir, s.NoWarm, s.Env = a.work(), noWarm, env
	s.FailureGrace = unit.Duration(patience) // both ranks come to their own end
	a.start(s)
	a.wait(wire.EventEnded)
	var b strings.Builder
	exits := a.exits(a.gen)
	for r := range int64(2) {
		x := exits[r]
		if x == nil {
			a.t.Fatalf("rank %d has no end: %s", r, a.dump())
		}
		fmt.Fprintf(&b, "rank %d: code %d signal %d message %q\n", r, x.Code, x.Signal, x.Message)
		for _, stream := range []string{"stdout", "stderr"} {
			fmt.Fprintf(&b, "--- %s\n%s\n", stream, a.output(s.Number, r, stream))
		}
	}
	return b.String()
}

// work is one working folder for all attempts of a test.
func (a *agent) work() string {
	dir := filepath.Join(filepath.Dir(a.cfg.Dir), "work")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		a.t.Fatal(err)
	}
	return dir
}

// varies is what no two starts have in common: process numbers, addresses, attempts.
var varies = regexp.MustCompile(`\b0x[0-9a-f]+`)

// A rank from the forkserver is what a fresh interpreter is: the same output, tracebacks,
// exit codes and state.
func TestWarmRanksAreFreshInterpreters(t *testing.T) {
	python := torchPython(t)
	if python == "" {
		return
	}
	script, err := filepath.Abs("testdata/cases.py")
	if err != nil {
		t.Fatal(err)
	}
	a := newAgent(t, "cgroup", fallbackIfNone, warmly(""))
	for c := range strings.FieldsSeq("state ending chained hook broken-hook multiprocess loader numbers out killed interrupted exit-int exit-text os-exit") {
		t.Run(c, func(t *testing.T) {
			a.t = t
			want := a.run(true, nil, python, "-u", "-W", "ignore", script, c, "${local_rank}")
			got := a.run(false, nil, python, "-u", "-W", "ignore", script, c, "${local_rank}")
			clean := func(s string) string { return varies.ReplaceAllString(s, "…") }
			if d := differences(clean(want), clean(got)); d != "" {
				t.Errorf("by exec (-) and from the forkserver (+):\n%s", d)
			}
			if f := a.fallbacks(); len(f) > 0 {
				t.Fatalf("ranks were not forked: %q", f)
			}
		})
	}
	a.t = t
	// Two ranks of one forkserver draw different numbers, each of them.
	one, two, _ := strings.Cut(a.run(false, nil, python, "-u", "-W", "ignore", script, "chance", "0"), "rank 1")
	for i, w := range strings.Fields(one) {
		if other := strings.Fields(two); strings.ContainsAny(w, "0123456789") && len(w) > 8 && slices.Contains(other, w) {
			t.Errorf("both ranks draw %s (%d): %s %s", w, i, one, two)
		}
	}
	if n := len(a.forkservers()); n != 1 && shim.Capabilities().KillRoot != "" {
		t.Errorf("%d forkservers served all attempts, want 1", n)
	}
	a.end()
	a.nothingLeft()
}

// differences shows the lines of two outputs that are not alike.
func differences(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	var b strings.Builder
	for i := range max(len(w), len(g)) {
		var l, r string
		if i < len(w) {
			l = w[i]
		}
		if i < len(g) {
			r = g[i]
		}
		if l != r {
			fmt.Fprintf(&b, "-%d %s\n+%d %s\n", i, l, i, r)
		}
	}
	return b.String()
}

// A script of a package is remembered from job to job, though its copy lies elsewhere each
// time; one outside of it by its path.
func TestPackagedScriptIsRemembered(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal(err)
	}
	name := func(run, rel, script string) string {
		t.Helper()
		work := t.TempDir()
		dir := filepath.Join(work, rel)
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		if !filepath.IsAbs(script) {
			if err := os.WriteFile(filepath.Join(dir, script), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		argv := []string{python, script}
		a := &wire.AttemptSpec{Package: "hash", WorkingDir: dir, Command: argv}
		sp, why, ok := shim.WarmSpec(&shim.WarmConfig{Hook: "hook", Run: run, Work: work}, a, argv, []string{"PATH=/usr/bin"})
		if !ok {
			t.Fatal(why)
		}
		return sp.Name()
	}
	first := name("a", "src", "train.py")
	if again := name("a", "src", "train.py"); again != first {
		t.Errorf("%q, then %q", first, again)
	}
	outside := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{first: true}
	for _, n := range []string{name("b", "src", "train.py"), name("a", "", "train.py"), name("a", "src", "eval.py"), name("a", "src", outside)} {
		if seen[n] {
			t.Errorf("%q is of two scripts", n)
		}
		seen[n] = true
	}
	if !seen[outside] {
		t.Errorf("%v", seen)
	}
}
