package head

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/troupe-runtime/troupe/runtime/clock"
)

// How the garbage collector is set. An idle head stays small; one that answers thousands of
// requests a second would collect its small heap many times a second, which cost it a sixth
// of its time, so that it may use some memory more while they come.
const (
	calmPercent  = 100
	busyPercent  = 400
	roomOfBusy   = 128 << 20 // bytes of garbage at most, where busyPercent would be more
	busyCycles   = 2         // collections between two looks that make it busy
	collectorAge = time.Second
	calmAfter    = 10 // looks without that
)

// collector decides how much garbage may lie around.
type collector struct {
	cycles  uint64
	calm    int // looks in a row
	percent int
}

// look takes the number of collections so far and the bytes that live, and returns the
// percentage from now on.
func (c *collector) look(cycles, live uint64) int {
	few := cycles-c.cycles < busyCycles
	if c.cycles = cycles; !few {
		c.calm, c.percent = 0, busyPercent
	} else if c.calm++; c.calm >= calmAfter {
		c.percent = calmPercent
	}
	if c.percent > calmPercent && live > 0 {
		return int(min(busyPercent, max(calmPercent, roomOfBusy*100/live)))
	}
	return calmPercent
}

// tendCollector sets the garbage collector by what it has to do, until ctx ends. Whoever
// set GOGC knows better.
func tendCollector(ctx context.Context, c clock.Clock) {
	if was := debug.SetGCPercent(calmPercent); was != calmPercent {
		debug.SetGCPercent(was)
		return
	}
	defer debug.SetGCPercent(calmPercent)
	read := []metrics.Sample{{Name: "/gc/cycles/automatic:gc-cycles"}, {Name: "/gc/heap/live:bytes"}}
	g, is := collector{percent: calmPercent}, calmPercent
	for c.Sleep(ctx, collectorAge) == nil {
		metrics.Read(read)
		if p := g.look(read[0].Value.Uint64(), read[1].Value.Uint64()); p != is {
			debug.SetGCPercent(p)
			is = p
		}
	}
}
