// Package clock is time as the rest of the project sees it: the wall clock for people,
// timers for loops, and the boot clock for leases. Code that a simulated cluster runs
// takes a Clock and calls package time for nothing but arithmetic.
package clock

import (
	"context"
	"time"
)

// Clock tells time and makes timers.
type Clock interface {
	// Now is the wall clock. It may jump; no lease and no order depends on it.
	Now() time.Time
	// Boot is CLOCK_BOOTTIME: it only grows, and runs on while the machine sleeps.
	// Values are comparable within one boot of one machine.
	Boot() time.Duration
	NewTimer(d time.Duration) Timer
	NewTicker(d time.Duration) Ticker
	After(d time.Duration) <-chan time.Time
	// Sleep returns nil after d, or ctx's error when it ends first.
	Sleep(ctx context.Context, d time.Duration) error
}

// Timer fires once on C.
type Timer interface {
	C() <-chan time.Time
	Stop() bool
	Reset(d time.Duration) bool
}

// Ticker fires again and again on C, and drops what nobody takes.
type Ticker interface {
	C() <-chan time.Time
	Stop()
	Reset(d time.Duration)
}

// standard builds on package time, which inside a testing/synctest bubble is virtual.
type standard struct{ boot func() time.Duration }

type timer struct{ *time.Timer }

func (t timer) C() <-chan time.Time { return t.Timer.C }

type ticker struct{ *time.Ticker }

func (t ticker) C() <-chan time.Time   { return t.Ticker.C }
func (t ticker) Reset(d time.Duration) { t.Ticker.Reset(max(d, 1)) }

func (s standard) Now() time.Time                         { return time.Now() }
func (s standard) Boot() time.Duration                    { return s.boot() }
func (s standard) NewTimer(d time.Duration) Timer         { return timer{time.NewTimer(d)} }
func (s standard) After(d time.Duration) <-chan time.Time { return time.After(d) }

// NewTicker takes what package time panics on as the shortest period.
func (s standard) NewTicker(d time.Duration) Ticker { return ticker{time.NewTicker(max(d, 1))} }

func (s standard) Sleep(ctx context.Context, d time.Duration) error {
	// An ended context wins over a timer that has fired as well.
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Virtual is a clock for a testing/synctest bubble: its boot clock starts at zero
// with the call and follows the bubble's time.
func Virtual() Clock {
	start := time.Now()
	return standard{boot: func() time.Duration { return time.Since(start) }}
}
