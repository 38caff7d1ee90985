package bus

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Mem is the bus of a simulated cluster: every connection lives in this process, and
// time is the time package's, which a testing/synctest bubble owns. It grants what
// the embedded server grants and loses what a test tells it to (see Cut, SetDelay,
// SetLoss). Which messages are lost, doubled or late depends on the seed, the two
// ends and the count of messages between them, not on the order in which goroutines
// happen to run. It has no server that could fail; CutAll stands for that.
type Mem struct {
	mu     sync.Mutex
	conns  []*memConn // open ones, in order of Connect
	faults faults
	serial uint64 // of requests
	closed bool
	// watchers are told of closed connections, as heads are by their servers.
	watchers map[*memWatcher]bool
}

// NewMem makes a bus without faults. seed decides what SetLoss loses.
func NewMem(seed uint64) *Mem {
	return &Mem{faults: newFaults(seed)}
}

// Connect adds a connection of an identity; several may carry the same id, and
// faults name them together. An id that CutAll has cut starts disconnected. A
// malformed permission grants nothing.
func (m *Mem) Connect(id string, p Permission) Conn {
	if p.check() != nil {
		p = Permission{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &memConn{
		m: m, id: id, perm: p, up: !m.closed && !m.faults.cutOff(id), closed: m.closed,
		requests: map[string]*memRequest{},
	}
	if !m.closed {
		m.conns = append(m.conns, c)
	}
	return c
}

// Close closes every connection; all goroutines of the bus end.
func (m *Mem) Close() {
	m.mu.Lock()
	m.closed = true
	conns := slices.Clone(m.conns)
	m.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

// memConn is one connection. Everything in it is guarded by Mem.mu.
type memConn struct {
	m        *Mem
	id       string
	perm     Permission
	up       bool
	closed   bool
	subs     []*memSub
	requests map[string]*memRequest // by reply subject
	watch    []func(bool)
	changes  []bool // not told yet
	telling  bool
}

// memRequest waits for one reply.
type memRequest struct {
	answer chan []byte // holds one
	fail   context.CancelCauseFunc
}

func (c *memConn) check(subject string, data []byte) error {
	if c.closed {
		return ErrClosed
	}
	if len(data) > MaxMessage {
		return fmt.Errorf("%w: %d bytes for %s, allowed %d", ErrTooLarge, len(data), subject, MaxMessage)
	}
	if err := CheckSubject(subject); err != nil {
		return err
	}
	if !c.up {
		return fmt.Errorf("%w: %s", ErrDisconnected, subject)
	}
	return nil
}

// Publish implements Conn.
func (c *memConn) Publish(subject string, data []byte) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.check(subject, data); err != nil {
		return err
	}
	if c.perm.mayPublish(subject) {
		c.m.send(c, subject, data, "")
	}
	return nil // a server tells of a denial too late for the caller
}

// send hands a message to every subscription that it reaches and returns how many
// listen, cut off or not.
func (m *Mem) send(from *memConn, subject string, data []byte, reply string) int {
	listen := 0
	for _, to := range m.conns {
		for _, s := range to.subs {
			// A connection that is down is unknown to the server.
			if !to.up || !Match(s.pattern, subject) {
				continue
			}
			listen++
			for _, late := range m.faults.fate(from.id, to.id, subject) {
				s.push(memMsg{from: from, subject: subject, data: slices.Clone(data), reply: reply}, late)
			}
		}
	}
	return listen
}

// Request implements Conn.
func (c *memConn) Request(ctx context.Context, subject string, data []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	rctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	reply, r, err := c.begin(subject, data, fail)
	if err != nil {
		return nil, err
	}
	defer func() {
		c.m.mu.Lock()
		delete(c.requests, reply)
		c.m.mu.Unlock()
	}()
	select {
	case b := <-r.answer:
		return b, nil
	case <-rctx.Done():
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("%w: request to %s", err, subject)
		}
		return nil, fmt.Errorf("%w: request to %s", context.Cause(rctx), subject)
	}
}

func (c *memConn) begin(subject string, data []byte, fail context.CancelCauseFunc) (string, *memRequest, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.check(subject, data); err != nil {
		return "", nil, err
	}
	if c.perm.Inbox == "" || !c.perm.mayPublish(subject) {
		return "", nil, fmt.Errorf("%w: request to %s", ErrDenied, subject)
	}
	c.m.serial++
	reply := fmt.Sprintf("%s.%d", c.perm.Inbox, c.m.serial)
	r := &memRequest{answer: make(chan []byte, 1), fail: fail}
	c.requests[reply] = r
	if c.m.send(c, subject, data, reply) == 0 {
		delete(c.requests, reply)
		return "", nil, fmt.Errorf("%w: request to %s", ErrNoResponder, subject)
	}
	return reply, r, nil
}

// respond carries a reply back; like every message it may be lost on the way. A
// requester that is gone, or has its answer, hears nothing.
func (c *memConn) respond(m memMsg, data []byte) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.check(m.reply, data); err != nil {
		return err
	}
	answer := slices.Clone(data)
	for _, late := range c.m.faults.fate(c.id, m.from.id, m.reply) {
		if late == 0 {
			c.answer(m, answer)
			continue
		}
		time.AfterFunc(late, func() {
			c.m.mu.Lock()
			defer c.m.mu.Unlock()
			c.answer(m, answer)
		})
	}
	return nil
}

