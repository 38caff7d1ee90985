package shim

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Client is an agent's connection to one shim.
type Client struct {
	c       *net.UnixConn
	msgs    chan ShimMessage
	greeted chan struct{} // closed when the shim has spoken
	mu      sync.Mutex
	err     error
	wmu     sync.Mutex
}

// Dial connects to a shim's agent socket, <socketDir>/agent.sock. The shim speaks
// first: a status, then every unacknowledged event in order.
func Dial(socket string) (*Client, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("reach the shim: %w", err)
	}
	cl := &Client{c: c, msgs: make(chan ShimMessage, 64), greeted: make(chan struct{})}
	go cl.read()
	return cl, nil
}

// DialWait dials until a shim that was just started listens, for at most limit.
func DialWait(socket string, limit time.Duration) (*Client, error) {
	deadline := time.Now().Add(limit)
	pause := time.Millisecond
	for {
		c, err := Dial(socket)
		if err == nil || time.Now().After(deadline) {
			return c, err
		}
		time.Sleep(pause)
		pause = min(2*pause, 20*time.Millisecond)
	}
}

func (c *Client) read() {
	defer close(c.msgs)
	for first := true; ; first = false {
		var m ShimMessage
		if err := ReadFrame(c.c, MaxAgentFrame, &m); err != nil {
			c.mu.Lock()
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				c.err = err
			}
			c.mu.Unlock()
			c.c.Close()
			return
		}
		if first {
			close(c.greeted)
		}
		c.msgs <- m
	}
}

// Greeted is closed when the shim has spoken. A shim that was just started can be dialed
// before it serves.
func (c *Client) Greeted() <-chan struct{} { return c.greeted }

// Messages delivers what the shim says, in order; it is closed when the connection
// ends. It must be drained: an agent that does not read is cut off.
func (c *Client) Messages() <-chan ShimMessage { return c.msgs }

// Err is why Messages was closed, nil when a side closed the connection.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Send sends one message. It may be called from several goroutines.
func (c *Client) Send(m AgentMessage) error {
	m.V = AgentProtocol
	c.wmu.Lock()
	defer c.wmu.Unlock()
	_ = c.c.SetWriteDeadline(time.Now().Add(writeLimit))
	if err := WriteFrame(c.c, MaxAgentFrame, &m); err != nil {
		return fmt.Errorf("tell the shim: %w", err)
	}
	return nil
}

// Renew tells the terms of an acknowledged heartbeat that was sent at sentAt
// (BootTime).
func (c *Client) Renew(sentAt int64, lease, orphan time.Duration, class wire.Class) error {
	return c.Send(AgentMessage{Type: "renew", SentAt: sentAt, Lease: unit.Duration(lease), Orphan: unit.Duration(orphan), Class: class})
}

// Start asks for an attempt; env is the launch environment, NAME=value.
func (c *Client) Start(a *wire.AttemptSpec, env []string) error {
	return c.Send(AgentMessage{Type: "start", Attempt: a, Env: env})
}

// Stop asks for the end of all ranks.
func (c *Client) Stop(o *wire.StopOrder) error { return c.Send(AgentMessage{Type: "stop", Stop: o}) }

// Verdict tells the fate of a prepared step.
func (c *Client) Verdict(v *wire.Verdict) error {
	return c.Send(AgentMessage{Type: "verdict", Verdict: v})
}

// Verified tells that every share of the restore step of generation is whole.
func (c *Client) Verified(generation uint64) error {
	return c.Send(AgentMessage{Type: "verified", Verdict: &wire.Verdict{Generation: generation}})
}

// Ack tells that events up to seq are in the log.
func (c *Client) Ack(seq uint64) error { return c.Send(AgentMessage{Type: "ack", Seq: seq}) }

// Status asks for a status now.
func (c *Client) Status() error { return c.Send(AgentMessage{Type: "status"}) }

// End asks the shim to end its ranks at once, prove that nothing is left, and leave.
func (c *Client) End() error { return c.Send(AgentMessage{Type: "end"}) }

// Close ends the connection; the shim and its ranks go on.
func (c *Client) Close() error { return c.c.Close() }
