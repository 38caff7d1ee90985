package state

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Reservation is one as it was declared.
type Reservation struct {
	Name    string          `json:"name"`
	Spec    api.Reservation `json:"spec"`
	By      string          `json:"by,omitempty"`
	Changed int64           `json:"changed"`
	Index   uint64          `json:"index"`
}

// Capacity is one as it was declared.
type Capacity struct {
	Name    string       `json:"name"`
	Spec    api.Capacity `json:"spec"`
	By      string       `json:"by,omitempty"`
	Changed int64        `json:"changed"`
	Index   uint64       `json:"index"`
}

// Link is the newest word on one.
type Link struct {
	ID    string   `json:"id"` // A or A|B
	Spec  api.Link `json:"spec"`
	Index uint64   `json:"index"`
}

// PutReservation makes or replaces one; with Remove it ends it.
type PutReservation struct {
	Reservation api.Reservation `json:"reservation"`
	Remove      bool            `json:"remove,omitempty"`
	If          uint64          `json:"if,omitempty"`
	By          string          `json:"by,omitempty"`
}

// PutCapacities replaces capacities one by one.
type PutCapacities struct {
	Capacities []api.Capacity `json:"capacities,omitempty"`
	Remove     []string       `json:"remove,omitempty"`
	If         uint64         `json:"if,omitempty"` // of the one that is named
	By         string         `json:"by,omitempty"`
}

// PutSettings replaces what is given.
type PutSettings struct {
	HalfLife *int64               `json:"halfLife,omitempty"` // ns
	Levels   *[]api.Level         `json:"levels,omitempty"`
	By       string               `json:"by,omitempty"`
	Policy   *api.SchedulerPolicy `json:"policy,omitempty"`
}

// PutLinks takes news of links in; older ones than stand are dropped.
type PutLinks struct {
	Links  []api.Link `json:"links,omitempty"`
	Forget []api.Link `json:"forget,omitempty"` // by A and B
	By     string     `json:"by,omitempty"`
}

// Reservation by name; nil when unknown.
func (v *View) Reservation(name string) *Reservation {
	return first[Reservation](v.records, tReservation, "id", name)
}

// Reservations in order of name.
func (v *View) Reservations() []*Reservation { return all[Reservation](v.records, tReservation, "id") }

// Capacity by name; nil when unknown.
func (v *View) Capacity(name string) *Capacity {
	return first[Capacity](v.records, tCapacity, "id", name)
}

// Capacities in order of name.
func (v *View) Capacities() []*Capacity { return all[Capacity](v.records, tCapacity, "id") }

// Links in order of their nodes.
func (v *View) Links() []*Link { return all[Link](v.records, tLink, "id") }

func versionStale(what string, at, want uint64) any {
	if want != 0 && at != want {
		if at == 0 {
			return refuse("conflict", fmt.Sprintf("there is no %s, and so no version %d of it", what, want))
		}
		return refuse("conflict", fmt.Sprintf("%s stands at version %d, not at %d; read it again", what, at, want))
	}
	return nil
}

func putReservation(t *tx, c PutReservation) any {
	r := c.Reservation
	old := t.Reservation(r.Name)
	at := uint64(0)
	if old != nil {
		at = old.Index
	}
	if stale := versionStale("reservation "+r.Name, at, c.If); stale != nil {
		return stale
	}
	object := "reservation/" + r.Name
	switch {
	case r.Name == "":
		return refuse("invalid", "a reservation needs a name")
	case c.Remove && old == nil:
		return refuse("not-found", fmt.Sprintf("no reservation %q", r.Name))
	case c.Remove:
		t.drop(tReservation, old)
		t.event("reservation-removed", object, "%s", byText(c.By, ""))
		return nil
	case !r.Start.Before(r.End):
		return refuse("invalid", "reservation "+r.Name+" ends before it starts")
	case len(r.Nodes) == 0 && r.Count <= 0:
		return refuse("invalid", "reservation "+r.Name+" names neither nodes nor how many")
	case old == nil && len(t.Reservations()) >= MaxReservations:
		return refuse("conflict", fmt.Sprintf("there are %d reservations, which is the most; remove old ones", MaxReservations))
	}
	t.put(tReservation, &Reservation{Name: r.Name, Spec: r, By: c.By, Changed: t.now, Index: t.index})
	kind := "reservation-changed"
	if old == nil {
		kind = "reservation-created"
	}
	t.event(kind, object, "%s", byText(c.By, reservationText(&r)))
	return nil
}

