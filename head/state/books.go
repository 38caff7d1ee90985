package state

import (
	"cmp"
	"errors"
	"fmt"
	"sort"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Use is what holds charge to one node.
type Use struct {
	CPU     unit.MilliCPU
	Memory  unit.Bytes
	Devices map[string]DeviceUse
}

// DeviceUse is what holds charge to one device.
type DeviceUse struct {
	Whole  bool
	Share  int64 // thousandths
	Memory unit.Bytes
	Groups []string
}

// UseOf sums the holds of a node: the one place where usage is computed (P8).
func (v *View) UseOf(node string) Use {
	u := Use{Devices: map[string]DeviceUse{}}
	v.records.each(tHold, "node", func(rec any) bool {
		if h, ok := rec.(*Hold); ok {
			u.add(h)
		}
		return true
	}, node)
	return u
}

func (u *Use) add(h *Hold) {
	u.CPU += h.Need.CPU
	u.Memory += h.Need.Memory
	for _, uuid := range h.Devices {
		d := u.Devices[uuid]
		if h.Need.GPUs > 0 {
			d.Whole = true
		} else {
			d.Share += h.Need.Share
			d.Memory += h.Need.GPUMemory
		}
		d.Groups = append(d.Groups, h.Group)
		u.Devices[uuid] = d
	}
}

// deviceNeed fills the default memory of a share on one device.
func deviceNeed(need api.Resources, g api.GPU) api.Resources {
	if need.Share > 0 && need.GPUMemory == 0 {
		need.GPUMemory = unit.Bytes(g.Usable / 1000 * need.Share)
	}
	return need
}

// fit checks one bundle against a node's free resources and charges it to u.
func fit(n *Node, u *Use, p api.Placed, need api.Resources, h *Hold) error {
	if n == nil || !n.Schedulable() {
		return fmt.Errorf("node %s takes nothing new", p.Node)
	}
	if u.CPU+need.CPU > n.Info.CPU {
		return fmt.Errorf("node %s has %d of %d milli-CPU left", n.ID, n.Info.CPU-u.CPU, need.CPU)
	}
	if u.Memory+need.Memory > n.Info.Memory {
		return fmt.Errorf("node %s has %d of %d bytes of memory left", n.ID, n.Info.Memory-u.Memory, need.Memory)
	}
	want := need.GPUs
	if need.Share > 0 {
		want = 1
	}
	if int64(len(p.Devices)) != want {
		return fmt.Errorf("bundle %d names %d devices, needs %d", p.Bundle, len(p.Devices), want)
	}
	seen := map[string]bool{}
	for _, uuid := range p.Devices {
		g, ok := n.gpu(uuid)
		if !ok || seen[uuid] {
			return fmt.Errorf("node %s has no device %s to give", n.ID, uuid)
		}
		seen[uuid] = true
		d := u.Devices[uuid]
		need = deviceNeed(need, g)
		switch {
		case d.Whole, need.GPUs > 0 && (d.Share > 0 || d.Memory > 0):
			return fmt.Errorf("device %s of node %s is held", uuid, n.ID)
		case need.Share > 0 && (d.Share+need.Share > 1000 || int64(d.Memory+need.GPUMemory) > g.Usable):
			return fmt.Errorf("device %s of node %s has %d thousandths left", uuid, n.ID, 1000-d.Share)
		}
	}
	h.Need, h.Devices = need, p.Devices
	u.add(h)
	return nil
}

func (n *Node) gpu(uuid string) (api.GPU, bool) {
	for _, g := range n.Info.GPUs {
		if g.UUID == uuid {
			return g, true
		}
	}
	return api.GPU{}, false
}

// taking is what one change of a group takes and leaves: each new hold is fitted against
// what the ones before it left of its node, and nothing is written until all fit.
type taking struct {
	t     *tx
	g     *Group
	uses  map[string]*Use
	seq   uint64
	holds []*Hold
}

func (t *tx) newTaking(g *Group) *taking {
	return &taking{t: t, g: g, uses: map[string]*Use{}, seq: t.meta.AllocSeq}
}

// take holds bundle i of the group where p says.
func (k *taking) take(i int, p api.Placed, need api.Resources) (Bundle, error) {
	u := k.uses[p.Node]
	if u == nil {
		fresh := k.t.UseOf(p.Node)
		u = &fresh
		k.uses[p.Node] = u
	}
	k.seq++
	h := k.t.newHold(k.g, i, p.Node, k.seq)
	if err := k.t.freeOfClaims(k.g.ID, p, need, u); err != nil {
		return Bundle{}, err
	}
	n := k.t.Node(p.Node)
	if err := fit(n, u, p, need, h); err != nil {
		return Bundle{}, err
	}
	h.Preemptible = k.g.Spec.Preemptible
	h.Models, h.Uses = n.modelsOf(p.Devices), k.g.Spec.Uses
	h.Domains = k.t.domainsOf(p.Node, h.Uses)
	k.holds = append(k.holds, h)
	return Bundle{Node: p.Node, Devices: p.Devices, Hold: h.ID}, nil
}

// leave gives a hold back once its processes are proven gone; false when there is none.
func (k *taking) leave(hold string) bool {
	h := k.t.Hold(hold)
	if h == nil {
		return false
	}
	c := *h
	c.Releasing, c.Since = true, k.t.now
	k.holds = append(k.holds, &c)
	return true
}

// write charges what was taken and left, or says which limit stands against it. A
// placement is checked here once more because it may have been decided before others that
// are in the log by now.
func (k *taking) write() error {
	b := k.t.newBill()
	for _, h := range k.holds {
		b.turn(k.t.Hold(h.ID), h)
	}
	if why := cmp.Or(b.over(), b.overLent(&k.g.Spec)); why != "" {
		return errors.New(why)
	}
	b.write()
	for _, h := range k.holds {
		k.t.put(tHold, h)
	}
	k.t.meta.AllocSeq = k.seq
	return nil
}

// place gives a group every bundle, or as many as its roles demand at least, or, with an
// error, nothing (P1, P2).
func (t *tx) place(g *Group, placement []api.Placed) error {
	placement, err := g.choose(placement)
	if err != nil {
		return err
	}
	if len(placement) != len(g.Spec.Bundles) {
		return fmt.Errorf("%d bundles placed of %d", len(placement), len(g.Spec.Bundles))
	}
	k := t.newTaking(g)
	placed := make([]Bundle, len(placement))
	for i, p := range placement {
		if p.Bundle != int64(i) {
			return fmt.Errorf("bundle %d stands at position %d", p.Bundle, i)
		}
		if placed[i], err = k.take(i, p, g.Spec.Bundles[i].Resources); err != nil {
			return err
		}
	}
	if err := k.write(); err != nil {
		return err
	}
	g.Placed, g.State, g.PlacedAt, g.Index, g.Why = placed, api.GroupPlaced, t.now, t.index, ""
	g.Claim, g.Leaving, g.Former, g.FormerUntil = nil, nil, nil, 0
	g.Begun, g.Since = t.now, 0
	t.put(tGroup, g)
	return nil
}

func (t *tx) newHold(g *Group, bundle int, node string, seq uint64) *Hold {
	return &Hold{
		ID: fmt.Sprintf("%s.%d.%d", g.ID, bundle, seq), Group: g.ID, Bundle: int64(bundle), Node: node,
		Tenant: g.Spec.Tenant, Queue: g.Spec.Queue, Since: t.now,
	}
}

// unplace releases every hold of a group's placement: what nothing uses is free at once,
// what processes still use stays charged until they are proven gone (P2).
func (t *tx) unplace(g *Group) {
	b := t.newBill()
	used, _ := t.inUse(g.ID)
	for _, p := range g.Placed {
		h := t.Hold(p.Hold)
		switch {
		case h == nil:
		case !used[h.ID]:
			b.turn(h, nil)
			t.drop(tHold, h)
		default:
			c := *h
			c.Releasing, c.Since = true, t.now
			b.turn(h, &c)
			t.put(tHold, &c)
		}
	}
	b.write()
	if g.Begun != 0 {
		g.Ran += t.now - g.Begun
	}
	g.askAgain()
	g.Placed, g.Lent, g.Begun, g.Since = nil, nil, 0, t.now
}

// inUse lists the holds of a group that live allocations use, and the jobs these are of.
func (t *tx) inUse(group string) (holds, jobs map[string]bool) {
	holds, jobs = map[string]bool{}, map[string]bool{}
	for _, a := range all[Alloc](t.records, tAlloc, "group", group) {
		if a.Gone {
			continue
		}
		jobs[a.Job] = true
		for _, h := range a.Holds {
			holds[h] = true
		}
	}
	return holds, jobs
}

// settle frees what is proven free: releasing holds that no live allocation uses,
// bundles whose job has ended and left, groups that hold nothing any more.
func (t *tx) settle(group string) {
	used, busy := t.inUse(group)
	left := 0
	var free []*Hold
	for _, h := range t.HoldsOf(group) {
		if h.Releasing && !used[h.ID] {
			free = append(free, h)
			continue
		}
		left++
	}
	t.dropHolds(free...)
	g := t.Group(group)
	if g == nil {
		return
	}
	if g.State == api.GroupRemoving && left == 0 {
		t.gone(g)
		return
	}
	c, changed := *g, false
	c.Placed = append([]Bundle(nil), g.Placed...)
	for i, b := range c.Placed {
		if b.UsedBy == "" || busy[b.UsedBy] {
			continue
		}
		if j := t.Job(b.UsedBy); j == nil || j.State.Terminal() {
			c.Placed[i].UsedBy, changed = "", true
		}
	}
	if changed {
		c.Index = t.index
		t.put(tGroup, &c)
	}
}

// Check verifies the invariants that hold after every command: P1 (a gang holds all
// or nothing), P2 (one owner of every device) and P8 (what is charged to a node, tenant,
// queue and capacity is what holds say, within the node's capacity, and nothing is held
// without a cause).
func Check(v *View) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	holds := map[string]*Hold{}
	kept := map[string]int{}
	for _, h := range v.Holds() {
		holds[h.ID] = h
		if !h.Releasing {
			kept[h.Group]++
		}
	}
	used := map[string]string{}
	for _, a := range all[Alloc](v.records, tAlloc, "id") {
		if a.Gone {
			continue
		}
		for _, id := range a.Holds {
			if holds[id] == nil {
				bad("P2: allocation %s uses hold %s, which was freed", a.ID, id)
			}
			if other := used[id]; other != "" {
				bad("P2: hold %s is used by allocations %s and %s", id, other, a.ID)
			}
			used[id] = a.ID
		}
	}
	for _, h := range v.Holds() {
		if h.Releasing && used[h.ID] == "" {
			bad("P8: hold %s is released and used by nobody, and still charged", h.ID)
		}
		if g := v.Group(h.Group); g == nil && !h.Releasing {
			bad("P8: hold %s of group %s, which does not exist", h.ID, h.Group)
		}
	}
	for _, g := range v.Groups() {
		want := 0
		if g.State == api.GroupPlaced {
			want = len(g.Spec.Bundles)
		}
		if len(g.Placed) != want || kept[g.ID] != want {
			bad("P1: group %s in state %s has %d bundles placed and %d held, wants %d", g.ID, g.State, len(g.Placed), kept[g.ID], want)
		}
		checkChosen(g, bad)
		for i, b := range g.Placed {
			if h := holds[b.Hold]; h == nil || h.Node != b.Node || h.Bundle != int64(i) || h.Releasing {
				bad("P1: bundle %d of group %s names hold %s, which is not its own", i, g.ID, b.Hold)
			}
		}
	}
	for _, n := range v.Nodes() {
		checkNode(v, n, bad)
	}
	checkAccounts(v, bad)
	return errors.Join(errs...)
}

func checkNode(v *View, n *Node, bad func(string, ...any)) {
	u := v.UseOf(n.ID)
	if u.CPU > n.Info.CPU || u.Memory > n.Info.Memory {
		bad("P8: node %s is charged %d milli-CPU and %d bytes of %d and %d", n.ID, u.CPU, u.Memory, n.Info.CPU, n.Info.Memory)
	}
	uuids := make([]string, 0, len(u.Devices))
	for id := range u.Devices {
		uuids = append(uuids, id)
	}
	sort.Strings(uuids)
	for _, id := range uuids {
		d := u.Devices[id]
		g, known := n.gpu(id)
		if d.Whole && len(d.Groups) > 1 || !d.Whole && (d.Share > 1000 || known && int64(d.Memory) > g.Usable) {
			bad("P2: device %s of node %s is held by %v", id, n.ID, d.Groups)
		}
	}
}
