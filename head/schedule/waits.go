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

// timely explains a request that time, reservations or capacities keep waiting, beside
// its quota; nil if it is not they.
func (x *explainer) timely(r *Request, turn int) []api.Reason {
	why := x.timeReasons(r, turn)
	if why == nil || len(r.Spec.Bundles) == 0 {
		return nil
	}
	quota := x.quotaReasons(r, newDemand(r, x.now))
	if len(quota) > 0 && quota[0].Code == api.ReasonMisconfigured {
		return quota
	}
	return append(quota, why...)
}

// timeReasons says what of time, reservations and capacities keeps a request from what is
// free now: nil if that is not what it waits for. turn is its place in the order.
func (x *explainer) timeReasons(r *Request, turn int) []api.Reason {
	if never := neverCapacity(x.s.Capacities, &r.Spec); never != nil {
		return []api.Reason{*never}
	}
	if x.c.times == nil {
		return nil
	}
	var out []api.Reason
	if why := x.reservationReason(r); why != nil {
		out = append(out, *why)
	}
	d := newDemand(r, x.now)
	key := d.key
	fits, known := x.fits[key]
	if !known {
		fits = len(d.classes) > 0 && !x.c.refused[key] && place(x.free, d).spots != nil
		x.fits[key] = fits
	}
	if !fits {
		return out
	}
	out = append(out, x.capacityReasons(r)...)
	if r.Spec.Reservation != "" {
		return out
	}
	closed, ahead := x.inTheWayLater(r, d, turn)
	for _, c := range closed {
		out = append(out, c.reason(nanos(x.now)))
	}
	if why, ok := aheadReason(r, ahead); ok {
		out = append(out, why)
	}
	return out
}

// obstacle is a reservation or a planned start that takes nodes which have room now.
type obstacle struct {
	booking *booking
	entry   *plannedStart
	turn    int
	nodes   []string
}

// inTheWayLater lists what will take nodes that have room for the request now, within the
// time that it runs: reservations, and the starts planned before it.
func (x *explainer) inTheWayLater(r *Request, d *demand, turn int) (closed, ahead []*obstacle) {
	to := after(nanos(x.now), r.runs())
	byWhom := map[any]*obstacle{}
	note := func(list *[]*obstacle, who any, o obstacle, ni int) {
		n := x.free.nodes[ni]
		if !slices.ContainsFunc(d.classes, func(c *class) bool { return d.serves(n, c) && n.count(c, 1) > 0 }) {
			return
		}
		have := byWhom[who]
		if have == nil {
			have = &o
			byWhom[who] = have
			*list = append(*list, have)
		}
		if len(have.nodes) == 0 || have.nodes[len(have.nodes)-1] != n.name {
			have.nodes = append(have.nodes, n.name)
		}
	}
	for _, b := range x.c.booked {
		if b.from < to && !b.serves(r) {
			for _, ni := range b.nodes {
				note(&closed, b, obstacle{booking: b}, ni)
			}
		}
	}
	for i, e := range x.c.planned {
		if before := x.c.before[i]; e.from < to && before < turn {
			for _, sp := range e.spots {
				note(&ahead, e, obstacle{entry: e, turn: before}, sp.node)
			}
		}
	}
	slices.SortFunc(closed, func(a, b *obstacle) int {
		return cmp.Or(cmp.Compare(a.booking.from, b.booking.from), cmp.Compare(a.booking.Name, b.booking.Name))
	})
	slices.SortFunc(ahead, func(a, b *obstacle) int {
		return cmp.Or(cmp.Compare(a.entry.from, b.entry.from), cmp.Compare(a.turn, b.turn))
	})
	return closed, ahead
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
		Frees: frees,
	}
}

// whom is whose work a reservation is for.
func (b *booking) whom() string {
	if b.Job == "" && b.Queue == "" && b.Tenant == "" {
		return "nobody"
	}
	return b.For()
}

func aheadReason(r *Request, ahead []*obstacle) (api.Reason, bool) {
	if len(ahead) == 0 {
		return api.Reason{}, false
	}
	var who, said []string
	for _, o := range ahead {
		who = append(who, o.entry.who.name)
		said = append(said, fmt.Sprintf("%s (planned for %s on %s)", o.entry.who.name, stamp(o.entry.from), shortList(o.nodes)))
	}
	runs := "is expected to run for " + spell(r.runs())
	if r.assumed() != "its expected end" {
		runs += " (" + r.assumed() + ")"
	}
	return api.Reason{
		Code: api.ReasonOrder, Text: "would fit now, but " + runs + " and would delay " + strings.Join(said[:min(len(said), listed)], ", "),
		Blockers: who[:min(len(who), named)], Frees: "a time limit that ends before, or the start of " + shortList(who),
	}, true
}

// reservationReason says what is wrong with the reservation that a request names.
func (x *explainer) reservationReason(r *Request) *api.Reason {
	name := r.Spec.Reservation
	if name == "" {
		return nil
	}
	say := func(frees, format string, args ...any) *api.Reason {
		return &api.Reason{Code: api.ReasonReservation, Text: fmt.Sprintf(format, args...), Blockers: []string{name}, Frees: frees}
	}
	at := slices.IndexFunc(x.c.booked, func(b *booking) bool { return b.Name == name })
	if at < 0 {
		if slices.ContainsFunc(x.s.Reservations, func(b *api.Reservation) bool { return b.Name == name }) {
			return say("another reservation, or none", "the reservation %s has ended", name)
		}
		return say("another reservation, or none", "there is no reservation %q", name)
	}
	b, now := x.c.booked[at], nanos(x.now)
	left := time.Duration(b.to - max(now, b.from))
	switch {
	case !b.serves(r):
		return say("another reservation, or none", "the reservation %s is for %s", name, b.whom())
	case r.runs() > left:
		return say("a time limit of at most "+spell(left), "is expected to run for %s (%s), and the reservation %s has %s left until %s",
			spell(r.runs()), r.assumed(), name, spell(left), stamp(b.to))
	case b.from > now:
		return say("its beginning", "the reservation %s begins at %s", name, stamp(b.from))
	case b.missing > 0:
		return say("more nodes that are ready", "the reservation %s has %d of %s and lacks %d", name, len(b.nodes), plural(b.wanted(), "node"), b.missing)
	}
	return say("the end of others in it", "the reservation %s has %s, on which there is not enough room", name, plural(int64(len(b.nodes)), "node"))
}

// capacityReasons names the capacities that have too little left.
func (x *explainer) capacityReasons(r *Request) []api.Reason {
	ps := x.c.pools
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
				if y.from <= now {
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
			out = append(out, api.Reason{
				Code: api.ReasonCapacity, Text: text, Blockers: who[:min(len(who), named)], Where: strings.TrimSpace(c.Name + where),
				Need: soMuch(need, c.Unit), Have: soMuch(have, c.Unit), Missing: soMuch(need-have, c.Unit),
				Frees: "the end of " + cmp.Or(shortList(who), "what uses it") + ", or a smaller use",
			})
		}
	}
	return out
}