func reservationText(r *api.Reservation) string {
	what := fmt.Sprintf("%d nodes", r.Count)
	if len(r.Nodes) > 0 {
		what = plural(len(r.Nodes), "node")
	}
	whom := "job " + r.Job
	switch {
	case r.Maintenance != "":
		whom = "maintenance: " + r.Maintenance
	case r.Tenant != "":
		whom = "tenant " + r.Tenant
	case r.Queue != "":
		whom = "queue " + r.Queue
	}
	const layout = "2006-01-02T15:04:05Z"
	return fmt.Sprintf("%s for %s, %s to %s", what, whom, r.Start.UTC().Format(layout), r.End.UTC().Format(layout))
}

func putCapacities(t *tx, c PutCapacities) any {
	if c.If != 0 {
		names := slices.Clone(c.Remove)
		for _, x := range c.Capacities {
			names = append(names, x.Name)
		}
		if len(names) != 1 {
			return refuse("invalid", "a version goes with one capacity")
		}
		at := uint64(0)
		if old := t.Capacity(names[0]); old != nil {
			at = old.Index
		}
		if stale := versionStale("capacity "+names[0], at, c.If); stale != nil {
			return stale
		}
	}
	for _, name := range c.Remove {
		old := t.Capacity(name)
		if old == nil {
			return refuse("not-found", fmt.Sprintf("no capacity %q", name))
		}
		if by := t.capacityUsed(name); by != "" {
			return refuse("conflict", fmt.Sprintf("capacity %s is used by %s; end it first", name, by))
		}
		t.drop(tCapacity, old)
		t.event("capacity-removed", "capacity/"+name, "%s", byText(c.By, ""))
	}
	for i := range c.Capacities {
		x := c.Capacities[i]
		switch {
		case x.Name == "":
			return refuse("invalid", "a capacity needs a name")
		case x.Total < 0 || x.Overhead < 0:
			return refuse("invalid", "capacity "+x.Name+" is negative")
		case x.Level != "" && t.level(x.Level) == nil:
			return refuse("invalid", fmt.Sprintf("capacity %s is of level %q, which is not declared", x.Name, x.Level))
		}
		old := t.Capacity(x.Name)
		if old != nil && old.Spec == x {
			continue
		}
		if old == nil && len(t.Capacities()) >= MaxCapacities {
			return refuse("conflict", fmt.Sprintf("there are %d capacities, which is the most", MaxCapacities))
		}
		t.put(tCapacity, &Capacity{Name: x.Name, Spec: x, By: c.By, Changed: t.now, Index: t.index})
		kind := "capacity-changed"
		if old == nil {
			kind = "capacity-created"
		}
		t.event(kind, "capacity/"+x.Name, "%s", byText(c.By, fmt.Sprintf("%d%s, %d of it always in use", x.Total, unitText(x.Unit), x.Overhead)))
	}
	t.redomain()
	return nil
}

func unitText(unit string) string {
	if unit == "" {
		return ""
	}
	return " " + unit
}

// capacityUsed names something that takes of a capacity or waits to; "": nothing does.
func (t *tx) capacityUsed(name string) string {
	for _, g := range t.Groups() {
		if _, ok := g.Spec.Uses.Get(name); ok && g.State != api.GroupRemoving {
			return orText(g.Job, g.ID)
		}
	}
	for _, h := range t.Holds() {
		if _, ok := h.Uses.Get(name); ok {
			return h.Group
		}
	}
	return ""
}

func (t *tx) level(name string) *api.Level {
	levels := t.Settings().Levels
	for i := range levels {
		if levels[i].Name == name {
			return &levels[i]
		}
	}
	return nil
}

