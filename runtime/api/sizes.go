package api

import "slices"

// Sizes are the numbers of ranks that a job may run with: Min to Max, of them the
// multiples of Multiple, or exactly those in Set. The zero value allows the number that
// was asked for and no other.
type Sizes struct {
	Min      int64   `json:"min,omitempty"`
	Max      int64   `json:"max,omitempty"`
	Multiple int64   `json:"multiple,omitempty" usual:"1"`
	Set      []int64 `json:"set,omitempty"` // ascending
}

// Any reports whether more than one size may be allowed.
func (s *Sizes) Any() bool { return s != nil && (s.Max > 0 || len(s.Set) > 0) }

// Allows reports whether a job that asked for asked ranks may run with n.
func (s *Sizes) Allows(n, asked int64) bool {
	switch {
	case n < 1:
		return false
	case !s.Any():
		return n == asked
	case len(s.Set) > 0:
		return slices.Contains(s.Set, n)
	}
	return n >= s.Min && n <= s.Max && (s.Multiple <= 1 || n%s.Multiple == 0)
}

// Below lists the allowed sizes below n, the largest first, at most limit.
func (s *Sizes) Below(n int64, limit int) []int64 {
	var out []int64
	if !s.Any() {
		return nil
	}
	if len(s.Set) > 0 {
		for _, x := range slices.Backward(s.Set) {
			if x < n && len(out) < limit {
				out = append(out, x)
			}
		}
		return out
	}
	for x := min(n-1, s.Max); x >= max(1, s.Min) && len(out) < limit; x-- {
		if s.Allows(x, n) {
			out = append(out, x)
		}
	}
	return out
}

// Above lists the allowed sizes above n, ascending, at most limit.
func (s *Sizes) Above(n int64, limit int) []int64 {
	var out []int64
	if !s.Any() {
		return nil
	}
	if len(s.Set) > 0 {
		for _, x := range s.Set {
			if x > n && len(out) < limit {
				out = append(out, x)
			}
		}
		return out
	}
	step := max(1, s.Multiple)
	for x := max(n+1, s.Min); x <= s.Max && len(out) < limit; x++ {
		if x%step != 0 {
			x += step - x%step - 1
			continue
		}
		out = append(out, x)
	}
	return out
}

// Least is the smallest allowed size; 0: the sizes allow nothing.
func (s *Sizes) Least() int64 {
	if least := s.Above(0, 1); len(least) > 0 {
		return least[0]
	}
	return 0
}
