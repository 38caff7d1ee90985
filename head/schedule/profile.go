package schedule

import (
	"cmp"
	"math"
	"time"
)

// profile says what is free where from now on: what is free now, what comes free when the
// groups that run are expected to have ended, and what planned starts and reservations
// take of it. Times are nanoseconds since 1970. A planner keeps it from cycle to cycle.
type profile struct {
	s     *Snapshot
	now   int64
	free  *overlay       // what is free now, with the placements of the cycle taken out
	at    map[string]int // node id → index of free
	nodes []nodeTimes    // by index of free
	lines map[lineKey]*line
	log   []int32 // nodes whose times changed, in order, for the lines to catch up

	rules  uint64 // counts what may be changes of reservations and capacities
	booked []*booking
	kept   []*Request // whose former places are kept
	pools  *pools
	alone  []int32 // each node for itself

	holders  []*Holder // that are in it, as the snapshot listed them
	byHolder map[*Holder]*occupant
	ends     endings // of holders, the first to end first
	upTo     int     // what was touched of free before is in it
	relative []*Holder
	agenda
	view view
	look look

	// trial is a preemption that is looked into.
	trial trial

	// scratch is the cluster with nothing to be had, in which nodes are put as they will be
	// free, to be placed on.
	scratch *overlay
	// used are the states that scratch has now, spare those of before, to be used again.
	used, spare []*nodeState
	room        []int32 // by node; all zero between two uses
	changed     []int32
	isChanged   []bool  // by node; none is between two uses
	sums, rooms []int64 // see zeros; by group of nodes
	fresh, open []span
	// covered, roomy and chosen are nodes, while one place is looked for.
	covered, roomy, chosen []int
	happens                []happening
	lists                  uint64 // counts lists of occupants
}

// trial sees the profile as if victims had left, and without what was planned for who they
// leave for.
type trial struct {
	group   string
	victims map[string]int64 // group → bundles that it keeps
}

func (t *trial) gone(s *stay) bool {
	keeps, ok := t.victims[s.who.group]
	return ok && s.bundle >= keeps
}

// without reports whether somebody is not there in the trial.
func (t *trial) without(who *occupant) bool {
	if t.group == "" {
		return false
	}
	keeps, leaves := t.victims[who.group]
	return leaves && keeps == 0 || who.group == t.group
}

// nodeTimes is what happens on one node.
type nodeTimes struct {
	running []stay // holds what is not free now, until it ends
	planned []stay // will hold some of what is free then
	closed  []closure
	former  []former // kept for groups that lost the rest of their placement
}

// forever is the end of what has none.
const forever = math.MaxInt64

// defaultRun is how long what says nothing of its time is expected to run, releaseTime
// how long it takes until what has ended is proven gone, and leaveTime until what has been
// told to leave has.
const (
	defaultRun  = 24 * time.Hour
	releaseTime = 30 * time.Second
	leaveTime   = 2 * time.Minute
)

func newProfile(s *Snapshot, free *overlay, now time.Time) *profile {
	p := &profile{
		free: free, at: make(map[string]int, len(free.nodes)), nodes: make([]nodeTimes, len(free.nodes)),
		lines: map[lineKey]*line{}, byHolder: map[*Holder]*occupant{}, room: make([]int32, len(free.nodes)), isChanged: make([]bool, len(free.nodes)),
		upTo: free.idx.end(),
	}
	p.scratch = &overlay{nodes: make([]*nodeState, len(free.nodes)), topo: free.topo, links: free.links, mix: free.mix, idx: &index{}}
	nothing := &nodeState{name: "nothing"}
	for ni := range free.nodes {
		p.scratch.nodes[ni] = nothing
		p.at[free.nodes[ni].id] = ni
	}
	p.follow(s, now)
	return p
}

// nanos is a time as the profile counts it. What is too far off to be counted is the last
// moment before forever.
func nanos(t time.Time) int64 {
	const first, last = -9_000_000_000, 9_000_000_000 // seconds within which UnixNano is exact
	switch s := t.Unix(); {
	case s < first:
		return math.MinInt64 / 2
	case s > last:
		return forever - 1
	}
	return t.UnixNano()
}

