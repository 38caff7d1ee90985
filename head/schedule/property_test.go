package schedule

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// drawSnapshot makes a small cluster that is partly in use, and requests that compete
// for it. Small numbers make ties and near misses common.
func drawSnapshot(t *rapid.T) *Snapshot {
	s := &Snapshot{}
	for i := range rapid.IntRange(0, 4).Draw(t, "nodes") {
		s.Nodes = append(s.Nodes, new(drawNode(t, i)))
	}
	for i := range rapid.IntRange(1, 6).Draw(t, "requests") {
		r := Request{
			ID: fmt.Sprintf("r%d", i), Name: fmt.Sprintf("job-%d", i),
			Seq: rapid.Uint64Range(1, 4).Draw(t, "seq"), Spec: drawSpec(t, 4),
		}
		if rapid.IntRange(0, 4).Draw(t, "re-placed") == 0 {
			r.Keep = []string{rapid.SampledFrom([]string{"id-n0", "id-n1"}).Draw(t, "keep")}
		}
		s.Pending = append(s.Pending, &r)
	}
	return s
}

func drawNode(t *rapid.T, i int) Node {
	b := aNode(fmt.Sprintf("n%d", i)).cpu(unit.MilliCPU(rapid.IntRange(0, 6).Draw(t, "cpu")) * 1000).memory(8)
	b = b.gpus(rapid.IntRange(0, 3).Draw(t, "gpus"), unit.Bytes(rapid.SampledFrom([]int{40, 72}).Draw(t, "usable")))
	b = b.label("zone", rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone"))
	b = b.pool(rapid.SampledFrom([]string{"", "p"}).Draw(t, "pool"))
	n := b.node
	n.FreeCPU = unit.MilliCPU(rapid.Int64Range(0, int64(n.CPU)/1000).Draw(t, "free cpu")) * 1000
	n.Ready = rapid.IntRange(0, 5).Draw(t, "ready") > 0
	for d := range n.GPUs {
		g := &n.GPUs[d]
		switch rapid.IntRange(0, 5).Draw(t, "device") {
		case 0:
			g.Share, g.Free = 0, 0
		case 1:
			g.Share, g.Free = 500, g.Usable/2
		case 2:
			g.Healthy = false
		}
	}
	return n
}

var bundleKinds = []api.Bundle{
	gpus(1), gpus(2), cpus(1), cpus(2), share(300), share(500), shareOf(100, 30),
	labelled(cpus(1), "zone", "a"), labelled(cpus(1), "zone", "b"), labelled(gpus(1), "zone", "a"),
}

func drawSpec(t *rapid.T, most int) api.GroupSpec {
	spec := api.GroupSpec{
		Strategy: rapid.SampledFrom([]api.Strategy{"", api.Pack, api.Spread, api.StrictPack, api.StrictSpread}).Draw(t, "strategy"),
		Pool:     rapid.SampledFrom([]string{"", "", "", "p", "q"}).Draw(t, "pool"),
		Priority: rapid.Int64Range(0, 2).Draw(t, "priority"),
	}
	n := rapid.IntRange(1, most).Draw(t, "bundles")
	equal := rapid.Bool().Draw(t, "equal")
	for len(spec.Bundles) < n {
		b := rapid.SampledFrom(bundleKinds).Draw(t, "bundle")
		spec.Bundles = append(spec.Bundles, b)
		for equal && len(spec.Bundles) < n {
			spec.Bundles = append(spec.Bundles, b)
		}
	}
	if each := rapid.IntRange(0, 2).Draw(t, "per node"); equal && each > 0 && n%each == 0 {
		spec.PerNode, spec.Strategy = int64(each), api.Pack
	}
	return spec
}

// book is an independent account of what the nodes hold: plain numbers, and the
// owner of each device.
type book struct {
	s      *Snapshot
	cpu    map[string]int64
	mem    map[string]int64
	device map[string]*GPU
	node   map[string]*Node
	owner  map[string]string // whole devices
}

func newBook(s *Snapshot) *book {
	b := &book{s: s, cpu: map[string]int64{}, mem: map[string]int64{}, device: map[string]*GPU{}, node: map[string]*Node{}, owner: map[string]string{}}
	for i := range s.Nodes {
		n := *s.Nodes[i]
		n.GPUs = slices.Clone(n.GPUs)
		b.node[n.ID] = &n
		b.cpu[n.ID], b.mem[n.ID] = int64(n.FreeCPU), int64(n.FreeMemory)
		for d := range n.GPUs {
			b.device[n.GPUs[d].UUID] = &n.GPUs[d]
		}
	}
	return b
}

// hold charges one bundle and says what is wrong with it.
func (b *book) hold(group string, spec api.Bundle, pool string, at api.Placed) error {
	n := b.node[at.Node]
	switch {
	case n == nil:
		return fmt.Errorf("placed on unknown node %q", at.Node)
	case !n.Ready:
		return fmt.Errorf("placed on %s, which is not ready", n.Name)
	case pool != "" && n.Pool != pool:
		return fmt.Errorf("placed on %s of pool %q, wants %q", n.Name, n.Pool, pool)
	}
	for k, v := range spec.Labels {
		if n.Labels[k] != v {
			return fmt.Errorf("placed on %s without label %s=%s", n.Name, k, v)
		}
	}
	b.cpu[n.ID] -= int64(spec.CPU)
	b.mem[n.ID] -= int64(spec.Memory)
	if b.cpu[n.ID] < 0 || b.mem[n.ID] < 0 {
		return fmt.Errorf("%s holds more than it has: %d CPU, %d memory left", n.Name, b.cpu[n.ID], b.mem[n.ID])
	}
	wanted := int(spec.GPUs)
	if spec.Share > 0 {
		wanted = 1
	}
	if len(at.Devices) != wanted {
		return fmt.Errorf("%d devices for a bundle that wants %d", len(at.Devices), wanted)
	}
	for _, uuid := range at.Devices {
		g := b.device[uuid]
		if g == nil || !slices.ContainsFunc(n.GPUs, func(x GPU) bool { return x.UUID == uuid }) {
			return fmt.Errorf("device %q is not of %s", uuid, n.Name)
		}
		if !g.Healthy {
			return fmt.Errorf("device %s is unhealthy", uuid)
		}
		if spec.Share == 0 {
			if g.Share != 1000 || g.Free != g.Usable {
				return fmt.Errorf("device %s given whole to %s while %d/1000 are left (owner %q)", uuid, group, g.Share, b.owner[uuid])
			}
			g.Share, g.Free = 0, 0
			b.owner[uuid] = group
			continue
		}
		bytes := spec.GPUMemory
		if bytes == 0 {
			bytes = unit.Bytes(int64(g.Usable) / 1000 * spec.Share)
			bytes += unit.Bytes(int64(g.Usable) % 1000 * spec.Share / 1000)
		}
		g.Share -= spec.Share
		g.Free -= bytes
		if g.Share < 0 || g.Free < 0 {
			return fmt.Errorf("device %s over its capacity: %d/1000, %d bytes left", uuid, g.Share, g.Free)
		}
	}
	return nil
}

// holdAll charges all decisions and checks the rules of strategies.
func (b *book) holdAll(s *Snapshot, ds []Decision) error {
	byID := map[string]*Request{}
	for _, r := range s.Pending {
		byID[r.ID] = r
	}
	for _, d := range ds {
		r := byID[d.Group]
		if d.Bundles == nil {
			continue
		}
		// P1: whole.
		if len(d.Bundles) != len(r.Spec.Bundles) {
			return fmt.Errorf("%s holds %d of %d bundles", d.Group, len(d.Bundles), len(r.Spec.Bundles))
		}
		nodes := map[string]int{}
		for i, at := range d.Bundles {
			if at.Bundle != int64(i) {
				return fmt.Errorf("%s: bundle %d stands in place %d", d.Group, at.Bundle, i)
			}
			if err := b.hold(d.Group, r.Spec.Bundles[i], r.Spec.Pool, at); err != nil {
				return fmt.Errorf("%s bundle %d: %w", d.Group, i, err)
			}
			nodes[at.Node]++
		}
		if r.Spec.Strategy == api.StrictPack && len(nodes) != 1 {
			return fmt.Errorf("%s is STRICT_PACK and stands on %d nodes", d.Group, len(nodes))
		}
		if r.Spec.Strategy == api.StrictSpread && len(nodes) != len(d.Bundles) {
			return fmt.Errorf("%s is STRICT_SPREAD and stands on %d nodes with %d bundles", d.Group, len(nodes), len(d.Bundles))
		}
		for id, n := range nodes {
			if r.Spec.PerNode > 0 && int64(n) != r.Spec.PerNode {
				return fmt.Errorf("%s has %d bundles on %s, wants %d on each", d.Group, n, id, r.Spec.PerNode)
			}
		}
	}
	return nil
}

// brute tries every node and device for every bundle. It returns whether any placement
// exists and the smallest and largest number of nodes that one uses.
func brute(b *book, r *Request) (exists bool, fewest, most int) {
	fewest = 1 << 30
	var try func(i int, on []string)
	try = func(i int, on []string) {
		if i == len(r.Spec.Bundles) {
			n := len(sortedCopy(on))
			if r.Spec.Strategy == api.StrictPack && n != 1 || r.Spec.Strategy == api.StrictSpread && n != len(on) {
				return
			}
			for _, id := range on {
				if k := r.Spec.PerNode; k > 0 && strings.Count(strings.Join(on, " ")+" ", id+" ") != int(k) {
					return
				}
			}
			exists, fewest, most = true, min(fewest, n), max(most, n)
			return
		}
		spec := r.Spec.Bundles[i]
		for ni := range b.s.Nodes {
			n := b.node[b.s.Nodes[ni].ID]
			for _, devices := range deviceChoices(n, spec) {
				saved := *n
				saved.GPUs = slices.Clone(n.GPUs)
				cpu, mem := b.cpu[n.ID], b.mem[n.ID]
				if b.hold("x", spec, r.Spec.Pool, api.Placed{Node: n.ID, Devices: devices}) == nil {
					try(i+1, append(on, n.ID))
				}
				copy(n.GPUs, saved.GPUs)
				b.cpu[n.ID], b.mem[n.ID] = cpu, mem
			}
		}
	}
	try(0, nil)
	return exists, fewest, most
}

func deviceChoices(n *Node, spec api.Bundle) [][]string {
	switch {
	case spec.Share > 0:
		var out [][]string
		for _, g := range n.GPUs {
			out = append(out, []string{g.UUID})
		}
		return out
	case spec.GPUs > 0:
		// Devices of a drawn node differ in nothing but what is held of them.
		var out []string
		for _, g := range n.GPUs {
			if g.Healthy && g.Share == 1000 && g.Free == g.Usable && int64(len(out)) < spec.GPUs {
				out = append(out, g.UUID)
			}
		}
		return [][]string{out}
	}
	return [][]string{nil}
}

// checkUntil checks a property again until it has met what it is about: a short run draws
// little, and chance may leave that out. The caller still fails when it was never met.
func checkUntil(t *testing.T, met func() bool, property func(*rapid.T)) {
	t.Helper()
	for range 20 {
		if rapid.Check(t, property); met() {
			return
		}
	}
}

// P1, P2, I2: no partial gang, one owner for each device, nothing above its capacity,
// and every constraint of the request kept.
func TestPropWholeOrWaitingAndOneOwner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		ds := Plan(s, epoch)
		if len(ds) != len(s.Pending) {
			t.Fatalf("%d decisions for %d requests", len(ds), len(s.Pending))
		}
		if err := newBook(s).holdAll(s, ds); err != nil {
			t.Fatal(err)
		}
	})
}

