package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// busy is a cluster of 8-GPU nodes that is full but for a few devices, with groups that
// wait for it.
func busy(nodes, waiting int) *Snapshot {
	rng := rand.New(rand.NewPCG(1, 2))
	s := &Snapshot{}
	for i := range nodes {
		n := aNode(fmt.Sprintf("n%d", i)).cpu(128_000).gpus(8, 72).node
		for d := 0; d < 8; {
			k := min(8-d, []int{1, 1, 2, 4, 8}[rng.IntN(5)])
			if rng.IntN(20) == 0 {
				d += k
				continue
			}
			var devices []int
			for j := range k {
				devices = append(devices, d+j)
				n.GPUs[d+j].Free, n.GPUs[d+j].Share = 0, 0
			}
			h := holder(fmt.Sprintf("h%d-%d", i, d), n, devices...)
			h.Started = epoch.Add(-time.Duration(rng.IntN(3600)) * time.Second)
			h.Ends = epoch.Add(time.Duration(60+rng.IntN(86400)) * time.Second)
			h.Spec = &api.GroupSpec{Bundles: []api.Bundle{gpus(int64(k))}}
			s.Holders = append(s.Holders, &h)
			d += k
		}
		s.Nodes = append(s.Nodes, &n)
	}
	for i := range waiting {
		k := []int{1, 1, 1, 2, 4, 8, 16, 32, 64}[rng.IntN(9)]
		r := gang(fmt.Sprintf("r%d", i), k, gpus(1))
		if k > 8 {
			r = gang(fmt.Sprintf("r%d", i), k/8, gpus(8))
		}
		r.request.Expect = time.Duration(60+rng.IntN(86400)) * time.Second
		s.Pending = append(s.Pending, &r.request)
	}
	return s
}

func BenchmarkPlannedStarts(b *testing.B) {
	for _, nodes := range []int{1000, 10_000} {
		for _, waiting := range []int{1000, 10_000} {
			s := busy(nodes, waiting)
			b.Run(fmt.Sprintf("fresh, %d nodes, %d waiting", nodes, waiting), func(b *testing.B) {
				for range b.N {
					NewPlanner().Plan(s, epoch)
				}
			})
			b.Run(fmt.Sprintf("by events, %d nodes, %d waiting", nodes, waiting), func(b *testing.B) {
				w := &world{s: s, now: epoch}
				p := NewPlanner()
				p.PlanAge = time.Minute
				for range 30 { // what fits at the beginning starts, and starts are planned
					w.start(p.Plan(w.s, w.now).All())
				}
				var took []time.Duration
				for range b.N {
					b.StopTimer()
					at, _ := w.next()
					w.end(at)
					b.StartTimer()
					began := time.Now()
					ds := p.Plan(w.s, w.now).All()
					took = append(took, time.Since(began))
					b.StopTimer()
					w.start(ds)
					b.StartTimer()
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
			})
		}
	}
}
