package supervise

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

func exitOf(alloc string, e wire.RankExit) Exit {
	return Exit{Alloc: alloc, Node: "n-" + alloc, At: epoch, RankExit: e}
}

func TestRootCause(t *testing.T) {
	two := []Alloc{{ID: "a", Node: "n-a", Ranks: []int64{0}}, {ID: "b", Node: "n-b", Ranks: []int64{1}}}
	lostB := []Alloc{two[0], {ID: "b", Node: "n-b", Ranks: []int64{1}, Lost: true}}
	for _, tc := range []struct {
		name  string
		in    Attempt
		rank  int64
		code  int64
		cause api.Cause
		text  string // part of the message; "" for no failure
	}{
		{"nothing failed", Attempt{World: 2, Allocs: two}, 0, 0, "", ""},
		{"no attempt at all", Attempt{}, 0, 0, "", ""},
		{
			"an exit code",
			Attempt{World: 2, Allocs: two, Exits: []Exit{exitOf("a", wire.RankExit{Rank: 0, Code: 3})}},
			0, 3, api.CauseUser, "exit code 3",
		},
		{
			"what the shim killed is no cause",
			Attempt{World: 2, Allocs: two, Exits: []Exit{
				exitOf("a", wire.RankExit{Rank: 0, Code: -1, Signal: 9, ByShim: true}),
				exitOf("b", wire.RankExit{Rank: 1, Code: 4}),
			}},
			1, 4, api.CauseUser, "exit code 4",
		},
		{
			"a foreign SIGKILL before an earlier exception",
			Attempt{World: 2, Allocs: two, Exits: []Exit{
				exitOf("a", wire.RankExit{Rank: 0, Code: 1, Message: "KeyError: 'x'"}),
				exitOf("b", wire.RankExit{Rank: 1, Code: -1, Signal: 9}),
			}},
			1, 137, api.CauseInfra, "SIGKILL",
		},
		{
			"a connection error in the traceback alone is a consequence too",
			Attempt{World: 2, Allocs: two, Exits: []Exit{
				exitOf("a", wire.RankExit{Rank: 0, Code: 1, Traceback: "Traceback\nRuntimeError: Connection closed by peer\n"}),
				exitOf("b", wire.RankExit{Rank: 1, Code: 1, Message: "KeyError: 'x'"}),
			}},
			1, 1, api.CauseUser, "KeyError",
		},
		{
			"of two connection errors the first",
			Attempt{World: 2, Allocs: two, Exits: []Exit{
				exitOf("b", wire.RankExit{Rank: 1, Code: 1, Message: "NCCL error"}),
				exitOf("a", wire.RankExit{Rank: 0, Code: 1, Message: "Broken pipe"}),
			}},
			1, 1, api.CauseUser, "NCCL",
		},
		{
			"a lost node before everything",
			Attempt{World: 2, Allocs: lostB, Exits: []Exit{exitOf("a", wire.RankExit{Rank: 0, Code: -1, Signal: 9, OOM: true})}},
			-1, 75, api.CauseInfra, "node n-b was lost with rank 1",
		},
		{
			"a rank that is told twice counts by its first report",
			Attempt{World: 2, Allocs: two, Exits: []Exit{
				exitOf("a", wire.RankExit{Rank: 0}), exitOf("a", wire.RankExit{Rank: 0, Code: 9}),
				exitOf("b", wire.RankExit{Rank: 1, Code: 2}),
			}},
			1, 2, api.CauseUser, "exit code 2",
		},
		{
			"a report without sense is still a failure",
			Attempt{World: 2, Allocs: two, Exits: []Exit{exitOf("a", wire.RankExit{Rank: 0, Code: -7, Signal: 1 << 40})}},
			0, 1, api.CauseUser, "exit code 1",
		},
		{
			"a damaged step",
			Attempt{World: 2, Allocs: []Alloc{{ID: "a", Node: "n-a", Damaged: "model.bin is short"}}},
			-1, 75, api.CauseNone, "model.bin is short",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, cause := RootCause(tc.in)
			if tc.text == "" {
				if f != nil {
					t.Fatalf("found %+v", f)
				}
				return
			}
			if f == nil || f.Rank != tc.rank || f.ExitCode != tc.code || cause != tc.cause || !strings.Contains(f.Message, tc.text) {
				t.Errorf("found %+v, %q", f, cause)
			}
		})
	}
}

// What a person must mend is charged to the user with the shell's exit code, whatever
// the words; anything else is the machine's.
func TestStartFailureClass(t *testing.T) {
	for _, want := range []int64{127, 126, 0} {
		a := Attempt{World: 1, Allocs: []Alloc{{
			ID: "a", Node: "n", Ranks: []int64{0}, Ended: true,
			StartFailed: "cannot start: fork/exec /x/train.py: no such file or directory", StartCode: want,
		}}}
		f, cause := RootCause(a)
		wantCause, wantCode := api.CauseUser, want
		if want == 0 {
			wantCause, wantCode = api.CauseInfra, api.ExitRetry
		}
		if f == nil || cause != wantCause || f.ExitCode != wantCode {
			t.Errorf("code %d: %+v, %q", want, f, cause)
		}
	}
}

// Texts come from ranks; they are bounded, on one line, and whole runes.
func TestHostileTexts(t *testing.T) {
	long := strings.Repeat("\x1b[2Jé\n\xff", 10_000)
	a := Attempt{World: 1, Allocs: []Alloc{{ID: "a", Node: "n", Ranks: []int64{0}}}}
	a.Exits = []Exit{exitOf("a", wire.RankExit{Code: 1, Message: long, Traceback: long})}
	f, _ := RootCause(a)
	if len(f.Message) > maxMessage || strings.ContainsAny(f.Message, "\x1b\n") || !utf8.ValidString(f.Message) {
		t.Errorf("message %q", f.Message)
	}
	if len(f.Traceback) > maxTraceback {
		t.Errorf("traceback of %d bytes", len(f.Traceback))
	}
	zero := int64(0)
	d := Decide(Group{Job: "j", State: api.Running, Placed: true, Attempt: &a, Policy: api.RestartPolicy{MaxRestarts: &zero}}, epoch)
	if d.State != api.Failed || len(d.Reason.Text) > maxReason || !utf8.ValidString(d.Reason.Text) {
		t.Errorf("decision %+v", d)
	}
}

