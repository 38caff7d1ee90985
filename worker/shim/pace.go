package shim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/elastic/plan"
	"github.com/troupe-runtime/troupe/runtime/page"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	// longestLook is the most that one look at a rank adds to its silence: a shim that did
	// not run, with its machine or by itself, saw nothing and counts nothing. So no clock
	// that jumps makes a stall.
	longestLook = time.Second
	// killNotice is how long a stall is known before it can end the attempt, so that the
	// stacks of all ranks can be read first.
	killNotice = 5 * time.Second
)

// paced is what the shim has learned of one rank's steps; it belongs to the loop.
type paced struct {
	plan.Pace
	step   int64 // newest seen
	fresh  bool  // it has made its first, and nobody was told
	calls  uint64
	silent time.Duration // without a step
	// A save under way stands still by intent: since when (CLOCK_MONOTONIC, ns), and how
	// long all of them took the rank.
	saveFrom int64
	saving   time.Duration
	saves    int64
	// disk is what kept the rank from saving a step, until it makes the next one.
	disk     string
	diskStep int64
}

// stall is what the shim has told of an attempt's pace.
type stall struct {
	kill    plan.StallKill
	looked  int64 // CLOCK_MONOTONIC of the last look, ns
	told    bool
	overdue bool
	for_    time.Duration // how long it has been told
}

// watchPace learns from the pages of the local ranks, and tells when one of them has made
// no step for longer than its pace allows.
func (s *shim) watchPace() {
	a := s.att
	if !a.active() || !a.began || a.over {
		return
	}
	now := page.Monotonic()
	passed := time.Duration(0)
	if a.stall.looked != 0 {
		passed = min(max(0, time.Duration(now-a.stall.looked)), longestLook)
	}
	a.stall.looked = now
	if a.excused(now) {
		passed = 0 // the others wait for the one that stands still by intent
	}
	var late, over []*rank
	for _, r := range a.ranks {
		if r.ended {
			continue
		}
		r.look(passed)
		if r.pace.fresh {
			r.pace.fresh = false
			if a.learn != nil && r == a.ranks[0] {
				go a.learn() // what a rank has imported it reports before its first step
			}
			s.send(s.status()) // a recovery ends with it
		}
		limit, kills := a.stall.kill.Limit(&r.pace.Pace)
		deadline := r.pace.Deadline()
		if kills {
			deadline = min(deadline, limit)
		}
		switch {
		case !r.pace.Known() || r.pace.silent < deadline:
		case kills && r.pace.silent >= limit:
			over = append(over, r)
			fallthrough
		default:
			late = append(late, r)
		}
	}
	switch {
	case len(late) == 0:
		if a.stall.told {
			s.emit(wire.AllocEvent{Kind: wire.EventResumed, Generation: a.spec.Generation})
		}
		a.stall.told, a.stall.overdue, a.stall.for_ = false, false, 0
	case !a.stall.told:
		a.stall.told = true
		s.emit(s.stallEvent(wire.EventStalled, late))
	default:
		a.stall.for_ += passed
		if len(over) > 0 && !a.stall.overdue && a.stall.for_ >= killNotice {
			a.stall.overdue = true
			s.emit(s.stallEvent(wire.EventOverdue, over))
		}
	}
}

// excused: a rank here says that it stands still by intent, inside a phase or to save.
func (a *attempt) excused(now int64) bool {
	// While a proposal is open, ranks may hold for its verdict.
	return a.began && (a.agree.shim.Open() || slices.ContainsFunc(a.ranks, func(r *rank) bool {
		return !r.ended && (r.page.phase() > now || r.pace.saveFrom != 0 && time.Duration(now-r.pace.saveFrom) < a.saveDeadline())
	}))
}

