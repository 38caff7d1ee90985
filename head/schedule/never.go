package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Never says why the nodes could not hold the group even if all of them were empty,
// ready and well, or why no quota or capacity would ever allow it, with the missing amount;
// nil if it could start, or if that is not proven. A cluster without nodes is not "never": its nodes have yet to join.
func Never(s *Snapshot, spec api.GroupSpec) *api.Reason {
	if why := NeverAllowed(s, &spec); why != nil {
		return why
	}
	if why := neverCapacity(s.Capacities, &spec); why != nil {
		return why
	}
	if len(s.Nodes) == 0 || len(spec.Bundles) == 0 {
		return nil
	}
	return never(emptied(s.Nodes, s.Levels), newDemand(&Request{Spec: spec}, time.Time{}))
}

// never asks an empty cluster.
func never(o *overlay, d *demand) *api.Reason {
	d.required = d.required && d.request.Spec.LevelWait == nil // what is preferred will be waived
	if s, ok := d.unknownLevel(o); ok {
		return &api.Reason{Code: s.code, Text: s.text, Need: s.need, Have: s.have, Missing: s.missing, Frees: "another level, or its declaration"}
	}
	got := place(o, d)
	if got.spots != nil || !got.proven {
		return nil
	}
	short := findShortage(o, d, true)
	return &api.Reason{
		Code: api.ReasonNeverFits, Text: short.text, Need: short.need, Have: short.have,
		Missing: short.missing, Where: short.where,
		Frees: "a smaller request, or nodes with that much more",
	}
}

// shortage says what keeps a demand from an overlay that place refused.
type shortage struct {
	code                             api.ReasonCode
	text, need, have, missing, where string
	lack                             amount // in which dimensions, for finding who holds them
	last                             bool   // nothing else is short
}

// findShortage looks at the constraints in a fixed order and names the first that
// fails: pool, labels, one node, nodes to spread over, totals, arrangement. never words
// it for an empty cluster.
func findShortage(o *overlay, d *demand, never bool) shortage {
	if s, ok := d.unknownLevel(o); ok {
		return s
	}
	all := o
	o = o.as(d)
	inPool := d.readyInPool(o)
	if len(inPool) == 0 {
		return d.noPool(o)
	}
	for _, c := range d.classes {
		if s, ok := labelShortage(o, c, inPool); ok {
			return s
		}
	}
	if s, ok := wholeShortage(all, d, inPool); ok {
		return s
	}
	if s, ok := levelShortage(o, d, inPool, never); ok {
		return s
	}
	if d.strategy == api.StrictPack {
		return oneNodeShortage(o, d, inPool, never)
	}
	for _, c := range d.classes {
		if s, ok := bundleShortage(o, d, c, inPool, never); ok {
			return s
		}
	}
	if d.perNode > 0 {
		if s, ok := perNodeShortage(o, d, never); ok {
			return s
		}
	}
	if d.strategy == api.StrictSpread {
		if s, ok := spreadShortage(o, d, inPool, never); ok {
			return s
		}
	}
	s, ok := totalShortage(o, d, inPool, never)
	if !ok {
		s = arrangementShortage(o, d, inPool, never)
	}
	s.last = true
	return s
}

// shortages is findShortage, and whatever else is short by itself: kinds of bundles that fit
// on no node, and what the nodes have too little of together, of things not named already.
func shortages(o *overlay, d *demand) []shortage {
	first := findShortage(o, d, false)
	out := []shortage{first}
	if first.last {
		return out
	}
	o = o.as(d)
	inPool := d.readyInPool(o)
	if len(inPool) == 0 || d.level != "" && o.topo.level(d.level) < 0 {
		return out
	}
	said := first.lack
	add := func(s shortage, ok bool) {
		if !ok || slices.ContainsFunc(out, func(have shortage) bool { return have.text == s.text }) {
			return
		}
		if s.lack.isZero() || !s.lack.without(said).isZero() {
			out, said = append(out, s), said.plus(s.lack)
		}
	}
	for _, c := range d.classes {
		if s, ok := labelShortage(o, c, inPool); ok {
			add(s, true)
			continue
		}
		add(bundleShortage(o, d, c, inPool, false))
	}
	add(totalShortage(o, d, inPool, false))
	return out
}