// answer ends the request that m came from, with the lock held.
func (c *memConn) answer(m memMsg, data []byte) {
	r := m.from.requests[m.reply]
	if r == nil || !m.from.up || c.m.faults.cut(c.id, m.from.id) {
		return
	}
	delete(m.from.requests, m.reply)
	r.answer <- data
}

// Subscribe implements Conn.
func (c *memConn) Subscribe(pattern string, handle func(Msg)) (func(), error) {
	if err := CheckPattern(pattern); err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if !c.perm.maySubscribe(pattern) {
		return nil, fmt.Errorf("%w: subscribe to %s", ErrDenied, pattern)
	}
	s := newMemSub(c, pattern, handle)
	c.subs = append(c.subs, s)
	go s.run()
	return func() {
		c.m.mu.Lock()
		defer c.m.mu.Unlock()
		c.subs = slices.DeleteFunc(c.subs, func(o *memSub) bool { return o == s })
		s.stop()
	}, nil
}

// Connected implements Conn.
func (c *memConn) Connected() bool {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return c.up
}

// OnChange implements Conn.
func (c *memConn) OnChange(f func(bool)) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.watch = append(c.watch, f)
}

// set changes Connected. The caller holds the lock; watchers are told by a goroutine
// of their own, in order, because they may call back.
func (c *memConn) set(up bool) {
	if c.up == up {
		return
	}
	c.up = up
	if !up {
		c.m.tellClosed(c.id)
		for _, r := range c.requests {
			r.fail(ErrDisconnected)
		}
		for _, s := range c.subs {
			s.drop() // what was on the way to a lost connection is lost
		}
	}
	if len(c.watch) == 0 {
		return
	}
	c.changes = append(c.changes, up)
	if !c.telling {
		c.telling = true
		go c.tell()
	}
}

func (c *memConn) tell() {
	for {
		c.m.mu.Lock()
		if len(c.changes) == 0 {
			c.telling = false
			c.m.mu.Unlock()
			return
		}
		up, watch := c.changes[0], slices.Clone(c.watch)
		c.changes = c.changes[1:]
		c.m.mu.Unlock()
		for _, f := range watch {
			f(up)
		}
	}
}

// Close implements Conn.
func (c *memConn) Close() {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	for _, r := range c.requests {
		r.fail(ErrClosed)
	}
	c.set(false)
	for _, s := range c.subs {
		s.stop()
	}
	c.subs = nil
	c.m.conns = slices.DeleteFunc(c.m.conns, func(o *memConn) bool { return o == c })
}

var _ Conn = (*memConn)(nil)
