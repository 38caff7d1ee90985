package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// What keeps a request from a place that has enough by number: the level, whole nodes,
// links.

// as is the overlay as one demand sees it: a node that is not for it has nothing.
func (o *overlay) as(d *demand) *overlay {
	var seen *overlay
	for ni, n := range o.nodes {
		if n.held == "" && (!d.whole || n.idle()) {
			continue
		}
		if seen == nil {
			seen = o.clone()
		}
		n = n.clone()
		n.cpu, n.mem = 0, 0
		for g := range n.gpus {
			n.gpus[g].share, n.gpus[g].free = 0, 0
		}
		seen.set(ni, n)
	}
	if seen == nil {
		return o
	}
	return seen
}

// unknownLevel refuses a level that is not declared: it never means "anywhere".
func (d *demand) unknownLevel(o *overlay) (shortage, bool) {
	if d.level == "" || o.topo.level(d.level) >= 0 {
		return shortage{}, false
	}
	return shortage{
		code: api.ReasonBadSpec, text: fmt.Sprintf("there is no level %q; %s", d.level, o.topo.names()),
		need: "the level " + d.level, have: "no level of that name", missing: "the level " + d.level,
	}, true
}

// wholeShortage: enough is free, but not on nodes of which nothing else is held.
func wholeShortage(o *overlay, d *demand, inPool []int) (shortage, bool) {
	if !d.whole {
		return shortage{}, false
	}
	shared := newDemand(withoutWhole(d.request), d.now)
	shared.required = d.required
	if place(o, shared).spots == nil {
		return shortage{}, false
	}
	var room int64
	var idle []string
	c := d.classes[0]
	for _, ni := range inPool {
		if n := o.nodes[ni]; d.serves(n, c) && n.count(c, 1) > 0 {
			idle = append(idle, n.name)
			room += int64(c.room(n))
		}
	}
	have := "no such node is idle"
	if len(idle) > 0 {
		have = fmt.Sprintf("%s %s idle, with room for %s", shortList(idle), isWord(len(idle)), plural(room, "bundle"))
	}
	s := shortage{code: api.ReasonFit, lack: d.sum(), need: "whole nodes for " + plural(int64(d.total), "bundle"), have: have}
	s.missing = "more idle nodes"
	if len(d.classes) == 1 && room < int64(d.total) {
		s.missing = fmt.Sprintf("idle nodes for %s", plural(int64(d.total)-room, "bundle"))
	}
	s.text = fmt.Sprintf("takes whole nodes, %s; %s missing", s.have, s.missing)
	return s, true
}

func withoutWhole(r *Request) *Request {
	less := *r
	less.Spec.WholeNodes = false
	return &less
}

