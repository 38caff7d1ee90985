package agree

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	leastMargin  = 2 // steps above the newest published one
	marginTime   = 500 * time.Millisecond
	mostMargin   = 30 * time.Second
	repeatAfter  = time.Second
	maxDoubled   = 30
	maxMargin    = 1 << 40
	neverTries   = 3 // proposals in a row after which a script counts as one that never calls
	maxExtrapol  = time.Minute
	maxProposalT = 1 << 60
)

// Proposal is the record of a job's newest proposal. Numbers grow over the life of a job.
type Proposal struct {
	wire.Proposal
	Generation uint64 `json:"gen"`
	Margin     int64  `json:"margin"`
	Doubled    int64  `json:"doubled,omitempty"` // how often the margin was doubled
	Never      int64  `json:"never,omitempty"`   // in a row, dropped because a rank never calls
	// Code is why it was dropped, Why…; of an open one, why the one before was.
	Code string `json:"code,omitempty"`
	Why  string `json:"why,omitempty"` // for people
	At   int64  `json:"at"`            // log time of the newest change, ns
}

// Want is what the leader wants of the ranks.
type Want int

// Wants.
const (
	Nothing Want = iota
	WantSave
	WantStop
)

// Report is what the leader last heard of one rank. Age is how long ago Step was published.
type Report struct {
	Rank    int64
	Step    int64
	Age     time.Duration
	Pace    time.Duration // of a step; 0 unknown
	Bound   uint64        // proposal that it has acknowledged last; 0 also after Rank.CallOff
	Settled uint64        // it has nothing left to do for this proposal and those before
}

// Facts are what a leader decides on. Everything but Reports and Answers comes from the
// log, and those two are repeated to every leader; so a new one goes on where the old one
// stopped.
type Facts struct {
	Want    Want
	Now     time.Time
	World   int64
	Last    *Proposal // newest of this generation, nil for none
	Number  uint64    // newest of the job, over all generations
	Reports []Report  // at most one for each rank
	Answers []wire.RankAnswer
	Silent  string // a node of the group that is suspect, by name
}

// Action is what a leader logs.
type Action int

// Actions of a leader.
const (
	Wait Action = iota
	Propose
	Agree
	Drop
	Unable // the script never calls should_checkpoint: no agreement is possible
)

// Decision is what to do now. At Delay > 0 the caller asks again then.
type Decision struct {
	Action   Action
	Proposal Proposal // for Propose; At is left to the log
	Code     string   // for Drop
	Why      string   // for people, of Drop, Wait and Unable
	Delay    time.Duration
}

// Decide says what a leader does about the agreement of one attempt.
func Decide(f Facts) Decision {
	if p := f.Last; p != nil {
		switch p.State {
		case wire.ProposalOpen:
			return open(&f, p)
		case wire.ProposalAgreed:
			// No other one before all have acted on it, or a rank could miss that it was
			// agreed. Those that end after it act no more, unless the save was dropped.
			behind, off := settled(&f, p)
			if !behind || p.Stop && !off {
				return Decision{Why: fmt.Sprintf("all ranks save after step %d", p.Target)}
			}
		case wire.ProposalDropped:
		}
	}
	if f.Want == Nothing {
		return Decision{}
	}
	return next(&f)
}

// settled reports whether every rank has acted on an agreed proposal, and whether one has
// called the end after it off.
func settled(f *Facts, p *Proposal) (behind, off bool) {
	n := int64(0)
	for _, r := range f.Reports {
		if r.Settled >= p.Number {
			n++
			off = off || r.Bound != p.Number
		}
	}
	return n == f.World, off
}

// open decides about a proposal that waits for its answers.
func open(f *Facts, p *Proposal) Decision {
	if f.Silent != "" {
		return Decision{Action: Drop, Code: WhyNode, Why: "node " + f.Silent + " is silent"}
	}
	yes := map[int64]bool{}
	refusals := map[string][]int64{}
	for _, a := range f.Answers {
		switch {
		case a.Number != p.Number || a.Rank < 0 || a.Rank >= f.World:
		case a.Yes:
			yes[a.Rank] = true
		default:
			refusals[a.Why] = append(refusals[a.Why], a.Rank)
		}
	}
	// A step that was passed asks for a larger margin, whatever else is in the way.
	for _, why := range []string{WhyPassed, WhyEnded, WhyPhase, WhySilent, WhyNew, WhyNever} {
		if ranks := refusals[why]; len(ranks) > 0 {
			return Decision{Action: Drop, Code: why, Why: refusal(why, slices.Min(ranks), p.Target)}
		}
	}
	for why, ranks := range refusals { // of a newer build; which of them does not matter
		return Decision{Action: Drop, Code: why, Why: refusal(why, ranks[0], p.Target)}
	}
	if int64(len(yes)) == f.World {
		return Decision{Action: Agree}
	}
	return Decision{Why: fmt.Sprintf("%d of %d ranks have agreed to step %d", len(yes), f.World, p.Target)}
}

