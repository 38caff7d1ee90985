package checkpoint

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// keptVerdicts bounds the remembered drops of one run; older ones become a floor.
const keptVerdicts = 256

type runState struct {
	attempt Attempt
	newest  *Record             // newest committed that stands
	open    map[int64]*openStep // by step, of the current generation
	closing *openStep           // handed out as CommitReady; its outcome is the log's
	done    *openStep           // the reports behind newest, if this tracker saw them
	dropped map[int64]string    // steps of the current generation, with the reason
	reached map[int64]int64     // by rank: the highest step that it has reported
	over    map[int64]bool      // ranks that have ended by themselves
	told    []DroppedStep       // not yet handed out by Tracker.Dropped
	floor   int64               // steps at or below it were dropped so long ago that the reason is forgotten; -1: none
}

// DroppedStep is a step of the current generation that was given up.
type DroppedStep struct {
	Run        string
	Generation uint64
	Step       int64
	Reason     string
}

type openStep struct {
	step    int64
	gen     uint64
	since   time.Time
	reports map[int64]wire.Prepared // by rank
	staged  map[int64]bool          // ranks whose report is on its way, even if they end
	ready   CommitReady
}

// settled answers a report whose fate is known already.
func (r *runState) settled(p wire.Prepared) (wire.Verdict, bool) {
	switch {
	case r.newest != nil && p.Step == r.newest.Step && p.Generation == r.newest.Generation:
		// Within one generation a step has one directory, so this is the repeated
		// report of a rank that has not heard; unless it says something else.
		if r.done != nil && r.done.step == p.Step && r.done.gen == p.Generation {
			if before, ok := r.done.reports[p.Rank]; !ok || !sameReport(before, p) {
				return answer(p, VerdictDropped, "it was committed with another content"), true
			}
		}
		return answer(p, VerdictCommitted, ""), true
	case r.closing != nil && p.Step == r.closing.step && p.Generation == r.closing.gen:
		return wire.Verdict{}, false
	case p.Generation < r.attempt.Generation:
		return answer(p, VerdictDropped, fmt.Sprintf("generation %d took over", r.attempt.Generation)), true
	case p.Generation > r.attempt.Generation:
		return answer(p, VerdictPending, "the head does not know this generation yet"), true
	case r.newest != nil && p.Step <= r.newest.Step:
		return answer(p, VerdictDropped, fmt.Sprintf("already committed: step %d is the newest", r.newest.Step)), true
	}
	if reason, ok := r.dropped[p.Step]; ok {
		return answer(p, VerdictDropped, reason), true
	}
	if p.Step <= r.floor {
		return answer(p, VerdictDropped, "it was dropped before"), true
	}
	return wire.Verdict{}, false
}

// wrong says why a report of the current generation cannot be part of any step.
func (r *runState) wrong(p wire.Prepared) string {
	a := r.attempt
	if p.World != a.World || p.Rank < 0 || p.Rank >= a.World {
		return fmt.Sprintf("rank %d of %d reported, the attempt has %d ranks", p.Rank, p.World, a.World)
	}
	if p.Abandoned != "" {
		return fmt.Sprintf("rank %d gave it up: %s", p.Rank, trim(p.Abandoned))
	}
	want := StepDir(a.Store, a.Run, StepName{Step: p.Step, Generation: a.Generation, Life: a.Life})
	if p.Step < 0 || p.Dir != want {
		return fmt.Sprintf("rank %d wrote to %q instead of %q", p.Rank, trim(p.Dir), want)
	}
	if len(p.Files) > MaxFiles {
		return fmt.Sprintf("rank %d names more than %d files", p.Rank, MaxFiles)
	}
	for _, f := range p.Files {
		if err := ValidFile(f.Path, p.Rank); err != nil {
			return err.Error()
		}
	}
	return ""
}

// wentOn notes how far a rank is. A rank saves its steps in order, so a lower step that
// it has not reported waits for it in vain, and with the step the ranks that did.
func (r *runState) wentOn(rank, step int64) []wire.Verdict {
	if at, ok := r.reached[rank]; ok && at >= step {
		return nil
	}
	r.reached[rank] = step
	return r.dropWithout(rank, step, fmt.Sprintf("went on to step %d without it", step))
}

// dropWithout drops the open steps below a ceiling that a rank has not reported.
func (r *runState) dropWithout(rank, ceiling int64, why string) []wire.Verdict {
	var out []wire.Verdict
	for _, s := range r.openSteps() {
		if !s.has(rank) && s.step < ceiling {
			out = append(out, r.drop(s, fmt.Sprintf("rank %d %s", rank, why))...)
		}
	}
	return out
}

// passedBy says why a step that was just opened can never be complete, "" if it can.
func (r *runState) passedBy(s *openStep) string {
	for rank := range r.attempt.World {
		if s.has(rank) {
			continue
		}
		if r.over[rank] {
			return fmt.Sprintf("rank %d ended without it", rank)
		}
		if at, ok := r.reached[rank]; ok && at > s.step {
			return fmt.Sprintf("rank %d went on to step %d without it", rank, at)
		}
	}
	return ""
}

// has says that a rank has reported the step, or will without its own doing.
func (s *openStep) has(rank int64) bool {
	_, ok := s.reports[rank]
	return ok || s.staged[rank]
}

