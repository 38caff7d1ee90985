package schedule

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

func TestReasons(t *testing.T) {
	n1, n2 := aNode("n1").gpus(4, 72).taken(0, 1), aNode("n2").gpus(4, 72).taken(0, 1, 2)
	for _, tc := range []struct {
		name string
		in   *Snapshot
		of   string
		want []api.Reason // Text matches as a prefix; empty fields are not compared
	}{
		{
			"no node has joined", cluster().pending(gang("a", 2, gpus(1))), "a",
			[]api.Reason{{Code: api.ReasonFit, Text: "no node has joined; the request needs 2 GPUs", Missing: "2 GPUs"}},
		},
		{
			"the holders of what is missing are named, and which of them is enough",
			cluster(n1, n2).heldBy(holder("x", n1.node, 0, 1), holder("y", n2.node, 0, 1, 2), Holder{Group: "cpu", Name: "cpu", Nodes: []string{"id-n1"}, CPU: 1000}).
				pending(gang("a", 5, gpus(1))),
			"a",
			[]api.Reason{{
				Code: api.ReasonFit, Text: "needs 5 GPUs; 3 GPUs free; 2 GPUs missing; held by x, y",
				Blockers: []string{"x", "y"}, Need: "5 GPUs", Have: "3 GPUs", Missing: "2 GPUs", Frees: "the end of x alone",
			}},
		},
		{
			"only both together are enough",
			cluster(n1, n2).heldBy(holder("x", n1.node, 0, 1), holder("y", n2.node, 0, 1, 2)).pending(gang("a", 8, gpus(1))),
			"a",
			[]api.Reason{{Code: api.ReasonFit, Missing: "5 GPUs", Frees: "the end of x and y"}},
		},
		{
			"capacity that is being released is said to be",
			func() *Snapshot {
				h := holder("x", n1.node, 0, 1)
				h.Releasing = true
				return cluster(n1, n2).heldBy(h, holder("y", n2.node, 0, 1, 2)).pending(gang("a", 5, gpus(1)))
			}(), "a",
			[]api.Reason{
				{Code: api.ReasonReleasing, Text: "x ended, but", Blockers: []string{"x"}},
				{Code: api.ReasonFit, Missing: "2 GPUs"},
			},
		},
		{
			"STRICT_PACK names the nearest node",
			cluster(n1, n2).pending(gang("a", 3, gpus(1)).strategy(api.StrictPack)), "a",
			[]api.Reason{{Code: api.ReasonFit, Text: "needs 3 GPUs on one node (STRICT_PACK); the nearest fit, n1, has 2 GPUs free; 1 GPU missing", Where: "node n1", Missing: "1 GPU"}},
		},
		{
			"so many on each node count nodes with room for them",
			cluster(n1, n2, aNode("n3").gpus(4, 72).taken(0, 1, 2, 3)).pending(gang("a", 4, gpus(1)).perNode(2)), "a",
			[]api.Reason{{Code: api.ReasonFit, Text: "needs 2 nodes with 2 GPUs on each (2 bundles); 1 node has room for that now; 1 node missing", Missing: "1 node"}},
		},
		{
			"STRICT_SPREAD counts nodes",
			cluster(n1, aNode("n3").gpus(4, 72).taken(0, 1, 2, 3)).pending(gang("a", 2, gpus(1)).strategy(api.StrictSpread)), "a",
			[]api.Reason{{Code: api.ReasonFit, Text: "needs 2 nodes, one for each bundle (STRICT_SPREAD); 1 node has room for one now; 1 node missing", Missing: "1 node"}},
		},
		{
			"enough in sum, in pieces",
			cluster(n1, n2).pending(gang("a", 1, gpus(3))), "a",
			[]api.Reason{{Code: api.ReasonFit, Text: "the bundle needs 3 GPUs on one node; the nearest fit, n1, has 2 GPUs free; 1 GPU missing"}},
		},
		{
			"shares are counted by device",
			cluster(aNode("n1").gpus(2, 72)).pending(gang("a", 2, share(600)), gang("b", 1, share(600))), "b",
			[]api.Reason{
				{Code: api.ReasonOrder, Blockers: []string{"a"}},
				{Code: api.ReasonFit, Text: "the bundle needs 600/1000 of a GPU on one node; the nearest fit, n1, has 400/1000 of a GPU free; 200/1000 of a GPU missing"},
			},
		},
		{
			"those whose turn came first are named with the reason",
			cluster(aNode("n1").gpus(1, 72)).pending(gang("low", 1, gpus(1)), gang("high", 1, gpus(1)).priority(5)), "low",
			[]api.Reason{
				{Code: api.ReasonOrder, Text: "would fit, but the room went to high (priority 5 over 0)", Blockers: []string{"high"}, Frees: "the end of high"},
				{Code: api.ReasonFit, Blockers: []string{"high"}, Frees: "the end of high alone"},
			},
		},
		{
			"a node that is not ready and would be enough comes first",
			cluster(n1, aNode("n3").gpus(4, 72).notReady("silent for 4 s")).pending(gang("a", 6, gpus(1))), "a",
			[]api.Reason{
				{Code: api.ReasonHealth, Text: "n3 is not ready (silent for 4 s)", Blockers: []string{"n3"}, Frees: "n3 being ready and well again"},
				{Code: api.ReasonFit, Missing: "4 GPUs"},
			},
		},
		{
			"sick devices are named",
			cluster(aNode("n1").gpus(2, 72).sick(1)).pending(gang("a", 2, gpus(1))), "a",
			[]api.Reason{{Code: api.ReasonHealth, Text: "1 GPU of n1 unhealthy"}, {Code: api.ReasonFit, Missing: "1 GPU"}},
		},
		{
			"who uses a device unasked is named",
			cluster(aNode("n1").gpus(2, 72).sick(1, "used by process 42 (python3)")).pending(gang("a", 2, gpus(1))), "a",
			[]api.Reason{{Code: api.ReasonHealth, Text: "1 GPU of n1 unhealthy (used by process 42 (python3))"}, {Code: api.ReasonFit, Missing: "1 GPU"}},
		},
		{
			"an unknown pool is never a mere wait",
			cluster(aNode("n1").pool("big")).pending(gang("a", 1, cpus(1)).pool("bgi")), "a",
			[]api.Reason{{Code: api.ReasonNeverFits, Text: `no node is in pool "bgi"; the pools are big`}},
		},
		{
			"nodes without the label are named",
			cluster(aNode("n1"), aNode("n2")).pending(gang("a", 1, labelled(cpus(1), "zone", "a"))), "a",
			[]api.Reason{{Code: api.ReasonNeverFits, Text: "no ready node carries the label zone=a: n1, n2 lack it"}},
		},
		{
			"a group without bundles is told so",
			cluster(aNode("n1")).pending(gang("a", 0, api.Bundle{})), "a",
			[]api.Reason{{Code: api.ReasonBadSpec}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := decisionFor(Plan(tc.in, epoch), tc.of)
			if got.Bundles != nil {
				t.Fatalf("placed at %s", where(tc.in, got))
			}
			if len(got.Reasons) != len(tc.want) {
				t.Fatalf("reasons %+v, want %+v", got.Reasons, tc.want)
			}
			for i, want := range tc.want {
				checkReason(t, got.Reasons[i], want)
			}
		})
	}
}