// P1, P2 for groups that are too large for the exhaustive search.
func TestPropLargeGroupsWholeAndOneOwner(t *testing.T) {
	placed := 0
	checkUntil(t, func() bool { return placed > 0 }, func(t *rapid.T) {
		s := &Snapshot{}
		for i := range rapid.IntRange(2, 4).Draw(t, "nodes") {
			n := aNode(fmt.Sprintf("n%d", i)).cpu(8_000).label("zone", "a").gpus(rapid.IntRange(2, 6).Draw(t, "gpus"), 72)
			s.Nodes = append(s.Nodes, &n.node)
		}
		for i := range 2 {
			r := gang(fmt.Sprintf("r%d", i), 0, api.Bundle{}).request
			r.Spec.Strategy = rapid.SampledFrom([]api.Strategy{api.Pack, api.Spread, api.StrictPack}).Draw(t, "strategy")
			for range rapid.IntRange(exactBundles+1, 16).Draw(t, "bundles") {
				r.Spec.Bundles = append(r.Spec.Bundles, rapid.SampledFrom(bundleKinds).Draw(t, "bundle"))
			}
			s.Pending = append(s.Pending, &r)
		}
		ds := Plan(s, epoch)
		if err := newBook(s).holdAll(s, ds); err != nil {
			t.Fatal(err)
		}
		for i := range ds {
			nodes := map[string]bool{}
			for _, b := range ds[i].Bundles {
				nodes[b.Node] = true
			}
			if len(nodes) > 1 && len(newDemand(s.Pending[0], epoch).classes) > 1 {
				placed++
			}
		}
	})
	if placed == 0 {
		t.Error("no large group of different bundles was ever placed; the property proved nothing")
	}
}

