// Package link is the smallest way onto the bus: one identity's connection that sends
// requests and hears their answers, for a process that must stay small, as a shim must.
// It subscribes to nothing, embeds no server and imports nats.go and the node's
// certificate alone; everything else about the bus, and what the messages mean, lives in runtime/bus and runtime/wire.
package link

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/troupe-runtime/troupe/runtime/trust"
)

// Bounds of a link.
const (
	dialTimeout  = 2 * time.Second
	pingInterval = time.Second
	maxPingsOut  = 2
	minReconnect = 100 * time.Millisecond
	// It is short: whoever needs a link has seconds until its node passes for lost.
	maxReconnect = time.Second
	jitter       = 400 * time.Millisecond
)

// Access says whom to connect to and as whom. It holds a secret: it is kept in files of
// mode 0600 and in no log.
type Access struct {
	URLs        []string `json:"urls"` // of all heads, in any order
	User        string   `json:"user"`
	Password    string   `json:"password"`
	InboxPrefix string   `json:"inboxPrefix"`
	// Identity is the folder of the node's certificate (see runtime/trust), read anew with
	// each Dial; empty: the bus speaks no TLS, and the password counts.
	Identity string `json:"identity,omitempty"`
}

// Conn sends requests. It may be used from several goroutines.
type Conn interface {
	Request(ctx context.Context, subject string, data []byte) ([]byte, error)
	Close()
}

// ErrNoAccess: the access names no address or no inbox; a defect of whoever wrote it.
var ErrNoAccess = errors.New("link: an access needs addresses of heads and an inbox")

type conn struct{ nc *nats.Conn }

// Dial connects and keeps the connection up until Close; name is what the server calls
// it in its log. A head that does not answer now is no error: requests fail until one
// does. It blocks for two seconds for each address at most.
func Dial(a Access, name string) (Conn, error) {
	if len(a.URLs) == 0 || a.InboxPrefix == "" {
		return nil, ErrNoAccess
	}
	o := nats.GetDefaultOptions()
	o.Servers = append([]string(nil), a.URLs...)
	o.User, o.Password, o.Name, o.InboxPrefix = a.User, a.Password, name, a.InboxPrefix
	o.Timeout, o.PingInterval, o.MaxPingsOut = dialTimeout, pingInterval, maxPingsOut
	o.RetryOnFailedConnect, o.MaxReconnect = true, -1
	// What could not be sent is not replayed: the next call says something newer.
	o.ReconnectBufSize = -1
	o.ReconnectWait, o.ReconnectJitter, o.ReconnectJitterTLS = minReconnect, jitter, jitter
	o.IgnoreAuthErrorAbort, o.IgnoreDiscoveredServers = true, true
	o.CustomReconnectDelayCB = func(pass int) time.Duration {
		return min(maxReconnect, minReconnect<<min(max(pass-1, 0), 8))
	}
	o.SubChanLen = 64 // the library's default reserves room for half a million messages
	// The library prints nothing without these, and asks nobody.
	o.AsyncErrorCB = func(*nats.Conn, *nats.Subscription, error) {}
	if a.Identity != "" {
		id, err := trust.OpenIdentity(a.Identity)
		if err != nil {
			return nil, fmt.Errorf("link: %w", err)
		}
		o.Secure, o.TLSHandshakeFirst = true, true
		o.TLSConfig = trust.ClientTLS(id.Root(), trust.RoleBus, id.Certificate, time.Now)
	}
	nc, err := o.Connect()
	if err != nil {
		// The library's error may quote an address with a password in it.
		return nil, errors.New("link: the addresses of the heads cannot be used")
	}
	return conn{nc}, nil
}

// Request implements Conn. The error says neither what was sent nor as whom.
func (c conn) Request(ctx context.Context, subject string, data []byte) ([]byte, error) {
	m, err := c.nc.RequestWithContext(ctx, subject, data)
	if err != nil {
		return nil, fmt.Errorf("link: request to %s: %w", subject, err)
	}
	return m.Data, nil
}

// Close implements Conn.
func (c conn) Close() { c.nc.Close() }
