package cluster

import (
	"context"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// message is one thing that a node said to the head.
type message struct {
	subject string
	data    []byte
}

// tap records what an agent says, for replay (F27).
type tap struct {
	bus.Conn
	c *Cluster
	n *Node // whose agent it is; nil: a shim's
}

func (t tap) Request(ctx context.Context, subject string, data []byte) ([]byte, error) {
	if t.n.isStunned() {
		return nil, bus.ErrDisconnected // it was not even sent
	}
	t.c.record(subject, data)
	t.c.passSubject(subject)
	return t.Conn.Request(ctx, subject, data)
}

const maxTape = 20000

func (c *Cluster) record(subject string, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taping && len(c.tape) < maxTape {
		c.tape = append(c.tape, message{subject, append([]byte(nil), data...)})
	}
}

// Tape starts recording what nodes say.
func (c *Cluster) Tape() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taping, c.tape = true, nil
}

// Taped stops recording and returns what was said, oldest first.
func (c *Cluster) Taped() []message {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taping = false
	return c.tape
}

// Replay says old messages once more, as a network that had kept them would.
func (c *Cluster) Replay(tape []message) {
	conn := c.Bus.Connect("replayer", bus.Permission{Publish: []string{"head.>"}, Inbox: wire.InboxPrefix("replayer")})
	defer conn.Close()
	for _, m := range tape {
		if err := conn.Publish(m.subject, m.data); err != nil {
			c.fail("replay: %v", err)
			return
		}
	}
}
