package bus

import (
	"math/rand/v2"
	"time"
)

// faults is what a test has broken; guarded by Mem.mu.
type faults struct {
	seed  uint64
	pairs map[[2]string]bool // cut links, both directions listed
	off   map[string]bool
	delay func(from, to, subject string) time.Duration
	loss  float64
	twice float64
	count map[[2]string]uint64 // messages from one id to another
}

func newFaults(seed uint64) faults {
	return faults{seed: seed, pairs: map[[2]string]bool{}, off: map[string]bool{}, count: map[[2]string]uint64{}}
}

// Cut swallows everything between a and b in both directions; neither notices. "*"
// as b means everybody.
func (m *Mem) Cut(a, b string) { m.pair(a, b, true) }

// Heal undoes Cut of the same pair.
func (m *Mem) Heal(a, b string) { m.pair(a, b, false) }

// CutOneWay swallows what goes from a to b alone.
func (m *Mem) CutOneWay(a, b string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.pairs[[2]string{a, b}] = true
}

func (m *Mem) pair(a, b string, cut bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range [][2]string{{a, b}, {b, a}} {
		if cut {
			m.faults.pairs[k] = true
		} else {
			delete(m.faults.pairs, k)
		}
	}
}

// CutAll takes an identity off the bus: its connections notice at once, their
// messages on the way are lost, and requests under way fail with ErrDisconnected.
func (m *Mem) CutAll(id string) { m.online(id, false) }

// HealAll brings an identity back; its subscriptions stand as before.
func (m *Mem) HealAll(id string) { m.online(id, true) }

func (m *Mem) online(id string, up bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if up {
		delete(m.faults.off, id)
	} else {
		m.faults.off[id] = true
	}
	for _, c := range m.conns {
		if c.id == id {
			c.set(up)
		}
	}
}

// memWatcher is one head that hears of closed connections.
type memWatcher struct {
	id   string
	told func(Closed)
}

// OnClosed calls f, from a goroutine of its own, for each connection that is closed by
// either side, as long as the link from it to the identity of the watcher is whole: what
// a Cut swallows is the end of a connection, too. User is the connection's identity.
func (m *Mem) OnClosed(watcher string, f func(Closed)) (stop func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &memWatcher{watcher, f}
	if m.watchers == nil {
		m.watchers = map[*memWatcher]bool{}
	}
	m.watchers[w] = true
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, w)
	}
}

// tellClosed is called with the lock held.
func (m *Mem) tellClosed(id string) {
	for w := range m.watchers {
		if !m.faults.pairCut(id, w.id) && !m.closed {
			go w.told(Closed{User: id})
		}
	}
}

// SetDelay makes messages late; f must be pure. nil: none is. Replies have the
// subject of an inbox.
func (m *Mem) SetDelay(f func(from, to, subject string) time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.delay = f
}

// SetLoss loses and doubles messages with the given probabilities.
func (m *Mem) SetLoss(lose, double float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.loss, m.faults.twice = lose, double
}

func (f *faults) cutOff(id string) bool { return f.off[id] }

func (f *faults) cut(from, to string) bool { return f.off[from] || f.off[to] || f.pairCut(from, to) }

func (f *faults) pairCut(from, to string) bool {
	return f.pairs[[2]string{from, to}] || f.pairs[[2]string{from, "*"}] || f.pairs[[2]string{"*", to}]
}

// fate is the delay of each copy that arrives: none, one or two.
func (f *faults) fate(from, to, subject string) []time.Duration {
	link := [2]string{from, to}
	f.count[link]++
	if f.cut(from, to) {
		return nil
	}
	var late time.Duration
	if f.delay != nil {
		late = max(0, f.delay(from, to, subject))
	}
	if f.loss == 0 && f.twice == 0 {
		return []time.Duration{late}
	}
	r := rand.New(rand.NewPCG(f.seed^hash(from+"\x00"+to), f.count[link]))
	switch {
	case r.Float64() < f.loss:
		return nil
	case r.Float64() < f.twice:
		return []time.Duration{late, late}
	}
	return []time.Duration{late}
}

// hash is FNV-1a, the same in every process.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}
