package plan

import (
	"fmt"
	"math"
	"time"
)

// Limits of a stall.
const (
	// StallFloor is the shortest silence that is called a stall.
	StallFloor = 10 * time.Second
	// StallKillFloor is the shortest after which an attempt is ended for it.
	StallKillFloor = 10 * time.Minute
	// fewSteps: with fewer, the pace is hardly known and a stall has to last longer.
	fewSteps     = 20
	fewFloor     = time.Minute
	paceBuckets  = 96 // each √2 wide from 100 µs on: more than a century
	paceForget   = 4096
	paceSmallest = 100 * time.Microsecond
)

// Pace learns how fast one rank makes steps, in bounded memory: old steps count for less
// and less. The zero value knows nothing. It measures by what it is told; whoever asks it
// decides by which clock.
type Pace struct {
	buckets [paceBuckets]uint32
	total   uint32
	longest time.Duration
}

// Step learns that steps were made in a time, all of them together.
func (p *Pace) Step(took time.Duration, steps int64) {
	if steps <= 0 || took < 0 {
		return
	}
	p.longest = max(p.longest, took)
	n := uint32(min(steps, 64)) // so many at once are one look, not a new habit
	p.buckets[paceBucket(took/time.Duration(steps))] += n
	if p.total += n; p.total < paceForget {
		return
	}
	p.total = 0
	for i := range p.buckets {
		p.buckets[i] /= 2
		p.total += p.buckets[i]
	}
}

func paceBucket(d time.Duration) int {
	if d <= paceSmallest {
		return 0
	}
	return min(paceBuckets-1, 1+int(2*math.Log2(float64(d)/float64(paceSmallest))))
}

// Known reports whether any step was learned from: the first step after a start has no
// pace, and may take as long as it likes.
func (p *Pace) Known() bool { return p.total > 0 }

// P99 is the time that 99 of 100 steps stay below, rounded up by at most √2.
func (p *Pace) P99() time.Duration {
	want := p.total - p.total/100
	var seen uint32
	for i, n := range p.buckets {
		if seen += n; seen >= want && n > 0 {
			return time.Duration(float64(paceSmallest) * math.Pow(2, float64(i)/2))
		}
	}
	return 0
}

// Longest is the longest time without a step so far, between two looks that saw one.
func (p *Pace) Longest() time.Duration { return p.longest }

// Deadline is the silence after which the rank counts as stalled: four times what it
// usually takes, twice what it ever took.
func (p *Pace) Deadline() time.Duration {
	floor := StallFloor
	if p.total < fewSteps {
		floor = fewFloor
	}
	return max(floor, 4*p.P99(), satDouble(p.longest))
}

func satDouble(d time.Duration) time.Duration {
	if d > math.MaxInt64/2 {
		return math.MaxInt64
	}
	return 2 * d
}

// KillAfter is the silence after which its attempt is ended.
func (p *Pace) KillAfter() time.Duration {
	most := time.Duration(math.MaxInt64 / 16)
	return max(3*min(p.Deadline(), most), 10*min(p.longest, most), StallKillFloor)
}

// StallKill says when a stall ends its attempt: after a fixed time, never, or, as the zero
// value, when the learned one is over.
type StallKill struct {
	After time.Duration
	Never bool
}

// ParseStallKill reads "", "off" or a time of at least a second.
func ParseStallKill(s string) (StallKill, error) {
	switch s {
	case "", "auto":
		return StallKill{}, nil
	case "off":
		return StallKill{Never: true}, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < time.Second {
		if len(s) > 40 {
			s = s[:40] + "…"
		}
		return StallKill{}, fmt.Errorf("%q: a time of at least 1s, as 20m, or off", s)
	}
	return StallKill{After: d}, nil
}

// Limit is the silence after which the attempt of a rank with this pace is ended; false:
// it never is.
func (k StallKill) Limit(p *Pace) (time.Duration, bool) {
	switch {
	case k.Never || !p.Known():
		return 0, false
	case k.After > 0:
		return k.After, true
	}
	return p.KillAfter(), true
}
