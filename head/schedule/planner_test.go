package schedule

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// drawTopology adds what a request may insist on beside its amounts: levels with labels
// that are missing here and there, whole nodes, rules, links.
func drawTopology(t *rapid.T) *Snapshot {
	s := drawSnapshot(t)
	s.levels("block", "rack")
	for _, n := range s.Nodes {
		if rapid.Bool().Draw(t, "idle") {
			n.FreeCPU, n.Ready = n.CPU, true
			for d := range n.GPUs {
				n.GPUs[d].Share, n.GPUs[d].Free, n.GPUs[d].Healthy = 1000, n.GPUs[d].Usable, true
			}
		}
		for _, l := range []string{"block", "rack"} {
			if v := rapid.SampledFrom([]string{"1", "1", "2", ""}).Draw(t, l); v != "" {
				n.Labels[l] = v
			}
		}
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "links") {
		name := rapid.SampledFrom([]string{"n0", "n1", "n2", "id-n3", ""})
		s.link(name.Draw(t, fmt.Sprintf("a%d", i)), name.Draw(t, "b"), rapid.IntRange(0, 3).Draw(t, "well") > 0,
			time.Duration(rapid.Int64Range(0, 11).Draw(t, "age"))*time.Minute)
	}
	for _, r := range s.Pending {
		drawWishes(t, r)
	}
	return s
}

func drawWishes(t *rapid.T, r *Request) {
	r.Since = epoch.Add(-time.Minute)
	switch rapid.IntRange(0, 3).Draw(t, "level") {
	case 0:
		r.Spec.Level = rapid.SampledFrom([]string{"block", "rack", "rck"}).Draw(t, "required")
	case 1:
		r.Spec.Level = rapid.SampledFrom([]string{"block", "rack"}).Draw(t, "preferred")
		r.Spec.LevelWait = new(unit.Duration(rapid.Int64Range(0, 2).Draw(t, "wait")) * unit.Duration(time.Minute))
	}
	r.Spec.WholeNodes = rapid.IntRange(0, 3).Draw(t, "whole") == 0
	if rapid.IntRange(0, 3).Draw(t, "where") == 0 {
		r.Spec.Where = []api.LabelRule{{
			Key: "rack", Op: rapid.SampledFrom([]string{"=", "!=", "in", "notin"}).Draw(t, "op"),
			Values: rapid.SliceOfN(rapid.SampledFrom([]string{"1", "2"}), 1, 2).Draw(t, "values"),
		}}
	}
}

// kept says which wish of a request its placement does not keep, by the words of the
// request alone.
func kept(s *Snapshot, r *Request, d *Decision) error {
	byID := map[string]*Node{}
	for _, n := range s.Nodes {
		byID[n.ID] = n
	}
	paths, nodes := map[string]bool{}, map[string]*Node{}
	for _, p := range d.Bundles {
		n := byID[p.Node]
		nodes[n.ID] = n
		path := ""
		for _, l := range s.Levels {
			v, ok := n.Labels[l.Label]
			if !ok {
				path = "outside of " + n.ID
			}
			path += fmt.Sprintf("%q", v)
			if l.Name == r.Spec.Level {
				break
			}
		}
		paths[path] = true
		for _, w := range r.Spec.Where {
			v, ok := n.Labels[w.Key]
			in := ok && slices.Contains(w.Values, v)
			if in != (w.Op == "=" || w.Op == "in") {
				return fmt.Errorf("%s on %s, whose labels %v break %+v", r.ID, n.Name, n.Labels, w)
			}
		}
		if r.Spec.WholeNodes {
			if n.FreeCPU < n.CPU || n.FreeMemory < n.Memory || slices.ContainsFunc(n.GPUs, func(g GPU) bool { return g.Share < 1000 || !g.Healthy }) {
				return fmt.Errorf("%s takes whole nodes and is on %s, of which something is held or ill", r.ID, n.Name)
			}
		}
	}
	wait := r.Spec.LevelWait
	if required := wait == nil || r.Since.Add(time.Duration(*wait)).After(epoch); r.Spec.Level != "" && required {
		if len(paths) > 1 || len(nodes) > 0 && !slices.ContainsFunc(s.Levels, func(l api.Level) bool { return l.Name == r.Spec.Level }) {
			return fmt.Errorf("%s is to be in one %s and is in %v", r.ID, r.Spec.Level, paths)
		}
		for p := range paths {
			if len(p) > 10 && p[:10] == "outside of" {
				return fmt.Errorf("%s is to be in one %s and is on a node in none", r.ID, r.Spec.Level)
			}
		}
	}
	return nil
}