// A plan is a function of the contents of a snapshot, and does not change them.
func TestPropOrderIndependence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		before, _ := json.Marshal(s)
		want, _ := json.Marshal(Plan(s, epoch))
		if after, _ := json.Marshal(s); string(after) != string(before) {
			t.Fatal("Plan changed its snapshot")
		}
		shuffled := &Snapshot{
			Nodes:   rapid.Permutation(s.Nodes).Draw(t, "nodes in another order"),
			Pending: rapid.Permutation(s.Pending).Draw(t, "requests in another order"),
		}
		if got, _ := json.Marshal(Plan(shuffled, epoch)); string(got) != string(want) {
			t.Fatalf("another order gave\n%s\nwant\n%s", got, want)
		}
	})
}

// Where the search is exhaustive it finds a placement exactly when an independent
// brute force does; PACK then uses the fewest nodes that any placement uses, SPREAD
// the most.
func TestPropExactSearchFindsWhatExists(t *testing.T) {
	found, refused := 0, 0
	checkUntil(t, func() bool { return found > 0 && refused > 0 }, func(t *rapid.T) {
		s := drawSnapshot(t)
		r := s.Pending[0]
		r.Keep = nil
		s.Pending = []*Request{r}
		d := Plan(s, epoch)[0]
		exists, fewest, most := brute(newBook(s), r)
		if exists != (d.Bundles != nil) {
			t.Fatalf("a placement exists: %v; planned: %v", exists, d.Bundles)
		}
		if !exists {
			refused++
			return
		}
		found++
		nodes := map[string]bool{}
		for _, b := range d.Bundles {
			nodes[b.Node] = true
		}
		switch r.Spec.Strategy {
		case api.Pack, "":
			if len(nodes) != fewest {
				t.Fatalf("PACK on %d nodes, %d are enough", len(nodes), fewest)
			}
		case api.Spread:
			if len(nodes) != most {
				t.Fatalf("SPREAD on %d nodes, %d are possible", len(nodes), most)
			}
		case api.StrictPack, api.StrictSpread: // the book checks them
		}
	})
	if found == 0 || refused == 0 {
		t.Errorf("found %d, refused %d: the property proved nothing", found, refused)
	}
}

