package plan

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

func sec(n int) time.Duration { return time.Duration(n) * time.Second }

// TestAccount: stories of jobs and where their time went, in seconds.
func TestAccount(t *testing.T) {
	ran := Attempt{Placed: at(10), Created: at(11), Running: at(15), First: at(20), Ended: at(120), From: 0, Newest: 100}
	cases := []struct {
		name string
		job  Job
		now  int
		want Parts
	}{
		{"waits", Job{}, 60, Parts{Waiting: sec(60)}},
		{"placed and not started", Job{Placed: at(50)}, 60, Parts{Waiting: sec(50), Starting: sec(10)}},
		{"before its first step", Job{Steps: true, Attempts: []Attempt{{Placed: at(10), Created: at(11), Running: at(15)}}}, 30, Parts{Waiting: sec(10), Starting: sec(20)}},
		{"makes steps", Job{Steps: true, Attempts: []Attempt{{Placed: at(10), Created: at(11), Running: at(15), First: at(20), Newest: 9}}}, 120, Parts{Waiting: sec(10), Starting: sec(10), Useful: sec(100)}},
		{"publishes none", Job{Attempts: []Attempt{{Placed: at(10), Created: at(11), Running: at(15)}}}, 115, Parts{Waiting: sec(10), Starting: sec(5), Useful: sec(100)}},
		{"saves and stalls", Job{Steps: true, Attempts: []Attempt{{First: at(0), Newest: 9, Saving: sec(10), Stalled: sec(30)}}}, 100, Parts{Useful: sec(60), Checkpointing: sec(10), Stalled: sec(30)}},
		{"succeeded", Job{Steps: true, Saves: true, Succeeded: true, Ended: at(120), Attempts: []Attempt{ran}}, 999, Parts{Waiting: sec(10), Starting: sec(10), Useful: sec(100)}},
		{
			"failed after its last commit",
			Job{Steps: true, Saves: true, Ended: at(120), Attempts: []Attempt{with(ran, func(a *Attempt) { a.Kept = new(int64(75)) })}},
			999,
			Parts{Waiting: sec(10), Starting: sec(10), Useful: sec(75), Lost: sec(25)},
		},
		{
			"goes on at an earlier step",
			Job{Steps: true, Saves: true, Attempts: []Attempt{
				with(ran, func(a *Attempt) { a.Kept = new(int64(80)) }),
				{Placed: at(10), Created: at(121), Running: at(125), First: at(130), From: 60, Newest: 90},
			}},
			160,
			Parts{Waiting: sec(10), Starting: sec(10), Useful: sec(60 + 30), Lost: sec(40), Restarting: sec(10)},
		},
		{
			"saves by itself and goes on where it was",
			Job{Steps: true, Attempts: []Attempt{ran, {Created: at(121), First: at(130), From: 99, Newest: 100}}},
			131,
			Parts{Waiting: sec(10), Starting: sec(10), Useful: sec(99 + 1), Lost: sec(1), Restarting: sec(10)},
		},
		{
			"waits for a node between two attempts",
			Job{Steps: true, Attempts: []Attempt{ran, {Placed: at(180), Created: at(185), First: at(190), From: 100, Newest: 101}}},
			200,
			Parts{Waiting: sec(10 + 60), Starting: sec(10), Useful: sec(100 + 10), Restarting: sec(10)},
		},
		{
			"a service that is restarted",
			Job{Serves: true, Attempts: []Attempt{{Created: at(0), Running: at(0), Ended: at(100)}, {Created: at(101), Running: at(102)}}},
			202,
			Parts{Useful: sec(200), Restarting: sec(2)},
		},
		{
			"fails before its first step, twice",
			Job{Attempts: []Attempt{{Created: at(0), Running: at(1), Ended: at(10)}, {Created: at(10), Running: at(11), Ended: at(20)}}, Ended: at(20)},
			99,
			Parts{Starting: sec(1), Lost: sec(18), Restarting: sec(1)},
		},
		{"of which the beginning is forgotten", Job{Steps: true, Past: Parts{Useful: sec(500)}, Until: at(500), Attempts: []Attempt{{Created: at(510), First: at(520), From: 1, Newest: 5}}}, 540, Parts{Useful: sec(520), Restarting: sec(20)}},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			k.job.Submitted = epoch
			got, each := Account(k.job, at(k.now))
			if got != k.want {
				t.Errorf("got  %+v\nwant %+v", got, k.want)
			}
			if len(each) != len(k.job.Attempts) {
				t.Errorf("%d of %d attempts", len(each), len(k.job.Attempts))
			}
		})
	}
}

