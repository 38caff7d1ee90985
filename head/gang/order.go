package gang

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// Ranks orders the ranks: in an existing group as the job's own list of bundles says, and over hosts as they were
// gathered.
// Else nodes that ran ranks of the newest attempt come in the order of those ranks, so
// that the order is sticky while nodes live, then the others by an explicit node rank and
// by the natural order of their names; within a node the order is that of the ranks before.
func Ranks(v *state.View, j *state.Job, g *state.Group) []state.RankStart {
	order := make([]int64, j.Spec.Ranks)
	for r := range order {
		order[r] = g.Position(state.BundleOf(j.Spec, int64(r)))
		if order[r] < 0 {
			return nil
		}
	}
	if j.Spec.PlacementGroup == "" && j.Spec.Hosts == nil {
		sortBundles(v, j, g, order)
	}
	local := map[string]int64{}
	out := make([]state.RankStart, len(order))
	for r, b := range order {
		node := g.Placed[b].Node
		out[r] = state.RankStart{Rank: int64(r), LocalRank: local[node], Bundle: b, Node: node}
		local[node]++
	}
	return out
}

// place is what the order of a node depends on.
type place struct {
	explicit int64 // api.LabelNodeRank, or after all of them
	before   int64 // lowest rank that ran there before, or that its bundles had elsewhere
	name     string
}

func sortBundles(v *state.View, j *state.Job, g *state.Group, order []int64) {
	const none = int64(1) << 40
	was := map[int64]int64{} // bundle → rank of the newest attempt
	stayed := map[int64]bool{}
	if last := j.Last(); last != nil {
		for _, r := range last.Ranks {
			was[r.Bundle] = r.Rank
			stayed[r.Bundle] = r.Bundle >= 0 && r.Bundle < int64(len(g.Placed)) && g.Placed[r.Bundle].Node == r.Node
		}
		if len(was) != len(last.Ranks) {
			was = map[int64]int64{} // a record without bundles, or dropped ones only
		}
	}
	before := func(b int64) int64 {
		if r, ok := was[b]; ok {
			return r
		}
		return none
	}
	kept := map[string]bool{} // nodes with a bundle that stayed: newcomers do not move them
	for _, b := range order {
		if stayed[b] {
			kept[g.Placed[b].Node] = true
		}
	}
	places := map[string]place{}
	for _, b := range order {
		node := g.Placed[b].Node
		p, known := places[node]
		if !known {
			p = place{explicit: none, before: none, name: node}
			if n := v.Node(node); n != nil {
				p.name = n.Info.Name
				if k, err := strconv.ParseInt(n.Info.Labels[api.LabelNodeRank], 10, 32); err == nil && k >= 0 {
					p.explicit = k
				}
			}
		}
		if stayed[b] || !kept[node] {
			p.before = min(p.before, before(b))
		}
		places[node] = p
	}
	slices.SortStableFunc(order, func(a, b int64) int {
		na, nb := g.Placed[a].Node, g.Placed[b].Node
		if na == nb {
			return cmp.Or(cmp.Compare(before(a), before(b)), cmp.Compare(a, b))
		}
		pa, pb := places[na], places[nb]
		byName := 0
		switch {
		case NaturalLess(pa.name, pb.name):
			byName = -1
		case NaturalLess(pb.name, pa.name):
			byName = 1
		}
		return cmp.Or(cmp.Compare(pa.explicit, pb.explicit), cmp.Compare(pa.before, pb.before), byName, strings.Compare(na, nb))
	})
}

// NaturalLess orders gpu-2 before gpu-10.
func NaturalLess(a, b string) bool {
	for a != "" && b != "" {
		da, db := digits(a), digits(b)
		if da != "" && db != "" {
			ta, tb := strings.TrimLeft(da, "0"), strings.TrimLeft(db, "0")
			if len(ta) != len(tb) {
				return len(ta) < len(tb)
			}
			if ta != tb {
				return ta < tb
			}
			a, b = a[len(da):], b[len(db):]
			continue
		}
		if a[0] != b[0] {
			return a[0] < b[0]
		}
		a, b = a[1:], b[1:]
	}
	return len(a) < len(b)
}

func digits(s string) string {
	i := 0
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	return s[:i]
}