// Dropping a constraint never makes a placeable group unplaceable.
func TestPropFewerConstraintsNeverHurt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		r := s.Pending[0]
		s.Pending = []*Request{r}
		if Plan(s, epoch)[0].Bundles == nil {
			return
		}
		one := *r
		less := &one
		less.Spec.Bundles = slices.Clone(r.Spec.Bundles)
		i := rapid.IntRange(0, len(less.Spec.Bundles)-1).Draw(t, "which")
		less.Spec.PerNode = 0
		switch rapid.IntRange(0, 5).Draw(t, "dropped") {
		case 0:
			less.Spec.Pool = ""
		case 1:
			less.Spec.Bundles[i].Labels = nil
		case 2:
			less.Spec.Strategy = map[api.Strategy]api.Strategy{api.StrictPack: api.Pack, api.StrictSpread: api.Spread}[r.Spec.Strategy]
		case 3:
			less.Spec.Bundles[i].GPUs = max(0, less.Spec.Bundles[i].GPUs-1)
		case 4:
			if len(less.Spec.Bundles) > 1 {
				less.Spec.Bundles = slices.Delete(less.Spec.Bundles, i, i+1)
			}
		}
		s.Pending = []*Request{less}
		if Plan(s, epoch)[0].Bundles == nil {
			t.Fatalf("placeable as %+v, not as %+v", r.Spec, less.Spec)
		}
	})
}

