package cluster

import (
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// A trip wire calls f once, at the n-th passing of a named point of a protocol:
//
//	prepared             a node is about to say that a rank has prepared a step
//	report, heartbeat    likewise
//	task:<kind>          a node hears a task; task:<kind>:done: is about to answer it
//	verdict, desired     a node hears one
//	commit, done, ...    the head has just applied such a command (see points)
type tripWire struct {
	point string
	left  int
	f     func()
}

// Trip sets the one trip wire. f runs where the point is passed and must not block.
func (c *Cluster) Trip(point string, n int, f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wire = &tripWire{point: point, left: n, f: f}
}

// Tripped reports whether the wire was touched as often as it was set to.
func (c *Cluster) Tripped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wire == nil
}

func (c *Cluster) pass(point string) {
	c.mu.Lock()
	w := c.wire
	if w == nil || w.point != point || c.closing {
		c.mu.Unlock()
		return
	}
	w.left--
	if w.left > 0 {
		c.mu.Unlock()
		return
	}
	c.wire = nil
	c.mu.Unlock()
	w.f()
}

// Crash silences a head at this very moment and ends it; it starts again after d.
func (h *Head) Crash(d time.Duration) {
	h.c.Bus.CutAll(h.identity())
	h.c.spawn(func() {
		h.Kill()
		h.c.Bus.HealAll(h.identity())
		time.Sleep(d)
		if h.c.ctx.Err() == nil {
			h.Start()
		}
	})
}

// crashLeader ends the leading head at this very moment, for d.
func (c *Cluster) crashLeader(d time.Duration) {
	for _, h := range c.heads {
		if l := h.running(); l != nil && l.node.IsLeader() {
			h.Crash(d)
		}
	}
}

func (c *Cluster) passSubject(subject string) {
	if kind, _, ok := strings.Cut(strings.TrimPrefix(subject, "head."), "."); ok {
		c.pass(kind)
	}
}

// Subscribe passes what a node hears over the trip wire.
func (t tap) Subscribe(pattern string, handle func(bus.Msg)) (func(), error) {
	return t.Conn.Subscribe(pattern, func(m bus.Msg) {
		if t.n.isStunned() {
			return
		}
		switch {
		case strings.HasSuffix(m.Subject, ".task"):
			var task wire.Task
			if wire.Unmarshal(m.Data, &task) == nil {
				point := "task:" + string(task.Kind)
				t.c.pass(point)
				respond := m.Respond
				m.Respond = func(data []byte) error {
					t.c.pass(point + ":done")
					return respond(data)
				}
			}
		case strings.HasSuffix(m.Subject, ".verdict"):
			t.c.pass("verdict")
		case strings.HasSuffix(m.Subject, ".desired"):
			t.c.pass("desired")
		}
		handle(m)
	})
}
