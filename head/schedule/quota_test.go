package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func amounts(of string, n int64, more ...any) api.Amounts {
	a := api.Amounts{}.With(of, n)
	for i := 0; i+1 < len(more); i += 2 {
		a = a.With(more[i].(string), int64(more[i+1].(int)))
	}
	return a
}

// with changes a queue: with(tenant("a"), func(q *api.Queue) { q.Guaranteed = … }).
func with(q *api.Queue, change func(*api.Queue)) *api.Queue {
	change(q)
	return q
}

func guaranteed(q *api.Queue, gpus int64) *api.Queue {
	return with(q, func(q *api.Queue) { q.Guaranteed = amounts("gpu", gpus*1000) })
}

func limited(q *api.Queue, gpus int64) *api.Queue {
	return with(q, func(q *api.Queue) { q.Limit = amounts("gpu", gpus*1000) })
}

func lends(q *api.Queue, gpus int64) *api.Queue {
	return with(q, func(q *api.Queue) { q.Lend = amounts("gpu", gpus*1000) })
}

// working is a holder of so many whole devices that a node's marks show as taken.
func working(group, tenant, queue, user string, n int64, preemptible bool) Holder {
	h := Holder{Group: group, Name: group, User: user, GPUs: n, Spec: &api.GroupSpec{Tenant: tenant, Queue: queue}}
	h.Spec.Preemptible = preemptible
	return h
}

func (b nodeBuilder) model(m string) nodeBuilder {
	b.node.GPUs = slices.Clone(b.node.GPUs)
	for i := range b.node.GPUs {
		b.node.GPUs[i].Model = m
	}
	return b
}

