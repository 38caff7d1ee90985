package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// explainer says why requests wait, on the capacity that is left after the cycle (P7).
type explainer struct {
	s       *Snapshot
	now     time.Time
	quotas  *quotas
	turns   *turns
	left    *overlay // at the end of the cycle
	free    *overlay // what of it is open to the request that is explained
	shut    *shut    // what is not
	start   *overlay // at its beginning, once it was asked for
	empty   *overlay
	grounds *grounds
	holders []*Holder // with what this cycle placed, in order of names
	fresh   map[string]*Request
	own     map[string]bool // groups that still hold something of an attempt before
	kept    []*Request      // whose places are kept for them
	at      map[string]int  // node id → index in any of the overlays
	c       *cycle
	fits    map[string]bool
	room    map[string][]api.Reason // by demand and what else the reasons depend on
	ahead   map[string][]int        // of the planned starts, those in the way of a demand
}

func newExplainer(c *cycle, free *overlay) *explainer {
	s, now, placed := c.s, c.now, c.placed
	x := &explainer{
		s: s, quotas: c.quotas, turns: c.turns, left: free, free: free, shut: &shut{}, now: now, fresh: map[string]*Request{}, own: map[string]bool{},
		grounds: c.grounds, c: c, fits: map[string]bool{}, room: map[string][]api.Reason{}, ahead: map[string][]int{},
	}
	x.grounds.fill(s)
	x.empty, x.at = x.grounds.empty, x.grounds.at
	x.holders = x.grounds.byName(s.Holders)
	for _, h := range s.Holders {
		if h.Releasing {
			x.own[h.Group] = true
		}
		if len(h.Lent) > 0 && h.Spec != nil {
			x.kept = append(x.kept, &Request{ID: h.Group, Name: h.Name, User: h.User, Spec: *h.Spec, Former: h.Lent})
		}
	}
	for i, r := range c.order {
		if c.fates[i].placed == 0 && r.keepsFormer(now) {
			x.kept = append(x.kept, r)
		}
	}
	known := len(x.holders)
	for _, p := range placed {
		x.fresh[p.request.ID] = p.request
		x.holders = append(x.holders, x.holderOf(p))
	}
	x.holders = sortTail(x.holders, known, holdersByName)
	x.quotas.holders = x.holders
	return x
}

// begun is what was free at the beginning of the cycle.
func (x *explainer) begun() *overlay {
	if x.start == nil {
		x.start = x.left.clone()
		for _, was := range slices.Backward(x.c.changes) {
			x.start.nodes[was.ni] = was.old
		}
	}
	return x.start
}

// called is the holder's name for people.
func (h *Holder) called() string {
	if h.Name != "" {
		return h.Name
	}
	return h.Group
}

// holderOf turns a placement of this cycle into a holder like any other.
func (x *explainer) holderOf(p placedNow) *Holder {
	h := &Holder{Group: p.request.ID, Name: p.request.Name, User: p.request.User, Spec: &p.request.Spec}
	for _, at := range p.at {
		b := &p.request.Spec.Bundles[at.Bundle]
		h.Nodes = append(h.Nodes, at.Node)
		h.CPU, h.Memory, h.GPUs = h.CPU+b.CPU, h.Memory+b.Memory, h.GPUs+b.GPUs
		held := Held{Node: at.Node, CPU: b.CPU, Memory: b.Memory, Devices: at.Devices, Share: b.Share}
		if b.Share > 0 {
			held.GPUMemory = x.shareBytesOf(at, b)
		}
		h.Bundles = append(h.Bundles, held)
	}
	h.Nodes = sortedCopy(h.Nodes)
	return h
}

func (x *explainer) shareBytesOf(at api.Placed, b *api.Bundle) unit.Bytes {
	n := x.free.nodes[x.at[at.Node]]
	for d := range n.gpus {
		if len(at.Devices) == 1 && n.gpus[d].uuid == at.Devices[0] {
			return unit.Bytes(n.gpus[d].shareBytes(&class{share: b.Share, gpuMem: int64(b.GPUMemory)}))
		}
	}
	return b.GPUMemory
}