// moment is the reverse of nanos.
func moment(ns int64) time.Time { return time.Unix(0, ns).UTC() }

// after is a moment so much later, before forever.
func after(t int64, d time.Duration) int64 {
	if d > 0 && t > forever-1-int64(d) {
		return forever - 1
	}
	return t + int64(d)
}

// runs is how long a request is expected to run.
func (r *Request) runs() time.Duration {
	switch {
	case r.Expect > 0:
		return r.Expect
	case r.Spec.Estimate > 0:
		return time.Duration(r.Spec.Estimate)
	case r.Spec.TimeLimit > 0:
		return time.Duration(r.Spec.TimeLimit)
	}
	return defaultRun
}

// ends is when a holder is expected to have ended, always after now, and why.
func (h *Holder) ends(now int64) (int64, string) {
	switch {
	case h.Releasing:
		return after(now, releaseTime), "it has ended, and is assumed to be gone within " + releaseTime.String()
	case h.LeavingFor != "":
		return after(now, leaveTime), "it has been told to leave, and is assumed to be gone within " + leaveTime.String()
	}
	end, why := int64(0), ""
	switch {
	case !h.Ends.IsZero():
		end, why = nanos(h.Ends), h.source()
	case h.Started.IsZero():
		return after(now, defaultRun), "nothing is known of its time: " + spell(defaultRun) + " from now are assumed"
	default:
		end, why = after(nanos(h.Started), defaultRun), "nothing is known of its time: "+spell(defaultRun)+" from its start are assumed"
	}
	if end > now {
		return end, why
	}
	// It runs over: assumed to take as long again as it is over, in doubling steps so that
	// plans made one after the other agree.
	over := time.Minute
	for after(end, over) <= now {
		over *= 2
		if over > 1000*defaultRun {
			return after(now, over), "it is long past its expected end"
		}
	}
	return after(end, over), "it is past its expected end of " + stamp(end) + ": " + spell(over) + " more are assumed"
}

// relative reports whether the end that is expected of a holder moves with the time.
func (h *Holder) relative() bool {
	return h.Releasing || h.LeavingFor != "" || h.Ends.IsZero() && h.Started.IsZero()
}

// source says where the expected end of a holder comes from.
func (h *Holder) source() string {
	if h.Spec != nil && !h.Started.IsZero() {
		switch ran := h.Ends.Sub(h.Started); {
		case ran == 0:
		case ran == time.Duration(h.Spec.Estimate):
			return "its own estimate"
		case ran == time.Duration(h.Spec.TimeLimit):
			return "its own time limit"
		case ran == defaultRun:
			return "nothing is known of its time: " + spell(defaultRun) + " from its start are assumed"
		}
	}
	return "its expected end"
}

// called is the request's name for people.
func (r *Request) called() string { return cmp.Or(r.Name, r.ID) }

// assumed says where the time that a request is expected to run comes from.
func (r *Request) assumed() string {
	switch {
	case r.Expect > 0 && r.Expect == time.Duration(r.Spec.Estimate), r.Expect <= 0 && r.Spec.Estimate > 0:
		return "its own estimate"
	case r.Expect > 0 && r.Expect == time.Duration(r.Spec.TimeLimit), r.Expect <= 0 && r.Spec.TimeLimit > 0:
		return "its own time limit"
	case r.Expect > 0:
		return "its expected end"
	}
	return "nothing is known of its time: " + spell(defaultRun) + " from its start are assumed"
}

// atMost leaves of n what both have.
func (n *nodeState) atMost(m *nodeState) {
	n.cpu, n.mem, n.held = min(n.cpu, m.cpu), min(n.mem, m.mem), cmp.Or(n.held, m.held)
	for d := range n.gpus {
		g, h := &n.gpus[d], &m.gpus[d]
		g.share, g.free = min(g.share, h.share), min(g.free, h.free)
	}
}

// state is the state of a node at one time.
func (p *profile) state(ni int, at int64, turn int) *nodeState {
	n := p.blank(ni)
	t := &p.nodes[ni]
	for i := range t.running {
		if s := &t.running[i]; s.to <= at || p.trial.gone(s) {
			n.putBack(s)
		}
	}
	for i := range t.planned {
		if s := &t.planned[i]; s.from <= at && at < s.to && s.who.start.turn < turn && s.who.group != p.trial.group {
			n.takeOut(s)
		}
	}
	return n
}

