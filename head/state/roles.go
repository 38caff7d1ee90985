package state

import (
	"fmt"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Asked is what a placed group asked for, if it holds fewer bundles than that: its roles
// allow it (see api.Role). Its Spec is then what it holds, so that whole still means every
// bundle of the Spec (P1); when it waits again, it asks for everything again.
type Asked struct {
	Bundles []api.Bundle `json:"bundles"`
	Roles   []api.Role   `json:"roles"`
	// Chosen are the numbers of the bundles that it holds, in Bundles, ascending.
	Chosen []int64 `json:"chosen"`
}

// AskedSpec is the spec as it was asked for.
func (g *Group) AskedSpec() api.GroupSpec {
	s := g.Spec
	if g.Asked != nil {
		s.Bundles, s.Roles = g.Asked.Bundles, g.Asked.Roles
	}
	return s
}

// Number is the number of the bundle at a position of Placed, among those that were asked
// for. People and jobs know a bundle by its number, which no placement changes.
func (g *Group) Number(position int64) int64 {
	if g.Asked != nil && position >= 0 && position < int64(len(g.Asked.Chosen)) {
		return g.Asked.Chosen[position]
	}
	return position
}

// Position is where in Placed the bundle of a number stands; -1: it is not held.
func (g *Group) Position(number int64) int64 {
	if g.Asked != nil {
		if i, ok := slices.BinarySearch(g.Asked.Chosen, number); ok {
			return int64(i)
		}
		return -1
	}
	if number < 0 || number >= int64(len(g.RankBundles())) {
		return -1
	}
	return number
}

// choose makes a placement of fewer bundles than the group asks for one of all bundles of
// a smaller spec, if its roles allow that.
func (g *Group) choose(placement []api.Placed) ([]api.Placed, error) {
	if len(g.Spec.Roles) == 0 || len(placement) >= len(g.Spec.Bundles) {
		return placement, nil
	}
	a := &Asked{Bundles: g.Spec.Bundles, Roles: g.Spec.Roles, Chosen: make([]int64, len(placement))}
	bundles, out := make([]api.Bundle, len(placement)), slices.Clone(placement)
	for i, p := range placement {
		if p.Bundle < 0 || p.Bundle >= int64(len(a.Bundles)) || i > 0 && p.Bundle <= placement[i-1].Bundle {
			return nil, fmt.Errorf("bundle %d stands at position %d; they are named once, in order, of %d", p.Bundle, i, len(a.Bundles))
		}
		a.Chosen[i], bundles[i], out[i].Bundle = p.Bundle, a.Bundles[p.Bundle], int64(i)
	}
	roles, err := a.roles(g.Spec.Min)
	if err != nil {
		return nil, err
	}
	g.Asked, g.Spec.Bundles, g.Spec.Roles = a, bundles, roles
	return out, nil
}

// roles are those of the chosen bundles, or an error if a minimum is not met.
func (a *Asked) roles(least int64) ([]api.Role, error) {
	if int64(len(a.Chosen)) < least {
		return nil, fmt.Errorf("%d bundles are fewer than the group's minimum of %d", len(a.Chosen), least)
	}
	out := slices.Clone(a.Roles)
	first, left := int64(0), a.Chosen
	for i := range out {
		r := &out[i]
		first += r.Bundles
		n := 0
		for n < len(left) && left[n] < first {
			n++
		}
		left = left[n:]
		fewest := r.Min
		if fewest == 0 {
			fewest = r.Bundles
		}
		if int64(n) < fewest {
			return nil, fmt.Errorf("role %s has %d bundles, its minimum is %d", r.Name, n, fewest)
		}
		r.Bundles, r.Min = int64(n), fewest
	}
	if len(left) > 0 {
		return nil, fmt.Errorf("bundle %d is of no role", left[0])
	}
	return out, nil
}

// askAgain makes the group ask for everything that it once asked for.
func (g *Group) askAgain() {
	g.Spec, g.Asked = g.AskedSpec(), nil
}

// checkChosen is the part of P1 about groups that hold fewer bundles than they asked for:
// what they hold are bundles that they asked for, and meets every minimum.
func checkChosen(g *Group, bad func(string, ...any)) {
	a := g.Asked
	if a == nil {
		return
	}
	if g.State != api.GroupPlaced || len(a.Chosen) != len(g.Spec.Bundles) || len(a.Chosen) >= len(a.Bundles) {
		bad("P1: group %s in state %s holds %d of %d bundles, %d of them by choice", g.ID, g.State, len(g.Spec.Bundles), len(a.Bundles), len(a.Chosen))
		return
	}
	for i, n := range a.Chosen {
		if n < 0 || n >= int64(len(a.Bundles)) || i > 0 && n <= a.Chosen[i-1] || a.Bundles[n].Resources != g.Spec.Bundles[i].Resources {
			bad("P1: group %s holds as its bundle %d what it did not ask for", g.ID, n)
			return
		}
	}
	roles, err := a.roles(g.Spec.Min)
	if err != nil {
		bad("P1: group %s: %v", g.ID, err)
	} else if !slices.Equal(roles, g.Spec.Roles) {
		bad("P1: group %s has roles %v, what it holds are %v", g.ID, g.Spec.Roles, roles)
	}
}
