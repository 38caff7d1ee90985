package schedule

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// proved is how many holders are tried one by one for "what would free it", each try being
// one placement.
const proved = 12

// fitReason explains one thing that is short: who has it, and what would free enough of
// it. ending are those of them that have ended already.
func (x *explainer) fitReason(r *Request, d *demand, short *shortage, cure bool) (fit api.Reason, ending []*Holder) {
	fit = api.Reason{
		Code: short.code, Text: short.text, Need: short.need, Have: short.have, Missing: short.missing, Where: short.where,
	}
	blockers := x.blockers(r, d, short.lack)
	who := names(blockers)
	fit.Block(who)
	fit.Frees, fit.When = x.frees(d, blockers, x.ownHolders(r), cure)
	if len(who) > 0 {
		fit.Text += "; held by " + shortList(who)
	}
	return fit, slices.DeleteFunc(blockers, func(h *Holder) bool { return !h.Releasing })
}

// blockers are the holders on nodes that would serve the request if they were empty, of
// those things that are short. What the request itself still holds is none.
func (x *explainer) blockers(r *Request, d *demand, lack amount) []*Holder {
	var out []*Holder
	servers := x.grounds.servers(d)
	for _, h := range x.holders {
		if h.Group != r.ID && x.inTheWay(servers, h, lack) {
			out = append(out, h)
		}
	}
	return out
}

// ownHolders are what is left of an attempt before of the request.
func (x *explainer) ownHolders(r *Request) []*Holder {
	if !x.own[r.ID] {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(x.holders), func(h *Holder) bool { return h.Group != r.ID })
}

