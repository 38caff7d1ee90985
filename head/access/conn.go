package access

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
)

// Bounds on connections.
const (
	MaxConns          = 4096 // in all
	MaxConnsAnonymous = 200  // of one address, that have shown no identity yet
)

// Listener bounds connections: the ones that come when there is no room are closed
// before anything is allocated for them.
type Listener struct {
	net.Listener
	total, anonymous int

	mu     sync.Mutex
	open   int
	nobody map[string]int
}

// Limit bounds the connections of a listener.
func Limit(ln net.Listener, total, anonymous int) *Listener {
	return &Listener{Listener: ln, total: total, anonymous: anonymous, nobody: map[string]int{}}
}

// Accept waits for a connection that there is room for.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address := c.RemoteAddr().String()
		if host, _, err := net.SplitHostPort(address); err == nil {
			address = host
		}
		if counted := l.take(address); counted {
			return &conn{Conn: c, listener: l, address: address, counted: true}, nil
		}
		_ = c.Close() // no answer: writing one would be work for whoever floods
	}
}

func (l *Listener) take(address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.total || l.nobody[address] >= l.anonymous {
		return false
	}
	l.open++
	l.nobody[address]++
	return true
}

func (l *Listener) known(address string) {
	if l.nobody[address]--; l.nobody[address] <= 0 {
		delete(l.nobody, address)
	}
}

type conn struct {
	net.Conn
	listener *Listener
	address  string
	counted  bool // among nobody's connections; guarded by listener.mu
	closed   bool
}

// authenticated frees the connection's place among nobody's; a nil conn is fine.
func (c *conn) authenticated() {
	if c == nil {
		return
	}
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	if c.counted && !c.closed {
		c.counted = false
		c.listener.known(c.address)
	}
}

// Close closes the connection and frees its place.
func (c *conn) Close() error {
	c.listener.mu.Lock()
	if !c.closed {
		c.closed = true
		c.listener.open--
		if c.counted {
			c.listener.known(c.address)
		}
	}
	c.listener.mu.Unlock()
	err := c.Conn.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// ConnContext is for http.Server: it lets the Guard find the connection of a request.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	if own, ok := c.(*conn); ok {
		return context.WithValue(ctx, connKey, own)
	}
	return ctx
}

func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey).(*conn)
	return c
}
