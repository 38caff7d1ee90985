package supervise

import (
	"fmt"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// allGone: no rank of the attempt is left anywhere.
func (a *Attempt) allGone() bool {
	for i := range a.Allocs {
		if !a.Allocs[i].Ended && !a.Allocs[i].Lost {
			return false
		}
	}
	return true
}

func (a *Attempt) allStarted() bool {
	for i := range a.Allocs {
		if !a.Allocs[i].Started {
			return false
		}
	}
	return true
}

// finished counts the ranks that ended with 0 by themselves. A rank that is told
// twice counts once, and only its first report counts.
func (a *Attempt) finished() int64 {
	var n int64
	seen := map[int64]bool{}
	for i := range a.Exits {
		e := &a.Exits[i]
		if seen[e.Rank] || e.Rank < 0 || e.Rank >= a.World {
			continue
		}
		seen[e.Rank] = true
		if e.clean() {
			n++
		}
	}
	return n
}

func (e *Exit) clean() bool { return e.Code == 0 && e.Signal == 0 && !e.ByShim }

// doneOn reports whether every rank of the allocation had finished by itself: losing
// its node then is no failure.
func (a *Attempt) doneOn(alloc *Alloc) bool {
	clean := map[int64]bool{}
	seen := map[int64]bool{}
	for i := range a.Exits {
		if e := &a.Exits[i]; !seen[e.Rank] {
			seen[e.Rank] = true
			clean[e.Rank] = e.clean()
		}
	}
	for _, r := range alloc.Ranks {
		if !clean[r] {
			return false
		}
	}
	return len(alloc.Ranks) > 0
}

func (a *Attempt) damaged() *Alloc {
	for i := range a.Allocs {
		if a.Allocs[i].Damaged != "" {
			return &a.Allocs[i]
		}
	}
	return nil
}

func (a *Attempt) portUsed() *Alloc {
	for i := range a.Allocs {
		if a.Allocs[i].PortUsed {
			return &a.Allocs[i]
		}
	}
	return nil
}

// progress says where the attempt stands, with numbers and names.
func (a *Attempt) progress() string {
	var started, ended int
	var waiting []string
	for i := range a.Allocs {
		x := &a.Allocs[i]
		switch {
		case x.Ended || x.Lost:
			ended++
		case x.Started:
			started++
		default:
			waiting = append(waiting, x.Node)
		}
	}
	parts := []string{fmt.Sprintf("%d of %d ranks finished", a.finished(), a.World)}
	if started > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d nodes running", started, len(a.Allocs)))
	}
	if ended > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d nodes ended", ended, len(a.Allocs)))
	}
	if len(waiting) > 0 {
		parts = append(parts, "starting on "+list("node", waiting))
	}
	return strings.Join(parts, ", ")
}

// unexplained is the failure of an attempt that is over though not every rank
// finished, and of which no rank failed by itself: fenced at the end of a lease, or a
// report was lost. The machine is charged, not the user.
func (a *Attempt) unexplained() evidence {
	text := fmt.Sprintf("%d of %d ranks finished and the others ended without a failure of their own: their node was cut off or their report was lost",
		a.finished(), a.World)
	return evidence{
		strength: weakest, cause: api.CauseInfra, code: api.ReasonHealth,
		failure: &api.Failure{Rank: -1, ExitCode: api.ExitRetry, Message: text},
	}
}

// list names things: "node a", "nodes a, b", "nodes a, b, c, d and 3 more".
func list(word string, names []string) string {
	const listed = 4
	if len(names) == 1 {
		return word + " " + names[0]
	}
	shown := names[:min(len(names), listed)]
	s := word + "s " + strings.Join(shown, ", ")
	if more := len(names) - len(shown); more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}