func (x *explainer) inTheWay(servers [][]bool, h *Holder, lack amount) bool {
	if !lack.isZero() && !h.holdsAnyOf(lack) {
		return false
	}
	return slices.ContainsFunc(h.Nodes, func(id string) bool {
		ni, ok := x.at[id]
		return ok && !x.shut.nodes[ni] && serve(servers, ni)
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
	out := make([]string, len(hs))
	for i, h := range hs {
		out[i] = h.called()
	}
	return out
}

// inOrder sorts holders by name, each once.
func inOrder(hs []*Holder) []*Holder {
	slices.SortFunc(hs, holdersByName)
	return slices.Compact(hs)
}

// endingReasons name what has ended and is not proven gone: the request's own processes of
// an attempt before, and those of others.
func (x *explainer) endingReasons(own, others []*Holder) (out []api.Reason) {
	if len(own) > 0 {
		var nodes []string
		for _, h := range own {
			for _, id := range h.Nodes {
				if ni, ok := x.at[id]; ok {
					nodes = append(nodes, x.left.nodes[ni].name)
				}
			}
		}
		slices.SortFunc(nodes, naturalCompare)
		nodes = slices.Compact(nodes)
		why := api.Reason{
			Code:  api.ReasonReleasing,
			Text:  "its own processes of the attempt before are ending on " + cmp.Or(shortList(nodes), "their nodes") + "; what they held is free only when they are proven gone",
			Where: shortList(nodes), Frees: "the proof that its own processes are gone",
		}
		why.Block(nodes)
		out = append(out, why)
	}
	if len(others) > 0 {
		who := names(others)
		why := api.Reason{
			Code:  api.ReasonReleasing,
			Text:  shortList(who) + " ended, but what " + itWord(len(who)) + " held is free only when " + itsWord(len(who)) + " processes are proven gone",
			Frees: "the proof that the processes of " + shortList(who) + " are gone",
		}
		why.Block(who)
		out = append(out, why)
	}
	return out
}

func itWord(n int) string {
	if n == 1 {
		return "it"
	}
	return "they"
}

func itsWord(n int) string {
	if n == 1 {
		return "its"
	}
	return "their"
}

// frees says what would let the request start, and when that is expected. Where the caller
// said what the holders hold, it is proven by placing the request without them. What the
// request itself holds still is on its way already.
func (x *explainer) frees(d *demand, blockers, own []*Holder, cure bool) (string, time.Time) {
	after := ""
	if len(own) > 0 {
		if x.fitsWithout(d, own) {
			return "the proof that its own processes are gone", time.Time{}
		}
		after = ", once its own processes are gone"
	}
	if len(blockers) == 0 {
		if cure {
			return "the nodes and devices named here being ready and well again", time.Time{}
		}
		return "more nodes, or a smaller request", time.Time{}
	}
	room := x.most(d, own)
	for _, h := range blockers[:min(len(blockers), proved)] {
		if m := room.copied(); m.without(h) && x.fitsWithout(d, append(own, h)) {
			return "the end of " + h.called() + " alone" + after, x.expected(h)
		}
	}
	if set := x.enough(d, blockers, own, room); set != nil {
		who := names(set)
		text := strings.Join(who, " and ")
		if len(who) > listed {
			text = shortList(who)
		}
		return "the end of " + text + after, x.expected(set...)
	}
	if len(blockers) == 1 {
		return "the end of " + blockers[0].called() + after + ", or more nodes", time.Time{}
	}
	return "the end of enough of " + shortList(names(blockers)) + after + ", or more nodes", time.Time{}
}

// enough are those of the blockers, by name, whose end lets the request fit, as many as are
// needed of the first to end; nil: that is not known of any.
func (x *explainer) enough(d *demand, blockers, own []*Holder, room *most) []*Holder {
	if len(blockers) < 2 {
		return nil
	}
	now := nanos(x.now)
	set := slices.Clone(blockers)
	slices.SortStableFunc(set, func(a, b *Holder) int {
		x, _ := a.ends(now)
		y, _ := b.ends(now)
		return cmp.Compare(x, y)
	})
	first := slices.IndexFunc(set, room.without)
	if first < 0 {
		return nil
	}
	fits := func(last int) bool { return x.fitsWithout(d, append(slices.Clone(own), set[:last+1]...)) }
	last := first
	for step := 1; !fits(last); step *= 2 {
		if last == len(set)-1 {
			return nil
		}
		first, last = last+1, min(last+step, len(set)-1)
	}
	set = set[:1+first+searchFirst(last-first+1, func(k int) bool { return first+k == last || fits(first+k) })]
	// The last is needed. Of the others let those stay that are not.
	for i := len(set) - 2; i >= 0 && len(set) > 1 && len(set) <= proved; i-- {
		if less := slices.Delete(slices.Clone(set), i, i+1); x.fitsWithout(d, append(slices.Clone(own), less...)) {
			set = less
		}
	}
	return inOrder(set)
}

// expected is when the last of some holders is expected to end; zero: of one it is not known.
func (x *explainer) expected(hs ...*Holder) (last time.Time) {
	for _, h := range hs {
		if h.Ends.IsZero() || h.Releasing {
			return time.Time{}
		}
		end, _ := h.ends(nanos(x.now))
		if at := moment(end); at.After(last) {
			last = at
		}
	}
	return last
}

// fitsWithout reports whether the request is proven to fit once the holders are gone.
func (x *explainer) fitsWithout(d *demand, gone []*Holder) bool {
	o := x.free
	defer o.back(o.mark())
	for _, h := range gone {
		if len(h.Bundles) == 0 {
			return false
		}
		at, n := -1, (*nodeState)(nil) // what a group has on one node stands together
		for _, b := range h.Bundles {
			ni, ok := x.at[b.Node]
			if !ok || x.shut.nodes[ni] {
				continue
			}
			if ni != at {
				if n != nil {
					o.set(at, n)
				}
				at, n = ni, o.nodes[ni].clone()
				if n.held == h.Group {
					n.held = ""
				}
			}
			n.giveBack(b)
		}
		if n != nil {
			o.set(at, n)
		}
	}
	return place(o, d).spots != nil
}

// most is how much room there can be at most for the most demanding bundles of a demand, in
// each group of nodes that has to hold them together, while holders leave.
type most struct {
	x       *explainer
	need    int64
	groupOf []int32 // nil: all nodes are one group
	free    []int32 // room by node
	empty   []int32
	sums    []int64 // by group
	largest int64   // of them
	seen    map[int]bool
}

// most begins with what is free, and what the request itself still holds.
func (x *explainer) most(d *demand, own []*Holder) *most {
	c := d.classes[0]
	m := &most{x: x, need: d.needed(0), free: slices.Clone(x.free.tallyOf(d, c).node), empty: x.grounds.rooms(c), sums: []int64{0}, seen: map[int]bool{}}
	if li := x.free.topo.level(d.level); d.required && li >= 0 {
		m.groupOf, m.sums = x.free.topo.of[li], make([]int64, len(x.free.topo.domains))
	}
	for ni, k := range m.free {
		if k > 0 {
			m.add(ni, int64(k))
		}
	}
	for _, h := range own {
		m.without(h)
	}
	return m
}

func (m *most) copied() *most {
	out := *m
	out.sums, out.seen = slices.Clone(m.sums), maps.Clone(m.seen)
	return &out
}

func (m *most) add(ni int, k int64) {
	g := int32(0)
	if m.groupOf != nil {
		g = m.groupOf[ni]
	}
	if g >= 0 && k > 0 {
		m.sums[g] += k
		m.largest = max(m.largest, m.sums[g])
	}
}

// without counts the nodes of a holder as if nobody had anything there; false: there is too
// little even then.
func (m *most) without(h *Holder) bool {
	for _, id := range h.Nodes {
		if ni, ok := m.x.at[id]; ok && !m.x.shut.nodes[ni] && !m.seen[ni] {
			m.seen[ni] = true
			m.add(ni, int64(m.empty[ni])-int64(m.free[ni]))
		}
	}
	return m.largest >= m.need
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

// lineReason: whoever does not fit holds up all that stand behind.
func (x *explainer) lineReason(r *Request, turn int) (api.Reason, bool) {
	if !x.s.Policy.NoBackfill {
		return api.Reason{}, false
	}
	for i, first := range x.c.order[:turn] {
		if x.c.fates[i].placed > 0 || first.Spec.Pool != "" && r.Spec.Pool != "" && first.Spec.Pool != r.Spec.Pool {
			continue
		}
		why := api.Reason{
			Code: api.ReasonOrder, Text: fmt.Sprintf("would fit now, but stands behind %s, which waits, and nothing is started out of turn", first.called()),
			Frees: "the start of " + first.called(), When: x.c.decision(i).Start,
		}
		why.Block([]string{first.called()})
		return why, true
	}
	return api.Reason{}, false
}
