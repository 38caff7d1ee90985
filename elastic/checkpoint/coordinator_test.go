package checkpoint

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

var t0 = time.Unix(1_700_000_000, 0)

func attempt(gen uint64, world int64) Attempt {
	return Attempt{Run: "digits", Generation: gen, World: world, Store: testStore, Life: "0a1b2c3d"}
}

// fixture is a tracker with one attempt, and short words to feed it.
type fixture struct {
	t *testing.T
	*Tracker
	pushed []wire.Verdict
	ready  []CommitReady
}

func newFixture(t *testing.T, gen uint64, world int64, newest *Record) *fixture {
	f := &fixture{t: t, Tracker: NewTracker(time.Minute)}
	f.take(f.Begin(t0, attempt(gen, world), newest))
	return f
}

func (f *fixture) take(e Effects) {
	f.pushed = append(f.pushed, e.Verdicts...)
	f.ready = append(f.ready, e.Ready...)
}

func (f *fixture) report(p wire.Prepared) wire.Verdict {
	v, e := f.Report(t0, p)
	f.take(e)
	return v
}

func (f *fixture) want(v wire.Verdict, state, reason string) {
	f.t.Helper()
	if v.State != state || !strings.Contains(v.Reason, reason) {
		f.t.Errorf("verdict %s %q, want %s with %q", v.State, v.Reason, state, reason)
	}
}

func record(step int64, gen uint64) Record {
	return Record{StepName: StepName{Step: step, Generation: gen, Life: "0a1b2c3d"}}
}

func TestTrackerCommitsWhenAllRanksPrepared(t *testing.T) {
	f := newFixture(t, 3, 3, nil)
	for r := range int64(2) {
		f.want(f.report(prepared("digits", 10, 3, 3, r)), VerdictPending, "")
		f.want(f.report(prepared("digits", 10, 3, 3, r)), VerdictPending, "") // repeated
	}
	if len(f.ready) != 0 {
		t.Fatalf("handed out with two of three ranks: %+v", f.ready)
	}
	f.want(f.report(prepared("digits", 10, 3, 3, 2)), VerdictPending, "")
	if len(f.ready) != 1 {
		t.Fatalf("not handed out: %+v", f.ready)
	}
	data, digest := mustBuild(t, preparedAll("digits", 10, 3, 3), nil)
	if got := f.ready[0]; got.Step != 10 || got.Digest != digest || string(got.Manifest) != string(data) || got.Files != 3 {
		t.Errorf("handed out %+v", got)
	}
	f.want(f.report(prepared("digits", 10, 3, 3, 1)), VerdictPending, "") // repeated while it commits
	if len(f.ready) != 1 {
		t.Errorf("handed out twice")
	}
	f.take(f.Committed(t0, "digits", record(10, 3)))
	if len(f.pushed) != 3 {
		t.Fatalf("pushed %+v, want one verdict for each allocation", f.pushed)
	}
	for _, v := range f.pushed {
		f.want(v, VerdictCommitted, "")
	}
	f.want(f.report(prepared("digits", 10, 3, 3, 1)), VerdictCommitted, "") // repeated afterwards
	other := prepared("digits", 10, 3, 3, 1)
	other.Files[0].Digest = DigestBytes([]byte("other"))
	f.want(f.report(other), VerdictDropped, "another content")
	f.want(f.report(prepared("digits", 9, 3, 3, 1)), VerdictDropped, "already committed")
}

