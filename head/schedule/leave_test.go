package schedule

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// evict takes decisions to preempt into the world, as the state does: the victims are told
// to leave, and what they leave is claimed.
func (w *world) evict(es []Eviction) {
	s := *w.s
	s.Holders, s.Pending = slices.Clone(s.Holders), slices.Clone(s.Pending)
	for _, e := range es {
		i := slices.IndexFunc(s.Pending, func(r *Request) bool { return r.ID == e.Preemptor })
		r := *s.Pending[i]
		r.Claim, s.Pending[i] = e.Claim, &r
		for _, v := range e.Victims {
			r.Leaving = append(slices.Clone(r.Leaving), v.Group)
			k := slices.IndexFunc(s.Holders, func(h *Holder) bool { return h.Group == v.Group })
			h := *s.Holders[k]
			h.LeavingFor, h.Keeps, s.Holders[k] = e.Preemptor, v.Keeps, &h
		}
	}
	w.s = &s
}

// unclaim gives claims up: who was to leave stays.
func (w *world) unclaim(us []Unclaim) {
	s := *w.s
	s.Holders, s.Pending = slices.Clone(s.Holders), slices.Clone(s.Pending)
	for _, u := range us {
		for i, r := range s.Pending {
			if r.ID == u.Group {
				c := *r
				c.Claim, c.Leaving, s.Pending[i] = nil, nil, &c
			}
		}
		for i, h := range s.Holders {
			if h.LeavingFor == u.Group {
				c := *h
				c.LeavingFor, c.Keeps, s.Holders[i] = "", 0, &c
			}
		}
	}
	w.s = &s
}

// leave ends the drain of one victim: it waits again, with its seniority, or goes on with
// what it keeps.
func (w *world) leave(group string) {
	s := *w.s
	s.Nodes, s.Holders, s.Pending = slices.Clone(s.Nodes), slices.Clone(s.Holders), slices.Clone(s.Pending)
	i := slices.IndexFunc(s.Holders, func(h *Holder) bool { return h.Group == group })
	h := *s.Holders[i]
	for _, b := range h.Bundles[min(int(h.Keeps), len(h.Bundles)):] {
		w.change(&s, b, 1)
	}
	if h.Keeps > 0 {
		h.Bundles = h.Bundles[:h.Keeps]
		h.GPUs = h.devices()
		h.LeavingFor, h.Keeps, s.Holders[i] = "", 0, &h
	} else {
		s.Holders = slices.Delete(s.Holders, i, i+1)
		s.Pending = append(s.Pending, &Request{
			ID: h.Group, Name: h.Name, User: h.User, Seq: h.Seq, Spec: *h.Spec, Since: w.now, Expect: h.Ends.Sub(h.Started), Evictions: h.Evictions + 1,
		})
	}
	for k, r := range s.Pending {
		if at := slices.Index(r.Leaving, group); at >= 0 {
			c := *r
			c.Leaving = slices.Delete(slices.Clone(c.Leaving), at, at+1)
			s.Pending[k] = &c
		}
	}
	w.s = &s
}

// cycle plans once and takes all of it into the world; it returns who is told to leave.
func (w *world) cycle(p *Planner) (told []string, started []string) {
	r := p.Plan(w.s, w.now)
	for _, d := range r.All() {
		if d.Bundles != nil {
			started = append(started, d.Group)
		}
	}
	for _, e := range r.Evictions {
		for _, v := range e.Victims {
			told = append(told, v.Group)
		}
	}
	w.start(r.All())
	w.unclaim(r.Unclaims)
	w.evict(r.Evictions)
	return told, started
}

// leaving lists who has been told to leave and has not yet.
func (w *world) leaving() (out []string) {
	for _, h := range w.s.Holders {
		if h.LeavingFor != "" {
			out = append(out, h.Group)
		}
	}
	slices.Sort(out)
	return out
}

// many makes n groups of one device each on nodes of eight, all running.
func (w *world) many(n int, name, tenant string, preemptible bool) {
	s := *w.s
	s.Nodes, s.Holders = slices.Clone(s.Nodes), slices.Clone(s.Holders)
	for i := range n {
		h := &Holder{Group: fmt.Sprintf("pg-%s-%03d", name, i), Name: fmt.Sprintf("%s-%03d", name, i), GPUs: 1, Started: epoch.Add(-time.Hour), Ends: epoch.Add(100 * time.Hour)}
		h.Spec = &api.GroupSpec{Tenant: tenant, Wishes: api.Wishes{Preemptible: preemptible}, Bundles: []api.Bundle{gpus(1)}}
	find:
		for _, node := range s.Nodes {
			for _, g := range node.GPUs {
				if g.Share == 1000 {
					b := Held{Node: node.ID, Devices: []string{g.UUID}}
					h.Bundles, h.Nodes = []Held{b}, []string{node.ID}
					w.change(&s, b, -1)
					break find
				}
			}
		}
		s.Holders = append(s.Holders, h)
	}
	w.s = &s
}