// explain says why the request of a turn waits, with at least one reason. The first is the
// one to show where there is room for one.
func (x *explainer) explain(r *Request, turn int) []api.Reason {
	d := newDemand(r, x.now)
	if len(r.Spec.Bundles) == 0 {
		return []api.Reason{{
			Code: api.ReasonBadSpec, Text: "the group has no bundles, so there is nothing to place",
			Frees: "a request with at least one bundle",
		}}
	}
	if d.incomplete() {
		return []api.Reason{{
			Code: api.ReasonBadSpec, Text: fmt.Sprintf("gang incomplete %d/%d: it has fewer bundles than it is to start with", d.total, max(d.least, d.inRoles())),
			Need: plural(max(d.least, d.inRoles()), "bundle"), Have: plural(int64(d.total), "bundle"),
			Missing: plural(max(0, max(d.least, d.inRoles())-int64(d.total)), "bundle"), Frees: "the bundles that are missing",
		}}
	}
	x.shut = x.shutTo(r)
	x.free = x.open(x.left)
	defer func() { x.free, x.shut = x.left, &shut{} }()

	// Tenant and queue come first, as they did when it was looked at.
	out := x.quotaReasons(r, d)
	if len(out) > 0 && out[0].Code == api.ReasonMisconfigured {
		return out
	}
	if never := neverCapacity(x.s.Capacities, &r.Spec); never != nil {
		return append(out, *never)
	}
	reserved, usable := x.reservationReason(r)
	if reserved != nil {
		if out = append(out, *reserved); !usable {
			return out
		}
	}
	if x.mayFit(d) {
		out = append(append(out, x.capacityReasons(r)...), x.orderly(r, d, turn)...)
		if len(out) > 0 {
			return out
		}
	}
	shut := x.shutReasons(d)
	if len(shut) > 0 && place(x.left, d).spots != nil {
		if out, shut = append(out, shut...), nil; !x.someOpen(d) {
			return append(out, x.capacityReasons(r)...)
		}
	}
	out = append(append(out, x.roomOf(r, d)...), shut...)
	if out[len(out)-1].Code != api.ReasonNeverFits {
		out = append(out, x.capacityReasons(r)...)
		if why, ok := x.plannedReason(r, d, turn); ok {
			out = append(out, why)
		}
	}
	return out
}

// mayFit reports whether a demand fits what is open to it.
func (x *explainer) mayFit(d *demand) bool {
	key := d.key + x.shut.key
	fits, known := x.fits[key]
	if !known {
		fits = !x.c.refused[d.key] && place(x.free, d).spots != nil
		x.fits[key] = fits
	}
	return fits
}

// roomOf is roomReasons, of which equal requests share one.
func (x *explainer) roomOf(r *Request, d *demand) []api.Reason {
	key := d.key + x.turns.kin(r) + x.shut.key
	if x.own[r.ID] {
		key += " own " + r.ID
	}
	if x.room[key] == nil {
		x.room[key] = x.roomReasons(r, d)
	}
	return slices.Clone(x.room[key])
}