func TestTrackerDrops(t *testing.T) {
	ten := record(10, 2)
	spoil := func(change func(*wire.Prepared)) wire.Prepared {
		p := prepared("digits", 20, 3, 3, 1)
		change(&p)
		return p
	}
	for _, c := range []struct {
		name   string
		report wire.Prepared
		state  string
		reason string
	}{
		{"older generation", prepared("digits", 20, 2, 3, 0), VerdictDropped, "generation 3 took over"},
		{"newer generation", prepared("digits", 20, 4, 3, 0), VerdictPending, "generation"},
		{"unknown run", prepared("other", 20, 3, 3, 0), VerdictPending, "run"},
		{"newest again", prepared("digits", 10, 3, 3, 0), VerdictDropped, "already committed"},
		{"below the newest", prepared("digits", 5, 3, 3, 0), VerdictDropped, "already committed"},
		{"repeat after a change of leader", prepared("digits", 10, 2, 3, 0), VerdictCommitted, ""},
		{"other world", prepared("digits", 20, 3, 4, 0), VerdictDropped, "the attempt has 3 ranks"},
		{"rank out of range", spoil(func(p *wire.Prepared) { p.Rank = 3 }), VerdictDropped, "the attempt has 3 ranks"},
		{"negative rank", spoil(func(p *wire.Prepared) { p.Rank = -1 }), VerdictDropped, "the attempt has 3 ranks"},
		{"other store", spoil(func(p *wire.Prepared) { p.Dir = "/tmp" + p.Dir }), VerdictDropped, "instead of"},
		{"other life", spoil(func(p *wire.Prepared) { p.Dir = strings.Replace(p.Dir, "0a1b2c3d", "ffffffff", 1) }), VerdictDropped, "instead of"},
		{"given up", spoil(func(p *wire.Prepared) { p.Abandoned, p.Files = "disk full", nil }), VerdictDropped, "rank 1 gave it up: disk full"},
		{"foreign file", spoil(func(p *wire.Prepared) { p.Files[0].Path = "../../etc/passwd" }), VerdictDropped, "not clean"},
		{"another rank's file", spoil(func(p *wire.Prepared) { p.Files[0].Path = "rank-0/model.pt" }), VerdictDropped, "outside"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, 3, 3, &ten)
			f.want(f.report(c.report), c.state, c.reason)
			if c.state == VerdictDropped {
				f.want(f.report(c.report), c.state, c.reason) // and stays so
			}
		})
	}
}

func TestTrackerConflictDropsTheStep(t *testing.T) {
	f := newFixture(t, 3, 2, nil)
	p := prepared("digits", 10, 3, 2, 0)
	f.report(p)
	p.Files = []wire.PreparedFile{{Path: "rank-0/model.pt", Length: 1, Digest: DigestBytes([]byte("x")), Part: "model"}}
	f.want(f.report(p), VerdictDropped, "two different contents")
	f.want(f.report(prepared("digits", 10, 3, 2, 1)), VerdictDropped, "two different contents")
	f.report(prepared("digits", 20, 3, 2, 0))
	f.report(prepared("digits", 20, 3, 2, 1))
	if len(f.ready) != 1 || f.ready[0].Step != 20 {
		t.Errorf("the next step must not suffer: %+v", f.ready)
	}
}

func TestTrackerRefusedByBuild(t *testing.T) {
	f := newFixture(t, 3, 2, nil)
	for r := range int64(2) {
		p := prepared("digits", 10, 3, 2, r)
		p.Files[0].Path = "shared/model.pt"
		v := f.report(p)
		if r == 1 {
			f.want(v, VerdictDropped, "named twice, by ranks 0 and 1")
		}
	}
	if len(f.ready) != 0 || len(f.pushed) != 2 {
		t.Errorf("ready %+v, pushed %+v", f.ready, f.pushed)
	}
}

func TestTrackerNewGeneration(t *testing.T) {
	f := newFixture(t, 3, 2, nil)
	for r := range int64(2) {
		f.report(prepared("digits", 10, 3, 2, r)) // handed out
		f.report(prepared("digits", 20, 3, 2, r)) // complete, waits its turn
	}
	f.report(prepared("digits", 30, 3, 2, 0)) // half
	f.take(f.Begin(t0, attempt(4, 2), nil))
	dropped := map[int64]bool{}
	for _, v := range f.pushed {
		f.want(v, VerdictDropped, "generation 4 took over")
		dropped[v.Step] = true
	}
	if dropped[10] || !dropped[20] || !dropped[30] {
		t.Errorf("dropped %v; only the step that was handed out may still commit", dropped)
	}
	if got, ok := f.Committing("digits"); !ok || got.Step != 10 || got.Generation != 3 {
		t.Errorf("Committing = %+v, %v", got, ok)
	}
	// The new generation may not pass the open outcome of the same step.
	f.want(f.report(prepared("digits", 10, 4, 2, 0)), VerdictPending, "")
	f.pushed = nil
	f.take(f.Refused(t0, "digits", 3, 10, "the log refused it"))
	f.want(f.pushed[0], VerdictDropped, "the log refused it")
	for r := range int64(2) {
		f.report(prepared("digits", 10, 4, 2, r))
	}
	if last := f.ready[len(f.ready)-1]; last.Generation != 4 || last.Step != 10 {
		t.Errorf("generation 4 cannot save step 10: %+v", f.ready)
	}
	f.take(f.Begin(t0, attempt(3, 2), nil)) // an old word changes nothing (P3)
	f.want(f.report(prepared("digits", 40, 3, 2, 0)), VerdictDropped, "generation 4 took over")
}

