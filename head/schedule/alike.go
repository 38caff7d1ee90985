package schedule

// peers are requests that are refused together: what one of them does not get, none that
// comes after it in the same cycle does, since what is free and what quotas leave only
// shrinks within one. A cycle so looks at each kind of request, however many wait.
type peers struct {
	refused uint64 // the cycle in which their quota refused them last
}

type peersKey struct {
	c           *charging
	d           *demand
	preemptible bool
}

// peersOf finds the peers of a request.
func (l *lineup) peersOf(e *entrant) *peers {
	if l.peers == nil {
		l.peers = map[peersKey]*peers{}
	}
	key := peersKey{e.c, e.wants, e.r.Spec.Preemptible}
	p := l.peers[key]
	if p == nil {
		p = &peers{}
		l.peers[key] = p
	}
	return p
}

// admits says whether tenant and queue of a request let it be placed.
func (c *cycle) admits(e *entrant) bool {
	if e.peers.refused == c.mem.cycle {
		return false
	}
	ok := c.quotas.admits(e.c, e.r, e.needs)
	if !ok {
		e.peers.refused = c.mem.cycle
	}
	return ok
}
