package control

import (
	"context"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// snapshotOf turns a view into what the scheduler looks at.
func (h *Head) snapshotOf(v *state.View) *schedule.Snapshot {
	return h.survey.Snapshot(v, h.Clock.Now().UnixNano())
}

// schedule places what waits and fits.
func (h *Head) schedule(ctx context.Context) {
	order, byID := h.plan(h.Store.View())
	for _, id := range order {
		if b := byID[id].Bundles; b != nil {
			h.try(ctx, state.KindPlaceGroup, state.PlaceGroup{Group: id, Placement: b})
		}
	}
}

// placeNow asks the scheduler for a request that is not in the log yet, so that
// record and placement can share one entry. What waits already keeps its turn.
func (h *Head) placeNow(v *state.View, id string, spec api.GroupSpec) []api.Placed {
	r := &schedule.Request{ID: id, Name: id, Spec: spec, Seq: v.Index() + 1}
	bundles, _ := planOne(h.snapshotOf(v), r, h.Clock.Now())
	return bundles
}

// planOne adds a request to a snapshot and returns what is decided on it.
func planOne(s *schedule.Snapshot, r *schedule.Request, now time.Time) ([]api.Placed, []api.Reason) {
	s.Pending = append(s.Pending, r)
	for _, d := range schedule.Plan(s, now) {
		if d.Group == r.ID {
			return d.Bundles, d.Reasons
		}
	}
	return nil, nil
}

// planned is the scheduler's word on everything that waits, at one index.
type planned struct {
	mu    sync.Mutex
	index uint64
	byID  map[string]schedule.Decision
	order []string
	until int64 // when an exclusion ends that it went by; 0: none does
}

// plan asks the scheduler once for each index: the loop, every list and every `why`
// at that index share the answer.
func (h *Head) plan(v *state.View) ([]string, map[string]schedule.Decision) {
	h.planned.mu.Lock()
	defer h.planned.mu.Unlock()
	now := h.Clock.Now()
	if h.planned.byID != nil && h.planned.index == v.Index() && (h.planned.until == 0 || now.UnixNano() < h.planned.until) {
		return h.planned.order, h.planned.byID
	}
	byID := map[string]schedule.Decision{}
	var order []string
	if len(v.PendingGroups()) > 0 {
		for _, d := range schedule.Plan(h.snapshotOf(v), now) {
			byID[d.Group] = d
			order = append(order, d.Group)
		}
	}
	if v.Index() >= h.planned.index {
		h.planned.index, h.planned.byID, h.planned.order = v.Index(), byID, order
		h.planned.until = nextReturn(v, now.UnixNano())
	}
	return order, byID
}

// reasonsFor explains why a waiting group waits, by the scheduler's own words (P7).
func (h *Head) reasonsFor(v *state.View, group string) []api.Reason {
	_, byID := h.plan(v)
	return byID[group].Reasons
}
