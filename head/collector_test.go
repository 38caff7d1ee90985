package head

import "testing"

// TestCollector: who collects often may leave more garbage, as much as there is room for,
// until it has not collected often for a while.
func TestCollector(t *testing.T) {
	const mib = 1 << 20
	c := collector{percent: calmPercent}
	cycles := uint64(0)
	look := func(more, live uint64, want int) {
		t.Helper()
		cycles += more
		if p := c.look(cycles, live); p != want {
			t.Errorf("%d collections more, %d MiB live: %d %%, want %d", more, live/mib, p, want)
		}
	}
	look(0, 20*mib, calmPercent)
	look(1, 20*mib, calmPercent)
	look(2, 20*mib, busyPercent)
	look(2, 64*mib, 200)
	look(2, 1024*mib, calmPercent) // a large heap is collected seldom anyway
	look(2, 0, calmPercent)        // nothing is known of it
	look(2, 20*mib, busyPercent)
	for range calmAfter - 1 {
		look(1, 20*mib, busyPercent)
	}
	look(1, 20*mib, calmPercent)
	look(0, 20*mib, calmPercent)
}