// started lists what a plan places.
func started(ds []Decision) string {
	var out []string
	for _, d := range ds {
		if d.Bundles != nil {
			out = append(out, d.Group)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestQuotas(t *testing.T) {
	eight := func() nodeBuilder { return aNode("n1").gpus(8, 72) }
	one := gpus(1)
	for _, tc := range []struct {
		name string
		in   *Snapshot
		want string
	}{
		{
			"a gang beyond its guarantee gets nothing, though the nodes have room",
			cluster(aNode("n1").gpus(12, 72)).queues(guaranteed(tenant("a"), 8)).pending(gang("x", 12, one).of("a", "")), "",
		},
		{
			"within the guarantee it starts",
			cluster(eight()).queues(guaranteed(tenant("a"), 8)).pending(gang("x", 8, one).of("a", "")), "x",
		},
		{
			"two of one tenant do not get the same room",
			cluster(eight()).queues(guaranteed(tenant("a"), 6)).pending(gang("x", 4, one).of("a", ""), gang("y", 4, one).of("a", "")), "x",
		},
		{
			"what does not fit the quota holds up nothing behind it",
			cluster(eight()).queues(guaranteed(tenant("a"), 4)).pending(gang("x", 5, one).of("a", ""), gang("y", 4, one).of("a", "")), "y",
		},
		{
			"preemptible work may go beyond the guarantee, where others do not use theirs",
			cluster(eight()).queues(guaranteed(tenant("a"), 2), guaranteed(tenant("b"), 6)).pending(gang("x", 8, one).of("a", "").preemptible()), "x",
		},
		{
			"but not beyond the limit",
			cluster(eight()).queues(limited(guaranteed(tenant("a"), 2), 4)).pending(gang("x", 5, one).of("a", "").preemptible(), gang("y", 4, one).of("a", "").preemptible()), "y",
		},
		{
			"and not what others keep for themselves",
			cluster(eight()).queues(tenant("a"), lends(guaranteed(tenant("b"), 6), 2)).pending(gang("x", 5, one).of("a", "").preemptible(), gang("y", 4, one).of("a", "").preemptible()), "y",
		},
		{
			"what a tenant keeps it may use for preemptible work of its own",
			cluster(eight()).queues(tenant("a"), lends(guaranteed(tenant("b"), 6), 0)).pending(gang("x", 8, one).of("b", "").preemptible()), "x",
		},
		{
			"what is kept and used already is not kept twice",
			cluster(eight().taken(0, 1, 2, 3)).queues(tenant("a"), lends(guaranteed(tenant("b"), 4), 0)).heldBy(working("h", "b", "", "", 4, false)).
				pending(gang("x", 4, one).of("a", "").preemptible()), "x",
		},
		{
			"a tenant keeps what its children keep, not twice",
			cluster(eight()).queues(tenant("a"), lends(guaranteed(tenant("b"), 4), 0), lends(guaranteed(queue("q", "b"), 4), 0)).
				pending(gang("x", 4, one).of("a", "").preemptible()), "x",
		},
		{
			"a waiting head of the line does not stop the use of idle quota",
			cluster(eight().taken(0, 1, 2, 3)).queues(guaranteed(tenant("a"), 8), tenant("b")).heldBy(working("h", "a", "", "", 4, false)).
				pending(gang("head", 8, one).of("a", ""), gang("spare", 4, one).of("b", "").preemptible()), "spare",
		},
		{
			"all above a queue have to allow it",
			cluster(eight()).queues(guaranteed(tenant("a"), 8), guaranteed(queue("q", "a"), 4), guaranteed(queue("r", "a"), 6)).
				pending(gang("x", 4, one).of("a", "q"), gang("y", 5, one).of("a", "r"), gang("z", 4, one).of("a", "r")), "x z",
		},
		{
			"in a queue of nobody's the tenant's own quota counts as well",
			cluster(eight()).queues(guaranteed(tenant("a"), 2), guaranteed(queue("q", ""), 4)).pending(gang("x", 3, one).of("a", "q"), gang("y", 2, one).of("a", "q")), "y",
		},
		{
			"what is being released is charged to nobody's quota",
			cluster(eight().taken(0, 1)).queues(guaranteed(tenant("a"), 2)).heldBy(with2(working("h", "a", "", "", 2, false), func(h *Holder) { h.Releasing = true })).
				pending(gang("x", 2, one).of("a", "")), "x",
		},
		{
			"shares of devices count",
			cluster(eight()).queues(guaranteed(tenant("a"), 1)).pending(gang("x", 2, share(400)).of("a", ""), gang("y", 1, share(300)).of("a", ""), gang("z", 1, share(200)).of("a", "")), "x z",
		},
		{
			"CPUs and memory count",
			cluster(eight()).queues(with(tenant("a"), func(q *api.Queue) { q.Limit = amounts("cpu", 4000) })).pending(gang("x", 1, cpus(5)).of("a", ""), gang("y", 2, cpus(2)).of("a", "")), "y",
		},
		{
			"a limit on a class of devices holds beside the one on all of them",
			cluster(aNode("n1").gpus(4, 72).model("H").label("is", "h"), aNode("n2").gpus(4, 72).model("T")).queues(with(tenant("a"), func(q *api.Queue) { q.Limit = amounts("gpu", 4000, "gpu:H", 2000) })).
				pending(gang("typed", 3, labelled(one, "is", "h")).of("a", ""), gang("large", 5, one).of("a", "")), "",
		},
		{
			"a class without room is left alone, another one is taken",
			cluster(aNode("n1").gpus(4, 72).model("H"), aNode("n2").gpus(4, 72).model("T")).queues(with(tenant("a"), func(q *api.Queue) { q.Limit = amounts("gpu:H", 1000) })).
				pending(gang("x", 4, one).of("a", ""), gang("y", 2, one).of("a", "")), "x",
		},
		{
			"a typed limit counts what is held, in one class and in all",
			cluster(aNode("n1").gpus(2, 72).model("H").taken(0)).queues(with(tenant("a"), func(q *api.Queue) { q.Limit = amounts("gpu", 2000, "gpu:H", 1000) })).
				heldBy(with2(holder("h", aNode("n1").gpus(2, 72).model("H").node, 0), func(h *Holder) { h.Spec = &api.GroupSpec{Tenant: "a"} })).
				pending(gang("x", 1, one).of("a", "")), "",
		},
		{
			"a paused queue starts nothing, nor does what is below a paused tenant",
			cluster(eight()).queues(with(tenant("a"), func(q *api.Queue) { q.Paused = "upgrade" }), queue("q", "a"), queue("r", "")).
				pending(gang("x", 1, one).of("a", "q"), gang("y", 1, one).of("", "r")), "y",
		},
		{
			"a queue has its pools",
			cluster(eight().pool("p")).queues(with(queue("q", ""), func(q *api.Queue) { q.Pools = []string{"p"} }), with(queue("r", ""), func(q *api.Queue) { q.Pools = []string{"other"} })).
				pending(gang("x", 1, one).of("", "q").pool("p"), gang("y", 1, one).of("", "r").pool("p"), gang("z", 1, one).of("", "q")), "x",
		},
		{
			"an unknown tenant or queue gets nothing",
			cluster(eight()).queues(tenant("a")).pending(gang("x", 1, one).of("b", ""), gang("y", 1, one).of("a", "none")), "",
		},
		{"without a tree all names are as good as another", cluster(eight()).pending(gang("x", 1, one).of("b", "c")), "x"},
		{
			"a group that may start smaller does as far as the quota goes",
			cluster(eight().taken(0, 1, 2)).queues(limited(tenant("a"), 5)).heldBy(working("h", "a", "", "", 3, false)).
				pending(gang("x", 5, one).of("a", "").roles(0, api.Role{Name: "w", Bundles: 5, Min: 1})), "x",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := started(Plan(tc.in, epoch)); got != tc.want {
				t.Errorf("starts %q, want %q", got, tc.want)
			}
		})
	}
}

func with2(h Holder, change func(*Holder)) Holder {
	change(&h)
	return h
}

func TestQuotaReasons(t *testing.T) {
	one := gpus(1)
	full := func() *Snapshot {
		return cluster(aNode("n1").gpus(8, 72).taken(0, 1, 2, 3)).queues(guaranteed(tenant("nlp"), 4), queue("q", "nlp")).
			heldBy(working("llm-b", "nlp", "q", "bob", 1, false), working("llm-a", "nlp", "", "ann", 3, false))
	}
	for _, tc := range []struct {
		name string
		in   *Snapshot
		want []string // code: text; frees, of the last request
	}{
		{"what is used, by whom, and what is missing", full().pending(gang("x", 2, one).of("nlp", "q")), []string{
			"Quota: would fit, but quota: tenant nlp guarantees 4 GPUs, 4 in use by llm-a (3, ann), llm-b (1, bob); needs 2 GPUs, 2 missing; the end of llm-a alone, or a larger quota",
		}},
		{"the smallest whose end is enough", full().pending(gang("x", 1, one).of("nlp", "")), []string{
			"Quota: would fit, but quota: tenant nlp guarantees 4 GPUs, 4 in use by llm-a (3, ann), llm-b (1, bob); needs 1 GPU, 1 missing; the end of llm-b alone, or a larger quota",
		}},
		{"more than the quota is, not more than is there", cluster(aNode("n1").gpus(12, 72)).queues(guaranteed(tenant("a"), 8)).pending(gang("x", 12, one).of("a", "")), []string{
			"Quota: would fit, but quota: tenant a guarantees 8 GPUs, 0 in use; the request asks for 12 GPUs; a smaller request, or a quota of 12 GPUs",
		}},
		{"what the cycle placed counts", cluster(aNode("n1").gpus(8, 72)).queues(limited(queue("q", ""), 3)).pending(gang("first", 2, one).of("", "q"), gang("x", 2, one).of("", "q")), []string{
			"Quota: would fit, but quota: queue q is limited to 3 GPUs, 2 in use by first (2); needs 2 GPUs, 1 missing; the end of first alone, or a larger quota",
		}},
		{"quota before room, and both are said", cluster(aNode("n1").gpus(4, 72).taken(0, 1, 2, 3)).queues(guaranteed(tenant("a"), 1)).pending(gang("x", 2, one).of("a", "")), []string{
			"Quota: quota: tenant a guarantees 1 GPU, 0 in use; the request asks for 2 GPUs; a smaller request, or a quota of 2 GPUs",
			"Fit: each bundle needs 1 GPU on one node; the nearest fit, n1, has 0 GPUs free; 1 GPU missing; more nodes, or a smaller request",
		}},
		{"room alone, where the quota has some", cluster(aNode("n1").gpus(4, 72).taken(0, 1, 2, 3)).queues(guaranteed(tenant("a"), 8)).pending(gang("x", 2, one).of("a", "")), []string{
			"Fit: each bundle needs 1 GPU on one node; the nearest fit, n1, has 0 GPUs free; 1 GPU missing; more nodes, or a smaller request",
		}},
		{"the narrowest quota first, then those above", cluster(aNode("n1").gpus(8, 72)).queues(guaranteed(tenant("a"), 2), limited(guaranteed(queue("q", "a"), 1), 1)).pending(gang("x", 3, one).of("a", "q")), []string{
			"Quota: would fit, but quota: queue q guarantees 1 GPU, 0 in use; the request asks for 3 GPUs; a smaller request, or a quota of 3 GPUs",
			"Quota: quota: tenant a guarantees 2 GPUs, 0 in use; the request asks for 3 GPUs; a smaller request, or a quota of 3 GPUs",
			"Quota: quota: queue q is limited to 1 GPU, 0 in use; the request asks for 3 GPUs; a smaller request, or a quota of 3 GPUs",
		}},
		{"an unknown queue is misconfigured and does not wait for room", cluster(aNode("n1").gpus(1, 72).taken(0)).queues(tenant("a")).pending(gang("x", 1, one).of("a", "night")), []string{
			`Misconfigured: no queue "night": the request can never start like this; another tenant or queue in the request, or that one being made: troupe queue list`,
		}},
		{"a paused queue says why", cluster(aNode("n1").gpus(1, 72)).queues(with(queue("q", ""), func(q *api.Queue) { q.Paused = "disks are moved" })).pending(gang("x", 1, one).of("", "q")), []string{
			"Held: queue q is paused: disks are moved; troupe queue resume q",
		}},
		{"what others keep", cluster(aNode("n1").gpus(8, 72)).queues(tenant("a"), lends(guaranteed(tenant("b"), 6), 2)).pending(gang("x", 5, one).of("a", "").preemptible()), []string{
			"Quota: would fit, but quota: preemptible work may use 4 GPUs now, beside what is kept free for tenant b (4); needs 5 GPUs; the end of other work, or a tenant that lends more",
		}},
		{"what others keep and use is room that is missing, and no quota", cluster(aNode("n1").gpus(4, 72).taken(0, 1, 2, 3)).queues(tenant("a"), lends(guaranteed(tenant("b"), 6), 2)).heldBy(working("h", "b", "", "", 4, false)).pending(gang("x", 4, one).of("a", "").preemptible()), []string{
			"Fit: each bundle needs 1 GPU on one node; the nearest fit, n1, has 0 GPUs free; 1 GPU missing; more nodes, or a smaller request",
		}},
		{"a class of devices", cluster(aNode("n1").gpus(4, 72).model("H")).queues(with(tenant("a"), func(q *api.Queue) { q.Limit = amounts("gpu:H", 1500) })).pending(gang("x", 2, one).of("a", "")), []string{
			"Quota: would fit, but quota: tenant a is limited to 1.5 GPUs of H, 0 in use; the request asks for 2 GPUs of H; a smaller request, or a quota of 2 GPUs of H",
		}},
		{"who used less of its share", cluster(aNode("n1").gpus(1, 72)).queues(tenant("a"), tenant("b")).used("a", 5).pending(gang("b1", 1, one).of("b", ""), gang("x", 1, one).of("a", "")), []string{
			"Order: would fit, but the room went to b1 (used less of its share); the end of b1",
			"Fit: the bundle needs 1 GPU on one node; the nearest fit, n1, has 0 GPUs free; 1 GPU missing; held by b1; the end of b1 alone",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := NewPlanner().Plan(tc.in, epoch)
			var got []string
			for _, x := range r.Why("x") {
				got = append(got, fmt.Sprintf("%s: %s; %s", x.Code, x.Text, x.Frees))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("reasons\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(tc.want, "\n  "))
			}
		})
	}
}

// ledger is an independent account of a tree: plain sums over placed bundles.
type ledger struct {
	s    *Snapshot
	used map[string]map[string]int64 // queue → thing
	firm map[string]map[string]int64 // by work that is not preemptible
}

func newLedger(s *Snapshot) *ledger {
	l := &ledger{s: s, used: map[string]map[string]int64{}, firm: map[string]map[string]int64{}}
	for _, q := range s.Queues.List {
		l.used[q.Name], l.firm[q.Name] = map[string]int64{}, map[string]int64{}
	}
	return l
}

// charge adds an amount of a thing for a spec to every queue on its way; false: a name is wrong.
func (l *ledger) charge(spec *api.GroupSpec, of string, n int64) bool {
	path, err := api.NewTree(l.s.Queues.List).Path(spec.Tenant, spec.Queue)
	for _, q := range path {
		l.used[q.Name][of] += n
		if !spec.Preemptible {
			l.firm[q.Name][of] += n
		}
	}
	return err == nil
}

// I24, P8: whatever is placed, no tenant and no queue is above a limit that was kept before,
// nor firm work above a guarantee, in all devices and in each class of them; what is placed
// has a known tenant and queue, none of them paused; and each group is charged once.
func TestQuotasAreKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawQueues(t)
		s.Holders = nil // what is held already may be above
		l := newLedger(s)
		model := map[string]string{}
		for _, n := range s.Nodes {
			for _, g := range n.GPUs {
				model[g.UUID] = g.Model
			}
		}
		byID := map[string]*Request{}
		for _, r := range s.Pending {
			byID[r.ID] = r
		}
		for _, d := range Plan(s, epoch) {
			spec := &byID[d.Group].Spec
			for _, b := range d.Bundles {
				res := spec.Bundles[b.Bundle]
				ok := l.charge(spec, "cpu", int64(res.CPU))
				for _, uuid := range b.Devices {
					n := int64(1000)
					if res.Share > 0 {
						n = res.Share
					}
					l.charge(spec, "gpu", n)
					l.charge(spec, "gpu:"+model[uuid], n)
				}
				path, _ := api.NewTree(s.Queues.List).Path(spec.Tenant, spec.Queue)
				if !ok || slices.ContainsFunc(path, func(q *api.Queue) bool { return q.Paused != "" }) {
					t.Fatalf("%s of %q and %q starts", d.Group, spec.Tenant, spec.Queue)
				}
			}
		}
		for _, q := range s.Queues.List {
			for of, n := range l.used[q.Name] {
				if most, ok := q.Limit.Get(of); ok && n > most {
					t.Fatalf("%s has %d of %s, its limit is %d", q.Name, n, of, most)
				}
			}
			for of, n := range l.firm[q.Name] {
				if most, ok := q.Guaranteed.Get(of); ok && n > most {
					t.Fatalf("%s has %d of %s for work that is not preemptible, guaranteed is %d", q.Name, n, of, most)
				}
			}
		}
	})
}