// stateFor is state less what is kept for others than the request.
func (p *profile) stateFor(r *Request, ni int, at int64, turn int) *nodeState {
	n := p.state(ni, at, turn)
	for i := range p.nodes[ni].former {
		if f := &p.nodes[ni].former[i]; at < f.to && !f.opens(r) {
			n.takeOut(&f.stay)
		}
	}
	return n
}

// blank is a copy of what a node has free now, in the room of one that is used no more.
func (p *profile) blank(ni int) *nodeState {
	if len(p.spare) == 0 {
		p.spare = append(p.spare, &nodeState{})
	}
	n := p.spare[len(p.spare)-1]
	p.spare = p.spare[:len(p.spare)-1]
	p.used = append(p.used, n)
	devices := n.gpus
	*n = *p.free.nodes[ni]
	n.gpus = append(devices[:0], n.gpus...)
	return n
}

// window is what a node has free throughout a time, beside the starts planned before a
// turn; nil if it is closed to the request meanwhile.
func (p *profile) window(ni int, from, to int64, r *Request, turn int) *nodeState {
	if !p.free.nodes[ni].ready {
		return nil
	}
	t := &p.nodes[ni]
	if opens, closes, ok := p.confined(ni, r); ok && (from < opens || to > closes) {
		return nil
	}
	for i := range t.closed {
		if c := &t.closed[i]; c.from < to && from < c.to && !c.opens(r) {
			return nil
		}
	}
	n := p.stateFor(r, ni, from, turn)
	// What runs only gives back, so that free capacity is least where something begins.
	for i := range t.planned {
		if s := &t.planned[i]; from < s.from && s.from < to && s.who.start.turn < turn && s.who.group != p.trial.group {
			n.atMost(p.stateFor(r, ni, s.from, turn))
		}
	}
	return n
}

// holds takes a spot out of a state; false: it is not free there.
func (n *nodeState) holds(sp spot) bool {
	c := sp.class
	if n.cpu < c.cpu || n.mem < c.mem {
		return false
	}
	n.cpu, n.mem = n.cpu-c.cpu, n.mem-c.mem
	for _, d := range sp.devices {
		g := &n.gpus[d]
		switch {
		case c.share > 0 && g.shares(c, 1) < 1, c.share == 0 && (!g.untouched() || g.usable < c.gpuMem):
			return false
		case c.share > 0:
			g.takeShare(c)
		default:
			g.share, g.free = 0, 0
		}
	}
	return true
}

// allows reports whether the request of a turn may have its spots for its time from then
// on: nothing that is planned before it, reserved or running is in the way.
func (p *profile) allows(r *Request, turn int, spots []spot, from int64) bool {
	to := after(from, r.runs())
	defer func() { p.spare = append(p.spare, p.used...); p.used = p.used[:0] }()
	done := map[int]bool{}
	for _, sp := range spots {
		if done[sp.node] {
			continue
		}
		done[sp.node] = true
		n := p.window(sp.node, from, to, r, turn)
		if n == nil || n.held != "" || sp.class.whole && !n.idle() {
			return false
		}
		for _, other := range spots {
			if other.node == sp.node && !n.holds(other) {
				return false
			}
		}
	}
	return p.pools.holds(r, turn, spots, from, to)
}

// spell writes a duration for people: "24h", "1h30m", "45s".
func spell(d time.Duration) string {
	s := d.Round(time.Second).String()
	if d >= time.Minute && len(s) > 2 && s[len(s)-2:] == "0s" && s[len(s)-3] == 'm' {
		s = s[:len(s)-2]
	}
	if d >= time.Hour && len(s) > 2 && s[len(s)-2:] == "0m" && s[len(s)-3] == 'h' {
		s = s[:len(s)-2]
	}
	return s
}

// stamp writes a moment for people.
func stamp(ns int64) string {
	if ns >= forever-1 {
		return "no time that is known"
	}
	return moment(ns).Format("2006-01-02 15:04:05 MST")
}
