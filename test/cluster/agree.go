package cluster

import (
	"time"

	"github.com/troupe-runtime/troupe/elastic/agree"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// lookEvery is how often a simulated shim looks at its ranks while a proposal is open.
const lookEvery = 5 * time.Millisecond

// agreement is what a simulated shim keeps of the proposals to one attempt.
type agreement struct {
	shim  agree.Shim
	board agree.Board
	news  chan struct{} // closed and made anew when the board changes
	timer *time.Timer
}

// propose is worker/shim's; s.mu is held.
func (s *simShim) propose(generation uint64, p *wire.Proposal) {
	a := s.att
	if p == nil || !a.active() || a.spec.Generation != generation {
		return
	}
	board, changed := a.agree.shim.Hear(*p, a.agree.board)
	if !changed {
		return
	}
	a.agree.board = board
	if a.agree.news != nil {
		close(a.agree.news)
		a.agree.news = nil
	}
	s.keepLooking(a)
}

// keepLooking looks at the ranks until all are answered for; s.mu is held.
func (s *simShim) keepLooking(a *attempt) {
	if s.dead || s.att != a || !a.active() || !a.began {
		return
	}
	now := time.Now().UnixNano()
	news := false
	for _, r := range a.ranks {
		r.pace.See(now, r.calls, r.step, r.stepAt)
		news = a.agree.shim.Look(r.spec.Rank, agree.View{
			Step: r.step, Calls: r.calls, Acknowledged: r.agree.Acknowledged, Settled: r.agree.Settled, Ended: r.ended,
			Quiet: r.pace.Quiet(now), P99: r.pace.P99(),
		}) || news
	}
	if news {
		s.tell(s.status())
		s.voice.News()
	}
	if a.agree.shim.Open() && len(a.agree.shim.Answers()) < len(a.ranks) {
		if a.agree.timer != nil {
			a.agree.timer.Stop()
		}
		a.agree.timer = time.AfterFunc(lookEvery, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.keepLooking(a)
		})
	}
}

// shouldCheckpoint is the rank's call: it holds while the rank is bound to the step and
// the verdict is not there; ok is false when the process has ended meanwhile.
func (r *rank) shouldCheckpoint(done <-chan struct{}, step int64) (move agree.Move, ok bool) {
	for first := true; ; first = false {
		r.s.mu.Lock()
		if first {
			r.calls++
		}
		move = r.agree.Call(step, r.a.agree.board)
		if r.a.agree.news == nil {
			r.a.agree.news = make(chan struct{})
		}
		news := r.a.agree.news
		r.s.mu.Unlock()
		if move != agree.Hold {
			return move, true
		}
		select {
		case <-news:
		case <-done:
			return agree.Go, false
		}
	}
}

// report is what the head hears of the rank; s.mu is held.
func (r *rank) report() wire.RankStep {
	now := time.Now().UnixNano()
	r.pace.See(now, r.calls, r.step, r.stepAt)
	out := wire.RankStep{
		Rank: r.spec.Rank, Step: r.step, PID: r.pid, Pace: unit.Duration(r.pace.PerStep()),
		Bound: r.agree.Acknowledged, Settled: r.agree.Settled,
	}
	if r.stepAt > 0 {
		out.Age = unit.Duration(max(1, now-r.stepAt))
	}
	return out
}

// acted notes what a rank did after a step beside going on: all ranks of a generation must
// have done the same, whatever was agreed or dropped.
func (c *Cluster) acted(generation uint64, rank, step int64, move agree.Move) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.acts == nil {
		c.acts = map[act]map[int64]agree.Move{}
	}
	k := act{generation, step}
	if c.acts[k] == nil {
		c.acts[k] = map[int64]agree.Move{}
	}
	c.acts[k][rank] = move
}

type act struct {
	generation uint64
	step       int64
}

// checkActs: a rank that ended after a step, and one that went on with another after it,
// have taken different steps. A save that others did not make is found at its commit.
func (c *Cluster) checkActs() {
	c.mu.Lock()
	var bad []act
	for k, moves := range c.acts {
		seen := map[bool]bool{}
		for _, m := range moves {
			seen[m == agree.SaveAndEnd] = true
		}
		if len(seen) > 1 {
			bad = append(bad, k)
		}
	}
	c.mu.Unlock()
	for _, k := range bad {
		c.fail("agreement: after step %d of generation %d some ranks ended and others went on", k.step, k.generation)
	}
}
