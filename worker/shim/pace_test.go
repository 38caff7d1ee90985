package shim

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/elastic/plan"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// pacedRank is a rank with a page of its own, looked at in virtual time.
type pacedRank struct {
	*rank
	now int64
}

func newPaced(t *testing.T) *pacedRank {
	t.Helper()
	p, err := newRankPage(t.TempDir(), 7, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.remove)
	return &pacedRank{&rank{page: p, pace: paced{step: -1}}, 1e9}
}

// look lets time pass and looks every quarter of a second.
func (r *pacedRank) look(d time.Duration) {
	for ; d > 0; d -= tick {
		r.now += int64(min(d, tick))
		passed := min(d, tick)
		if (&attempt{began: true, ranks: []*rank{r.rank}}).excused(r.now) {
			passed = 0
		}
		r.rank.look(passed)
	}
}

func (r *pacedRank) makes(step int64) {
	r.page.p.SetStep(step, r.now)
	r.look(tick)
}

// TestLook: what counts as silence and what is learned.
func TestLook(t *testing.T) {
	r := newPaced(t)
	r.look(time.Hour)
	if r.pace.Known() || r.pace.silent != 0 {
		t.Fatalf("before the first step %s are silence", r.pace.silent)
	}
	r.makes(1)
	if r.pace.Known() {
		t.Fatal("the first step, which may take as long as it likes, is learned")
	}
	for i := int64(2); i <= 100; i++ {
		r.look(750 * time.Millisecond)
		r.makes(i)
	}
	if p := r.pace.P99(); p < time.Second || p > 3*time.Second/2 || r.pace.Longest() != time.Second || r.pace.Deadline() != plan.StallFloor {
		t.Errorf("p99 %s, longest %s, deadline %s", p, r.pace.Longest(), r.pace.Deadline())
	}
	r.look(5 * time.Second)
	r.page.p.AddCall()
	r.look(tick)
	if r.pace.silent != 0 {
		t.Errorf("a rank that asks whether to save is silent for %s", r.pace.silent)
	}
	r.page.p.SetPhase(r.now + int64(time.Hour))
	r.look(30 * time.Minute)
	if r.pace.silent != 0 {
		t.Errorf("inside a phase it is silent for %s", r.pace.silent)
	}
	r.page.p.SetPhase(0)
	r.look(2 * time.Second)
	r.makes(101)
	if r.pace.Longest() > 3*time.Second {
		t.Errorf("the phase was learned: %s", r.pace.Longest())
	}
	// A save stands still by intent, but not for ever.
	r.pace.saveFrom = r.now
	r.look(9 * time.Minute)
	if r.pace.silent != 0 {
		t.Errorf("in a save it is silent for %s", r.pace.silent)
	}
	r.look(2 * time.Minute)
	if r.pace.silent < 50*time.Second {
		t.Errorf("in a save without end it is silent for %s", r.pace.silent)
	}
	// Steps that go back, as no attempt makes them, are a step all the same.
	r.makes(3)
	if r.pace.silent != 0 || r.pace.step != 3 {
		t.Errorf("silent for %s at step %d", r.pace.silent, r.pace.step)
	}
}

// watched is a shim whose attempt has one paced rank.
func watched(t *testing.T) (*shim, *pacedRank) {
	r := newPaced(t)
	s := &shim{calls: make(chan func(), 8), quit: make(chan struct{})}
	s.att = &attempt{spec: wire.AttemptSpec{Generation: 7}, ranks: []*rank{r.rank}, began: true}
	r.makes(1)
	for i := int64(2); i < 30; i++ {
		r.makes(i)
	}
	return s, r
}

func told(s *shim) (out []wire.EventKind) {
	for _, ev := range s.journal.Unacked {
		out = append(out, ev.Kind)
	}
	return out
}

