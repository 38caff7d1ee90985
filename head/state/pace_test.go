package state

import (
	"fmt"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/elastic/plan"
	"github.com/troupe-runtime/troupe/elastic/supervise"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// running is a machine with job a, of two ranks on n1, started.
func running(t *testing.T) (m *machine, gen uint64, alloc string) {
	m = newMachine(t)
	m.node("n1", 0)
	m.node("n2", 0)
	m.submit("a", 2)
	m.place("pg-a", "n1", 2)
	gen = m.start("a", "n1", 2, -1)
	return m, gen, m.s.View().AllocsOf("a")[0].ID
}

// TestPortTakesTheNumberAgain: an attempt that never ran, since its port was taken, is
// followed by one of the same number with a higher generation (P3, P9).
func TestPortTakesTheNumberAgain(t *testing.T) {
	m, gen, alloc := running(t)
	m.facts("n1", wire.AllocEvent{Alloc: alloc, Seq: 1, Kind: wire.EventPortUsed, Generation: gen})
	m.ok(KindSupervise, Supervise{Job: "a", Attempt: 0, Generation: gen, End: &AttemptEnd{Again: true}})
	next := m.start("a", "n1", 2, 0)
	j := m.s.View().Job("a")
	if next <= gen || j.Last().Number != 0 || j.Last().Ended != 0 || len(j.Attempts) != 1 {
		t.Fatalf("generation %d after %d, attempt %d, %d kept", next, gen, j.Last().Number, len(j.Attempts))
	}
	// A decision on the first of them is not one on the second.
	m.refused("stale", KindSupervise, Supervise{Job: "a", Attempt: 0, Generation: gen, End: &AttemptEnd{}})
	m.ok(KindSupervise, Supervise{Job: "a", Attempt: 0, Generation: next, End: &AttemptEnd{Cause: api.CauseUser}})
	m.start("a", "n1", 2, 0)
	if n := m.s.View().Job("a").Last().Number; n != 1 {
		t.Errorf("attempt %d", n)
	}
}

// TestExclusions: kept by node, bounded, and over when their time is.
func TestExclusions(t *testing.T) {
	m, _, _ := running(t)
	for i := range 100 {
		m.ok(KindSupervise, Supervise{Job: "a", Attempt: int64(i), End: &AttemptEnd{Cause: api.CauseInfra, Exclude: &Exclusion{Node: fmt.Sprint("n", i%80), Why: "it failed", Until: 1e18}}})
		m.start("a", "n1", 2, int64(i))
	}
	j := m.s.View().Job("a")
	if len(j.Excluded) != maxExcluded || len(j.Barred(0)) != maxExcluded || len(j.Barred(1e18)) != 0 {
		t.Errorf("%d exclusions", len(j.Excluded))
	}
	m.ok(KindSupervise, Supervise{Job: "a", Attempt: 100, End: &AttemptEnd{Exclude: &Exclusion{Node: "n1", Until: 5}}})
	if j = m.s.View().Job("a"); j.Excluded[len(j.Excluded)-1].Node != "n1" || j.Excluded[len(j.Excluded)-1].At == 0 {
		t.Errorf("%+v", j.Excluded[len(j.Excluded)-1])
	}
}

// TestPace: what the log knows of an attempt's steps and time.
func TestPace(t *testing.T) {
	m, gen, alloc := running(t)
	m.ok(KindFirstStep, FirstStep{Job: "a", Generation: gen, Step: 7})
	m.ok(KindCommitCheckpoint, CommitCheckpoint{Run: "a", Step: 5, Generation: gen, World: 2, Dir: "/5", Digest: "d"})
	m.facts("n1", wire.AllocEvent{Alloc: alloc, Seq: 1, Kind: wire.EventStalled, Generation: gen, Rank: 1, Silent: 3e9, Message: "rank 1 stands"})
	since := int64(m.index)*1e9 - 3e9
	p := m.s.View().Job("a").Last().Pace
	if p.First == 0 || p.From != 0 || p.Newest != 7 || *p.Kept != 5 || p.Since != since {
		t.Fatalf("%+v", p)
	}
	m.ok(KindStall, StallFound{Job: "a", Generation: gen, Text: "rank 1 on n1 stands in recv", Slowest: []int64{1}, Stacks: []api.StackGroup{{Ranks: []int64{1}, Stack: "recv"}}})
	m.refused("stale", KindStall, StallFound{Job: "a", Generation: gen})
	if s := m.s.View().Job("a").Last().Stall; s == nil || len(s.Stacks) != 1 {
		t.Fatalf("%+v", s)
	}
	m.facts("n1", wire.AllocEvent{Alloc: alloc, Seq: 2, Kind: wire.EventResumed, Generation: gen})
	last := m.s.View().Job("a").Last()
	if last.Stall != nil || last.Pace.Since != 0 || last.Pace.Stalled != int64(m.index)*1e9-since {
		t.Fatalf("%+v", last.Pace)
	}
	// Ended in the middle of another one.
	m.facts("n1", wire.AllocEvent{Alloc: alloc, Seq: 3, Kind: wire.EventStalled, Generation: gen, Silent: 1e9})
	m.facts("n1", wire.AllocEvent{Alloc: alloc, Seq: 4, Kind: wire.EventOverdue, Generation: gen, Rank: 1, Message: "for too long"})
	if a := m.s.View().Alloc(alloc); !a.Overdue || a.SlowRank != 1 || a.StalledAt == 0 {
		t.Fatalf("%+v", a)
	}
	before := m.s.View().Job("a").Last().Pace
	m.ok(KindSupervise, Supervise{Job: "a", Attempt: 0, End: &AttemptEnd{Cause: api.CauseHang, Newest: 40, Saving: 2e9, Saves: 1}})
	p = m.s.View().Job("a").Last().Pace
	if p.Newest != 40 || p.Saving != 2e9 || p.Since != 0 || p.Stalled != before.Stalled+int64(m.index)*1e9-before.Since {
		t.Errorf("%+v", p)
	}
	// The next one begins at the committed step.
	m.ok(KindSupervise, Supervise{Job: "a", Attempt: 0, Start: &AttemptStart{Ranks: []RankStart{{Node: "n1"}, {Rank: 1, LocalRank: 1, Bundle: 1, Node: "n1"}}, Restore: &Restore{Step: 5, Dir: "/5"}}})
	a := m.s.View().Alloc(alloc)
	if from := m.s.View().Job("a").Last().Pace.From; from != 5 || a.Overdue || a.StalledAt != 0 {
		t.Errorf("from %d, %+v", from, a)
	}
}

// TestPastIsKept: attempts that are forgotten leave where their time went.
func TestPastIsKept(t *testing.T) {
	m, _, _ := running(t)
	for i := range int64(MaxAttempts + 20) {
		m.ok(KindSupervise, Supervise{Job: "a", Attempt: i, State: api.Running})
		m.ok(KindSupervise, Supervise{Job: "a", Attempt: i, End: &AttemptEnd{Cause: api.CauseInfra, Ledger: supervise.Ledger{Infra: 1}}})
		m.start("a", "n1", 2, i)
	}
	v := m.s.View()
	j := v.Job("a")
	now := instant(int64(m.index)*1e9 + 5e9)
	all, each := plan.Account(v.PlanJob(j), now)
	if len(j.Attempts) != MaxAttempts || len(each) != MaxAttempts || all.Sum() != now.Sub(instant(j.Created)) {
		t.Errorf("%d attempts, %s of %s", len(j.Attempts), all.Sum(), now.Sub(instant(j.Created)))
	}
	if j.Past.Sum() == 0 || j.Past.Starting == 0 || j.Past.Restarting < 15*time.Second {
		t.Errorf("%+v", j.Past)
	}
}

// TestFailedExitsAreKept: a former attempt keeps who failed beside its root cause.
func TestFailedExitsAreKept(t *testing.T) {
	m, gen, alloc := running(t)
	m.facts("n1",
		wire.AllocEvent{Alloc: alloc, Seq: 1, Kind: wire.EventRankExited, Generation: gen, Exit: &wire.RankExit{Rank: 1, Code: 1, Message: "ValueError", Traceback: "Traceback"}},
		wire.AllocEvent{Alloc: alloc, Seq: 2, Kind: wire.EventRankExited, Generation: gen, Exit: &wire.RankExit{Rank: 0, Code: -1, Signal: 9, ByShim: true}},
		wire.AllocEvent{Alloc: alloc, Seq: 3, Kind: wire.EventEnded, Generation: gen})
	m.ok(KindSupervise, Supervise{Job: "a", Attempt: 0, End: &AttemptEnd{Cause: api.CauseUser}})
	m.start("a", "n1", 2, 0)
	got := m.s.View().Job("a").Attempts[0].Exits
	if len(got) != 1 || got[0].Rank != 1 || got[0].Message != "ValueError" || got[0].Traceback != "" {
		t.Errorf("%+v", got)
	}
}
