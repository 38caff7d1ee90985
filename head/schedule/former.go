package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// A gang that lost a part of its placement, and found neither a replacement nor room for a
// smaller size, has released everything and waits (P1). What it held and is still well is
// planned for it for a while, so that the return of one node is enough: nobody takes it
// but itself, and work that it may end again.

// former is what one node keeps for a group.
type former struct {
	stay
	request *Request
}

// opens: the group itself, and what would leave for it.
func (f *former) opens(r *Request) bool {
	if r.ID == f.request.ID {
		return true
	}
	return r.Spec.Preemptible && standingOf(&r.Spec).compare(standingOf(&f.request.Spec)) < 0
}

// keepsFormer reports whether the former place of a request is still planned for it.
func (r *Request) keepsFormer(now time.Time) bool {
	return len(r.Former) > 0 && now.Before(r.FormerUntil)
}

// former puts into the profile what is kept for groups that lost their placement.
func (p *profile) former(r *Request, d *demand) {
	who := &occupant{group: r.ID, name: r.called(), from: p.now, ends: forever, assumed: "kept for it, should it lose a node"}
	if !r.FormerUntil.IsZero() {
		who.ends, who.assumed = nanos(r.FormerUntil), "kept for it after a loss"
	}
	for _, at := range r.Former {
		sp, ok := p.spotOf(d, int(at.Bundle), at)
		if !ok {
			continue
		}
		ni := sp.node
		p.nodes[ni].former = append(p.nodes[ni].former, former{stay: p.stayOf(sp, p.now, who.ends, who), request: r})
		p.log = append(p.log, int32(ni))
	}
	p.kept = append(p.kept, r)
}

// spotOf is where bundle i of a demand was placed before; false: the node is gone.
func (p *profile) spotOf(d *demand, i int, at api.Placed) (spot, bool) {
	ni, ok := p.at[at.Node]
	c := d.classOf(i)
	if !ok || c == nil {
		return spot{}, false
	}
	sp := spot{node: ni, class: c}
	for k := range p.free.nodes[ni].gpus {
		if slices.Contains(at.Devices, p.free.nodes[ni].gpus[k].uuid) {
			sp.devices = append(sp.devices, k)
		}
	}
	return sp, true
}

// forgetFormer takes out what was kept in the cycle before.
func (p *profile) forgetFormer() {
	for _, r := range p.kept {
		for _, at := range r.Former {
			if ni, ok := p.at[at.Node]; ok {
				p.nodes[ni].former = nil
				p.log = append(p.log, int32(ni))
			}
		}
	}
	p.kept = p.kept[:0]
}

// formerAccess tells requests apart to which the same is kept open.
func (p *profile) formerAccess(b *strings.Builder, r *Request) {
	for _, k := range p.kept {
		if (&former{request: k}).opens(r) {
			fmt.Fprintf(b, "k%q ", k.ID)
		}
	}
}
