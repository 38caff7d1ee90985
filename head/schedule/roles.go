package schedule

import (
	"fmt"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// A group with roles may start with fewer bundles of a role than it has, but with no fewer
// than the minimum of each role and than the minimum of the whole group.

// MaxRoles bounds the roles of a group.
const MaxRoles = 64

// roleChoices is how many ways to leave bundles out are all tried, the largest groups
// first. Beyond, roles are filled up one after the other.
const roleChoices = 256

// minimum is the fewest bundles of a role.
func minimum(r *api.Role) int64 {
	if r.Min == 0 {
		return r.Bundles
	}
	return r.Min
}

// incomplete reports whether the group has fewer bundles than it must start with: it is
// still being put together.
func (d *demand) incomplete() bool {
	return d.least > int64(d.total) || len(d.roles) > 0 && d.inRoles() != int64(d.total)
}

// inRoles is how many bundles the roles have together.
func (d *demand) inRoles() int64 {
	var sum int64
	for i := range d.roles {
		sum = satAdd(sum, max(0, d.roles[i].Bundles))
	}
	return sum
}

// placeFewer places the largest part of the group that its minimums allow.
func placeFewer(o *overlay, d *demand) outcome {
	least := make([]int64, len(d.roles))
	ways := int64(1)
	for i := range d.roles {
		r := &d.roles[i]
		least[i] = min(max(0, minimum(r)), r.Bundles)
		ways = satMul(ways, r.Bundles-least[i]+1)
	}
	if ways == 1 {
		return outcome{proven: true}
	}
	if ways > roleChoices {
		return placeRoleByRole(o, d, least)
	}
	var all [][]int64
	for way := range ways {
		sizes := slices.Clone(least)
		for i := range sizes {
			span := d.roles[i].Bundles - least[i] + 1
			sizes[i] += way % span
			way /= span
		}
		all = append(all, sizes)
	}
	// The most bundles first, and of those the most of the first role.
	slices.SortStableFunc(all, func(x, y []int64) int {
		if a, b := total(x), total(y); a != b {
			return int(b - a)
		}
		return slices.Compare(y, x)
	})
	proven := true
	for _, sizes := range all {
		if total(sizes) < d.least || total(sizes) == int64(d.total) {
			continue
		}
		got := placeSizes(o, d, sizes)
		if got.spots != nil {
			return got
		}
		proven = proven && got.proven
	}
	return outcome{proven: proven}
}

func total(sizes []int64) int64 {
	var sum int64
	for _, n := range sizes {
		sum = satAdd(sum, n)
	}
	return sum
}

// placeRoleByRole begins with the minimum of each role and fills one after the other up,
// as far as there is room; then in the opposite order, should that be too few.
func placeRoleByRole(o *overlay, d *demand, least []int64) outcome {
	order := make([]int, len(least))
	for i := range order {
		order[i] = i
	}
	for range 2 {
		sizes := slices.Clone(least)
		best := placeSizes(o, d, sizes)
		if best.spots == nil {
			return best
		}
		for _, i := range order {
			// What fits with more of a role fits with fewer.
			low, high := sizes[i], d.roles[i].Bundles
			for low < high {
				sizes[i] = low + (high-low+1)/2
				if got := placeSizes(o, d, sizes); got.spots != nil {
					low, best = sizes[i], got
				} else {
					high = sizes[i] - 1
				}
			}
			sizes[i] = low
		}
		if total(sizes) >= d.least {
			return best
		}
		slices.Reverse(order)
	}
	return outcome{}
}

// placeSizes places so many bundles of each role: the first ones of it.
func placeSizes(o *overlay, d *demand, sizes []int64) outcome {
	r := *d.request
	r.Spec.Roles, r.Spec.Min, r.Spec.Bundles = nil, 0, nil
	var chosen []int64
	first := int64(0)
	for i := range d.roles {
		for k := range sizes[i] {
			chosen = append(chosen, first+k)
			r.Spec.Bundles = append(r.Spec.Bundles, d.bundles[first+k])
		}
		first += d.roles[i].Bundles
	}
	if d.within != nil && !d.within(r.Spec.Bundles) {
		return outcome{proven: true}
	}
	part := newDemand(&r, d.now).bar(d.barred)
	got := placeLinked(o, part)
	if got.spots != nil {
		got.chosen = chosen
	}
	return got
}

// roles checks the roles of a spec.
func (v *checker) roles(s *api.GroupSpec) {
	if s.Min < 0 || s.Min > int64(len(s.Bundles)) {
		v.add("/min", "%d: the group has %d bundles", s.Min, len(s.Bundles))
	}
	if len(s.Roles) == 0 {
		if s.Min > 0 && s.Min < int64(len(s.Bundles)) {
			v.add("/min", "%d of %d bundles: name roles to say which may be left out", s.Min, len(s.Bundles))
		}
		return
	}
	if len(s.Roles) > MaxRoles {
		v.add("/roles", "%d roles are more than %d", len(s.Roles), MaxRoles)
		return
	}
	var sum int64
	for i := range s.Roles {
		r, at := &s.Roles[i], fmt.Sprintf("/roles/%d", i)
		v.name(at+"/name", r.Name)
		if slices.ContainsFunc(s.Roles[:i], func(other api.Role) bool { return other.Name == r.Name }) {
			v.add(at+"/name", "role %q is there twice", r.Name)
		}
		switch {
		case r.Bundles < 1 || r.Bundles > MaxBundles:
			v.add(at+"/bundles", "%d: 1 to %d; leave out a role that has none", r.Bundles, MaxBundles)
		case r.Min < 0 || r.Min > r.Bundles:
			v.add(at+"/min", "%d of %d bundles: 1 to %d, or left out for all of them", r.Min, r.Bundles, r.Bundles)
		}
		sum = satAdd(sum, max(0, r.Bundles))
	}
	if sum != int64(len(s.Bundles)) {
		v.add("/roles", "the roles have %d bundles together, the group has %d", sum, len(s.Bundles))
	}
	if s.PerNode > 0 {
		v.add("/perNode", "does not go with roles: how many start is not known beforehand")
	}
}
