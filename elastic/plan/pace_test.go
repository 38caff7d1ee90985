package plan

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func steady(step time.Duration, n int) *Pace {
	p := &Pace{}
	for range n {
		p.Step(step, 1)
	}
	return p
}

// TestPace: what is learned from a rank's steps.
func TestPace(t *testing.T) {
	if p := (&Pace{}); p.Known() || p.P99() != 0 {
		t.Error("something is known of nothing")
	}
	p := steady(time.Second, 1000)
	if got := p.P99(); got < time.Second || got > 3*time.Second/2 {
		t.Errorf("p99 of seconds is %s", got)
	}
	if p.Deadline() != 10*time.Second || p.KillAfter() != 10*time.Minute {
		t.Errorf("%s, %s", p.Deadline(), p.KillAfter())
	}
	p.Step(5*time.Minute, 1) // a checkpoint
	if p.Deadline() != 10*time.Minute || p.KillAfter() != 50*time.Minute {
		t.Errorf("after a long gap %s, %s", p.Deadline(), p.KillAfter())
	}
	if p := steady(2*time.Minute, 100); p.Deadline() < 8*time.Minute || p.KillAfter() < 24*time.Minute {
		t.Errorf("of slow steps %s, %s", p.Deadline(), p.KillAfter())
	}
	if p := steady(time.Millisecond, 3); p.Deadline() != time.Minute {
		t.Errorf("of three steps %s", p.Deadline())
	}
	// A faster pace is learned anew, and the slow one forgotten.
	p = steady(10*time.Second, 1000)
	for range 100_000 {
		p.Step(time.Millisecond, 1)
	}
	if p.P99() > 5*time.Millisecond {
		t.Errorf("p99 stays at %s", p.P99())
	}
}

// TestStallKill: how the flag is read and what it means.
func TestStallKill(t *testing.T) {
	p := steady(time.Second, 100)
	for text, want := range map[string]time.Duration{"": 10 * time.Minute, "auto": 10 * time.Minute, "30s": 30 * time.Second, "1s": time.Second, "2h": 2 * time.Hour} {
		k, err := ParseStallKill(text)
		if d, ok := k.Limit(p); err != nil || !ok || d != want {
			t.Errorf("%q: %s %v %v", text, d, ok, err)
		}
		if _, ok := k.Limit(&Pace{}); ok {
			t.Errorf("%q: the first step has a deadline", text)
		}
	}
	if k, err := ParseStallKill("off"); err != nil || !k.Never {
		t.Error(err)
	}
	if _, ok := (StallKill{Never: true}).Limit(p); ok {
		t.Error("off kills")
	}
	for _, text := range []string{"on", "0", "-5m", "1ms", "5", "10 minutes"} {
		if _, err := ParseStallKill(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// TestSlowIsNoStall: however slow a rank is, the next step at its own pace, or at any
// pace it ever had, comes before it counts as stalled, and long before it is ended.
func TestSlowIsNoStall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &Pace{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			d := time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(t, "step"))
			p.Step(d, rapid.Int64Range(-1, 1000).Draw(t, "at once"))
			if p.Deadline() < d && p.Known() && p.Longest() >= d {
				t.Fatalf("a gap of %s counts as a stall: %s", d, p.Deadline())
			}
		}
		if limit, ok := (StallKill{}).Limit(p); ok && (limit < p.Deadline() || limit < 10*p.Longest() || limit < StallKillFloor) {
			t.Fatalf("ended after %s, stalled after %s", limit, p.Deadline())
		}
		if p.Deadline() <= 0 || p.KillAfter() <= 0 {
			t.Fatalf("overflow: %s %s", p.Deadline(), p.KillAfter())
		}
	})
}
