package schedule

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// defaultLinkFresh is how old the word on a link may be.
const defaultLinkFresh = 10 * time.Minute

// linkState is what is known of the links between nodes at one time.
type linkState struct {
	node  map[int]linkWord    // of a node to the rest
	pair  map[[2]int]linkWord // of two nodes, the lower first
	names map[string]int      // of nodes, by name and by id
}

// linkWord is the newest word on a link: why is empty when it is healthy and fresh.
type linkWord struct {
	checked time.Time
	healthy bool
	why     string
}

// newLinkState reads the links of a snapshot; nil if there are none, and then links are not
// checked.
func newLinkState(s *Snapshot, o *overlay, now time.Time) *linkState {
	if len(s.Links) == 0 {
		return nil
	}
	fresh := cmp.Or(s.Policy.LinkFresh, defaultLinkFresh)
	l := &linkState{node: map[int]linkWord{}, pair: map[[2]int]linkWord{}, names: map[string]int{}}
	for ni, n := range o.nodes {
		l.names[n.name] = ni
	}
	for ni, n := range o.nodes {
		l.names[n.id] = ni
	}
	for _, link := range s.Links {
		word := linkWord{checked: link.Checked, healthy: link.Healthy, why: wordOf(link, now, fresh)}
		a, ok := l.names[link.A]
		if !ok {
			continue
		}
		if link.B == "" {
			l.node[a] = newer(l.node[a], word)
			continue
		}
		if b, ok := l.names[link.B]; ok && a != b {
			key := [2]int{min(a, b), max(a, b)}
			l.pair[key] = newer(l.pair[key], word)
		}
	}
	return l
}

// wordOf says what is wrong with a link, "" if nothing is.
func wordOf(link *api.Link, now time.Time, fresh time.Duration) string {
	switch age := now.Sub(link.Checked); {
	case link.Checked.IsZero():
		return "was never checked"
	case age > fresh:
		return fmt.Sprintf("was checked last %s ago, more than %s", age.Round(time.Second), fresh)
	case !link.Healthy:
		return "is not healthy (" + cmp.Or(link.Why, "no reason given") + ")"
	}
	return ""
}

// newer is the later of two words on a link; of two of one moment the worse.
func newer(a, b linkWord) linkWord {
	switch c := a.checked.Compare(b.checked); {
	case c > 0 || c == 0 && a.why > b.why:
		return a
	default:
		return b
	}
}

func (l *linkState) same(m *linkState) bool {
	if l == nil || m == nil {
		return l == nil && m == nil
	}
	equal := func(a, b linkWord) bool { return (a.why == "") == (b.why == "") }
	return maps.EqualFunc(l.node, m.node, equal) && maps.EqualFunc(l.pair, m.pair, equal)
}

// between says what is wrong with the network between two nodes; ok: nothing is. The word
// on the pair goes before that on each of them, a node that is cut off before both.
func (l *linkState) between(o *overlay, a, b int) (link, why string, ok bool) {
	wa, hasA := l.node[a]
	wb, hasB := l.node[b]
	switch {
	case hasA && !wa.healthy:
		return "the link of " + o.nodes[a].name, wa.why, false
	case hasB && !wb.healthy:
		return "the link of " + o.nodes[b].name, wb.why, false
	}
	if w, has := l.pair[[2]int{min(a, b), max(a, b)}]; has {
		return pairName(o, a, b), w.why, w.why == ""
	}
	switch {
	case !hasA && !hasB:
		return pairName(o, a, b), "was never checked", false
	case !hasA:
		return "the link of " + o.nodes[a].name, "was never checked", false
	case !hasB:
		return "the link of " + o.nodes[b].name, "was never checked", false
	case wa.why != "":
		return "the link of " + o.nodes[a].name, wa.why, false
	}
	return "the link of " + o.nodes[b].name, wb.why, wb.why == ""
}

func pairName(o *overlay, a, b int) string {
	return "the link " + o.nodes[min(a, b)].name + "–" + o.nodes[max(a, b)].name
}

// alone reports whether a node has no good link to any other.
func (l *linkState) alone(o *overlay, ni int) bool {
	if w, has := l.node[ni]; has {
		if w.why == "" {
			return false
		}
		if !w.healthy {
			return true
		}
	}
	for key, w := range l.pair {
		if w.why != "" || key[0] != ni && key[1] != ni {
			continue
		}
		if _, _, ok := l.between(o, key[0], key[1]); ok {
			return false
		}
	}
	return true
}

// linkTries bounds the search for nodes that are all linked well with each other.
const linkTries = 256

// placeLinked decides a demand: whole nodes, where there are several, with healthy links
// between all of them.
func placeLinked(o *overlay, d *demand) outcome {
	got := placeAll(o, d)
	if !d.whole || o.links == nil || got.spots == nil {
		return got
	}
	if a, _ := o.badPair(got.spots); a < 0 {
		return got
	}
	// One node needs no link at all; over several those without any are of no use.
	if one := *d; d.strategy == api.Pack && d.perNode == 0 {
		one.strategy = api.StrictPack
		if got = placeAll(o, &one); got.spots != nil {
			return got
		}
	}
	less := *d
	less.avoid = maps.Clone(d.avoid)
	if less.avoid == nil {
		less.avoid = map[string]string{}
	}
	for ni, n := range o.nodes {
		if o.links.alone(o, ni) {
			less.avoid[n.id] = "has no healthy link"
		}
	}
	tries := linkTries
	got = placeClique(o, &less, &tries)
	if got.spots == nil && d.strategy == api.Spread && d.perNode == 0 {
		// As many nodes as possible may be one.
		one := *d
		one.strategy = api.StrictPack
		if alone := placeAll(o, &one); alone.spots != nil {
			return alone
		}
	}
	return got
}

// placeClique places a demand and, while two of its nodes are not linked well, tries
// without the one and without the other.
func placeClique(o *overlay, d *demand, tries *int) outcome {
	if *tries--; *tries < 0 {
		return outcome{}
	}
	got := placeAll(o, d)
	if got.spots == nil {
		return got
	}
	a, b := o.badPair(got.spots)
	if a < 0 {
		return got
	}
	proven := true
	for _, ni := range []int{b, a} {
		without := *d
		without.avoid = maps.Clone(d.avoid)
		without.avoid[o.nodes[ni].id] = "is not linked well"
		got = placeClique(o, &without, tries)
		if got.spots != nil {
			return got
		}
		proven = proven && got.proven
	}
	return outcome{proven: proven}
}

// badPair is the first two nodes of a placement that are not linked well; -1: all are.
func (o *overlay) badPair(spots []spot) (int, int) {
	var nodes []int
	for i := range spots {
		nodes = append(nodes, spots[i].node)
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	for i, a := range nodes {
		for _, b := range nodes[i+1:] {
			if _, _, ok := o.links.between(o, a, b); !ok {
				return a, b
			}
		}
	}
	return -1, -1
}
