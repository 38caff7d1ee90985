package state

import (
	"github.com/troupe-runtime/troupe/runtime/api"
)

// quotas is the part of the model that sums what tenants, queues and a capacity are
// charged, from the groups that are placed alone.
type quotas struct {
	owner   string           // of queue q: a or b
	limits  map[string]int64 // milli-CPU
	charged map[string]int64 // milli-CPU by tenant or queue, and of the capacity
	before  map[string]int64 // nil: the tree has changed, and what is charged with it
}

// belongs gives a spec a tenant and a queue, mostly ones that go together.
func (w *world) belongs(s *api.GroupSpec) {
	of := [][2]string{{"default", "default"}, {"a", "default"}, {"a", "q"}, {"b", "default"}, {"b", "q"}, {"default", "q"}}[w.draw("belongs", 6)]
	s.Tenant, s.Queue = of[0], of[1]
	if w.draw("uses", 3) == 0 {
		s.Uses = api.Amounts{{Of: "pipe", N: int64(1 + w.draw("pipe", 2))}}
	}
}

// declare gives the tree other limits, or the queue to the other tenant.
func (w *world) declare() {
	owner, limits := "a", map[string]int64{}
	if w.owner != "" {
		owner = []string{"a", "b"}[w.draw("owner", 2)]
	}
	c := PutQueues{Queues: []api.Queue{{Name: "a", Tenant: true}, {Name: "b", Tenant: true}, {Name: "q", Parent: owner}}}
	if w.draw("lends", 2) == 0 { // P8 is then checked of what is kept, too
		b := &c.Queues[1]
		b.Guaranteed, b.Lend = api.Amounts{{Of: "cpu", N: 100_000}}, api.Amounts{{Of: "cpu", N: int64(100_000 - 1000*w.draw("kept", 6))}}
	}
	for i := range c.Queues {
		if q := &c.Queues[i]; w.draw("limited", 3) > 0 {
			limits[q.Name] = int64(1000 * w.draw("limit", 12))
			q.Limit = api.Amounts{{Of: "cpu", N: limits[q.Name]}}
		}
	}
	if r, refused := w.do(KindPutQueues, c).(*Refused); refused {
		if r.Code != "conflict" {
			w.t.Fatalf("the tree was refused: %v", r)
		}
		return // work of the former owner stands in the queue
	}
	w.owner, w.limits, w.before = owner, limits, nil
	w.ok(KindPutCapacities, PutCapacities{Capacities: []api.Capacity{{Name: "pipe", Total: 4}}})
}

func (w *world) park(id string) {
	s := []api.JobState{api.Held, api.Suspended, api.Queued, api.Queued}[w.draw("parked", 4)]
	w.do(KindParkJob, ParkJob{Job: id, State: s})
}

func (w *world) edit(id string) {
	tenant := []string{"a", "b", "default"}[w.draw("tenant", 3)]
	w.do(KindEditJob, EditJob{Job: id, Tenant: &tenant})
}

// charge adds one bundle of a placed group to what its tenant and queue hold.
func (w *world) charge(s api.GroupSpec, bundle int) {
	cpu := int64(s.Bundles[bundle].CPU)
	switch {
	case s.Queue == "q":
		w.charged["q"] += cpu
		w.charged[w.owner] += cpu
	case s.Tenant == "":
		w.charged["default"] += cpu
	default:
		w.charged[s.Tenant] += cpu
	}
}

// checkQuotas: what is charged is what placed groups hold, and no command brings a charge
// above a limit (I24).
func (w *world) checkQuotas(v *View) {
	for _, name := range []string{"a", "b", "q", "default"} {
		got := int64(0)
		if a := v.QueueAccount(name); a != nil {
			got, _ = a.Charged.Get("cpu")
		}
		if got != w.charged[name] {
			w.t.Fatalf("P8: %s is charged %d, its groups hold %d", name, got, w.charged[name])
		}
		if limit, ok := w.limits[name]; ok && w.before != nil && got > limit && got > w.before[name] {
			w.t.Fatalf("I24: %s went from %d to %d, its limit is %d", name, w.before[name], got, limit)
		}
	}
	pipe := int64(0)
	for _, h := range v.Holds() {
		n, _ := h.Uses.Get("pipe")
		pipe += n
	}
	got := int64(0)
	if a := v.CapacityAccount("pipe", ""); a != nil {
		got, _ = a.Charged.Get("pipe")
	}
	if got != pipe || pipe > 4 {
		w.t.Fatalf("P8: the capacity is charged %d, %d of 4 are held", got, pipe)
	}
	w.before = w.charged
}
