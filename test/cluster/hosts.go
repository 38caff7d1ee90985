package cluster

import (
	"fmt"
	"slices"
	"sync"

	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Hosts knows what truly runs where, from the processes themselves and from nobody's
// books: the oracle against which the state is held.
type Hosts struct {
	fail func(format string, args ...any)

	mu       sync.Mutex
	live     map[*proc]bool
	started  int
	restarts map[string]int              // rank starts by job, for "nothing restarted"
	prepared map[string]map[int64]string // run/generation/step → rank → what it wrote
	capacity map[string]capacity
}

type capacity struct {
	cpu    unit.MilliCPU
	memory unit.Bytes
}

// proc is one live rank.
type proc struct {
	node, boot, alloc, job, run string
	gen                         uint64
	rank                        int64
	class                       wire.Class
	limits                      wire.Limits
	devices                     []string
	whole                       bool // devices are not shared
}

func (p *proc) String() string {
	return fmt.Sprintf("rank %d of %s, generation %d, allocation %s on %s", p.rank, p.job, p.gen, p.alloc, p.node)
}

func newHosts(fail func(string, ...any)) *Hosts {
	return &Hosts{
		fail: fail, live: map[*proc]bool{}, restarts: map[string]int{},
		prepared: map[string]map[int64]string{}, capacity: map[string]capacity{},
	}
}

// start notes a process that begins to run and checks whom it meets.
func (h *Hosts) start(p *proc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	allocs := map[string]wire.Limits{p.alloc: p.limits}
	for q := range h.live {
		if q.node == p.node {
			allocs[q.alloc] = q.limits
		}
		if q.job == p.job && q.gen != p.gen {
			// I4: never two generations of one allocation, and in the strict class never
			// two of one job anywhere.
			if q.alloc == p.alloc || p.class == wire.ClassStrict && q.class == wire.ClassStrict {
				h.fail("I4: %v starts while %v runs", p, q)
			}
		}
		if q.job == p.job && q.gen == p.gen && q.rank == p.rank {
			h.fail("I4: %v starts twice; %v runs", p, q)
		}
		if q.node == p.node && q.alloc != p.alloc && p.whole && q.whole {
			for _, d := range p.devices {
				if slices.Contains(q.devices, d) {
					h.fail("I1: device %s of %s is used by %v and by %v", d, p.node, q, p)
				}
			}
		}
	}
	var cpu unit.MilliCPU
	var memory unit.Bytes
	for _, l := range allocs {
		cpu += l.CPU
		memory += l.Memory
	}
	if c, ok := h.capacity[p.node]; ok && (cpu > c.cpu || memory > c.memory) {
		h.fail("I2: what runs on %s was given %d milli-CPU and %d bytes of %d and %d", p.node, cpu, memory, c.cpu, c.memory)
	}
	h.live[p] = true
	h.started++
	h.restarts[p.job]++
}

// reclass notes that a shim has heard of another class.
func (h *Hosts) reclass(p *proc, class wire.Class) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p != nil {
		p.class = class
	}
}

func (h *Hosts) end(p *proc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.live, p)
}

// Live lists what runs, of one job or of all ("").
func (h *Hosts) Live(job string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for p := range h.live {
		if job == "" || p.job == job {
			out = append(out, p.String())
		}
	}
	slices.Sort(out)
	return out
}

// Starts counts how many ranks of a job have ever been started; of all for "".
func (h *Hosts) Starts(job string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if job == "" {
		return h.started
	}
	return h.restarts[job]
}

func stepKey(run string, gen uint64, step int64) string {
	return fmt.Sprintf("%s/%d/%d", run, gen, step)
}

// wrote notes that a rank's files of a step are on disk.
func (h *Hosts) wrote(p wire.Prepared) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := stepKey(p.Run, p.Generation, p.Step)
	if h.prepared[k] == nil {
		h.prepared[k] = map[int64]string{}
	}
	h.prepared[k][p.Rank] = fmt.Sprint(p.Dir, p.Files)
}

func (h *Hosts) preparedRanks(run string, gen uint64, step int64) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.prepared[stepKey(run, gen, step)])
}

// snapshot copies what runs, for the checker of the log.
func (h *Hosts) snapshot() []proc {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]proc, 0, len(h.live))
	for p := range h.live {
		out = append(out, *p)
	}
	return out
}