func with(a Attempt, f func(*Attempt)) Attempt {
	f(&a)
	return a
}

// TestPartsSumToTheWhole: whatever the log says, in whatever order its times are, the
// parts add up to the wall time and none is negative.
func TestPartsSumToTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		instant := func(name string) time.Time {
			if rapid.IntRange(0, 3).Draw(t, name+" missing") == 0 {
				return time.Time{}
			}
			return at(rapid.IntRange(-100, 1000).Draw(t, name))
		}
		span := func(name string) time.Duration {
			return time.Duration(rapid.Int64Range(-int64(sec(50)), int64(sec(500))).Draw(t, name))
		}
		j := Job{
			Submitted: epoch, Ended: instant("ended"), Placed: instant("placed"),
			Succeeded: rapid.Bool().Draw(t, "succeeded"), Serves: rapid.Bool().Draw(t, "serves"),
			Saves: rapid.Bool().Draw(t, "saves"), Steps: rapid.Bool().Draw(t, "steps"),
		}
		for range rapid.IntRange(0, 5).Draw(t, "attempts") {
			a := Attempt{
				Placed: instant("a.placed"), Created: instant("created"), Running: instant("running"), First: instant("first"), Ended: instant("a.ended"),
				From: rapid.Int64Range(-5, 100).Draw(t, "from"), Newest: rapid.Int64Range(-5, 100).Draw(t, "newest"), Saving: span("saving"), Stalled: span("stalled"),
			}
			if rapid.Bool().Draw(t, "commits") {
				a.Kept = new(rapid.Int64Range(-5, 200).Draw(t, "kept"))
			}
			j.Attempts = append(j.Attempts, a)
		}
		now := at(rapid.IntRange(0, 1000).Draw(t, "now"))
		end := now
		if !j.Ended.IsZero() {
			end = j.Ended
		}
		got, each := Account(j, now)
		if whole := max(0, end.Sub(epoch)); got.Sum() != whole {
			t.Fatalf("%+v is %s, the whole %s", got, got.Sum(), whole)
		}
		for _, p := range append(each, got) {
			for _, d := range []time.Duration{p.Waiting, p.Starting, p.Useful, p.Checkpointing, p.Stalled, p.Restarting, p.Lost} {
				if d < 0 {
					t.Fatalf("negative: %+v", p)
				}
			}
		}
		if r := got.Ratio(); r < 0 || r > 1 {
			t.Fatalf("ratio %f", r)
		}
		// Forgetting the oldest attempts, with what they took, changes no sum.
		if len(each) > 1 && !j.Attempts[0].Ended.IsZero() {
			short := j
			short.Past, short.Until = each[0], epoch.Add(each[0].Sum())
			short.Attempts = j.Attempts[1:]
			if again, _ := Account(short, now); again.Sum() != got.Sum() {
				t.Fatalf("%s without the first attempt, %s with it", again.Sum(), got.Sum())
			}
		}
	})
}

// TestRecovery: from the end of one attempt to the first step of the next.
func TestRecovery(t *testing.T) {
	j := Job{Steps: true, Attempts: []Attempt{{Ended: at(10)}, {Running: at(11)}, {First: at(30)}}}
	if d, ok := j.Recovery(1); ok {
		t.Errorf("%s without a step", d)
	}
	j.Attempts[1].Ended = at(20)
	if d, ok := j.Recovery(2); !ok || d != sec(10) {
		t.Errorf("%s %v", d, ok)
	}
	j.Steps = false
	if d, ok := j.Recovery(1); !ok || d != sec(1) {
		t.Errorf("%s %v", d, ok)
	}
	if _, ok := j.Recovery(0); ok {
		t.Error("the first attempt recovers from nothing")
	}
}
