package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Real is the machine's clock.
func Real() Clock { return standard{boot: bootTime} }

func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Linux has had this clock since 2.6.39; without it no lease could be kept.
		return 0
	}
	return time.Duration(ts.Nano())
}