func TestTrackerDeadlineNamesRanks(t *testing.T) {
	f := newFixture(t, 3, 12, nil)
	f.report(prepared("digits", 10, 3, 12, 4))
	at, ok := f.NextDeadline()
	if !ok || !at.Equal(t0.Add(time.Minute)) {
		t.Fatalf("NextDeadline = %v, %v", at, ok)
	}
	if e := f.Expire(at.Add(-1)); len(e.Verdicts) != 0 {
		t.Fatalf("too early: %+v", e)
	}
	f.take(f.Expire(at))
	f.want(f.pushed[0], VerdictDropped, "ranks 0, 1, 2, 3, 5, 6, 7, 8 and 3 more did not prepare it within 1m0s")
	f.want(f.report(prepared("digits", 10, 3, 12, 4)), VerdictDropped, "did not prepare")
	if _, ok := f.NextDeadline(); ok {
		t.Error("a deadline is left")
	}
}

// The deadline of the job's own policy goes before the tracker's.
func TestTrackerDeadlineOfTheAttempt(t *testing.T) {
	f := newFixture(t, 3, 2, nil)
	a := attempt(3, 2)
	a.Deadline = 5 * time.Second
	f.take(f.Begin(t0, a, nil))
	f.report(prepared("digits", 10, 3, 2, 0))
	if at, ok := f.NextDeadline(); !ok || !at.Equal(t0.Add(5*time.Second)) {
		t.Fatalf("NextDeadline = %v, %v", at, ok)
	}
	f.take(f.Expire(t0.Add(5 * time.Second)))
	f.want(f.pushed[0], VerdictDropped, "rank 1 did not prepare it within 5s")

	// Each drop is told once, that of a step which nobody else has reported too.
	p := prepared("digits", 20, 3, 2, 1)
	p.Abandoned = "disk full"
	f.report(p)
	f.report(p)
	want := []DroppedStep{
		{"digits", 3, 10, "rank 1 did not prepare it within 5s"}, {"digits", 3, 20, "rank 1 gave it up: disk full"},
	}
	if got := f.Dropped(); !slices.Equal(got, want) {
		t.Errorf("dropped: %+v, want %+v", got, want)
	}
	if got := f.Dropped(); len(got) != 0 {
		t.Errorf("told again: %+v", got)
	}
}

// What every rank has staged is about to be complete, although ranks end; a rank that
// only staged is part of nothing yet (P4).
func TestTrackerStaged(t *testing.T) {
	f := newFixture(t, 3, 2, nil)
	stage := func(step, rank int64) wire.Prepared {
		p := prepared("digits", step, 3, 2, rank)
		p.Staged, p.Dir, p.Files = true, "", nil
		return p
	}
	if f.Finishing("digits") || f.Finishing("nobody") {
		t.Error("finishing before anything was saved")
	}
	f.want(f.report(stage(10, 0)), VerdictPending, "")
	f.want(f.report(stage(10, 0)), VerdictPending, "")
	if f.Finishing("digits") {
		t.Error("one of two ranks is enough")
	}
	f.want(f.report(stage(10, 1)), VerdictPending, "")
	if !f.Finishing("digits") || len(f.ready) != 0 {
		t.Fatalf("finishing %v, ready %+v", f.Finishing("digits"), f.ready)
	}
	f.take(f.RankOver("digits", 3, 0)) // it has ended well, and its files are still being written
	f.want(f.report(stage(20, 1)), VerdictDropped, "rank 0 ended without it")
	if !f.Finishing("digits") {
		t.Error("a rank that ended takes along what it has staged")
	}
	f.want(f.report(prepared("digits", 10, 3, 2, 1)), VerdictPending, "")
	f.want(f.report(stage(10, 1)), VerdictPending, "") // late: nothing is taken back
	if len(f.ready) != 0 {
		t.Fatalf("rank 0 has only staged: %+v", f.ready)
	}
	f.report(prepared("digits", 10, 3, 2, 0))
	if len(f.ready) != 1 || f.ready[0].Step != 10 || f.ready[0].Files == 0 || !f.Finishing("digits") {
		t.Fatalf("ready: %+v", f.ready)
	}

	// A rank that does not get its files written drops the step as ever, and a new
	// generation does not wait for the old one's.
	f = newFixture(t, 3, 2, nil)
	f.report(stage(10, 0))
	f.report(stage(10, 1))
	p := stage(10, 1)
	p.Staged, p.Abandoned = false, "disk full"
	f.want(f.report(p), VerdictDropped, "rank 1 gave it up: disk full")
	f.report(stage(20, 0))
	f.report(stage(20, 1))
	f.take(f.Begin(t0, attempt(4, 2), nil))
	if f.Finishing("digits") {
		t.Error("finishing a step of an older generation")
	}
	bad := stage(30, 5)
	bad.Generation = 4
	f.want(f.report(bad), VerdictDropped, "rank 5 of 2")
}

