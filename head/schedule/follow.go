package schedule

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// follow brings the profile up to a snapshot and a time. What did not change since the last
// one costs next to nothing.
func (p *profile) follow(s *Snapshot, now time.Time) {
	later := p.now != nanos(now)
	if p.s == nil || len(p.s.Reservations)+len(s.Reservations) > 0 || !slices.Equal(p.s.Capacities, s.Capacities) {
		p.rules++
	}
	p.s, p.now = s, nanos(now)
	p.scratch.links = p.free.links
	if p.scratch.mix != p.free.mix {
		p.scratch.expect(p.free.mix)
	}
	p.trim()
	began := len(p.log)
	if touched, ok := p.free.idx.since(p.upTo); ok {
		p.log = append(p.log, touched...)
	} else {
		clear(p.lines)
		for ni := range p.nodes {
			p.log = append(p.log, int32(ni))
		}
	}
	p.upTo = p.free.idx.end()
	p.forgetPassing()
	p.forgetFormer()
	p.followHolders()
	p.overrun()
	if later {
		p.relate()
	}
	p.charge()
	p.reserve()
	// What is planned on a node that changed is looked at again in its turn.
	for _, ni := range p.log[began:] {
		p.displace(int(ni), -1, forever)
	}
}

// trim forgets the older half of a log that has become long, with the lines that have not
// been asked for since.
func (p *profile) trim() {
	if len(p.log) <= 16*len(p.nodes)+4096 {
		return
	}
	half := len(p.log) / 2
	p.log = slices.Delete(p.log, 0, half)
	for key, l := range p.lines {
		if l.seen -= half; l.seen < 0 {
			delete(p.lines, key)
		}
	}
}

// forgetPassing takes out what the last cycle decided: by now it runs, or it does not.
func (p *profile) forgetPassing() {
	for _, who := range p.passing {
		p.remove(who)
	}
	p.passing = p.passing[:0]
}

// remove takes all stays of somebody out.
func (p *profile) remove(who *occupant) {
	for _, ni := range who.nodes {
		t := &p.nodes[ni]
		t.running = without(t.running, who)
		p.log = append(p.log, int32(ni))
	}
	p.unplan(who)
}

// unplan takes out the stays of somebody that are planned.
func (p *profile) unplan(who *occupant) {
	for _, ni := range who.nodes {
		t := &p.nodes[ni]
		t.planned = without(t.planned, who)
	}
	who.nodes = who.nodes[:0]
}

// without is the stays of all others.
func without(stays []stay, who *occupant) []stay {
	kept := 0
	for i := range stays {
		if stays[i].who == who {
			continue
		}
		if kept != i {
			stays[kept] = stays[i]
		}
		kept++
	}
	clear(stays[kept:])
	return stays[:kept]
}

// followHolders compares the holders with those of the last snapshot. Most are the same, in
// the same place.
func (p *profile) followHolders() {
	_, was, is := changedPart(p.holders, p.s.Holders)
	p.holders = p.s.Holders
	if len(was)+len(is) == 0 {
		return
	}
	stay := make(map[*Holder]bool, len(is))
	for _, h := range is {
		stay[h] = true
	}
	for _, h := range was {
		if !stay[h] {
			p.remove(p.byHolder[h])
			delete(p.byHolder, h)
		}
	}
	for _, h := range is {
		if p.byHolder[h] == nil {
			p.holder(h)
		}
	}
}

// holder puts what a running group holds into the profile. Where it is not known what it
// holds, nothing is ever given back.
func (p *profile) holder(h *Holder) {
	end, why := h.ends(p.now)
	who := &occupant{group: h.Group, name: h.called(), ends: end, assumed: why, parts: h.Sizes != nil || h.Keeps > 0}
	if h.Spec != nil {
		who.tenant, who.queue = h.Spec.Tenant, h.Spec.Queue
	}
	p.byHolder[h] = who
	if h.relative() {
		p.relative = append(p.relative, h)
	}
	heap.Push(&p.ends, ending{end, h})
	for i := range h.Bundles {
		b := &h.Bundles[i]
		ni, ok := p.at[b.Node]
		if !ok {
			continue
		}
		st := stay{
			from: p.now, to: end, who: who, cpu: max(0, int64(b.CPU)), mem: max(0, int64(b.Memory)),
			share: b.Share, bytes: max(0, int64(b.GPUMemory)), whole: h.Spec != nil && h.Spec.WholeNodes, bundle: int64(i),
		}
		n := p.free.nodes[ni]
		for d := range n.gpus {
			if slices.Contains(b.Devices, n.gpus[d].uuid) {
				st.devices = append(st.devices, d)
			}
		}
		p.run(ni, st)
	}
}

// run adds a stay that has begun.
func (p *profile) run(ni int, st stay) {
	t := &p.nodes[ni]
	if st.who.parts {
		t.running = append(t.running, st)
	} else {
		t.running = addStay(t.running, st)
	}
	p.log = append(p.log, int32(ni))
	st.who.at(ni)
}

// overrun looks again at holders whose expected end has passed.
func (p *profile) overrun() {
	for len(p.ends) > 0 && p.ends[0].at <= p.now {
		h := heap.Pop(&p.ends).(ending).holder
		if who := p.byHolder[h]; who != nil && who.ends <= p.now {
			p.remove(who)
			p.holder(h)
		}
	}
}

// relate looks again at holders of which all that is known is that they are to end soon.
func (p *profile) relate() {
	old := p.relative
	p.relative = nil
	for _, h := range old {
		if who := p.byHolder[h]; who != nil {
			p.remove(who)
			p.holder(h)
		}
	}
}

// ending is when a holder is expected to have ended.
type ending struct {
	at     int64
	holder *Holder
}

type endings []ending

func (e endings) Len() int      { return len(e) }
func (e endings) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e endings) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(e[i].at, e[j].at), cmp.Compare(e[i].holder.Group, e[j].holder.Group)) < 0
}
func (e *endings) Push(x any) { *e = append(*e, x.(ending)) }
func (e *endings) Pop() any {
	last := (*e)[len(*e)-1]
	(*e)[len(*e)-1] = ending{}
	*e = (*e)[:len(*e)-1]
	return last
}

// charge counts anew what holders use of the capacities.
func (p *profile) charge() {
	p.pools = newPools(p)
	if len(p.s.Capacities) == 0 {
		return
	}
	for _, h := range p.s.Holders {
		if who := p.byHolder[h]; who != nil && h.Spec != nil && len(h.Spec.Uses) > 0 {
			p.pools.charge(h.Spec.Uses, p.nodesOf(h), p.now, who.ends, who)
		}
	}
}

// nodesOf is the node of each bundle of a holder.
func (p *profile) nodesOf(h *Holder) []int {
	var out []int
	for i := range h.Bundles {
		if ni, ok := p.at[h.Bundles[i].Node]; ok {
			out = append(out, ni)
		}
	}
	return out
}

// started puts a group into the profile that this cycle has placed and taken out of free.
// Starts that are planned later in the order and are in its way are planned anew.
func (p *profile) started(r *Request, turn int, spots []spot) {
	end := after(p.now, r.runs())
	who := &occupant{
		group: r.ID, name: r.called(), tenant: r.Spec.Tenant, queue: r.Spec.Queue, ends: end, assumed: r.assumed(), passing: true,
	}
	p.passing = append(p.passing, who)
	for i, sp := range spots {
		if i == 0 || spots[i-1].node != sp.node {
			p.displace(sp.node, turn, end)
		}
		p.run(sp.node, p.stayOf(sp, p.now, end, who))
	}
	p.pools.take(r, spots, p.now, end, who)
}
