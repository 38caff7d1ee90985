package schedule

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

func (b requestBuilder) level(name string) requestBuilder { b.request.Spec.Level = name; return b }

// preferred: the level is waited for, for so long, and the request has waited for waited.
func (b requestBuilder) preferred(name string, wait, waited time.Duration) requestBuilder {
	b.request.Spec.Level, b.request.Spec.LevelWait = name, new(unit.Duration(wait))
	b.request.Since = epoch.Add(-waited)
	return b
}

func (b requestBuilder) whole() requestBuilder { b.request.Spec.WholeNodes = true; return b }

func (b requestBuilder) where(key, op string, values ...string) requestBuilder {
	b.request.Spec.Where = append(b.request.Spec.Where, api.LabelRule{Key: key, Op: op, Values: values})
	return b
}

func (s *Snapshot) levels(names ...string) *Snapshot {
	for _, n := range names {
		s.Levels = append(s.Levels, api.Level{Name: n, Label: n})
	}
	return s
}

func (s *Snapshot) link(a, b string, healthy bool, age time.Duration) *Snapshot {
	s.Links = append(s.Links, &api.Link{A: a, B: b, Healthy: healthy, Checked: epoch.Add(-age), Why: "loses packets"})
	return s
}

// rack makes n nodes of a rack: r1-0, r1-1 …
func rack(name string, n, devices int) []nodeBuilder {
	var out []nodeBuilder
	for i := range n {
		out = append(out, aNode(fmt.Sprintf("%s-%d", name, i)).gpus(devices, 72).label("rack", name))
	}
	return out
}

func join(parts ...[]nodeBuilder) *Snapshot {
	var all []nodeBuilder
	for _, p := range parts {
		all = append(all, p...)
	}
	return cluster(all...)
}

