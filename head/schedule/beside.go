package schedule

import (
	"fmt"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Beside are the nodes, by id, that further bundles of a placed group may not use, with the
// reason: a strategy, a level or whole nodes are about those bundles that stay where they are
// too.
func Beside(s *Snapshot, spec *api.GroupSpec, stays map[string]bool, now time.Time) map[string]string {
	if !spec.WholeNodes || len(s.Links) == 0 || len(stays) == 0 {
		return besideOn(s, spec, stays, nil)
	}
	o := newOverlay(s.Nodes)
	o.links = newLinkState(s, o, now)
	return besideOn(s, spec, stays, o)
}

// besideOn is Beside; linked knows the links, nil: they do not matter.
func besideOn(s *Snapshot, spec *api.GroupSpec, stays map[string]bool, linked *overlay) map[string]string {
	if len(stays) == 0 {
		return nil
	}
	out := map[string]string{}
	if linked != nil {
		linked.apart(stays, out)
	}
	if spec.Strategy == api.StrictSpread || spec.PerNode > 0 {
		for id := range stays {
			out[id] = "the group has bundles there already"
		}
	}
	packed := spec.Strategy == api.StrictPack
	level := spec.Level
	if spec.LevelWait != nil { // only preferred
		level = ""
	}
	if !packed && level == "" {
		return out
	}
	paths := domainPaths(s.Levels, level)
	home, known := "", false
	for _, n := range s.Nodes {
		if stays[n.ID] {
			if at, ok := paths(n); ok {
				home, known = at, true
			}
		}
	}
	for _, n := range s.Nodes {
		at, ok := paths(n)
		switch {
		case packed && !stays[n.ID]:
			out[n.ID] = "the group is on one other node (STRICT_PACK)"
		case level != "" && (!ok || !known || at != home):
			out[n.ID] = fmt.Sprintf("the group is in one other %s", level)
		}
	}
	return out
}

// apart adds the nodes that are not linked well with each of some.
func (o *overlay) apart(stays map[string]bool, to map[string]string) {
	var home []int
	for ni, n := range o.nodes {
		if stays[n.id] {
			home = append(home, ni)
		}
	}
	for ni, n := range o.nodes {
		if stays[n.id] {
			continue
		}
		for _, at := range home {
			if link, why, ok := o.links.between(o, at, ni); !ok {
				to[n.id] = link + " " + why
				break
			}
		}
	}
}

// domainPaths tells the domain of a level that a node is in, by its whole path; false: it
// is in none.
func domainPaths(levels []api.Level, level string) func(n *Node) (string, bool) {
	depth := 0
	for i, l := range levels {
		if l.Name == level {
			depth = i + 1
			break
		}
	}
	return func(n *Node) (string, bool) {
		var path strings.Builder
		for _, l := range levels[:depth] {
			value, ok := n.Labels[l.Label]
			if !ok {
				return "", false
			}
			fmt.Fprintf(&path, "%q/", value)
		}
		return path.String(), depth > 0
	}
}
