package control

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// maxHalfLife bounds the half-life of use.
const maxHalfLife = 10 * 365 * 24 * time.Hour

// maxCounted bounds the nodes that a reservation counts.
const maxCounted = 100_000

// maxAccess bounds the labels of one tenant.
const maxAccess = 256

// checkQueues says what is wrong with a tree: given are those that a request names, others
// those that stay. Pointers are relative to the request.
func checkQueues(given []api.Queue, others []*api.Queue, v *state.View) []api.FieldError {
	var errs []api.FieldError
	list := make([]*api.Queue, 0, len(given)+len(others))
	for i := range given {
		q := &given[i]
		list = append(list, q)
		if !nameRE.MatchString(q.Name) {
			errs = append(errs, api.FieldError{
				Pointer: fmt.Sprintf("/queues/%d/name", i), Detail: fmt.Sprintf("%q: 1 to 63 letters, digits, '.', '_' or '-', with a letter or digit at both ends", cut(q.Name, 80)),
			})
		}
		if len(q.Access) > maxAccess {
			errs = append(errs, api.FieldError{Pointer: fmt.Sprintf("/queues/%d/access", i), Detail: fmt.Sprintf("%d labels are more than %d", len(q.Access), maxAccess)})
		}
	}
	if len(errs) > 0 {
		return errs
	}
	var capacities []string
	for _, c := range v.Capacities() {
		capacities = append(capacities, c.Name)
	}
	list = append(list, others...)
	for _, e := range schedule.ValidateQueues(list, capacities...) {
		number, field, _ := strings.Cut(strings.TrimPrefix(e.Pointer, "/"), "/")
		e.Pointer = "/queues" + e.Pointer
		// One that stays has no place in the request: it is named.
		if i, err := strconv.Atoi(number); err == nil && i >= len(given) && i < len(list) {
			e.Pointer, e.Detail = "/queues", fmt.Sprintf("%s of %s: %s", field, list[i].Name, e.Detail)
		}
		errs = append(errs, e)
	}
	return errs
}

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
	var errs []api.FieldError
	bad := func(pointer, format string, args ...any) {
		errs = append(errs, api.FieldError{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	if !nameRE.MatchString(r.Name) {
		bad("/name", "%q: 1 to 63 letters, digits, '.', '_' or '-', with a letter or digit at both ends", cut(r.Name, 80))
	}
	if !r.Start.Before(r.End) {
		bad("/end", "it ends before it starts")
	}
	if !r.End.After(h.Clock.Now()) {
		bad("/end", "it is over already")
	}
	given := 0
	for _, s := range []string{r.Tenant, r.Queue, r.Job, r.Maintenance} {
		if s != "" {
			given++
		}
	}
	if given != 1 {
		bad("/tenant", "a reservation is for one tenant, queue or job, or for maintenance")
	}
	if q := v.Queue(r.Tenant); r.Tenant != "" && (q == nil || !q.Spec.Tenant) && (r.Tenant != api.DefaultQueue || q != nil) {
		bad("/tenant", "there is no tenant %q", cut(r.Tenant, 80))
	}
	if q := v.Queue(r.Queue); r.Queue != "" && (q == nil || q.Spec.Tenant) && (r.Queue != api.DefaultQueue || q != nil) {
		bad("/queue", "there is no queue %q", cut(r.Queue, 80))
	}
	if (len(r.Nodes) > 0) == (r.Count != 0) {
		bad("/nodes", "give nodes by name, or a count of them")
	}
	if r.Count < 0 || r.Count > maxCounted {
		bad("/count", "%d: 1 to %d nodes", r.Count, maxCounted)
	}
	if r.Job != "" {
		if j := v.Job(r.Job); j == nil || j.State.Terminal() {
			bad("/job", "there is no job %q that is to run; a job is named by its id", cut(r.Job, 80))
		}
	}
	if len(r.Nodes) > 0 && (r.Level != "" || r.Pool != "") {
		bad("/level", "level and pool go with a count")
	}
	names := map[string]bool{}
	for _, n := range v.Nodes() {
		names[n.ID], names[n.Info.Name] = true, true
	}
	for i, n := range r.Nodes {
		if !names[n] {
			bad(fmt.Sprintf("/nodes/%d", i), "there is no node %q", cut(n, 80))
		}
	}
	if r.Level != "" && !slices.ContainsFunc(v.Settings().Levels, func(l api.Level) bool { return l.Name == r.Level }) {
		bad("/level", "there is no level %q; troupe topology get lists them", cut(r.Level, 80))
	}
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
	var errs []api.FieldError
	if !nameRE.MatchString(r.Name) || r.Name == "gpu" || r.Name == "cpu" || r.Name == "memory" {
		errs = append(errs, api.FieldError{Pointer: "/name", Detail: fmt.Sprintf("%q: a name that is not gpu, cpu or memory, of letters, digits, '.', '_' and '-'", cut(r.Name, 80))})
	}
	if r.Total < 0 || r.Overhead < 0 || r.Overhead > r.Total {
		errs = append(errs, api.FieldError{Pointer: "/total", Detail: fmt.Sprintf("%d with an overhead of %d: neither is negative, and the overhead is part of the total", r.Total, r.Overhead)})
	}
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
