package schedule

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// An order that is kept from cycle to cycle is the one that would be made anew: while
// requests come, go and change places, groups start and end, use decays, time passes and
// clocks are set back.
func TestPropOrderIsKeptFromCycleToCycle(t *testing.T) {
	kept := 0
	checkUntil(t, func() bool { return kept > 0 }, func(t *rapid.T) {
		s := cluster().queues(tenant("a"), tenant("b"), queue("bq", "b"), queue("fifo", ""))
		s.Queues.List[3].Order = OrderFIFO
		owner := func(b requestBuilder) requestBuilder {
			of := rapid.SampledFrom([][2]string{{"a"}, {"b"}, {"b", "bq"}, {"a", "fifo"}, {"nobody"}}).Draw(t, "owner")
			return b.of(of[0], of[1]).user(rapid.SampledFrom([]string{"ann", "bob", "eve"}).Draw(t, "user"))
		}
		seq, now := 0, epoch
		request := func() *Request {
			seq++
			r := owner(gang(fmt.Sprintf("r%d", seq), rapid.IntRange(1, 3).Draw(t, "size"), gpus(1)))
			r.request.Seq = uint64(seq)
			r.request.Since = now.Add(-time.Duration(rapid.SampledFrom([]int{0, 5, 30, 200, 400_000}).Draw(t, "ago")) * time.Second)
			r = r.expect(time.Duration(rapid.IntRange(0, 3).Draw(t, "expect")) * time.Hour)
			r.request.Spec.Preemptible = rapid.IntRange(0, 3).Draw(t, "preemptible") == 0
			r.request.Spec.Priority = int64(rapid.IntRange(0, 5).Draw(t, "priority") / 5)
			if rapid.IntRange(0, 3).Draw(t, "impatient") == 0 {
				r = r.maxWait(time.Hour)
			}
			return &r.request
		}
		var b books
		var l lineup
		for range rapid.IntRange(2, 8).Draw(t, "cycles") {
			next := *s
			next.Pending, next.Holders = slices.Clone(s.Pending), slices.Clone(s.Holders)
			come, leave := 6, 3
			if len(s.Pending) > 3 && rapid.Bool().Draw(t, "only use changes") {
				come, leave = 0, 0
			}
			for range rapid.IntRange(0, come).Draw(t, "came") {
				r := request()
				next.Pending = slices.Insert(next.Pending, rapid.IntRange(0, len(next.Pending)).Draw(t, "at"), r)
			}
			for range min(rapid.IntRange(0, leave).Draw(t, "gone"), len(next.Pending)) {
				i := rapid.IntRange(0, len(next.Pending)-1).Draw(t, "which")
				if r := next.Pending[i]; rapid.Bool().Draw(t, "started") {
					next.Holders = append(next.Holders, &Holder{Group: r.ID, User: r.User, GPUs: int64(len(r.Spec.Bundles)), Spec: &r.Spec})
				}
				next.Pending = slices.Delete(next.Pending, i, i+1)
			}
			if n := len(next.Holders); n > 0 && rapid.Bool().Draw(t, "ended") {
				i := rapid.IntRange(0, n-1).Draw(t, "which")
				next.Holders = slices.Delete(next.Holders, i, i+1)
			}
			if rapid.IntRange(0, 3).Draw(t, "decayed") == 0 {
				next.Queues = &Queues{List: s.Queues.List, Used: map[string]int64{"a": rapid.Int64Range(0, 1e8).Draw(t, "used")}}
			}
			s = &next
			look := func(r *Request) *demand { return newDemand(r, now) }
			was := l.all
			got, fresh := l.turns(s, &b, b.open(s), look, now), turnsAt(s, now)
			if len(was) > 0 && len(l.all) > 0 && &was[0] == &l.all[0] {
				kept++
			}
			if !slices.Equal(got.list, fresh.list) {
				t.Fatalf("kept %v\nanew %v", ids(got.list), ids(fresh.list))
			}
			if !got.until.Equal(fresh.until) {
				t.Fatalf("until %s, anew %s", got.until, fresh.until)
			}
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 0, 1, 3600, 200_000}).Draw(t, "seconds")) * time.Second)
		}
	})
	if kept == 0 {
		t.Error("no order was ever used again; the property proved nothing")
	}
}

func ids(list []*Request) (out []string) {
	for _, r := range list {
		out = append(out, r.ID)
	}
	return out
}
