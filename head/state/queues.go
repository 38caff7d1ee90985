package state

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Bounds of what is declared.
const (
	MaxQueues       = 10_000
	MaxReservations = 10_000
	MaxCapacities   = 1_000
	MaxLevels       = 16
	MaxLinks        = 200_000
)

// Queue is a tenant or queue as it was declared.
type Queue struct {
	Name    string    `json:"name"`
	Spec    api.Queue `json:"spec"`
	By      string    `json:"by,omitempty"` // who changed it last
	Changed int64     `json:"changed"`
	Index   uint64    `json:"index"`
}

// PutQueues replaces nodes of the tree one by one or, with Whole, all of it.
type PutQueues struct {
	Queues []api.Queue `json:"queues,omitempty"`
	Remove []string    `json:"remove,omitempty"`
	Whole  bool        `json:"whole,omitempty"`
	// If is the index that the one node named must stand at; 0: any.
	If  uint64 `json:"if,omitempty"`
	By  string `json:"by,omitempty"`
	Why string `json:"why,omitempty"`
}

// Queue by name; nil when there is no record of it.
func (v *View) Queue(name string) *Queue { return first[Queue](v.records, tQueue, "id", name) }

// Queues in order of name.
func (v *View) Queues() []*Queue { return all[Queue](v.records, tQueue, "id") }

// Tree is that of the tenants and queues.
func (v *View) Tree() *api.Tree { return api.NewTree(v.QueueSpecs()) }

// QueueSpecs are the declarations, in order of name.
func (v *View) QueueSpecs() []*api.Queue {
	list := v.Queues()
	out := make([]*api.Queue, len(list))
	for i, q := range list {
		out[i] = &q.Spec
	}
	return out
}

func putQueues(t *tx, c PutQueues) any {
	if c.If != 0 {
		if why := t.queueStale(c); why != "" {
			return refuse("conflict", why)
		}
	}
	next := map[string]api.Queue{}
	if !c.Whole {
		for _, q := range t.Queues() {
			next[q.Name] = q.Spec
		}
	}
	for _, name := range c.Remove {
		if _, ok := next[name]; !ok && t.Queue(name) == nil {
			return refuse("not-found", fmt.Sprintf("no tenant or queue %q", name))
		}
		delete(next, name)
	}
	for _, q := range c.Queues {
		next[q.Name] = q
	}
	if why := soundTree(next); why != "" {
		return refuse("invalid", why)
	}
	if why := t.queuesInUse(next); why != "" {
		return refuse("conflict", why)
	}
	changed := false
	for _, old := range t.Queues() {
		if _, stays := next[old.Name]; !stays {
			t.drop(tQueue, old)
			if a := t.QueueAccount(old.Name); a != nil && len(a.Charged) == 0 {
				t.drop(tAccount, a)
			}
			t.event("queue-removed", "queue/"+old.Name, "%s", byText(c.By, c.Why))
			changed = true
		}
	}
	for _, name := range sortedKeys(next) {
		q := next[name]
		old := t.Queue(name)
		if old != nil && sameQueue(&old.Spec, &q) {
			continue
		}
		t.put(tQueue, &Queue{Name: name, Spec: q, By: c.By, Changed: t.now, Index: t.index})
		kind := "queue-changed"
		if old == nil {
			kind = "queue-created"
		}
		t.event(kind, "queue/"+name, "%s", byText(c.By, orText(c.Why, queueText(&q))))
		changed = true
	}
	if changed {
		t.recharge()
	}
	return nil
}

func (t *tx) queueStale(c PutQueues) string {
	var name string
	switch {
	case len(c.Queues) == 1 && len(c.Remove) == 0 && !c.Whole:
		name = c.Queues[0].Name
	case len(c.Remove) == 1 && len(c.Queues) == 0 && !c.Whole:
		name = c.Remove[0]
	default:
		return "a version goes with one tenant or queue"
	}
	q := t.Queue(name)
	if q == nil {
		return fmt.Sprintf("there is no %s, and so no version %d of it", name, c.If)
	}
	if q.Index != c.If {
		return fmt.Sprintf("%s stands at version %d, not at %d; read it again", name, q.Index, c.If)
	}
	return ""
}

// soundTree refuses what no scheduler could follow; more is checked before a command is
// proposed.
func soundTree(next map[string]api.Queue) string {
	if len(next) > MaxQueues {
		return fmt.Sprintf("%d tenants and queues; at most %d", len(next), MaxQueues)
	}
	for _, name := range sortedKeys(next) {
		q := next[name]
		if name == "" {
			return "a tenant or queue needs a name"
		}
		if q.Parent == "" {
			continue
		}
		p, ok := next[q.Parent]
		if !ok {
			return fmt.Sprintf("%s is below %s, which is not there", name, q.Parent)
		}
		if !p.Tenant {
			return fmt.Sprintf("%s is below %s, which is a queue; only tenants have something below them", name, q.Parent)
		}
		at := name
		for range len(next) + 1 {
			if at = next[at].Parent; at == "" {
				break
			}
		}
		if at != "" {
			return fmt.Sprintf("%s is below itself", name)
		}
	}
	return ""
}

