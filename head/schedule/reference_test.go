package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// The reference cluster as a whole: four nodes of two devices of 72 GiB usable, and one
// without any.
func referenceCluster() *Snapshot {
	var nodes []nodeBuilder
	for _, name := range []string{"A", "B", "C", "D"} {
		nodes = append(nodes, aNode(name).cpu(32_000).memory(128).gpus(2, 72))
	}
	s := cluster(append(nodes, aNode("P").cpu(16_000).memory(64))...).link("B", "C", true, time.Minute)
	s.Policy.Order = OrderFIFO
	s.queues(
		with(guaranteed(tenant("serve"), 2), func(q *api.Queue) { q.Limit = q.Guaranteed }), with(guaranteed(tenant("train"), 4), func(q *api.Queue) { q.Limit = q.Guaranteed }),
		with(guaranteed(tenant("batch"), 2), func(q *api.Queue) { q.Limit = q.Guaranteed }), tenant("eval"))
	s.Reservations = []*api.Reservation{{Name: "serving", Tenant: "serve", Nodes: []string{"A"}, Start: epoch.Add(-time.Hour), End: epoch.Add(100 * time.Hour)}}
	return s
}

// referenceWork is what it runs.
func referenceWork(name string) requestBuilder {
	of := func(n int, cores unit.MilliCPU, memory, ofGPU unit.Bytes) requestBuilder {
		b := api.Bundle{Resources: api.Resources{CPU: 1000 * cores, Memory: memory * gib, GPUMemory: ofGPU * gib, GPUs: int64(min(1, ofGPU))}}
		return gang(name, n, b).of(name, "").runs(time.Hour)
	}
	switch name {
	case "serve":
		return of(2, 4, 12, 48).in("serving")
	case "train":
		return of(4, 8, 32, 64).whole()
	case "batch":
		return of(2, 4, 16, 24).preemptible()
	}
	return of(1, 8, 16, 0)
}

// serve on A, train on B and C, batch on D, eval on P, with so many cores and so much memory
// used on each.
func TestReferenceClusterPlacement(t *testing.T) {
	s := referenceCluster().pending(referenceWork("serve"), referenceWork("train"), referenceWork("batch"), referenceWork("eval"))
	ds := Plan(s, epoch)
	if got, want := outcomes(s, ds), "serve:A train:B+C batch:D eval:P"; got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	used := map[string][2]int64{}
	for _, r := range s.Pending {
		for i, b := range decisionFor(ds, r.ID).Bundles {
			u := used[b.Node]
			used[b.Node] = [2]int64{u[0] + int64(r.Spec.Bundles[i].CPU)/1000, u[1] + int64(r.Spec.Bundles[i].Memory)/gib}
		}
	}
	for node, want := range map[string][2]int64{"A": {8, 24}, "B": {16, 64}, "C": {16, 64}, "D": {8, 32}, "P": {8, 16}} {
		if got := used["id-"+node]; got != want {
			t.Errorf("%s: %d cores and %d GiB are used, want %d", node, got[0], got[1], want)
		}
	}
}

