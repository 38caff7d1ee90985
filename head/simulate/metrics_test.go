package simulate

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// near reports values that are not those that were worked out by hand.
func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-5*max(1, math.Abs(want)) {
		t.Errorf("%s is %g, want %g", what, got, want)
	}
}

// Three jobs on two nodes of four GPUs. From 0 to 50 s the first holds half a node and the
// second the other one; from then on the third has that, and from 100 s on it is alone.
func TestFiguresByHand(t *testing.T) {
	in := "submit,duration,gpus,deadline\n0,100,2,100\n0,50,4,\n0,100,4,149\n"
	tr := read(t, "three.csv", strings.NewReader(in), ReadOptions{})
	r := play(t, &Cluster{Nodes: []NodeGroup{{Count: 2, GPUs: 4}}}, tr, Options{Check: true})
	rep := NewReport(tr, r, "", 0, 8)
	near(t, "utilisation", rep.Utilisation, (6*50+6*50+4*50)/(8*150.0))
	near(t, "fragmentation", rep.Fragmentation, (2*50+2*50+0*50)/(2*50+2*50+4*50.0))
	near(t, "GPU-hours", rep.GPUHours, 800/3600.0)
	near(t, "lost GPU-hours", rep.LostGPUHours, 0)
	if rep.Deadlines != 2 || rep.Missed != 1 { // who ends at its deadline is in time
		t.Errorf("%d of %d deadlines missed, want 1 of 2", rep.Missed, rep.Deadlines)
	}
	all := rep.Classes[0]
	near(t, "mean wait", all.Wait.Mean.D().Seconds(), 50/3.0)
	near(t, "longest wait", all.Wait.Max.D().Seconds(), 50)
	near(t, "mean completion", all.Completion.Mean.D().Seconds(), (100+50+150)/3.0)
	near(t, "median completion", all.Completion.P50.D().Seconds(), 100)
}

// A job of 200 s on 8 GPUs that takes 5 s to start and saves each minute for 10 s fails
// after 100 s: 60 s are saved, 25 s are lost and 5 s on each start.
func TestLossesByHand(t *testing.T) {
	for _, tc := range []struct {
		name string
		what event
	}{
		{"its machine fails", event{what: nodeFails}},
		{"its program fails", event{what: rankFails, version: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := eights(1)
			c.Start = unit.Duration(5 * time.Second)
			c.Checkpoints = &Checkpoints{Interval: unit.Duration(time.Minute), Save: unit.Duration(10 * time.Second)}
			tr := jobs(t, "0 200 8")
			s, err := newSim(c, tr, Options{Check: true})
			if err != nil {
				t.Fatal(err)
			}
			s.at(100*time.Second, tc.what)
			r, err := s.play(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			o := r.Jobs[0]
			rep := NewReport(tr, r, "", 0, 8)
			down := o.Ended.Seconds() - (100 + 5 + 60 + 10 + 60 + 10 + 20) // until it was started again
			if !o.Done || o.Restarts != 1 || down < 0 || down > 10 {
				t.Fatalf("%+v, down for %g s", o, down)
			}
			held := o.Ended.Seconds()
			if tc.what.what == nodeFails {
				held -= down // it held nothing meanwhile
				down = 0
			}
			near(t, "GPU-hours", rep.GPUHours, 8*held/3600)
			near(t, "lost GPU-hours", rep.LostGPUHours, 8*(5+25+down+5)/3600)
			near(t, "GPU-hours of saves", rep.SavingGPUHours, 8*3*10/3600.0)
			if rep.Failures != 1 || rep.Restarts != 1 || rep.Preemptions != 0 {
				t.Errorf("%+v", rep)
			}
		})
	}
}

// A more important job after 100 s: the other one saves for 10 s, gives everything back,
// waits for 50 s, and loses nothing but its starts.
func TestPreemptionByHand(t *testing.T) {
	c := eights(1)
	c.Start = unit.Duration(5 * time.Second)
	c.Checkpoints = &Checkpoints{Interval: unit.Duration(time.Hour), Save: unit.Duration(10 * time.Second)}
	tr := jobs(t, "0 200 8 - 0 true", "100 45 8 - 10 false")
	r := play(t, c, tr, Options{Check: true})
	rep := NewReport(tr, r, "", 0, 8)
	if low, high := r.Jobs[0], r.Jobs[1]; high.Started != 110*time.Second || low.Ended != (160+5+200-95)*time.Second {
		t.Errorf("the preempted job ended at %s, the other one began at %s", low.Ended, high.Started)
	}
	near(t, "lost GPU-hours", rep.LostGPUHours, 8*(5+5+5)/3600.0)
	near(t, "GPU-hours of saves", rep.SavingGPUHours, 8*10/3600.0)
	if rep.Preemptions != 1 || rep.Restarts != 1 || rep.Failures != 0 {
		t.Errorf("%+v", rep)
	}
}

// Rules of deadlines book what jobs hold, and what their changes cost.
func TestDueBooks(t *testing.T) {
	tr := due(t, "0,1000,4,2000\n")
	r, err := Due(t.Context(), DueFixed, tr, 8000, DueOptions{Speedup: schedule.UsualSpeedup, Change: 30 * time.Second}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rep := NewReport(tr, r, "", 0, 8)
	near(t, "GPU-hours", rep.GPUHours, 4*1030/3600.0)
	near(t, "lost GPU-hours", rep.LostGPUHours, 4*30/3600.0)
	near(t, "utilisation", rep.Utilisation, 0.5)
}
