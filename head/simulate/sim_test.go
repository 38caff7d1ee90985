package simulate

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// eights is so many nodes of eight GPUs.
func eights(n int64) *Cluster { return &Cluster{Nodes: []NodeGroup{{Count: n, GPUs: 8}}} }

// jobs is a trace of rows "submit duration gpus [tenant]".
func jobs(t *testing.T, rows ...string) *Trace {
	t.Helper()
	in := "name,submit,duration,ranks,gpus,tenant,priority,preemptible\n"
	for i, r := range rows {
		f := strings.Fields(r)
		f = append(f, []string{"-", "0", "false"}[len(f)-3:]...)
		tenant := f[3]
		if tenant == "-" {
			tenant = ""
		}
		in += fmt.Sprintf("j%d,%s,%s,%s,1,%s,%s,%s\n", i, f[0], f[1], f[2], tenant, f[4], f[5])
	}
	return read(t, "jobs.csv", strings.NewReader(in), ReadOptions{})
}

func play(t *testing.T, c *Cluster, tr *Trace, o Options) *Result {
	t.Helper()
	r, err := Run(t.Context(), c, tr, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// However old planned starts may become, what fits starts.
func TestJobsRunOneAfterTheOther(t *testing.T) {
	for _, age := range []time.Duration{0, time.Hour} {
		tr := jobs(t, "0 100 8", "10 50 8", "20 30 4")
		c := eights(1)
		c.Policy.PlanAge = unit.Duration(age)
		r := play(t, c, tr, Options{Check: true})
		for i, want := range []time.Duration{0, 100, 150} {
			if o := r.Jobs[i]; !o.Done || o.Started != want*time.Second || o.Ended != o.Started+o.Job.Takes {
				t.Errorf("plans as old as %s: job %d ran from %s to %s, done %v; want from %ds", age, i, o.Started, o.Ended, o.Done, want)
			}
		}
		if r.Cycles > 20 {
			t.Errorf("plans as old as %s: the scheduler was asked %d times about three jobs", age, r.Cycles)
		}
		rep := NewReport(tr, r, "troupe", 1, 8)
		if rep.Finished != 3 || rep.LostGPUHours != 0 || rep.Utilisation < 0.91 || rep.Utilisation > 0.93 {
			t.Errorf("%+v", rep)
		}
	}
}

// What can never run is refused at once, and holds nobody up.
func TestRefusals(t *testing.T) {
	c := eights(2)
	c.Queues = []api.Queue{{Name: "a", Tenant: true}}
	r := play(t, c, jobs(t, "0 10 17 a", "0 10 1 nobody", "0 10 16 a"), Options{Check: true})
	if r.Jobs[0].Failed == "" || !strings.Contains(r.Jobs[1].Failed, `no tenant "nobody"`) || !r.Jobs[2].Done || r.Jobs[2].Wait() != 0 {
		t.Errorf("%+v", r.Jobs)
	}
}

// A tenant never holds more than its limit, and its jobs wait for that alone.
func TestQuota(t *testing.T) {
	c := eights(2)
	c.Queues = []api.Queue{{Name: "a", Tenant: true, Limit: api.Amounts{{Of: "gpu", N: 4000}}}, {Name: "b", Tenant: true}}
	r := play(t, c, jobs(t, "0 100 4 a", "0 100 4 a", "1 100 8 b"), Options{Check: true})
	if r.Jobs[0].Wait() != 0 && r.Jobs[1].Wait() != 0 || r.Jobs[2].Wait() != 0 {
		t.Errorf("one of a's jobs and b's start at once: %s, %s, %s", r.Jobs[0].Wait(), r.Jobs[1].Wait(), r.Jobs[2].Wait())
	}
	if w := max(r.Jobs[0].Wait(), r.Jobs[1].Wait()); w != 100*time.Second {
		t.Errorf("a's second job waited %s", w)
	}
}

// nodeDies is a cluster of which one machine fails once, early.
func nodeDies(mtbf time.Duration) *Cluster {
	c := eights(1)
	c.Failures.Node = Lifetime{MTBF: unit.Duration(mtbf), Repair: unit.Duration(time.Hour)}
	return c
}

// A job whose machine fails begins again, from its newest checkpoint if it saves.
func TestFailuresAndCheckpoints(t *testing.T) {
	row := "0 500h 8"
	plain := play(t, nodeDies(100*time.Hour), jobs(t, row), Options{Seed: 3, Check: true, Until: 5000 * time.Hour})
	saving := nodeDies(100 * time.Hour)
	saving.Checkpoints = &Checkpoints{Interval: unit.Duration(time.Hour), Save: unit.Duration(time.Minute)}
	saved := play(t, saving, jobs(t, row), Options{Seed: 3, Check: true, Until: 5000 * time.Hour})
	if plain.Failures == 0 || saved.Failures == 0 || saved.Jobs[0].Restarts == 0 {
		t.Fatalf("nothing failed: %d, %d", plain.Failures, saved.Failures)
	}
	o := saved.Jobs[0]
	if !o.Done {
		t.Fatalf("with checkpoints it is to end: %+v", o)
	}
	// Each failure costs at most an interval and a save.
	gpuHours := func(x float64) float64 { return x / 1000 / 3600 }
	if most := 8 * float64(o.Restarts) * (1 + 1.0/60); gpuHours(o.Lost) > most || o.Lost <= 0 {
		t.Errorf("%.1f GPU-hours lost in %d restarts, at most %.1f", gpuHours(o.Lost), o.Restarts, most)
	}
	if got, want := gpuHours(o.Busy-o.Saving-o.Lost), 500.0*8; got < want-0.01 || got > want+0.01 {
		t.Errorf("%.2f GPU-hours of work, want %.0f", got, want)
	}
	if lost := plain.Jobs[0].Lost; lost <= o.Lost {
		t.Errorf("without checkpoints %.0f GPU-hours were lost, with them %.0f", gpuHours(lost), gpuHours(o.Lost))
	}
}

// A program that fails by itself is charged to its budget, and the job ends with it.
func TestProgramsFail(t *testing.T) {
	c := eights(1)
	c.Failures.Rank = Lifetime{MTBF: unit.Duration(time.Minute)}
	r := play(t, c, jobs(t, "0 100h 8"), Options{Check: true})
	if o := r.Jobs[0]; o.Done || o.Restarts == 0 || !strings.HasPrefix(o.Failed, "FAILED") {
		t.Errorf("%+v", o)
	}
}

// A broken device kills the job on it and is given to nobody until it is mended.
func TestDevicesFail(t *testing.T) {
	c := eights(2)
	c.Failures.GPU = Lifetime{MTBF: unit.Duration(200 * time.Hour), Repair: unit.Duration(100 * time.Hour)}
	c.Checkpoints = &Checkpoints{Interval: unit.Duration(time.Hour)}
	r := play(t, c, jobs(t, "0 100h 8", "0 100h 8", "1h 100h 2"), Options{Seed: 5, Check: true, Until: 4000 * time.Hour})
	if r.Failures == 0 || r.Jobs[0].Restarts+r.Jobs[1].Restarts+r.Jobs[2].Restarts == 0 {
		t.Fatalf("nothing failed: %+v", r)
	}
	for i := range r.Jobs {
		if !r.Jobs[i].Done {
			t.Errorf("%+v", r.Jobs[i])
		}
	}
}

// More important work ends less important work, which saves, waits and loses nothing.
func TestPreemption(t *testing.T) {
	c := eights(1)
	c.Checkpoints = &Checkpoints{Interval: unit.Duration(10 * time.Hour), Save: unit.Duration(time.Minute)}
	r := play(t, c, jobs(t, "0 10h 8 - 0 true", "2h 1h 8 - 10 false"), Options{Check: true})
	low, high := r.Jobs[0], r.Jobs[1]
	if low.Evictions != 1 || !low.Done || !high.Done || high.Wait() > 2*time.Minute {
		t.Fatalf("low %+v, high %+v", low, high)
	}
	if low.Lost/1000/8 > 61 {
		t.Errorf("%.0f s of each device were lost", low.Lost/1000/8)
	}
	if want := 11*time.Hour + 2*time.Minute; low.Ended > want {
		t.Errorf("the preempted job ended at %s, want at most %s", low.Ended, want)
	}
}

// The same seed gives the same run, to the byte; another one another.
func TestSeed(t *testing.T) {
	c := nodeDies(50 * time.Hour)
	c.Nodes[0].Count = 4
	c.Failures.GPU = Lifetime{MTBF: unit.Duration(500 * time.Hour), Shape: 0.8, Repair: unit.Duration(time.Hour)}
	c.Checkpoints = &Checkpoints{Interval: unit.Duration(time.Hour), Save: unit.Duration(time.Minute)}
	rows := []string{"0 100h 16", "5h 30h 8", "6h 40h 4", "6h 40h 4", "100h 10h 32", "101h 10h 1"}
	text := func(seed uint64, check bool) string {
		tr := jobs(t, rows...)
		r := play(t, c, tr, Options{Seed: seed, Check: check, Until: 3000 * time.Hour})
		b, err := json.Marshal(NewReport(tr, r, "troupe", 0, 32))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	// Once with every command encoded and checked, once without.
	if a, b := text(1, true), text(1, false); a != b {
		t.Errorf("twice the same seed:\n%s\n%s", a, b)
	}
	if text(1, false) == text(2, false) {
		t.Error("two seeds gave the same")
	}
}

// Clusters that contradict themselves are refused with what is wrong.
func TestBadClusters(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{}`, "nodes is empty"},
		{`{"nodes":[{"count":0}]}`, "nodes[0].count is 0"},
		{`{"nodes":[{"count":1,"gpus":-1}]}`, "nodes[0].gpus is -1"},
		{`{"nodes":[{"count":99999999}]}`, "count is 99999999"},
		{`{"nodes":[{"count":1}],"levels":[{"name":"rack","label":"rack"}]}`, `no node has the label "rack"`},
		{`{"nodes":[{"count":1,"every":{"rack":0}}]}`, "at least one node in each domain"},
		{`{"nodes":[{"count":1}],"failures":{"node":{"repair":"1h"}}}`, "no mtbf"},
		{`{"nodes":[{"count":1}],"failures":{"gpu":{"mtbf":"1h","shape":90}}}`, "shape is 0.1 to 20"},
		{`{"nodes":[{"count":1}],"checkpoints":{"interval":"0s","save":"1s"}}`, "interval is at least 1s"},
		{`{"nodes":[{"count":1}],"checkpoints":{"interval":"1ns","save":"1s"}}`, "interval is at least 1s"},
		{`{"nodes":[{"count":1}],"checkpoints":{"interval":"1h","save":"9000h"}}`, "at most a year"},
		{`{"nodes":[{"count":1}],"failures":{"rank":{"mtbf":"1ms"}}}`, "failures.rank.mtbf is 1ms: at least 1s"},
		{`{"nodes":[{"count":1}],"start":"2562047h"}`, "start is 2562047h: not negative, and at most a year"},
		{`{"nodes":[{"count":1}],"policy":{"planAge":"9000h"}}`, "policy.planAge is 9000h"},
		{`{"nodes":[{"count":1}],"policy":{"order":"luck"}}`, "fair, fifo, short, deadline"},
		{`{"nodes":[{"count":1}],"policy":{"planAge":"-1s"}}`, "negative"},
		{`{"nodes":[{"count":1}],"policy":{"growAfter":"9000h"}}`, "policy.growAfter is 9000h"},
		{`{"nodes":[{"count":1}],"jobs":{"doublings":11}}`, "jobs.doublings is 11: 0 to 10"},
		{`{"nodes":[{"count":1}],"jobs":{"aboveGPUs":-1}}`, "below zero"},
		{`{"nodes":[{"count":1}],"jobs":{"level":"rack"}}`, `jobs.level "rack" is none of the levels`},
		{`{"nodes":[{"count":1}],"nodez":1}`, "nodez"},
		{`{"nodes":[{"count":1}]} {}`, "more than one document"},
	} {
		if _, err := ParseCluster("c", []byte(c.in)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.in, err, c.want)
		}
	}
	// What is declared is checked as a head checks it.
	const node = `{"nodes":[{"count":1,"gpus":8,"every":{"rack":1}}],`
	for _, c := range []struct{ in, want string }{
		{node + `"queues":[{"name":"a","tenant":true,"parent":"b"},{"name":"b","tenant":true,"parent":"a"}]}`, "queues[0].parent: "},
		{node + `"queues":[{"name":"a","tenant":true,"guaranteed":{"gpu":8000},"limit":{"gpu":4000}}]}`, "queues[0].limit.gpu"},
		{node + `"queues":[{"name":"-","tenant":true}]}`, "queues[0].name: "},
		{node + `"capacities":[{"name":"storage","total":-5}]}`, "capacities[0].total: -5"},
		{node + `"capacities":[{"total":5}]}`, "capacities[0].name: "},
		{node + `"capacities":[{"name":"uplink","level":"row","total":5}]}`, `capacities[0].level: there is no level "row"`},
		{node + `"levels":[{"name":"rack","label":"rack"},{"name":"row","label":"rack"}]}`, "levels[1]"},
		{node + `"reservations":[{"name":"r","start":"2026-03-01T08:00:00Z","end":"2026-02-01T08:00:00Z","maintenance":"x","count":1}]}`, "reservations[0].end: it ends before it starts"},
		{node + `"reservations":[{"name":"r","start":"2026-03-01T08:00:00Z","end":"2026-04-01T08:00:00Z","maintenance":"x","nodes":["far"]}]}`, `reservations[0].nodes[0]: there is no node "far"`},
		{node + `"reservations":[{"name":"r","start":"1990-03-01T08:00:00Z","end":"1990-04-01T08:00:00Z","maintenance":"x","count":1}]}`, "reservations[0].end: it is over already"},
	} {
		cluster, err := ParseCluster("c", []byte(c.in))
		if err == nil {
			_, err = Run(t.Context(), cluster, jobs(t, "0 1 1"), Options{})
		}
		if _, ok := errors.AsType[ClusterError](err); !ok || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.in, err, c.want)
		}
	}
	two := &Cluster{Nodes: []NodeGroup{{Count: 1, Name: "x"}, {Count: 1, Name: "x"}}}
	if _, err := Run(t.Context(), two, jobs(t, "0 1 1"), Options{}); err == nil || !strings.Contains(err.Error(), "two nodes are named") {
		t.Errorf("%v", err)
	}
}

// Estimates are as wrong as they are asked to be, and the same for one seed.
func TestEstimates(t *testing.T) {
	a, b, exact := jobs(t, "0 1000 1", "0 2000 1"), jobs(t, "0 1000 1", "0 2000 1"), jobs(t, "0 1000 1")
	a.Estimate(1, 7)
	b.Estimate(1, 7)
	exact.Estimate(0, 7)
	if !reflect.DeepEqual(a, b) || a.Jobs[0].Spec.Estimate == 0 || exact.Jobs[0].Spec.Estimate.D() != 1000*time.Second {
		t.Errorf("%v, %v, %v", a.Jobs[0].Spec.Estimate, b.Jobs[0].Spec.Estimate, exact.Jobs[0].Spec.Estimate)
	}
}
