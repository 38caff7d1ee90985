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

// named is how many blockers a reason names; proved how many holders are tried for
// "what would free it", each try being one placement.
const (
	named  = 32
	proved = 12
)

// explainer says why requests wait, on the capacity that is left after the cycle (P7).
type explainer struct {
	s       *Snapshot
	now     time.Time
	quotas  *quotas
	turns   *turns
	free    *overlay // at the end of the cycle
	start   *overlay // at its beginning, once it was asked for
	empty   *overlay
	grounds *grounds
	holders []*Holder // with what this cycle placed, in order of names
	fresh   map[string]*Request
	at      map[string]int // node id → index in any of the overlays
	c       *cycle
	fits    map[string]bool
}

func newExplainer(c *cycle, free *overlay) *explainer {
	s, now, placed := c.s, c.now, c.placed
	x := &explainer{s: s, quotas: c.quotas, turns: c.turns, free: free, now: now, fresh: map[string]*Request{}, grounds: c.grounds, c: c, fits: map[string]bool{}}
	x.grounds.fill(s)
	x.empty, x.at = x.grounds.empty, x.grounds.at
	x.holders = x.grounds.byName(s.Holders)
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
		x.start = x.free.clone()
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

// explain gives at least one reason. The first is the one to show where there is room
// for one.
func (x *explainer) explain(r *Request) []api.Reason {
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
	// Tenant and queue come first, as they did when it was looked at.
	quota := x.quotaReasons(r, d)
	if len(quota) > 0 && quota[0].Code == api.ReasonMisconfigured {
		return quota
	}
	return append(quota, x.roomReasons(r, d, len(quota) > 0)...)
}

// roomReasons explains what the nodes do not have. With more reasons before, there may be
// none.
func (x *explainer) roomReasons(r *Request, d *demand, more bool) []api.Reason {
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
	if more && place(x.free, d).spots != nil {
		return nil
	}

	short := findShortage(x.free, d, false)
	fit := api.Reason{
		Code: short.code, Text: short.text, Need: short.need, Have: short.have,
		Missing: short.missing, Where: short.where,
	}
	order, orderly := x.orderReason(r, d)
	health, ill, cure := x.healthReason(d)
	blockers := x.blockers(d, short.lack)
	releasing := slices.DeleteFunc(slices.Clone(blockers), func(h *Holder) bool { return !h.Releasing })
	fit.Blockers = names(blockers)
	fit.Frees = x.frees(d, blockers, cure)
	if len(blockers) > 0 {
		fit.Text += "; held by " + shortList(names(blockers))
	}

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
	if orderly {
		out = append(out, order)
	}
	if ill && cure {
		out = append(out, health)
	}
	release := x.releasingReason(releasing)
	if len(releasing) > 0 && x.fitsWithout(d, releasing) {
		out = append(out, release, fit)
	} else if len(releasing) > 0 {
		out = append(out, fit, release)
	} else {
		out = append(out, fit)
	}
	if ill && !cure {
		out = append(out, health)
	}
	return out
}

// orderReason: the request would have fitted at the beginning of the cycle, and those
// whose turn came first took the room.
func (x *explainer) orderReason(r *Request, d *demand) (api.Reason, bool) {
	if len(x.fresh) == 0 || place(x.begun(), d).spots == nil {
		return api.Reason{}, false
	}
	var ahead []string
	servers := x.grounds.servers(d)
	for i := range x.holders {
		h := x.holders[i]
		f := x.fresh[h.Group]
		if f == nil || !x.inTheWay(servers, h, amount{}) {
			continue
		}
		ahead = append(ahead, fmt.Sprintf("%s (%s)", h.called(), x.turns.because(f, r)))
	}
	if len(ahead) == 0 {
		return api.Reason{}, false
	}
	bare := make([]string, 0, len(ahead))
	for i := range x.holders {
		if h := x.holders[i]; x.fresh[h.Group] != nil && x.inTheWay(servers, h, amount{}) {
			bare = append(bare, h.called())
		}
	}
	return api.Reason{
		Code: api.ReasonOrder, Text: "would fit, but the room went to " + shortList(ahead),
		Blockers: bare[:min(len(bare), named)], Frees: "the end of " + shortList(bare),
	}, true
}

// healthReason names nodes that would serve the request and are not ready, and devices
// that are not well. cure says that with them the request would fit.
func (x *explainer) healthReason(d *demand) (reason api.Reason, ill, cure bool) {
	well, gpus, servers := (*overlay)(nil), d.wantsGPU(), x.grounds.servers(d)
	var who, said []string
	for ni, n := range x.free.nodes {
		if n.ready && (!gpus || !n.sick) || !serve(servers, ni) {
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
	reason = api.Reason{
		Code: api.ReasonHealth, Text: strings.Join(said[:min(len(said), listed)], "; "),
		Blockers: who[:min(len(who), named)],
	}
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

func (x *explainer) releasingReason(releasing []*Holder) api.Reason {
	who := names(releasing)
	return api.Reason{
		Code:     api.ReasonReleasing,
		Text:     shortList(who) + " ended, but what it held is free only when its processes are proven gone",
		Blockers: who, Frees: "the proof that the processes of " + shortList(who) + " are gone",
	}
}

// blockers are the holders on nodes that would serve the request if they were empty,
// of those things that are short.
func (x *explainer) blockers(d *demand, lack amount) []*Holder {
	var out []*Holder
	servers := x.grounds.servers(d)
	for i := range x.holders {
		if x.inTheWay(servers, x.holders[i], lack) {
			out = append(out, x.holders[i])
		}
	}
	return out
}

func (x *explainer) inTheWay(servers [][]bool, h *Holder, lack amount) bool {
	if !lack.isZero() && !h.holdsAnyOf(lack) {
		return false
	}
	return slices.ContainsFunc(h.Nodes, func(id string) bool {
		ni, ok := x.at[id]
		return ok && serve(servers, ni)
	})
}

// serve reports whether a node would hold anything of a demand if it were empty.
func serve(servers [][]bool, ni int) bool {
	return slices.ContainsFunc(servers, func(of []bool) bool { return of[ni] })
}

func (h *Holder) holdsAnyOf(lack amount) bool {
	if lack.cpu > 0 && h.CPU > 0 || lack.mem > 0 && h.Memory > 0 {
		return true
	}
	if lack.gpus == 0 && lack.share == 0 {
		return false
	}
	return h.GPUs > 0 || slices.ContainsFunc(h.Bundles, func(b Held) bool { return len(b.Devices) > 0 })
}

func names(hs []*Holder) []string {
	var out []string
	for i := range hs {
		if i == named {
			break
		}
		out = append(out, hs[i].called())
	}
	return out
}

// frees says what would let the request start. Where the caller said what the holders
// hold, it is proven by placing the request without them.
func (x *explainer) frees(d *demand, blockers []*Holder, cure bool) string {
	if len(blockers) == 0 {
		if cure {
			return "the nodes and devices named here being ready and well again"
		}
		return "more nodes, or a smaller request"
	}
	for _, h := range blockers[:min(len(blockers), proved)] {
		if x.fitsWithout(d, []*Holder{h}) {
			return "the end of " + h.called() + " alone"
		}
	}
	for n := 2; n <= min(len(blockers), proved); n++ {
		if x.fitsWithout(d, blockers[:n]) {
			return "the end of " + strings.Join(names(blockers[:n]), " and ")
		}
	}
	if len(blockers) == 1 {
		return "the end of " + blockers[0].called() + ", or more nodes"
	}
	return "the end of enough of " + shortList(names(blockers)) + ", or more nodes"
}

// fitsWithout reports whether the request is proven to fit once the holders are gone.
func (x *explainer) fitsWithout(d *demand, gone []*Holder) bool {
	o := x.free
	defer o.back(o.mark())
	for _, h := range gone {
		if len(h.Bundles) == 0 {
			return false
		}
		for _, b := range h.Bundles {
			if ni, ok := x.at[b.Node]; ok {
				n := o.nodes[ni].clone()
				n.giveBack(b)
				if n.held == h.Group {
					n.held = ""
				}
				o.set(ni, n)
			}
		}
	}
	return place(o, d).spots != nil
}

func (n *nodeState) giveBack(b Held) {
	n.cpu = min(n.capCPU, satAdd(n.cpu, max(0, int64(b.CPU))))
	n.mem = min(n.capMem, satAdd(n.mem, max(0, int64(b.Memory))))
	for d := range n.gpus {
		g := &n.gpus[d]
		switch {
		case !slices.Contains(b.Devices, g.uuid):
		case b.Share > 0:
			g.share = min(wholeShare, g.share+b.Share)
			g.free = min(g.usable, satAdd(g.free, max(0, int64(b.GPUMemory))))
		default:
			g.share, g.free = wholeShare, g.usable
		}
	}
}
