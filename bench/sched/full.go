package main

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// A full cluster: zones of 25 blocks of 5 racks of 8 nodes of 8 devices, nine tenths of
// them taken by gangs of the sizes of the Kalos trace, twenty tenants with quotas, and
// 10,000 gangs that wait. Then something happens, again and again: a gang is submitted, or
// one ends.

const (
	devices       = 8
	nodesOfRack   = 8
	racksOfBlock  = 5
	blocksOfZone  = 25
	nodesOfZone   = nodesOfRack * racksOfBlock * blocksOfZone
	tenants       = 20
	full          = 90 // per cent, of which
	ofGangs       = 76 // are gangs; the rest are jobs that leave three devices of a node
	odd           = 5  // devices of one of those
	blockRequired = 64 // up to so many devices
)

// figures is what one run measured.
type figures struct {
	RanksPerSecond float64   `json:"ranksPerSecond"`
	P50            float64   `json:"p50"` // ms
	P99            float64   `json:"p99"`
	Most           float64   `json:"most"`
	Memory         float64   `json:"memory"` // MB
	Waiting        int       `json:"waiting"`
	ByCountAlone   float64   `json:"byCountAlone"` // per cent of those that wait
	Placed         int       `json:"placed"`       // gangs, in events
	Full           float64   `json:"full"`         // per cent, when the events began
	IdleTried      int       `json:"idleTried"`    // placements looked for when nothing had changed
	Decisions      []float64 `json:"decisions"`    // ms of the processor, of the whole program
	// The same in other clocks: of the processor in the thread that decides, which collects
	// garbage for others only as far as it makes some, and on the wall, on which everything
	// else that the machine does counts.
	Thread    []float64 `json:"thread"`
	ThreadP50 float64   `json:"threadP50"`
	ThreadP99 float64   `json:"threadP99"`
	WallP50   float64   `json:"wallP50"`
	WallP99   float64   `json:"wallP99"`
	Mean      float64   `json:"mean"`
	PlanP50   float64   `json:"planP50"` // ms of one step of planning, between two decisions
	PlanMost  float64   `json:"planMost"`
	WhyP50    float64   `json:"whyP50"` // ms of the thread, for the reasons of one group that waits
	WhyP99    float64   `json:"whyP99"`
}

// spent is the processor time of this process: on a machine that does other things too it
// is what one core would have taken. getrusage, which counts in ticks, is too coarse for that.
func spent() time.Duration { return usedBy(unix.CLOCK_PROCESS_CPUTIME_ID) }

// spentHere is that of the thread that asks.
func spentHere() time.Duration { return usedBy(unix.CLOCK_THREAD_CPUTIME_ID) }

