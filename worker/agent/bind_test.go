package agent

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/numa"
)

// crossed is a machine whose CPUs are this one's first and last, on a node each, with GPU 0
// near the last and GPU 1 near the first.
func crossed(t *testing.T) (topology func() (numa.Machine, error), near [2]string) {
	t.Helper()
	m, err := numa.Here()
	if err != nil {
		t.Fatal(err)
	}
	near = [2]string{numa.FormatList(m.Allowed[len(m.Allowed)-1:]), numa.FormatList(m.Allowed[:1])}
	sys := fstest.MapFS{}
	for i, cpus := range near {
		sys[fmt.Sprintf("devices/system/node/node%d/cpulist", i)] = &fstest.MapFile{Data: []byte(cpus)}
		sys[fmt.Sprintf("bus/pci/devices/0000:0%d:00.0/numa_node", i)] = &fstest.MapFile{Data: fmt.Append(nil, i)}
	}
	m.Sys = sys
	return func() (numa.Machine, error) { return m, nil }, near
}

// The ranks of a job that asks for it run on the CPUs near their GPU; a rank's own GPU is the
// one that it counts by its local rank, wherever that lies among the machine's.
func TestRanksAreBoundNearTheirGPU(t *testing.T) {
	topology, near := crossed(t)
	w := newWorld(t)
	src := twoGPUs()
	src.list[0].PCI, src.list[1].PCI = "0000:00:00.0", "0000:01:00.0"
	w.agent(func(o *Options) { o.GPU, o.Topology = src, topology })
	at := w.attempt("g1", 1, 2, "sed -n 's/^Cpus_allowed_list:[[:space:]]*/on /p' /proc/self/status")
	at.Devices, at.Attempt.NumaBinding = []string{"GPU-1", "GPU-0"}, api.NumaNode
	w.want(at)
	w.event("g1", wire.EventEnded, 1)
	for rank, want := range []string{near[1], near[0]} {
		if got := strings.TrimSpace(w.output("g1", 0, int64(rank))); got != "on "+want {
			t.Errorf("rank %d: %q, want CPU %s", rank, got, want)
		}
	}
}

// Where it cannot be found out the attempt does not start, as under torchrun, and the reason
// is told.
func TestUnboundRanksDoNotStart(t *testing.T) {
	topology, _ := crossed(t)
	w := newWorld(t)
	w.agent(func(o *Options) { o.GPU, o.Topology = twoGPUs(), topology })
	for i, c := range []struct {
		devices []string
		mode    string
		want    string
	}{
		{nil, api.NumaNode, "the job holds no GPU here"},
		{[]string{"GPU-0"}, api.NumaNode, "does not tell the PCI address of GPU 0 (GPU-0)"},
		{[]string{"GPU-9"}, api.NumaNode, "GPU GPU-9 is not there any more"},
	} {
		id := fmt.Sprintf("u%d", i)
		at := w.attempt(id, 1, 1, "echo started")
		at.Devices, at.Attempt.NumaBinding = c.devices, c.mode
		w.want(at)
		e := w.event(id, wire.EventStartFailed, 1)
		if !strings.Contains(e.Message, "ranks cannot be bound to CPUs (numaBinding node)") || !strings.Contains(e.Message, c.want) {
			t.Errorf("%v: %q", c.devices, e.Message)
		}
	}
}