// TestShimThatSleptTellsNothing: the shim looks at the real clock; one that did not run
// for hours, with its machine or alone, has seen no silence in them.
func TestShimThatSleptTellsNothing(t *testing.T) {
	s, r := watched(t)
	for range 5 {
		s.watchPace()
		s.att.stall.looked -= int64(10 * time.Hour) // and then it slept
	}
	if r.pace.silent > 5*longestLook || len(told(s)) != 0 {
		t.Errorf("after five looks silent for %s, told %v", r.pace.silent, told(s))
	}
	s.att.stall.looked += int64(100 * time.Hour) // the clock went back
	s.watchPace()
	if r.pace.silent < 0 || len(told(s)) != 0 {
		t.Errorf("silent for %s, told %v", r.pace.silent, told(s))
	}
}

// TestStallIsTold: once, then that it is over; the order to end comes after a notice.
func TestStallIsTold(t *testing.T) {
	s, r := watched(t)
	s.att.stall.kill = plan.StallKill{After: 30 * time.Second}
	pass := func(d time.Duration) {
		for ; d > 0; d -= longestLook {
			s.att.stall.looked -= int64(longestLook)
			s.watchPace()
		}
	}
	s.watchPace()
	pass(8 * time.Second)
	if len(told(s)) != 0 {
		t.Fatalf("told %v", told(s))
	}
	pass(5 * time.Second)
	ev := s.journal.Unacked
	if len(ev) != 1 || ev[0].Kind != wire.EventStalled || ev[0].Rank != 0 || ev[0].Silent < int64(10*time.Second) || !strings.Contains(ev[0].Message, "rank 0 has made no step for 1") {
		t.Fatalf("%+v", ev)
	}
	r.page.p.SetStep(31, 1)
	s.watchPace()
	if got := told(s); len(got) != 2 || got[1] != wire.EventResumed {
		t.Fatalf("told %v", got)
	}
	pass(29 * time.Second)
	if got := told(s); len(got) != 3 {
		t.Fatalf("told %v", got)
	}
	pass(3 * time.Second)
	if got := told(s); len(got) != 4 || got[3] != wire.EventOverdue {
		t.Fatalf("told %v", got)
	}
	pass(time.Minute)
	if len(told(s)) != 4 {
		t.Errorf("told again: %v", told(s))
	}
	// Short orders are not carried out before the stacks can have been read.
	s, _ = watched(t)
	s.att.stall.kill = plan.StallKill{After: time.Second}
	s.watchPace()
	pass(3 * time.Second)
	if got := told(s); len(got) != 1 || got[0] != wire.EventStalled {
		t.Fatalf("told %v", got)
	}
	pass(6 * time.Second)
	if got := told(s); len(got) != 2 || got[1] != wire.EventOverdue {
		t.Fatalf("told %v", got)
	}
	// Whoever says that it stands still by intent excuses the others, which wait for it.
	s, r = watched(t)
	other := newPaced(t)
	other.makes(30)
	other.page.p.SetPhase(1 << 62)
	s.att.ranks = append(s.att.ranks, other.rank)
	s.watchPace()
	pass(10 * time.Hour)
	if got := told(s); len(got) != 0 || r.pace.silent != 0 {
		t.Fatalf("told %v, silent for %s", got, r.pace.silent)
	}
	s, _ = watched(t)
	s.att.stall.kill = plan.StallKill{Never: true}
	s.watchPace()
	pass(10 * time.Hour)
	if got := told(s); len(got) != 1 || got[0] != wire.EventStalled {
		t.Fatalf("told %v", got)
	}
}

// TestSlowIsNeverStalled: a rank that gets slower and slower but makes steps is left alone.
func TestSlowIsNeverStalled(t *testing.T) {
	s, r := watched(t)
	step, gap := int64(40), 5*time.Second
	for gap < 10*time.Minute {
		for d := time.Duration(0); d < gap; d += longestLook {
			s.att.stall.looked -= int64(longestLook)
			s.watchPace()
		}
		step++
		r.page.p.SetStep(step, 1)
		s.watchPace()
		gap = gap * 3 / 2
	}
	if got := told(s); len(got) != 0 {
		t.Errorf("told %v", got)
	}
}

