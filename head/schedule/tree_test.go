package schedule

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

func TestValidateQueues(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   []*api.Queue
		want []string // pointer: detail
	}{
		{"a sound tree", []*api.Queue{
			limited(guaranteed(tenant("a"), 8), 12), guaranteed(queue("q", "a"), 4), lends(guaranteed(queue("r", "a"), 4), 4),
			with(queue("spot", ""), func(q *api.Queue) {
				q.Order, q.Limit, q.Weight = OrderShort, amounts("gpu:H200", 1000, "cpu", 1, "memory", 1, "licence", 3), new(int64(0))
			}),
		}, nil},
		{"nothing at all", nil, nil},
		{"an unknown parent", []*api.Queue{queue("q", "a")}, []string{`/0/parent: there is no "a"; name a tenant of this list, or leave the parent out to stand at the top`}},
		{"below itself", []*api.Queue{with(tenant("a"), func(q *api.Queue) { q.Parent = "a" })}, []string{`/0/parent: "a" is below itself; leave the parent out to stand at the top`}},
		{"a circle, and what hangs on it", []*api.Queue{
			with(tenant("a"), func(q *api.Queue) { q.Parent = "b" }), with(tenant("b"), func(q *api.Queue) { q.Parent = "a" }), queue("q", "a"),
		}, []string{
			"/0/parent: a below b below a is a circle; give one of them another parent",
			"/1/parent: b below a below b is a circle; give one of them another parent",
			"/2/parent: stands more than 16 deep, or below a circle; give it another parent",
		}},
		{"the same name twice", []*api.Queue{tenant("a"), queue("a", "")}, []string{`/1/name: "a" stands here twice; tenants and queues share one set of names`}},
		{"something below a queue", []*api.Queue{queue("q", ""), with(tenant("a"), func(q *api.Queue) { q.Parent = "q" })}, []string{
			`/1/parent: "q" is a queue, and nothing stands below a queue; make it a tenant (tenant: true) or name another parent`,
		}},
		{"no name, and one that does not print", []*api.Queue{tenant(""), tenant("a\x00")}, []string{"/0/name: a tenant or queue needs a name", `/1/name: "a\x00" has characters that do not print`}},
		{"negative amounts", []*api.Queue{with(tenant("a"), func(q *api.Queue) { q.Limit = amounts("gpu", -1) })}, []string{"/0/limit/gpu: -1: a quota is at least 0; leave it out for no limit"}},
		{"unknown things", []*api.Queue{with(tenant("a"), func(q *api.Queue) { q.Limit = amounts("gpus", 1, "gpu:", 1) })}, []string{
			`/0/limit/gpu:: "gpu:" is nothing that a quota counts: gpu, gpu:MODEL, cpu, memory, or a capacity: licence`,
			`/0/limit/gpus: "gpus" is nothing that a quota counts: gpu, gpu:MODEL, cpu, memory, or a capacity: licence`,
		}},
		{"an unknown order, weight, priority, wait and pools", []*api.Queue{with(tenant("a"), func(q *api.Queue) {
			q.Order, q.Weight, q.MaxPriority, q.MaxWait, q.Pools = "lifo", new(int64(-1)), new(int64(math.MaxInt64)), -unit.Duration(1e9), []string{"p", "", "p"}
		})}, []string{
			"/0/pools/1: a pool has a name; leave pools out for all of them", `/0/pools/2: "p" stands here twice`,
			`/0/order: unknown order "lifo": use fair, fifo, short or deadline`, "/0/weight: -1 is not within 0 to 1000000; 0 is last",
			"/0/maxPriority: 9223372036854775807 is not within ±1000000", "/0/maxWait: -1s: a wait cannot be negative; leave it out for none",
		}},
		{"a limit below the guarantee", []*api.Queue{limited(guaranteed(tenant("a"), 8), 4)}, []string{"/0/limit/gpu: is 4 GPUs, below the 8 GPUs that are guaranteed; raise it, or guarantee less"}},
		{"lending what is not there", []*api.Queue{lends(tenant("a"), 1), lends(guaranteed(tenant("b"), 1), 2)}, []string{
			"/0/lend/gpu: lends 1 GPU and is guaranteed none; put it under guaranteed as well, or leave it out",
			"/1/lend/gpu: lends 2 GPUs and is guaranteed 1 GPU; lend at most that",
		}},
		{"more of one model than of all", []*api.Queue{with(tenant("a"), func(q *api.Queue) { q.Guaranteed = amounts("gpu", 1000, "gpu:H", 2000) })}, []string{
			"/0/guaranteed/gpu:H: is 2 GPUs of H, but 1 GPU are guaranteed of all models together",
		}},
		{"children that are promised more than there is", []*api.Queue{
			guaranteed(tenant("a"), 8), guaranteed(queue("q", "a"), 4), with(tenant("b"), func(q *api.Queue) { q.Parent = "a" }), guaranteed(queue("r", "b"), 5),
		}, []string{"/0/guaranteed/gpu: those below a are guaranteed 9 GPUs together, and it is guaranteed 8 GPUs itself; guarantee them less, or it more"}},
		{"children that are promised more than the limit", []*api.Queue{limited(tenant("a"), 3), guaranteed(queue("q", "a"), 4)}, []string{
			"/0/guaranteed/gpu: those below a are guaranteed 4 GPUs together, and it is limited to 3 GPUs itself; guarantee them less, or it more",
		}},
		{"sums beyond an integer", []*api.Queue{
			guaranteed(tenant("a"), 8), with(queue("q", "a"), func(q *api.Queue) { q.Guaranteed = amounts("gpu", math.MaxInt64) }), with(queue("r", "a"), func(q *api.Queue) { q.Guaranteed = amounts("gpu", math.MaxInt64) }),
		}, []string{"/0/guaranteed/gpu: those below a are guaranteed 9223372036854775.807 GPUs together, and it is guaranteed 8 GPUs itself; guarantee them less, or it more"}},
		{"an entry of nothing", []*api.Queue{nil}, []string{"/0: nothing, where a tenant or queue belongs"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, e := range ValidateQueues(tc.in, "licence") {
				got = append(got, e.Pointer+": "+e.Detail)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("errors\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(tc.want, "\n  "))
			}
		})
	}
}

