package supervise

import (
	"fmt"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// failing is a group of one node whose rank 0 was ended by x at epoch.
func failing(x wire.RankExit, hours float64) Group {
	a := &Attempt{
		World: 2, Allocs: []Alloc{{ID: "a", Node: "n1", Ranks: []int64{0, 1}, Started: true, Ended: true}},
		Created: epoch.Add(-time.Hour * 100), FirstStep: true, FirstStepAt: epoch.Add(-time.Duration(hours * float64(time.Hour))), From: 0, Newest: 1000,
		Exits: []Exit{{Alloc: "a", Node: "n1", At: epoch, RankExit: x}},
	}
	return Group{Job: "j", State: api.Running, Placed: true, Attempt: a, Ready: []string{"n1", "n2"}}
}

var (
	killed = wire.RankExit{Code: -1, Signal: sigKill}
	raised = wire.RankExit{Code: 1, Message: "ValueError: no"}
)

// TestRefill: one restart of each class for every hour of steps that no attempt had
// made before, and none where failures are counted exactly.
func TestRefill(t *testing.T) {
	zero := int64(0)
	cases := []struct {
		name   string
		hours  float64
		change func(*Group)
		user   int64 // used after the charge of one more
		useful time.Duration
	}{
		{"59 minutes", 59.0 / 60, nil, 4, 59 * time.Minute},
		{"an hour", 1, nil, 3, 0},
		{"two and a half", 2.5, nil, 2, 30 * time.Minute},
		{"never below none", 50, nil, 1, 0},
		{"half of it was done before", 2, func(g *Group) { g.Ledger.High = 500 }, 3, 0},
		{"all of it was done before", 9, func(g *Group) { g.Ledger.High = 1000 }, 4, 0},
		{"it stood still", 2, func(g *Group) { g.Attempt.Idle = 90 * time.Minute }, 4, 30 * time.Minute},
		{"no step", 9, func(g *Group) { g.Attempt.FirstStepAt = time.Time{} }, 4, 0},
		{"the clock was set back", -3, nil, 4, 0},
		{"launch", 9, func(g *Group) { g.Policy.MaxRestarts = &zero }, 4, 0},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			g := failing(raised, k.hours)
			g.Ledger.User = 3
			if k.change != nil {
				k.change(&g)
			}
			d := Decide(g, epoch)
			if d.End == nil || d.End.Ledger.User != k.user || d.End.Ledger.Useful.Round(time.Second) != k.useful {
				t.Errorf("%+v", d.End)
			}
			if d.End.Ledger.High < g.Ledger.High {
				t.Errorf("the newest step went back to %d", d.End.Ledger.High)
			}
		})
	}
}

// TestClasses: whose fault a rank's end is.
func TestClasses(t *testing.T) {
	cases := []struct {
		name   string
		exit   wire.RankExit
		change func(*Group)
		cause  api.Cause
	}{
		{"exception", raised, nil, api.CauseUser},
		{"exit code", wire.RankExit{Code: 7}, nil, api.CauseUser},
		{"out of memory in its own limit", wire.RankExit{Code: -1, Signal: sigKill, OOM: true}, nil, api.CauseUser},
		{"killed from outside", killed, nil, api.CauseInfra},
		{"full disk while it saved", wire.RankExit{Code: 1, Message: "OSError: [Errno 28] No space left on device", Disk: "step 5 was not saved (ENOSPC)"}, nil, api.CauseInfra},
		{"full disk anywhere else", wire.RankExit{Code: 1, Message: "OSError: [Errno 28] No space left on device"}, nil, api.CauseUser},
		{"a device with an Xid", wire.RankExit{Code: 1, Message: "CUDA error: unspecified launch failure"}, func(g *Group) { g.Attempt.Allocs[0].GPUFault = "GPU-1 is lost" }, api.CauseInfra},
		{"out of memory on a device with an Xid", wire.RankExit{Code: -1, Signal: sigKill, OOM: true}, func(g *Group) { g.Attempt.Allocs[0].GPUFault = "GPU-1 is lost" }, api.CauseUser},
		{"a stall", killed, func(g *Group) {
			g.Attempt.Exits, g.Attempt.Allocs[0].Ended = nil, false
			g.Attempt.Allocs[0].Overdue, g.Attempt.Allocs[0].SlowRank = "no step for 10m0s", 1
		}, api.CauseHang},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			g := failing(k.exit, 0)
			if k.change != nil {
				k.change(&g)
			}
			d := Decide(g, epoch)
			if d.End == nil || d.End.Cause != k.cause {
				t.Fatalf("%+v", d)
			}
			used := map[api.Cause]int64{api.CauseUser: d.End.Ledger.User, api.CauseInfra: d.End.Ledger.Infra, api.CauseHang: d.End.Ledger.Hang}
			if used[k.cause] != 1 || d.End.Ledger.Failed != 1 {
				t.Errorf("booked as %+v", d.End.Ledger)
			}
			if k.cause == api.CauseHang && d.End.Failure.Rank != 1 {
				t.Errorf("rank %d is blamed", d.End.Failure.Rank)
			}
		})
	}
}

