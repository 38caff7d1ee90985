package supervise

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// checkUntil checks a property again until it has met what it is about: a short run draws
// little, and chance may leave that out. The caller still fails when it was never met.
func checkUntil(t *testing.T, met func() bool, property func(*rapid.T)) {
	t.Helper()
	for range 20 {
		if rapid.Check(t, property); met() {
			return
		}
	}
}

// drawWorld makes a job of one to three nodes with some policy.
func drawWorld(t *rapid.T) *world {
	w := &world{now: epoch}
	w.g = Group{
		Job: "job-" + rapid.StringMatching(`[a-z]{4}`).Draw(t, "job"), State: api.Queued,
		Kind: rapid.SampledFrom([]api.JobKind{api.KindTraining, api.KindTask, api.KindService}).Draw(t, "kind"),
	}
	limit := func(label string) *int64 {
		n := rapid.Int64Range(-1, 3).Draw(t, label)
		if n < 0 {
			return nil
		}
		return &n
	}
	w.g.Policy = api.RestartPolicy{User: limit("user"), Infra: limit("infra"), MaxRestarts: limit("max restarts"), NoBackoff: rapid.Bool().Draw(t, "no backoff")}
	if rapid.IntRange(0, 3).Draw(t, "actor") == 0 {
		n := rapid.Int64Range(-1, 2).Draw(t, "actor restarts")
		w.g.ActorMaxRestarts = &n
	}
	var rank int64
	for i := range rapid.IntRange(1, 3).Draw(t, "nodes") {
		x := Alloc{ID: fmt.Sprintf("a%d", i), Node: fmt.Sprintf("n%d", i)}
		for range rapid.IntRange(1, 2).Draw(t, "ranks") {
			x.Ranks = append(x.Ranks, rank)
			rank++
		}
		w.allot = append(w.allot, x)
	}
	return w
}

// happen lets one thing happen: a fact of the cluster, or time.
func (w *world) happen(t *rapid.T) {
	a := w.g.Attempt
	what := rapid.IntRange(0, 13).Draw(t, "what")
	if a == nil && (what < 8 || what == 13) {
		what = 8 + what%3
	}
	var x *Alloc
	if what < 8 {
		x = &a.Allocs[rapid.IntRange(0, len(a.Allocs)-1).Draw(t, "alloc")]
	}
	switch what {
	case 0, 1:
		x.Started = true
	case 2, 3:
		args := []string{fmt.Sprint(rapid.SampledFrom(x.Ranks).Draw(t, "rank"))}
		args = append(args, rapid.SampledFrom([][]string{
			{},
			{"code=3"},
			{"signal=9"},
			{"signal=9", "by-shim"},
			{"signal=9", "oom"},
			{"signal=11"},
			{"code=1", "Connection reset by peer"},
			{"code=1", "E", "File \"x.py\", line 3"},
		}).Draw(t, "how")...)
		if err := w.exit(args); err != nil {
			t.Fatal(err)
		}
	case 4, 5:
		x.Ended = true
	case 6:
		x.Lost = true
		w.g.Lost = append(w.g.Lost, x.Node)
	case 7:
		if rapid.Bool().Draw(t, "damaged") {
			x.Damaged = "digest differs"
		} else {
			x.StartFailed = "no space left on device"
		}
	case 8, 9:
		w.g.Placed = true
	case 10:
		w.now = w.now.Add(time.Duration(rapid.Int64Range(0, int64(90*time.Second)).Draw(t, "time")))
	case 11:
		if rapid.IntRange(0, 9).Draw(t, "stopped") == 0 {
			w.g.StopAsked = true
		}
	case 12:
		if rapid.IntRange(0, 9).Draw(t, "owner") == 0 {
			w.g.OwnerGone = true
		}
	case 13: // all that run end well: by single exits alone this is too rare
		for i := range a.Allocs {
			for _, r := range a.Allocs[i].Ranks {
				if err := w.exit([]string{fmt.Sprint(r)}); err != nil {
					t.Fatal(err)
				}
			}
			a.Allocs[i].Ended = true
		}
	}
}

// P9, I15, I25, over random histories: attempts are numbered one by one and never
// overlap; no budget is exceeded and none is given up early; the ledger adds up; a
// terminal state is final; the answer is a function of the facts; every decision says
// why.
func TestPropLedger(t *testing.T) {
	var starts, failures, successes int
	checkUntil(t, func() bool { return starts > 0 && failures > 0 && successes > 0 }, func(t *rapid.T) {
		w := drawWorld(t)
		next := int64(0)
		var closed, charged int64
		for range rapid.IntRange(10, 120).Draw(t, "length") {
			w.happen(t)
			for range 4 {
				before := fmt.Sprintf("%#v %#v", w.g, w.g.Attempt)
				d := Decide(w.g, w.now)
				if !reflect.DeepEqual(d, Decide(w.g, w.now)) || fmt.Sprintf("%#v %#v", w.g, w.g.Attempt) != before {
					t.Fatal("Decide is no function of its input, or changed it")
				}
				check(t, w, d, next)
				if d.End != nil {
					closed++
					if d.End.Cause != api.CauseNone {
						charged++
					}
				}
				if d.Action == Start {
					next++
					starts++
				}
				wasTerminal := w.g.State.Terminal()
				w.apply(d)
				if wasTerminal && (d.Action != Wait || d.End != nil) {
					t.Fatalf("%s after the end: %+v", w.g.State, d)
				}
				if d.Action == Finish && d.State == api.Failed {
					failures++
				}
				if d.Action == Finish && d.State == api.Succeeded {
					successes++
				}
				if d.Action == Replace {
					w.g.Lost, w.g.Placed = nil, rapid.Bool().Draw(t, "replaced")
				}
				if l := w.g.Ledger; l.Failed != charged || l.User+l.Infra+l.Hang != charged {
					t.Fatalf("%d failures, ledger %+v", charged, l)
				}
				if d.Action == Wait && d.End == nil {
					break
				}
			}
		}
		if closed > next {
			t.Fatalf("%d attempts closed, %d started", closed, next)
		}
	})
	if starts == 0 || failures == 0 || successes == 0 {
		t.Errorf("%d starts, %d failures, %d successes: the property proved nothing", starts, failures, successes)
	}
}