// roomReasons explains what the nodes do not have.
func (x *explainer) roomReasons(r *Request, d *demand) []api.Reason {
	need := d.sum().text(d.sum())
	if len(x.s.Nodes) == 0 {
		return []api.Reason{{
			Code: api.ReasonFit, Text: "no node has joined; the request needs " + need, Need: need, Have: "no node",
			Missing: need, Frees: "a node that joins the cluster: troupe worker start",
		}}
	}
	if never := x.grounds.neverOf(d, r); never != nil {
		return []api.Reason{*never}
	}
	health, ill, cure := x.healthReason(d)
	var fits []api.Reason
	var ending []*Holder
	for _, short := range shortages(x.free, d) {
		fit, leaving := x.fitReason(r, d, &short, cure)
		fits, ending = append(fits, fit), append(ending, leaving...)
	}
	ending = inOrder(ending)

	var out []api.Reason
	if why, ok := x.linkReason(r, d); ok {
		return append(out, why)
	}
	if why, ok := x.levelWaitReason(r, d); ok {
		out = append(out, why)
	}
	if why, ok := x.avoidReason(d); ok {
		out = append(out, why)
	}
	if order, ok := x.orderReason(r, d); ok {
		out = append(out, order)
	}
	if ill && cure {
		out = append(out, health)
	}
	own := x.ownHolders(r)
	release := x.endingReasons(own, ending)
	if len(release) > 0 && x.fitsWithout(d, append(own, ending...)) {
		out = append(append(out, release...), fits...)
	} else {
		out = append(append(out, fits...), release...)
	}
	if ill && !cure {
		out = append(out, health)
	}
	return out
}

// orderReason: the request would have fitted at the beginning of the cycle, and those
// whose turn came first took the room.
func (x *explainer) orderReason(r *Request, d *demand) (api.Reason, bool) {
	if len(x.fresh) == 0 || place(x.open(x.begun()), d).spots == nil {
		return api.Reason{}, false
	}
	var who, said []string
	servers := x.grounds.servers(d)
	for i := range x.holders {
		h := x.holders[i]
		f := x.fresh[h.Group]
		if f == nil || !x.inTheWay(servers, h, amount{}) {
			continue
		}
		who = append(who, h.called())
		said = append(said, fmt.Sprintf("%s (%s)", h.called(), x.turns.because(f, r)))
	}
	if len(who) == 0 {
		return api.Reason{}, false
	}
	out := api.Reason{Code: api.ReasonOrder, Text: "would fit, but the room went to " + shortList(said), Frees: "the end of " + shortList(who)}
	out.Block(who)
	return out, true
}

// healthReason names nodes that would serve the request and are not ready, and devices
// that are not well. cure says that with them the request would fit.
func (x *explainer) healthReason(d *demand) (reason api.Reason, ill, cure bool) {
	well, gpus, servers := (*overlay)(nil), d.wantsGPU(), x.grounds.servers(d)
	var who, said []string
	for ni, n := range x.free.nodes {
		if n.ready && (!gpus || !n.sick) || !serve(servers, ni) || x.shut.nodes[ni] {
			continue
		}
		n = n.clone()
		if !n.ready {
			n.ready = true
			who = append(who, n.name)
			said = append(said, n.name+" is not ready ("+cmp.Or(n.why, "no reason given")+")")
		}
		var sick int64
		var why string
		for g := range n.gpus {
			if !n.gpus[g].healthy && gpus {
				n.gpus[g].healthy = true
				why = cmp.Or(why, n.gpus[g].why)
				sick++
			}
		}
		if x.free.nodes[ni].ready != n.ready || sick > 0 {
			if well == nil {
				well = x.free.clone()
			}
			well.set(ni, n)
		}
		if sick > 0 {
			who = append(who, n.name)
			text := fmt.Sprintf("%s of %s unhealthy", plural(sick, "GPU"), n.name)
			if why != "" {
				text += " (" + why + ")"
			}
			said = append(said, text)
		}
	}
	if len(who) == 0 {
		return api.Reason{}, false, false
	}
	who = slices.Compact(who)
	reason = api.Reason{Code: api.ReasonHealth, Text: strings.Join(said[:min(len(said), listed)], "; ")}
	reason.Block(who)
	if len(said) > listed {
		reason.Text += fmt.Sprintf(" and %d more", len(said)-listed)
	}
	cure = place(well, d).spots != nil
	reason.Frees = "not enough by itself: see the other reasons"
	if cure {
		reason.Frees = shortList(who) + " being ready and well again"
	}
	return reason, true, cure
}

func (d *demand) wantsGPU() bool {
	return slices.ContainsFunc(d.classes, func(c *class) bool { return c.gpus > 0 || c.share > 0 })
}
