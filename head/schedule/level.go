package schedule

import (
	"cmp"
	"slices"
)

// leveled places a demand by its wish for a level: one domain for the whole gang, chosen
// for all of it at once, or where that is only preferred and has been waited for, as few
// of them as can be.
func (a *area) leveled() outcome {
	d := a.d
	if d.level == "" {
		return a.place()
	}
	level := a.o.topo.level(d.level)
	if level < 0 {
		return outcome{proven: true} // nobody knows the level: never "unconstrained"
	}
	proven := true
	for _, di := range a.domains(level) {
		got := a.within(di).place()
		if got.spots != nil {
			return got
		}
		proven = proven && got.proven
	}
	if d.required {
		return outcome{proven: proven}
	}
	got := a.place()
	got.proven = got.proven && proven
	return got
}

// domains are the domains of a level in which each class by itself has room: first those
// with most of the nodes to keep, then the one that is filled best, which keeps others
// free.
func (a *area) domains(level int) []int32 {
	type choice struct {
		di         int32
		kept, left int64
	}
	var all []choice
	for _, di := range a.o.topo.at[level] {
		sub := *a
		sub.in = di
		if !sub.enough() {
			continue
		}
		c := choice{di: di, left: sub.room(0)}
		if len(a.d.keep) > 0 {
			for _, ni := range a.o.topo.domains[di].nodes {
				if a.d.keep[a.o.nodes[ni].id] {
					c.kept += int64(a.tallies[0].node[ni])
				}
			}
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(x, y choice) int {
		return cmp.Or(cmp.Compare(y.kept, x.kept), cmp.Compare(x.left, y.left), cmp.Compare(x.di, y.di))
	})
	out := make([]int32, len(all))
	for i := range all {
		out[i] = all[i].di
	}
	return out
}

// pack fills domains with equal bundles: one domain of the narrowest level that has room
// for all, else as few of the next narrower ones as can be, the last of them filled best.
// The area has room for what is needed.
func (a *area) pack(need int64, spots []spot) []spot {
	t := a.o.topo
	room := a.tallies[0].in
	for level := range slices.Backward(t.levels) {
		if a.in != none && level <= t.domains[a.in].level {
			break
		}
		best := none
		for _, di := range t.at[level] {
			if room[di] >= need && (best == none || room[di] < room[best]) && (a.in == none || t.within(di, t.domains[a.in].level) == a.in) {
				best = di
			}
		}
		if best != none {
			return a.within(best).pack(need, spots)
		}
	}
	kids := slices.Clone(t.kids(a.in))
	kids = slices.DeleteFunc(kids, func(di int32) bool { return room[di] == 0 })
	if len(kids) == 0 {
		return a.fill(need, spots)
	}
	slices.SortStableFunc(kids, func(x, y int32) int { return cmp.Compare(room[y], room[x]) })
	for i, di := range kids {
		if room[di] >= need {
			for _, other := range kids[i:] {
				if room[other] >= need && room[other] < room[di] {
					di = other // the tightest that holds what is left
				}
			}
			return a.within(di).pack(need, spots)
		}
		spots = a.within(di).fill(room[di], spots)
		need -= room[di]
	}
	return a.outside().fill(need, spots)
}

// outside is the nodes of the area that are in no domain below it.
func (a *area) outside() *area {
	t := a.o.topo
	level := 0
	if a.in != none {
		level = t.domains[a.in].level + 1
	}
	out := *a
	out.nodes, out.listed = nil, true
	a.each(func(ni int) {
		if level >= len(t.levels) || t.of[level][ni] == none {
			out.nodes = append(out.nodes, int32(ni))
		}
	})
	return &out
}
