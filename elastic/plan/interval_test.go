package plan

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestParseInterval: what is read, and what is refused with a word of help.
func TestParseInterval(t *testing.T) {
	for text, want := range map[string]Interval{
		"": {}, "auto": {Auto: true}, "300steps": {Steps: 300}, "1step": {Steps: 1}, "10m": {Every: 10 * time.Minute}, "1h30m": {Every: 90 * time.Minute}, "1s": {Every: time.Second},
	} {
		got, err := ParseInterval(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v %v", text, got, err)
		}
		if again, err := ParseInterval(got.String()); err != nil || again != got {
			t.Errorf("%q is written as %q", text, got.String())
		}
	}
	for _, text := range []string{"0steps", "-1steps", "1.5steps", "steps", "300", "0", "0s", "-5m", "1ms", "9999h", "never", "AUTO", "18446744073709551616steps", strings.Repeat("9", 1000)} {
		if _, err := ParseInterval(text); !errors.Is(err, ErrInterval) || len(err.Error()) > 200 {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

// TestBestIsBest: no other interval keeps more of the time useful.
func TestBestIsBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Costs{
			Stall:   time.Duration(rapid.Int64Range(int64(10*time.Millisecond), int64(time.Minute)).Draw(t, "stall")),
			Restart: time.Duration(rapid.Int64Range(int64(time.Second), int64(10*time.Minute)).Draw(t, "restart")),
			MTBF:    time.Duration(rapid.Int64Range(int64(time.Hour), int64(1000*time.Hour)).Draw(t, "mtbf")),
		}
		best := c.Best()
		if best < minBest || best > maxBest {
			t.Fatalf("every %s", best)
		}
		if best == minBest || best == maxBest {
			return
		}
		for _, k := range []float64{0.3, 0.8, 1.25, 3} {
			if other := time.Duration(k * float64(best)); c.Useful(other) > c.Useful(best)+1e-9 {
				t.Fatalf("%+v: every %s keeps %f, every %s %f", c, best, c.Useful(best), other, c.Useful(other))
			}
		}
	})
}

// TestUsefulTime: a training on 16,384 ranks that fails every 3.1 h keeps what the best
// interval allows: 98.1 % at a stall of 0.5 s, an upload of 20 s and a restart of 90 s, when
// the failures come as they do, not as they are expected.
func TestUsefulTime(t *testing.T) {
	c := Costs{Stall: 500 * time.Millisecond, Upload: 20 * time.Second, Restart: 90 * time.Second, MTBF: 186 * time.Minute}
	every := c.Best()
	floor := c.Useful(every)
	if math.Abs(floor-0.981) > 0.001 {
		t.Errorf("the floor is %.4f at %s", floor, every)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var wall, useful float64 // seconds
	for range 20_000 {
		left := rng.ExpFloat64() * c.MTBF.Seconds() // until the next failure
		wall += left + c.Restart.Seconds()
		cycle := every.Seconds() + c.Stall.Seconds()
		whole := math.Floor(left / cycle)
		// A save counts once it is committed.
		if into := left - whole*cycle; whole > 0 && into < c.Upload.Seconds() {
			whole--
		}
		useful += whole * every.Seconds()
	}
	if got := useful / wall; math.Abs(got-floor) > 0.002 {
		t.Errorf("useful %.4f, the floor %.4f", got, floor)
	}
}

// TestMTBF: nothing seen is what its kind does, and much seen is what was seen.
func TestMTBF(t *testing.T) {
	if m := MTBF(0, 0, 16384); m < 3*time.Hour || m > 4*time.Hour {
		t.Errorf("of 16,384 ranks %s", m)
	}
	if m := MTBF(1000*time.Hour, 99, 16384); m < 9*time.Hour || m > 11*time.Hour {
		t.Errorf("of 99 failures in 1000 h %s", m)
	}
	if m := MTBF(-5, -5, -5); m != priorMTBF {
		t.Errorf("of nonsense %s", m)
	}
}

// TestDue: when a job is to save.
func TestDue(t *testing.T) {
	ten := Interval{Every: 10 * time.Minute}
	c := Costs{Stall: time.Second, MTBF: time.Hour} // best: 84.9 s
	for _, k := range []struct {
		name        string
		i           Interval
		first, last time.Time
		now         int
		want        bool
	}{
		{"too early", ten, at(0), time.Time{}, 599, false},
		{"the first time", ten, at(0), time.Time{}, 600, true},
		{"since the last commit", ten, at(0), at(500), 1099, false},
		{"again", ten, at(0), at(500), 1100, true},
		{"the commit is of an attempt before", ten, at(1000), at(500), 1500, false},
		{"no step yet", ten, time.Time{}, at(0), 9999, false},
		{"by steps", Interval{Steps: 5}, at(0), time.Time{}, 9999, false},
		{"left to the script", Interval{}, at(0), time.Time{}, 9999, false},
		{"auto, too early", Interval{Auto: true}, at(0), time.Time{}, 84, false},
		{"auto", Interval{Auto: true}, at(0), time.Time{}, 85, true},
	} {
		if got := k.i.Due(c, k.first, k.last, at(k.now)); got != k.want {
			t.Errorf("%s: %v", k.name, got)
		}
	}
}

// TestCosts: what is measured of a job.
func TestCosts(t *testing.T) {
	j := Job{Steps: true, Attempts: []Attempt{
		{Running: at(0), First: at(5), Ended: at(3600), Saving: 30 * time.Second, Upload: 50 * time.Second, Uploads: 4},
		{Running: at(3610), First: at(3620), Ended: at(7200), Saving: 10 * time.Second, Upload: 10 * time.Second, Uploads: 1},
		{Running: at(7230), First: at(7240)},
	}}
	c := j.Costs(20, 2, 8)
	if c.Stall != 2*time.Second || c.Upload != 12*time.Second || c.Restart != 30*time.Second || c.MTBF <= 0 {
		t.Errorf("%+v", c)
	}
	// No save begins before the last one can be committed.
	if best := (Costs{Stall: time.Millisecond, Upload: 3 * time.Hour, Restart: time.Second, MTBF: time.Minute}).Best(); best != 3*time.Hour {
		t.Errorf("best: every %s", best)
	}
	if g := (&Job{}).Costs(0, 0, 8).Guessed(); g.Stall != guessStall || g.Restart != guessRestart || g.MTBF < 6000*time.Hour {
		t.Errorf("%+v", g)
	}
}