func worldOf(nodes, devices int) *world {
	return &world{s: clusterOf(nodesOf("n", nodes, devices)), now: epoch}
}

// ofTenants counts the devices that run for each tenant.
func (w *world) ofTenants() map[string]int64 {
	out := map[string]int64{}
	for _, h := range w.s.Holders {
		out[h.Spec.Tenant] += h.devices()
	}
	return out
}

// A tenant that is guaranteed 100 of 300 devices, all of which preemptible work of others
// uses, gets 100, exactly, however slowly that leaves, and those that left wait.
func TestGuaranteeIsReachedExactly(t *testing.T) {
	w := worldOf(38, 8) // 304 devices
	w.many(304, "guest", "guests", true)
	w.s.queues(guaranteed(tenant("owner"), 100), tenant("guests"))
	for i := range 130 { // 30 of them are beyond the guarantee
		w.s.pending(gang(fmt.Sprintf("own%03d", i), 1, gpus(1)).of("owner", "").runs(50 * time.Hour))
	}
	p := NewPlanner()
	told := map[string]int{}
	for round := 0; ; round++ {
		out, _ := w.cycle(p)
		for _, g := range out {
			told[g]++
		}
		leaving := w.leaving()
		if n := w.ofTenants()["owner"]; n > 100 || int64(len(told)) > 100 {
			t.Fatalf("%d run for the owner, %d were told to leave", n, len(told))
		}
		if len(leaving) == 0 && len(out) == 0 && w.ofTenants()["owner"] == 100 {
			break
		}
		if round > 200 {
			t.Fatalf("%v after %d cycles, %d leave", w.ofTenants(), round, len(leaving))
		}
		for _, g := range leaving[:min(7, len(leaving))] { // some at a time
			w.leave(g)
		}
		w.now = w.now.Add(time.Second)
	}
	if got := w.ofTenants(); got["owner"] != 100 || got["guests"] != 204 {
		t.Errorf("%v", got)
	}
	for g, n := range told {
		if n > 1 {
			t.Errorf("%s was preempted %d times", g, n)
		}
	}
}

// Tenant a is guaranteed 150 and runs 250, of which 100 may be ended; another without any
// guarantee runs 50 that may be ended; a asks for 50 more. Nobody is ended for work that is
// beyond the guarantee, whichever kind it is, and nothing goes round.
func TestNobodyLeavesForMoreThanTheGuarantee(t *testing.T) {
	for _, preemptible := range []bool{false, true} {
		w := worldOf(38, 8)
		w.s.Nodes = w.s.Nodes[:38]
		w.many(150, "firm", "a", false)
		w.many(100, "more", "a", true)
		w.many(50, "spare", "best-effort", true)
		w.many(4, "fill", "other", false)
		w.s.queues(guaranteed(tenant("a"), 150), tenant("best-effort"), guaranteed(tenant("other"), 4))
		r := gang("new", 50, gpus(1)).of("a", "").runs(time.Hour)
		r.request.Spec.Preemptible = preemptible
		w.s.pending(r)
		p := NewPlanner()
		for range 10 {
			if told, started := w.cycle(p); len(told)+len(started) > 0 {
				t.Fatalf("preemptible %v: %v leave, %v start", preemptible, told, started)
			}
			w.now = w.now.Add(time.Minute)
		}
	}
}

// Ten equal ones of which one is needed: in ten cycles before it has left, one is told to.
func TestOneOfTenEqualOnesLeaves(t *testing.T) {
	w := worldOf(10, 1)
	w.many(10, "low", "", true)
	w.s.pending(gang("high", 1, gpus(1)).priority(5).runs(time.Hour))
	p := NewPlanner()
	var told []string
	for range 10 {
		out, _ := w.cycle(p)
		told = append(told, out...)
		w.now = w.now.Add(time.Second)
	}
	if !slices.Equal(told, []string{"pg-low-000"}) {
		t.Errorf("told to leave: %v", told)
	}
}

// With preemption off nothing is ended and nothing is held twice.
func TestPreemptionOff(t *testing.T) {
	w := worldOf(1, 2)
	w.many(2, "low", "", true)
	w.s.pending(gang("high", 1, gpus(1)).priority(1000).runs(time.Hour))
	w.s.Policy.NoPreempt = true
	if told, started := w.cycle(NewPlanner()); len(told)+len(started) > 0 {
		t.Errorf("%v leave, %v start", told, started)
	}
}

