package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

func (b requestBuilder) of(tenant, queue string) requestBuilder {
	b.request.Spec.Tenant, b.request.Spec.Queue = tenant, queue
	return b
}
func (b requestBuilder) user(u string) requestBuilder { b.request.User = u; return b }
func (b requestBuilder) preemptible() requestBuilder {
	b.request.Spec.Preemptible = true
	return b
}

// since says how long before the epoch it began to wait.
func (b requestBuilder) waited(d time.Duration) requestBuilder {
	b.request.Since = epoch.Add(-d)
	return b
}
func (b requestBuilder) expect(d time.Duration) requestBuilder { b.request.Expect = d; return b }
func (b requestBuilder) maxWait(d time.Duration) requestBuilder {
	b.request.Spec.MaxWait = unit.Duration(d)
	return b
}

func (b requestBuilder) deadline(in time.Duration) requestBuilder {
	b.request.Spec.Deadline = epoch.Add(in)
	return b
}

func (s *Snapshot) queues(list ...*api.Queue) *Snapshot {
	if s.Queues == nil {
		s.Queues = &Queues{}
	}
	s.Queues.List = append(s.Queues.List, list...)
	return s
}

func (s *Snapshot) used(of string, n int64) *Snapshot {
	if s.Queues.Used == nil {
		s.Queues.Used = map[string]int64{}
	}
	s.Queues.Used[of] = n
	return s
}

func (s *Snapshot) order(o string) *Snapshot { s.Policy.Order = o; return s }

func tenant(name string) *api.Queue { return &api.Queue{Name: name, Tenant: true} }
func queue(name, parent string) *api.Queue {
	return &api.Queue{Name: name, Parent: parent}
}

func turnsOf(s *Snapshot) *turns {
	return turnsAt(s, epoch)
}

func turnsAt(s *Snapshot, now time.Time) *turns {
	var b books
	return new(lineup).turns(s, &b, b.open(s), func(r *Request) *demand { return newDemand(r, now) }, now)
}

func orderOf(s *Snapshot) string {
	var out []string
	for _, r := range turnsOf(s).list {
		out = append(out, r.ID)
	}
	return strings.Join(out, " ")
}

