package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// where prints a decision as "n1:0,1 n2:0" by bundle, or "waits".
func where(s *Snapshot, d Decision) string {
	if d.Bundles == nil {
		return "waits"
	}
	var parts []string
	for _, b := range d.Bundles {
		part := strings.TrimPrefix(b.Node, "id-")
		for i, uuid := range b.Devices {
			sep := ","
			if i == 0 {
				sep = ":"
			}
			part += sep + uuid[strings.LastIndex(uuid, "-")+1:]
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, " ")
}

func TestPlan(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   *Snapshot
		want map[string]string
	}{
		{
			"four GPUs of one node go to four bundles in order",
			cluster(aNode("n1").gpus(4, 72)).pending(gang("a", 4, gpus(1))),
			map[string]string{"a": "n1:0 n1:1 n1:2 n1:3"},
		},
		{
			"a gang that lacks one device gets none (P1)",
			cluster(aNode("n1").gpus(4, 72)).pending(gang("a", 5, gpus(1))),
			map[string]string{"a": "waits"},
		},
		{
			"of two gangs that each need most of the cluster one runs whole",
			cluster(aNode("n1").gpus(2, 72), aNode("n2").gpus(2, 72)).pending(gang("a", 3, gpus(1)), gang("b", 3, gpus(1))),
			map[string]string{"a": "n1:0 n1:1 n2:0", "b": "waits"},
		},
		{
			"an impossible request first does not hold up the next",
			cluster(aNode("n1").gpus(2, 72)).pending(gang("a", 1, gpus(99)).priority(9), gang("b", 1, gpus(1))),
			map[string]string{"a": "waits", "b": "n1:0"},
		},
		{
			"higher priority goes first, then the older",
			cluster(aNode("n1").gpus(2, 72)).pending(gang("old", 1, gpus(1)), gang("new", 1, gpus(1)), gang("urgent", 1, gpus(1)).priority(1)),
			map[string]string{"urgent": "n1:0", "old": "n1:1", "new": "waits"},
		},
		{
			"PACK takes the fewest nodes and the tightest last one",
			cluster(aNode("n1").gpus(8, 72), aNode("n2").gpus(2, 72), aNode("n3").gpus(4, 72)).pending(gang("a", 10, gpus(1))),
			map[string]string{"a": "n1:0 n1:1 n1:2 n1:3 n1:4 n1:5 n1:6 n1:7 n2:0 n2:1"},
		},
		{
			"PACK leaves the large node whole for a small request",
			cluster(aNode("n1").gpus(8, 72), aNode("n2").gpus(2, 72)).pending(gang("a", 2, gpus(1))),
			map[string]string{"a": "n2:0 n2:1"},
		},
		{
			"so many on each node are neither more nor fewer",
			cluster(aNode("n1").gpus(8, 72), aNode("n2").gpus(2, 72), aNode("n3").gpus(3, 72), aNode("n4").gpus(1, 72)).pending(gang("a", 4, gpus(1)).perNode(2)),
			map[string]string{"a": "n2:0 n2:1 n3:0 n3:1"},
		},
		{
			"so many on each node wait where one node holds them all",
			cluster(aNode("n1").gpus(8, 72), aNode("n2").gpus(1, 72)).pending(gang("a", 4, gpus(1)).perNode(2)),
			map[string]string{"a": "waits"},
		},
		{
			"halves of devices count, so many on each node",
			cluster(aNode("n1").gpus(1, 72), aNode("n2").gpus(1, 72).leaving(0, 500), aNode("n3").gpus(1, 72)).pending(gang("a", 4, share(500)).perNode(2)),
			map[string]string{"a": "n1:0 n1:0 n3:0 n3:0"},
		},
		{
			"PACK of different bundles finds the one node that holds all",
			cluster(aNode("n1").gpus(2, 72).cpu(2_000), aNode("n2").gpus(2, 72).cpu(9_000)).pending(gang("a", 2, gpus(1)).and(cpus(8))),
			map[string]string{"a": "n2:0 n2:1 n2"},
		},
		{
			"PACK of different bundles does not let the large one block the pair",
			// Greedy by size would put 5 on n1 and then 4 nowhere with 2.
			cluster(aNode("n1").cpu(6_000), aNode("n2").cpu(5_000)).pending(gang("a", 1, cpus(5)).and(cpus(4), cpus(2))),
			map[string]string{"a": "n2 n1 n1"},
		},
		{
			"SPREAD uses every node before any twice",
			cluster(aNode("n1").gpus(4, 72), aNode("n2").gpus(4, 72), aNode("n3").gpus(4, 72)).pending(gang("a", 4, gpus(1)).strategy(api.Spread)),
			map[string]string{"a": "n1:0 n1:1 n2:0 n3:0"},
		},
		{
			"SPREAD on one node is still placed",
			cluster(aNode("n1").gpus(4, 72)).pending(gang("a", 3, gpus(1)).strategy(api.Spread)),
			map[string]string{"a": "n1:0 n1:1 n1:2"},
		},
		{
			"STRICT_PACK waits though the cluster has enough",
			cluster(aNode("n1").gpus(2, 72), aNode("n2").gpus(2, 72), aNode("n3").gpus(4, 72).taken(0)).pending(gang("a", 4, gpus(1)).strategy(api.StrictPack)),
			map[string]string{"a": "waits"},
		},
		{
			"STRICT_PACK takes the node that fits best",
			cluster(aNode("n1").gpus(8, 72), aNode("n2").gpus(4, 72)).pending(gang("a", 4, gpus(1)).strategy(api.StrictPack)),
			map[string]string{"a": "n2:0 n2:1 n2:2 n2:3"},
		},
		{
			"STRICT_SPREAD gives each bundle its own node",
			cluster(aNode("n1").gpus(4, 72), aNode("n2").gpus(4, 72)).pending(gang("a", 2, gpus(1)).strategy(api.StrictSpread)),
			map[string]string{"a": "n1:0 n2:0"},
		},
		{
			"STRICT_SPREAD waits for a third node",
			cluster(aNode("n1").gpus(4, 72), aNode("n2").gpus(4, 72)).pending(gang("a", 3, gpus(1)).strategy(api.StrictSpread)),
			map[string]string{"a": "waits"},
		},
		{
			"STRICT_SPREAD moves a flexible bundle off the node that another needs",
			cluster(aNode("n1").gpus(1, 72).cpu(4_000).label("disk", "ssd"), aNode("n2").cpu(4_000).label("disk", "hdd")).
				pending(gang("a", 1, cpus(1)).and(labelled(cpus(1), "disk", "hdd")).strategy(api.StrictSpread)),
			map[string]string{"a": "n1 n2"},
		},
		{
			"STRICT_SPREAD moves a bundle on along a chain",
			cluster(aNode("n1").label("a", "1").label("b", "1").label("c", "1"), aNode("n2").label("a", "1"), aNode("n3").label("b", "1").label("c", "1")).
				pending(gang("x", 1, labelled(cpus(1), "a", "1")).and(labelled(cpus(1), "b", "1"), labelled(cpus(1), "c", "1")).strategy(api.StrictSpread)),
			map[string]string{"x": "n2 n3 n1"},
		},
		{
			"SPREAD moves a bundle on along a chain",
			cluster(aNode("n1").label("a", "1").label("b", "1").label("c", "1"), aNode("n2").label("a", "1"), aNode("n3").label("b", "1").label("c", "1")).
				pending(gang("x", 1, labelled(cpus(1), "c", "1")).and(labelled(cpus(1), "b", "1"), labelled(cpus(1), "a", "1")).strategy(api.Spread)),
			map[string]string{"x": "n1 n3 n2"},
		},
		{
			"a leader and four pairs on hosts of 2, 4 and 3",
			cluster(aNode("h2").cpu(2_000), aNode("h4").cpu(4_000), aNode("h3").cpu(3_000)).
				pending(gang("a", 1, cpus(1)).and(cpus(2), cpus(2), cpus(2), cpus(2))),
			map[string]string{"a": "h3 h2 h3 h4 h4"},
		},
		{
			"a whole device is not given while a share of it is held (P2)",
			cluster(aNode("n1").gpus(2, 72)).pending(gang("a", 1, share(500)), gang("b", 2, gpus(1)), gang("c", 1, gpus(1))),
			map[string]string{"a": "n1:0", "b": "waits", "c": "n1:1"},
		},
		{
			"shares fill a started device before a new one",
			cluster(aNode("n1").gpus(2, 72)).pending(gang("a", 1, share(300)), gang("b", 1, share(300)), gang("c", 1, share(500))),
			map[string]string{"a": "n1:0", "b": "n1:0", "c": "n1:1"},
		},
		{
			"two 48 GiB halves do not fit on 72 GiB",
			cluster(aNode("n1").gpus(1, 72)).pending(gang("a", 2, shareOf(500, 48))),
			map[string]string{"a": "waits"},
		},
		{
			"shares of different sizes find the one way to fit",
			// Best fit alone puts 400 beside nothing on the first device and ends short.
			cluster(aNode("n1").gpus(2, 72).leaving(0, 500).leaving(1, 600)).
				pending(gang("a", 1, share(400)).and(share(300), share(200), share(200))),
			map[string]string{"a": "n1:1 n1:0 n1:0 n1:1"},
		},
		{
			"ten shares of 600 on eight cards: eight run",
			cluster(aNode("n1").gpus(8, 72)).pending(
				gang("00", 1, share(600)), gang("01", 1, share(600)), gang("02", 1, share(600)), gang("03", 1, share(600)),
				gang("04", 1, share(600)), gang("05", 1, share(600)), gang("06", 1, share(600)), gang("07", 1, share(600)),
				gang("08", 1, share(600)), gang("09", 1, share(600)),
			),
			map[string]string{"00": "n1:0", "07": "n1:7", "08": "waits", "09": "waits"},
		},
		{
			"a device that is too small by memory is passed over",
			cluster(aNode("n1").gpus(1, 40), aNode("n2").gpus(1, 72)).
				pending(gang("a", 1, api.Bundle{Resources: api.Resources{GPUs: 1, GPUMemory: 64 * gib}})),
			map[string]string{"a": "n2:0"},
		},
		{
			"an unhealthy device is offered to nobody",
			cluster(aNode("n1").gpus(2, 72).sick(0)).pending(gang("a", 1, gpus(1)), gang("b", 1, gpus(1))),
			map[string]string{"a": "n1:1", "b": "waits"},
		},
		{
			"a node that is not ready takes nothing",
			cluster(aNode("n1").notReady("silent for 4 s"), aNode("n2")).pending(gang("a", 1, cpus(1))),
			map[string]string{"a": "n2"},
		},
		{
			"labels and pools restrict",
			cluster(aNode("n1").label("zone", "a"), aNode("n2").label("zone", "b").pool("p")).
				pending(gang("a", 1, labelled(cpus(1), "zone", "b")), gang("b", 1, cpus(1)).pool("p"), gang("c", 1, labelled(cpus(1), "zone", "a")).pool("p")),
			map[string]string{"a": "n2", "b": "n2", "c": "waits"},
		},
		{
			"work without GPUs keeps off GPU nodes",
			cluster(aNode("n1").gpus(8, 72), aNode("n2")).pending(gang("a", 2, cpus(1))),
			map[string]string{"a": "n2 n2"},
		},
		{
			"a gang that lost a node stays where the rest of it is",
			cluster(aNode("n1").gpus(2, 72), aNode("n2").gpus(4, 72), aNode("n3").gpus(2, 72)).
				pending(gang("a", 4, gpus(1)).keep("id-n3")),
			map[string]string{"a": "n1:0 n1:1 n3:0 n3:1"},
		},
		{
			"nodes are ordered the way people number them",
			cluster(aNode("n10").gpus(1, 72), aNode("n9").gpus(1, 72)).pending(gang("a", 2, gpus(1))),
			map[string]string{"a": "n9:0 n10:0"},
		},
		{
			"many different bundles fill nodes one after the other",
			cluster(aNode("n1").gpus(4, 72).cpu(10_000), aNode("n2").gpus(4, 72).cpu(10_000)).
				pending(gang("a", 4, gpus(1)).and(cpus(2), cpus(2), cpus(2), cpus(2), cpus(2))),
			map[string]string{"a": "n1:0 n1:1 n1:2 n1:3 n1 n1 n1 n1 n1"},
		},
		{
			"reference cluster: train takes two complete nodes, batch the third",
			cluster(aNode("B").gpus(2, 72), aNode("C").gpus(2, 72), aNode("D").gpus(2, 72), aNode("P").cpu(16_000).memory(64)).
				pending(
					gang("train", 2, api.Bundle{Resources: api.Resources{CPU: 16_000, Memory: 64 * gib, GPUs: 2}}).strategy(api.StrictSpread),
					gang("batch", 2, api.Bundle{Resources: api.Resources{CPU: 4_000, Memory: 16 * gib, GPUs: 1}}),
					gang("eval", 1, api.Bundle{Resources: api.Resources{CPU: 8_000, Memory: 16 * gib}}),
				),
			map[string]string{"train": "B:0,1 C:0,1", "batch": "D:0 D:1", "eval": "P"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Plan(tc.in, epoch)
			if len(got) != len(tc.in.Pending) {
				t.Fatalf("%d decisions for %d requests", len(got), len(tc.in.Pending))
			}
			for id, want := range tc.want {
				d := decisionFor(got, id)
				if at := where(tc.in, d); at != want {
					t.Errorf("%s: %s, want %s; reasons %+v", id, at, want, d.Reasons)
				}
				if d.Bundles == nil && len(d.Reasons) == 0 {
					t.Errorf("%s waits without a reason (P7)", id)
				}
			}
		})
	}
}

// Twenty interleavings of two gangs that each need the whole cluster: one runs whole,
// the other holds nothing and names it.
func TestTwoGangsOfWholeCluster(t *testing.T) {
	s := &Snapshot{}
	for i := range 100 {
		s.Nodes = append(s.Nodes, new(aNode(fmt.Sprintf("n%d", i)).gpus(1, 72).node))
	}
	for i := range 20 {
		s.Pending = nil
		s.pending(gang("A", 100, gpus(1)), gang("B", 100, gpus(1)))
		if i%2 == 1 {
			slices.Reverse(s.Pending)
		}
		ds := Plan(s, epoch)
		a, b := decisionFor(ds, "A"), decisionFor(ds, "B")
		if len(a.Bundles) != 100 || b.Bundles != nil {
			t.Fatalf("A holds %d, B holds %d bundles", len(a.Bundles), len(b.Bundles))
		}
		if !slices.Contains(b.Reasons[0].Blockers, "A") {
			t.Errorf("B's reason does not name A: %+v", b.Reasons[0])
		}
		s.Nodes = append(s.Nodes[7:], s.Nodes[:7]...)
	}
}
