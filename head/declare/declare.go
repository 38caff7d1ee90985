// Package declare says what is wrong with what people declare beside nodes: tenants and
// queues, reservations, capacities. The head checks requests with it, and the simulator
// cluster files. Pointers say which field.
package declare

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

const (
	maxCounted = 100_000 // nodes that a reservation counts
	maxAccess  = 256     // labels of one tenant
	maxReason  = 1024    // bytes
	maxUnit    = 32
	maxErrors  = 20 // that are told at once
)

var nameRE = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// IsName: what people name is named so.
func IsName(s string) bool { return nameRE.MatchString(s) }

// Queues says what is wrong with a tree: given are those that a request names, others
// those that stay. Pointers are relative to the request.
func Queues(given []api.Queue, others []*api.Queue, v *state.View) []api.FieldError {
	var errs []api.FieldError
	list := make([]*api.Queue, 0, len(given)+len(others))
	for i := range given {
		q := &given[i]
		list = append(list, q)
		if !IsName(q.Name) {
			errs = append(errs, api.FieldError{
				Pointer: fmt.Sprintf("/queues/%d/name", i), Detail: fmt.Sprintf("%.80q: 1 to 63 letters, digits, '.', '_' or '-', with a letter or digit at both ends", q.Name),
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

// Reservation says what is wrong with a reservation of a cluster, by now.
func Reservation(r *api.Reservation, v *state.View, now time.Time) []api.FieldError {
	var errs []api.FieldError
	bad := func(pointer, format string, args ...any) {
		errs = append(errs, api.FieldError{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	if !IsName(r.Name) {
		bad("/name", "%.80q: 1 to 63 letters, digits, '.', '_' or '-', with a letter or digit at both ends", r.Name)
	}
	for _, at := range []struct {
		pointer string
		t       time.Time
	}{{"/start", r.Start}, {"/end", r.End}} {
		if y := at.t.Year(); y < schedule.MinYear || y > schedule.MaxYear {
			bad(at.pointer, "the year %d is not within %d to %d; a time is written as 2030-05-01T12:00:00Z", y, schedule.MinYear, schedule.MaxYear)
		}
	}
	if !r.Start.Before(r.End) {
		bad("/end", "it ends before it starts")
	}
	if !r.End.After(now) {
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
		bad("/tenant", "there is no tenant %.80q", r.Tenant)
	}
	if q := v.Queue(r.Queue); r.Queue != "" && (q == nil || q.Spec.Tenant) && (r.Queue != api.DefaultQueue || q != nil) {
		bad("/queue", "there is no queue %.80q", r.Queue)
	}
	if (len(r.Nodes) > 0) == (r.Count != 0) {
		bad("/nodes", "give nodes by name, or a count of them")
	}
	if r.Count < 0 || r.Count > maxCounted {
		bad("/count", "%d: 1 to %d nodes", r.Count, maxCounted)
	}
	if r.Job != "" {
		if j := v.Job(r.Job); j == nil || j.State.Terminal() {
			bad("/job", "there is no job %.80q that is to run; a job is named by its id", r.Job)
		}
	}
	if len(r.Nodes) > 0 && (r.Level != "" || r.Pool != "") {
		bad("/level", "level and pool go with a count")
	}
	if r.Pool != "" && !IsName(r.Pool) {
		bad("/pool", "%.80q is no name of a pool", r.Pool)
	}
	if len(r.Maintenance) > maxReason || strings.ContainsFunc(r.Maintenance, unicode.IsControl) {
		bad("/maintenance", "why has at most %d bytes, all of which print", maxReason)
	}
	names := map[string]string{}
	for _, n := range v.Nodes() {
		names[n.ID], names[n.Info.Name] = n.ID, n.ID
	}
	seen := map[string]bool{}
	for i, n := range r.Nodes {
		id, known := names[n]
		switch at := fmt.Sprintf("/nodes/%d", i); {
		case len(errs) >= maxErrors:
		case !known:
			bad(at, "there is no node %.80q%s", n, someOf(v.Nodes()))
		case seen[id]:
			bad(at, "node %.80q stands here twice", n)
		}
		seen[id] = true
	}
	if r.Level != "" && !hasLevel(v, r.Level) {
		bad("/level", noLevel, r.Level)
	}
	return errs
}

// someOf names a few nodes, so that one sees how they are named.
func someOf(nodes []*state.Node) string {
	const few = 3
	var names []string
	for _, n := range nodes[:min(few, len(nodes))] {
		names = append(names, n.Info.Name)
	}
	switch {
	case len(nodes) == 0:
		return "; no node has joined"
	case len(nodes) > few:
		names = append(names, fmt.Sprintf("and %d more", len(nodes)-few))
	}
	return "; there are " + strings.Join(names, ", ")
}

const noLevel = "there is no level %.80q; troupe topology get lists them"

func hasLevel(v *state.View, name string) bool {
	return slices.ContainsFunc(v.Settings().Levels, func(l api.Level) bool { return l.Name == name })
}

// Capacity says what is wrong with a capacity of a cluster.
func Capacity(r *api.Capacity, v *state.View) []api.FieldError {
	var errs []api.FieldError
	bad := func(pointer, format string, args ...any) {
		errs = append(errs, api.FieldError{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	if !IsName(r.Name) || r.Name == "gpu" || r.Name == "cpu" || r.Name == "memory" {
		bad("/name", "%.80q: a name that is not gpu, cpu or memory, of letters, digits, '.', '_' and '-'", r.Name)
	}
	if r.Total < 0 || r.Overhead < 0 || r.Overhead > r.Total {
		bad("/total", "%d with an overhead of %d: neither is negative, and the overhead is part of the total", r.Total, r.Overhead)
	}
	if r.Level != "" && !hasLevel(v, r.Level) {
		bad("/level", noLevel, r.Level)
	}
	if len(r.Unit) > maxUnit || strings.ContainsFunc(r.Unit, unicode.IsControl) {
		bad("/unit", "has at most %d bytes, all of which print, as MiB/s", maxUnit)
	}
	return errs
}