// A request whose quota refuses it says so, and only then.
func TestQuotaReasonsAreTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawQueues(t)
		r := NewPlanner().Plan(s, epoch)
		for _, d := range r.All() {
			if d.Bundles != nil {
				continue
			}
			why := r.Why(d.Group)
			if len(why) == 0 {
				t.Fatalf("%s waits without a reason", d.Group)
			}
			quota := slices.IndexFunc(why, func(x api.Reason) bool { return x.Code == api.ReasonQuota })
			room := slices.IndexFunc(why, func(x api.Reason) bool { return x.Code == api.ReasonFit })
			if quota >= 0 && room >= 0 && room < quota {
				t.Fatalf("%s: room before quota: %v", d.Group, why)
			}
			if quota < 0 {
				continue
			}
			// Without any quota it has another reason or starts.
			free := *s
			free.Queues = &Queues{Used: s.Queues.Used}
			for _, q := range s.Queues.List {
				c := *q
				c.Guaranteed, c.Limit, c.Lend = nil, nil, nil
				free.Queues.List = append(free.Queues.List, &c)
			}
			for _, x := range NewPlanner().Plan(&free, epoch).Why(d.Group) {
				if x.Code == api.ReasonQuota {
					t.Fatalf("%s names a quota where there is none: %v", d.Group, x)
				}
			}
		}
	})
}

