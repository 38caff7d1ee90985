// Package agree lets all ranks of a job act after the same step, which nobody can know in
// advance: the leader proposes a step T, every rank that is not there yet binds itself to
// hold at T until the verdict, and what all have acknowledged is agreed. Three state
// machines live here, for the leader, the shim and the rank, and what a shim learns of a
// rank's pace. They decide; who calls them writes the log, carries messages, reads pages
// and waits. sdk/python/troupe/session.py is the twin of Rank.
//
// Simpler schemes fail. To broadcast the newest step + 1 lets a rank that was faster pass
// it; to hold without refusals leaves ranks that hold waiting for one that waits for them
// in a collective. The tests explore every order of events and show both.
package agree

import "github.com/troupe-runtime/troupe/runtime/wire"

// Word is a verdict as it stands in a rank's page.
type Word int64

// Verdicts.
const (
	Dropped     Word = 0
	Save        Word = 1 // save after T and go on
	SaveAndStop Word = 2 // save after T and end
)

// WordOf is the verdict of a decided proposal.
func WordOf(p wire.Proposal) Word {
	switch {
	case p.State != wire.ProposalAgreed:
		return Dropped
	case p.Stop:
		return SaveAndStop
	}
	return Save
}

// Board is what a shim shows to a rank: the newest proposal and the newest verdict. A
// verdict of a higher number says that every lower one is decided: of those the rank has
// not passed, none was agreed, because the next is never proposed before all have.
type Board struct {
	Proposal uint64 // 0: none
	Target   int64
	Verdict  uint64
	Word     Word
}

// Move is what a rank does at a call of should_checkpoint.
type Move int

// Moves of a rank.
const (
	Go         Move = iota // nothing to do after this step
	Hold                   // ask again with the same step when the board has changed
	SaveNow                // save after this step
	SaveAndEnd             // save after this step; should_stop is true from now on
)

// Rank is the side of one rank.
type Rank struct {
	Acknowledged uint64 // bound to it until its verdict; the shim reads this
	Settled      uint64 // nothing is left to do for it and all before; the shim reads this
	Target       int64  // of the acknowledged one
}

// Call is should_checkpoint(step). A rank that has acknowledged never decides alone: from
// the first step ≥ T on it holds until it reads the verdict.
func (r *Rank) Call(step int64, b Board) Move {
	if n := r.Acknowledged; n > r.Settled {
		switch {
		case b.Verdict < n && step < r.Target:
			return Go
		case b.Verdict < n:
			return Hold
		case b.Verdict == n && b.Word != Dropped && step < r.Target:
			return Go // agreed, and not there yet
		}
		r.Settled = n
		switch {
		case b.Verdict > n || b.Word == Dropped:
		case b.Word == SaveAndStop:
			return SaveAndEnd
		default:
			return SaveNow
		}
	}
	// The next proposal may stand there already.
	n := b.Proposal
	switch {
	case n <= r.Settled:
	case b.Verdict >= n || step >= b.Target:
		r.Settled = n // decided without it, or passed unacknowledged: its shim refuses
	default:
		r.Acknowledged, r.Target = n, b.Target
	}
	return Go
}

// CallOff takes an end after the save back, since the save was dropped for all ranks: they
// go on, and the leader proposes again.
func (r *Rank) CallOff() { r.Acknowledged = 0 }
