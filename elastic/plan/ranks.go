package plan

import (
	"math"
	"math/bits"
	"time"
)

// Twice the ranks are taken to make training 9/5 times as fast: what is missing of twice
// goes to the network.
const (
	faster = 9
	per    = 5
)

// Speedup is how much faster training with twice the ranks is taken to be.
const Speedup = float64(faster) / per

// WithRanks is how long work takes with to ranks that takes so long with from: 9/5 times as
// fast with each doubling, and in proportion between. It calculates with whole numbers, so
// that every replica comes to the same.
func WithRanks(takes time.Duration, from, to int64) time.Duration {
	if from <= 0 || to <= 0 || takes <= 0 {
		return takes
	}
	t, low, high := uint64(takes), uint64(from), uint64(to)
	grows := to > from
	if !grows {
		low, high = high, low
	}
	scale := func(quick, slow uint64) { // speed is quick ÷ slow
		if grows {
			quick, slow = slow, quick
		}
		t = mulDivUp(t, quick, slow)
	}
	for ; low <= high/2; low *= 2 {
		scale(faster, per)
	}
	scale(low+4*min(high, math.MaxInt64/8), 5*min(low, math.MaxInt64/8))
	return time.Duration(t)
}

// mulDivUp is a × b ÷ c, rounded up, at most what a duration holds.
func mulDivUp(a, b, c uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	if hi >= c {
		return math.MaxInt64
	}
	q, r := bits.Div64(hi, lo, c)
	if r > 0 {
		q++
	}
	return min(q, math.MaxInt64)
}