func TestTopology(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   *Snapshot
		want map[string]string
		why  string // in the first reason of the first request, if it waits
	}{
		{
			"the domain is chosen for the whole gang at once",
			join(rack("b1", 2, 1), rack("b2", 4, 1)).levels("rack").pending(gang("a", 4, gpus(1)).level("rack")),
			map[string]string{"a": "b2-0:0 b2-1:0 b2-2:0 b2-3:0"},
			"",
		},
		{
			"the domain that is filled best keeps the other whole",
			join(rack("r1", 4, 1), rack("r2", 2, 1)).levels("rack").pending(gang("a", 2, gpus(1)).level("rack")),
			map[string]string{"a": "r2-0:0 r2-1:0"},
			"",
		},
		{
			"a required level is waited for",
			join(rack("r1", 2, 1), rack("r2", 2, 1)).levels("rack").pending(gang("a", 3, gpus(1)).level("rack")),
			map[string]string{"a": "waits"},
			"within one rack",
		},
		{
			"a preferred level is waited for, a while",
			join(rack("r1", 2, 1), rack("r2", 2, 1)).levels("rack").pending(gang("a", 3, gpus(1)).preferred("rack", time.Minute, 59*time.Second)),
			map[string]string{"a": "waits"},
			"prefers one rack",
		},
		{
			"and then as few domains as possible",
			join(rack("r1", 2, 1), rack("r2", 2, 1), rack("r3", 2, 1)).levels("rack").pending(gang("a", 4, gpus(1)).preferred("rack", time.Minute, time.Minute)),
			map[string]string{"a": "r1-0:0 r1-1:0 r2-0:0 r2-1:0"},
			"",
		},
		{
			"the last of several domains is filled best",
			join(rack("r1", 3, 1), rack("r2", 4, 1), rack("r3", 2, 1)).levels("rack").pending(gang("a", 6, gpus(1)).preferred("rack", 0, 0)),
			map[string]string{"a": "r2-0:0 r2-1:0 r2-2:0 r2-3:0 r3-0:0 r3-1:0"},
			"",
		},
		{
			"several racks are of one block where one block holds the gang",
			cluster(
				aNode("n1").gpus(1, 72).label("block", "b1").label("rack", "r1"), aNode("n2").gpus(1, 72).label("block", "b1").label("rack", "r1"),
				aNode("n3").gpus(1, 72).label("block", "b2").label("rack", "r1"), aNode("n4").gpus(1, 72).label("block", "b2").label("rack", "r2"),
				aNode("n5").gpus(1, 72).label("block", "b2").label("rack", "r3"),
			).levels("block", "rack").pending(gang("a", 3, gpus(1))),
			map[string]string{"a": "n3:0 n4:0 n5:0"},
			"",
		},
		{
			"racks of one name in two blocks are two racks",
			cluster(
				aNode("n1").gpus(1, 72).label("block", "b1").label("rack", "r1"), aNode("n2").gpus(1, 72).label("block", "b2").label("rack", "r1"),
			).levels("block", "rack").pending(gang("a", 2, gpus(1)).level("rack")),
			map[string]string{"a": "waits"},
			"within one rack",
		},
		{
			"a node's name that is a value of a level is no domain",
			cluster(
				aNode("b1").gpus(1, 72).label("block", "b1").label("rack", "b1"), aNode("n2").gpus(1, 72).label("block", "b1").label("rack", "b1"),
			).levels("block", "rack").pending(gang("a", 2, gpus(1)).level("rack"), gang("b", 1, gpus(1)).level("block")),
			map[string]string{"a": "b1:0 n2:0", "b": "waits"},
			"",
		},
		{
			"an unknown level never means anywhere",
			join(rack("r1", 2, 1)).levels("rack").pending(gang("a", 1, gpus(1)).level("rck")),
			map[string]string{"a": "waits"},
			`there is no level "rck"; the levels are rack`,
		},
		{
			"nodes that lack the label are named",
			cluster(
				aNode("n1").gpus(1, 72).label("rack", "r1"), aNode("n2").gpus(1, 72), aNode("n3").gpus(1, 72),
			).levels("rack").pending(gang("a", 2, gpus(1)).level("rack")),
			map[string]string{"a": "waits"},
			"n2, n3 are in no rack for want of the label rack",
		},
		{
			"one node for all is in one domain by itself",
			join(rack("r1", 1, 4)).levels("rack").pending(gang("a", 4, gpus(1)).level("rack").strategy(api.StrictPack)),
			map[string]string{"a": "r1-0:0 r1-0:1 r1-0:2 r1-0:3"},
			"",
		},
		{
			"different bundles share a domain",
			cluster(
				aNode("n1").gpus(2, 72).cpu(1_000).label("rack", "r1"), aNode("n2").cpu(1_000).label("rack", "r1"),
				aNode("n3").gpus(2, 72).cpu(1_000).label("rack", "r2"), aNode("n4").cpu(32_000).label("rack", "r2"),
			).levels("rack").pending(gang("a", 1, gpus(2)).and(cpus(32)).level("rack")),
			map[string]string{"a": "n3:0,1 n4"},
			"",
		},
		{
			"two gangs want one node of a cycle: one wins, the other is looked at again",
			join(rack("r1", 2, 8)).levels("rack").pending(gang("a", 2, gpus(8)), gang("b", 1, gpus(8))),
			map[string]string{"a": "r1-0:0,1,2,3,4,5,6,7 r1-1:0,1,2,3,4,5,6,7", "b": "waits"},
			"",
		},
		{
			"rules on labels: in, not in, not equal",
			cluster(aNode("n1").label("zone", "a"), aNode("n2").label("zone", "b"), aNode("n3").label("zone", "c"), aNode("n4")).
				pending(
					gang("a", 1, cpus(1)).where("zone", "in", "b", "c").where("zone", "!=", "b"),
					gang("b", 1, cpus(1)).where("zone", "notin", "a", "b", "c"),
					gang("c", 1, cpus(1)).where("zone", "=", "b"),
					gang("d", 1, cpus(1)).where("zone", "in", "x"),
				),
			map[string]string{"a": "n3", "b": "n4", "c": "n2", "d": "waits"},
			"",
		},
		{
			"whole nodes are those of which nothing is held",
			cluster(aNode("n1").gpus(2, 72).taken(0), aNode("n2").gpus(2, 72), aNode("n3").gpus(2, 72).leaving(0, 500), aNode("n4").gpus(2, 72)).
				pending(gang("a", 4, gpus(1)).whole()),
			map[string]string{"a": "n2:0 n2:1 n4:0 n4:1"},
			"",
		},
		{
			"four free devices are not two complete nodes",
			cluster(aNode("B").gpus(2, 72), aNode("C").gpus(2, 72).taken(1), aNode("D").gpus(2, 72).taken(1)).pending(gang("train", 4, gpus(1)).whole()),
			map[string]string{"train": "waits"},
			"takes whole nodes, B is idle, with room for 2 bundles; idle nodes for 2 bundles missing",
		},
		{
			"nothing goes beside a gang on whole nodes, in its cycle either",
			cluster(aNode("n1").gpus(4, 72)).pending(gang("a", 1, gpus(1)).whole(), gang("b", 1, gpus(1))),
			map[string]string{"a": "n1:0", "b": "waits"},
			"",
		},
		{
			"whole nodes with healthy links",
			cluster(aNode("n1").gpus(1, 72), aNode("n2").gpus(1, 72), aNode("n3").gpus(1, 72)).
				link("n1", "", true, 0).link("n2", "", false, 0).link("n3", "", true, 0).pending(gang("a", 2, gpus(1)).whole()),
			map[string]string{"a": "n1:0 n3:0"},
			"",
		},
		{
			"an unhealthy link is named",
			cluster(aNode("B").gpus(2, 72), aNode("C").gpus(2, 72)).
				link("B", "C", false, time.Minute).pending(gang("train", 4, gpus(1)).whole()),
			map[string]string{"train": "waits"},
			"the link B–C is not healthy (loses packets)",
		},
		{
			"a stale link is named",
			cluster(aNode("B").gpus(2, 72), aNode("C").gpus(2, 72)).
				link("B", "C", true, 11*time.Minute).pending(gang("train", 4, gpus(1)).whole()),
			map[string]string{"train": "waits"},
			"the link B–C was checked last 11m0s ago, more than 10m0s",
		},
		{
			"an unknown link is named",
			cluster(aNode("B").gpus(2, 72), aNode("C").gpus(2, 72)).
				link("B", "", true, 0).pending(gang("train", 4, gpus(1)).whole()),
			map[string]string{"train": "waits"},
			"the link of C was never checked",
		},
		{
			"of three nodes two that are linked well are found",
			cluster(aNode("A").gpus(1, 72), aNode("B").gpus(1, 72), aNode("C").gpus(1, 72)).
				link("A", "B", false, 0).link("A", "C", false, 0).link("B", "C", true, 0).pending(gang("a", 2, gpus(1)).whole()),
			map[string]string{"a": "B:0 C:0"},
			"",
		},
		{
			"one node needs no link, nor does a gang that shares its nodes",
			cluster(aNode("n1").gpus(2, 72), aNode("n2").gpus(2, 72)).link("n1", "n2", false, 0).
				pending(gang("a", 2, gpus(1)).whole().priority(1), gang("b", 2, gpus(1))),
			map[string]string{"a": "n1:0 n1:1", "b": "n2:0 n2:1"},
			"",
		},
		{
			"a card of 15,360 MiB less its headroom holds two of 5,120",
			cluster(aNode("n1").gpus(1, 0)).card(15_360-512).pending(
				gang("a", 1, shareMiB(333, 5_120)), gang("b", 1, shareMiB(333, 5_120)), gang("c", 1, shareMiB(333, 5_120))),
			map[string]string{"a": "n1:0", "b": "n1:0", "c": "waits"},
			"",
		},
		{
			"an amount of memory is charged as it was asked for",
			cluster(aNode("n1").gpus(1, 0)).card(20_000).pending(gang("a", 1, shareMiB(10, 19_000)), gang("b", 1, shareMiB(10, 2_000))),
			map[string]string{"a": "n1:0", "b": "waits"},
			"",
		},
		{
			"a bundle of a gang is bound to one device",
			cluster(aNode("n1").gpus(4, 72)).pending(gang("a", 4, gpus(1)), gang("b", 1, share(500))),
			map[string]string{"a": "n1:0 n1:1 n1:2 n1:3", "b": "waits"},
			"",
		},
		{
			"halves of two groups share a device, wholes never",
			cluster(aNode("n1").gpus(2, 72)).pending(gang("a", 1, share(500)), gang("b", 1, share(500)), gang("c", 1, gpus(1)), gang("d", 1, share(1))),
			map[string]string{"a": "n1:0", "b": "n1:0", "c": "n1:1", "d": "waits"},
			"",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Plan(tc.in, epoch)
			for id, want := range tc.want {
				d := decisionFor(got, id)
				if at := where(tc.in, d); at != want {
					t.Errorf("%s: %s, want %s; reasons %+v", id, at, want, d.Reasons)
				}
			}
			if d := decisionFor(got, tc.in.Pending[0].ID); tc.why != "" && (len(d.Reasons) == 0 || !strings.Contains(d.Reasons[0].Text, tc.why)) {
				t.Errorf("reasons %+v, want %q first", d.Reasons, tc.why)
			}
		})
	}
}

