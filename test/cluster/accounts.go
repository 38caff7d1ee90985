package cluster

import (
	"maps"
	"slices"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// ledger is a second set of books, summed after each command from what groups asked for and
// where they stand, and from the allocations that may still run of what they have left. It
// shares no code with the state's own accounts and holds (P2, P8, I2, I24).
type ledger struct {
	queues map[string]map[string]int64 // tenant or queue → thing
	firm   map[string]map[string]int64 // the same, of work that may not be preempted
	pools  map[string]int64            // capacity of the whole cluster
	cpu    map[string]int64            // by node
	memory map[string]int64
	shares map[string]int64           // by node/device: thousandths
	owners map[string]map[string]bool // by node/device: groups
}

// charge adds n of a thing to one account.
func charge(to map[string]map[string]int64, account, of string, n int64) {
	if n == 0 {
		return
	}
	if to[account] == nil {
		to[account] = map[string]int64{}
	}
	to[account][of] += n
}

// ownersOf are the tenants and queues that a group is charged to.
func ownersOf(v *state.View, s *api.GroupSpec) []string {
	var out []string
	at := s.Tenant
	if q := v.Queue(s.Queue); q != nil && !q.Spec.Tenant {
		out = append(out, q.Name)
		if q.Spec.Parent != "" {
			at = q.Spec.Parent
		}
	}
	for q := v.Queue(at); q != nil; q = v.Queue(q.Spec.Parent) {
		out = append(out, q.Name)
	}
	if len(out) == 0 && at == "" {
		return []string{api.DefaultQueue}
	}
	if len(out) == 0 {
		return []string{at}
	}
	return out
}

func newLedger(v *state.View) *ledger {
	l := &ledger{
		queues: map[string]map[string]int64{}, firm: map[string]map[string]int64{}, pools: map[string]int64{}, cpu: map[string]int64{},
		memory: map[string]int64{}, shares: map[string]int64{}, owners: map[string]map[string]bool{},
	}
	for _, g := range v.Groups() {
		for i, b := range g.Placed {
			need := g.Spec.Bundles[i].Resources
			l.hold(b.Node, g.ID, need, b.Devices, g.Spec.Uses)
			for _, name := range ownersOf(v, &g.Spec) {
				l.owe(v, name, g, need, b)
			}
		}
	}
	// What has been left is charged to nodes for as long as a process may use it.
	seen := map[string]bool{}
	for _, j := range v.Jobs() {
		for _, a := range v.AllocsOf(j.ID) {
			for _, id := range a.Holds {
				if h := v.Hold(id); h != nil && h.Releasing && !a.Gone && !seen[id] {
					seen[id] = true
					l.hold(h.Node, h.Group, h.Need, h.Devices, h.Uses)
				}
			}
		}
	}
	return l
}

// hold charges a node for one bundle.
func (l *ledger) hold(node, group string, need api.Resources, devices []string, uses api.Amounts) {
	l.cpu[node] += int64(need.CPU)
	l.memory[node] += int64(need.Memory)
	for _, d := range devices {
		at := node + "/" + d
		if l.owners[at] == nil {
			l.owners[at] = map[string]bool{}
		}
		l.owners[at][group] = true
		if need.GPUs > 0 {
			l.shares[at] += 1000
		} else {
			l.shares[at] += need.Share
		}
	}
	for _, u := range uses {
		l.pools[u.Of] += u.N
	}
}

// owe charges a tenant or queue for one bundle of a group.
func (l *ledger) owe(v *state.View, name string, g *state.Group, need api.Resources, b state.Bundle) {
	books := []map[string]map[string]int64{l.queues}
	if !g.Spec.Preemptible {
		books = append(books, l.firm)
	}
	for _, to := range books {
		charge(to, name, "cpu", int64(need.CPU))
		charge(to, name, "memory", int64(need.Memory))
		for _, u := range g.Spec.Uses {
			charge(to, name, u.Of, u.N)
		}
		for _, d := range b.Devices {
			n := int64(1000)
			if need.Share > 0 {
				n = need.Share
			}
			charge(to, name, "gpu", n)
			if m := modelOf(v, b.Node, d); m != "" {
				charge(to, name, "gpu:"+m, n)
			}
		}
	}
}

func modelOf(v *state.View, node, device string) string {
	if n := v.Node(node); n != nil {
		for _, g := range n.Info.GPUs {
			if g.UUID == device {
				return g.Model
			}
		}
	}
	return ""
}

// accounts compares the books with the second set of them, and what one command has added
// with what tenants and queues may have.
func (h *History) accounts(kind state.Kind, before, after *state.View, bad func(string, ...any)) {
	l := newLedger(after)
	for _, x := range []struct {
		word string
		want map[string]map[string]int64
		have func(*state.Account) api.Amounts
	}{
		{"charged", l.queues, func(a *state.Account) api.Amounts { return a.Charged }},
		{"charged for good", l.firm, func(a *state.Account) api.Amounts { return a.Assured }},
	} {
		have := map[string]map[string]int64{}
		for _, a := range after.Accounts() {
			if name, ok := state.QueueOf(a); ok {
				for _, c := range x.have(a) {
					charge(have, name, c.Of, c.N)
				}
			}
		}
		if !maps.EqualFunc(have, x.want, maps.Equal) {
			bad("P8: %s are %v, what groups hold makes %v", x.word, have, x.want)
		}
	}
	h.limits(kind, l, before, after, bad)
	for _, c := range after.Capacities() {
		if n := l.pools[c.Name]; c.Spec.Level == "" && after.CapacityUse(c.Name)[""] != n {
			bad("P8: capacity %s is charged %v, %d is held", c.Name, after.CapacityUse(c.Name), n)
		}
	}
	for _, n := range after.Nodes() {
		u := after.UseOf(n.ID)
		if int64(u.CPU) != l.cpu[n.ID] || int64(u.Memory) != l.memory[n.ID] {
			bad("P8: node %s is charged %d and %d, held are %d and %d", n.ID, u.CPU, u.Memory, l.cpu[n.ID], l.memory[n.ID])
		}
		if u.CPU > n.Info.CPU || u.Memory > n.Info.Memory {
			bad("I2: node %s holds %d and %d of %d and %d", n.ID, u.CPU, u.Memory, n.Info.CPU, n.Info.Memory)
		}
		for id, d := range u.Devices {
			at := n.ID + "/" + id
			if s := l.shares[at]; s > 1000 || s < d.Share || d.Whole && (s != 1000 || len(l.owners[at]) != 1) {
				bad("P2: %d/1000 of device %s are held by %v; the books say %+v", s, at, slices.Sorted(maps.Keys(l.owners[at])), d)
			}
		}
	}
	for at, s := range l.shares {
		if s > 1000 {
			bad("P2: %d/1000 of device %s are held by %v", s, at, slices.Sorted(maps.Keys(l.owners[at])))
		}
	}
}

// limits: no command brings a tenant or queue above what it may have; a quota that was
// lowered below what is held takes nothing away.
func (h *History) limits(kind state.Kind, l *ledger, before, after *state.View, bad func(string, ...any)) {
	if kind == state.KindPutQueues {
		return
	}
	was := newLedger(before)
	for _, q := range after.Queues() {
		for of, n := range l.queues[q.Name] {
			if most, ok := q.Spec.Limit.Get(of); ok && n > most && n > was.queues[q.Name][of] {
				bad("I24: %s went from %d to %d of %s, its limit is %d", q.Name, was.queues[q.Name][of], n, of, most)
			}
		}
		for of, n := range l.firm[q.Name] {
			if most, ok := q.Spec.Guaranteed.Get(of); ok && n > most && n > was.firm[q.Name][of] {
				bad("I24: %s went from %d to %d of %s for good, guaranteed are %d", q.Name, was.firm[q.Name][of], n, of, most)
			}
		}
	}
	for _, j := range after.Jobs() {
		if !j.State.Terminal() || j.Group == "" || j.Spec.PlacementGroup != "" {
			continue
		}
		if g := after.Group(j.Group); g != nil && len(g.Placed) > 0 && g.Job == j.ID {
			bad("P8: job %s is %s, and its group holds %d bundles", j.ID, j.State, len(g.Placed))
		}
	}
}
