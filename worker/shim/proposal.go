package shim

import (
	"time"

	"github.com/troupe-runtime/troupe/elastic/agree"
	"github.com/troupe-runtime/troupe/runtime/page"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// lookEvery is how often the pages are looked at while a proposal waits for an answer:
// ranks may be holding for it.
const lookEvery = 5 * time.Millisecond

// agreement is what a shim keeps of the proposals to one attempt (elastic/agree decides).
type agreement struct {
	shim  agree.Shim
	board agree.Board // what every rank's page shows
	// looking: a look is due, so that no second one is asked for.
	looking bool
}

// propose takes the newest proposal of the log to the attempt of a generation.
func (s *shim) propose(generation uint64, p *wire.Proposal) {
	a := s.att
	if p == nil || !a.active() || a.spec.Generation != generation {
		return // P3: another attempt's
	}
	board, changed := a.agree.shim.Hear(*p, a.agree.board)
	if !changed {
		return
	}
	a.agree.board = board
	if a.began {
		s.showBoard(a)
		s.keepLooking(a)
	}
}

// keepLooking looks at the ranks until all are answered for.
func (s *shim) keepLooking(a *attempt) {
	if s.att != a || !a.active() || !s.lookAtRanks(a) || a.agree.looking {
		return
	}
	a.agree.looking = true
	time.AfterFunc(lookEvery, func() {
		s.post(func() {
			a.agree.looking = false
			s.keepLooking(a)
		})
	})
}

// showBoard writes the verdict before the proposal: whoever sees a newer proposal sees
// that the older one is decided.
func (s *shim) showBoard(a *attempt) {
	for _, r := range a.ranks {
		a.showTo(r)
	}
}

func (a *attempt) showTo(r *rank) {
	b := a.agree.board
	if r.page != nil && r.page.p != nil {
		r.page.p.SetVerdict(b.Verdict, int64(b.Word))
		r.page.p.SetProposal(b.Proposal, b.Target)
	}
}

// lookAtRanks learns the ranks' paces and answers for those that can be answered for. It
// reports whether an answer is still owed.
func (s *shim) lookAtRanks(a *attempt) bool {
	now := page.Monotonic()
	news := false
	for _, r := range a.ranks {
		news = a.agree.shim.Look(r.spec.Rank, r.view(now)) || news
	}
	if news {
		s.send(s.status())
		s.voice.News()
	}
	return a.agree.shim.Open() && len(a.agree.shim.Answers()) < len(a.ranks)
}

// view reads the acknowledgement before the step; see agree.Judge.
func (r *rank) view(now int64) agree.View {
	if r.ended {
		return agree.View{Step: r.page.step(), Ended: true}
	}
	if r.page == nil || r.page.p == nil { // it has said nothing
		r.calls.See(now, 0, -1, 0)
		return agree.View{Step: -1, Quiet: r.calls.Quiet(now), P99: r.calls.P99()}
	}
	p := r.page.p
	v := agree.View{Acknowledged: p.Acknowledged(), Settled: p.Settled()}
	at, calls := p.Time(), p.Calls()
	v.Step, v.Calls = p.Step(), calls
	r.calls.See(now, calls, v.Step, min(at, now))
	v.Phase = p.Phase() > now
	v.Quiet, v.P99 = r.calls.Quiet(now), r.calls.P99()
	return v
}

// report is what the head hears of a rank's steps.
func (r *rank) report(now int64) wire.RankStep {
	out := wire.RankStep{Rank: r.spec.Rank, Step: r.page.step(), PID: int64(r.pid)}
	if r.page == nil || r.page.p == nil {
		return out
	}
	p := r.page.p
	if at := p.Time(); at > 0 && out.Step >= 0 {
		out.Age = unit.Duration(max(0, now-at))
	}
	out.Pace = unit.Duration(r.calls.PerStep())
	out.Bound, out.Settled = p.Acknowledged(), p.Settled()
	return out
}
