package schedule

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// A needs to leave 5 s, B a minute: what A gives back is kept for who both leave for,
// though A waits again, is first by seniority and would fit there.
func TestWhatIsGivenBackIsKept(t *testing.T) {
	w := worldOf(1, 2)
	w.s.queues(guaranteed(tenant("q1"), 1), guaranteed(tenant("q2"), 2))
	w.many(1, "a", "q1", true)
	w.many(1, "b", "q1", true)
	w.s.pending(gang("high", 2, gpus(1)).of("q2", "").priority(5).runs(time.Hour))
	p := NewPlanner()
	evictions := map[string]int{}
	for second := range 90 {
		told, started := w.cycle(p)
		for _, g := range told {
			evictions[g]++
		}
		for _, g := range started {
			if strings.HasPrefix(g, "pg-") {
				t.Fatalf("second %d: %s starts again", second, g)
			}
		}
		for _, g := range w.leaving() {
			if g == "pg-a-000" && second == 5 || g == "pg-b-000" && second == 60 {
				w.leave(g)
			}
		}
		w.now = w.now.Add(time.Second)
	}
	if evictions["pg-a-000"] != 1 || evictions["pg-b-000"] != 1 || w.ofTenants()["q2"] != 2 {
		t.Errorf("preempted %v, running %v", evictions, w.ofTenants())
	}
}

// What a claim that comes true uses of a capacity is in use for everybody after it in the
// same cycle, above all for who left for it.
func TestWhatComesTrueUsesItsCapacity(t *testing.T) {
	w := worldOf(1, 2)
	w.s.Capacities = []*api.Capacity{{Name: "storage", Total: 6}}
	w.many(1, "low", "", true)
	w.s.Holders[0].Spec.Uses = api.Amounts{{Of: "storage", N: 6}}
	high := gang("high", 1, gpus(1)).priority(5).runs(time.Hour)
	high.request.Spec.Uses = api.Amounts{{Of: "storage", N: 5}}
	w.s.pending(high)
	p := NewPlanner()
	if told, _ := w.cycle(p); !slices.Equal(told, []string{"pg-low-000"}) {
		t.Fatalf("%v leave", told)
	}
	w.leave("pg-low-000")
	if _, started := w.cycle(p); !slices.Equal(started, []string{"high"}) {
		t.Errorf("%v start", started)
	}
}

// A node of a claim is no good any more: another place is found, with other victims where
// that takes some, and who was to leave there for nothing stays.
func TestClaimOnANodeThatIsLost(t *testing.T) {
	w := worldOf(3, 1)
	w.many(2, "low", "", true) // on n0 and n1
	w.many(1, "firm", "", false)
	w.s.pending(gang("high", 1, gpus(1)).priority(5).runs(time.Hour))
	p := NewPlanner()
	if told, _ := w.cycle(p); !slices.Equal(told, []string{"pg-low-000"}) {
		t.Fatalf("%v leave", told)
	}
	s := *w.s
	s.Nodes = slices.Clone(s.Nodes)
	n := s.Own(0)
	n.Ready, n.Why = false, "lost"
	w.s = &s
	var told []string
	for range 3 {
		out, _ := w.cycle(p)
		told = append(told, out...)
		w.now = w.now.Add(time.Second)
	}
	if !slices.Equal(told, []string{"pg-low-001"}) || !slices.Equal(w.leaving(), []string{"pg-low-001"}) {
		t.Errorf("told %v, leaving %v", told, w.leaving())
	}
}

// Two claims of one cycle do not promise the same capacity, nor two of one tenant the same
// quota: the second one waits, and nobody leaves for it in vain.
func TestNoTwoClaimsOnTheSame(t *testing.T) {
	for name, change := range map[string]func(s *Snapshot, high []requestBuilder){
		"capacity": func(s *Snapshot, high []requestBuilder) {
			s.Capacities = []*api.Capacity{{Name: "storage", Total: 10}}
			for i, n := range []int64{6, 3} {
				s.Holders[i].Spec.Uses = api.Amounts{{Of: "storage", N: n}}
			}
			s.pending(high[0].uses("storage", 7), high[1].uses("storage", 4))
		},
		"guarantee": func(s *Snapshot, high []requestBuilder) {
			s.queues(guaranteed(tenant("t"), 1), tenant("u"))
			s.Holders[0].Spec.Tenant, s.Holders[1].Spec.Tenant = "u", "u"
			s.pending(high[0].of("t", ""), high[1].of("t", ""))
		},
		"limit": func(s *Snapshot, high []requestBuilder) {
			s.queues(limited(tenant("t"), 1), tenant("u"))
			s.Holders[0].Spec.Tenant, s.Holders[1].Spec.Tenant = "u", "u"
			s.pending(high[0].of("t", ""), high[1].of("t", ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := worldOf(2, 1)
			w.many(2, "low", "", true)
			change(w.s, []requestBuilder{gang("first", 1, gpus(1)).priority(6).runs(time.Hour), gang("second", 1, gpus(1)).priority(5).runs(time.Hour)})
			p := NewPlanner()
			var told []string
			for range 3 {
				out, _ := w.cycle(p)
				told = append(told, out...)
				w.now = w.now.Add(time.Second)
			}
			if len(told) != 1 {
				t.Errorf("%v are told to leave, though one of those that they would leave for cannot start", told)
			}
		})
	}
}

// A capacity is less than it was when a claim that uses it was made: the claim is given up
// when it would come true, and nobody is told to leave for it again.
func TestClaimOnACapacityThatIsLess(t *testing.T) {
	w := worldOf(1, 1)
	w.many(1, "low", "", true)
	w.s.Capacities = []*api.Capacity{{Name: "storage", Total: 5}}
	w.s.pending(gang("high", 1, gpus(1)).priority(6).uses("storage", 5).runs(time.Hour))
	p := NewPlanner()
	if told, _ := w.cycle(p); len(told) != 1 {
		t.Fatalf("told %v", told)
	}
	s := *w.s
	s.Capacities = []*api.Capacity{{Name: "storage", Total: 4}}
	w.s = &s
	w.leave("pg-low-000")
	for range 5 {
		w.now = w.now.Add(2 * time.Minute)
		if told, started := w.cycle(p); len(told) > 0 || slices.Contains(started, "high") {
			t.Fatalf("told %v, started %v", told, started)
		}
	}
	if got := w.ofTenants(); got[""] != 1 {
		t.Errorf("what was preempted for nothing does not run: %v", got)
	}
}

// A limit that two claims and their victims share is counted as it will be: both are told
// at once, and both claims stand until they come true.
func TestTwoClaimsOnTheQuotaOfTheirVictims(t *testing.T) {
	w := worldOf(2, 1)
	w.many(2, "low", "t", true)
	w.s.queues(limited(tenant("t"), 2))
	w.s.pending(gang("first", 1, gpus(1)).of("t", "").priority(6).runs(time.Hour), gang("second", 1, gpus(1)).of("t", "").priority(5).runs(time.Hour))
	p := NewPlanner()
	if told, _ := w.cycle(p); len(told) != 2 {
		t.Fatalf("told %v", told)
	}
	for range 3 {
		w.now = w.now.Add(time.Second)
		if told, started := w.cycle(p); len(told)+len(started) > 0 || len(w.leaving()) != 2 {
			t.Fatalf("told %v, started %v, leaving %v", told, started, w.leaving())
		}
	}
	w.leave("pg-low-000")
	w.leave("pg-low-001")
	if _, started := w.cycle(p); !slices.Equal(started, []string{"first", "second"}) {
		t.Errorf("started %v", started)
	}
}
