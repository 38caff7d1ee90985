package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// closure is a time in which a node is not open to all.
type closure struct {
	from, to int64
	booking  *booking
}

// booking is a reservation with the nodes that it has got.
type booking struct {
	*api.Reservation
	from, to int64
	nodes    []int // indices, ascending
	missing  int64 // nodes that there are too few of
}

// opens reports whether a closed node is open to a request all the same.
func (c *closure) opens(r *Request) bool { return c.booking.serves(r) }

// serves reports whether a request may use what is reserved. One that names a reservation
// uses no other one.
func (b *booking) serves(r *Request) bool {
	if r.Spec.Reservation != "" && r.Spec.Reservation != b.Name {
		return false
	}
	return b.owns(r.Spec.Tenant, r.Spec.Queue, r.Name, r.ID)
}

func (b *booking) owns(tenant, queue string, names ...string) bool {
	switch {
	case b.Maintenance != "":
		return false
	case b.Job != "":
		return slices.Contains(names, b.Job)
	case b.Queue != "":
		return queue == b.Queue
	case b.Tenant != "":
		return tenant == b.Tenant
	}
	return false
}

// wanted is how many nodes it is to have.
func (b *booking) wanted() int64 { return int64(len(b.nodes)) + b.missing }

// called is the reservation for people; one that asks for a number of nodes, or lacks some,
// says how many it has got.
func (b *booking) called() string {
	if len(b.Nodes) > 0 && b.missing == 0 {
		return b.Name
	}
	return fmt.Sprintf("%s, which has %d of %s", b.Name, len(b.nodes), plural(b.wanted(), "node"))
}

// reserve gives each reservation its nodes and closes them to all others.
func (p *profile) reserve() {
	for _, b := range p.booked {
		for _, ni := range b.nodes {
			p.nodes[ni].closed = nil
			p.log = append(p.log, int32(ni))
		}
	}
	p.booked = nil
	for _, r := range p.s.Reservations {
		if b := (&booking{Reservation: r, from: nanos(r.Start), to: nanos(r.End)}); b.to > p.now && b.from < b.to {
			p.booked = append(p.booked, b)
		}
	}
	slices.SortFunc(p.booked, func(a, b *booking) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.Name, b.Name))
	})
	for _, b := range p.booked {
		if len(b.Nodes) > 0 {
			p.bookNamed(b)
		} else {
			p.bookCount(b)
		}
		slices.Sort(b.nodes)
		for _, ni := range b.nodes {
			p.nodes[ni].closed = append(p.nodes[ni].closed, closure{from: b.from, to: b.to, booking: b})
			p.log = append(p.log, int32(ni))
		}
	}
}

// bookNamed takes the nodes that are named. In the place of one that is not ready another
// one is taken that has as much; for maintenance the named ones alone are meant.
func (p *profile) bookNamed(b *booking) {
	var failed []int
	for ni := range p.free.nodes {
		n := p.free.nodes[ni]
		if !slices.Contains(b.Nodes, n.name) && !slices.Contains(b.Nodes, n.id) {
			continue
		}
		if n.ready || b.Maintenance != "" {
			b.nodes = append(b.nodes, ni)
		} else {
			failed = append(failed, ni)
		}
	}
	b.missing = int64(len(b.Nodes) - len(b.nodes))
	if b.Maintenance != "" {
		return
	}
	for _, lost := range failed {
		was := p.free.nodes[lost]
		picks := p.picks(b, func(n *nodeState) bool {
			return n.pool == was.pool && n.capCPU >= was.capCPU && n.capMem >= was.capMem && len(n.gpus) >= len(was.gpus)
		})
		if len(picks) > 0 {
			b.nodes = append(b.nodes, picks[0].node)
			b.missing--
		}
	}
}

// bookCount takes so many nodes of a pool, within one domain if the reservation says so.
func (p *profile) bookCount(b *booking) {
	picks := p.picks(b, func(n *nodeState) bool { return b.Pool == "" || n.pool == b.Pool })
	if b.Level != "" {
		picks = p.oneDomain(b, picks)
	}
	for _, f := range picks[:min(int64(len(picks)), b.Count)] {
		b.nodes = append(b.nodes, f.node)
	}
	b.missing = b.Count - int64(len(b.nodes))
}

// pick is a node that a reservation may get.
type pick struct {
	node    int
	mine    bool  // its owner runs there already
	foreign int64 // when the last of the others has gone, if that is too late
	empty   bool
}

