package cluster

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
)

// kept are seeds that have failed once and are run ever since.
var kept = []uint64{}

// TestSimulated runs the cluster by seed. TROUPE_SIM_SEED runs one alone;
// TROUPE_SOAK_SEEDS and TROUPE_SOAK_DURATION bound a long run, whichever comes first.
func TestSimulated(t *testing.T) {
	if one := os.Getenv("TROUPE_SIM_SEED"); one != "" {
		seed, err := strconv.ParseUint(one, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		Simulate(t, seed)
		return
	}
	count, from, limit := uint64(6), uint64(1), time.Duration(0)
	if testing.Short() {
		count = 1
	}
	if n := os.Getenv("TROUPE_SOAK_SEEDS"); n != "" {
		var err error
		if count, err = strconv.ParseUint(n, 10, 64); err != nil {
			t.Fatal(err)
		}
		// A soak looks where the tests of every day do not.
		from = uint64(time.Now().UnixNano()) / 1e9 * 1e6
	}
	if d := os.Getenv("TROUPE_SOAK_DURATION"); d != "" {
		var err error
		if limit, err = time.ParseDuration(d); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	list := append([]uint64(nil), kept...)
	for i := range count {
		list = append(list, from+i)
	}
	var ran atomic.Int64
	t.Cleanup(func() { t.Logf("%d of %d seeds were run", ran.Load(), len(list)) })
	for _, seed := range list {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			if limit > 0 && time.Since(start) > limit {
				return
			}
			ran.Add(1)
			Simulate(t, seed)
		})
	}
}
