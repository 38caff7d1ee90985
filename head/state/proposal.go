package state

import (
	"fmt"

	"github.com/troupe-runtime/troupe/elastic/agree"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Propose asks the ranks of a job's open attempt to save after one step.
type Propose struct {
	Job      string         `json:"job"`
	Proposal agree.Proposal `json:"proposal"` // open
}

// Decide closes the open proposal of a job: agreed, or dropped with a code.
type Decide struct {
	Job    string `json:"job"`
	Number uint64 `json:"n"`
	Agreed bool   `json:"agreed,omitempty"`
	Code   string `json:"code,omitempty"`
	Why    string `json:"why,omitempty"`
}

// propose opens a proposal. Numbers grow over the life of a job, so that no page ever
// shows one twice; a second one is not opened before the first is decided.
func propose(t *tx, c Propose) any {
	j := t.Job(c.Job)
	switch {
	case j == nil:
		return refuse("not-found", "no job "+c.Job)
	case j.State.Terminal(), j.Last() == nil, j.Last().Ended != 0, j.Last().Generation != c.Proposal.Generation:
		return refuse("stale", "no such attempt of "+j.ID)
	case j.Proposal != nil && c.Proposal.Number <= j.Proposal.Number:
		return refuse("stale", fmt.Sprintf("proposal %d of %s follows %d", c.Proposal.Number, j.ID, j.Proposal.Number))
	case j.Proposal != nil && j.Proposal.Generation == c.Proposal.Generation && j.Proposal.State == wire.ProposalOpen:
		return refuse("conflict", fmt.Sprintf("proposal %d of %s is open", j.Proposal.Number, j.ID))
	case c.Proposal.State != wire.ProposalOpen || c.Proposal.Target < 1:
		return refuse("invalid", "a proposal is open and names a step")
	}
	w, p := *j, c.Proposal
	p.At = t.now
	w.Proposal, w.Index = &p, t.index
	t.put(tJob, &w)
	if j.Proposal == nil || j.Proposal.State != wire.ProposalDropped || j.Proposal.Code == agree.WhyPassed {
		t.event("proposal", "job/"+j.ID, "all ranks are asked to save after step %d", p.Target)
	}
	return nil
}

func decideProposal(t *tx, c Decide) any {
	j := t.Job(c.Job)
	switch {
	case j == nil:
		return refuse("not-found", "no job "+c.Job)
	case j.State.Terminal(), j.Proposal == nil, j.Proposal.Number != c.Number, j.Proposal.State != wire.ProposalOpen:
		return refuse("stale", fmt.Sprintf("proposal %d of %s is not open", c.Number, j.ID))
	case j.Last() == nil || j.Last().Generation != j.Proposal.Generation:
		return refuse("stale", "the attempt of the proposal has ended")
	}
	if c.Agreed && j.Proposal.Stop && j.Drain == nil {
		return refuse("conflict", "nobody asks "+j.ID+" to end any more")
	}
	w, p := *j, *j.Proposal
	again := p.Code != "" && p.Code == c.Code
	if c.Agreed {
		p.State, p.Code, p.Why = wire.ProposalAgreed, "", ""
		then := "go on"
		if p.Stop {
			then = "end"
		}
		t.event("step-agreed", "job/"+j.ID, "all ranks save after step %d and %s", p.Target, then)
	} else {
		p = p.Dropped(c.Code, cutText(c.Why, MaxEventText))
		if !again { // one that repeats every second is told once
			t.event("proposal-dropped", "job/"+j.ID, "step %d: %s", p.Target, c.Why)
		}
	}
	p.At = t.now
	w.Proposal, w.Index = &p, t.index
	t.put(tJob, &w)
	return nil
}

// AgreedEnd is the proposal after whose step the ranks of the newest attempt have agreed
// to end; nil when there is none.
func (j *Job) AgreedEnd() *agree.Proposal {
	p, last := j.Proposal, j.Last()
	if p == nil || last == nil || p.Generation != last.Generation || p.State != wire.ProposalAgreed || !p.Stop {
		return nil
	}
	return p
}

// SavedEnd is the committed checkpoint of the agreed last step, or of one after it; nil
// as long as there is none.
func (v *View) SavedEnd(j *Job) *Checkpoint {
	p := j.AgreedEnd()
	if p == nil {
		return nil
	}
	if c := v.NewestCommitted(j.Run()); c != nil && c.Generation == p.Generation && c.Step >= p.Target {
		return c
	}
	return nil
}
