package control

import (
	"context"
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// StopSaved lets the ranks of a job agree on a step, save it and end, and returns when its
// processes are gone. A deadline of 0 waits as long as that takes. A job of which nothing
// runs is stopped at once.
func (h *Head) StopSaved(ctx context.Context, id string, deadline time.Duration, reason string) (api.Job, error) {
	if err := h.leader(); err != nil {
		return api.Job{}, err
	}
	j, err := h.Store.View().Resolve(id)
	if err != nil {
		return api.Job{}, h.problemOf(err)
	}
	if reason == "" {
		reason = "on request, with a checkpoint"
	}
	if !j.State.Terminal() && j.Stop == nil {
		d := state.Drain{Kind: state.DrainStop, Reason: reason}
		if deadline > 0 {
			d.Deadline = h.Clock.Now().Add(deadline).UnixNano()
		}
		if _, err := h.propose(ctx, state.KindDrainJob, state.DrainJob{Job: j.ID, Drain: d}); err != nil {
			return api.Job{}, h.problemOf(err)
		}
		h.Kick()
	}
	return h.ended(ctx, j.ID)
}

// DrainNode keeps new work off a node and, with drain, lets what runs there leave: each
// job saves at an agreed step and goes on elsewhere, or waits with its seniority. What has
// not left by the deadline is ended by force; 0: never.
func (h *Head) DrainNode(ctx context.Context, id string, drain bool, deadline time.Duration, reason string) (api.Node, error) {
	c := &state.NodeDrain{Drain: drain, Reason: reason}
	if deadline > 0 {
		c.Deadline = h.Clock.Now().Add(deadline).UnixNano()
	}
	return h.cordon(ctx, id, c)
}

// UncordonNode lets a node take work again and ends its drain. Jobs whose ranks have agreed
// to end still end, and may be placed on it again.
func (h *Head) UncordonNode(ctx context.Context, id string) (api.Node, error) {
	return h.cordon(ctx, id, nil)
}

func (h *Head) cordon(ctx context.Context, id string, c *state.NodeDrain) (api.Node, error) {
	if err := h.leader(); err != nil {
		return api.Node{}, err
	}
	if _, err := h.propose(ctx, state.KindDrainNode, state.DrainNode{ID: id, Cordon: c}); err != nil {
		return api.Node{}, h.problemOf(err)
	}
	h.Kick()
	nodes, _, err := h.Nodes(ctx)
	if err != nil {
		return api.Node{}, err
	}
	for _, n := range nodes {
		if n.ID == id {
			return n, nil
		}
	}
	return api.Node{}, notFound("node", id)
}

// cordonView is how far the drain of a node has come (P7).
func (h *Head) cordonView(v *state.View, n *state.Node) *api.Cordon {
	c := n.Cordoned()
	if c == nil {
		return nil
	}
	out := &api.Cordon{Drain: c.Drain, Reason: c.Reason, Since: at(c.Since), Deadline: at(c.Deadline)}
	if s := n.Notice; s != nil {
		out.Notice = &api.Notice{Reason: s.Reason, Since: at(s.Since), Deadline: at(s.Deadline)}
	}
	if !c.Drain {
		return out
	}
	holds := v.HoldsOn(n.ID)
	out.Drained = len(holds) == 0
	seen := map[string]bool{}
	for _, hold := range holds {
		if seen[hold.Group] {
			continue
		}
		seen[hold.Group] = true
		jobs := 0
		for _, j := range v.JobsOf(hold.Group) {
			if !j.State.Terminal() {
				jobs++
				out.Jobs = append(out.Jobs, api.DrainingWork{Job: j.ID, Group: hold.Group, Waits: h.drainText(v, j)})
			}
		}
		if jobs == 0 {
			out.Jobs = append(out.Jobs, api.DrainingWork{Group: hold.Group, Waits: "the proof that its processes are gone"})
		}
	}
	return out
}

// drainText says what a job that is being drained waits for.
func (h *Head) drainText(v *state.View, j *state.Job) string {
	last, d := j.Last(), j.Drain
	switch {
	case j.Stop != nil || j.OwnerGone:
		return "the end of its processes: it is being stopped"
	case d != nil && d.Kind == state.DrainSuspend && last != nil && last.Ended != 0:
		return "the proof that its processes are gone"
	case d == nil || last == nil || last.Ended != 0:
		return "its next placement, and the proof that its processes are gone"
	case d.Ordered != "" && d.Generation == last.Generation:
		return "the end of its ranks: " + d.Ordered
	}
	p := j.Proposal
	switch {
	case d.Kind == state.DrainResize && !h.gangs(v).WorthEnding(j):
		return fmt.Sprintf("room for %d ranks", d.Ranks)
	case p == nil || p.Generation != last.Generation:
		return "its ranks to be asked for a step"
	case p.State == wire.ProposalOpen:
		return fmt.Sprintf("the ranks' answers about step %d", p.Target)
	case p.State == wire.ProposalAgreed:
		if ck := v.SavedEnd(j); ck != nil {
			return fmt.Sprintf("the end of its ranks; step %d is saved", ck.Step)
		}
		return fmt.Sprintf("the commit of step %d", p.Target)
	}
	return "an agreement on a step: " + p.Why
}
