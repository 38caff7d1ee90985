package schedule

import (
	"cmp"
)

// stay is what one group holds of one node for a time.
type stay struct {
	from, to int64
	who      *occupant
	cpu, mem int64
	devices  []int // by index
	share    int64 // of the one device, in thousandths; 0: whole devices
	bytes    int64 // of the one device
	whole    bool  // nothing else is on the node meanwhile
	bundle   int64 // which of a holder's; of several the first
	own      bool  // devices is nobody else's
}

// add adds devices of the same node.
func (s *stay) add(devices []int) {
	if !s.own {
		s.devices = append(make([]int, 0, 2*(len(s.devices)+len(devices))), s.devices...)
		s.own = true
	}
	s.devices = append(s.devices, devices...)
}

// addStay adds a stay on a node. What its owner has there as whole devices for the same time is
// one stay.
func addStay(stays []stay, st stay) []stay {
	if len(stays) > 0 && st.share == 0 {
		last := &stays[len(stays)-1]
		if last.who == st.who && last.share == 0 && last.from == st.from && last.to == st.to && last.whole == st.whole {
			last.cpu, last.mem = satAdd(last.cpu, st.cpu), satAdd(last.mem, st.mem)
			last.add(st.devices)
			return stays
		}
	}
	return append(stays, st)
}

// at notes that somebody stays on a node.
func (who *occupant) at(ni int) {
	if n := len(who.nodes); n == 0 || who.nodes[n-1] != ni {
		who.nodes = append(who.nodes, ni)
	}
}

// occupant is who stays, for what people are told.
type occupant struct {
	group, name   string
	tenant, queue string
	from, ends    int64
	assumed       string // why it is expected to end then
	nodes         []int
	passing       bool          // known for one cycle only
	parts         bool          // it may give back some of its bundles and keep others
	listed        uint64        // the list that it was put on last
	start         *plannedStart // nil: it runs
}

// stayOf is what a bundle holds at its spot.
func (p *profile) stayOf(sp spot, from, to int64, who *occupant) stay {
	st := stay{from: from, to: to, who: who, cpu: sp.class.cpu, mem: sp.class.mem, devices: sp.devices, share: sp.class.share, whole: sp.class.whole}
	if st.share > 0 && len(sp.devices) == 1 {
		st.bytes = p.free.nodes[sp.node].gpus[sp.devices[0]].shareBytes(sp.class)
	}
	return st
}

// putBack and takeOut move what a stay holds into and out of a state of its node.
func (n *nodeState) putBack(s *stay) {
	n.cpu = min(n.capCPU, satAdd(n.cpu, s.cpu))
	n.mem = min(n.capMem, satAdd(n.mem, s.mem))
	if s.whole {
		n.held = ""
	}
	for _, d := range s.devices {
		g := &n.gpus[d]
		if s.share > 0 {
			g.share, g.free = min(wholeShare, g.share+s.share), min(g.usable, satAdd(g.free, s.bytes))
		} else {
			g.share, g.free = wholeShare, g.usable
		}
	}
}

func (n *nodeState) takeOut(s *stay) {
	n.cpu, n.mem = max(0, n.cpu-s.cpu), max(0, n.mem-s.mem)
	if s.whole {
		n.held = cmp.Or(s.who.group, s.who.name)
	}
	for _, d := range s.devices {
		g := &n.gpus[d]
		if s.share > 0 {
			g.share, g.free = max(0, g.share-s.share), max(0, g.free-s.bytes)
		} else {
			g.share, g.free = 0, 0
		}
	}
}