// TestBar: a node is left alone after so many failures of its own within an hour, where
// there is another one.
func TestBar(t *testing.T) {
	never, one := int64(0), int64(1)
	faults := func(node string, ages ...time.Duration) (out []Fault) {
		for _, a := range ages {
			out = append(out, Fault{node, epoch.Add(-a)})
		}
		return out
	}
	cases := []struct {
		name   string
		change func(*Group)
		want   bool
	}{
		{"the first", nil, false},
		{"the third", func(g *Group) { g.Ledger.Faults = faults("n1", 50*time.Minute, time.Minute) }, true},
		{"too long ago", func(g *Group) { g.Ledger.Faults = faults("n1", 61*time.Minute, time.Minute) }, false},
		{"of another node", func(g *Group) { g.Ledger.Faults = faults("n2", time.Minute, time.Minute) }, false},
		{"no other node", func(g *Group) { g.Ledger.Faults = faults("n1", time.Minute, time.Minute); g.Ready = []string{"n1"} }, false},
		{"switched off", func(g *Group) {
			g.Ledger.Faults = faults("n1", time.Minute, time.Minute)
			g.Policy.ExcludeAfter = &never
		}, false},
		{"after one", func(g *Group) { g.Policy.ExcludeAfter = &one }, true},
		{"its own exception", func(g *Group) { g.Policy.ExcludeAfter = &one; g.Attempt.Exits[0].RankExit = raised }, false},
		{"no restart is left", func(g *Group) { g.Policy.ExcludeAfter, g.Policy.Infra = &one, &never }, false},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			g := failing(killed, 0)
			if k.change != nil {
				k.change(&g)
			}
			d := Decide(g, epoch)
			if got := d.End.Bar != nil; got != k.want {
				t.Fatalf("%+v", d.End.Bar)
			}
			if k.want && (d.End.Bar.Node != "n1" || d.End.Bar.For != time.Hour || d.End.Bar.Why == "") {
				t.Errorf("%+v", d.End.Bar)
			}
		})
	}
	g := failing(killed, 0)
	g.Attempt.Ended, g.Barred = true, []string{"n1"}
	if d := Decide(g, epoch); d.Action != Replace || d.Reason.Code != api.ReasonExcluded || len(d.Reason.Blockers) != 1 {
		t.Errorf("a barred node is not left: %+v", d)
	}
}

// TestFaultsAreBounded: the ledger does not grow with the failures.
func TestFaultsAreBounded(t *testing.T) {
	var l Ledger
	for i := range 1000 {
		l = l.Charge(fmt.Sprint(i), epoch)
	}
	if len(l.Faults) != maxFaults || l.Infra != 1000 || l.Faults[maxFaults-1].Node != "999" {
		t.Errorf("%d faults, %d failures", len(l.Faults), l.Infra)
	}
}

// TestMembership: case 4: a node that leaves a group of launch that may be smaller costs
// nothing, however fast it comes back; below the least size it costs a restart.
func TestMembership(t *testing.T) {
	zero := int64(0)
	for min, failed := range map[int64]int64{0: 1, 2: 0, 3: 1} {
		g := failing(killed, 0)
		g.Policy.MaxRestarts, g.MinRanks = &zero, min
		g.Attempt.World, g.Attempt.Exits = 4, nil
		g.Attempt.Allocs = []Alloc{{ID: "a", Node: "n1", Ranks: []int64{0, 1}, Started: true}, {ID: "b", Node: "n2", Ranks: []int64{2, 3}, Started: true, Lost: true}}
		d := Decide(g, epoch)
		if d.End == nil || d.End.Ledger.Failed != failed || (d.Action == Finish) != (failed == 1) {
			t.Errorf("least %d: %+v %+v", min, d.Action, d.End)
		}
	}
}
