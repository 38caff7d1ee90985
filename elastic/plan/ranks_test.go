package plan

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestWithRanks(t *testing.T) {
	for _, tc := range []struct {
		takes    time.Duration
		from, to int64
		want     time.Duration
	}{
		{9 * time.Hour, 4, 4, 9 * time.Hour},
		{9 * time.Hour, 4, 8, 5 * time.Hour},
		{81 * time.Hour, 1, 4, 25 * time.Hour},
		{25 * time.Hour, 4, 1, 81 * time.Hour},
		{7 * time.Hour, 2, 3, 5 * time.Hour}, // 1.4 times as fast
		{5 * time.Hour, 3, 2, 7 * time.Hour},
		{time.Hour, 0, 8, time.Hour}, // not known
		{math.MaxInt64, 8, 1, math.MaxInt64},
		{0, 1, 8, 0},
	} {
		if got := WithRanks(tc.takes, tc.from, tc.to); got != tc.want {
			t.Errorf("%s with %d ranks: %s with %d, want %s", tc.takes, tc.from, got, tc.to, tc.want)
		}
	}
}

// More ranks are never slower nor faster than in proportion, and there and back is where it
// began.
func TestWithRanksHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		takes := time.Duration(rapid.Int64Range(1, int64(time.Hour)*24*30).Draw(t, "takes"))
		from := rapid.Int64Range(1, 1<<12).Draw(t, "from")
		to := rapid.Int64Range(1, 1<<12).Draw(t, "to")
		got, more := WithRanks(takes, from, to), WithRanks(takes, from, to+1)
		if more > got {
			t.Errorf("%d ranks take %s, one more %s", to, got, more)
		}
		if linear := float64(takes) * float64(from) / float64(to); to > from && float64(got) < linear-1 {
			t.Errorf("%d ranks take %s, less than in proportion", to, got)
		}
		if back := WithRanks(got, to, from); to < from && (back < takes || float64(back) > float64(takes)*1.001+64) {
			t.Errorf("%s became %s and then %s", takes, got, back)
		}
	})
}