// A step that a rank has passed by, or can never prepare because it has ended, is
// dropped at once: the ranks that prepared it wait for the verdict.
func TestTrackerDropsWhatARankPassedBy(t *testing.T) {
	f := newFixture(t, 3, 2, nil)
	f.want(f.report(prepared("digits", 10, 3, 2, 0)), VerdictPending, "")
	f.want(f.report(prepared("digits", 20, 3, 2, 1)), VerdictPending, "")
	f.want(f.report(prepared("digits", 10, 3, 2, 0)), VerdictDropped, "rank 1 went on to step 20 without it")
	if len(f.pushed) != 1 || f.pushed[0].Step != 10 {
		t.Errorf("pushed %+v", f.pushed)
	}
	f.report(prepared("digits", 20, 3, 2, 0))
	if len(f.ready) != 1 || f.ready[0].Step != 20 {
		t.Errorf("ready %+v", f.ready)
	}
	// The other way round, as a new leader may hear it.
	f = newFixture(t, 3, 2, nil)
	f.report(prepared("digits", 20, 3, 2, 1))
	f.want(f.report(prepared("digits", 10, 3, 2, 0)), VerdictDropped, "rank 1 went on")

	f = newFixture(t, 3, 2, nil)
	f.report(prepared("digits", 10, 3, 2, 0))
	f.take(f.RankOver("digits", 2, 1)) // of an older generation: says nothing (P3)
	f.want(f.report(prepared("digits", 10, 3, 2, 0)), VerdictPending, "")
	f.take(f.RankOver("digits", 3, 1))
	f.want(f.report(prepared("digits", 10, 3, 2, 0)), VerdictDropped, "rank 1 ended without it")
	f.want(f.report(prepared("digits", 20, 3, 2, 0)), VerdictDropped, "rank 1 ended without it")
	// What it prepared before its end counts, and the next generation starts anew.
	f = newFixture(t, 3, 2, nil)
	f.report(prepared("digits", 10, 3, 2, 1))
	f.take(f.RankOver("digits", 3, 1))
	f.report(prepared("digits", 10, 3, 2, 0))
	if len(f.ready) != 1 {
		t.Errorf("ready %+v", f.ready)
	}
	f.take(f.Begin(t0, attempt(4, 2), nil))
	f.want(f.report(prepared("digits", 5, 4, 2, 0)), VerdictPending, "")
}

func TestTrackerIsBounded(t *testing.T) {
	f := newFixture(t, 3, 2, nil)
	const steps = 3 * (MaxOpen + keptVerdicts)
	for s := range int64(steps) {
		f.report(prepared("digits", s, 3, 2, 0))
	}
	r := f.runs["digits"]
	if len(r.open) > MaxOpen || len(r.dropped) > keptVerdicts {
		t.Errorf("%d open, %d remembered", len(r.open), len(r.dropped))
	}
	f.want(f.report(prepared("digits", 0, 3, 2, 1)), VerdictDropped, "before") // below the floor
	f.want(f.report(prepared("digits", steps-MaxOpen-1, 3, 2, 1)), VerdictDropped, "rank 1 did not prepare it")
	f.Forget("digits")
	f.want(f.report(prepared("digits", steps, 3, 2, 0)), VerdictPending, "run")
}

func TestTrackerRolledBack(t *testing.T) {
	twenty, ten := record(20, 3), record(10, 3)
	f := newFixture(t, 3, 1, &twenty)
	f.RolledBack("digits", &ten)
	// The generation that saved it cannot save it again: its directory is taken.
	f.want(f.report(prepared("digits", 15, 3, 1, 0)), VerdictDropped, "")
	f.take(f.Begin(t0, attempt(4, 1), &ten))
	f.report(prepared("digits", 15, 4, 1, 0))
	if len(f.ready) != 1 || f.ready[0].Step != 15 {
		t.Errorf("a freed step must be free for generation 4: %+v", f.ready)
	}
	// The word of the roll-back may also come with the new generation alone.
	f = newFixture(t, 3, 1, &twenty)
	f.take(f.Begin(t0, attempt(4, 1), &ten))
	f.report(prepared("digits", 20, 4, 1, 0))
	if len(f.ready) != 1 || f.ready[0].Step != 20 {
		t.Errorf("a freed step must be free for generation 4: %+v", f.ready)
	}
}