// Whatever the tree, checking it ends, and what passes can be planned with.
func TestAnyTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []*api.Queue
		names := []string{"a", "b", "c", "d"}
		for range rapid.IntRange(0, 5).Draw(t, "queues") {
			q := &api.Queue{
				Name: rapid.SampledFrom(names).Draw(t, "name"), Parent: rapid.SampledFrom(append(names, "", "")).Draw(t, "parent"), Tenant: rapid.Bool().Draw(t, "tenant"),
			}
			for _, part := range []*api.Amounts{&q.Guaranteed, &q.Limit, &q.Lend} {
				if rapid.Bool().Draw(t, "given") {
					n := rapid.OneOf(rapid.Int64Range(-1, 3000), rapid.Just(int64(math.MaxInt64)), rapid.Just(int64(math.MinInt64))).Draw(t, "n")
					*part = part.With(rapid.SampledFrom([]string{"gpu", "gpu:a", "cpu", "licence", ""}).Draw(t, "of"), n)
				}
			}
			list = append(list, q)
		}
		errs := ValidateQueues(list, "licence")
		if len(errs) > maxFieldErrors {
			t.Fatalf("%d errors", len(errs))
		}
		s := drawSnapshot(t).queues(list...)
		for _, r := range s.Pending {
			r.Spec.Tenant, r.Spec.Preemptible = rapid.SampledFrom(append(names, "")).Draw(t, "of"), rapid.Bool().Draw(t, "preemptible")
		}
		ds := Plan(s, epoch) // nothing panics, also where the tree is wrong
		if len(ds) != len(s.Pending) {
			t.Fatalf("%d decisions for %d requests", len(ds), len(s.Pending))
		}
	})
}
