package schedule

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// shut is what of the room is not for a request though nobody holds it: nodes reserved for
// others, or under maintenance, within the time that it runs, and the places that are kept
// for others. Reasons name none of it as room, and nobody on it as a blocker.
type shut struct {
	key    string // equal for requests to which the same is shut
	nodes  map[int]bool
	booked []*booking
	kept   []*Request
}

// shutTo is what is shut to a request.
func (x *explainer) shutTo(r *Request) *shut {
	out := &shut{nodes: map[int]bool{}}
	var key strings.Builder
	to := after(nanos(x.now), r.runs())
	var own *booking
	for _, b := range x.c.booked {
		if b.Name == r.Spec.Reservation && b.serves(r) {
			own = b
			continue
		}
		if b.from < to && !b.serves(r) {
			out.booked = append(out.booked, b)
			fmt.Fprintf(&key, " b%q", b.Name)
			for _, ni := range b.nodes {
				out.nodes[ni] = true
			}
		}
	}
	if own != nil { // it uses no other nodes
		fmt.Fprintf(&key, " in %q", own.Name)
		out.booked = nil
		for ni := range x.left.nodes {
			if !slices.Contains(own.nodes, ni) {
				out.nodes[ni] = true
			}
		}
	}
	for _, k := range x.kept {
		if !(&former{request: k}).opens(r) {
			out.kept = append(out.kept, k)
			fmt.Fprintf(&key, " k%q", k.ID)
		}
	}
	out.key = key.String()
	return out
}

// open is an overlay without what is shut to the request that is explained.
func (x *explainer) open(o *overlay) *overlay {
	if x.shut.key == "" {
		return o
	}
	o = o.clone()
	for ni := range x.shut.nodes {
		n := o.nodes[ni].clone()
		n.ready = false
		o.set(ni, n)
	}
	for _, k := range x.shut.kept {
		for _, at := range k.Former {
			ni, ok := x.at[at.Node]
			if !ok || at.Bundle < 0 || at.Bundle >= int64(len(k.Spec.Bundles)) {
				continue
			}
			n, b := o.nodes[ni].clone(), &k.Spec.Bundles[at.Bundle]
			n.keep(b, at.Devices)
			o.set(ni, n)
		}
	}
	return o
}

// someOpen reports whether a node that would serve a demand, if it were empty, is open to
// the request that is explained.
func (x *explainer) someOpen(d *demand) bool {
	servers := x.grounds.servers(d)
	for ni := range x.free.nodes {
		if !x.shut.nodes[ni] && serve(servers, ni) {
			return true
		}
	}
	return false
}

// keep takes out of a node what is kept there.
func (n *nodeState) keep(b *api.Bundle, devices []string) {
	n.cpu, n.mem = max(0, n.cpu-max(0, int64(b.CPU))), max(0, n.mem-max(0, int64(b.Memory)))
	for d := range n.gpus {
		g := &n.gpus[d]
		switch {
		case !slices.Contains(devices, g.uuid):
		case b.Share > 0:
			c := &class{share: b.Share, gpuMem: int64(b.GPUMemory)}
			g.share, g.free = max(0, g.share-b.Share), max(0, g.free-g.shareBytes(c))
		default:
			g.share, g.free = 0, 0
		}
	}
}

// shutReasons name what is shut to the request and has room for any of it.
func (x *explainer) shutReasons(d *demand) []api.Reason {
	var out []api.Reason
	for _, b := range x.shut.booked {
		o := obstacle{booking: b}
		for _, ni := range b.nodes {
			if d.roomOn(x.left.nodes[ni]) {
				o.nodes = append(o.nodes, x.left.nodes[ni].name)
			}
		}
		if len(o.nodes) > 0 {
			out = append(out, o.reason(nanos(x.now)))
		}
	}
	for _, k := range x.shut.kept {
		var nodes []string
		for _, at := range k.Former {
			if ni, ok := x.at[at.Node]; ok && d.roomOn(x.left.nodes[ni]) {
				nodes = append(nodes, x.left.nodes[ni].name)
			}
		}
		slices.SortFunc(nodes, naturalCompare)
		if nodes = slices.Compact(nodes); len(nodes) == 0 {
			continue
		}
		why := api.Reason{
			Code: api.ReasonReservation, Text: fmt.Sprintf("%s: kept for %s, should it lose a node", shortList(nodes), k.called()),
			Blockers: []string{k.called()}, Where: shortList(nodes), Frees: "the end of " + k.called(),
		}
		if !k.FormerUntil.IsZero() {
			why.Text = fmt.Sprintf("%s: kept for %s, which lost a part of its place, until %s", shortList(nodes), k.called(), stamp(nanos(k.FormerUntil)))
			why.Frees, why.When = "its start, or the end of that at "+stamp(nanos(k.FormerUntil)), k.FormerUntil
		}
		out = append(out, why)
	}
	return out
}