// Every wish is kept, and nothing else stands on whole nodes.
func TestPropWishesAreKept(t *testing.T) {
	placed := 0
	checkUntil(t, func() bool { return placed > 0 }, func(t *rapid.T) {
		s := drawTopology(t)
		ds := Plan(s, epoch)
		if err := newBook(s).holdAll(s, ds); err != nil {
			t.Fatal(err)
		}
		byID := map[string]*Request{}
		for _, r := range s.Pending {
			byID[r.ID] = r
		}
		on := map[string][]string{}
		for i := range ds {
			r := byID[ds[i].Group]
			if ds[i].Bundles == nil {
				if len(ds[i].Reasons) == 0 {
					t.Fatalf("%s waits without a reason", r.ID)
				}
				continue
			}
			if err := kept(s, r, &ds[i]); err != nil {
				t.Fatal(err)
			}
			if r.Spec.Level != "" {
				placed++
			}
			for _, p := range ds[i].Bundles {
				on[p.Node] = append(on[p.Node], r.ID)
			}
		}
		for node, who := range on {
			if who = sortedCopy(who); len(who) > 1 && slices.ContainsFunc(who, func(id string) bool { return byID[id].Spec.WholeNodes }) {
				t.Fatalf("%v share %s, and one of them takes whole nodes", who, node)
			}
		}
	})
	if placed == 0 {
		t.Error("nothing with a level was ever placed; the property proved nothing")
	}
}

// Whole nodes of one gang are linked well, by the words of the links alone: the newest word
// on the pair, else one on each of the two.
func TestPropWholeNodesAreLinkedWell(t *testing.T) {
	checked := 0
	checkUntil(t, func() bool { return checked > 0 }, func(t *rapid.T) {
		s := cluster(aNode("n0").gpus(1, 72), aNode("n1").gpus(1, 72), aNode("n2").gpus(1, 72), aNode("n3").gpus(1, 72))
		names := []string{"n0", "n1", "n2", "n3"}
		good := map[[2]string]bool{}
		for i, a := range names {
			for _, b := range names[i+1:] {
				ok := rapid.Bool().Draw(t, a+b)
				good[[2]string{"id-" + a, "id-" + b}] = ok
				s.link(a, b, ok, 0)
			}
		}
		size := rapid.IntRange(2, 4).Draw(t, "size")
		s.pending(gang("a", size, gpus(1)).whole())
		d := Plan(s, epoch)[0]
		clique := false
		for set := range 1 << 4 {
			var in []string
			for i, n := range names {
				if set>>i&1 == 1 {
					in = append(in, "id-"+n)
				}
			}
			all := len(in) == size
			for i, a := range in {
				for _, b := range in[i+1:] {
					all = all && good[[2]string{a, b}]
				}
			}
			clique = clique || all
		}
		if clique != (d.Bundles != nil) {
			t.Fatalf("%d nodes that are all linked exist: %v; planned: %+v", size, clique, d.Bundles)
		}
		for i, a := range d.Bundles {
			for _, b := range d.Bundles[i+1:] {
				checked++
				if !good[[2]string{min(a.Node, b.Node), max(a.Node, b.Node)}] {
					t.Fatalf("%s and %s are not linked well", a.Node, b.Node)
				}
			}
		}
	})
	if checked == 0 {
		t.Error("no gang was ever placed; the property proved nothing")
	}
}

// Dropping any one wish never makes a placeable request unplaceable.
func TestPropFewerWishesNeverHurt(t *testing.T) {
	dropped := map[string]int{}
	checkUntil(t, func() bool { return len(dropped) == len(constraints) }, func(t *rapid.T) {
		s := drawTopology(t)
		r := s.Pending[0]
		s.Pending = []*Request{r}
		if Plan(s, epoch)[0].Bundles == nil {
			return
		}
		for _, c := range constraints {
			less := *r
			if !c.drop(&less) {
				if c.name == "excluded nodes" {
					dropped[c.name]++ // none are drawn
				}
				continue
			}
			dropped[c.name]++
			s.Pending = []*Request{&less}
			if Plan(s, epoch)[0].Bundles == nil {
				t.Fatalf("placeable as %+v, not without %s", r.Spec, c.name)
			}
		}
	})
	if len(dropped) < len(constraints) {
		t.Errorf("only %v were ever dropped", dropped)
	}
}

// A planner with a history decides what one without any does, whatever changes between two
// cycles: nodes come, go, fill up and empty, links and time pass, requests come and go.
func TestPropPlannerIsPlan(t *testing.T) {
	skipped := 0
	checkUntil(t, func() bool { return skipped > 0 }, func(t *rapid.T) {
		s := drawTopology(t)
		p, now := NewPlanner(), epoch
		for step := range rapid.IntRange(2, 6).Draw(t, "cycles") {
			got := p.Plan(s, now)
			fresh := NewPlanner().Plan(s, now)
			if got.Tried < fresh.Tried {
				skipped++
			}
			a, _ := json.Marshal(Plan(s, now))
			ds := got.All()
			for i := range ds {
				if d := &ds[i]; d.Bundles == nil {
					d.Reasons = got.Why(d.Group)
				}
			}
			if b, _ := json.Marshal(ds); string(a) != string(b) {
				t.Fatalf("cycle %d:\n%s\nwith a history\n%s", step, a, b)
			}
			s = drawNext(t, s, got.All(), step)
			now = now.Add(time.Duration(rapid.Int64Range(0, 2).Draw(t, "minutes")) * time.Minute)
		}
	})
	if skipped == 0 {
		t.Error("the planner never remembered anything; the property proved nothing")
	}
}