func putSettings(t *tx, c PutSettings) any {
	s := *t.Settings()
	if c.HalfLife != nil {
		if *c.HalfLife < 0 {
			return refuse("invalid", "a half-life is not negative")
		}
		// What was used until now decays by what stood until now.
		t.recharge()
		s.HalfLife = *c.HalfLife
		t.event("settings-changed", "cluster/"+t.meta.Cluster, "%s", byText(c.By, fmt.Sprintf("use counts half after %s", s.HalfLifeOfUse())))
	}
	if c.Levels != nil {
		if why := soundLevels(*c.Levels); why != "" {
			return refuse("invalid", why)
		}
		for _, x := range t.Capacities() {
			if x.Spec.Level != "" && !slices.ContainsFunc(*c.Levels, func(l api.Level) bool { return l.Name == x.Spec.Level }) {
				return refuse("conflict", fmt.Sprintf("capacity %s is of level %q", x.Name, x.Spec.Level))
			}
		}
		for _, x := range t.Reservations() {
			if x.Spec.Level != "" && x.Spec.End.After(time.Unix(0, t.now)) && !slices.ContainsFunc(*c.Levels, func(l api.Level) bool { return l.Name == x.Spec.Level }) {
				return refuse("conflict", fmt.Sprintf("reservation %s takes nodes within one %s; end it first: troupe reservation remove %s", x.Name, x.Spec.Level, x.Name))
			}
		}
		s.Levels = slices.Clone(*c.Levels)
		var words []string
		for _, l := range s.Levels {
			words = append(words, fmt.Sprintf("%s (label %s)", l.Name, l.Label))
		}
		t.event("levels-changed", "cluster/"+t.meta.Cluster, "%s", byText(c.By, orText(strings.Join(words, ", "), "none")))
	}
	if c.Policy != nil {
		s.Policy = *c.Policy
		t.event("settings-changed", "cluster/"+t.meta.Cluster, "%s", byText(c.By, "the scheduler's policy was replaced"))
	}
	s.By, s.Changed, s.Index = c.By, t.now, t.index
	t.put(tSettings, &s)
	if c.Levels != nil {
		t.redomain()
	}
	return nil
}

func soundLevels(levels []api.Level) string {
	if len(levels) > MaxLevels {
		return fmt.Sprintf("%d levels; at most %d", len(levels), MaxLevels)
	}
	seen := map[string]bool{}
	for _, l := range levels {
		switch {
		case l.Name == "" || l.Label == "":
			return "a level needs a name and the label that names its domains"
		case seen[l.Name]:
			return fmt.Sprintf("level %q stands there twice", l.Name)
		}
		seen[l.Name] = true
	}
	return ""
}

func linkID(l *api.Link) string {
	if l.B == "" {
		return l.A
	}
	return min(l.A, l.B) + "|" + max(l.A, l.B)
}

func putLinks(t *tx, c PutLinks) any {
	for i := range c.Forget {
		if old := first[Link](t.records, tLink, "id", linkID(&c.Forget[i])); old != nil {
			t.drop(tLink, old)
			t.event("link-forgotten", "link/"+old.ID, "%s", byText(c.By, ""))
		}
	}
	count := len(t.Links())
	for i := range c.Links {
		l := c.Links[i]
		if l.A == "" || l.A == l.B {
			return refuse("invalid", "a link names one node, or two that differ")
		}
		id := linkID(&l)
		old := first[Link](t.records, tLink, "id", id)
		if old != nil && !old.Spec.Checked.Before(l.Checked) {
			continue
		}
		if old == nil {
			if count++; count > MaxLinks {
				return refuse("conflict", fmt.Sprintf("there are %d links, which is the most", MaxLinks))
			}
		}
		t.put(tLink, &Link{ID: id, Spec: l, Index: t.index})
		if old == nil && !l.Healthy || old != nil && old.Spec.Healthy != l.Healthy {
			kind, text := "link-healthy", l.Why
			if !l.Healthy {
				kind = "link-failed"
			}
			t.event(kind, "link/"+id, "%s", byText(c.By, orText(text, "by its check")))
		}
	}
	return nil
}

// domainsOf are the domains in which a node's holds take of capacities.
func (t *tx) domainsOf(node string, uses api.Amounts) []string {
	if len(uses) == 0 {
		return nil
	}
	out := make([]string, len(uses))
	n := t.Node(node)
	for i, u := range uses {
		c := t.Capacity(u.Of)
		if c == nil || c.Spec.Level == "" || n == nil {
			continue
		}
		if l := t.level(c.Spec.Level); l != nil {
			out[i] = n.Info.Labels[l.Label]
		}
	}
	return out
}

// redomain charges every hold where it stands now that capacities or levels have changed.
func (t *tx) redomain() {
	for _, h := range t.Holds() {
		if len(h.Uses) == 0 {
			continue
		}
		if d := t.domainsOf(h.Node, h.Uses); !slices.Equal(d, h.Domains) {
			w := *h
			w.Domains = d
			t.put(tHold, &w)
		}
	}
	t.recharge()
}