func TestTrackerHandsOutOneAtATime(t *testing.T) {
	f := newFixture(t, 3, 1, nil)
	for _, s := range []int64{30, 10, 20, 40} {
		f.report(prepared("digits", s, 3, 1, 0))
	}
	steps := func() (out []int64) {
		for _, c := range f.ready {
			out = append(out, c.Step)
		}
		return out
	}
	if got := steps(); !slices.Equal(got, []int64{30}) {
		t.Fatalf("handed out %v", got)
	}
	f.take(f.Refused(t0, "digits", 3, 30, "its manifest could not be written"))
	if got := steps(); !slices.Equal(got, []int64{30, 10}) {
		t.Fatalf("after a refusal: %v, want the lowest that waits", got)
	}
	f.take(f.Committed(t0, "digits", record(10, 3)))
	f.take(f.Committed(t0, "digits", record(20, 3)))
	if got := steps(); !slices.Equal(got, []int64{30, 10, 20, 40}) {
		t.Fatalf("handed out %v", got)
	}
	f.take(f.Refused(t0, "digits", 3, 10, "late")) // of what is settled: nothing happens
	if c, ok := f.Committing("digits"); !ok || c.Step != 40 {
		t.Errorf("Committing = %+v, %v", c, ok)
	}
}

// modelLog stands for the replicated state: it takes a commit only from the current
// leader, of the current generation, and keeps what it took.
type modelLog struct {
	gen     uint64
	commits []Record
}

func (l *modelLog) newest() *Record {
	if n, ok := Newest(l.commits, NoCeiling); ok {
		return &n
	}
	return nil
}

