package plan

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// ErrInterval is wrapped when a checkpoint interval cannot be read.
var ErrInterval = errors.New("wrong checkpoint interval")

// Interval says how often a job saves: every so many steps, after a time, or as often as
// is worth it. The zero value leaves it to the script.
type Interval struct {
	Steps int64
	Every time.Duration
	Auto  bool
}

// Bounds of intervals by time.
const (
	minEvery = time.Second
	maxEvery = 30 * 24 * time.Hour
)

// ParseInterval reads "300steps", "10m", "auto" or "", which leaves it to the script. The
// error wraps ErrInterval.
func ParseInterval(s string) (Interval, error) {
	switch s {
	case "":
		return Interval{}, nil
	case "auto":
		return Interval{Auto: true}, nil
	}
	shown := s
	if len(shown) > 40 {
		shown = shown[:40] + "…"
	}
	digits, steps := strings.CutSuffix(s, "steps")
	if !steps {
		digits, steps = strings.CutSuffix(s, "step")
	}
	if steps {
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || n == 0 {
			return Interval{}, fmt.Errorf("%w: %q; the number of steps must be a whole number of at least 1", ErrInterval, shown)
		}
		return Interval{Steps: int64(n)}, nil
	}
	d, err := time.ParseDuration(s)
	if _, plain := strconv.ParseFloat(s, 64); err != nil || plain == nil {
		return Interval{}, fmt.Errorf("%w: %q; a number of steps, as 300steps, a time, as 10m, or auto", ErrInterval, shown)
	}
	if d < minEvery || d > maxEvery {
		return Interval{}, fmt.Errorf("%w: %q; a time between %s and %s", ErrInterval, shown, minEvery, maxEvery)
	}
	return Interval{Every: d}, nil
}

// String is what ParseInterval reads.
func (i Interval) String() string {
	switch {
	case i.Auto:
		return "auto"
	case i.Steps > 0:
		return strconv.FormatInt(i.Steps, 10) + "steps"
	case i.Every > 0:
		return i.Every.String()
	}
	return ""
}

// Costs is what the best interval depends on, measured of the job.
type Costs struct {
	Stall   time.Duration // ranks stand still in one save
	Upload  time.Duration // from there until the step is committed
	Restart time.Duration // from a failure to the first step after it
	MTBF    time.Duration // mean time between failures
}

const (
	// priorMTBF is what one rank is taken to run for before anything was seen of it, in
	// all: published failure rates of large trainings are of this size.
	priorMTBF = 50_000 * time.Hour
	// Guesses of a job that has not saved, or not restarted, yet.
	guessStall   = 5 * time.Second
	guessRestart = time.Minute
	minBest      = 10 * time.Second
	maxBest      = 24 * time.Hour
)

// MTBF is the mean time between failures of a job after so many of them in a time, with
// what is known of its kind weighing as much as one failure.
func MTBF(seen time.Duration, failures, ranks int64) time.Duration {
	prior := float64(priorMTBF) / float64(max(1, ranks))
	m := (float64(max(0, seen)) + prior) / float64(1+max(0, failures))
	return time.Duration(min(m, math.MaxInt64/4))
}

// Guessed fills in what was not measured.
func (c Costs) Guessed() Costs {
	if c.Stall <= 0 {
		c.Stall = guessStall
	}
	if c.Restart <= 0 {
		c.Restart = guessRestart
	}
	if c.MTBF <= 0 {
		c.MTBF = priorMTBF
	}
	c.Upload = max(0, c.Upload)
	return c
}

// Best is the time between two saves that loses least: √(2·C·M) after Young, where a save
// that stands still for C is weighed against half an interval for every failure in M. It
// is never shorter than a save takes to be committed.
func (c Costs) Best() time.Duration {
	c = c.Guessed()
	best := time.Duration(math.Sqrt(2 * float64(c.Stall) * float64(c.MTBF)))
	return min(max(best, c.Upload, minBest), maxBest)
}

// Useful is the share of the time that is neither saving, lost nor restarting when a job
// saves every so often: 1 − C/τ − (τ/2+S+R)/M.
func (c Costs) Useful(every time.Duration) float64 {
	c = c.Guessed()
	if every <= 0 {
		return 0
	}
	u := 1 - float64(c.Stall)/float64(every) - (float64(every)/2+float64(c.Upload)+float64(c.Restart))/float64(c.MTBF)
	return min(1, max(0, u))
}

// Due reports whether a job is to save now: it makes steps since first, its last step was
// committed at last (zero: none was), and every is the time between two. An interval by
// steps is never due: the ranks decide it by themselves, without a word between them.
func (i Interval) Due(c Costs, first, last, now time.Time) bool {
	every := i.Every
	if i.Auto {
		every = c.Best()
	}
	if every <= 0 || first.IsZero() {
		return false
	}
	from := first
	if last.After(from) {
		from = last
	}
	return now.Sub(from) >= every
}

// Costs are what was measured of a job: the mean stall of its saves, the mean upload of
// those that were staged, the mean of its recoveries, and its failures in the time that its ranks ran.
func (j *Job) Costs(saves, failures, ranks int64) Costs {
	var c Costs
	var saving, ran, recovered, upload time.Duration
	var n, uploads int64
	for i := range j.Attempts {
		a := &j.Attempts[i]
		saving += max(0, a.Saving)
		upload, uploads = upload+max(0, a.Upload), uploads+max(0, a.Uploads)
		if !a.Running.IsZero() && a.Ended.After(a.Running) {
			ran += a.Ended.Sub(a.Running)
		}
		if d, ok := j.Recovery(i); ok {
			recovered += d
			n++
		}
	}
	if saves > 0 {
		c.Stall = saving / time.Duration(saves)
	}
	if uploads > 0 {
		c.Upload = upload / time.Duration(uploads)
	}
	if n > 0 {
		c.Restart = recovered / time.Duration(n)
	}
	c.MTBF = MTBF(ran+j.Past.Useful+j.Past.Lost, failures, ranks)
	return c
}
