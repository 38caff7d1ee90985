package simulate

import "time"

// Sample is how full the cluster was from an instant on. All are thousandths of devices.
type Sample struct {
	At      time.Duration
	There   int64 // on nodes that are not lost
	Used    int64
	Partly  int64 // free on nodes of which something is used
	Running int64 // jobs
}

// meter follows how full the cluster is.
type meter struct {
	there, used, partly int64
	running             int64
	samples             []Sample
	last                Sample
	any                 bool
}

func (m *meter) add(milli int64) { m.there += milli }

func (m *meter) lose(n *machine)   { m.there -= n.total; m.part(n, -1) }
func (m *meter) regain(n *machine) { m.there += n.total; m.part(n, 1) }

// part counts what is free on a node of which something is used.
func (m *meter) part(n *machine, sign int64) {
	if n.free > 0 && n.free < n.total {
		m.partly += sign * n.free
	}
}

// take books what a job takes of nodes, or with sign -1 gives back.
func (m *meter) take(nodes []machine, held map[int]int64, sign int64) {
	for i, milli := range held {
		n := &nodes[i]
		if !n.lost {
			m.part(n, -1)
		}
		n.free -= sign * milli
		m.used += sign * milli
		if !n.lost {
			m.part(n, 1)
		}
	}
}

func (m *meter) pass(time.Duration) {}

// sample keeps the present values if they differ from the last ones.
func (m *meter) sample(now time.Duration) {
	x := Sample{At: now, There: m.there, Used: m.used, Partly: m.partly, Running: m.running}
	same := x
	same.At = m.last.At
	if m.any && same == m.last {
		return
	}
	m.samples = append(m.samples, x)
	m.last, m.any = x, true
}
