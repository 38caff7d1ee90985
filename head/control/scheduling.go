package control

import (
	"context"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/head/gang"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// snapshotOf turns a view into what the scheduler looks at.
func (h *Head) snapshotOf(v *state.View) *schedule.Snapshot {
	s := h.survey.Snapshot(v, h.Clock.Now().UnixNano())
	if v.Settings().Policy.Protect == nil {
		s.Policy.Protect = h.Timing.Protect
	}
	return s
}

// gangs decides where single gangs go on, at a view and by now.
func (h *Head) gangs(v *state.View) gang.Cluster {
	return gang.Cluster{View: v, Now: h.Clock.Now(), Snapshot: func() *schedule.Snapshot { return h.snapshotOf(v) }}
}

// schedule places what waits and fits, and makes room for what is more important.
func (h *Head) schedule(ctx context.Context) {
	v := h.Store.View()
	r := h.plan(v)
	if r == nil {
		return
	}
	all := unclaim(r) // what was claimed may be placed on at once
	for i := range r.Decisions {
		if d := &r.Decisions[i]; d.Bundles != nil {
			all = append(all, command{state.KindPlaceGroup, state.PlaceGroup{Group: d.Group, Placement: d.Bundles}})
		}
	}
	h.tryAll(ctx, append(all, h.makeRoom(r)...))
	h.grow(ctx, v, r)
}

// planAge is how old a planned start may become before an earlier one is looked for.
const planAge = 10 * time.Second

// planned is the scheduler's word on everything that waits, at one index.
type planned struct {
	mu      sync.Mutex
	planner *schedule.Planner
	index   uint64
	known   bool
	result  *schedule.Result // nil: nothing waited
	until   int64            // when time alone may change it, ns; 0: it does not
}

// plan asks the scheduler once for each index: the loop, every list and every `why`
// at that index share the answer. It is nil when nothing waits.
func (h *Head) plan(v *state.View) *schedule.Result {
	p := &h.planned
	p.mu.Lock()
	defer p.mu.Unlock()
	now := h.Clock.Now()
	if p.known && p.index == v.Index() && (p.until == 0 || now.UnixNano() < p.until) {
		return p.result
	}
	// With nothing else to decide there is time to plan further ahead.
	plan := p.planner.Plan
	if p.known && p.index == v.Index() {
		plan = p.planner.Replan
	}
	var r *schedule.Result
	until := nextReturn(v, now.UnixNano())
	if len(v.PendingGroups()) > 0 || gang.MayGrow(v) {
		r = plan(h.snapshotOf(v), now)
		if again := r.Again; !again.IsZero() && (until == 0 || again.UnixNano() < until) {
			until = again.UnixNano()
		}
	}
	if v.Index() >= p.index {
		p.index, p.known, p.result, p.until = v.Index(), true, r, until
	}
	return r
}

// reasonsFor explains why a waiting group waits, by the scheduler's own words (P7).
func (h *Head) reasonsFor(v *state.View, group string) []api.Reason {
	if r := h.plan(v); r != nil {
		return r.Why(group)
	}
	return nil
}
