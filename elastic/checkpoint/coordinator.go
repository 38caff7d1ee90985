package checkpoint

import (
	"fmt"
	"sort"
	"time"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// States of a verdict.
const (
	VerdictPending   = "pending"
	VerdictCommitted = "committed"
	VerdictDropped   = "dropped"
)

// MaxOpen bounds the steps of one run that wait for ranks. A script that saves every
// step while one rank never does would otherwise fill the leader's memory.
const MaxOpen = 64

// Attempt is what the tracker must know of a run's current attempt. All of it comes
// from the replicated state, so two leaders know the same.
type Attempt struct {
	Run        string
	Generation uint64
	World      int64
	Store      string // absolute
	Life       string
	Parent     *int64        // the step that the attempt restored; nil: none
	Deadline   time.Duration // of a step, from its first report; 0: the tracker's
}

// CommitReady is a step that every rank of the current generation has prepared. The
// leader has the manifest written and then proposes the commit entry. At most one is
// out for each run, the lowest step first.
type CommitReady struct {
	Run        string
	Step       int64
	Generation uint64
	World      int64
	Parent     *int64
	Store      string
	Dir        string
	Manifest   []byte // for wire.TaskWriteManifest
	Digest     string // of Manifest
	Files      int64
	Bytes      int64
	Metrics    []wire.Metric // of the manifest
	Since      time.Time     // first report
}

// Effects are what follows from one input: verdicts to push to allocations, and
// steps to commit.
type Effects struct {
	Verdicts []wire.Verdict
	Ready    []CommitReady
}

func (e *Effects) add(o Effects) {
	e.Verdicts = append(e.Verdicts, o.Verdicts...)
	e.Ready = append(e.Ready, o.Ready...)
}

// Tracker collects prepared reports on the leader and says when a step may commit
// (P4). It holds no truth: a new leader starts an empty one from the replicated
// state, and shims repeat their reports until they hear a verdict. It has no
// goroutine, clock or lock; the caller serialises and brings the time.
type Tracker struct {
	timeout time.Duration
	runs    map[string]*runState
}

// NewTracker makes an empty tracker. A step that is not prepared by all ranks within
// timeout of its first report, or within its attempt's own deadline, is dropped; the
// job goes on.
func NewTracker(timeout time.Duration) *Tracker {
	return &Tracker{timeout: timeout, runs: map[string]*runState{}}
}

// Begin tells the tracker of a run's current attempt and its newest standing commit
// (nil: none). Call it for every live run when leadership begins and whenever the
// generation rises. A higher generation drops what the older one left open, except a
// step that was handed out: its commit entry may already be in the log, so only
// Committed or Refused end it. An older generation than the known one is ignored (P3).
func (t *Tracker) Begin(_ time.Time, a Attempt, newest *Record) Effects {
	r := t.runs[a.Run]
	if r == nil {
		r = &runState{open: map[int64]*openStep{}, dropped: map[int64]string{}, floor: -1, reached: map[int64]int64{}, over: map[int64]bool{}}
		t.runs[a.Run] = r
		r.attempt = a
	}
	var e Effects
	if a.Generation < r.attempt.Generation {
		return e
	}
	if a.Generation > r.attempt.Generation {
		reason := fmt.Sprintf("generation %d took over", a.Generation)
		for _, s := range r.openSteps() {
			e.Verdicts = append(e.Verdicts, r.drop(s, reason)...)
		}
		r.dropped, r.floor = map[int64]string{}, -1
		r.reached, r.over = map[int64]int64{}, map[int64]bool{}
		// A roll-back comes with a higher generation, so here the newest may go back.
		r.newest, r.done = nil, nil
	}
	r.attempt = a
	r.setNewest(newest)
	e.add(r.passed())
	e.add(r.next())
	return e
}

// Forget drops everything about a run that has ended.
func (t *Tracker) Forget(run string) Effects {
	var e Effects
	if r := t.runs[run]; r != nil {
		for _, s := range r.openSteps() {
			e.Verdicts = append(e.Verdicts, r.drop(s, "the run has ended")...)
		}
		delete(t.runs, run)
	}
	return e
}

// Report takes one rank's report, new or repeated, and answers it. The caller has
// checked that the reporting node holds the report's allocation and that the
// allocation belongs to the run.
func (t *Tracker) Report(now time.Time, p wire.Prepared) (wire.Verdict, Effects) {
	r := t.runs[p.Run]
	if r == nil {
		return answer(p, VerdictPending, "the head does not know this run yet"), Effects{}
	}
	var e Effects
	if p.Generation == r.attempt.Generation && p.Rank >= 0 && p.Rank < r.attempt.World {
		e.Verdicts = r.wentOn(p.Rank, p.Step)
	}
	if v, settled := r.settled(p); settled {
		return v, e
	}
	if r.closing != nil && r.closing.step == p.Step {
		return answer(p, VerdictPending, ""), e
	}
	s, fresh := r.open[p.Step], false
	if s == nil {
		s, fresh = &openStep{step: p.Step, gen: p.Generation, since: now, reports: map[int64]wire.Prepared{}, staged: map[int64]bool{}}, true
		r.open[p.Step] = s
	}
	// A rank that sends what cannot be part of the step, or two different things,
	// will never be part of it: waiting for the deadline would help nobody.
	var reason string
	if p.Staged {
		reason = r.stage(s, p)
	} else {
		reason = r.wrong(p)
	}
	if before, ok := s.reports[p.Rank]; reason == "" && ok && !p.Staged && !sameReport(before, p) {
		reason = fmt.Sprintf("rank %d reported two different contents for it", p.Rank)
	}
	if reason != "" {
		e.Verdicts = append(e.Verdicts, r.drop(s, reason)...)
		return answer(p, VerdictDropped, reason), e
	}
	if !p.Staged {
		s.reports[p.Rank] = p
	}
	if fresh {
		if reason = r.passedBy(s); reason != "" {
			e.Verdicts = append(e.Verdicts, r.drop(s, reason)...)
			return answer(p, VerdictDropped, reason), e
		}
	}
	if len(r.open) > MaxOpen {
		oldest := r.openSteps()[0]
		e.Verdicts = append(e.Verdicts, r.drop(oldest, fmt.Sprintf("more than %d steps wait for ranks; %s", MaxOpen, oldest.waitsFor(r.attempt.World)))...)
	}
	e.add(r.next())
	if reason, ok := r.dropped[p.Step]; ok {
		return answer(p, VerdictDropped, reason), e
	}
	return answer(p, VerdictPending, ""), e
}

// RankOver tells that a rank of a generation has ended by itself: what it has not
// prepared by now it never will, and the others are not to wait for the deadline.
// Telling it again changes nothing.
func (t *Tracker) RankOver(run string, generation uint64, rank int64) Effects {
	r := t.runs[run]
	if r == nil || r.attempt.Generation != generation || rank < 0 || rank >= r.attempt.World || r.over[rank] {
		return Effects{}
	}
	r.over[rank] = true
	return Effects{Verdicts: r.dropWithout(rank, NoCeiling, "ended without it")}
}

// Committed tells that the commit entry is in the log.
func (t *Tracker) Committed(_ time.Time, run string, c Record) Effects {
	var e Effects
	r := t.runs[run]
	if r == nil {
		return e
	}
	s := r.closing
	if s == nil || s.step != c.Step || s.gen != c.Generation {
		s = nil
		if o := r.open[c.Step]; o != nil && o.gen == c.Generation {
			s = o // another leader committed what waits here
			delete(r.open, c.Step)
		}
	} else {
		r.closing = nil
	}
	r.setNewest(&c)
	if s != nil {
		r.done = s
		e.Verdicts = s.verdicts(run, VerdictCommitted, "")
	}
	e.add(r.passed())
	e.add(r.next())
	return e
}

// Refused tells that a step which was handed out will not commit: its manifest could
// not be written, or the log refused the entry.
func (t *Tracker) Refused(_ time.Time, run string, generation uint64, step int64, reason string) Effects {
	var e Effects
	r := t.runs[run]
	if r == nil || r.closing == nil || r.closing.step != step || r.closing.gen != generation {
		return e
	}
	s := r.closing
	r.closing = nil
	e.Verdicts = r.drop(s, reason)
	e.add(r.next())
	return e
}

// RolledBack tells that steps were freed by an entry of the log; newest is the
// newest commit that still stands, nil if none does. Only a higher generation may
// save the freed steps again, so the current one keeps its floor.
func (t *Tracker) RolledBack(run string, newest *Record) {
	r := t.runs[run]
	if r == nil {
		return
	}
	if r.newest != nil && (newest == nil || newest.Step < r.newest.Step) && r.newest.Generation == r.attempt.Generation {
		r.floor = max(r.floor, r.newest.Step)
	}
	r.newest, r.done = newest, nil
}

// Expire drops the steps whose time is over, naming the ranks that did not report.
func (t *Tracker) Expire(now time.Time) Effects {
	var e Effects
	for _, run := range t.names() {
		r := t.runs[run]
		for _, s := range r.openSteps() {
			limit := t.deadline(r)
			if _, open := r.open[s.step]; open && !now.Before(s.since.Add(limit)) && int64(len(s.reports)) < r.attempt.World {
				e.Verdicts = append(e.Verdicts, r.drop(s, fmt.Sprintf("%s within %s", s.waitsFor(r.attempt.World), limit))...)
			}
		}
	}
	return e
}

// Dropped returns the steps that were given up since the last call, each once, in the
// order of their runs' names.
func (t *Tracker) Dropped() []DroppedStep {
	var out []DroppedStep
	for _, run := range t.names() {
		r := t.runs[run]
		out = append(out, r.told...)
		r.told = nil
	}
	return out
}

func (t *Tracker) deadline(r *runState) time.Duration {
	if d := r.attempt.Deadline; d > 0 {
		return d
	}
	return t.timeout
}

// NextDeadline is when Expire has something to do; false if nothing waits.
func (t *Tracker) NextDeadline() (at time.Time, ok bool) {
	for _, r := range t.runs {
		for _, s := range r.open {
			if d := s.since.Add(t.deadline(r)); !ok || d.Before(at) {
				at, ok = d, true
			}
		}
	}
	return at, ok
}

// Finishing reports whether a step of a run is complete but for work that no rank has
// to do any more: its manifest and commit entry, or files that were staged by ranks.
func (t *Tracker) Finishing(run string) bool {
	r := t.runs[run]
	if r == nil {
		return false
	}
	if r.closing != nil {
		return true
	}
	for _, s := range r.open {
		whole := s.gen == r.attempt.Generation
		for rank := int64(0); whole && rank < r.attempt.World; rank++ {
			whole = s.has(rank)
		}
		if whole {
			return true
		}
	}
	return false
}

// Committing returns the step of a run that was handed out and has no outcome yet. A
// leader that is about to raise the generation finishes it first, for at most 2 s.
func (t *Tracker) Committing(run string) (CommitReady, bool) {
	if r := t.runs[run]; r != nil && r.closing != nil {
		return r.closing.ready, true
	}
	return CommitReady{}, false
}

func (t *Tracker) names() []string {
	names := make([]string, 0, len(t.runs))
	for n := range t.runs {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}