// P4: whatever the order of reports, repeats, conflicts, deadlines, generations,
// roll-backs and leaders, a tracker hands out a step only when every rank of one
// generation prepared it, and never one that the log holds already. The log here
// refuses nothing but an older generation, so a second commit would be seen.
func TestP4CommitsOnce(t *testing.T) {
	var commits, raises, leaders, rollbacks int
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.Int64Range(1, 3).Draw(t, "world")
		log := &modelLog{gen: 1}
		now := t0
		tracker := NewTracker(time.Minute)
		sent := map[string]map[int64]string{} // gen/step → rank → digest, everything ever reported
		var out []CommitReady
		take := func(e Effects) {
			for _, c := range e.Ready {
				key := fmt.Sprintf("%d/%d", c.Generation, c.Step)
				m, err := Parse(c.Manifest)
				if err != nil || DigestBytes(c.Manifest) != c.Digest {
					t.Fatalf("handed out a bad manifest: %v", err)
				}
				ranks := map[int64]bool{}
				for _, f := range m.Files {
					if !strings.Contains(sent[key][f.Rank], f.Digest) {
						t.Fatalf("%s: rank %d never reported %s", key, f.Rank, f.Digest)
					}
					ranks[f.Rank] = true
				}
				if int64(len(ranks)) != world {
					t.Fatalf("%s handed out with ranks %v of %d", key, slices.Sorted(maps.Keys(ranks)), world)
				}
				if n := log.newest(); n != nil && c.Step <= n.Step {
					t.Fatalf("step %d handed out, the log holds step %d", c.Step, n.Step)
				}
			}
			out = append(out, e.Ready...)
		}
		begin := func() { take(tracker.Begin(now, attempt(log.gen, world), log.newest())) }
		begin()
		t.Repeat(map[string]func(*rapid.T){
			"report": func(t *rapid.T) {
				gen := log.gen
				if gen > 1 && rapid.IntRange(0, 4).Draw(t, "stale") == 0 {
					gen--
				}
				step := rapid.Int64Range(1, 4).Draw(t, "step")
				p := prepared("digits", step, gen, world, rapid.Int64Range(0, world-1).Draw(t, "rank"))
				if rapid.IntRange(0, 9).Draw(t, "conflict") == 0 {
					p.Files[0].Digest = DigestBytes([]byte("altered"))
				}
				key := fmt.Sprintf("%d/%d", gen, step)
				if sent[key] == nil {
					sent[key] = map[int64]string{}
				}
				sent[key][p.Rank] += " " + p.Files[0].Digest
				v, e := tracker.Report(now, p)
				take(e)
				if v.State == VerdictCommitted && !slices.ContainsFunc(log.commits, func(c Record) bool { return c.Step == step && c.Generation == gen }) {
					t.Fatalf("told that %s committed, the log does not hold it", key)
				}
			},
			"all ranks": func(t *rapid.T) {
				step := rapid.Int64Range(1, 4).Draw(t, "step")
				key := fmt.Sprintf("%d/%d", log.gen, step)
				if sent[key] == nil {
					sent[key] = map[int64]string{}
				}
				for r := range world {
					p := prepared("digits", step, log.gen, world, r)
					sent[key][r] += " " + p.Files[0].Digest
					_, e := tracker.Report(now, p)
					take(e)
				}
			},
			"outcome": func(t *rapid.T) {
				c, ok := tracker.Committing("digits")
				if !ok {
					t.Skip("nothing is out")
				}
				if c.Generation != log.gen || rapid.IntRange(0, 5).Draw(t, "refused") == 0 {
					take(tracker.Refused(now, "digits", c.Generation, c.Step, "refused"))
					return
				}
				for _, have := range log.commits {
					if have.Step == c.Step && !have.RolledBack {
						t.Fatalf("step %d commits twice", c.Step)
					}
				}
				rec := record(c.Step, c.Generation)
				rec.Digest = c.Digest
				log.commits = append(log.commits, rec)
				commits++
				if rapid.Bool().Draw(t, "leader dies after the entry") {
					tracker, out = NewTracker(time.Minute), nil
					leaders++
					begin()
					return
				}
				take(tracker.Committed(now, "digits", rec))
			},
			"raise": func(t *rapid.T) {
				log.gen++
				raises++
				begin()
			},
			"roll back": func(t *rapid.T) {
				if len(log.commits) == 0 {
					t.Skip("nothing committed")
				}
				for i := range log.commits {
					if log.commits[i].StepName == log.newest2() {
						log.commits[i].RolledBack = true
					}
				}
				rollbacks++
				tracker.RolledBack("digits", log.newest())
				log.gen++
				begin()
			},
			"leader": func(t *rapid.T) {
				tracker, out = NewTracker(time.Minute), nil
				leaders++
				begin()
			},
			"time": func(t *rapid.T) {
				now = now.Add(rapid.SampledFrom([]time.Duration{time.Second, 2 * time.Minute}).Draw(t, "by"))
				take(tracker.Expire(now))
			},
			"": func(t *rapid.T) {
				if c, ok := tracker.Committing("digits"); ok && (len(out) == 0 || out[len(out)-1].Digest != c.Digest) {
					t.Fatalf("step %d is out but was not the last handed out", c.Step)
				}
			},
		})
	})
	if !testing.Short() && (commits < 50 || raises < 50 || leaders < 50 || rollbacks < 10) {
		t.Errorf("the walk was too tame: %d commits, %d raises, %d leaders, %d roll-backs", commits, raises, leaders, rollbacks)
	}
	t.Logf("%d commits, %d raises, %d leaders, %d roll-backs", commits, raises, leaders, rollbacks)
}

func (l *modelLog) newest2() StepName {
	if n := l.newest(); n != nil {
		return n.StepName
	}
	return StepName{}
}

// Nothing gets stuck: after any disturbance a new generation whose ranks all report
// without conflict commits.
func TestTrackerAlwaysCommitsInTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tracker := NewTracker(time.Minute)
		tracker.Begin(t0, attempt(1, 3), nil)
		for range rapid.IntRange(0, 30).Draw(t, "noise") {
			p := prepared("digits", rapid.Int64Range(0, 5).Draw(t, "step"), 1, 3, rapid.Int64Range(0, 2).Draw(t, "rank"))
			if rapid.IntRange(0, 9).Draw(t, "conflict") == 0 {
				p.Cursor = "1"
			}
			tracker.Report(t0, p)
		}
		tracker.Begin(t0, attempt(2, 3), nil)
		if c, ok := tracker.Committing("digits"); ok {
			tracker.Refused(t0, "digits", c.Generation, c.Step, "older")
		}
		for r := range int64(3) {
			tracker.Report(t0, prepared("digits", 6, 2, 3, r))
		}
		if c, ok := tracker.Committing("digits"); !ok || c.Step != 6 || c.Generation != 2 {
			t.Fatalf("Committing = %+v, %v", c, ok)
		}
	})
}
