package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Forecast is when a waiting group is planned to start, and what that rests on.
type Forecast struct {
	Start time.Time `json:"start"`
	// After names the groups whose end it waits for, the last to end first.
	After []string `json:"after,omitempty"`
	// Assumptions say for each of them why it is expected to have ended, and what is
	// assumed of the group itself.
	Assumptions []string `json:"assumptions,omitempty"`
	Nodes       []string `json:"nodes,omitempty"` // by name; none while its quota does not let it start

	more int // groups that After does not name
}

// Forecast is the planned start of a waiting group; false: none is planned.
func (r *Result) Forecast(group string) (Forecast, bool) {
	i := slices.IndexFunc(r.planned, func(e *plannedStart) bool { return e.request.ID == group })
	if i < 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		turn, ok := r.waiting(group)
		if !ok || r.cycle.fates[turn].starts {
			return Forecast{}, false
		}
		return r.quotaForecast(turn)
	}
	e := r.planned[i]
	f := Forecast{Start: moment(e.from)}
	f.wait(e)
	f.rest()
	f.Assumptions = append(f.Assumptions, fmt.Sprintf("%s runs for %s: %s", e.who.name, spell(e.request.runs()), e.request.assumed()))
	for _, sp := range e.spots {
		if name := r.left.nodes[sp.node].name; len(f.Nodes) == 0 || f.Nodes[len(f.Nodes)-1] != name {
			f.Nodes = append(f.Nodes, name)
		}
	}
	slices.SortFunc(f.Nodes, naturalCompare)
	f.Nodes = slices.Compact(f.Nodes)
	return f, true
}

// waitsFor lists who has to have ended on the nodes of a planned start before it, the last
// to end first. Those that hold nothing that it needs are not told apart from the others.
func (p *profile) waitsFor(e *plannedStart) []*occupant {
	p.lists++
	var out []*occupant
	node := -1
	for _, sp := range e.spots {
		if sp.node == node {
			continue
		}
		node = sp.node
		for _, stays := range [][]stay{p.nodes[node].running, p.nodes[node].planned} {
			for i := range stays {
				if s := &stays[i]; s.to <= e.from && s.who.listed != p.lists && (s.who.start == nil || s.who.start.turn <= e.turn) {
					s.who.listed = p.lists
					out = append(out, s.who)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b *occupant) int {
		// Names are seldom needed, and long to compare.
		if a.ends != b.ends {
			return cmp.Compare(b.ends, a.ends)
		}
		return cmp.Or(naturalCompare(a.name, b.name), cmp.Compare(a.group, b.group))
	})
	return out
}
