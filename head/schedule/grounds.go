package schedule

import (
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// grounds is what explanations go by as long as the nodes have what they have: the empty
// cluster, and what it could never hold. Results of several cycles share it.
type grounds struct {
	once  sync.Once
	empty *overlay
	at    map[string]int // node id → index in any overlay

	mu    sync.Mutex
	never map[string]*api.Reason // by demand
}

// mostNever bounds how many answers are kept.
const mostNever = 4096

// fill looks at the nodes of a snapshot, once.
func (g *grounds) fill(s *Snapshot) {
	g.once.Do(func() {
		g.empty = emptied(s.Nodes, s.Levels)
		g.at = make(map[string]int, len(g.empty.nodes))
		for ni, n := range g.empty.nodes {
			g.at[n.id] = ni
		}
		g.never = map[string]*api.Reason{}
	})
}

// neverOf is Never for a demand, remembered.
func (g *grounds) neverOf(d *demand, r *Request) *api.Reason {
	g.mu.Lock()
	defer g.mu.Unlock()
	why, ok := g.never[d.key]
	if !ok {
		if len(g.never) >= mostNever {
			clear(g.never)
		}
		why = never(g.empty, newDemand(&Request{Spec: r.Spec}, time.Time{}))
		g.never[d.key] = why
	}
	return why
}

// sameCapacity reports whether two states of a node are of the same machine.
func (n *nodeState) sameCapacity(m *nodeState) bool {
	if n.capCPU != m.capCPU || n.capMem != m.capMem || len(n.gpus) != len(m.gpus) {
		return false
	}
	for d := range n.gpus {
		if n.gpus[d].uuid != m.gpus[d].uuid || n.gpus[d].usable != m.gpus[d].usable {
			return false
		}
	}
	return true
}