// drawNext is the snapshot after some of what was decided came true, and something else
// happened.
func drawNext(t *rapid.T, s *Snapshot, ds []Decision, step int) *Snapshot {
	next := *s
	next.Nodes, next.Pending, next.Links = slices.Clone(s.Nodes), slices.Clone(s.Pending), slices.Clone(s.Links)
	for i := range next.Nodes {
		switch rapid.IntRange(0, 6).Draw(t, "node") {
		case 0:
			n := next.Own(i)
			n.Ready = !n.Ready
		case 1:
			n := next.Own(i)
			for d := range n.GPUs {
				n.GPUs[d].Share, n.GPUs[d].Free = 1000, n.GPUs[d].Usable
			}
			n.FreeCPU = n.CPU
		case 2:
			next.Own(i) // another pointer to the same
		case 3:
			n := next.Own(i)
			n.Labels = map[string]string{"zone": "a", "rack": "2", "block": "1"}
		}
	}
	for i := range ds {
		if ds[i].Bundles == nil || rapid.Bool().Draw(t, "lost before it was placed") {
			continue
		}
		at := slices.IndexFunc(next.Pending, func(r *Request) bool { return r.ID == ds[i].Group })
		r := next.Pending[at]
		next.Pending = slices.Delete(next.Pending, at, at+1)
		for b, p := range ds[i].Bundles {
			ni := slices.IndexFunc(next.Nodes, func(n *Node) bool { return n.ID == p.Node })
			n := next.Own(ni)
			n.FreeCPU = max(0, n.FreeCPU-r.Spec.Bundles[b].CPU)
			for d := range n.GPUs {
				if slices.Contains(p.Devices, n.GPUs[d].UUID) && r.Spec.Bundles[b].GPUs > 0 {
					n.GPUs[d].Share, n.GPUs[d].Free = 0, 0
				}
			}
		}
		h := &Holder{Group: r.ID, Name: r.Name, Spec: &r.Spec}
		for _, p := range ds[i].Bundles {
			h.Nodes = append(h.Nodes, p.Node)
		}
		next.Holders = append(slices.Clone(next.Holders), h)
	}
	if rapid.IntRange(0, 3).Draw(t, "new request") == 0 {
		r := &Request{ID: fmt.Sprintf("x%d", step), Name: "x", Seq: 9, Spec: drawSpec(t, 4)}
		drawWishes(t, r)
		next.Pending = append(next.Pending, r)
	}
	if len(next.Links) > 0 && rapid.Bool().Draw(t, "link") {
		l := *next.Links[0]
		l.Healthy = !l.Healthy
		next.Links[0] = &l
	}
	if rapid.IntRange(0, 5).Draw(t, "lose a node") == 0 && len(next.Nodes) > 0 {
		next.Nodes = next.Nodes[1:]
	}
	return &next
}

// What cannot run costs nothing until there may be more room, and everything that may help
// wakes it: a node that comes back, a group that ends or shrinks, a link that is well.
func TestWaitingCostsNothingUntilRoomComes(t *testing.T) {
	full := aNode("n1").gpus(4, 72).taken(0, 1, 2, 3)
	s := cluster(full, aNode("n2").gpus(4, 72).notReady("silent"))
	for i := range 100 {
		s.pending(gang(fmt.Sprintf("g%d", i), 1+i%10, gpus(1)))
	}
	p := NewPlanner()
	if got := p.Plan(s, epoch).Tried; got != 10 {
		t.Errorf("%d placements were looked for, want one for each kind of request: 10", got)
	}
	again := func(what string, change func(next *Snapshot), want bool) {
		t.Helper()
		next := *s
		next.Nodes = slices.Clone(s.Nodes)
		change(&next)
		r := p.Plan(&next, epoch)
		if (r.Tried > 0) != want {
			t.Errorf("after %s %d placements were looked for", what, r.Tried)
		}
		s = &next
	}
	again("nothing", func(*Snapshot) {}, false)
	again("another pointer to the same", func(n *Snapshot) { n.Own(0) }, false)
	again("less room", func(n *Snapshot) { n.Own(0).FreeCPU = 0 }, false)
	again("a shrink", func(n *Snapshot) { g := &n.Own(0).GPUs[0]; g.Share, g.Free = 1000, g.Usable }, true)
	again("the placement of what fitted", func(n *Snapshot) { g := &n.Own(0).GPUs[0]; g.Share, g.Free = 0, 0 }, false)
	again("the return of a node", func(n *Snapshot) { n.Own(1).Ready = true }, true)
}

// As many nodes as possible may be one: where no two whole nodes are linked well, a spread
// group takes one that holds all of it.
func TestSpreadOverBadLinks(t *testing.T) {
	s := cluster(aNode("n0").gpus(2, 72), aNode("n1").gpus(1, 72)).link("n0", "n1", false, 0).pending(gang("a", 2, gpus(1)).strategy(api.Spread).whole())
	if d := Plan(s, epoch)[0]; len(d.Bundles) != 2 || d.Bundles[0].Node != "id-n0" || d.Bundles[1].Node != "id-n0" {
		t.Errorf("%+v", d)
	}
}
