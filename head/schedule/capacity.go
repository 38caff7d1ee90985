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

// pools are the capacities that are no part of a node, with who uses them when.
type pools struct {
	p      *profile
	byName map[string]*pool
}

type pool struct {
	*api.Capacity
	domains map[string][]use
}

// use is so much of a capacity in one domain, for a time.
type use struct {
	from, to, n int64
	who         *occupant
}

func newPools(p *profile) *pools {
	ps := &pools{p: p, byName: map[string]*pool{}}
	for _, c := range p.s.Capacities {
		ps.byName[c.Name] = &pool{Capacity: c, domains: map[string][]use{}}
	}
	return ps
}

// left is what a pool can ever give.
func (c *pool) left() int64 { return max(0, c.Total-max(0, c.Overhead)) }

// most is the largest use of a domain within a time, by what runs, what is planned before a
// turn, and nobody who is gone in a trial.
func (c *pool) most(t *trial, turn int, domain string, from, to int64) int64 {
	uses := c.domains[domain]
	most := func(at int64) int64 {
		var sum int64
		for i := range uses {
			if u := &uses[i]; u.from <= at && at < u.to && (turn == math.MaxInt || u.who.start == nil || u.who.start.turn < turn) && !t.without(u.who) {
				sum = satAdd(sum, u.n)
			}
		}
		return sum
	}
	out := most(from)
	for i := range uses {
		if at := uses[i].from; from < at && at < to {
			out = max(out, most(at))
		}
	}
	return out
}

// domainOf is the part of a pool that a node uses; false: the node is in no domain of its
// level.
func (ps *pools) domainOf(c *pool, ni int) (string, bool) {
	if c.Level == "" {
		return "", true
	}
	return ps.p.domain(c.Level, ni)
}

// counts is how many bundles there are in each domain of a pool.
func (ps *pools) counts(c *pool, nodes []int) (map[string]int64, bool) {
	out := map[string]int64{}
	for _, ni := range nodes {
		at, ok := ps.domainOf(c, ni)
		if !ok {
			return nil, false
		}
		out[at]++
	}
	return out, true
}

// holds reports whether all pools that a request uses have room for it at its spots.
func (ps *pools) holds(r *Request, turn int, spots []spot, from, to int64) bool {
	for _, u := range r.Spec.Uses {
		c := ps.byName[u.Of]
		if u.N <= 0 {
			continue
		}
		if c == nil {
			return false
		}
		counts, ok := ps.counts(c, nodesAt(spots))
		if !ok {
			return false
		}
		for at, n := range counts {
			if satAdd(c.most(&ps.p.trial, turn, at, from, to), satMul(u.N, n)) > c.left() {
				return false
			}
		}
	}
	return true
}

func nodesAt(spots []spot) []int {
	out := make([]int, len(spots))
	for i := range spots {
		out[i] = spots[i].node
	}
	return out
}

// take charges a group at its spots.
func (ps *pools) take(r *Request, spots []spot, from, to int64, who *occupant) {
	if len(r.Spec.Uses) > 0 {
		ps.charge(r.Spec.Uses, nodesAt(spots), from, to, who)
	}
}

// giveBack takes out what somebody uses.
func (ps *pools) giveBack(who *occupant) {
	for _, c := range ps.byName {
		for at := range c.domains {
			c.domains[at] = slices.DeleteFunc(c.domains[at], func(u use) bool { return u.who == who })
		}
	}
}

func (ps *pools) charge(uses api.Amounts, nodes []int, from, to int64, who *occupant) {
	for _, u := range uses {
		c := ps.byName[u.Of]
		if c == nil || u.N <= 0 {
			continue
		}
		counts := map[string]int64{}
		for _, ni := range nodes {
			if at, ok := ps.domainOf(c, ni); ok {
				counts[at]++
			}
		}
		for _, at := range sortedKeys(counts) {
			c.domains[at] = append(c.domains[at], use{from: from, to: to, n: satMul(u.N, counts[at]), who: who})
		}
	}
}

// roomFrom is the first moment, from at on, at which the pools of the whole cluster have
// room for the request of a turn as long as it runs; forever if they never have.
func (ps *pools) roomFrom(r *Request, turn int, fewest, at, to int64) int64 {
	dur := to - at
	bundles := fewest
	for moved := true; moved; {
		moved = false
		for _, u := range r.Spec.Uses {
			c := ps.byName[u.Of]
			if c == nil {
				return forever
			}
			need := satMul(max(0, u.N), bundles)
			if c.Level != "" {
				need = max(0, u.N)
			}
			if need > c.left() {
				return forever
			}
			if c.Level != "" {
				continue
			}
			for satAdd(c.most(&ps.p.trial, turn, "", at, at+dur), need) > c.left() {
				next := int64(forever)
				for i := range c.domains[""] {
					if e := c.domains[""][i].to; e > at {
						next = min(next, e)
					}
				}
				if next >= forever-1 {
					return forever
				}
				at, moved = next, true
			}
		}
	}
	return at
}