// readyInPool lists the ready nodes of the demand's pool.
func (d *demand) readyInPool(o *overlay) []int {
	var out []int
	for ni, n := range o.nodes {
		if n.ready && d.inPool(n) {
			out = append(out, ni)
		}
	}
	return out
}

func (d *demand) noPool(o *overlay) shortage {
	if d.pool == "" {
		return shortage{
			code: api.ReasonHealth, text: fmt.Sprintf("none of %s is ready", plural(int64(len(o.nodes)), "node")),
			need: d.sum().text(d.sum()), have: "no ready node", missing: "1 ready node",
		}
	}
	s := shortage{code: api.ReasonFit, where: "pool " + d.pool, need: "a ready node of pool " + d.pool, have: "none", missing: "1 ready node"}
	var pools []string
	of := 0
	for ni := range o.nodes {
		if o.nodes[ni].pool == d.pool {
			of++
		} else if p := o.nodes[ni].pool; p != "" {
			pools = append(pools, p)
		}
	}
	if of > 0 {
		s.code = api.ReasonHealth
		s.text = fmt.Sprintf("none of %s of pool %q is ready", plural(int64(of), "node"), d.pool)
		return s
	}
	s.text = fmt.Sprintf("no node is in pool %q", d.pool)
	if pools = sortedCopy(pools); len(pools) > 0 {
		s.text += "; the pools are " + shortList(pools)
	} else {
		s.text += "; the cluster has no pools"
	}
	return s
}

func labelShortage(o *overlay, c *class, inPool []int) (shortage, bool) {
	if slices.ContainsFunc(inPool, func(ni int) bool { return hasLabels(o.nodes[ni], c) }) {
		return shortage{}, false
	}
	var want []string
	for _, k := range sortedKeys(c.labels) {
		want = append(want, k+"="+c.labels[k])
	}
	for i := range c.where {
		want = append(want, ruleText(&c.where[i]))
	}
	var names []string
	for _, ni := range inPool {
		names = append(names, o.nodes[ni].name)
	}
	return shortage{
		code: api.ReasonTopology,
		text: fmt.Sprintf("no ready node carries the %s %s: %s",
			pluralWord(len(want), "label"), strings.Join(want, ", "), shortList(names)+" "+lackWord(len(names))),
		need: "a node labelled " + strings.Join(want, ", "), have: "none", missing: "1 node",
	}, true
}

