package schedule

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// A request that its quota does not let start takes no place in the plan: what is kept for
// it would be kept from those that may start. When it is expected to start is worked out for
// who asks, and nothing is held for that.

// A quota's future: who gives something back when, the first one first.
type returns []giving

type giving struct {
	at     int64
	h      *Holder  // that ends; nil: r does
	r      *Request // that starts before the one that is asked about
	needs  []int64
	ending string // why it is expected to have ended then
}

func (g giving) name() string {
	if g.h != nil {
		return g.h.called()
	}
	return g.r.called()
}

func (g giving) spec() *api.GroupSpec {
	if g.h != nil {
		return g.h.Spec
	}
	return &g.r.Spec
}

func (r returns) Len() int { return len(r) }
func (r returns) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(r[i].at, r[j].at), naturalCompare(r[i].name(), r[j].name())) < 0
}
func (r returns) Swap(i, j int) { r[i], r[j] = r[j], r[i] }
func (r *returns) Push(x any) {
	if g, ok := x.(giving); ok {
		*r = append(*r, g)
	}
}

func (r *returns) Pop() any {
	last := (*r)[len(*r)-1]
	*r = (*r)[:len(*r)-1]
	return last
}

// quotaForecast is when a request of the order that its quota refuses is expected to start:
// once enough of what counts against the quota has ended, with those before it in its queue
// started first, and there is room beside all that is planned.
func (r *Result) quotaForecast(turn int) (Forecast, bool) {
	c := r.cycle
	req := c.order[turn]
	least, d, _ := c.atLeast(req, newDemand(req, c.now))
	q := c.quotas.copied()
	path := q.of(req.Spec.Tenant, req.Spec.Queue)
	if q.admits(path, least, q.needs(d.sum(), least.Spec.Uses, int64(d.total))) || path.wrong != nil {
		return Forecast{}, false
	}
	future := &returns{}
	for _, h := range r.explainer().holders {
		if h.Spec == nil || h.Releasing || !q.keeps && !path.meets(q.of(h.Spec.Tenant, h.Spec.Queue)) {
			continue
		}
		end, why := h.ends(nanos(c.now))
		if fresh := r.explain.fresh[h.Group]; fresh != nil {
			end, why = after(nanos(c.now), fresh.runs()), fresh.assumed()
		}
		*future = append(*future, giving{at: end, h: h, needs: q.heldBy(h), ending: why})
	}
	heap.Init(future)
	var gone []giving
	free, ok := nanos(c.now), true
	for i := 0; i <= turn && ok; i++ {
		x := c.order[i]
		own := q.of(x.Spec.Tenant, x.Spec.Queue)
		if i < turn && (c.fates[i].placed > 0 || len(x.Claim) > 0 || c.fates[i].starts || len(own.path) == 0 || len(path.path) == 0 || own.path[0] != path.path[0]) {
			continue // it starts, or is planned, or is in another queue
		}
		part, pd, _ := c.atLeast(x, newDemand(x, c.now))
		needs := q.needs(pd.sum(), part.Spec.Uses, int64(pd.total))
		begun := q.copied()
		at, left := free, slices.Clone(*future)
		var ended []giving
		for ok = q.admits(own, part, needs); !ok && future.Len() > 0; ok = q.admits(own, part, needs) {
			if g, is := heap.Pop(future).(giving); is {
				q.end(g)
				at, ended = max(at, g.at), append(ended, g)
			}
		}
		if i < turn && !ok { // it never starts, and is in nobody's way
			q, *future, ok = begun, left, true
			continue
		}
		free, gone = at, append(gone, ended...)
		if i < turn {
			q.charge(part, needs)
			heap.Push(future, giving{at: after(free, part.runs()), r: part, needs: needs, ending: part.assumed()})
		}
	}
	if !ok || free >= forever-1 {
		return Forecast{}, false
	}
	e := c.startFrom(turn, least, d, free, r.left, r.planned)
	if e == nil {
		return Forecast{}, false
	}
	f := Forecast{Start: moment(e.from)}
	for _, g := range slices.Backward(gone) {
		f.tell(g.name(), g.at, g.ending)
	}
	f.wait(e)
	f.rest()
	f.Assumptions = append(f.Assumptions, fmt.Sprintf("%s runs for %s: %s", req.called(), spell(req.runs()), req.assumed()),
		"its quota does not let it start before, so no nodes are kept for it until then")
	return f, true
}

// tell notes that a start waits for somebody's end.
func (f *Forecast) tell(name string, ends int64, why string) {
	if len(f.After) == api.MaxBlockers {
		f.more++
		return
	}
	f.After = append(f.After, name)
	f.Assumptions = append(f.Assumptions, fmt.Sprintf("%s ends by %s: %s", name, stamp(ends), why))
}

// wait notes what a planned start waits for: the end of others, and of what is left of the
// request itself.
func (f *Forecast) wait(e *plannedStart) {
	for _, o := range e.after {
		switch {
		case o.group == e.request.ID:
			f.Assumptions = append(f.Assumptions, fmt.Sprintf("its own processes of the attempt before are gone by %s: %s", stamp(o.ends), o.assumed))
		case !slices.Contains(f.After, o.name):
			f.tell(o.name, o.ends, o.assumed)
		}
	}
}

// rest says how many there are that were not named.
func (f *Forecast) rest() {
	if f.more > 0 {
		f.Assumptions = append(f.Assumptions, fmt.Sprintf("%d more have ended by then", f.more))
	}
}

// meets reports whether something counts against both.
func (c *charging) meets(other *charging) bool {
	return slices.ContainsFunc(c.path, func(a *account) bool { return slices.Contains(other.path, a) })
}

// copied is the same quotas to try something out on.
func (q *quotas) copied() *quotas {
	out := *q
	out.later = nil
	out.used, out.assured, out.own, out.room = slices.Clone(q.used), slices.Clone(q.assured), slices.Clone(q.own), slices.Clone(q.room)
	return &out
}

// end takes out what somebody gives back.
func (q *quotas) end(g giving) {
	spec := g.spec()
	q.unhold(q.of(spec.Tenant, spec.Queue), g.needs, spec.Preemptible)
	if q.keeps {
		for i, n := range g.needs {
			q.room[i] += n
		}
	}
}

// startFrom is the earliest start from a moment on beside what runs and what is planned; nil:
// none is known. It keeps nothing.
func (c *cycle) startFrom(turn int, r *Request, d *demand, from int64, free *overlay, plan []*plannedStart) *plannedStart {
	p := newProfile(c.s, free.clone(), c.now)
	p.begin(c.order, 0)
	for i := range c.placed {
		p.started(c.placed[i].request, -1, c.placed[i].spots)
	}
	for i := range c.aside {
		p.claimed(c.aside[i])
	}
	for _, x := range c.order {
		if x.keepsFormer(c.now) {
			p.former(x, newDemand(x, c.now))
		}
	}
	for _, e := range plan {
		if e.turn < 0 || e.turn >= turn {
			continue // a claim, or after it
		}
		own, who := *e, *e.who
		own.who, who.start, who.nodes = &who, &own, nil
		p.add(&own)
	}
	return p.earliest(turn, r, d, from, func(t time.Time) *demand { return newDemand(r, t) })
}
