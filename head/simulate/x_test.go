package simulate

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"testing"
	"time"
)

func TestX(t *testing.T) {
	f, err := os.Open(filepath.Join(os.Getenv("TROUPE_TRACES"), "philly_sia.csv"))
	if err != nil {
		t.Skip(err)
	}
	tr, err := ReadTrace("philly", f, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := strconv.Atoi(os.Getenv("N")); n > 0 {
		tr.Jobs = tr.Jobs[:n]
	}
	nodes, _ := strconv.Atoi(os.Getenv("NODES"))
	c := &Cluster{Nodes: []NodeGroup{{Count: int64(nodes), GPUs: 8, Every: map[string]int64{"rack": 16, "block": 64}}}}
	pf, _ := os.Create("/tmp/cpu.prof")
	pprof.StartCPUProfile(pf)
	t0 := time.Now()
	r, err := Run(t.Context(), c, tr, Options{Check: os.Getenv("CHECK") != "", Clock: func() time.Duration { return time.Since(t0) }})
	pprof.StopCPUProfile()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("took", time.Since(t0), "commands", r.Commands, "cycles", r.Cycles, "longest", r.Longest, r.Phases)
	var ws []time.Duration
	var w, comp float64
	bad := map[string]int{}
	for i := range r.Jobs {
		o := &r.Jobs[i]
		if !o.Done {
			bad[o.Failed]++
			continue
		}
		ws = append(ws, o.Wait())
		w += o.Wait().Seconds()
		comp += o.Completion().Seconds()
	}
	slices.Sort(ws)
	fmt.Println(len(ws), "mean wait", w/float64(len(ws)), "completion", comp/float64(len(ws)), "p99", quantile(ws, .99), bad, r.Waiting)
}