// card sets the usable memory of every device, in MiB.
func (s *Snapshot) card(mib unit.Bytes) *Snapshot {
	for _, n := range s.Nodes {
		for d := range n.GPUs {
			n.GPUs[d].Usable, n.GPUs[d].Free = mib<<20, mib<<20
		}
	}
	return s
}

func shareMiB(thousandths int64, mib unit.Bytes) api.Bundle {
	return api.Bundle{Resources: api.Resources{Share: thousandths, GPUMemory: mib << 20}}
}

// A group that has whole nodes keeps them for itself while it runs, though it does not hold
// all of them, until it has ended.
func TestWholeNodesOfHoldersStayWhole(t *testing.T) {
	n := aNode("n1").gpus(4, 72).taken(0)
	h := holder("alone", n.node, 0)
	h.Spec = &api.GroupSpec{Bundles: []api.Bundle{gpus(1)}, Wishes: api.Wishes{WholeNodes: true}}
	s := cluster(n).heldBy(h).pending(gang("a", 1, gpus(1)))
	d := Plan(s, epoch)[0]
	if d.Bundles != nil {
		t.Fatalf("%+v", d)
	}
	if got := d.Reasons[0]; got.Frees != "the end of alone alone" {
		t.Errorf("%+v", got)
	}
	p := NewPlanner()
	p.Plan(s, epoch)
	after := *s
	after.Holders = nil
	after.Nodes = cluster(aNode("n1").gpus(4, 72)).Nodes
	if d := p.Plan(&after, epoch).All()[0]; d.Bundles == nil {
		t.Errorf("the node stays held after the end: %+v", d)
	}
}

func TestValidateLevels(t *testing.T) {
	for _, tc := range []struct {
		levels []api.Level
		want   string
	}{
		{[]api.Level{{Name: "zone", Label: "z"}, {Name: "rack", Label: "r"}}, ""},
		{[]api.Level{{Name: "zone", Label: "z"}, {Name: "zone", Label: "r"}}, "/1/name"},
		{[]api.Level{{Name: "zone", Label: "z"}, {Name: "rack", Label: "z"}}, "/1/label"},
		{[]api.Level{{Label: "z"}}, "/0/name"},
		{[]api.Level{{Name: "zone"}}, "/0/label"},
		{make([]api.Level, MaxLevels+1), ""},
	} {
		errs := ValidateLevels(tc.levels)
		if len(errs) == 0 != (tc.want == "" && len(tc.levels) <= MaxLevels) || len(errs) > 0 && errs[0].Pointer != tc.want {
			t.Errorf("%+v: %+v, want %q", tc.levels, errs, tc.want)
		}
	}
}