// Whatever leaves for whatever, it comes to rest: with tenants, guarantees, limits, capacities
// and victims that leave in any order, nobody is preempted by work of no higher standing, nor
// twice for the same, and no node holds more than it has.
func TestPropPreemptionComesToRest(t *testing.T) {
	evicted := 0
	checkUntil(t, func() bool { return evicted > 100 }, func(t *rapid.T) {
		w := worldOf(rapid.IntRange(1, 4).Draw(t, "nodes"), rapid.IntRange(1, 3).Draw(t, "devices"))
		if rapid.Bool().Draw(t, "with quotas") {
			w.s.queues(drawTree(t)...)
		}
		if rapid.IntRange(0, 2).Draw(t, "with a capacity") == 0 {
			w.s.Capacities = []*api.Capacity{{Name: "storage", Total: rapid.Int64Range(1, 8).Draw(t, "total")}}
		}
		specs := map[string]*api.GroupSpec{}
		var running []*Request
		for i := range rapid.IntRange(2, 8).Draw(t, "requests") {
			b := rapid.SampledFrom([]api.Bundle{gpus(1), gpus(1), gpus(2), share(500), cpus(20)}).Draw(t, "bundle")
			r := gang(fmt.Sprintf("r%d", i), rapid.IntRange(1, 4).Draw(t, "bundles"), b).runs(100 * time.Hour).request
			r.Spec.Strategy = rapid.SampledFrom([]api.Strategy{"", "", api.Spread, api.StrictPack, api.StrictSpread}).Draw(t, "strategy")
			r.Spec.Preemptible, r.Spec.Priority = rapid.IntRange(0, 3).Draw(t, "preemptible") > 0, rapid.Int64Range(0, 2).Draw(t, "priority")
			if w.s.Queues != nil {
				q := rapid.SampledFrom(w.s.Queues.List).Draw(t, "queue")
				if r.Spec.Tenant = q.Name; !q.Tenant {
					r.Spec.Tenant, r.Spec.Queue = q.Parent, q.Name
				}
			}
			if w.s.Capacities != nil && rapid.Bool().Draw(t, "uses storage") {
				r.Spec.Uses = api.Amounts{{Of: "storage", N: rapid.Int64Range(1, 3).Draw(t, "uses")}}
			}
			specs[r.ID] = &r.Spec
			w.s.Pending = append(w.s.Pending, &r)
			if rapid.Bool().Draw(t, "runs already") {
				running = append(running, &r)
			}
		}
		// What runs already was placed by the same rules, while the others were not there.
		later := slices.DeleteFunc(slices.Clone(w.s.Pending), func(r *Request) bool { return slices.Contains(running, r) })
		w.s.Pending = running
		p := NewPlanner()
		w.cycle(p)
		w.s.Pending = append(slices.Clone(w.s.Pending), later...)
		w.now = w.now.Add(time.Hour)
		told := map[string]bool{}
		for step := 0; ; step++ {
			before := w.s
			r := p.Plan(w.s, w.now)
			for _, e := range r.Evictions {
				for _, v := range e.Victims {
					evicted++
					if pair := v.Group + " for " + e.Preemptor; told[pair] {
						t.Fatalf("%s leaves once more", pair)
					} else {
						told[pair] = true
					}
					if a, b := standingOf(specs[v.Group]), standingOf(specs[e.Preemptor]); a.compare(b) >= 0 {
						t.Fatalf("%s (%+v) leaves for %s (%+v)", v.Group, a, e.Preemptor, b)
					}
				}
			}
			w.start(r.All())
			w.unclaim(r.Unclaims)
			w.evict(r.Evictions)
			for _, n := range w.s.Nodes {
				if n.FreeCPU < 0 || slices.ContainsFunc(n.GPUs, func(g GPU) bool { return g.Share < 0 || g.Free < 0 }) {
					t.Fatalf("more is held of %s than it has", n.Name)
				}
			}
			leaving := w.leaving()
			if started(r.All()) == "" && len(r.Evictions)+len(r.Unclaims)+len(leaving) == 0 {
				break
			}
			if step > 20*(1+len(specs)) {
				t.Fatalf("it goes round after %d steps: %v; %+v", step, told, before)
			}
			if len(leaving) > 0 {
				w.leave(rapid.SampledFrom(leaving).Draw(t, "leaves"))
			}
			w.now = w.now.Add(2 * time.Minute)
		}
	})
	if evicted == 0 {
		t.Error("nothing was ever evicted; the property proved nothing")
	}
}