// What the reference cluster refuses, each for its own reason.
func TestReferenceClusterRefusals(t *testing.T) {
	// What runs: train on B and C.
	busy := func() (*Snapshot, Holder) {
		s := referenceCluster()
		h := Holder{Group: "pg-train", Name: "train", Spec: new(referenceWork("train").request.Spec), GPUs: 4, CPU: 32_000, Memory: 128 * gib, Started: epoch, Ends: epoch.Add(45 * time.Minute)}
		for _, ni := range []int{1, 2} {
			n := s.Own(ni)
			h.Nodes = append(h.Nodes, n.ID)
			for d := range n.GPUs {
				n.GPUs[d].Share, n.GPUs[d].Free = 0, 0
				n.FreeCPU, n.FreeMemory = n.FreeCPU-8000, n.FreeMemory-32*gib
				h.Bundles = append(h.Bundles, Held{Node: n.ID, CPU: 8000, Memory: 32 * gib, Devices: []string{n.GPUs[d].UUID}})
			}
		}
		return s, h
	}
	// serves: serve has both devices of A.
	serves := func(s *Snapshot) *Snapshot {
		n := s.Own(0)
		for d := range n.GPUs {
			n.GPUs[d].Share, n.GPUs[d].Free = 0, 0
		}
		return s.heldBy(until(holder("serve", *n, 0, 1), 100*time.Hour))
	}
	share := shareOf(500, 64)
	for _, tc := range []struct {
		name  string
		in    func() (*Snapshot, requestBuilder)
		never bool // refused at submission
		code  api.ReasonCode
		why   string
	}{
		{"two 64-GiB workers on one device", func() (*Snapshot, requestBuilder) {
			s := cluster(aNode("D").gpus(1, 72))
			return s, gang("x", 2, share)
		}, true, api.ReasonNeverFits, "2 bundles of 500/1000 of a GPU (64GiB of its memory), each on one device; 1 would fit on empty nodes"},
		{"train on B0, B1, C0 and D0", func() (*Snapshot, requestBuilder) {
			s := serves(referenceCluster())
			for _, at := range [][2]int{{2, 1}, {3, 1}} { // C1 and D1 are held
				g := &s.Own(at[0]).GPUs[at[1]]
				g.Share, g.Free = 0, 0
			}
			return s, referenceWork("train")
		}, false, api.ReasonFit, "takes whole nodes"},
		{"batch on a device that train holds", func() (*Snapshot, requestBuilder) {
			s, h := busy()
			n := s.Own(3)
			n.Ready, n.Why = false, "lost"
			s.Reservations = nil
			return serves(s).heldBy(h), referenceWork("batch")
		}, false, api.ReasonFit, "held by serve, train"},
		{"serve on a free device outside A", func() (*Snapshot, requestBuilder) {
			return serves(referenceCluster()), referenceWork("serve")
		}, false, api.ReasonReservation, "serving"},
		{"train when the check of B–C failed", func() (*Snapshot, requestBuilder) {
			s := serves(referenceCluster())
			s.Links = nil
			s.Nodes = slices.Delete(slices.Clone(s.Nodes), 3, 4) // D holds batch
			return s.link("B", "C", false, time.Minute), referenceWork("train")
		}, false, api.ReasonHealth, "the link B–C is not healthy (loses packets)"},
		{"train when the word on B–C is stale", func() (*Snapshot, requestBuilder) {
			s := serves(referenceCluster())
			s.Links = nil
			s.Nodes = slices.Delete(slices.Clone(s.Nodes), 3, 4)
			return s.link("B", "C", true, time.Hour), referenceWork("train")
		}, false, api.ReasonHealth, "the link B–C was checked last 1h0m0s ago"},
		{"a fifth device for train", func() (*Snapshot, requestBuilder) {
			s, h := busy()
			return s.heldBy(h), gang("x", 1, gpus(1)).of("train", "").runs(time.Hour)
		}, false, api.ReasonQuota, "tenant train guarantees 4 GPUs, 4 in use by train (4); needs 1 GPU, 1 missing"},
		{"five devices for train at once", func() (*Snapshot, requestBuilder) {
			return referenceCluster(), gang("x", 5, gpus(1)).of("train", "")
		}, true, api.ReasonNeverFits, "tenant train guarantees 4 GPUs, 0 in use; the request asks for 5 GPUs"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, r := tc.in()
			never := Never(s, r.request.Spec)
			if (never != nil) != tc.never {
				t.Fatalf("refused at once: %+v", never)
			}
			d := Plan(s.pending(r), epoch)[0]
			if d.Bundles != nil || len(d.Reasons) == 0 {
				t.Fatalf("placed at %s; %+v", where(s, d), d.Reasons)
			}
			said := d.Reasons
			if never != nil {
				said = []api.Reason{*never}
			}
			i := slices.IndexFunc(said, func(x api.Reason) bool { return x.Code == tc.code && strings.Contains(x.Text, tc.why) })
			if i < 0 || tc.code == api.ReasonQuota && i != 0 {
				t.Errorf("no reason %s with %q first in %s", tc.code, tc.why, fmt.Sprint(said))
			}
		})
	}
}

