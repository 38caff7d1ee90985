package schedule

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// What has waited for longer than it may has its start for good: nothing that comes later
// moves it, in whatever order, with whatever priority, nor whoever asks.
func TestPropNothingMovesWhatIsOverdue(t *testing.T) {
	pinned := 0
	checkUntil(t, func() bool { return pinned > 0 }, func(t *rapid.T) {
		s := drawTimely(t)
		s.Policy.Order = rapid.SampledFrom([]string{OrderFIFO, OrderFair, OrderShort, OrderDeadline}).Draw(t, "order")
		s.queues(tenant("a"), tenant("b"))
		s.Queues.Used = map[string]int64{"a": 1e9}
		of := func(r *Request) {
			r.Spec.Tenant = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tenant")
			r.User = rapid.SampledFrom([]string{"ann", "bob"}).Draw(t, "user")
		}
		overdue := map[string]bool{}
		for _, r := range s.Pending {
			of(r)
			r.Since = epoch.Add(-time.Duration(rapid.IntRange(0, 60).Draw(t, "waited")) * time.Minute)
			r.Spec.Preemptible = rapid.Bool().Draw(t, "preemptible")
			if rapid.Bool().Draw(t, "impatient") {
				r.Spec.MaxWait = unit.Duration(10 * time.Minute)
				overdue[r.ID] = epoch.Sub(r.Since) >= 10*time.Minute
			}
		}
		more := *s
		more.Pending = slices.Clone(s.Pending)
		for i := range rapid.IntRange(1, 4).Draw(t, "newcomers") {
			r := drawWaiting(t, fmt.Sprintf("x%d", i), uint64(100+i))
			of(r)
			r.Spec.Priority, r.Expect = MaxPriority, time.Duration(1+i)*time.Minute
			r.Spec.Deadline = epoch.Add(time.Hour)
			if rapid.Bool().Draw(t, "impatient") {
				r.Spec.MaxWait = 1
			}
			more.Pending = slices.Insert(more.Pending, rapid.IntRange(0, len(more.Pending)).Draw(t, "at"), r)
		}
		later := Plan(&more, epoch)
		for _, d := range Plan(s, epoch) {
			if !overdue[d.Group] {
				continue
			}
			other := decisionFor(later, d.Group)
			if !d.Start.Equal(other.Start) || (d.Bundles == nil) != (other.Bundles == nil) {
				t.Fatalf("%s was to start at %s, and is to at %s since others came", d.Group, d.Start, other.Start)
			}
			if !d.Start.IsZero() {
				pinned++
			}
		}
	})
	if pinned == 0 {
		t.Error("nothing overdue ever had a planned start; the property proved nothing")
	}
}