// look takes one look at a rank's page, after passed, which is none while a rank stands
// still by intent: that is neither learned nor counted.
func (r *rank) look(passed time.Duration) {
	p := &r.pace
	step, calls := r.page.step(), r.page.calls()
	made := step - p.step
	switch {
	case step < 0: // before its first
	case p.step < 0 || made < 0:
		p.silent, p.fresh = 0, true // the first that is seen has no length
	case made > 0:
		p.Step(p.silent+passed, made)
		p.silent = 0
	case calls != p.calls:
		p.silent = 0 // it is at work, on a step that is not finished
	default:
		p.silent += passed
	}
	if made > 0 && p.saveFrom != 0 {
		p.saveFrom = 0 // it saves beside its steps
	}
	if step != p.diskStep {
		p.disk = ""
	}
	p.step, p.calls = step, calls
}

// stallEvent tells of ranks that make no step; the one furthest behind is named.
func (s *shim) stallEvent(kind wire.EventKind, late []*rank) wire.AllocEvent {
	slowest := slices.MinFunc(late, func(a, b *rank) int {
		if a.pace.step != b.pace.step {
			return int(max(-1, min(1, a.pace.step-b.pace.step)))
		}
		return int(max(-1, min(1, b.pace.silent-a.pace.silent)))
	})
	p := &slowest.pace
	text := fmt.Sprintf("rank %d has made no step for %s after step %d; 99 of 100 took at most %s, the longest %s",
		slowest.spec.Rank, p.silent.Round(100*time.Millisecond), p.step, p.P99().Round(time.Millisecond), p.Longest().Round(time.Millisecond))
	if more := len(late) - 1; more > 0 {
		text += fmt.Sprintf("; so have %d more here", more)
	}
	return wire.AllocEvent{Kind: kind, Generation: s.att.spec.Generation, Rank: slowest.spec.Rank, Silent: int64(p.silent), Message: text}
}

// beginSave and endSave frame the time that a rank stands still to save.
func (p *paced) beginSave() {
	if p.saveFrom == 0 {
		p.saveFrom = page.Monotonic()
	}
}

func (p *paced) endSave() {
	if p.saveFrom == 0 {
		return
	}
	p.saving += max(0, time.Duration(page.Monotonic()-p.saveFrom))
	p.saves++
	p.saveFrom = 0
}

// saveTimes are the longest time and number of saves of any local rank.
func (a *attempt) saveTimes() (ns, n int64) {
	for _, r := range a.ranks {
		ns, n = max(ns, int64(r.pace.saving)), max(n, r.pace.saves)
	}
	return ns, n
}

// staged notes when ranks went on with a step that is still to be written, uploaded and
// committed; the first of this node counts.
func (a *attempt) stagedAt(step int64) {
	if a.uploading == nil || len(a.uploading) >= fatesMax {
		a.uploading = map[int64]int64{}
	}
	if a.uploading[step] == 0 {
		a.uploading[step] = page.Monotonic()
	}
}

// uploaded takes the verdict of a step: how long it took to be committed is a cost of
// saving, beside the time that ranks stood still.
func (a *attempt) uploaded(v *wire.Verdict) {
	if a == nil || a.spec.Generation != v.Generation {
		return
	}
	since := a.uploading[v.Step]
	delete(a.uploading, v.Step)
	if since != 0 && v.State == "committed" {
		a.upload += max(0, time.Duration(page.Monotonic()-since))
		a.uploads++
	}
}

// framed notes what a request of a rank and its answer say of the rank's saves.
func (rc *rankConn) framed(req *RankRequest, rep *RankReply) {
	if rc.r == nil {
		return
	}
	rc.s.post(func() {
		p := &rc.r.pace
		switch req.Op {
		case "begin", "buffer":
			if !rep.OK {
				p.endSave()
			}
		case "verdict", "abort", "stage":
			p.endSave()
		}
		switch {
		case !rep.OK && (rep.Code == "space" || rep.Code == "io"):
			p.disk = rep.Error
		case req.Op == "abort" && req.Store:
			p.disk = orElse(req.Name, "its store failed")
		default:
			return
		}
		p.disk = clip(fmt.Sprintf("step %d was not saved: %s", req.Step, strings.TrimSpace(p.disk)), maxMessage)
		p.diskStep = p.step
	})
}
