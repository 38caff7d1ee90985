package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// obstacle is a reservation or a planned start that takes nodes which have room now.
type obstacle struct {
	booking *booking
	entry   *plannedStart
	nodes   []string
}

// orderly says whose turn is before that of a request that fits what is free now.
func (x *explainer) orderly(r *Request, d *demand, turn int) []api.Reason {
	if why, ok := x.aheadReason(r, d, turn); ok {
		return []api.Reason{why}
	}
	if why, ok := x.lineReason(r, turn); ok {
		return []api.Reason{why}
	}
	return nil
}

// roomOn reports whether a node of an overlay has room for anything of a demand.
func (d *demand) roomOn(n *nodeState) bool {
	return slices.ContainsFunc(d.classes, func(c *class) bool { return d.serves(n, c) && n.count(c, 1) > 0 })
}

// aheadReason names the planned starts that take nodes with room for the request now, within
// the time that it runs.
func (x *explainer) aheadReason(r *Request, d *demand, turn int) (api.Reason, bool) {
	to := after(nanos(x.now), r.runs())
	var ahead []obstacle
	rooms := make([][]int32, len(d.classes))
	for ci, c := range d.classes {
		rooms[ci] = x.free.tallyOf(d, c).node
	}
	room := func(ni int) bool {
		return slices.ContainsFunc(rooms, func(of []int32) bool { return of[ni] > 0 })
	}
	for i, e := range x.c.planned {
		if e.from >= to || x.c.before[i] >= turn {
			continue
		}
		o, last := obstacle{entry: e}, -1
		for _, sp := range e.spots {
			if sp.node != last && room(sp.node) {
				o.nodes = append(o.nodes, x.free.nodes[sp.node].name)
			}
			last = sp.node
		}
		if len(o.nodes) > 0 {
			ahead = append(ahead, o)
		}
	}
	if len(ahead) == 0 {
		return api.Reason{}, false
	}
	// They are listed in the order of their turns.
	slices.SortStableFunc(ahead, func(a, b obstacle) int { return cmp.Compare(a.entry.from, b.entry.from) })
	var who, said []string
	for i, o := range ahead {
		who, said = append(who, o.entry.who.name), append(said, "")
		if i < listed { // the others are counted
			said[i] = fmt.Sprintf("%s (planned for %s on %s)", o.entry.who.name, stamp(o.entry.from), shortList(o.nodes))
		}
	}
	runs := "is expected to run for " + spell(r.runs())
	if r.assumed() != "its expected end" {
		runs += " (" + r.assumed() + ")"
	}
	out := api.Reason{
		Code: api.ReasonOrder, Text: "would fit now, but " + runs + " and would delay " + shortList(said),
		Frees: "a time limit that ends before, or the start of " + shortList(who), When: x.c.decision(turn).Start,
	}
	out.Block(who)
	return out, true
}

// plannedReason names those with a planned start that come before a request for which there
// is no room: what becomes free is theirs first.
func (x *explainer) plannedReason(r *Request, d *demand, turn int) (api.Reason, bool) {
	key := d.key + x.shut.key
	ahead, known := x.ahead[key]
	if !known {
		servers := x.grounds.servers(d)
		for i, e := range x.c.planned {
			if slices.ContainsFunc(e.spots, func(sp spot) bool { return !x.shut.nodes[sp.node] && serve(servers, sp.node) }) {
				ahead = append(ahead, i)
			}
		}
		slices.SortStableFunc(ahead, func(a, b int) int { return cmp.Compare(x.c.planned[a].from, x.c.planned[b].from) })
		x.ahead[key] = ahead
	}
	var who, said []string
	for _, i := range ahead {
		if e := x.c.planned[i]; x.c.before[i] < turn && e.request.ID != r.ID {
			if who = append(who, e.who.name); len(said) < listed {
				said = append(said, e.who.name+" (for "+stamp(e.from)+")")
			}
		}
	}
	if len(who) == 0 {
		return api.Reason{}, false
	}
	text := strings.Join(said, ", ")
	if more := len(who) - len(said); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	out := api.Reason{
		Code: api.ReasonOrder, Text: fmt.Sprintf("%d planned before it: %s", len(who), text),
		Frees: "the end of those, or a higher priority", When: x.c.decision(turn).Start,
	}
	out.Block(who)
	return out, true
}

