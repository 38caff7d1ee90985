package schedule

import (
	"cmp"
	"slices"
	"time"
)

// lineup is the order that a planner keeps from cycle to cycle. What waits as before keeps
// what is known of it until its time; only who uses how much is weighed anew, and only if
// somebody uses something else.
type lineup struct {
	frame  *frame
	shares *shares
	policy string
	now    time.Time

	listed []*Request // as the snapshot listed them
	bySeq  []*entrant // by log index
	byTurn []queued   // by stratum and turn
	until  time.Time

	peers map[peersKey]*peers
	had   []int64
	all   []*entrant
	list  []*Request
	merge merging
}

// turns is the order of a snapshot.
func (l *lineup) turns(s *Snapshot, b *books, q *quotas, look func(*Request) *demand, now time.Time) *turns {
	if l.frame != b.frame || l.shares != b.shares || l.policy != s.Policy.Order || now.Before(l.now) {
		*l = lineup{frame: b.frame, shares: b.shares, policy: s.Policy.Order, merge: l.merge}
	}
	l.now = now
	changed := l.follow(s.Pending, look)
	var used map[string]int64
	if s.Queues != nil {
		used = s.Queues.Used
	}
	if had := l.shares.use(b.entries, used); changed || !slices.Equal(had, l.had) {
		l.had = had
		l.weigh()
	}
	return &turns{s: s, list: l.list, all: l.all, had: l.had, quotas: q, until: l.until}
}

// follow brings the two orders up to the time and to what waits; false: they are the same.
func (l *lineup) follow(pending []*Request, look func(*Request) *demand) bool {
	same := slices.Equal(l.listed, pending)
	if same && l.all != nil && (l.until.IsZero() || l.now.Before(l.until)) {
		return false
	}
	if !same {
		l.relist(pending)
	}
	l.until = time.Time{}
	var fresh, left []*entrant
	var last time.Time
	for i, e := range l.bySeq {
		// A clock that was set back puts nothing before what was logged earlier.
		since := e.asked
		if d := last.Sub(since); d > 0 && d <= clockStep && !since.IsZero() {
			since = last
		} else if since.After(last) {
			last = since
		}
		if e.leaf == nil || e.since != since || !e.until.IsZero() && !l.now.Before(e.until) {
			if e.leaf != nil {
				left = append(left, e)
			}
			e = l.entrantOf(e.r, since, look)
			l.bySeq[i] = e
			fresh = append(fresh, e)
		}
		if !e.until.IsZero() && (l.until.IsZero() || e.until.Before(l.until)) {
			l.until = e.until
		}
	}
	if len(left) > 0 {
		out := among(left)
		l.byTurn = slices.DeleteFunc(l.byTurn, func(q queued) bool { return out(q.e) })
	}
	sorted := len(l.byTurn)
	for _, e := range fresh {
		l.byTurn = append(l.byTurn, e.queued())
	}
	l.byTurn = sortTail(l.byTurn, sorted, func(a, b queued) int { return cmp.Or(byStratum(&a.stratum, &b.stratum), byTurn(a.e, b.e)) })
	return true
}

// relist takes out what waits no longer, and adds what waits now, of which nothing is known
// yet.
func (l *lineup) relist(pending []*Request) {
	var gone []*Request
	var came []*entrant
	follow(l.listed, pending, func(int) {}, func(i int) { gone = append(gone, l.listed[i]) }, func(i int) {
		came = append(came, &entrant{r: pending[i], asked: pending[i].Since})
	})
	l.listed = pending
	if len(gone) > 0 {
		out := among(gone)
		l.bySeq = slices.DeleteFunc(l.bySeq, func(e *entrant) bool { return out(e.r) })
		l.byTurn = slices.DeleteFunc(l.byTurn, func(q queued) bool { return out(q.r) })
	}
	l.bySeq = append(l.bySeq, came...)
	if len(l.bySeq) != len(pending) { // something is listed twice
		l.bySeq, l.byTurn = nil, nil
		for _, r := range pending {
			l.bySeq = append(l.bySeq, &entrant{r: r, asked: r.Since})
		}
	}
	l.bySeq = sortTail(l.bySeq, len(l.bySeq)-len(came), func(a, b *entrant) int {
		return cmp.Or(cmp.Compare(a.r.Seq, b.r.Seq), cmp.Compare(a.r.ID, b.r.ID))
	})
}

