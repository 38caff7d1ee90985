package simulate

import (
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// sized is a trace of rows "submit,duration,ranks,sizes,priority,preemptible,deadline,estimate" of one GPU a rank.
func sized(t *testing.T, rows ...string) *Trace {
	t.Helper()
	in := "submit,duration,ranks,sizes,priority,preemptible,deadline,estimate,gpus\n"
	for _, r := range rows {
		in += r + ",1\n"
	}
	return read(t, "sized.csv", strings.NewReader(in), ReadOptions{})
}

// saving is so many nodes of eight GPUs whose jobs save every hour for a minute.
func saving(nodes int64) *Cluster {
	c := eights(nodes)
	c.Checkpoints = &Checkpoints{Interval: unit.Duration(time.Hour), Save: unit.Duration(time.Minute)}
	return c
}

// A job that may have more ranks grows into what nobody waits for, after a save, and its
// work is done 1.8 times as fast with twice the ranks.
func TestGrowsIntoFreeCapacity(t *testing.T) {
	r := play(t, saving(1), sized(t, "0,18h,4,4|8,0,,,18h"), Options{Check: true})
	o := r.Jobs[0]
	// An hour's work until it has shown that it can save, then it saves once more and goes on
	// with 8: the other 17 hours take 9 h 27 min, with nine saves between.
	if o.Grown != 1 || o.Shrunk != 0 || !o.Done {
		t.Fatalf("%+v", o)
	}
	want := time.Hour + time.Minute + time.Minute + 17*time.Hour*5/9 + 9*time.Minute
	if d := o.Ended - want; d < 0 || d > 2*time.Second {
		t.Errorf("it ended at %s, want %s", o.Ended, want)
	}
	hours := func(x float64) float64 { return x / 1000 / 3600 }
	if got, want := hours(o.Useful), 4+17*5.0/9*8; got < want-0.01 || got > want+0.01 {
		t.Errorf("%.2f GPU-hours of work, want %.2f", got, want)
	}
	if hours(o.Lost) > 0.01 {
		t.Errorf("%.2f GPU-hours lost, though each change was saved", hours(o.Lost))
	}
	// Without checkpoints all of it would be done again, so it stays as it is.
	if o := play(t, eights(1), sized(t, "0,18h,4,4|8,0,,,18h"), Options{Check: true}).Jobs[0]; o.Grown != 0 || o.Ended != 18*time.Hour {
		t.Errorf("without checkpoints: %+v", o)
	}
}

// What a victim has beyond its least size is taken before anybody is ended.
func TestShrinksForOthers(t *testing.T) {
	r := play(t, saving(1), sized(t, "0,20h,8,4|8,0,true,,20h", "5h,1h,4,,10,,,1h"), Options{Check: true})
	low, high := r.Jobs[0], r.Jobs[1]
	if low.Shrunk != 1 || low.Evictions != 0 || !low.Done || !high.Done || high.Wait() > 2*time.Minute {
		t.Fatalf("low %+v, high %+v", low, high)
	}
	if low.Grown != 1 {
		t.Errorf("it grew %d times into what the other one gave back", low.Grown)
	}
	if low.Lost/1000/3600 > 0.1 {
		t.Errorf("%.2f GPU-hours lost, though it saved", low.Lost/1000/3600)
	}
}

// After a loss a job goes on at once: elsewhere if there is room, else with fewer ranks.
func TestGoesOnAfterALoss(t *testing.T) {
	for _, tc := range []struct {
		name   string
		nodes  int64
		sizes  string
		shrunk bool
	}{{"elsewhere", 3, "", false}, {"with fewer ranks", 2, "8|16", true}} {
		t.Run(tc.name, func(t *testing.T) {
			c := saving(tc.nodes)
			c.Failures.Node = Lifetime{MTBF: unit.Duration(2000 * time.Hour), Repair: unit.Duration(50 * time.Hour)}
			r := play(t, c, sized(t, "0,1500h,16,"+tc.sizes+",0,,,1500h"), Options{Seed: 4, Check: true, Until: 20000 * time.Hour})
			o := r.Jobs[0]
			if !o.Done || o.Restarts == 0 || r.Failures == 0 {
				t.Fatalf("%+v after %d failures", o, r.Failures)
			}
			if (o.Shrunk > 0) != tc.shrunk {
				t.Errorf("it went on with fewer ranks %d times", o.Shrunk)
			}
		})
	}
}

// Sizes are chosen by the deadline as the head chooses them: at the start, if the job could
// not be in time otherwise.
func TestStartsWithTheSizeThatIsInTime(t *testing.T) {
	r := play(t, eights(1), sized(t, "0,10h,2,2|4|8,0,,6h,10h"), Options{Check: true})
	if o := r.Jobs[0]; !o.Done || o.Ended > 6*time.Hour || o.Busy/1000/3600 > 23 {
		t.Errorf("it ended at %s, %.1f GPU-hours", o.Ended, o.Busy/1000/3600)
	}
	// When that is taken it starts with what there is.
	r = play(t, eights(1), sized(t, "0,10h,6,,0,,,10h", "1h,10h,2,2|4|8,0,,6h,10h"), Options{Check: true})
	if o := r.Jobs[1]; !o.Done || o.Wait() != 0 {
		t.Errorf("%+v", o)
	}
}

// A job that reaches its time limit is stopped.
func TestTimeLimit(t *testing.T) {
	in := "submit,duration,gpus,time_limit\n0,10h,8,2h\n0,1h,8,2h\n"
	r := play(t, eights(1), read(t, "limit.csv", strings.NewReader(in), ReadOptions{}), Options{Check: true})
	if o := r.Jobs[0]; o.Done || !strings.Contains(o.Failed, "time limit") || o.Ended != 2*time.Hour && r.Jobs[1].Ended != time.Hour {
		t.Errorf("%+v", o)
	}
	if o := r.Jobs[1]; !o.Done {
		t.Errorf("%+v", o)
	}
}

// What a gang that shrinks gives back is what was claimed: the bundles of its highest ranks,
// also when it has more than ten, which other orders mix up.
func TestShrinksToItsLowestRanks(t *testing.T) {
	r := play(t, saving(2), sized(t, "0,20h,16,8|16,0,true,,20h", "5h,1h,8,,10,,,1h"), Options{Check: true})
	if low, high := r.Jobs[0], r.Jobs[1]; r.Unclaimed != 0 || low.Shrunk != 1 || low.Evictions != 0 || high.Wait() > 2*time.Minute {
		t.Errorf("%d claims came to nothing; low %+v, high %+v", r.Unclaimed, low, high)
	}
}