func (o *obstacle) reason(now int64) api.Reason {
	b := o.booking
	what := fmt.Sprintf("reserved for %s (%s)", b.whom(), b.called())
	if b.Maintenance != "" {
		what = fmt.Sprintf("under maintenance (%s: %s)", b.Name, b.Maintenance)
	}
	text := fmt.Sprintf("%s: %s until %s", shortList(o.nodes), what, stamp(b.to))
	frees := "the end of " + b.Name + " at " + stamp(b.to)
	if b.from > now {
		frees = "a time limit, or an estimate, that ends before, or " + frees
		text = fmt.Sprintf("%s: %s from %s to %s, and the request would still run then", shortList(o.nodes), what, stamp(b.from), stamp(b.to))
	}
	return api.Reason{
		Code: api.ReasonReservation, Text: text, Blockers: []string{b.Name}, Where: shortList(o.nodes),
		Frees: frees, When: moment(b.to),
	}
}

// whom is whose work a reservation is for.
func (b *booking) whom() string {
	if b.Job == "" && b.Queue == "" && b.Tenant == "" {
		return "nobody"
	}
	return b.For()
}

// reservationReason says what is wrong with the reservation that a request names; nil: it
// names none. usable: it is there, and open to it as long as it runs.
func (x *explainer) reservationReason(r *Request) (why *api.Reason, usable bool) {
	name := r.Spec.Reservation
	if name == "" {
		return nil, true
	}
	say := func(frees, format string, args ...any) *api.Reason {
		return &api.Reason{Code: api.ReasonReservation, Text: fmt.Sprintf(format, args...), Blockers: []string{name}, Frees: frees}
	}
	at := slices.IndexFunc(x.c.booked, func(b *booking) bool { return b.Name == name })
	if at < 0 {
		if slices.ContainsFunc(x.s.Reservations, func(b *api.Reservation) bool { return b.Name == name }) {
			return say("another reservation, or none", "the reservation %s has ended", name), false
		}
		return say("another reservation, or none", "there is no reservation %q", name), false
	}
	b, now := x.c.booked[at], nanos(x.now)
	left := time.Duration(b.to - max(now, b.from))
	switch {
	case !b.serves(r):
		return say("another reservation, or none", "the reservation %s is for %s", name, b.whom()), false
	case r.runs() > left:
		return say("a time limit of at most "+spell(left), "is expected to run for %s (%s), and the reservation %s has %s left until %s",
			spell(r.runs()), r.assumed(), name, spell(left), stamp(b.to)), false
	case b.from > now:
		why = say("its beginning", "the reservation %s begins at %s", name, stamp(b.from))
		why.When = moment(b.from)
		return why, false
	case b.missing > 0:
		return say("more nodes that are ready", "the reservation %s has %d of %s and lacks %d", name, len(b.nodes), plural(b.wanted(), "node"), b.missing), true
	}
	return say("the end of others in it", "the reservation %s has %s, on which there is not enough room", name, plural(int64(len(b.nodes)), "node")), true
}

// capacityReasons names the capacities that have too little left; of those of a level the
// domains in which that is so.
func (x *explainer) capacityReasons(r *Request) []api.Reason {
	ps := x.c.pools
	if ps == nil {
		return nil
	}
	now := nanos(x.now)
	var out []api.Reason
	for _, u := range r.Spec.Uses {
		c := ps.byName[u.Of]
		if c == nil || u.N <= 0 {
			continue
		}
		need, where := satMul(u.N, int64(len(r.Spec.Bundles))), ""
		domains := []string{""}
		if c.Level != "" {
			domains = sortedKeys(c.domains)
			need = u.N
		}
		for _, at := range domains {
			used := c.most(&trial{}, math.MaxInt, at, now, now+1)
			have := max(0, c.left()-used)
			if need <= have {
				continue
			}
			if at != "" {
				where = " in " + c.Level + " " + at
			}
			var who []string
			for _, y := range c.domains[at] {
				if y.from <= now && y.who.group != r.ID {
					who = append(who, y.who.name)
				}
			}
			slices.SortFunc(who, naturalCompare)
			who = slices.Compact(who)
			text := fmt.Sprintf("asks for %s of %s%s; %s of %s in use", soMuch(need, c.Unit), c.Name, where,
				soMuch(satAdd(used, max(0, c.Overhead)), c.Unit), soMuch(c.Total, c.Unit))
			if len(who) > 0 {
				text += " by " + shortList(who)
			}
			text += fmt.Sprintf("; %s missing", soMuch(need-have, c.Unit))
			why := api.Reason{
				Code: api.ReasonCapacity, Text: text, Where: strings.TrimSpace(c.Name + where),
				Need: soMuch(need, c.Unit), Have: soMuch(have, c.Unit), Missing: soMuch(need-have, c.Unit),
				Frees: "the end of " + cmp.Or(shortList(who), "what uses it") + ", or a smaller use",
			}
			why.Block(who)
			out = append(out, why)
		}
	}
	return out
}