// check holds one decision against the rules, written down a second time.
func check(t *rapid.T, w *world, d Decision, next int64) {
	g := &w.g
	if d.Reason.Text == "" || len(d.Reason.Text) > maxReason {
		t.Fatalf("P7: no reason, or one too long: %+v", d)
	}
	if d.Delay < 0 || d.Delay > backoffMost && d.Delay > lostTime+time.Second {
		t.Fatalf("delay %s", d.Delay)
	}
	open := g.Attempt != nil && !g.Attempt.Ended
	if d.End != nil && !open {
		t.Fatalf("closes an attempt that is not open: %+v", d)
	}
	switch d.Action {
	case Start:
		if open || d.Number != next || !g.Placed || len(g.Lost) > 0 || g.StopAsked || g.OwnerGone {
			t.Fatalf("start of %d, want %d, of %+v", d.Number, next, g)
		}
		if used, limit := spent(g); limit >= 0 && used > limit {
			t.Fatalf("attempt %d starts on %d restarts of %d", next, used, limit)
		}
	case Finish:
		if !d.State.Terminal() || open && d.End == nil {
			t.Fatalf("finishes as %s, %+v", d.State, d)
		}
		if (d.State == api.Failed) == (d.ExitCode == 0) {
			t.Fatalf("%s with exit code %d", d.State, d.ExitCode)
		}
		if d.State == api.Failed && d.Reason.Code != api.ReasonSameFailure {
			after := *g
			after.Ledger = d.End.Ledger
			if used, limit := spentBy(&after, d.End.Cause); limit < 0 || used != limit+1 {
				t.Fatalf("gave up after %d failures, %d restarts are allowed", used, limit)
			}
		}
	case Run:
		if !open || g.State == api.Running {
			t.Fatalf("runs what is not starting: %+v", g)
		}
	case Wait, Stop, Replace:
	}
}

// spent is how many failures count against the tightest limit, and that limit; -1
// none.
func spent(g *Group) (used, limit int64) {
	u, l := spentBy(g, api.CauseUser)
	if g.ActorMaxRestarts != nil || g.Policy.MaxRestarts != nil {
		return u, l
	}
	if i, m := spentBy(g, api.CauseInfra); i > m {
		return i, m
	}
	return u, l
}

func spentBy(g *Group, cause api.Cause) (used, limit int64) {
	or := func(p *int64, d int64) int64 {
		if p != nil {
			return *p
		}
		return d
	}
	switch {
	case g.ActorMaxRestarts != nil:
		return g.Ledger.Failed, *g.ActorMaxRestarts
	case g.Policy.MaxRestarts != nil:
		return g.Ledger.Failed, *g.Policy.MaxRestarts
	case cause == api.CauseInfra:
		return g.Ledger.Infra, or(g.Policy.Infra, 20)
	}
	return g.Ledger.User, or(g.Policy.User, 3)
}

// An attempt of which nothing is left is closed: no history leaves a group waiting for
// something that cannot happen any more.
func TestPropNothingWaitsForEver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for range rapid.IntRange(0, 60).Draw(t, "length") {
			w.happen(t)
			w.apply(Decide(w.g, w.now))
			if w.g.Attempt != nil && w.g.Attempt.Ended && len(w.g.Lost) > 0 {
				w.g.Lost = nil // re-placed
			}
		}
		a := w.g.Attempt
		if a == nil || a.Ended || w.g.State.Terminal() {
			return
		}
		for i := range a.Allocs {
			a.Allocs[i].Ended = true
		}
		if d := Decide(w.g, w.now); d.End == nil {
			t.Fatalf("nothing of the attempt is left, and it stays open: %+v", d)
		}
	})
}

// Every delay passes: asked again after it, the answer is another.
func TestPropDelaysEnd(t *testing.T) {
	delays := 0
	checkUntil(t, func() bool { return delays > 0 }, func(t *rapid.T) {
		w := drawWorld(t)
		for range rapid.IntRange(5, 60).Draw(t, "length") {
			w.happen(t)
			d := Decide(w.g, w.now)
			w.apply(d)
			if d.Delay > 0 {
				delays++
				again := Decide(w.g, w.now.Add(d.Delay))
				if again.Abort != "" && d.Abort == "" {
					again = Decide(w.g, w.now.Add(d.Delay+again.Delay)) // ends the others, then waits on
				}
				if again.Delay > 0 && again.End == nil {
					t.Fatalf("after %s of %q: %+v", d.Delay, d.Reason.Text, again)
				}
			}
			if d.Action == Replace {
				w.g.Lost = nil
			}
		}
	})
	if delays == 0 {
		t.Error("no delay was ever drawn; the property proved nothing")
	}
}
