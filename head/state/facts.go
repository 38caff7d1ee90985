package state

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// applyFacts records what agents reported. It decides nothing: the supervisor reads
// the facts afterwards. A fact of an older generation only acknowledges itself (P3).
func applyFacts(t *tx, c Facts) any {
	for i := range c.Events {
		e := &c.Events[i]
		a := t.Alloc(e.Alloc)
		if a == nil || a.Node != c.Node || e.Seq <= a.Acked {
			continue
		}
		w := *a
		w.Acked = e.Seq
		current := e.Generation == a.Generation
		switch e.Kind {
		case wire.EventGone, wire.EventDirty, wire.EventOwnerGone, wire.EventShimLost, wire.EventFallback:
			current = true // about the allocation, not about one generation
		case wire.EventStarted, wire.EventRankExited, wire.EventEnded, wire.EventStartFailed,
			wire.EventVerified, wire.EventDamaged, wire.EventPortUsed, wire.EventStalled, wire.EventResumed, wire.EventOverdue:
		}
		if current && !a.Gone {
			t.fact(&w, e)
		}
		t.put(tAlloc, &w)
		if w.Gone {
			t.afterGone(&w)
		}
	}
	return nil
}

// fact applies one event of the current generation to its allocation and attempt.
func (t *tx) fact(w *Alloc, e *wire.AllocEvent) {
	switch e.Kind {
	case wire.EventStarted:
		w.Started, w.PIDs = true, e.PIDs
	case wire.EventRankExited:
		if e.Exit != nil {
			t.exited(w, e)
		}
	case wire.EventEnded:
		w.Ended = true
	case wire.EventStartFailed:
		w.StartFailed, w.Ended, w.FailedAt = orText(e.Message, "the start failed"), true, t.now
		w.StartCode = e.Code
		t.event("start-failed", "job/"+w.Job, "on %s: %s", t.nodeName(w.Node), e.Message)
	case wire.EventPortUsed:
		w.PortUsed, w.Ended = true, true
		t.event("port-used", "job/"+w.Job, "on %s: %s", t.nodeName(w.Node), e.Message)
	case wire.EventVerified:
		w.Verified = true
		t.verified(w)
	case wire.EventDamaged:
		if io, unread := strings.CutPrefix(e.Message, "io: "); unread {
			// A store that cannot be read says nothing about the files: the attempt
			// failed, the step stands.
			w.StartFailed, w.FailedAt = "the checkpoint store cannot be read: "+io, t.now
			t.event("restore-unread", "job/"+w.Job, "on %s: %s", t.nodeName(w.Node), io)
			return
		}
		w.Damaged = orText(e.Message, "damaged")
		t.event("restore-damaged", "job/"+w.Job, "on %s: %s", t.nodeName(w.Node), e.Message)
	case wire.EventOwnerGone:
		if j := t.Job(w.Job); j != nil && !j.State.Terminal() && !j.OwnerGone && j.Spec.Owner != nil {
			jw := *j
			jw.OwnerGone, jw.Index = true, t.index
			t.put(tJob, &jw)
			t.event("owner-gone", "job/"+j.ID, "the process that owned the job has ended")
		}
	case wire.EventShimLost:
		w.Lost, w.Ended, w.Gone, w.FailedAt = true, true, true, t.now
		t.event("shim-lost", "job/"+w.Job, "on %s: %s", t.nodeName(w.Node), e.Message)
	case wire.EventDirty:
		w.Dirty = orText(e.Message, "a process did not die")
		t.event("alloc-dirty", "job/"+w.Job, "on %s: %s", t.nodeName(w.Node), e.Message)
	case wire.EventFallback:
		t.event("fallback", "job/"+w.Job, "on %s: %s", t.nodeName(w.Node), e.Message)
	case wire.EventGone:
		w.Ended, w.Gone = true, true
	case wire.EventStalled, wire.EventResumed, wire.EventOverdue:
		t.stallFact(w, e)
	}
}

func orText(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// exited appends how a rank ended to its attempt, in the order of the log.
func (t *tx) exited(w *Alloc, e *wire.AllocEvent) {
	j := t.Job(w.Job)
	if j == nil || j.Last() == nil || j.Last().Generation != w.Generation {
		return
	}
	last := j.Last()
	for _, x := range last.Exits {
		if x.Rank == e.Exit.Rank {
			return
		}
	}
	if len(last.Exits) >= len(last.Ranks) {
		return
	}
	jw := *j
	jw.Attempts = slices.Clone(j.Attempts)
	jw.Index = t.index
	nl := jw.Last()
	exit := *e.Exit
	if exit.ByShim || len(last.Exits) >= keptTexts {
		// A consequence, or one of thousands: the first ones tell the story.
		exit.Message, exit.Traceback = cutText(exit.Message, 80), ""
	}
	nl.Exits = append(slices.Clone(nl.Exits), Exit{Alloc: w.ID, At: t.now, RankExit: exit})
	if exit.StepsDone >= 0 {
		nl.stepped(exit.StepsDone, t.now)
	}
	t.put(tJob, &jw)
	if exit.ByShim {
		return // a consequence; the cause has its own event
	}
	t.event("rank-exited", "job/"+j.ID, "attempt %d, rank %d on %s: %s", nl.Number, exit.Rank, t.nodeName(w.Node), ExitText(exit))
}

func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return truncate(s, n)
}

// ExitText says in a few words how a rank ended.
func ExitText(x wire.RankExit) string {
	switch {
	case x.OOM:
		return "out of memory in its own limit"
	case x.Message != "":
		return x.Message
	case x.Signal != 0:
		return fmt.Sprintf("killed by signal %d", x.Signal)
	case x.Code == 0:
		return "exit 0"
	}
	return fmt.Sprintf("exit %d", x.Code)
}

// verified marks the restore step whole once every node has verified its share.
func (t *tx) verified(w *Alloc) {
	j := t.Job(w.Job)
	if j == nil || j.Last() == nil || j.Last().Generation != w.Generation || j.Last().Restore == nil {
		return
	}
	for _, id := range j.Last().Allocs {
		if id == w.ID {
			continue
		}
		if a := t.Alloc(id); a == nil || !a.Verified {
			return
		}
	}
	t.markVerified(j)
	t.event("restore-verified", "job/"+j.ID, "step %d, every file read once", j.Last().Restore.Step)
}

// markVerified lets the ranks of the newest attempt load its restore step.
func (t *tx) markVerified(j *Job) {
	jw := *j
	jw.Attempts = slices.Clone(j.Attempts)
	jw.Index = t.index
	r := *jw.Last().Restore
	r.Verified = true
	jw.Last().Restore = &r
	t.put(tJob, &jw)
}

// restoreVerified is the same fact told by a command of its own; kept for a leader
// that verified a step without the allocations.
func restoreVerified(t *tx, c FirstStep) any {
	j := t.Job(c.Job)
	if j == nil || j.State.Terminal() || j.Last() == nil || j.Last().Generation != c.Generation || j.Last().Restore == nil {
		return refuse("stale", "no such attempt of "+c.Job)
	}
	t.markVerified(j)
	return nil
}

// afterGone frees what the allocation used; of a finished job it is forgotten.
func (t *tx) afterGone(w *Alloc) {
	if j := t.Job(w.Job); j == nil || j.State.Terminal() || !slices.Contains(lastAllocs(j), w.ID) {
		t.drop(tAlloc, w)
	}
	t.settle(w.Group)
}

func lastAllocs(j *Job) []string {
	if a := j.Last(); a != nil {
		return a.Allocs
	}
	return nil
}
