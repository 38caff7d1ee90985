package schedule

import (
	"cmp"
	"fmt"
	"math/bits"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Orders of the requests of a queue.
const (
	OrderFair     = "fair"     // users take turns by what they hold, then as short
	OrderFIFO     = "fifo"     // by log index
	OrderShort    = "short"    // the shortest expected first, aged
	OrderDeadline = "deadline" // the earliest deadline first, what cannot meet its own last
)

const (
	// doubling is how much longer a request waits its turn for each doubling of its
	// expected time. So a queue is sorted by the time that a request began to wait plus
	// doubling × log2(expected ÷ leastLength): short work goes first, and none is overtaken
	// by what comes later than that. Five hours is the outcome of a replay of 82,247 jobs of
	// the public Philly trace on 640 GPUs with estimates that are wrong by e^N(0,1): with three
	// hours wide gangs hold the short ones up (mean wait 7,700 s), with five it is 5,500 s
	// (first come, first served: 33,200 s) at about the same longest wait, and beyond six the
	// longest wait grows faster than the mean falls.
	doubling    = 5 * time.Hour
	leastLength = time.Minute
	// unknownLength is taken for what nobody has an estimate of.
	unknownLength = 24 * time.Hour
	// ageing: so long a wait counts as one of priority, to mostAge of them at most. Rarely
	// reached within one priority, where it would undo the order above.
	ageing  = 48 * time.Hour
	mostAge = 10
	// clockStep is how far a clock that is set back may put a request before older ones.
	clockStep = time.Minute
	// defaultMaxPriority bounds the requests of a queue that says nothing.
	defaultMaxPriority = 1000
)

// entrant is a request with what its place in the order goes by. It never changes: what
// becomes different gets another one.
type entrant struct {
	// What each cycle looks at of each, all together.
	r     *Request
	peers *peers
	wants *demand
	c     *charging
	needs []int64 // of what quotas count
	// claims: it has a claim.
	claims bool
	// former: it lost a placement, see Request.Former.
	former bool
	// timed: more than what is free now decides on it, see timed.
	timed bool

	stratum
	class int8  // of a deadline: 0 can meet it, 1 has none, 2 cannot meet it
	turn  int64 // when its turn is, the earliest first
	leaf  *portion
	entry int64
	asked time.Time // since when, by its own word
	since time.Time
	// until is when it is another one though nothing else changed; zero: never.
	until time.Time
}

// stratum is what orders requests before their turns do.
type stratum struct {
	overdue  int64 // ns at which it had waited for its longest wait; 0: it has not yet
	priority int64 // with what it has gained by waiting
	lost     bool  // its tenant or queue is not known: it can have no turn
	assured  bool  // it may not be ended for other work
}

// queued is an entrant in a line, with what its turn is given by: there are many, and those
// that wait are all over the memory.
type queued struct {
	e     *entrant
	r     *Request
	leaf  int
	entry int64
	stratum
}

func (e *entrant) queued() queued {
	return queued{e: e, r: e.r, leaf: e.leaf.at, entry: e.entry, stratum: e.stratum}
}

// byStratum orders what nothing below can overturn: overdue requests in the order in which
// they became so, then work that may not be ended before work that may (which would only
// start to make room again), then priority.
func byStratum(a, b *stratum) int {
	if *a == *b {
		return 0 // as nearly all are
	}
	return cmp.Or(
		yesFirst(!a.lost, !b.lost),
		yesFirst(a.overdue > 0, b.overdue > 0),
		cmp.Compare(a.overdue, b.overdue),
		yesFirst(a.assured, b.assured),
		cmp.Compare(b.priority, a.priority),
	)
}

// byTurn orders requests of one stratum and one queue: by their turn, then by log index,
// never by a clock alone.
func byTurn(a, b *entrant) int {
	if a.class == b.class && a.turn != b.turn {
		return cmp.Compare(a.turn, b.turn)
	}
	return cmp.Or(
		cmp.Compare(a.class, b.class),
		cmp.Compare(a.turn, b.turn),
		cmp.Compare(a.r.Seq, b.r.Seq),
		cmp.Compare(a.r.ID, b.r.ID),
	)
}

func yesFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// turns is the order of everything that waits: the one order there is. What is placed
// first, and who may be ended for whom, follow from it alike. It is total, and a function
// of the snapshot and the time: of what was logged, never of how it is listed.
type turns struct {
	s        *Snapshot
	list     []*Request // in the order of turns
	all      []*entrant // the same
	had      []int64    // use of portions, before any turn was given
	entrants map[*Request]*entrant
	place    map[*Request]int
	quotas   *quotas
	// until is when the order is another one though nothing else changed; zero: never.
	until time.Time
}

// turnAt is when it is the turn of what began to wait then and is expected to run so long.
func turnAt(since time.Time, expect time.Duration) int64 {
	const fraction = 16
	l := log2(uint64(max(expect, leastLength)), fraction) - log2(uint64(leastLength), fraction)
	return since.UnixNano() + l*(int64(doubling)>>fraction)
}

// log2 with so many binary digits behind the point, in integers, so that every machine
// orders alike. x is at least 1.
func log2(x uint64, digits int) int64 {
	whole := bits.Len64(x) - 1
	out := int64(whole)
	m := x << (63 - whole) // 1 ≤ m < 2 in 63-bit fractions
	for range digits {
		out <<= 1
		hi, lo := bits.Mul64(m, m)
		if hi >= 1<<63 { // m² ≥ 2
			out |= 1
			m = hi
		} else {
			m = hi<<1 | lo>>63
		}
	}
	return out
}

// entrant is what is known of a request; nil: it does not wait.
func (t *turns) entrant(r *Request) *entrant {
	if t.entrants == nil {
		t.entrants = make(map[*Request]*entrant, len(t.all))
		for _, c := range t.all {
			t.entrants[c.r] = c
		}
	}
	return t.entrants[r]
}

// at is the place of a request in the order.
func (t *turns) at(r *Request) int {
	if t.place == nil {
		t.place = make(map[*Request]int, len(t.list))
		for i, r := range t.list {
			t.place[r] = i
		}
	}
	return t.place[r]
}

// because says why a request had its turn before another one.
func (t *turns) because(ahead, r *Request) string {
	a, b := t.entrant(ahead), t.entrant(r)
	if a == nil || b == nil {
		return "placed already"
	}
	if t.at(ahead) > t.at(r) {
		return "smaller, fitted beside"
	}
	switch {
	case a.overdue > 0:
		return "waited longer than it may"
	case a.assured != b.assured:
		return "not preemptible"
	case a.r.Spec.Priority > b.r.Spec.Priority:
		return fmt.Sprintf("priority %d over %d", a.r.Spec.Priority, b.r.Spec.Priority)
	case a.priority != b.priority:
		return fmt.Sprintf("priority %d with its wait, over %d", a.priority, b.priority)
	case a.leaf != b.leaf:
		if x, y := parted(a.leaf, b.leaf); compareUse(t.had[x.at], x.weight, t.had[y.at], y.weight) < 0 {
			return "used less of its share"
		}
		return "by turns"
	case a.class != b.class || rule(a.c, t.s.Policy.Order) == OrderDeadline && a.turn != b.turn:
		return "its deadline is earlier"
	}
	if a.turn < b.turn && ahead.Expect > 0 && ahead.Expect < r.Expect {
		return "expected to be shorter"
	}
	return "submitted earlier"
}

// position counts from 1 among the requests of the same tenant and queue only.
func (t *turns) position(group string) int {
	n := map[string]int{}
	for _, r := range t.list {
		key := t.queueOf(r)
		n[key]++
		if r.ID == group {
			return n[key]
		}
	}
	return 0
}

// queueOf tells the queues of requests apart: where there are records a queue's name is
// its own, else tenants may have queues of the same name.
func (t *turns) queueOf(r *Request) string {
	if a := t.quotas.of(r.Spec.Tenant, r.Spec.Queue); len(a.path) > 0 {
		return a.path[0].q.Name
	}
	return fmt.Sprintf("%q %q", cmp.Or(r.Spec.Tenant, api.DefaultQueue), cmp.Or(r.Spec.Queue, api.DefaultQueue))
}

// kin is equal for requests that quotas and turns tell nothing apart about, so that equal
// demands share an explanation.
func (t *turns) kin(r *Request) string {
	return fmt.Sprintf(" of %q %q %q, %d %v %d", r.Spec.Tenant, r.Spec.Queue, r.User, r.Spec.Priority, r.Spec.Preemptible, r.Expect)
}