// P7: every waiting gang has a reason that names what is missing and what would free
// it, and an independent check confirms it: the gang really does not fit what is left,
// blockers are holders on nodes of this snapshot, and "the end of X alone" is enough.
func TestPropEveryWaitingGangHasTrueReason(t *testing.T) {
	proven := 0
	checkUntil(t, func() bool { return proven > 0 }, func(t *rapid.T) {
		s := drawSnapshot(t)
		s.Holders = drawHolders(t, s.Nodes)
		ds := Plan(s, epoch)
		left := newBook(s)
		if err := left.holdAll(s, ds); err != nil {
			t.Fatal(err)
		}
		known := map[string]*Holder{}
		for _, h := range s.Holders {
			known[h.Name] = h
		}
		byID := map[string]*Request{}
		for _, r := range s.Pending {
			byID[r.ID] = r
		}
		planned := map[string]time.Time{} // by name
		for _, d := range ds {
			if name := byID[d.Group].Name; d.Bundles != nil {
				known[name] = &Holder{}
			} else if !d.Start.IsZero() {
				planned[name] = d.Start
			}
		}
		for _, d := range ds {
			if d.Bundles != nil {
				if len(d.Reasons) > 0 {
					t.Fatalf("%s is placed and has reasons to wait", d.Group)
				}
				continue
			}
			if len(d.Reasons) == 0 {
				t.Fatalf("%s waits without a reason", d.Group)
			}
			// What fits waits only for a start that is planned while it would run.
			if exists, _, _ := brute(left, byID[d.Group]); exists {
				ends := epoch.Add(byID[d.Group].runs())
				soon := func(name string) bool { at, ok := planned[name]; return ok && at.Before(ends) }
				if d.Reasons[0].Code != api.ReasonOrder || !slices.ContainsFunc(d.Reasons[0].Blockers, soon) {
					t.Fatalf("%s fits what is left, and waits: %+v", d.Group, d.Reasons)
				}
			}
			for _, r := range d.Reasons {
				if r.Code == "" || r.Text == "" || r.Frees == "" {
					t.Fatalf("incomplete reason %+v", r)
				}
				if (r.Code == api.ReasonFit || r.Code == api.ReasonNeverFits) && (r.Missing == "" || r.Need == "") {
					t.Fatalf("no missing amount in %+v", r)
				}
				for _, b := range r.Blockers {
					_, held := known[b]
					_, waits := planned[b]
					if _, node := left.node["id-"+b]; !held && !node && !waits {
						t.Fatalf("unknown blocker %q in %+v", b, r)
					}
				}
				name, alone := strings.CutSuffix(strings.TrimPrefix(r.Frees, "the end of "), " alone")
				if h := known[name]; alone && h.Group != "" {
					proven++
					if exists, _, _ := brute(withoutHolder(s, ds, h), byID[d.Group]); !exists {
						t.Fatalf("%s would not fit without %s: %+v", d.Group, name, r)
					}
				}
			}
			// Nobody is left out whose end alone would be enough.
			if exists, _, _ := brute(left, byID[d.Group]); !exists {
				for _, h := range s.Holders {
					if exists, _, _ := brute(withoutHolder(s, ds, h), byID[d.Group]); exists && !anyNames(d.Reasons, h.Name) {
						t.Fatalf("%s would fit without %s, which no reason names: %+v", d.Group, h.Name, d.Reasons)
					}
				}
			}
			if never := Never(s, byID[d.Group].Spec); never != nil {
				empty := newBook(&Snapshot{Nodes: emptyNodes(s.Nodes)})
				if exists, _, _ := brute(empty, byID[d.Group]); exists {
					t.Fatalf("%s is said never to fit and fits the empty cluster: %s", d.Group, never.Text)
				}
			}
		}
	})
	if proven == 0 {
		t.Error("no reason ever named a sufficient holder; the property proved nothing")
	}
}

