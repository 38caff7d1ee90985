package agree

import (
	"time"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Reasons of a refusal; the leader's next proposal depends on them.
const (
	WhyPassed = "passed" // it has published a step ≥ T without having acknowledged
	WhyEnded  = "ended"
	WhyPhase  = "phase"  // inside phase(), which may last
	WhyNever  = "never"  // it has not called should_checkpoint at all
	WhyNew    = "new"    // it has called once: nothing is known of its pace
	WhySilent = "silent" // it has not called for longer than it ever does
	WhyNode   = "node"   // of the leader: a node of the group is silent
)

// leastSilence is how long a rank may go without a call before its shim refuses for it.
const leastSilence = 10 * time.Second

// View is what a shim sees of one rank now.
type View struct {
	Step         int64 // newest published, -1 none
	Calls        uint64
	Acknowledged uint64
	Settled      uint64
	Ended        bool
	Phase        bool
	Quiet        time.Duration // since its newest call was noticed
	P99          time.Duration // of its intervals between calls; 0 unknown
}

// Judge answers for a rank, or does not yet. The acknowledgement must have been read
// before the step: a rank that acknowledges and then moves on is never refused as one
// that passed, and one that is refused all the same only holds until the verdict.
func Judge(number uint64, target int64, v View) (answered, yes bool, why string) {
	switch {
	case v.Ended:
		return true, false, WhyEnded
	case v.Acknowledged == number:
		return true, true, ""
	case v.Step >= target, v.Settled >= number:
		return true, false, WhyPassed
	case v.Phase:
		return true, false, WhyPhase
	case v.Calls == 0:
		return true, false, WhyNever
	case v.Calls == 1:
		return true, false, WhyNew
	case v.Quiet > max(leastSilence, 3*v.P99):
		return true, false, WhySilent
	}
	return false, false, ""
}

// Shim is the side of one shim, for one generation. The zero value has heard nothing.
type Shim struct {
	p       wire.Proposal // newest heard
	answers []wire.RankAnswer
}

// Open reports whether a proposal waits for answers or a verdict.
func (s *Shim) Open() bool { return s.p.State == wire.ProposalOpen }

// Proposal is the newest that was heard; number 0: none.
func (s *Shim) Proposal() wire.Proposal { return s.p }

// Hear takes a proposal record of the log, newer or again, and returns what every rank's
// board must show now; changed is false when nothing is to be written.
func (s *Shim) Hear(p wire.Proposal, b Board) (board Board, changed bool) {
	switch {
	case p.Number < s.p.Number || p.Number == 0:
		return b, false
	case p.Number > s.p.Number:
		if s.Open() {
			// Its verdict was missed. It was dropped: had it been agreed, there would be no
			// other before its step is behind every rank.
			b.Verdict, b.Word = s.p.Number, Dropped
		}
		s.p, s.answers = p, nil
		if p.State == wire.ProposalOpen {
			b.Proposal, b.Target = p.Number, p.Target
			return b, true
		}
		b.Verdict, b.Word = p.Number, WordOf(p)
		return b, true
	case !s.Open() || p.State == wire.ProposalOpen:
		return b, false
	}
	s.p = p
	b.Verdict, b.Word = p.Number, WordOf(p)
	return b, true
}

// Look looks at one rank and answers for it, once; news says that there is an answer which
// was not there before.
func (s *Shim) Look(rank int64, v View) (news bool) {
	if !s.Open() {
		return false
	}
	for _, a := range s.answers {
		if a.Rank == rank {
			return false
		}
	}
	answered, yes, why := Judge(s.p.Number, s.p.Target, v)
	if answered {
		s.answers = append(s.answers, wire.RankAnswer{Rank: rank, Number: s.p.Number, Yes: yes, Why: why})
	}
	return answered
}

// Answers are those given to the newest proposal, in the order in which they were given.
// They are repeated in every status until a newer proposal comes, so that a new leader
// hears them as well.
func (s *Shim) Answers() []wire.RankAnswer { return s.answers }

// Pace is what looks at a rank's page tell of it. The zero value knows nothing.
type Pace struct {
	seen   bool
	calls  uint64
	callAt int64
	gaps   [64]int64 // newest intervals between calls, ns
	n      int
	step   int64
	stepAt int64
	per    int64 // of one step, ns, newer ones counting more
}

// See takes what the page says at now; all times are ns of one monotonic clock. stepAt is
// when step was published.
func (p *Pace) See(now int64, calls uint64, step, stepAt int64) {
	if !p.seen || calls < p.calls || step < p.step {
		*p = Pace{seen: true, calls: calls, callAt: now, step: step, stepAt: stepAt, gaps: p.gaps, n: p.n, per: p.per}
		return
	}
	if calls > p.calls {
		if p.calls > 0 {
			p.gaps[p.n%len(p.gaps)] = (now - p.callAt) / int64(min(calls-p.calls, 1<<32))
			p.n++
		}
		p.calls, p.callAt = calls, now
	}
	if step > p.step && stepAt > p.stepAt {
		if p.step >= 0 && p.stepAt > 0 {
			per := max(1, (stepAt-p.stepAt)/(step-p.step))
			if p.per == 0 {
				p.per = per
			}
			p.per += (per - p.per) / 4
		}
		p.step, p.stepAt = step, stepAt
	}
}

// Quiet is how long no call was noticed.
func (p *Pace) Quiet(now int64) time.Duration {
	if !p.seen {
		return 0
	}
	return time.Duration(max(0, now-p.callAt))
}

// P99 is the 99th percentile of the newest intervals between calls: of so few, the longest.
func (p *Pace) P99() time.Duration {
	most := int64(0)
	for _, g := range p.gaps[:min(p.n, len(p.gaps))] {
		most = max(most, g)
	}
	return time.Duration(most)
}

// PerStep is about how long a step takes; 0: unknown.
func (p *Pace) PerStep() time.Duration { return time.Duration(p.per) }