// limit lets each node hold no more bundles than the pools of its domains have room for,
// those first that hold most. False: there is not enough.
func (ps *pools) limit(r *Request, turn int, d *demand, o *overlay, nodes []int, from, to int64) bool {
	order := make([]int, len(nodes))
	counts := make([]int64, len(nodes))
	for i, ni := range nodes {
		order[i] = i
		for _, c := range d.classes {
			counts[i] = max(counts[i], int64(c.room(o.nodes[ni])))
		}
		counts[i] = min(counts[i], int64(d.total))
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(counts[b], counts[a]) })
	for _, u := range r.Spec.Uses {
		c := ps.byName[u.Of]
		if u.N <= 0 {
			continue
		}
		if c == nil {
			return false
		}
		room := map[string]int64{}
		for _, i := range order {
			at, ok := ps.domainOf(c, nodes[i])
			if !ok {
				counts[i] = 0
				continue
			}
			if _, known := room[at]; !known {
				room[at] = max(0, c.left()-c.most(&ps.p.trial, turn, at, from, to)) / u.N
			}
			if counts[i] = min(counts[i], room[at]); counts[i] < d.perNode {
				counts[i] = 0
			}
			room[at] -= counts[i]
		}
	}
	var sum int64
	for i, ni := range nodes {
		sum = satAdd(sum, counts[i])
		n := o.nodes[ni].clone()
		n.limit, n.ready = counts[i], n.ready && counts[i] > 0
		o.set(ni, n)
	}
	return sum >= d.fewest()
}

// CapacityUse is how much of a capacity is in use in one domain.
type CapacityUse struct {
	Capacity string   `json:"capacity"`
	Domain   string   `json:"domain,omitempty"`
	Total    int64    `json:"total"`
	Overhead int64    `json:"overhead,omitempty"`
	Used     int64    `json:"used"`
	Headroom int64    `json:"headroom"`
	Unit     string   `json:"unit,omitempty"`
	By       []string `json:"by,omitempty"` // who uses it
}

// CapacityUses says how much of each capacity is in use, domain by domain.
func CapacityUses(s *Snapshot, now time.Time) []CapacityUse {
	p := newProfile(s, overlayOf(s, now), now)
	var out []CapacityUse
	for _, name := range sortedKeys(p.pools.byName) {
		c := p.pools.byName[name]
		domains := map[string]bool{}
		for ni := range p.free.nodes {
			if at, ok := p.pools.domainOf(c, ni); ok {
				domains[at] = true
			}
		}
		if c.Level == "" {
			domains[""] = true
		}
		for _, at := range sortedKeys(domains) {
			u := CapacityUse{Capacity: name, Domain: at, Total: c.Total, Overhead: c.Overhead, Unit: c.Unit, Used: c.most(&p.trial, math.MaxInt, at, p.now, p.now+1)}
			u.Headroom = max(0, c.left()-u.Used)
			for _, x := range c.domains[at] {
				u.By = append(u.By, x.who.name)
			}
			slices.SortFunc(u.By, naturalCompare)
			u.By = slices.Compact(u.By)
			out = append(out, u)
		}
	}
	return out
}

// neverCapacity says why a request asks for more than a capacity has, whoever else uses
// it; nil if it does not.
func neverCapacity(capacities []*api.Capacity, spec *api.GroupSpec) *api.Reason {
	for _, u := range spec.Uses {
		at := slices.IndexFunc(capacities, func(c *api.Capacity) bool { return c.Name == u.Of })
		if at < 0 {
			var known []string
			for _, c := range capacities {
				known = append(known, c.Name)
			}
			slices.Sort(known)
			have := "there are none"
			if len(known) > 0 {
				have = "there are " + shortList(known)
			}
			return &api.Reason{
				Code: api.ReasonNeverFits, Text: fmt.Sprintf("no capacity is named %q; %s", u.Of, have),
				Missing: u.Of, Frees: "another name, or a capacity of that name: troupe topology apply",
			}
		}
		c := &pool{Capacity: capacities[at]}
		bundles, of := int64(len(spec.Bundles)), fmt.Sprintf("%d × %s = ", len(spec.Bundles), soMuch(u.N, c.Unit))
		if c.Level != "" || bundles == 1 {
			bundles, of = 1, ""
		}
		need := satMul(max(0, u.N), bundles)
		if need <= c.left() {
			continue
		}
		// The excess is over what there is in all, unless only what is always in use makes it.
		have, beside := c.Total, ""
		if need <= c.Total {
			have, beside = c.left(), fmt.Sprintf(" beside the %s that are always in use", soMuch(c.Overhead, c.Unit))
		}
		return &api.Reason{
			Code: api.ReasonNeverFits,
			Text: fmt.Sprintf("asks for %s%s of %s, which has %s%s: %s too much", of, soMuch(need, c.Unit), c.place(),
				soMuch(have, c.Unit), beside, soMuch(need-have, c.Unit)),
			Need: soMuch(need, c.Unit), Have: soMuch(have, c.Unit), Missing: soMuch(need-have, c.Unit), Where: c.Name,
			Frees: "a smaller use of " + c.Name + ", or more of it",
		}
	}
	return nil
}

// place names a capacity for people.
func (c *pool) place() string {
	if c.Level == "" {
		return c.Name
	}
	return c.Name + " of one " + c.Level
}

func soMuch(n int64, unit string) string { return strings.TrimSpace(fmt.Sprintf("%d %s", n, unit)) }
