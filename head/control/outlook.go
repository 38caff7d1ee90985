package control

import (
	"context"
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/head/gang"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// foreseen is the id of a request that is not made.
const foreseen = "(foreseen)"

// Outlook says what would become of a job, if it were submitted now, and changes nothing.
// It is refused as the submission would be.
func (h *Head) Outlook(ctx context.Context, spec api.JobSpec) (api.Outlook, error) {
	v := h.Store.View()
	spec, errs := canonical(spec)
	if len(errs) > 0 {
		return api.Outlook{}, invalid(errs)
	}
	spec.Pool = poolOf(v, askingOf(spec))
	if p := admit(v, askingOf(spec)); p != nil {
		return api.Outlook{}, p
	}
	if spec.PlacementGroup != "" || spec.Hosts != nil {
		return api.Outlook{}, problem(422, "TRP-A422", api.ExitBadInput, "the request is not valid",
			"only a job that asks for a placement group of its own can be foreseen")
	}
	gs, errs := groupSpecOf(spec)
	if len(errs) > 0 {
		return api.Outlook{}, invalid(errs)
	}
	out := api.Outlook{Ranks: spec.Ranks}
	p := h.neverSized(v, spec, gs)
	if p == nil {
		p = h.neverSpares(v, spec, gs)
	}
	if p != nil {
		out.Never, out.Answer = true, p.Detail
		out.Reasons = []api.Reason{{Code: api.ReasonNeverFits, Text: p.Detail, Frees: p.Help}}
		return out, nil
	}
	out.Ranks, _ = h.startSize(v, foreseen, spec, gs)
	gs = gang.Sized(gs, spec.Ranks, out.Ranks)
	user := h.who(ctx)
	now := h.Clock.Now()
	r := &schedule.Request{
		ID: foreseen, Name: spec.Name, User: user, Spec: gs, Seq: v.Index() + 1, Since: now, Expect: v.Expect(&state.Group{Spec: gs, User: user}),
	}
	s := h.snapshotOf(v)
	s.Pending = append(s.Pending, r)
	result := schedule.NewPlanner().Plan(s, now)
	out.Expect, out.Quota = unit.Duration(r.Expect), quotaAfter(v, gs)
	for _, d := range result.All() {
		if d.Group != foreseen {
			continue
		}
		for _, b := range d.Bundles {
			b.Node = nodeName(v, b.Node)
			out.Bundles = append(out.Bundles, b)
		}
		out.Starts, out.Start = d.Bundles != nil, d.Start
		if d.Bundles == nil {
			out.Reasons, out.Position = result.Why(foreseen), int64(result.Position(foreseen))
			if f, ok := result.Forecast(foreseen); ok {
				out.Start = f.Start
			}
		}
	}
	for _, e := range result.Evictions {
		if e.Preemptor != foreseen {
			continue
		}
		for _, x := range e.Victims {
			out.Victims = append(out.Victims, api.PlannedLeave{Group: x.Group, Name: x.Name, Keeps: x.Keeps, Why: x.Why})
		}
	}
	out.Answer = outlookText(&out)
	return out, nil
}

func outlookText(o *api.Outlook) string {
	switch {
	case o.Starts:
		nodes := map[string]bool{}
		for _, b := range o.Bundles {
			nodes[b.Node] = true
		}
		return fmt.Sprintf("It would start now: %s on %s.", counted(int(o.Ranks), "rank"), counted(len(nodes), "node"))
	case len(o.Victims) > 0:
		return fmt.Sprintf("It would start once %s had left for it.", counted(len(o.Victims), "group"))
	}
	text := "It would wait"
	if !o.Start.IsZero() {
		text += " until about " + o.Start.UTC().Format(time.RFC3339)
	}
	if len(o.Reasons) > 0 {
		text += ": " + o.Reasons[0].Text
	}
	return text
}

// quotaAfter is what would be charged of the things that any quota of the path counts.
func quotaAfter(v *state.View, gs api.GroupSpec) []api.QuotaAfter {
	path, err := v.Tree().Path(gs.Tenant, gs.Queue)
	if err != nil {
		return nil
	}
	var out []api.QuotaAfter
	need := needOf(&gs)
	for _, q := range path {
		var charged api.Amounts
		if a := v.QueueAccount(q.Name); a != nil {
			charged = a.Charged
		}
		for _, n := range need {
			row := api.QuotaAfter{Queue: q.Name, Of: n.Of}
			if g, ok := q.Guaranteed.Get(n.Of); ok {
				row.Guaranteed = &g
			}
			if l, ok := q.Limit.Get(n.Of); ok {
				row.Limit = &l
			}
			if row.Guaranteed == nil && row.Limit == nil {
				continue
			}
			row.Used, _ = charged.Get(n.Of)
			row.After = row.Used + n.N
			out = append(out, row)
		}
	}
	return out
}
