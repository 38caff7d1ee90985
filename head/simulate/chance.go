package simulate

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"
)

// stream is a source of random numbers of its own for each thing of a name, so that what
// one thing draws does not depend on what others do.
func stream(seed uint64, name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails, by its contract
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// lives draws how long something lives; ok is false if it never fails.
func (l Lifetime) lives(r *rand.Rand) (time.Duration, bool) {
	if l.MTBF <= 0 {
		return 0, false
	}
	shape := l.Shape
	if shape == 0 {
		shape = 1
	}
	// The mean of a Weibull distribution is its scale times Γ(1 + 1/shape).
	scale := l.MTBF.D().Seconds() / math.Gamma(1+1/shape)
	return fromSeconds(scale * math.Pow(r.ExpFloat64(), 1/shape)), true
}

// repairs draws how long something stays broken.
func (l Lifetime) repairs(r *rand.Rand) time.Duration {
	return fromSeconds(l.Repair.D().Seconds() * r.ExpFloat64())
}

// fromSeconds never answers zero, so that nothing happens at the very same instant, and
// stops at the longest time.
func fromSeconds(s float64) time.Duration {
	if s >= longest.Seconds() {
		return longest
	}
	return max(time.Millisecond, time.Duration(s*float64(time.Second)))
}
