package state

import (
	"math"
	"math/big"
	"math/bits"
)

// roots are 2^-(1/2), 2^-(1/4), … in 64-bit fractions: what is left after that part of a
// half-life. Integers, because replicas on different processors must agree on every bit.
var roots = func() (out [32]uint64) {
	x := new(big.Int).Lsh(big.NewInt(1), 127) // ½ in 128-bit fractions
	for i := range out {
		x.Sqrt(x) // of a 128-bit fraction: a 64-bit one
		out[i] = x.Uint64()
		x.Lsh(x, 64)
	}
	return out
}()

// decay is what is left of n after a time: half for each half-life. It keeps the sign and
// rounds to the nearest.
func decay(n, elapsed, halfLife int64) int64 {
	if n == 0 || elapsed <= 0 || halfLife <= 0 {
		return n
	}
	sign, u := int64(1), uint64(n)
	if n < 0 {
		sign, u = -1, uint64(-n)
	}
	whole := elapsed / halfLife
	if whole >= 64 {
		return 0
	}
	// The part of a half-life that is left, in 32-bit fractions.
	hi, lo := bits.Mul64(uint64(elapsed%halfLife), 1<<32)
	part, _ := bits.Div64(hi, lo, uint64(halfLife))
	// 1 in 63-bit fractions, so that the product keeps what a small n needs.
	factor := uint64(1) << 63
	for i, r := range roots {
		if part&(1<<(31-i)) != 0 {
			factor, _ = bits.Mul64(factor, r)
		}
	}
	hi, lo = bits.Mul64(u, factor)
	q, rest := hi<<1|lo>>63, lo<<1
	if rest >= 1<<63 {
		q++
	}
	if whole > 0 {
		half := q >> (whole - 1) & 1
		q = q>>whole + half
	}
	return sign * int64(q)
}

// mulDiv is a × b ÷ c without overflow on the way; what does not fit is the largest number.
func mulDiv(a, b, c int64) int64 {
	if a <= 0 || b <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, math.MaxInt64))
}
