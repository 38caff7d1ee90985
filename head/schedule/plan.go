package schedule

import (
	"slices"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Plan decides every pending request of the snapshot, in the order in which it looked
// at them, with the reasons of all that waits. A gang gets a node for each of its bundles
// or nothing (P1), a device never gets a second owner (P2), and what waits says why (P7).
// The result depends on the contents of the snapshot, never on the order in which they
// are listed, so two heads decide alike.
func Plan(s *Snapshot, now time.Time) []Decision {
	r := NewPlanner().Plan(s, now)
	all := r.All()
	for i := range all {
		if d := &all[i]; d.Bundles == nil {
			d.Reasons = r.Why(d.Group)
		}
	}
	return all
}

// Planner is Plan with a memory. The memory only makes it faster: what it answers is a
// function of the snapshot and the time. It is not safe for use by several goroutines;
// its results are.
type Planner struct {
	// Clock times the phases, from any beginning; nil: they are not timed.
	Clock func() time.Duration
	// PlanAge is how old a planned start may become before it is looked for again, although
	// there may be an earlier one by then; 0: none does. With it a cycle goes by the plan that
	// it finds, as far as that is still possible, and Replan goes on with the plan.
	PlanAge time.Duration
	mem     memory
}

// NewPlanner makes a planner that remembers nothing yet.
func NewPlanner() *Planner { return &Planner{} }

// Phase is one step of a cycle and how long it took.
type Phase struct {
	Name string
	Took time.Duration
}

// Result is what one cycle decided.
type Result struct {
	// Decisions are in the order of turns; what waits without a planned start is left out.
	// Reasons are asked for with Why.
	Decisions []Decision
	Evictions []Eviction
	Unclaims  []Unclaim
	Growths   []Growth
	Again     time.Time // when to look again though nothing changes; zero: no need
	Phases    []Phase
	// Tried is how many placements were looked for: what cannot run costs none until there
	// may be more room.
	Tried int

	cycle   *cycle
	planned []*plannedStart
	left    *overlay // what is free at the end; later cycles do not change it
	mu      sync.Mutex
	explain *explainer
	at      map[string]int // group → turn
	asked   int
}

// cycle is the work of one call, handed from phase to phase.
type cycle struct {
	s   *Snapshot
	now time.Time
	mem *memory

	free      *overlay // what is free; each placement is taken out of it
	quotas    *quotas  // what is charged to tenants and queues; each placement is
	turns     *turns
	order     []*Request // in the order of turns
	fates     []fate     // one for each of order
	placed    []placedNow
	evictions []Eviction
	unclaim   []Unclaim
	growths   []Growth
	waits     []*Request        // those whose claim has not come true yet
	unhelpful map[string]string // why no preemption helps a group
	again     time.Time
	tried     int             // placements that were looked for
	refused   map[string]bool // demands, by key, for which there is proof that there is no room
	grounds   *grounds
	changes   []change // what the cycle took

	aside   []aside  // what was taken out of free for claims
	leaving []victim // those that leave for claims, and are charged until they have left
	times   *profile // nil: nothing depended on time yet
	timely  timely
	age     time.Duration // that a planned start may reach
	replan  bool          // there is time to look for starts

	planned []*plannedStart
	before  []int // the turn of each of planned
	booked  []*booking
	pools   *pools
}

// fate is what becomes of one request.
type fate struct {
	placed int32 // its number among what the cycle placed, from 1; 0: it waits
	starts bool  // later: it is planned
	start  int64
}

// decision is what is said of the request of a turn.
func (c *cycle) decision(turn int) Decision {
	d, f := Decision{Group: c.order[turn].ID}, &c.fates[turn]
	if f.placed > 0 {
		p := &c.placed[f.placed-1]
		d.Bundles, d.Chosen = p.at, p.chosen
	}
	if f.starts {
		d.Start = moment(f.start)
	}
	return d
}

// decided are the decisions on what is placed or planned.
func (c *cycle) decided() []Decision {
	n := 0
	for i := range c.fates {
		if f := &c.fates[i]; f.placed > 0 || f.starts {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	out := make([]Decision, 0, n)
	for i := range c.fates {
		if f := &c.fates[i]; f.placed > 0 || f.starts {
			out = append(out, c.decision(i))
		}
	}
	return out
}

// All are the decisions on all requests, those that wait too, in the order of turns.
func (r *Result) All() []Decision {
	out := make([]Decision, len(r.cycle.order))
	for i := range out {
		out[i] = r.cycle.decision(i)
	}
	return out
}

// placedNow is a group that this cycle placed.
type placedNow struct {
	request *Request
	at      []api.Placed
	chosen  []int64 // see Decision
	spots   []spot
}

// Plan runs one cycle.
func (p *Planner) Plan(s *Snapshot, now time.Time) *Result { return p.run(s, now, false) }

// Replan is Plan for when there is nothing else to do: with a PlanAge it looks for more
// starts, and again for old ones. Where it is not called a cycle does so once they are old.
func (p *Planner) Replan(s *Snapshot, now time.Time) *Result { return p.run(s, now, true) }

func (p *Planner) run(s *Snapshot, now time.Time, replan bool) *Result {
	c := &cycle{s: s, now: now, mem: &p.mem, age: p.PlanAge, replan: replan, unhelpful: map[string]string{}}
	r := &Result{cycle: c}
	began := p.elapsed()
	for _, phase := range []struct {
		name string
		run  func()
	}{
		{"snapshot", c.look},
		{"order", c.line},
		{"plan", c.planStarts},
		{"place", c.place},
		{"preempt", c.preempt},
		{"grow", c.grow},
	} {
		phase.run()
		ended := p.elapsed()
		r.Phases = append(r.Phases, Phase{phase.name, ended - began})
		began = ended
	}
	r.Decisions, r.Evictions, r.Unclaims, r.Again = c.decided(), c.evictions, c.unclaim, c.again
	r.Growths, r.planned = c.growths, c.planned
	r.Tried, r.left = c.tried, c.free.clone()
	c.changes = slices.Clone(c.free.log)
	return r
}

func (p *Planner) elapsed() time.Duration {
	if p.Clock == nil {
		return 0
	}
	return p.Clock()
}

// 1. Snapshot: an overlay of what is free, which this cycle alone writes to, so that
// each decision sees what earlier ones took.
func (c *cycle) look() {
	c.free = c.mem.overlay(c.s, c.now)
	c.grounds = c.mem.grounds
	c.mem.keepRequests(c.s.Pending)
	c.mem.cycle++
}

// 2. Order: who is looked at first.
func (c *cycle) line() {
	c.quotas = c.mem.books.open(c.s)
	c.turns = c.mem.lineup.turns(c.s, &c.mem.books, c.quotas, func(r *Request) *demand { return c.mem.demandOf(r, c.now) }, c.now)
	c.lookAgain(c.turns.until)
	c.order = c.turns.list
	c.fates = make([]fate, len(c.order))
}

// 3. Plan: what has been claimed, and what is free when, if something depends on it from
// the beginning. The starts themselves are planned in turn with the placements, since one
// may be in the way of the other.
func (c *cycle) planStarts() {
	c.claims()
	kept := slices.ContainsFunc(c.turns.all, func(e *entrant) bool { return e.former && e.r.keepsFormer(c.now) }) ||
		slices.ContainsFunc(c.s.Holders, func(h *Holder) bool { return len(h.Lent) > 0 })
	if kept || len(c.waits) > 0 || len(c.s.Reservations) > 0 {
		c.profile()
	}
}

// 4. Place: whole or waiting. What failed is not tried again before there may be more
// room, neither in this cycle nor in later ones. A request that does not fit now holds up
// no later one that does not delay its planned start.
func (c *cycle) place() {
	reserved := len(c.s.Reservations) > 0
	for i, r := range c.order {
		e := c.turns.all[i]
		if e.claims || c.fates[i].placed > 0 {
			continue
		}
		if e.timed || reserved { // whether it is looked at here, or only for who may leave for it
			c.profile()
		}
		d := e.wants
		if !c.admits(e) {
			c.unplan(i)
			c.placeWithin(i, d)
			continue
		}
		d = c.allowed(r, d)
		got := c.startNow(i, r, d)
		if got.spots == nil {
			c.fates[i].start, c.fates[i].starts = c.planStart(i, r, d)
			continue
		}
		if c.take(i, d, got.spots, got.chosen) && c.times != nil {
			c.times.begun(r, i, got.spots)
		}
	}
	c.closePlan()
}

// try places a demand, unless nothing has changed that could help it since it failed: less
// room never helps where the failure was proven.
func (c *cycle) try(d *demand) outcome {
	f := &d.failed
	if f.known && f.links == c.mem.linkWords && (f.version == c.free.version || f.proven && f.grown == c.free.grown) {
		c.noRoom(d, f.proven)
		return outcome{proven: f.proven}
	}
	c.tried++
	got := place(c.free, d)
	*f = failure{}
	if got.spots == nil {
		*f = failure{known: true, proven: got.proven, version: c.free.version, grown: c.free.grown, links: c.mem.linkWords}
		c.noRoom(d, got.proven)
	}
	return got
}

// noRoom keeps for explanations that a demand has no room: within a cycle there is only less
// of it.
func (c *cycle) noRoom(d *demand, proven bool) {
	if !proven {
		return
	}
	if c.refused == nil {
		c.refused = map[string]bool{}
	}
	c.refused[d.key] = true
}

// 7. Explain: against what is left at the end of the cycle, with the groups placed in it
// among the holders. Equal requests share their explanation.

// Why says why a group of the result waits, with all reasons, the one to show first; nil
// if it does not wait. It may be asked at any time, by several goroutines.
func (r *Result) Why(group string) []api.Reason {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.cycle
	i, ok := r.waiting(group)
	if !ok {
		return nil
	}
	if claim := c.claimReason(c.order[i]); claim != nil {
		return claim
	}
	out := r.explainer().explain(c.order[i], i)
	if why := c.unhelpful[group]; why != "" {
		out = append(out, api.Reason{Code: api.ReasonPreemption, Text: why, Frees: "see the other reasons"})
	}
	return out
}

// waiting is the turn of a group; false: it does not wait.
func (r *Result) waiting(group string) (int, bool) {
	// Where only few are asked about, it is not worth it to list all.
	const few = 8
	if r.asked++; r.asked <= few {
		i := slices.IndexFunc(r.cycle.order, func(x *Request) bool { return x.ID == group })
		return max(0, i), i >= 0 && r.cycle.fates[i].placed == 0
	}
	if r.at == nil {
		r.at = make(map[string]int, len(r.cycle.order))
		for i := range r.cycle.order {
			r.at[r.cycle.order[i].ID] = i
		}
	}
	i, ok := r.at[group]
	return i, ok && r.cycle.fates[i].placed == 0
}

func (r *Result) explainer() *explainer {
	if r.explain == nil {
		r.explain = newExplainer(r.cycle, r.left)
	}
	return r.explain
}