func isWord(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// levelShortage: there is room, but not within one domain of the level.
func levelShortage(o *overlay, d *demand, inPool []int, never bool) (shortage, bool) {
	level := o.topo.level(d.level)
	if !d.required || level < 0 {
		return shortage{}, false
	}
	if !fitsAnywhere(o, d) {
		return shortage{}, false
	}
	s := shortage{code: api.ReasonTopology, lack: d.sum()}
	s.need = fmt.Sprintf("one %s for %s", d.level, d.sum().text(d.sum()))
	best, most := none, int64(-1)
	c := d.classes[0]
	t := o.tallyOf(d, c)
	for _, di := range o.topo.at[level] {
		if room := min(t.in[di], int64(len(c.bundles))); room > most {
			best, most = di, room
		}
	}
	now := "has room now"
	if never {
		now = "could ever have room"
	}
	switch {
	case best == none:
		s.have, s.missing = "no node is in any "+d.level, "1 "+d.level
		s.text = fmt.Sprintf("is to run within one %s, and no node is in one", d.level)
	case most < int64(len(c.bundles)):
		at := o.topo.domains[best].path
		s.where = d.level + " " + at
		s.have = fmt.Sprintf("room for %d of %s in %s", most, plural(int64(len(c.bundles)), "bundle"), at)
		s.missing = "room for " + plural(int64(len(c.bundles))-most, "bundle") + " there"
		s.text = fmt.Sprintf("is to run within one %s, and none %s for all of it: the nearest fit, %s, has it for %d of %s",
			d.level, now, at, most, plural(int64(len(c.bundles)), "bundle"))
	default:
		s.have, s.missing = "enough of each kind of bundle, not of all together", "a "+d.level+" that holds all bundles"
		s.text = fmt.Sprintf("is to run within one %s, and none %s for all its different bundles together", d.level, now)
	}
	if lacking := outsideOf(o, d, level, inPool); len(lacking) > 0 {
		s.text += fmt.Sprintf("; %s %s in no %s for want of %s", shortList(lacking), isWord(len(lacking)), d.level, o.topo.labelsTo(level))
	}
	return s, true
}

// fitsAnywhere reports whether a demand fits if it need not be within a level.
func fitsAnywhere(o *overlay, d *demand) bool {
	if len(d.classes) == 1 && (d.strategy == api.Pack || d.strategy == api.Spread) {
		return o.tallyOf(d, d.classes[0]).total >= int64(d.total) // equal bundles fit where they are counted
	}
	anywhere := *d
	anywhere.level, anywhere.required = "", false
	return placeAll(o, &anywhere).spots != nil
}

// outsideOf names the nodes that would serve and are in no domain of the level.
func outsideOf(o *overlay, d *demand, level int, inPool []int) []string {
	var out []string
	for _, ni := range inPool {
		n := o.nodes[ni]
		if o.topo.of[level][ni] == none && slices.ContainsFunc(d.classes, func(c *class) bool { return hasLabels(n, c) && n.count(c, 1) > 0 }) {
			out = append(out, n.name)
		}
	}
	return out
}

// labelsTo are the labels that put a node into a domain of a level.
func (t *topology) labelsTo(level int) string {
	var labels []string
	for _, l := range t.levels[:level+1] {
		labels = append(labels, l.Label)
	}
	return "the " + pluralWord(len(labels), "label") + " " + strings.Join(labels, ", ")
}

// levelWaitReason says until when a request holds out for its preferred level.
func (x *explainer) levelWaitReason(r *Request, d *demand) (api.Reason, bool) {
	if !d.required || r.Spec.LevelWait == nil || !x.fitsBut(r, "level") {
		return api.Reason{}, false
	}
	reason := api.Reason{
		Code: api.ReasonTopology, Where: r.Spec.Level,
		Text:  fmt.Sprintf("prefers one %s and waits for it for %s before it takes several", r.Spec.Level, time.Duration(*r.Spec.LevelWait)),
		Frees: "the end of that wait",
	}
	if !r.Since.IsZero() {
		reason.When = r.Since.Add(time.Duration(*r.Spec.LevelWait))
		reason.Frees += " at " + r.Since.Add(time.Duration(*r.Spec.LevelWait)).UTC().Format(time.RFC3339)
	}
	return reason, true
}

// linkReason names the links for which whole nodes are not taken.
func (x *explainer) linkReason(r *Request, d *demand) (api.Reason, bool) {
	if !x.fitsBut(r, linkHealth) {
		return api.Reason{}, false
	}
	got := placeAll(x.free, d)
	if got.spots == nil {
		return api.Reason{}, false
	}
	var nodes []int
	for i := range got.spots {
		nodes = append(nodes, got.spots[i].node)
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	var said, who []string
	for i, a := range nodes {
		for _, b := range nodes[i+1:] {
			link, why, ok := x.free.links.between(x.free, a, b)
			if ok {
				continue
			}
			if text := link + " " + why; !slices.Contains(said, text) {
				said = append(said, text)
			}
			who = append(who, x.free.nodes[a].name, x.free.nodes[b].name)
		}
	}
	slices.SortFunc(who, naturalCompare)
	who = slices.Compact(who)
	text := strings.Join(said[:min(len(said), listed)], "; ")
	if more := len(said) - listed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	out := api.Reason{
		Code: api.ReasonHealth, Text: "whole nodes need a healthy network between them: " + text, Frees: "a fresh healthy check of the links of " + shortList(who),
	}
	out.Block(who)
	return out, true
}
