package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Alternative is one change of a request that waits, and what it would bring.
type Alternative struct {
	Change string    `json:"change"` // in words, as "without level rack"
	Now    bool      `json:"now"`    // it would start now
	After  []string  `json:"after,omitempty"`
	Start  time.Time `json:"start,omitzero"` // else: when it would be planned to start
}

// Alternatives drops one constraint of a waiting request after the other, each by itself, and
// says which of them would let it start now, or at least sooner. Each costs one cycle.
func Alternatives(s *Snapshot, group string, now time.Time) []Alternative {
	i := slices.IndexFunc(s.Pending, func(r *Request) bool { return r.ID == group })
	if i < 0 {
		return nil
	}
	base := Try(s, s.Pending[i], now)
	if base.Now {
		return nil
	}
	var out []Alternative
	for _, change := range droppings(s, s.Pending[i]) {
		r := *s.Pending[i]
		r.Spec.Bundles = slices.Clone(r.Spec.Bundles)
		change.do(&r)
		with := *s
		if change.limits {
			with.Queues = nil
		}
		a := Try(&with, &r, now)
		a.Change = change.text
		if a.Now || len(a.After) > 0 && len(base.After) == 0 || !a.Start.IsZero() && (base.Start.IsZero() || a.Start.Before(base.Start)) {
			out = append(out, a)
		}
	}
	if n := fewer(s, s.Pending[i], now); n > 0 {
		out = append(out, Alternative{Change: fmt.Sprintf("with %s instead of %d", plural(n, "bundle"), len(s.Pending[i].Spec.Bundles)), Now: true})
	}
	slices.SortStableFunc(out, func(a, b Alternative) int {
		return cmp.Or(-cmp.Compare(btoi(a.Now), btoi(b.Now)), -cmp.Compare(min(1, len(a.After)), min(1, len(b.After))), a.Start.Compare(b.Start))
	})
	return out
}

// Try is what would become of a request, in the place of the one with its id or beside the
// others: it starts now, after some have been preempted for it, or later.
func Try(s *Snapshot, r *Request, now time.Time) Alternative {
	with := *s
	with.Pending = slices.DeleteFunc(slices.Clone(s.Pending), func(p *Request) bool { return p.ID == r.ID })
	with.Pending = append(with.Pending, r)
	res := NewPlanner().Plan(&with, now)
	var a Alternative
	for i := range res.Decisions {
		if d := &res.Decisions[i]; d.Group == r.ID {
			a.Now, a.Start = d.Bundles != nil, d.Start
		}
	}
	if f, ok := res.Forecast(r.ID); ok && !a.Now { // of what its quota refuses, no start is planned
		a.Start = f.Start
	}
	for i := range res.Evictions {
		if e := &res.Evictions[i]; e.Preemptor == r.ID {
			for _, v := range e.Victims {
				a.After = append(a.After, v.Name)
			}
		}
	}
	return a
}

// dropping is one constraint that can be dropped.
type dropping struct {
	text   string
	do     func(*Request)
	limits bool // those of tenants and queues, which are not the request's
}

// droppings lists the constraints that a request has.
func droppings(s *Snapshot, r *Request) []dropping {
	var out []dropping
	add := func(has bool, text string, do func(*Request)) {
		if has {
			out = append(out, dropping{text: text, do: do})
		}
	}
	spec := &r.Spec
	labelled := slices.ContainsFunc(spec.Bundles, func(b api.Bundle) bool { return len(b.Labels) > 0 })
	add(labelled, "without the labels of its bundles", func(r *Request) {
		for i := range r.Spec.Bundles {
			r.Spec.Bundles[i].Labels = nil
		}
	})
	add(len(spec.Where) > 0, "without its rules on node labels", func(r *Request) { r.Spec.Where = nil })
	add(spec.Pool != "", "in any pool", func(r *Request) { r.Spec.Pool = "" })
	add(spec.Level != "", "without level "+spec.Level, func(r *Request) { r.Spec.Level, r.Spec.LevelWait = "", nil })
	add(spec.WholeNodes, "without whole nodes", func(r *Request) { r.Spec.WholeNodes = false })
	add(spec.Strategy == api.StrictPack || spec.Strategy == api.StrictSpread, "without "+string(spec.Strategy), func(r *Request) { r.Spec.Strategy = api.Pack })
	add(spec.PerNode > 0, "without so many on each node", func(r *Request) { r.Spec.PerNode = 0 })
	for _, u := range spec.Uses {
		add(true, "without its use of "+u.Of, func(r *Request) {
			r.Spec.Uses = slices.DeleteFunc(slices.Clone(r.Spec.Uses), func(x api.Amount) bool { return x.Of == u.Of })
		})
	}
	add(spec.Reservation != "", "without reservation "+spec.Reservation, func(r *Request) { r.Spec.Reservation = "" })
	add(len(r.Avoid) > 0, "on the nodes that it keeps off", func(r *Request) { r.Avoid = nil })
	add(!spec.Preemptible, "as preemptible work", func(r *Request) { r.Spec.Preemptible = true })
	add(spec.Preemptible, "as work that may not be preempted", func(r *Request) { r.Spec.Preemptible = false })
	add(true, "with the highest priority", func(r *Request) { r.Spec.Priority = MaxPriority })
	for _, d := range []time.Duration{r.runs() / 2, time.Hour, 10 * time.Minute} {
		add(d < r.runs() && d >= time.Minute, "if it ran no longer than "+spell(d), func(r *Request) {
			r.Expect, r.Spec.Estimate, r.Spec.TimeLimit = d, 0, 0
		})
	}
	if s.Queues != nil {
		out = append(out, dropping{text: "without the limits of tenants and queues", do: func(*Request) {}, limits: true})
	}
	return out
}

// fewer is the largest smaller number of equal bundles that would start now; 0: none.
func fewer(s *Snapshot, r *Request, now time.Time) int64 {
	n := len(r.Spec.Bundles)
	if n < 2 || len(newDemand(r, now).classes) != 1 || len(r.Spec.Roles) > 0 {
		return 0
	}
	starts := func(k int) bool {
		less := *r
		less.Spec.Bundles = r.Spec.Bundles[:k]
		if p := r.Spec.PerNode; p > 0 && int64(k)%p != 0 {
			return false
		}
		return Try(s, &less, now).Now
	}
	step := max(1, int(r.Spec.PerNode))
	// The first multiple that does not start: fewer equal bundles never fit worse.
	k := searchFirst(n/step, func(k int) bool { return !starts((k+1)*step) || k == n/step-1 })
	if k == 0 || !starts(k*step) {
		return 0
	}
	return int64(k * step)
}
