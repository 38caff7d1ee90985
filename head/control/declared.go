package control

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/head/declare"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// maxHalfLife bounds the half-life of use.
const maxHalfLife = 10 * 365 * 24 * time.Hour

// Declared is what is declared beside nodes and queues.
func (h *Head) Declared(context.Context) (api.Declared, error) {
	v := h.Store.View()
	s := v.Settings()
	out := api.Declared{
		Reservations: []api.ReservationStatus{}, Capacities: []api.CapacityStatus{}, Levels: []api.Level{}, Links: []api.Link{},
		HalfLife: unit.Duration(s.HalfLifeOfUse()), Scheduler: s.Policy, Index: v.Index(),
	}
	out.Levels = append(out.Levels, s.Levels...)
	got := h.bookings(v)
	for _, r := range v.Reservations() {
		x := r.Spec
		x.Start, x.End = x.Start.UTC(), x.End.UTC()
		b := got[x.Name]
		out.Reservations = append(out.Reservations, api.ReservationStatus{
			Reservation: x, Has: b.Nodes, Lacks: b.Missing, By: r.By, Changed: at(r.Changed), Index: r.Index,
		})
	}
	for _, c := range v.Capacities() {
		x := api.CapacityStatus{Capacity: c.Spec, Index: c.Index}
		for domain, n := range v.CapacityUse(c.Name) {
			x.Used += n
			if c.Spec.Level != "" {
				if x.In == nil {
					x.In = map[string]int64{}
				}
				x.In[domain] = n
			}
		}
		out.Capacities = append(out.Capacities, x)
	}
	for _, l := range v.Links() {
		x := l.Spec
		x.Checked = x.Checked.UTC()
		out.Links = append(out.Links, x)
	}
	return out, nil
}

// bookings are what the reservations that have not ended have got, by name.
func (h *Head) bookings(v *state.View) map[string]schedule.Booking {
	out := map[string]schedule.Booking{}
	if len(v.Reservations()) > 0 {
		for _, b := range schedule.Bookings(h.snapshotOf(v), h.Clock.Now()) {
			out[b.Reservation] = b
		}
	}
	return out
}

// PutReservation makes or replaces a reservation.
func (h *Head) PutReservation(ctx context.Context, r api.ReservationRequest) error {
	v := h.Store.View()
	errs := declare.Reservation(&r.Reservation, v, h.Clock.Now())
	if len(errs) > 0 {
		return invalid(errs)
	}
	return h.change(ctx, state.KindPutReservation, state.PutReservation{Reservation: r.Reservation, If: r.IfVersion, By: h.who(ctx)})
}

// RemoveReservation ends one.
func (h *Head) RemoveReservation(ctx context.Context, name string, version uint64) error {
	return h.change(ctx, state.KindPutReservation, state.PutReservation{
		Reservation: api.Reservation{Name: name}, Remove: true, If: version, By: h.who(ctx),
	})
}

// PutCapacity makes or replaces a capacity.
func (h *Head) PutCapacity(ctx context.Context, r api.CapacityRequest) error {
	errs := declare.Capacity(&r.Capacity, h.Store.View())
	if len(errs) > 0 {
		return invalid(errs)
	}
	return h.change(ctx, state.KindPutCapacities, state.PutCapacities{Capacities: []api.Capacity{r.Capacity}, If: r.IfVersion, By: h.who(ctx)})
}

// RemoveCapacity ends one that nothing uses.
func (h *Head) RemoveCapacity(ctx context.Context, name string, version uint64) error {
	return h.change(ctx, state.KindPutCapacities, state.PutCapacities{Remove: []string{name}, If: version, By: h.who(ctx)})
}

// PutTopology replaces levels, the half-life of use and the scheduler's policy, as far as
// they are given.
func (h *Head) PutTopology(ctx context.Context, r api.TopologyRequest) error {
	c := state.PutSettings{Levels: r.Levels, By: h.who(ctx)}
	var errs []api.FieldError
	if r.Levels != nil {
		for _, e := range schedule.ValidateLevels(*r.Levels) {
			errs = append(errs, api.FieldError{Pointer: "/levels" + e.Pointer, Detail: e.Detail})
		}
	}
	if r.HalfLife != nil {
		half := int64(*r.HalfLife)
		if half < int64(time.Minute) || half > int64(maxHalfLife) {
			errs = append(errs, api.FieldError{Pointer: "/halfLife", Detail: fmt.Sprintf("%s: 1m to %s", r.HalfLife, unit.Duration(maxHalfLife))})
		}
		c.HalfLife = &half
	}
	if r.Scheduler != nil {
		for _, e := range schedule.ValidatePolicy(r.Scheduler) {
			errs = append(errs, api.FieldError{Pointer: "/scheduler" + e.Pointer, Detail: e.Detail})
		}
		c.Policy = r.Scheduler
	}
	if r.Levels == nil && r.HalfLife == nil && r.Scheduler == nil {
		errs = append(errs, api.FieldError{Pointer: "", Detail: "nothing to change was named"})
	}
	if len(errs) > 0 {
		return invalid(errs)
	}
	return h.change(ctx, state.KindPutSettings, c)
}

// PutLinks takes in news of links; those without a time were checked now.
func (h *Head) PutLinks(ctx context.Context, r api.LinksRequest) error {
	now := h.Clock.Now()
	names := map[string]string{}
	for _, n := range h.Store.View().Nodes() {
		names[n.ID], names[n.Info.Name] = n.ID, n.ID
	}
	var errs []api.FieldError
	node := func(pointer string, s *string) {
		id, ok := names[*s]
		if !ok {
			errs = append(errs, api.FieldError{Pointer: pointer, Detail: fmt.Sprintf("there is no node %q", cut(*s, 80))})
		}
		*s = id
	}
	links := slices.Clone(r.Links)
	for i := range links {
		l := &links[i]
		at := fmt.Sprintf("/links/%d", i)
		node(at+"/a", &l.A)
		if l.B != "" {
			node(at+"/b", &l.B)
		}
		if l.Checked.IsZero() {
			l.Checked = now
		}
		if l.Checked.After(now.Add(time.Minute)) {
			errs = append(errs, api.FieldError{Pointer: at + "/checked", Detail: fmt.Sprintf("%s is in the future", l.Checked.UTC().Format(time.RFC3339))})
		}
		if len(errs) > 20 {
			break
		}
	}
	if len(errs) > 0 {
		return invalid(errs)
	}
	return h.change(ctx, state.KindPutLinks, state.PutLinks{Links: links, Forget: r.Forget, By: h.who(ctx)})
}