// A group that may start with fewer bundles starts with as many as its quota allows.
func TestFewerBundlesWithinQuota(t *testing.T) {
	s := cluster(aNode("n1").gpus(8, 72).taken(0, 1, 2)).queues(limited(tenant("a"), 5)).heldBy(working("h", "a", "", "", 3, false)).
		pending(gang("x", 5, gpus(1)).of("a", "").roles(0, api.Role{Name: "w", Bundles: 5, Min: 1}),
			gang("y", 4, gpus(1)).of("a", "").roles(0, api.Role{Name: "w", Bundles: 4, Min: 1}))
	ds := Plan(s, epoch)
	if x, y := decisionFor(ds, "x"), decisionFor(ds, "y"); len(x.Bundles) != 2 || !slices.Equal(x.Chosen, []int64{0, 1}) || y.Bundles != nil {
		t.Errorf("x has %d bundles (%v), y %d: 2 of 5 GPUs were left", len(x.Bundles), x.Chosen, len(y.Bundles))
	}
}

// What asks for more than its quota is refused when it is submitted, whatever is in use.
func TestNeverAllowed(t *testing.T) {
	in := cluster(aNode("n1").gpus(16, 72)).queues(
		with(guaranteed(tenant("a"), 8), func(q *api.Queue) { q.Limit = amounts("gpu", int64(10_000)) }), limited(queue("q", "a"), 4), tenant("free"),
	).heldBy(working("h", "a", "", "ann", 3, false))
	for _, tc := range []struct {
		of, queue   string
		size        int
		preemptible bool
		want        string
	}{
		{"a", "", 8, false, ""},
		{"a", "", 9, false, "quota: tenant a guarantees 8 GPUs, 3 in use; the request asks for 9 GPUs"},
		{"a", "", 10, true, ""},
		{"a", "", 11, true, "quota: tenant a is limited to 10 GPUs, 3 in use; the request asks for 11 GPUs"},
		{"a", "q", 5, true, "quota: queue q is limited to 4 GPUs, 0 in use; the request asks for 5 GPUs"},
		{"free", "", 16, false, ""},
		{"free", "", 17, false, "needs 17 GPUs, the cluster has 16; 1 missing"},
		{"nobody", "", 1, false, ""}, // refused by its name, elsewhere
	} {
		r := gang("g", tc.size, gpus(1)).of(tc.of, tc.queue)
		r.request.Spec.Preemptible = tc.preemptible
		got := ""
		if why := Never(in, r.request.Spec); why != nil {
			got = why.Text
			if why.Code != api.ReasonNeverFits || why.Missing == "" {
				t.Errorf("%+v: %+v", tc, why)
			}
		}
		if got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}