// queuesInUse: what waits or holds keeps its tenant and queue.
func (t *tx) queuesInUse(next map[string]api.Queue) string {
	list := make([]*api.Queue, 0, len(next))
	for _, name := range sortedKeys(next) {
		q := next[name]
		list = append(list, &q)
	}
	tree, before := api.NewTree(list), t.Tree()
	for _, r := range t.Reservations() {
		if name := orText(r.Spec.Tenant, r.Spec.Queue); t.Queue(name) != nil && r.Spec.End.After(time.Unix(0, t.now)) {
			if q, stays := next[name]; !stays || q.Tenant != (r.Spec.Tenant != "") {
				return fmt.Sprintf("nodes are reserved for %s by %s; end that first: troupe reservation remove %s", name, r.Name, r.Name)
			}
		}
	}
	for _, g := range t.Groups() {
		if g.State == api.GroupRemoving {
			continue
		}
		path, was := before.Path(g.Spec.Tenant, g.Spec.Queue)
		if was != nil {
			continue // it was wrong before and is told so
		}
		if len(path) > 0 {
			if _, stays := next[path[0].Name]; !stays {
				return fmt.Sprintf("%s is used by %s: end it or move it first", path[0].Name, g.userText())
			}
		}
		if _, err := tree.Path(g.Spec.Tenant, g.Spec.Queue); err != nil {
			return fmt.Sprintf("%s would belong nowhere: %s; end it or move it first", g.userText(), err)
		}
	}
	return ""
}

// userText names who a group is for, and whether it runs.
func (g *Group) userText() string {
	name := "placement group " + g.ID
	if g.Job != "" {
		name = "job " + g.Job
	}
	if g.State == api.GroupPlaced {
		return name + ", which is placed"
	}
	return name + ", which waits"
}

func sameQueue(a, b *api.Queue) bool {
	same := func(a, b *int64) bool { return a == b || a != nil && b != nil && *a == *b }
	return a.Name == b.Name && a.Parent == b.Parent && a.Tenant == b.Tenant && slices.Equal(a.Guaranteed, b.Guaranteed) &&
		slices.Equal(a.Limit, b.Limit) && slices.Equal(a.Lend, b.Lend) && same(a.Weight, b.Weight) && a.Order == b.Order &&
		same(a.MaxPriority, b.MaxPriority) && a.MaxWait == b.MaxWait && a.Paused == b.Paused &&
		slices.Equal(a.Pools, b.Pools) && slices.Equal(a.Access, b.Access)
}

func queueText(q *api.Queue) string {
	kind := "queue"
	if q.Tenant {
		kind = "tenant"
	}
	var text strings.Builder
	text.WriteString(kind)
	if q.Parent != "" {
		text.WriteString(" of " + q.Parent)
	}
	for _, l := range []struct {
		word string
		of   api.Amounts
	}{{"guaranteed", q.Guaranteed}, {"limit", q.Limit}, {"lends", q.Lend}} {
		for _, a := range l.of {
			fmt.Fprintf(&text, ", %s %s=%d", l.word, a.Of, a.N)
		}
	}
	if q.Paused != "" {
		text.WriteString(", paused: " + q.Paused)
	}
	return text.String()
}

// byText tells who did something, and why or what.
func byText(by, text string) string {
	switch {
	case by == "":
		return orText(text, "on request")
	case text == "":
		return "by " + by
	}
	return text + " (by " + by + ")"
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// Settings is the one record of what an operator may set for the scheduler.
type Settings struct {
	ID string `json:"id"` // always "settings"
	// HalfLife of use, ns; 0: seven days.
	HalfLife int64               `json:"halfLife,omitempty"`
	Levels   []api.Level         `json:"levels,omitempty"` // from the widest to the narrowest
	Policy   api.SchedulerPolicy `json:"policy,omitzero"`
	By       string              `json:"by,omitempty"`
	Changed  int64               `json:"changed,omitempty"`
	Index    uint64              `json:"index,omitempty"`
}

// defaultHalfLife is how long it takes until use counts half.
const defaultHalfLife = 7 * 24 * time.Hour

func (s *Settings) halfLife() int64 {
	if s.HalfLife > 0 {
		return s.HalfLife
	}
	return int64(defaultHalfLife)
}

// HalfLifeOfUse is how long it takes until use counts half.
func (s *Settings) HalfLifeOfUse() time.Duration { return time.Duration(s.halfLife()) }

// Settings of the scheduler; never nil.
func (v *View) Settings() *Settings {
	if s := first[Settings](v.records, tSettings, "id", "settings"); s != nil {
		return s
	}
	return &Settings{ID: "settings"}
}