func anyNames(rs []api.Reason, blocker string) bool {
	return slices.ContainsFunc(rs, func(r api.Reason) bool { return slices.Contains(r.Blockers, blocker) || r.MoreBlockers > 0 })
}

// drawHolders takes free devices and CPUs of ready nodes for groups that run.
func drawHolders(t *rapid.T, nodes []*Node) []*Holder {
	var out []*Holder
	for i := range nodes {
		n := nodes[i]
		for d := range n.GPUs {
			g := &n.GPUs[d]
			if g.Share == 1000 && g.Healthy && rapid.Bool().Draw(t, "held") {
				g.Share, g.Free = 0, 0
				h := holder(fmt.Sprintf("h%d-%d", i, d), *n, d)
				h.Releasing = rapid.Bool().Draw(t, "releasing")
				out = append(out, &h)
			}
		}
		if n.FreeCPU > 0 && rapid.Bool().Draw(t, "held cpu") {
			out = append(out, &Holder{
				Group: fmt.Sprintf("pg-c%d", i), Name: fmt.Sprintf("c%d", i), Nodes: []string{n.ID}, CPU: n.FreeCPU,
				Bundles: []Held{{Node: n.ID, CPU: n.FreeCPU}},
			})
			n.FreeCPU = 0
		}
	}
	return out
}

// withoutHolder is the book after the cycle, had the holder ended before it.
func withoutHolder(s *Snapshot, ds []Decision, gone *Holder) *book {
	b := newBook(s)
	_ = b.holdAll(s, ds)
	for _, held := range gone.Bundles {
		b.cpu[held.Node] += int64(held.CPU)
		for _, uuid := range held.Devices {
			g := b.device[uuid]
			g.Share, g.Free = 1000, g.Usable
		}
	}
	return b
}

func emptyNodes(nodes []*Node) []*Node {
	out := slices.Clone(nodes)
	for i := range out {
		n := new(*out[i])
		out[i] = n
		n.Ready, n.FreeCPU, n.FreeMemory = true, n.CPU, n.Memory
		n.GPUs = slices.Clone(n.GPUs)
		for d := range n.GPUs {
			g := &n.GPUs[d]
			g.Free, g.Share, g.Healthy = g.Usable, 1000, true
		}
	}
	return out
}

// Whatever a snapshot says, Plan returns: negative amounts, absurd ones, unknown
// strategies, no names.
func TestPropHostileSnapshotsReturn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wild := rapid.OneOf(rapid.Int64(), rapid.Int64Range(-2, 2))
		s := &Snapshot{}
		for range rapid.IntRange(0, 3).Draw(t, "nodes") {
			n := Node{
				ID: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "id"), Ready: true,
				CPU: unit.MilliCPU(wild.Draw(t, "cpu")), FreeCPU: unit.MilliCPU(wild.Draw(t, "free")), FreeMemory: unit.Bytes(wild.Draw(t, "mem")),
			}
			for range rapid.IntRange(0, 2).Draw(t, "gpus") {
				n.GPUs = append(n.GPUs, GPU{Usable: unit.Bytes(wild.Draw(t, "usable")), Free: unit.Bytes(wild.Draw(t, "free")), Share: wild.Draw(t, "share"), Healthy: true})
			}
			s.Nodes = append(s.Nodes, &n)
		}
		for range rapid.IntRange(0, 3).Draw(t, "requests") {
			var r Request
			r.Spec.Strategy = api.Strategy(rapid.SampledFrom([]string{"", "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD", "?"}).Draw(t, "strategy"))
			for range rapid.IntRange(0, 10).Draw(t, "bundles") {
				r.Spec.Bundles = append(r.Spec.Bundles, api.Bundle{Resources: api.Resources{
					CPU: unit.MilliCPU(wild.Draw(t, "cpu")), Memory: unit.Bytes(wild.Draw(t, "mem")),
					GPUs: wild.Draw(t, "gpus"), Share: wild.Draw(t, "share"), GPUMemory: unit.Bytes(wild.Draw(t, "bytes")),
				}})
			}
			s.Pending = append(s.Pending, &r)
		}
		if got := len(Plan(s, epoch)); got != len(s.Pending) {
			t.Fatalf("%d decisions for %d requests", got, len(s.Pending))
		}
	})
}