func TestOrder(t *testing.T) {
	const hour, day = time.Hour, 24 * time.Hour
	one := gpus(1)
	for _, tc := range []struct {
		name string
		in   *Snapshot
		want string
	}{
		{"by log index where nothing else is known", cluster().pending(gang("a", 1, one), gang("b", 1, one), gang("c", 1, one)), "a b c"},
		{"higher priority first", cluster().pending(gang("a", 1, one), gang("b", 1, one).priority(1)), "b a"},
		{
			"what may not be ended comes before what may, whatever its priority",
			cluster().pending(gang("a", 1, one).preemptible().priority(5), gang("b", 1, one)), "b a",
		},
		{"short work first", cluster().pending(gang("long", 1, one).expect(day).waited(0), gang("short", 1, one).expect(hour).waited(0)), "short long"},
		{
			"what has waited for long is not overtaken by what is short",
			cluster().pending(gang("long", 1, one).expect(6*hour).waited(43*hour), gang("short", 1, one).expect(time.Second).waited(0)), "long short",
		},
		{
			"two days of waiting count as one of priority",
			cluster().pending(gang("new", 1, one).priority(1).waited(0), gang("old", 1, one).waited(4*day)), "old new",
		},
		{
			"waiting counts to a bound",
			cluster().pending(gang("new", 1, one).priority(mostAge+1).waited(0), gang("old", 1, one).waited(1000*day)), "new old",
		},
		{
			"beyond its longest wait a request goes before all others, those that were first so first",
			cluster().pending(
				gang("new", 1, one).priority(900).waited(0),
				gang("second", 1, one).waited(10*hour).maxWait(5*hour),
				gang("first", 1, one).waited(7*hour).maxWait(hour),
				gang("not yet", 1, one).waited(7*hour).maxWait(8*hour),
			), "first second new not yet",
		},
		{
			"the queue's longest wait holds for those that name none",
			cluster().queues(&api.Queue{Name: "q", MaxWait: unit.Duration(hour)}).pending(gang("a", 1, one).waited(0).priority(3), gang("b", 1, one).of("", "q").waited(2*hour)), "b a",
		},
		{
			"a queue bounds what its requests ask for",
			cluster().queues(&api.Queue{Name: "low", MaxPriority: new(int64(3))}).pending(gang("a", 1, one).of("", "low").priority(100), gang("b", 1, one).priority(4)), "b a",
		},
		{
			"by log index, though the clock was set back meanwhile",
			cluster().pending(gang("a", 1, one).waited(10*time.Second), gang("b", 1, one).waited(15*time.Second), gang("c", 1, one).waited(9*time.Second)), "a b c",
		},
		{
			"a fifo queue goes by log index alone",
			cluster().order(OrderFIFO).pending(gang("long", 1, one).expect(day).waited(0), gang("short", 1, one).expect(hour).waited(time.Minute)), "long short",
		},
		{
			"the earliest deadline first, what has none next, what cannot meet its own last",
			cluster().order(OrderDeadline).pending(
				gang("none", 1, one).expect(hour), gang("late", 1, one).expect(2*hour).deadline(hour),
				gang("b", 1, one).expect(hour).deadline(9*hour), gang("a", 1, one).expect(hour).deadline(2*hour),
			), "a b none late",
		},
		{
			"ten submissions at one moment are given turns between tenants",
			cluster().queues(tenant("x"), tenant("y")).pending(
				gang("x1", 1, one).of("x", ""), gang("x2", 1, one).of("x", ""), gang("x3", 1, one).of("x", ""),
				gang("y1", 1, one).of("y", ""), gang("y2", 1, one).of("y", "")), "x1 y1 x2 y2 x3",
		},
		{
			"a tenant of twice the weight has two turns",
			cluster().queues(&api.Queue{Name: "x", Tenant: true, Weight: new(int64(2))}, tenant("y")).pending(
				gang("y1", 1, one).of("y", ""), gang("y2", 1, one).of("y", ""),
				gang("x1", 1, one).of("x", ""), gang("x2", 1, one).of("x", ""), gang("x3", 1, one).of("x", "")), "y1 x1 x2 y2 x3",
		},
		{
			"who has used less has the next turn",
			cluster().queues(tenant("x"), tenant("y")).used("x", 1).pending(gang("x1", 1, one).of("x", ""), gang("y1", 1, one).of("y", "")), "y1 x1",
		},
		{
			"what runs counts as used",
			cluster().queues(tenant("x"), tenant("y")).heldBy(Holder{Group: "h", GPUs: 1, Spec: &api.GroupSpec{Tenant: "x"}}).
				pending(gang("x1", 1, one).of("x", ""), gang("y1", 1, one).of("y", "")), "y1 x1",
		},
		{
			"without weight a tenant comes last, whatever was used",
			cluster().queues(&api.Queue{Name: "x", Tenant: true, Weight: new(int64(0))}, tenant("y")).used("y", 1<<40).
				pending(gang("x1", 1, one).of("x", ""), gang("y1", 1, one).of("y", ""), gang("y2", 1, one).of("y", "")), "y1 y2 x1",
		},
		{
			"users of a queue take turns",
			cluster().pending(gang("a1", 1, one).user("a"), gang("a2", 1, one).user("a"), gang("b1", 1, one).user("b")), "a1 b1 a2",
		},
		{
			"a wide gang is a wide entry",
			cluster().queues(tenant("x"), tenant("y")).pending(gang("wide", 4, one).of("x", ""), gang("x2", 1, one).of("x", ""),
				gang("y1", 1, one).of("y", ""), gang("y2", 1, one).of("y", ""), gang("y3", 1, one).of("y", ""), gang("y4", 1, one).of("y", ""), gang("y5", 1, one).of("y", "")),
			"wide y1 y2 y3 y4 x2 y5",
		},
		{
			"tenants below tenants share what is above",
			cluster().queues(tenant("x"), &api.Queue{Name: "x1", Parent: "x", Tenant: true}, &api.Queue{Name: "x2", Parent: "x", Tenant: true}, tenant("y")).pending(
				gang("a", 1, one).of("x1", ""), gang("b", 1, one).of("x2", ""), gang("c", 1, one).of("y", ""), gang("d", 1, one).of("y", "")), "a c b d",
		},
		{
			"a tenant that does not exist comes last",
			cluster().queues(tenant("x")).pending(gang("a", 1, one).of("nobody", "").priority(9), gang("b", 1, one).of("x", "")), "b a",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := orderOf(tc.in); got != tc.want {
				t.Errorf("order %q, want %q", got, tc.want)
			}
		})
	}
}