func TestDigest(t *testing.T) {
	same := [][2]string{
		{"rank 3: at 0x7ff1", "rank 12: at 0x12ab"},
		{"port 29501 of pid 4711", "port 31999 of pid 1234"},
		{`File "/tmp/torch_x1/t.py", line 3`, `File "/tmp/other/t.py", line 3`},
	}
	for _, p := range same {
		if digest(p[0]) != digest(p[1]) {
			t.Errorf("%q and %q are told apart", p[0], p[1])
		}
	}
	for _, p := range [][2]string{
		{"line 3", "line 4"},
		{"line 1003", "line 1004"},
		{"KeyError: 'a'", "KeyError: 'b'"},
		{`File "/home/a.py", line 3`, `File "/home/b.py", line 3`},
	} {
		if digest(p[0]) == digest(p[1]) {
			t.Errorf("%q and %q are taken for the same", p[0], p[1])
		}
	}
	if digest(" \n") != "" {
		t.Error("nothing has a digest")
	}
}

// The back-off: none before the third failure within ten minutes, doubling from half a
// second to a minute, and less by at most half. Never in `launch`.
func TestBackoff(t *testing.T) {
	g := Group{Job: "j"}
	want := []time.Duration{0, 0, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second, time.Minute, time.Minute, time.Minute}
	for i, full := range want {
		var l Ledger
		e := evidence{cause: api.CauseUser, failure: &api.Failure{}}
		g.Attempt = &Attempt{FirstStep: true}
		l, _ = charge(&g, &e, epoch.Add(time.Duration(i)*time.Second))
		g.Ledger = l
		now := l.Recent[len(l.Recent)-1]
		d := backoff(&g, now)
		if d < full/2 || d > full {
			t.Errorf("failure %d: %s, want %s to %s", i+1, d, full/2, full)
		}
		if full > 0 {
			if late := backoff(&g, now.Add(d)); late != 0 {
				t.Errorf("failure %d: %s left after all of it", i+1, late)
			}
			if back := backoff(&g, now.Add(-time.Hour)); back != d {
				t.Errorf("failure %d: a clock set back makes %s of %s", i+1, back, d)
			}
		}
		launch := g
		launch.Policy.NoBackoff = true
		if d := backoff(&launch, now); d != 0 {
			t.Errorf("failure %d: launch waits %s", i+1, d)
		}
		if len(l.Recent) > maxRecent {
			t.Errorf("%d failures are remembered", len(l.Recent))
		}
	}
}

// A storm: jobs that fail together do not come back together.
func TestBackoffJitterSpreadsJobs(t *testing.T) {
	seen := map[time.Duration]int{}
	for i := range 200 {
		seen[jitter(time.Minute, strings.Repeat("x", i), 3).Truncate(time.Second)]++
	}
	if len(seen) < 20 {
		t.Errorf("200 jobs come back in %d different seconds of 30", len(seen))
	}
}

// P9: what launch allows is spent exactly, also by the same failure again and again.
func TestGroupBudgetIsSpentExactly(t *testing.T) {
	g := Group{Job: "j", State: api.Running, Placed: true, Policy: api.RestartPolicy{MaxRestarts: new(int64(2)), NoBackoff: true}}
	for n := range int64(3) {
		a := Attempt{Number: n, Created: epoch, World: 1, Allocs: []Alloc{{ID: "a", Node: "n", Ranks: []int64{0}, Ended: true}}}
		a.Exits = []Exit{exitOf("a", wire.RankExit{Code: 1, Message: "ValueError: bad shape", Traceback: "Traceback: bad shape"})}
		g.Attempt = &a
		d := Decide(g, epoch)
		if ends := d.Action == Finish; ends != (n == 2) {
			t.Fatalf("after failure %d: %+v", n+1, d)
		}
		if d.End != nil {
			g.Ledger = d.End.Ledger
		}
		if n == 2 && (d.State != api.Failed || d.Reason.Code != api.ReasonUserError && d.Reason.Code != api.ReasonBudget) {
			t.Fatalf("ends as %s, %+v", d.State, d.Reason)
		}
	}
}

// A peer's connection error is not charged while a node of the group is silent: what is
// known of the node comes first, however long a new leader takes to say it.
func TestSilentNodeComesFirst(t *testing.T) {
	a := Attempt{
		World: 2, Allocs: []Alloc{{ID: "a", Node: "n-a", Ranks: []int64{0}, Started: true}, {ID: "b", Node: "n-b", Ranks: []int64{1}, Started: true}},
		Exits: []Exit{exitOf("a", wire.RankExit{Rank: 0, Code: 1, Message: "Connection reset by peer"})},
	}
	zero := int64(0)
	g := Group{Job: "j", State: api.Running, Placed: true, Attempt: &a, Policy: api.RestartPolicy{MaxRestarts: &zero}, Silent: true}
	late := epoch.Add(time.Minute)
	if d := Decide(g, late); d.Action != Wait || d.End != nil || d.Delay <= 0 {
		t.Errorf("while the node is silent: %+v", d)
	}
	g.Silent = false
	if d := Decide(g, late); d.Action != Finish || d.State != api.Failed {
		t.Errorf("when it is back: %+v", d)
	}
}