func usedBy(clock int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

type fullState struct {
	*cluster
	random *rand.Rand
	sizes  []gangSize
	now    time.Time
	used   int64
	total  int64
	took   time.Duration
	ranks  int64
	placed int
}

// gangSize is one row of the Kalos trace.
type gangSize struct{ nodes, each, seconds int64 }

func kalos(path string) ([]gangSize, error) {
	rows, err := table(path)
	if err != nil {
		return nil, err
	}
	var out []gangSize
	for _, row := range rows {
		n, err := numbers(row, "nodes", "gpus_per_node", "duration_s")
		if err != nil {
			return nil, err
		}
		out = append(out, gangSize{n[0], n[1], n[2]})
	}
	return out, nil
}

func newFull(sizes []gangSize, nodes int, seed uint64) *fullState {
	f := &fullState{random: rand.New(rand.NewPCG(seed, 0)), sizes: sizes, now: time.Unix(1_700_000_000, 0).UTC()}
	var list []*schedule.Node
	for i := range nodes {
		n := &schedule.Node{
			ID: fmt.Sprintf("id-%d", i), Name: fmt.Sprintf("n%d", i), Ready: true,
			CPU: 128_000, FreeCPU: 128_000, Memory: 1 << 40, FreeMemory: 1 << 40,
			Labels: map[string]string{
				"zone": fmt.Sprint(i / nodesOfZone), "block": fmt.Sprint(i / (nodesOfRack * racksOfBlock)), "rack": fmt.Sprint(i / nodesOfRack),
			},
		}
		for d := range devices {
			n.GPUs = append(n.GPUs, schedule.GPU{
				UUID: fmt.Sprintf("%d-%d", i, d), Model: "H", Usable: cardMemory, Free: cardMemory, Share: 1000, Healthy: true,
			})
		}
		list = append(list, n)
	}
	f.cluster = newCluster(list)
	f.planner.PlanAge = planAge
	f.total = int64(nodes) * devices
	f.s.Levels = []api.Level{{Name: "zone", Label: "zone"}, {Name: "block", Label: "block"}, {Name: "rack", Label: "rack"}}
	f.s.Queues = &schedule.Queues{}
	for t := range tenants {
		f.s.Queues.List = append(f.s.Queues.List, &api.Queue{
			Name: fmt.Sprintf("t%d", t), Tenant: true,
			Guaranteed: api.Amounts{{Of: "gpu", N: 1000 * f.total / tenants}},
			Limit:      api.Amounts{{Of: "gpu", N: 1000 * f.total / tenants * 5 / 4}},
		})
	}
	return f
}

// gang is a request of the trace's sizes: one bundle for each rank.
func (f *fullState) gang() api.GroupSpec {
	size := f.sizes[f.random.IntN(len(f.sizes))]
	size.nodes = min(size.nodes, f.total/devices/4)
	spec := api.GroupSpec{
		Bundles: slices.Repeat([]api.Bundle{{Resources: api.Resources{GPUs: 1, CPU: 8_000, Memory: 32 << 30}}}, int(size.nodes*size.each)),
		PerNode: size.each, Tenant: fmt.Sprintf("t%d", f.random.IntN(tenants)),
	}
	spec.TimeLimit = unit.Duration(max(60, size.seconds)) * unit.Duration(time.Second)
	if size.nodes*size.each <= blockRequired {
		spec.Level = "block"
	} else {
		spec.Level, spec.LevelWait = "rack", new(unit.Duration)
	}
	return spec
}

// single is a job of one bundle that leaves the rest of its node free.
func (f *fullState) single() api.GroupSpec {
	spec := api.GroupSpec{
		Bundles: []api.Bundle{{Resources: api.Resources{GPUs: odd, CPU: 40_000, Memory: 160 << 30}}},
		Tenant:  fmt.Sprintf("t%d", f.random.IntN(tenants)),
	}
	spec.TimeLimit = unit.Duration(time.Hour)
	return spec
}

func (f *fullState) wait(spec api.GroupSpec) *schedule.Request {
	r := f.submit(spec)
	r.Since, r.Expect = f.now, time.Duration(spec.TimeLimit)
	return r
}

// planAge is the head's.
const planAge = 10 * time.Second

// step is one decision. Reasons are no part of it: they are made when somebody asks.
func (f *fullState) step() time.Duration { return f.cycleOf(f.decide) }

func (f *fullState) cycleOf(run func(time.Time) []schedule.Decision) time.Duration {
	began := spent()
	ds := run(f.now)
	took := spent() - began
	f.took += took
	gone := map[*schedule.Request]bool{}
	for i := range ds {
		if ds[i].Bundles == nil {
			continue
		}
		r := f.waiting[ds[i].Group]
		f.used += devicesOf(&r.Spec)
		f.ranks += int64(len(ds[i].Bundles))
		f.placed++
		gone[r] = true
		f.run(r, ds[i].Bundles)
	}
	if len(gone) > 0 {
		f.s.Pending = slices.DeleteFunc(slices.Clone(f.s.Pending), func(r *schedule.Request) bool { return gone[r] })
	}
	return took
}

func (f *fullState) run(r *schedule.Request, placed []api.Placed) {
	h := &schedule.Holder{Group: r.ID, Name: r.ID, Spec: &r.Spec, Seq: r.Seq, Started: f.now, Ends: f.now.Add(time.Duration(r.Spec.TimeLimit))}
	for i, p := range placed {
		b := &r.Spec.Bundles[i]
		h.CPU, h.Memory, h.GPUs = h.CPU+b.CPU, h.Memory+b.Memory, h.GPUs+b.GPUs
		if len(h.Nodes) == 0 || h.Nodes[len(h.Nodes)-1] != p.Node {
			h.Nodes = append(h.Nodes, p.Node)
		}
		h.Bundles = append(h.Bundles, schedule.Held{Node: p.Node, CPU: b.CPU, Memory: b.Memory, Devices: p.Devices})
	}
	f.s.Holders = append(slices.Clip(f.s.Holders), h)
}

// end lets one group that runs end.
func (f *fullState) end() {
	i := f.random.IntN(len(f.s.Holders))
	h := f.s.Holders[i]
	f.s.Holders = slices.Delete(slices.Clone(f.s.Holders), i, i+1)
	f.s.Nodes = slices.Clone(f.s.Nodes)
	var placed []api.Placed
	for k, b := range h.Bundles {
		placed = append(placed, api.Placed{Bundle: int64(k), Node: b.Node, Devices: b.Devices})
	}
	f.book(&schedule.Request{Spec: *h.Spec}, placed, false)
	f.used -= devicesOf(h.Spec)
}

func devicesOf(spec *api.GroupSpec) int64 {
	return spec.Bundles[0].GPUs * int64(len(spec.Bundles))
}

// fullCluster measures one size of cluster.
func fullCluster(path string, nodes, waiting, events int, seed uint64) (figures, error) {
	sizes, err := kalos(path)
	if err != nil {
		return figures{}, err
	}
	runtime.LockOSThread() // so that its thread can be asked what it used
	defer runtime.UnlockOSThread()
	f := newFull(sizes, nodes, seed)
	for f.used*100 < f.total*ofGangs {
		f.now = f.now.Add(time.Second)
		f.wait(f.gang())
		f.step()
	}
	for tries := nodes; f.used*100 < f.total*full; tries-- {
		if tries == 0 {
			return figures{}, fmt.Errorf("the cluster of %d nodes is only %d %% full with jobs of %d devices", nodes, 100*f.used/f.total, odd)
		}
		f.now = f.now.Add(time.Second)
		f.wait(f.single())
		f.step()
	}
	out := figures{Full: 100 * float64(f.used) / float64(f.total)}
	out.RanksPerSecond = float64(f.ranks) / f.took.Seconds()
	for len(f.s.Pending) < waiting {
		for len(f.s.Pending) < waiting {
			f.wait(f.gang())
		}
		f.step()
	}
	fits := 0
	for _, r := range f.s.Pending {
		if devicesOf(&r.Spec) <= f.total-f.used {
			fits++
		}
	}
	out.Waiting, out.ByCountAlone = len(f.s.Pending), 100*float64(fits)/float64(len(f.s.Pending))
	f.step()
	out.IdleTried = f.last.Tried
	f.placed = 0
	var plans, thread, wall, whys []float64
	for i := range events {
		f.now = f.now.Add(time.Second)
		of := ""
		if i%2 == 0 {
			of = f.wait(f.gang()).ID
		} else {
			f.end()
		}
		began, used := time.Now(), spentHere()
		out.Decisions = append(out.Decisions, f.step().Seconds()*1000)
		thread = append(thread, (spentHere()-used).Seconds()*1000)
		wall = append(wall, time.Since(began).Seconds()*1000)
		if asked := spentHere(); of != "" && f.last.Why(of) != nil {
			whys = append(whys, (spentHere()-asked).Seconds()*1000)
		}
		plans = append(plans, f.cycleOf(f.plan).Seconds()*1000)
	}
	out.PlanP50, _, out.PlanMost = spread(plans)
	out.Thread = thread
	out.ThreadP50, out.ThreadP99, _ = spread(thread)
	out.WhyP50, out.WhyP99, _ = spread(whys)
	out.WallP50, out.WallP99, _ = spread(wall)
	out.Placed = f.placed
	out.P50, out.P99, out.Most = spread(out.Decisions)
	for _, ms := range out.Decisions {
		out.Mean += ms / float64(len(out.Decisions))
	}
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return out, err
	}
	out.Memory = float64(u.Maxrss) / 1000
	return out, nil
}

// spread is the middle, the hundredth from above and the largest of some.
func spread(list []float64) (p50, p99, most float64) {
	if len(list) == 0 {
		return 0, 0, 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2], sorted[len(sorted)*99/100], sorted[len(sorted)-1]
}
