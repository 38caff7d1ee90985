package schedule

// view is the planned starts that a turn sees: those planned before it. What is looked for
// in one turn so is moved by nothing that is planned after it, which keeps its place as long
// as it is not in the way.
//
// By node it keeps a sum of the marks of the starts seen there. What was derived from the
// starts of a node under another view is still right where the sum is the same.
type view struct {
	turn  int
	sums  []uint64 // by node
	marks uint64   // given to starts so far
}

// mark gives a start a number of its own, such that sums of them tell sets apart.
func (v *view) mark(e *plannedStart) {
	v.marks++
	// SplitMix64: equal sums of two different sets are as likely as of random numbers.
	x := v.marks * 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	e.mark = x ^ x>>31
}

// reset sees nothing that is planned.
func (v *view) reset(nodes int) {
	v.turn = 0
	if v.sums == nil {
		v.sums = make([]uint64, nodes)
	}
	clear(v.sums)
}

func (v *view) count(e *plannedStart) {
	e.seen = true
	for _, ni := range e.who.nodes {
		v.sums[ni] += e.mark
	}
}

func (v *view) discount(e *plannedStart) {
	if !e.seen {
		return
	}
	e.seen = false
	for _, ni := range e.who.nodes {
		v.sums[ni] -= e.mark
	}
}

// see is the view of a turn.
func (p *profile) see(turn int) {
	v := &p.view
	for ; v.turn < turn && v.turn < len(p.plans); v.turn++ {
		if e := p.plans[v.turn]; e != nil && e.in && !e.seen {
			v.count(e)
		}
	}
	for ; v.turn > turn; v.turn-- {
		if e := p.planOf(v.turn - 1); e != nil {
			v.discount(e)
		}
	}
}