// picks lists the nodes that a reservation may get, the best first: where its owner runs,
// then where nobody is in the way when it starts, then where they are so for the shortest.
func (p *profile) picks(b *booking, suits func(*nodeState) bool) []pick {
	var out []pick
	for ni := range p.free.nodes {
		n := p.free.nodes[ni]
		t := &p.nodes[ni]
		taken := slices.ContainsFunc(t.closed, func(c closure) bool { return c.from < b.to && b.from < c.to })
		if !n.ready || taken || slices.Contains(b.nodes, ni) || !suits(n) {
			continue
		}
		f := pick{node: ni, empty: len(t.running) == 0}
		for i := range t.running {
			s := &t.running[i]
			if b.owns(s.who.tenant, s.who.queue, s.who.name, s.who.group) {
				f.mine = true
			} else if s.to > b.from {
				f.foreign = max(f.foreign, s.to)
			}
		}
		out = append(out, f)
	}
	slices.SortStableFunc(out, func(x, y pick) int {
		return cmp.Or(
			-cmp.Compare(btoi(x.mine), btoi(y.mine)), cmp.Compare(x.foreign, y.foreign),
			-cmp.Compare(btoi(x.empty), btoi(y.empty)), cmp.Compare(x.node, y.node),
		)
	})
	return out
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// oneDomain keeps the picks of the domain that has most of those that are needed, and of
// several such the one whose picks are the best.
func (p *profile) oneDomain(b *booking, picks []pick) []pick {
	byDomain := map[string][]pick{}
	for _, f := range picks {
		if at, ok := p.domain(b.Level, f.node); ok {
			byDomain[at] = append(byDomain[at], f)
		}
	}
	var best []pick
	better := func(x, y []pick) bool {
		x, y = x[:min(int64(len(x)), b.Count)], y[:min(int64(len(y)), b.Count)]
		var fx, fy int64
		for _, f := range x {
			fx = max(fx, f.foreign)
		}
		for _, f := range y {
			fy = max(fy, f.foreign)
		}
		return cmp.Or(-cmp.Compare(len(x), len(y)), cmp.Compare(fx, fy)) < 0
	}
	for _, at := range sortedKeys(byDomain) {
		if best == nil || better(byDomain[at], best) {
			best = byDomain[at]
		}
	}
	return best
}

// domain is the domain of a level that a node is in, by its whole path; false: it is in
// none.
func (p *profile) domain(level string, ni int) (string, bool) {
	li := p.free.topo.level(level)
	if li < 0 || p.free.topo.of[li][ni] == none {
		return "", false
	}
	return p.free.topo.domains[p.free.topo.of[li][ni]].path, true
}

// own keeps the nodes that are reserved for the request throughout a time.
func (p *profile) own(r *Request, nodes []int, from, to int64) []int {
	if len(p.booked) == 0 {
		return nil
	}
	var out []int
	for _, ni := range nodes {
		if slices.ContainsFunc(p.nodes[ni].closed, func(c closure) bool { return c.from <= from && from < c.to && c.opens(r) }) {
			out = append(out, ni)
		}
	}
	return out
}

// confined reports whether a node is closed to a request because it names a reservation
// that the node is no part of at that time.
func (p *profile) confined(ni int, r *Request) (from, to int64, ok bool) {
	if r.Spec.Reservation == "" {
		return 0, 0, false
	}
	for i := range p.nodes[ni].closed {
		if c := &p.nodes[ni].closed[i]; c.booking.Name == r.Spec.Reservation && c.opens(r) {
			return c.from, c.to, true
		}
	}
	return 0, 0, true
}

// Booking is what a reservation has got.
type Booking struct {
	Reservation string   `json:"reservation"`
	Nodes       []string `json:"nodes,omitempty"` // by name
	// Missing nodes: there are too few that are ready and not reserved already.
	Missing int64 `json:"missing,omitempty"`
}

// Bookings says which nodes each reservation has got that has not ended.
func Bookings(s *Snapshot, now time.Time) []Booking {
	p := newProfile(s, overlayOf(s, now), now)
	var out []Booking
	for _, b := range p.booked {
		got := Booking{Reservation: b.Name, Missing: b.missing}
		for _, ni := range b.nodes {
			got.Nodes = append(got.Nodes, p.free.nodes[ni].name)
		}
		out = append(out, got)
	}
	return out
}
