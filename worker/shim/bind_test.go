package shim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/numa"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// aCPUEach is one CPU for each of two ranks, different ones where there are two.
func aCPUEach(t *testing.T) []string {
	t.Helper()
	m, err := numa.Here()
	if err != nil {
		t.Fatal(err)
	}
	last := m.Allowed[len(m.Allowed)-1:]
	return []string{numa.FormatList(last), numa.FormatList(m.Allowed[:1])}
}

// A rank runs on the CPUs that the agent says, and nowhere else; one that nobody binds runs
// where its shim does.
func TestRanksAreBound(t *testing.T) {
	const script = "sed -n 's/^Cpus_allowed_list:[[:space:]]*/on /p' /proc/self/status"
	eachMode(t, func(t *testing.T, mode string) {
		a := newAgent(t, mode)
		m, err := numa.Here()
		if err != nil {
			t.Fatal(err)
		}
		all := numa.FormatList(m.Allowed)
		for _, c := range [][]string{nil, aCPUEach(t), {all, all}} {
			s := a.spec(2, "/bin/sh", "-c", script)
			a.startOn(s, c)
			a.wait(wire.EventEnded)
			for rank := range int64(2) {
				want := all
				if c != nil {
					want = c[rank]
				}
				if got := strings.TrimSpace(a.output(s.Number, rank, "stdout")); got != "on "+want {
					t.Errorf("rank %d of %v: %q", rank, c, got)
				}
			}
		}
	})
}

// A forked rank is bound, too.
func TestForkedRanksAreBound(t *testing.T) {
	python := torchPython(t)
	if python == "" {
		return
	}
	a := newAgent(t, "fallback", warmly(""))
	script := a.script("s.py", "# torch\nimport os\nprint('on', *os.sched_getaffinity(0), flush=True)\n")
	s := a.spec(2, python, script)
	s.WorkingDir = a.work()
	cpus := aCPUEach(t)
	a.startOn(s, cpus)
	a.wait(wire.EventEnded)
	if f := a.fallbacks(); len(f) > 0 {
		t.Fatalf("no warm start: %q", f)
	}
	for rank := range int64(2) {
		if got := strings.TrimSpace(a.output(s.Number, rank, "stdout")); got != "on "+cpus[rank] {
			t.Errorf("rank %d: %q, want CPU %s", rank, got, cpus[rank])
		}
	}
}

// What cannot be bound does not start.
func TestUnfitCPUs(t *testing.T) {
	for _, c := range []struct {
		cpus []string
		want string
	}{
		{[]string{"0"}, "1 lists of CPUs for 2 ranks"},
		{[]string{"0", ""}, `the CPUs of rank 1: "" is no list`},
		{[]string{"0", "x"}, `the CPUs of rank 1: "x" is no list`},
		{[]string{"1023", "1023"}, "bind to CPUs 1023"},
	} {
		a := newAgent(t, "fallback")
		a.startOn(a.spec(2, "/bin/true"), c.cpus)
		if e := a.wait(wire.EventStartFailed); !strings.Contains(e.Message, c.want) {
			t.Errorf("%v: %q", c.cpus, e.Message)
		}
	}
}

// startOn is start with CPUs for the ranks.
func (a *agent) startOn(s *wire.AttemptSpec, cpus []string) {
	a.t.Helper()
	a.renew(time.Minute, 10*time.Minute, wire.ClassFast)
	if err := a.c.Send(shim.AgentMessage{Type: "start", Attempt: s, CPUs: cpus}); err != nil {
		a.t.Fatal(err)
	}
}