func checkReason(t *testing.T, got, want api.Reason) {
	t.Helper()
	if got.Code != want.Code || !strings.HasPrefix(got.Text, want.Text) {
		t.Errorf("got %s %q, want %s %q", got.Code, got.Text, want.Code, want.Text)
	}
	if want.Blockers != nil && !slices.Equal(got.Blockers, want.Blockers) {
		t.Errorf("blockers %v, want %v", got.Blockers, want.Blockers)
	}
	for _, f := range [][3]string{
		{"need", got.Need, want.Need},
		{"have", got.Have, want.Have},
		{"missing", got.Missing, want.Missing},
		{"where", got.Where, want.Where},
		{"frees", got.Frees, want.Frees},
	} {
		if f[2] != "" && f[1] != f[2] {
			t.Errorf("%s %q, want %q", f[0], f[1], f[2])
		}
	}
}

func TestNever(t *testing.T) {
	eight := cluster(aNode("n1").gpus(4, 72).taken(0, 1, 2, 3), aNode("n2").gpus(4, 72).notReady("lost").sick(0))
	for _, tc := range []struct {
		name string
		in   *Snapshot
		r    requestBuilder
		want string // "" for could fit
	}{
		{"what fits an empty cluster is no never, whatever is held or ill now", eight, gang("a", 8, gpus(1)), ""},
		{"no nodes", cluster(), gang("a", 1, gpus(1)), ""},
		{"no bundles", eight, gang("a", 0, gpus(1)), ""},
		{"too many GPUs", eight, gang("a", 16, gpus(1)), "needs 16 GPUs, the cluster has 8; 8 missing"},
		{
			"STRICT_PACK names the largest node", eight, gang("a", 5, gpus(1)).strategy(api.StrictPack),
			"needs 5 GPUs on one node (STRICT_PACK); the largest node, n1, has 4 GPUs; 1 GPU missing",
		},
		{"STRICT_SPREAD wants more nodes", eight, gang("a", 3, gpus(1)).strategy(api.StrictSpread), "needs 3 nodes, one for each bundle (STRICT_SPREAD); 2 nodes could ever hold one; 1 node missing"},
		{"so many on each node want nodes that hold them", eight, gang("a", 9, gpus(1)).perNode(3), "needs 3 nodes with 3 GPUs on each (3 bundles); 2 nodes could ever hold that; 1 node missing"},
		{"so many on each node fit", eight, gang("a", 6, gpus(1)).perNode(3), ""},
		{"a bundle is larger than the largest node", eight, gang("a", 1, gpus(5)), "the bundle needs 5 GPUs on one node; the largest node, n1, has 4 GPUs; 1 GPU missing"},
		{"pieces", eight, gang("a", 3, gpus(3)), "needs 9 GPUs, the cluster has 8; 1 missing"},
		{"pieces that do not suit", cluster(aNode("n1").gpus(3, 72), aNode("n2").gpus(3, 72)), gang("a", 3, gpus(2)), "needs 3 bundles of 2 GPUs, each on one node; 2 would fit on empty nodes; 1 bundle missing"},
		{"too little memory", cluster(aNode("n1").memory(64)), gang("a", 1, api.Bundle{Resources: api.Resources{Memory: 96 * gib}}), "the bundle needs 96GiB memory on one node; the largest node, n1, has 64GiB memory; 32GiB memory missing"},
		{"an overflowing sum is too much, not little", eight, gang("a", 8, cpus(1<<50)), "each bundle needs"},
		{"memory of a device", eight, gang("a", 1, shareOf(500, 80)), "the bundle needs 500/1000 of a GPU (80GiB of its memory); no device has that much memory at all"},
		{"memory of a whole device", eight, gang("a", 1, api.Bundle{Resources: api.Resources{GPUs: 1, GPUMemory: 80 * gib}}), "the bundle needs 1 GPU (each with 80GiB usable) on one node; the largest node, n1, has 0 GPUs of that memory; 1 GPU missing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Never(tc.in, tc.r.request.Spec)
			if got == nil {
				if tc.want != "" {
					t.Fatalf("not refused, want %q", tc.want)
				}
				return
			}
			if tc.want == "" || !strings.HasPrefix(got.Text, tc.want) {
				t.Errorf("refused with %q, want %q", got.Text, tc.want)
			}
			if got.Code != api.ReasonNeverFits || got.Missing == "" || got.Frees == "" {
				t.Errorf("incomplete: %+v", got)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	res := func(r api.Resources) api.GroupSpec { return api.GroupSpec{Bundles: []api.Bundle{{Resources: r}}} }
	wishing := func(w api.Wishes) api.GroupSpec {
		return api.GroupSpec{Bundles: []api.Bundle{cpus(1)}, Wishes: w}
	}
	many := make(map[string]string)
	for i := range 33 {
		many[strings.Repeat("k", i+1)] = "v"
	}
	for _, tc := range []struct {
		name string
		spec api.GroupSpec
		want []string // pointers
	}{
		{"a good one", res(api.Resources{CPU: 1, Memory: 1, Share: 1000, GPUMemory: 1}), nil},
		{"no bundles", api.GroupSpec{}, []string{"/bundles"}},
		{"nothing asked", res(api.Resources{}), []string{"/bundles/0"}},
		{"negative", res(api.Resources{CPU: -1, Memory: -1, GPUs: -1}), []string{"/bundles/0/cpu", "/bundles/0/memory", "/bundles/0/gpus"}},
		{"too much", res(api.Resources{CPU: 1 << 62, Memory: 1 << 62, GPUs: 1 << 62}), []string{"/bundles/0/cpu", "/bundles/0/memory", "/bundles/0/gpus"}},
		{"whole devices and a share", res(api.Resources{GPUs: 1, Share: 1}), []string{"/bundles/0/share"}},
		{"more than a device", res(api.Resources{Share: 1001}), []string{"/bundles/0/share"}},
		{"memory of no device", res(api.Resources{CPU: 1, GPUMemory: 1}), []string{"/bundles/0/gpuMemory"}},
		{"too many bundles", api.GroupSpec{Bundles: make([]api.Bundle, MaxBundles+1)}, []string{"/bundles"}},
		{"unknown strategy", api.GroupSpec{Strategy: "PCAK", Bundles: []api.Bundle{cpus(1)}}, []string{"/strategy"}},
		{"so many on each node", gang("a", 4, gpus(1)).perNode(2).request.Spec, nil},
		{"fewer than none on each node", gang("a", 4, gpus(1)).perNode(-1).request.Spec, []string{"/perNode"}},
		{"no whole nodes", gang("a", 5, gpus(1)).perNode(2).request.Spec, []string{"/perNode"}},
		{"two on each node of their own", gang("a", 4, gpus(1)).perNode(2).strategy(api.StrictSpread).request.Spec, []string{"/perNode"}},
		{"two on each of two nodes on one node", gang("a", 4, gpus(1)).perNode(2).strategy(api.StrictPack).request.Spec, []string{"/perNode"}},
		{"different ones on each node", gang("a", 1, gpus(1)).and(gpus(2)).perNode(2).request.Spec, []string{"/perNode"}},
		{"roles", gang("a", 8, gpus(1)).roles(5, api.Role{Name: "a", Bundles: 6, Min: 2}, api.Role{Name: "b", Bundles: 2}).request.Spec, nil},
		{"a role of none", gang("a", 1, gpus(1)).roles(0, api.Role{Name: "a", Bundles: 1}, api.Role{Name: "b"}).request.Spec, []string{"/roles/1/bundles"}},
		{"a negative role", gang("a", 1, gpus(1)).roles(0, api.Role{Name: "a", Bundles: -1}).request.Spec, []string{"/roles/0/bundles", "/roles"}},
		{"a minimum above the role", gang("a", 2, gpus(1)).roles(0, api.Role{Name: "a", Bundles: 2, Min: 3}).request.Spec, []string{"/roles/0/min"}},
		{"roles of one name, and too few", gang("a", 3, gpus(1)).roles(0, api.Role{Name: "a", Bundles: 1}, api.Role{Name: "a", Bundles: 1}).request.Spec, []string{"/roles/1/name", "/roles"}},
		{"a minimum above the group", gang("a", 2, gpus(1)).roles(3).request.Spec, []string{"/min"}},
		{"sums of roles beyond an integer", gang("a", 2, gpus(1)).roles(0, api.Role{Name: "a", Bundles: 1 << 62}, api.Role{Name: "b", Bundles: 1 << 62}).request.Spec, []string{"/roles/0/bundles", "/roles/1/bundles", "/roles"}},
		{"a wait for no level", wishing(api.Wishes{LevelWait: new(unit.Duration)}), []string{"/levelWait"}},
		{"a negative wait for a level", wishing(api.Wishes{Level: "rack", LevelWait: new(unit.Duration(-1))}), []string{"/levelWait"}},
		{"whole nodes for a share", api.GroupSpec{Bundles: []api.Bundle{share(500)}, Wishes: api.Wishes{WholeNodes: true}}, []string{"/wholeNodes"}},
		{"rules that contradict each other", wishing(api.Wishes{Where: []api.LabelRule{{Key: "a", Op: "in", Values: []string{"x"}}, {Key: "a", Op: "notin", Values: []string{"x", "y"}}}}), []string{"/where/1"}},
		{"rules without values, of no kind", wishing(api.Wishes{Where: []api.LabelRule{{Key: "", Op: "="}, {Key: "b", Op: "~"}, {Key: "c", Op: "in"}}}), []string{"/where/0/key", "/where/0/values", "/where/1/op", "/where/2/values"}},
		{"a negative longest wait", wishing(api.Wishes{MaxWait: -1}), []string{"/maxWait"}},
		{"a deadline in the year 1", wishing(api.Wishes{Deadline: time.Date(1, 2, 3, 0, 0, 0, 0, time.UTC)}), []string{"/deadline"}},
		{"times and uses", wishing(api.Wishes{TimeLimit: 2, Estimate: 1, Uses: api.Amounts{{Of: "storage", N: 1}}, Reservation: "r"}), nil},
		{"negative times", wishing(api.Wishes{TimeLimit: -1, Estimate: -1}), []string{"/timeLimit", "/estimate"}},
		{"an estimate beyond the time limit", wishing(api.Wishes{TimeLimit: 1, Estimate: 2}), []string{"/estimate"}},
		{"uses of nothing", wishing(api.Wishes{Uses: api.Amounts{{Of: "a", N: 0}, {Of: "b", N: -1}}}), []string{"/uses/a", "/uses/b"}},
		{"uses twice, and without a name", wishing(api.Wishes{Uses: api.Amounts{{Of: "", N: 1}, {Of: "b", N: 1}, {Of: "b", N: 1}}}), []string{"/uses", "/uses/b"}},
		{"a reservation with an escape", wishing(api.Wishes{Reservation: "a\x1b"}), []string{"/reservation"}},
		{"long name", api.GroupSpec{Name: strings.Repeat("x", 129), Bundles: []api.Bundle{cpus(1)}}, []string{"/name"}},
		{"name with an escape", api.GroupSpec{Name: "a\x1b[2J", Bundles: []api.Bundle{cpus(1)}}, []string{"/name"}},
		{"priority", api.GroupSpec{Priority: 1 << 40, Bundles: []api.Bundle{cpus(1)}}, []string{"/priority"}},
		{"too many labels", api.GroupSpec{Bundles: []api.Bundle{{Resources: api.Resources{CPU: 1}, Labels: many}}}, []string{"/bundles/0/labels"}},
		{"empty label", api.GroupSpec{Bundles: []api.Bundle{labelled(cpus(1), "", "v")}}, []string{"/bundles/0/labels"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, e := range Validate(tc.spec) {
				if e.Detail == "" {
					t.Errorf("%s has no detail", e.Pointer)
				}
				got = append(got, e.Pointer)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("wrong fields %v, want %v", got, tc.want)
			}
		})
	}
	if n := len(Validate(api.GroupSpec{Bundles: make([]api.Bundle, MaxBundles)})); n != maxFieldErrors {
		t.Errorf("%d errors, want them bounded to %d", n, maxFieldErrors)
	}
}