// Cases of public bug reports of other schedulers, as far as one cycle decides them.
func TestReports(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   func() *Snapshot
		want string // outcomes
		told []string
	}{
		{"a class of devices where it fits now goes before one that it would have to wait for", func() *Snapshot {
			h, x := aNode("h").gpus(2, 72).model("H"), aNode("x").gpus(2, 72).model("X")
			return cluster(h.taken(0, 1), x).heldBy(keeps(runs("kept", &h, 0, 0, 1))).pending(gang("a", 2, gpus(1)).priority(5).runs(time.Hour))
		}, "a:x", nil},
		{"and before one that others would have to leave", func() *Snapshot {
			h, x := aNode("h").gpus(2, 72).model("H"), aNode("x").gpus(2, 72).model("X")
			low := runs("low", &h, 0, 0, 1)
			return cluster(h, x).heldBy(low).pending(gang("a", 2, gpus(1)).priority(5).runs(time.Hour))
		}, "a:x", nil},
		{"a level that is preferred where others would have to leave is waited for no longer than it says", func() *Snapshot {
			ns := nodesOf("n", 4, 1)
			for i, n := range ns {
				*n = n.label("rack", fmt.Sprintf("r%d", i/2))
			}
			a, b := runs("a", ns[0], 0, 0), runs("b", ns[2], 0, 0)
			s := clusterOf(ns).heldBy(keeps(a), keeps(b)).pending(gang("x", 2, gpus(1)).preferred("rack", time.Minute, time.Hour).runs(time.Hour))
			return s.levels("rack")
		}, "x:n1+n3", nil},
		{"two jobs of separate racks in the way of a third: one of them leaves", func() *Snapshot {
			ns := nodesOf("n", 8, 1)
			for i, n := range ns {
				*n = n.label("rack", fmt.Sprintf("r%d", i/4))
			}
			s := clusterOf(ns).heldBy(runs("a", ns[1], 0, 0), runs("b", ns[6], 0, 0)).pending(gang("x", 4, gpus(1)).level("rack").priority(5).runs(time.Hour))
			return s.levels("rack")
		}, "x:+23h", []string{"a"}},
		{"a role of no bundles ends no loop and starts nothing", func() *Snapshot {
			r := gang("x", 2, gpus(1)).roles(1, api.Role{Name: "none"}, api.Role{Name: "w", Bundles: 2, Min: 1}, api.Role{Name: "less", Bundles: -3, Min: -9})
			return cluster(aNode("n").gpus(1, 72)).pending(r.runs(time.Hour), gang("next", 1, gpus(1)).runs(time.Hour))
		}, "x:n next:+1h", nil},
		{"what stands in for a lost node is taken once in a cycle", func() *Snapshot {
			n1, n2 := aNode("n1").gpus(1, 72), aNode("n2").gpus(1, 72)
			return cluster(n1, n2).pending(gang("moves", 2, gpus(1)).keep("id-n1").runs(time.Hour), gang("new", 1, gpus(1)).runs(time.Hour))
		}, "moves:n1+n2 new:+1h", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tc.in()
			s.Policy.Order = OrderFIFO
			r := plan(s)
			if got := outcomes(s, r.All()); got != tc.want || !slices.Equal(victimNames(r), tc.told) {
				t.Errorf("got  %s, %v leave\nwant %s, %v", got, victimNames(r), tc.want, tc.told)
			}
		})
	}
}
