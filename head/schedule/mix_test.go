package schedule

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Kinds counted from snapshot to snapshot are those of the last one alone.
func TestKindsAreFollowed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := func() api.GroupSpec {
			s := api.GroupSpec{Bundles: make([]api.Bundle, rapid.IntRange(1, 3).Draw(t, "bundles"))}
			for i := range s.Bundles {
				s.Bundles[i].GPUs = int64(rapid.IntRange(0, 3).Draw(t, "gpus"))
			}
			return s
		}
		var requests []*Request
		var holders []*Holder
		for range 8 {
			requests = append(requests, &Request{Spec: spec()})
			holding := spec()
			holders = append(holders, &Holder{Spec: &holding}, &Holder{Spec: &holding}, &Holder{})
		}
		var followed kindCounts
		for range 6 {
			s := &Snapshot{
				Pending: rapid.SliceOfN(rapid.SampledFrom(requests), 0, 8).Draw(t, "pending"),
				Holders: rapid.SliceOfN(rapid.SampledFrom(holders), 0, 8).Draw(t, "holders"),
			}
			followed.follow(s)
			var fresh kindCounts
			fresh.follow(s)
			weights := func(c *kindCounts) (out map[string]int64) {
				out = map[string]int64{}
				for _, k := range c.list() {
					out[k.key] += k.weight
				}
				return out
			}
			got, want := weights(&followed), weights(&fresh)
			for key, n := range want {
				if got[key] != n {
					t.Fatalf("%d of %s, counted alone %d", got[key], key, n)
				}
			}
			if followed.requests != fresh.requests || len(got) != len(want) || len(followed.of) != len(fresh.of) {
				t.Fatalf("%d requests of %d kinds and %d specs, counted alone %d of %d and %d",
					followed.requests, len(got), len(followed.of), fresh.requests, len(want), len(fresh.of))
			}
		}
	})
}

// Parts of a mix depend on the weights alone, and equal ones are the same list.
func TestPartsOfAMix(t *testing.T) {
	kindOfGPUs := func(n int64) *kind {
		return kindOf(&Shape{Bundle: api.Bundle{Resources: api.Resources{GPUs: n}}})
	}
	one, two, four := kindOfGPUs(1), kindOfGPUs(2), kindOfGPUs(4)
	a := partsOf([]weighed{{one, 500}, {two, 501}, {four, 3}}, derivedSteps)
	b := partsOf([]weighed{{two, 500}, {four, 2}, {one, 500}}, derivedSteps)
	if !slices.Equal(a, b) || len(a) != 2 || a[0].weight != a[1].weight {
		t.Errorf("%v, %v", a, b)
	}
}