// sortTail sorts a list of which so many are sorted already.
func sortTail[T any](list []T, sorted int, order func(a, b T) int) []T {
	const few = 64
	tail := len(list) - sorted
	if tail > few || sorted < 0 {
		slices.SortFunc(list, order)
		return list
	}
	for i := sorted; i < len(list); i++ {
		x := list[i]
		at, _ := slices.BinarySearchFunc(list[:i], x, order)
		copy(list[at+1:i+1], list[at:i])
		list[at] = x
	}
	return list
}

// among says whether something is one of a few or many.
func among[T comparable](list []T) func(T) bool {
	const few = 8
	if len(list) <= few {
		return func(x T) bool { return slices.Contains(list, x) }
	}
	set := make(map[T]bool, len(list))
	for _, x := range list {
		set[x] = true
	}
	return func(x T) bool { return set[x] }
}

// weigh gives the turns.
func (l *lineup) weigh() {
	m := &l.merge
	m.begin(l.shares, l.had, len(l.byTurn))
	for from := 0; from < len(l.byTurn); {
		to := from + 1
		for to < len(l.byTurn) && l.byTurn[from].stratum == l.byTurn[to].stratum {
			to++
		}
		m.stratum(l.byTurn[from:to])
		from = to
	}
	l.all, l.list, m.all, m.list = m.all, m.list, nil, nil
}

func (l *lineup) entrantOf(r *Request, since time.Time, look func(*Request) *demand) *entrant {
	now := l.now
	account := l.frame.of(r.Spec.Tenant, r.Spec.Queue)
	c := &entrant{r: r, c: account, claims: len(r.Claim) > 0, former: len(r.Former) > 0, timed: r.timed(), asked: r.Since, since: since}
	c.stratum = stratum{lost: account.wrong != nil, priority: l.frame.priority(account, r.Spec.Priority), assured: !r.Spec.Preemptible}
	c.wants = look(r)
	sum := c.wants.sum()
	c.leaf, c.entry = l.shares.leaf(r.Spec.Tenant, r.Spec.Queue, r.User), entryOf(useRate(sum))
	c.needs = l.frame.needs(sum, r.Spec.Uses, int64(c.wants.total))
	if wait := r.Spec.LevelWait; wait != nil && !r.Since.IsZero() && !r.levelOpen(now) {
		c.changesAt(r.Since.Add(time.Duration(*wait)), now)
	}
	c.peers = l.peersOf(c)
	start := since
	if !since.IsZero() {
		if waited := now.Sub(since); waited > 0 {
			steps := min(int64(waited/ageing), mostAge)
			c.priority += steps
			if steps < mostAge {
				c.changesAt(since.Add(time.Duration(steps+1)*ageing), now)
			}
		} else {
			c.changesAt(since.Add(ageing), now)
		}
		if longest := longestWait(r, account); longest > 0 {
			if at := since.Add(longest); at.After(now) {
				c.changesAt(at, now)
			} else {
				c.overdue = at.UnixNano()
			}
		}
	} else {
		start = time.Unix(0, 0)
	}
	expect := r.Expect
	if expect <= 0 {
		expect = unknownLength
	}
	switch rule(account, l.policy) {
	case OrderFIFO:
	case OrderDeadline:
		c.class, c.turn = 1, turnAt(start, expect)
		if d := r.Spec.Deadline; !d.IsZero() {
			c.class, c.turn = 0, nanos(d)
			if at := d.Add(-expect); at.Before(now) {
				c.class = 2
			} else {
				c.changesAt(at.Add(1), now)
			}
		}
	default:
		c.turn = turnAt(start, expect)
	}
	return c
}

func (c *entrant) changesAt(at, now time.Time) {
	if at.After(now) && (c.until.IsZero() || at.Before(c.until)) {
		c.until = at
	}
}

// longestWait is how long a request may wait; 0: no limit.
func longestWait(r *Request, a *charging) time.Duration {
	if r.Spec.MaxWait > 0 {
		return r.Spec.MaxWait.D()
	}
	for _, q := range a.path {
		if q.q.MaxWait > 0 {
			return q.q.MaxWait.D()
		}
	}
	return 0
}

// rule is the order of the requests of a queue.
func rule(a *charging, policy string) string {
	for _, q := range a.path {
		if q.q.Order != "" {
			return q.q.Order
		}
	}
	return cmp.Or(policy, OrderFair)
}