func refusal(why string, rank, target int64) string {
	switch why {
	case WhyPassed:
		return fmt.Sprintf("rank %d was past step %d already", rank, target)
	case WhyEnded:
		return fmt.Sprintf("rank %d has ended", rank)
	case WhyPhase:
		return fmt.Sprintf("rank %d is inside a phase", rank)
	case WhySilent:
		return fmt.Sprintf("rank %d has not called should_checkpoint for longer than it ever did", rank)
	case WhyNew:
		return fmt.Sprintf("rank %d has called should_checkpoint only once yet", rank)
	case WhyNever:
		return fmt.Sprintf("rank %d has not called should_checkpoint yet", rank)
	}
	return fmt.Sprintf("rank %d refused (%.40s)", rank, why)
}

// next proposes, unless it is too early.
func next(f *Facts) Decision {
	var doubled, never int64
	code := ""
	if p := f.Last; p != nil && p.State == wire.ProposalDropped {
		doubled, never, code = p.Doubled, p.Never, p.Code
		if p.Code == WhyNever && never >= neverTries && f.Want == WantStop {
			return Decision{Action: Unable, Why: p.Why}
		}
		if p.Code != WhyPassed {
			since := f.Now.Sub(time.Unix(0, p.At))
			if left := repeatAfter - since; left > 0 {
				return Decision{Delay: min(left, repeatAfter), Why: p.Why + "; it is tried again"}
			}
		}
	}
	if f.Silent != "" {
		return Decision{Why: "node " + f.Silent + " is silent"}
	}
	if missing := f.World - int64(len(f.Reports)); missing > 0 {
		return Decision{Why: fmt.Sprintf("%d of %d ranks have not reported yet", missing, f.World)}
	}
	target, margin := Target(f.Reports, doubled)
	return Decision{Action: Propose, Proposal: Proposal{
		Proposal: wire.Proposal{Number: f.Number + 1, Target: target, State: wire.ProposalOpen, Stop: f.Want == WantStop},
		Margin:   margin, Doubled: doubled, Never: never, Code: code,
	}}
}

// Target is the step to propose: the newest published one, extrapolated by its report's
// age, and a margin of half a second's worth, at least two steps, doubled as often as a
// proposal was passed, to at most 30 seconds' worth.
func Target(reports []Report, doubled int64) (target, margin int64) {
	pace := time.Duration(0)
	for _, r := range reports {
		if r.Pace > 0 && (pace == 0 || r.Pace < pace) {
			pace = r.Pace
		}
	}
	newest := int64(0)
	for _, r := range reports {
		step := max(0, r.Step)
		if p := cmp.Or(r.Pace, pace); p > 0 && r.Step >= 0 {
			step += int64(min(max(0, r.Age), maxExtrapol) / p)
		}
		newest = max(newest, min(step, maxProposalT))
	}
	margin = steps(marginTime, pace) << min(doubled, maxDoubled)
	margin = min(margin, max(steps(mostMargin, pace), leastMargin<<1))
	return newest + margin, margin
}

// steps is how many steps d is worth, at least leastMargin.
func steps(d, pace time.Duration) int64 {
	if pace <= 0 {
		return leastMargin
	}
	return min(max(leastMargin, int64((d+pace-1)/pace)), maxMargin)
}

// Dropped is the record of a proposal that was dropped for a reason: what the next one
// must know of it.
func (p Proposal) Dropped(code, why string) Proposal {
	p.State, p.Code, p.Why = wire.ProposalDropped, code, why
	if code == WhyPassed {
		p.Doubled = min(p.Doubled+1, maxDoubled)
	}
	if code == WhyNever {
		p.Never++
	} else {
		p.Never = 0
	}
	return p
}
