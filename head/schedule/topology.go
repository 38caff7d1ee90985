package schedule

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// MaxLevels bounds how deep the topology may be.
const MaxLevels = 8

// topology is the tree of domains that the labels of the nodes make. A domain is known by
// the whole path of labels from the widest level down, so a rack "r1" of one block is not
// the rack "r1" of another, and no name of a node or value of another level is mistaken
// for it.
type topology struct {
	levels  []api.Level // widest first
	domains []domain    // in order of the first of their nodes, level by level
	of      [][]int32   // level → node → domain, none where a label is missing
	at      [][]int32   // level → its domains
}

// none is no domain: the whole cluster, or a node outside of all.
const none = int32(-1)

type domain struct {
	level  int
	parent int32
	path   string  // for people: "z1/b2"
	nodes  []int32 // ascending
	kids   []int32
}

// newTopology sorts the nodes into domains; nil without levels.
func newTopology(levels []api.Level, nodes []*nodeState) *topology {
	t := &topology{}
	for _, l := range levels {
		// The first of two levels of one name or label is the one that counts.
		if !slices.ContainsFunc(t.levels, func(have api.Level) bool { return have.Name == l.Name || have.Label == l.Label }) {
			t.levels = append(t.levels, l)
		}
	}
	if len(t.levels) == 0 {
		return nil
	}
	type key struct {
		parent int32
		value  string
	}
	above := make([]int32, len(nodes))
	for ni := range above {
		above[ni] = none
	}
	for li, l := range t.levels {
		seen := map[key]int32{}
		of := make([]int32, len(nodes))
		var at []int32
		for ni, n := range nodes {
			of[ni] = none
			value, ok := n.labels[l.Label]
			if !ok || li > 0 && above[ni] == none {
				continue
			}
			k := key{above[ni], value}
			di, ok := seen[k]
			if !ok {
				di = int32(len(t.domains))
				seen[k] = di
				d := domain{level: li, parent: k.parent, path: value}
				if k.parent != none {
					d.path = t.domains[k.parent].path + "/" + value
					t.domains[k.parent].kids = append(t.domains[k.parent].kids, di)
				}
				t.domains = append(t.domains, d)
				at = append(at, di)
			}
			of[ni] = di
			t.domains[di].nodes = append(t.domains[di].nodes, int32(ni))
		}
		t.of, t.at = append(t.of, of), append(t.at, at)
		above = of
	}
	return t
}

// level is the index of a level by its name, -1 if there is none of that name.
func (t *topology) level(name string) int {
	if t == nil {
		return -1
	}
	return slices.IndexFunc(t.levels, func(l api.Level) bool { return l.Name == name })
}

// within is the domain of a level that a domain lies in, or the domain itself.
func (t *topology) within(di int32, level int) int32 {
	for di != none && t.domains[di].level > level {
		di = t.domains[di].parent
	}
	return di
}

// kids are the domains just below one; below none are the widest.
func (t *topology) kids(di int32) []int32 {
	if di == none {
		return t.at[0]
	}
	return t.domains[di].kids
}

// names lists the levels for people.
func (t *topology) names() string {
	if t == nil || len(t.levels) == 0 {
		return "none is declared"
	}
	var names []string
	for _, l := range t.levels {
		names = append(names, l.Name)
	}
	return "the levels are " + strings.Join(names, ", ")
}

// ValidateLevels says what is wrong with the levels of a topology; nil if nothing is.
// Pointers are relative to the list. A level that comes twice would lie within itself.
func ValidateLevels(levels []api.Level) []api.FieldError {
	v := &checker{}
	if len(levels) > MaxLevels {
		v.add("", "%d levels are more than %d", len(levels), MaxLevels)
		return v.errs
	}
	for i, l := range levels {
		at := fmt.Sprintf("/%d", i)
		if l.Name == "" {
			v.add(at+"/name", "a level needs a name, as rack")
		}
		v.name(at+"/name", l.Name)
		if l.Label == "" {
			v.add(at+"/label", "a level needs the node label that names its domains")
		} else if len(l.Label) > MaxLabelBytes || !printable(l.Label) {
			v.add(at+"/label", "label %.40q: 1 to %d printable bytes", l.Label, MaxLabelBytes)
		}
		for j, other := range levels[:i] {
			if other.Name == l.Name && l.Name != "" {
				v.add(at+"/name", "level %q is already /%d: a level cannot lie within itself", l.Name, j)
			}
			if other.Label == l.Label && l.Label != "" {
				v.add(at+"/label", "label %q already names the domains of level %q (/%d): each level needs a label of its own", l.Label, other.Name, j)
			}
		}
	}
	return v.errs
}