// stage notes that a rank's report of a step is on its way.
func (r *runState) stage(s *openStep, p wire.Prepared) (reason string) {
	if p.World != r.attempt.World || p.Rank < 0 || p.Rank >= r.attempt.World {
		return r.wrong(p)
	}
	s.staged[p.Rank] = true
	return ""
}

// next hands out the lowest complete step, unless one is out already. Build can
// still refuse it, and then it is dropped and the next one tried.
func (r *runState) next() Effects {
	var e Effects
	for _, s := range r.openSteps() {
		if r.closing != nil {
			break
		}
		if int64(len(s.reports)) != r.attempt.World {
			continue
		}
		reports := make([]wire.Prepared, 0, len(s.reports))
		for _, p := range s.reports {
			reports = append(reports, p)
		}
		data, digest, err := Build(reports, r.attempt.Parent)
		if err != nil {
			e.Verdicts = append(e.Verdicts, r.drop(s, err.Error())...)
			continue
		}
		s.ready = CommitReady{
			Run: r.attempt.Run, Step: s.step, Generation: s.gen,
			World: r.attempt.World, Parent: r.attempt.Parent, Store: r.attempt.Store, Dir: reports[0].Dir,
			Manifest: data, Digest: digest, Since: s.since,
		}
		slices.SortFunc(reports, func(a, b wire.Prepared) int { return int(a.Rank - b.Rank) })
		s.ready.Metrics = metricsOf(reports)
		for _, p := range reports {
			s.ready.Files += int64(len(p.Files))
			for _, f := range p.Files {
				s.ready.Bytes += f.Length
			}
		}
		delete(r.open, s.step)
		r.closing = s
		e.Ready = append(e.Ready, s.ready)
	}
	return e
}

// passed drops what waits at or below the newest commit: it would never be restored.
func (r *runState) passed() Effects {
	var e Effects
	for _, s := range r.openSteps() {
		if r.newest != nil && s.step <= r.newest.Step {
			e.Verdicts = append(e.Verdicts, r.drop(s, fmt.Sprintf("step %d committed before it", r.newest.Step))...)
		}
	}
	return e
}

func (r *runState) setNewest(c *Record) {
	if c == nil || r.newest != nil && r.newest.StepName == c.StepName {
		return
	}
	if r.newest != nil && c.Older(r.newest.StepName) {
		return
	}
	copied := *c
	r.newest, r.done = &copied, nil
}

// drop closes a step for this generation and returns what to push.
func (r *runState) drop(s *openStep, reason string) []wire.Verdict {
	delete(r.open, s.step)
	if s.gen == r.attempt.Generation {
		r.dropped[s.step] = reason
		r.told = append(r.told, DroppedStep{Run: r.attempt.Run, Generation: s.gen, Step: s.step, Reason: reason})
		for len(r.dropped) > keptVerdicts {
			lowest := NoCeiling
			for step := range r.dropped {
				lowest = min(lowest, step)
			}
			delete(r.dropped, lowest)
			r.floor = max(r.floor, lowest)
		}
	}
	return s.verdicts(r.attempt.Run, VerdictDropped, reason)
}

func (r *runState) openSteps() []*openStep {
	out := make([]*openStep, 0, len(r.open))
	for _, s := range r.open {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *openStep) int {
		if a.step < b.step {
			return -1
		}
		return 1
	})
	return out
}

// verdicts makes one verdict for each allocation that has reported.
func (s *openStep) verdicts(run, state, reason string) []wire.Verdict {
	allocs := map[string]bool{}
	for _, p := range s.reports {
		allocs[p.Alloc] = true
	}
	out := make([]wire.Verdict, 0, len(allocs))
	for a := range allocs {
		out = append(out, wire.Verdict{Alloc: a, Run: run, Generation: s.gen, Step: s.step, State: state, Reason: reason})
	}
	slices.SortFunc(out, func(a, b wire.Verdict) int { return strings.Compare(a.Alloc, b.Alloc) })
	return out
}

// waitsFor names the ranks that have not reported.
func (s *openStep) waitsFor(world int64) string {
	const most = 8
	var names []string
	missing := world - int64(len(s.reports))
	for rank := int64(0); rank < world && len(names) < most; rank++ {
		if _, ok := s.reports[rank]; !ok {
			names = append(names, fmt.Sprint(rank))
		}
	}
	text := strings.Join(names, ", ")
	if missing > most {
		text += fmt.Sprintf(" and %d more", missing-most)
	}
	if missing == 1 {
		return "rank " + text + " did not prepare it"
	}
	return "ranks " + text + " did not prepare it"
}

func answer(p wire.Prepared, state, reason string) wire.Verdict {
	return wire.Verdict{Alloc: p.Alloc, Run: p.Run, Generation: p.Generation, Step: p.Step, State: state, Reason: reason}
}

// sameReport compares what ends up in a manifest; the order of files does not.
func sameReport(a, b wire.Prepared) bool {
	if a.Dir != b.Dir || a.World != b.World || a.Cursor != b.Cursor || a.Config != b.Config ||
		a.Frameworks != b.Frameworks || !slices.Equal(a.Metrics, b.Metrics) || !slices.Equal(a.Mesh, b.Mesh) || len(a.Files) != len(b.Files) {
		return false
	}
	if slices.Equal(a.Files, b.Files) {
		return true
	}
	byPath := func(x, y wire.PreparedFile) int { return strings.Compare(x.Path, y.Path) }
	return slices.Equal(slices.SortedFunc(slices.Values(a.Files), byPath), slices.SortedFunc(slices.Values(b.Files), byPath))
}