// A clock that steps back while requests are submitted does not change their order.
func TestOrderIsByLogIndex(t *testing.T) {
	s := cluster()
	var want []string
	for i := range 100 {
		at := time.Duration(i) * 10 * time.Millisecond
		if i >= 50 {
			at -= 5 * time.Second
		}
		r := gang(fmt.Sprintf("r%02d", i), 1, gpus(1)).waited(-at)
		s.pending(r)
		want = append(want, r.request.ID)
	}
	slices.Reverse(s.Pending)
	if got := orderOf(s); got != strings.Join(want, " ") {
		t.Errorf("order %s", got)
	}
}

func TestPosition(t *testing.T) {
	one := gpus(1)
	// Two tenants with queues of the same name, as far as they are not recorded.
	s := cluster().pending(gang("a1", 1, one).of("a", "q"), gang("a2", 1, one).of("a", "q"), gang("b1", 1, one).of("b", "q"), gang("a3", 1, one).of("a", "r"))
	r := NewPlanner().Plan(s, epoch)
	for group, want := range map[string]int{"a1": 1, "a2": 2, "b1": 1, "a3": 1, "nobody": 0} {
		if got := r.Position(group); got != want {
			t.Errorf("position of %s is %d, want %d", group, got, want)
		}
	}
}

// The time from which an order is another one is known, and until then it is the same.
func TestOrderUntil(t *testing.T) {
	s := cluster().pending(
		gang("new", 1, gpus(1)).priority(1).waited(0), gang("old", 1, gpus(1)).waited(47*time.Hour),
		gang("impatient", 1, gpus(1)).waited(time.Hour).maxWait(4*time.Hour))
	now, seen := epoch, []string{}
	for range 3 {
		o := turnsAt(s, now)
		var ids []string
		for _, r := range o.list {
			ids = append(ids, r.ID)
		}
		seen = append(seen, now.Sub(epoch).String()+": "+strings.Join(ids, " "))
		now = o.until
	}
	want := []string{"0s: new old impatient", "1h0m0s: old new impatient", "3h0m0s: impatient old new"}
	if !slices.Equal(seen, want) {
		t.Errorf("orders %q, want %q", seen, want)
	}
}

// The order depends on what is listed, not on how, and is total.
func TestOrderIsReproducible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawQueues(t)
		want := orderOf(s)
		if n := len(strings.Fields(want)); n != len(s.Pending) {
			t.Fatalf("%d of %d requests have a turn: %s", n, len(s.Pending), want)
		}
		other := *s
		other.Pending = rapid.Permutation(s.Pending).Draw(t, "requests")
		other.Holders = rapid.Permutation(s.Holders).Draw(t, "holders")
		other.Queues = &Queues{List: rapid.Permutation(s.Queues.List).Draw(t, "queues"), Used: s.Queues.Used}
		if got := orderOf(&other); got != want {
			t.Fatalf("order %s, listed otherwise %s", want, got)
		}
	})
}

// I28: for how long a request can be overtaken by later ones is bounded by what it is expected to
// take, whatever comes.
func TestNobodyIsOvertakenForEver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wait := time.Duration(rapid.Int64Range(0, int64(100*24*time.Hour)).Draw(t, "wait"))
		expect := time.Duration(rapid.Int64Range(1, int64(30*24*time.Hour)).Draw(t, "expect"))
		old := gang("old", 1, gpus(1)).waited(wait).expect(expect)
		young := gang("young", 1, gpus(1)).waited(0).expect(time.Duration(rapid.Int64Range(1, int64(24*time.Hour)).Draw(t, "young")))
		bound := doubling // the rounding of the logarithm is far below this
		for d := leastLength; d < expect; d *= 2 {
			bound += doubling
		}
		if wait > bound && orderOf(cluster().pending(old, young)) != "old young" {
			t.Fatalf("waited %s of at most %s and is overtaken", wait, bound)
		}
	})
}

func TestLog2(t *testing.T) {
	for x, want := range map[uint64]float64{1: 0, 2: 1, 3: 1.58496, 60: 5.90689, 1 << 40: 40, 1<<63 + 1<<62: 63.58496} {
		if got := float64(log2(x, 16)) / (1 << 16); got > want+1e-4 || got < want-1e-4 {
			t.Errorf("log2(%d) = %g, want %g", x, got, want)
		}
	}
}
