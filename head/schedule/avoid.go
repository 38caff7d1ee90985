package schedule

import (
	"fmt"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// avoidReason names the nodes that the request keeps off although they would serve it.
func (x *explainer) avoidReason(d *demand) (api.Reason, bool) {
	if len(d.avoid) == 0 {
		return api.Reason{}, false
	}
	var who, said []string
	for ni := range x.empty.nodes {
		n := x.empty.nodes[ni]
		why, ok := d.avoid[n.id]
		if !ok || !d.inPool(n) {
			continue
		}
		for _, c := range d.classes {
			if hasLabels(n, c) && n.count(c, 1) > 0 {
				who = append(who, n.name)
				said = append(said, fmt.Sprintf("%s (%s)", n.name, why))
				break
			}
		}
	}
	if len(who) == 0 {
		return api.Reason{}, false
	}
	free := *d
	free.avoid = nil
	r := api.Reason{
		Code: api.ReasonExcluded, Text: "keeps off " + shortList(said), Frees: "not enough by itself: see the other reasons",
	}
	r.Block(who)
	if place(x.free, &free).spots != nil {
		r.Frees = "the end of the exclusion of " + shortList(who) + ", or another node"
	}
	return r, true
}
