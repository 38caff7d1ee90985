package control

import (
	"context"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/elastic/agree"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// saves are the jobs whose ranks are to save soon, by agreement, and go on. They are
// forgotten with the leadership: whoever wants one asks again.
type saves struct {
	mu   sync.Mutex
	want map[string]uint64 // job → generation
}

// ProposeCheckpoint makes the ranks of a job's running attempt agree on a step and save
// after it, once. It may be called again at any time; while one is under way it is the
// same one. It reports false when no attempt runs.
func (h *Head) ProposeCheckpoint(job string) bool {
	j := h.Store.View().Job(job)
	if j == nil || j.State != api.Running || j.Last() == nil || j.Last().Ended != 0 {
		return false
	}
	h.saves.mu.Lock()
	if h.saves.want == nil {
		h.saves.want = map[string]uint64{}
	}
	h.saves.want[job] = j.Last().Generation
	h.saves.mu.Unlock()
	h.Kick()
	return true
}

func (s *saves) wanted(job string, generation uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.want[job]
	if ok && g != generation {
		delete(s.want, job)
	}
	return ok && g == generation
}

func (s *saves) done(job string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.want, job)
}

// hearAnswers lets the loop look at once when ranks have answered a proposal: others may
// be holding for them.
func (h *Head) hearAnswers(allocs []wire.AllocStatus) {
	v := h.Store.View()
	for _, a := range allocs {
		if j := v.Job(a.Job); j != nil && len(a.Answers) > 0 && j.Proposal != nil && j.Proposal.State == wire.ProposalOpen {
			h.Kick()
			return
		}
	}
}

// heldNoEvidence is how long ranks that may hold for a verdict must stand still before that
// is evidence of death.
const heldNoEvidence = 3500 * time.Millisecond

// heldWait is how long a job's ranks must stand still to prove a node lost: longer while a
// proposal may make them hold.
func (h *Head) heldWait(j *state.Job, wait time.Duration) time.Duration {
	p, last := j.Proposal, j.Last()
	if p == nil || last == nil || p.Generation != last.Generation ||
		p.State != wire.ProposalOpen && h.Clock.Now().Sub(time.Unix(0, p.At)) > heldNoEvidence {
		return wait
	}
	return max(wait, heldNoEvidence)
}

// agreeOne takes one decision about the agreement of a job's open attempt, and returns
// when time alone wants the next; unable says why none is possible.
func (h *Head) agreeOne(ctx context.Context, v *state.View, j *state.Job) (delay time.Duration, unable string) {
	last := j.Last()
	f := h.agreeFacts(v, j, last)
	if f.Last != nil && f.Last.State == wire.ProposalOpen && f.Last.Stop && f.Want != agree.WantStop {
		h.try(ctx, state.KindDecide, state.Decide{Job: j.ID, Number: f.Last.Number, Code: "cancelled", Why: "nobody asks for it any more"})
		return 0, ""
	}
	d := agree.Decide(f)
	switch d.Action {
	case agree.Propose:
		d.Proposal.Generation = last.Generation
		h.try(ctx, state.KindPropose, state.Propose{Job: j.ID, Proposal: d.Proposal})
	case agree.Agree:
		if _, ok := h.try(ctx, state.KindDecide, state.Decide{Job: j.ID, Number: f.Last.Number, Agreed: true}); ok && !f.Last.Stop {
			h.saves.done(j.ID)
		}
	case agree.Drop:
		h.try(ctx, state.KindDecide, state.Decide{Job: j.ID, Number: f.Last.Number, Code: d.Code, Why: d.Why})
	case agree.Unable:
		return 0, d.Why
	case agree.Wait:
	}
	return d.Delay, ""
}

// agreeFacts gathers what the decision depends on.
func (h *Head) agreeFacts(v *state.View, j *state.Job, last *state.Attempt) agree.Facts {
	f := agree.Facts{Now: h.Clock.Now(), World: int64(len(last.Ranks))}
	switch {
	case j.Drain != nil:
		f.Want = agree.WantStop
	case h.saves.wanted(j.ID, last.Generation):
		f.Want = agree.WantSave
	}
	if p := j.Proposal; p != nil {
		f.Number = p.Number
		if p.Generation == last.Generation {
			f.Last = p
		}
	}
	for _, id := range last.Allocs {
		a := v.Alloc(id)
		if a == nil || a.Generation != last.Generation {
			continue
		}
		if n := v.Node(a.Node); n == nil || n.State != api.NodeReady && !h.speaksFor(n, id) {
			f.Silent = nodeName(v, a.Node)
		}
		reports, answers := h.nodes.agreement(a.Node, id, last.Generation)
		f.Reports, f.Answers = append(f.Reports, reports...), append(f.Answers, answers...)
	}
	return f
}

// agreement is what a node said last of an allocation's ranks.
func (s *sessions) agreement(node, alloc string, generation uint64) ([]agree.Report, []wire.RankAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, at, ok := s.newest(node, alloc)
	if !ok || a.Generation != generation {
		return nil, nil
	}
	since := s.clock.Now().Sub(at)
	var out []agree.Report
	for _, r := range a.Steps {
		out = append(out, agree.Report{Rank: r.Rank, Step: r.Step, Age: r.Age.D() + since, Pace: r.Pace.D(), Bound: r.Bound, Settled: r.Settled})
	}
	return out, a.Answers
}