func pluralWord(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

func lackWord(n int) string {
	if n == 1 {
		return "lacks it"
	}
	return "lack it"
}

func hasWord(n int) string {
	if n == 1 {
		return "has"
	}
	return "have"
}

// bundleShortage: bundles of the class fit on no node, not even one of them.
func bundleShortage(o *overlay, d *demand, c *class, inPool []int, never bool) (shortage, bool) {
	if o.tallyOf(d, c).total > 0 {
		return shortage{}, false
	}
	var nodes []int
	for _, ni := range inPool {
		n := o.nodes[ni]
		if !hasLabels(n, c) {
			continue
		}
		if n.count(c, 1) > 0 {
			return shortage{}, false
		}
		nodes = append(nodes, ni)
	}
	need := c.amount()
	near, lack := nearest(o, nodes, func(n *nodeState) amount { return need.beyond(n.leftOnOneDevice(c)) })
	n := o.nodes[near]
	s := shortage{code: api.ReasonFit, where: "node " + n.name, lack: lack}
	s.need, s.have, s.missing = need.text(lack), n.leftOnOneDevice(c).text(lack), lack.text(lack)
	if c.gpus > 0 && c.gpuMem > 0 && lack.gpus > 0 {
		s.need = c.text()
		s.have += " of that memory"
	}
	if lack.isZero() {
		// Enough by number, too small by memory.
		s.need, s.have, s.missing = c.text(), "no device with that much memory", "a device with that much memory"
		s.lack = need.only(amount{gpus: 1, share: 1})
		s.text = fmt.Sprintf("%s needs %s; no device has that much memory %s", whichBundle(d, c), c.text(), freeOrNothing(never))
		return s, true
	}
	s.text = fmt.Sprintf("%s needs %s on one node; the %s, %s, has %s%s; %s missing",
		whichBundle(d, c), s.need, nearWord(never), n.name, s.have, freeWord(never), s.missing)
	return s, true
}

// whichBundle names the bundles of the class, or the group if it has no others.
func whichBundle(d *demand, c *class) string {
	switch {
	case d.total == 1:
		return "the bundle"
	case len(d.classes) == 1:
		return "each bundle"
	}
	return fmt.Sprintf("bundle %d", c.bundles[0])
}

// oneNodeShortage: STRICT_PACK wants everything on one node.
func oneNodeShortage(o *overlay, d *demand, inPool []int, never bool) shortage {
	var nodes []int
	for _, ni := range inPool {
		if d.servesAll(o.nodes[ni]) {
			nodes = append(nodes, ni)
		}
	}
	if len(nodes) == 0 {
		return shortage{
			code: api.ReasonTopology, text: "no ready node carries the labels of all bundles, and STRICT_PACK wants one node for them",
			need: "a node with the labels of all bundles", have: "none", missing: "1 node",
		}
	}
	need := d.sum()
	near, lack := nearest(o, nodes, func(n *nodeState) amount { return need.beyond(n.left(d.classes[0])) })
	n := o.nodes[near]
	s := shortage{code: api.ReasonFit, where: "node " + n.name, lack: lack}
	if lack.isZero() {
		s.lack = need
		s.need, s.have, s.missing = need.text(need), "enough in sum, in pieces that do not suit", "one more device or a larger piece"
		s.text = fmt.Sprintf("needs %s on one node (STRICT_PACK); %s has as much%s, but the bundles do not fit its devices together",
			s.need, n.name, freeWord(never))
		return s
	}
	s.need, s.have, s.missing = need.text(lack), n.left(d.classes[0]).text(lack), lack.text(lack)
	s.text = fmt.Sprintf("needs %s on one node (STRICT_PACK); the %s, %s, has %s%s; %s missing",
		s.need, nearWord(never), n.name, s.have, freeWord(never), s.missing)
	return s
}

// spreadShortage: STRICT_SPREAD wants a node for each bundle.
func spreadShortage(o *overlay, d *demand, inPool []int, never bool) (shortage, bool) {
	var room int
	for _, ni := range inPool {
		n := o.nodes[ni]
		if slices.ContainsFunc(d.classes, func(c *class) bool { return hasLabels(n, c) && n.count(c, 1) > 0 }) {
			room++
		}
	}
	if room >= d.total {
		return shortage{}, false
	}
	verb := hasWord(room) + " room for one now"
	if never {
		verb = "could ever hold one"
	}
	s := shortage{
		code: api.ReasonFit, lack: d.sum(), need: plural(int64(d.total), "node"),
		have: plural(int64(room), "node"), missing: plural(int64(d.total-room), "node"),
	}
	s.text = fmt.Sprintf("needs %s, one for each bundle (STRICT_SPREAD); %s %s; %s missing", s.need, s.have, verb, s.missing)
	return s, true
}

// perNodeShortage: so many bundles on each node want that many nodes with room for them.
func perNodeShortage(o *overlay, d *demand, never bool) (shortage, bool) {
	c := d.classes[0]
	var room int64
	for _, k := range o.tallyOf(d, c).node {
		if int64(k) >= d.perNode {
			room++
		}
	}
	want := int64(d.total) / d.perNode
	if room >= want {
		return shortage{}, false
	}
	verb := hasWord(int(room)) + " room for that now"
	if never {
		verb = "could ever hold that"
	}
	each := c.amount()
	for range d.perNode - 1 {
		each = each.plus(c.amount())
	}
	s := shortage{
		code: api.ReasonFit, lack: d.sum(), need: fmt.Sprintf("%s with %s on each", plural(want, "node"), each.text(each)),
		have: plural(room, "node"), missing: plural(want-room, "node"),
	}
	s.text = fmt.Sprintf("needs %s with %s on each (%s); %s %s; %s missing",
		plural(want, "node"), each.text(each), plural(d.perNode, "bundle"), s.have, verb, s.missing)
	return s, true
}

// totalShortage: the nodes together have less than is asked for.
func totalShortage(o *overlay, d *demand, inPool []int, never bool) (shortage, bool) {
	need := d.sum()
	var have amount
	for _, ni := range inPool {
		n := o.nodes[ni]
		if slices.ContainsFunc(d.classes, func(c *class) bool { return hasLabels(n, c) }) {
			have = have.plus(n.left(d.classes[0]))
		}
	}
	lack := need.beyond(have)
	if lack.isZero() {
		return shortage{}, false
	}
	s := shortage{code: api.ReasonFit, lack: lack, need: need.text(lack), have: have.text(lack), missing: lack.text(lack)}
	if d.pool != "" {
		s.where = "pool " + d.pool
	}
	if never {
		s.text = fmt.Sprintf("needs %s, the cluster has %s; %s missing", s.need, bare(have, lack), bare(lack, lack))
		if d.pool != "" {
			s.text = fmt.Sprintf("needs %s, pool %q has %s; %s missing", s.need, d.pool, bare(have, lack), bare(lack, lack))
		}
		return s, true
	}
	s.text = fmt.Sprintf("needs %s; %s free; %s missing", s.need, s.have, s.missing)
	return s, true
}

// bare leaves the unit out where there is only one and it was just said:
// "needs 16 GPUs, the cluster has 8; 8 missing".
func bare(a, mask amount) string {
	if mask.gpus > 0 && mask.share == 0 && mask.cpu == 0 && mask.mem == 0 {
		return fmt.Sprint(a.gpus)
	}
	return a.text(mask)
}

// arrangementShortage: enough in sum, but in pieces that do not suit.
func arrangementShortage(o *overlay, d *demand, inPool []int, never bool) shortage {
	s := shortage{code: api.ReasonFit, lack: d.sum()}
	for _, c := range d.classes {
		var fit int64
		want := int64(len(c.bundles))
		for _, ni := range inPool {
			if n := o.nodes[ni]; hasLabels(n, c) {
				fit += n.count(c, want)
			}
		}
		if fit >= want {
			continue
		}
		s.lack = c.amount()
		s.need = fmt.Sprintf("%s of %s", plural(want, "bundle"), c.text())
		s.have, s.missing = plural(fit, "bundle"), plural(want-fit, "bundle")
		verb := "fit now"
		if never {
			verb = "would fit on empty nodes"
		}
		per := "each on one node"
		if c.share > 0 {
			per = "each on one device"
		}
		s.text = fmt.Sprintf("needs %s, %s; %d %s; %s missing", s.need, per, fit, verb, s.missing)
		return s
	}
	s.need, s.have, s.missing = d.sum().text(d.sum()), "enough in sum, in pieces that do not suit", "a larger piece"
	s.text = fmt.Sprintf("needs %s; as much is there%s, but its %s do not fit together",
		s.need, freeWord(never), plural(int64(d.total), "bundle"))
	return s
}

// nearest is the node that lacks least, compared by GPUs, shares, CPU, memory.
func nearest(o *overlay, nodes []int, lacks func(*nodeState) amount) (int, amount) {
	best := nodes[0]
	least := lacks(o.nodes[best])
	for _, ni := range nodes[1:] {
		if l := lacks(o.nodes[ni]); l.before(least) {
			best, least = ni, l
		}
	}
	return best, least
}

func (a amount) before(b amount) bool {
	switch {
	case a.gpus != b.gpus:
		return a.gpus < b.gpus
	case a.share != b.share:
		return a.share < b.share
	case a.cpu != b.cpu:
		return a.cpu < b.cpu
	}
	return a.mem < b.mem
}

func nearWord(never bool) string {
	if never {
		return "largest node"
	}
	return "nearest fit"
}

func freeWord(never bool) string {
	if never {
		return ""
	}
	return " free"
}

func freeOrNothing(never bool) string {
	if never {
		return "at all"
	}
	return "free"
}

// listed is how many names a sentence carries.
const listed = 4

// shortList joins names: "a, b, c, d and 5 more".
func shortList(names []string) string {
	if len(names) <= listed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:listed], ", "), len(names)-listed)
}