// TestDiskFaultIsNotedUntilTheNextStep: whose fault the end of a rank is.
func TestDiskFaultIsNotedUntilTheNextStep(t *testing.T) {
	s, r := watched(t)
	rc := &rankConn{s: s, a: s.att, r: r.rank}
	do := func(req *RankRequest, rep *RankReply) {
		rc.framed(req, rep)
		(<-s.calls)()
	}
	do(&RankRequest{Op: "abort", Step: 40, Name: "OSError: [Errno 28]", Store: true}, &RankReply{OK: true})
	if r.pace.disk != "step 40 was not saved: OSError: [Errno 28]" {
		t.Errorf("%q", r.pace.disk)
	}
	r.makes(31)
	if r.pace.disk != "" {
		t.Errorf("after the next step still %q", r.pace.disk)
	}
	do(&RankRequest{Op: "prepare", Step: 41}, &RankReply{Code: "space", Error: "no space left"})
	if r.pace.disk == "" {
		t.Error("the saver's word is not noted")
	}
	r.makes(32)
	do(&RankRequest{Op: "abort", Step: 42, Name: "ValueError"}, &RankReply{OK: true})
	do(&RankRequest{Op: "prepare", Step: 43}, &RankReply{Code: "usage", Error: "a link"})
	if r.pace.disk != "" {
		t.Errorf("the script's own fault is the disk's: %q", r.pace.disk)
	}
	// Saves are timed from the beginning to the verdict, or until they are staged.
	for _, op := range []string{"verdict", "abort", "stage"} {
		before := r.pace.saves
		r.pace.beginSave()
		r.pace.saveFrom -= int64(time.Second)
		do(&RankRequest{Op: op}, &RankReply{OK: true})
		if r.pace.saves != before+1 || r.pace.saving < time.Second*time.Duration(r.pace.saves) {
			t.Errorf("%s: %d saves took %s", op, r.pace.saves, r.pace.saving)
		}
	}
	r.pace.beginSave()
	do(&RankRequest{Op: "buffer"}, &RankReply{OK: true}) // goes on until it is staged
	if r.pace.saveFrom == 0 {
		t.Error("the wait for the buffer is no part of the save")
	}
	r.pace.saveFrom = 0
	if ns, n := s.att.saveTimes(); n != 3 || ns < int64(3*time.Second) {
		t.Errorf("%d saves took %d ns", n, ns)
	}
}

// TestStackOfAProcess: what is found out from outside, and that a process which does not
// wait for the signal is not ended by it.
func TestStackOfAProcess(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	pid := cmd.Process.Pid
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	file := filepath.Join(t.TempDir(), "stack")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		x := stackOf(pid, speaker{pid, fd}, file)
		if strings.Contains(x.Stack, "program sleep") && strings.HasPrefix(x.State, "S") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", x)
		}
	}
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for {
		x := stackOf(pid, speaker{pid, fd}, file)
		if strings.HasPrefix(x.State, "T") && x.Stack != "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", x)
		}
	}
	if x := stackOf(1<<30, speaker{}, file); x.Stack != "nothing is known of the process" {
		t.Errorf("%+v", x)
	}
}

// TestTidyStack: equal stacks are equal whatever their threads are called.
func TestTidyStack(t *testing.T) {
	a := tidyStack("Thread 0x00007f1 (most recent call first):\n  File \"t.py\", line 3 in run\n\nCurrent thread 0x00007f2 (most recent call first):\n  File \"a.py\", line 1 in f\n")
	b := tidyStack("Thread 0x00007aa (most recent call first):\n  File \"t.py\", line 3 in run\n\nCurrent thread 0x00007bb (most recent call first):\n  File \"a.py\", line 1 in f\n")
	if a != b || !strings.HasPrefix(a, "Current thread (most recent call first):\n  File \"a.py\"") {
		t.Errorf("%q and %q", a, b)
	}
	if long := tidyStack(strings.Repeat("x\n\n", 1<<20)); len(long) > maxStack {
		t.Errorf("%d bytes", len(long))
	}
}
