package schedule

import (
	"cmp"
	"slices"
	"time"
)

// ordered is every waiting request in the order of turns. It is the one order there is:
// what is placed first, and who may be ended for whom, follow from it alike.
func ordered(s *Snapshot, now time.Time) []*Request {
	_ = now
	order := slices.Clone(s.Pending)
	slices.SortFunc(order, byTurn)
	return order
}

// byTurn is the one comparator of requests: higher priority, then the older
// submission by log index (never by a clock), then the id.
func byTurn(a, b *Request) int {
	return cmp.Or(
		cmp.Compare(b.Spec.Priority, a.Spec.Priority),
		cmp.Compare(a.Seq, b.Seq),
		cmp.Compare(a.ID, b.ID),
		cmp.Compare(demandKey(a), demandKey(b)),
	)
}
