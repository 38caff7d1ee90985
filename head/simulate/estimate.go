package simulate

import (
	"math"
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Bounds of a wrong estimate, as a factor of the true duration.
const (
	leastFactor = 0.1
	mostFactor  = 10
)

// Estimate gives every job without an estimate one: its duration times e^(sigma × N(0,1)),
// clipped to a tenth and ten times of it. With sigma 0 estimates are exact.
func (t *Trace) Estimate(sigma float64, seed uint64) {
	dice := stream(seed, "estimates")
	for i := range t.Jobs {
		j := &t.Jobs[i]
		factor := math.Exp(sigma * dice.NormFloat64())
		if j.Spec.Estimate != 0 {
			continue
		}
		factor = min(mostFactor, max(leastFactor, factor))
		j.Spec.Estimate = unit.Duration(max(time.Second, time.Duration(min(factor*float64(j.Takes), float64(longest)))))
	}
}
