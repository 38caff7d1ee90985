package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Bounds of a client.
const (
	dialTimeout      = 2 * time.Second
	subscribeTimeout = 5 * time.Second
	minReconnect     = 100 * time.Millisecond
	maxReconnect     = 10 * time.Second
	// A connection that lasted less than this has not earned an immediate retry.
	stableAfter = time.Second
	// What one subscription may hold for a slow handler before messages are lost.
	maxPendingMsgs = 64 << 10
)

// DialOptions say whom to connect to and as whom.
type DialOptions struct {
	URLs           []string // of all heads, in any order
	User, Password string
	Name           string // of the connection, for the server's log
	// InboxPrefix is Permission.Inbox of the identity; required to send requests.
	InboxPrefix string
	// TLS checks the server and shows this identity's certificate; nil: no TLS.
	TLS    *tls.Config
	Logger *slog.Logger // default: discard
}

// Dial connects to one of the URLs and keeps the connection up until Close: it tries
// again for ever, at once and then with full jitter from 0.1 to 10 s, also when the
// first attempt fails or the server refuses the identity. So a Conn that is not
// Connected is no error; only unusable options and an ended ctx are. ctx bounds the
// first attempt alone.
func Dial(ctx context.Context, o DialOptions) (Conn, error) {
	if len(o.URLs) == 0 {
		return nil, errors.New("bus: dial: no address of a head given")
	}
	type result struct {
		c   Conn
		err error
	}
	// The library connects without a context; what it returns too late is closed.
	done := make(chan result, 1)
	go func() {
		c, err := connect(o, func(n *nats.Options) error {
			n.Servers = append([]string(nil), o.URLs...)
			return nil
		})
		done <- result{c, err}
	}()
	select {
	case r := <-done:
		return r.c, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.err == nil {
				r.c.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// natsConn is a Conn over NATS.
type natsConn struct {
	nc     *nats.Conn
	log    *slog.Logger
	inbox  string
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	upAt   atomic.Int64 // when the connection came up last, ns

	state sync.Mutex
	up    bool
	watch []func(bool)

	mu      sync.Mutex
	pending map[*pending]struct{}
}

// pending is a request under way; the server tells of a denied publish only by
// subject and later.
type pending struct {
	subject string
	fail    context.CancelCauseFunc
}

func connect(o DialOptions, how nats.Option) (Conn, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.InboxPrefix != "" {
		if err := (Permission{Inbox: o.InboxPrefix}).check(); err != nil {
			return nil, err
		}
	}
	c := &natsConn{log: o.Logger.With("bus", o.Name), inbox: o.InboxPrefix, pending: map[*pending]struct{}{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	prefix := o.InboxPrefix
	if prefix == "" {
		prefix = inboxRoot + "none" // Request refuses before it is used
	}
	secure := func(*nats.Options) error { return nil }
	if o.TLS != nil {
		secure = func(n *nats.Options) error {
			n.Secure, n.TLSConfig, n.TLSHandshakeFirst = true, o.TLS, true
			return nil
		}
	}
	nc, err := nats.Connect("", how, secure,
		nats.Name(o.Name),
		nats.UserInfo(o.User, o.Password),
		nats.CustomInboxPrefix(prefix),
		nats.Timeout(dialTimeout),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(maxPingsOut),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		// What could not be sent is not replayed after a partition: it may have
		// become wrong by then.
		nats.ReconnectBufSize(-1),
		nats.CustomReconnectDelay(c.delay),
		nats.IgnoreAuthErrorAbort(),
		nats.IgnoreDiscoveredServers(), // the caller knows the heads; a server's own view may name addresses nobody reaches
		nats.PermissionErrOnSubscribe(true),
		nats.ConnectHandler(func(*nats.Conn) { c.set(true) }),
		nats.ReconnectHandler(func(*nats.Conn) { c.set(true) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.set(false, "error", err) }),
		nats.ClosedHandler(func(*nats.Conn) { c.set(false) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { c.log.Debug("bus: connect failed", "error", err) }),
		nats.ErrorHandler(c.async),
	)
	if err != nil {
		c.cancel()
		return nil, fmt.Errorf("bus: dial: %w", err)
	}
	c.nc = nc
	if nc.IsConnected() {
		c.set(true)
	}
	return c, nil
}

// delay is called when every server was tried pass times since the connection was
// lost.
func (c *natsConn) delay(pass int) time.Duration {
	up := c.upAt.Load()
	if pass <= 1 && (up == 0 || time.Since(time.Unix(0, up)) > stableAfter) {
		return 0
	}
	top := min(maxReconnect, 2*minReconnect<<min(pass, 10))
	return minReconnect + rand.N(top-minReconnect)
}

// set records a change and tells the watchers. The library calls it from one
// goroutine, so that they hear changes in order; no lock is held meanwhile, because
// they may ask Connected.
func (c *natsConn) set(up bool, attrs ...any) {
	c.state.Lock()
	if c.up == up || up && c.ctx.Err() != nil {
		c.state.Unlock()
		return
	}
	c.up = up
	watch := slices.Clip(c.watch)
	c.state.Unlock()
	if up {
		c.upAt.Store(time.Now().UnixNano())
		c.log.Info("bus: connected")
	} else if c.ctx.Err() == nil {
		c.log.Warn("bus: connection lost; trying again", attrs...)
	}
	if !up {
		// The library would wait for a reply that cannot come any more.
		c.mu.Lock()
		for p := range c.pending {
			p.fail(fmt.Errorf("%w: request to %s", ErrDisconnected, p.subject))
		}
		c.mu.Unlock()
	}
	for _, f := range watch {
		f(up)
	}
}

var deniedPublish = regexp.MustCompile(`(?i)permissions violation for publish to "([^"]*)"`)

// async hears what the server refuses and what a slow handler lost.
func (c *natsConn) async(_ *nats.Conn, sub *nats.Subscription, err error) {
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		m := deniedPublish.FindStringSubmatch(err.Error())
		if m == nil {
			c.log.Warn("bus: subscription denied", "error", err)
			return
		}
		c.log.Warn("bus: publish denied", "subject", m[1])
		c.mu.Lock()
		defer c.mu.Unlock()
		for p := range c.pending {
			if strings.EqualFold(p.subject, m[1]) {
				p.fail(fmt.Errorf("%w: publish to %s", ErrDenied, p.subject))
			}
		}
	case errors.Is(err, nats.ErrSlowConsumer) && sub != nil:
		dropped, _ := sub.Dropped()
		c.log.Warn("bus: messages lost, the handler is too slow", "subject", sub.Subject, "lost", dropped)
	default:
		c.log.Warn("bus: error", "error", err)
	}
}

// wrap turns the library's errors into the bus's.
func (c *natsConn) wrap(err error, what, subject string) error {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	kind := err
	switch {
	case err == nil:
		return nil
	case c.ctx.Err() != nil:
		kind = ErrClosed
	case is(nats.ErrNoResponders):
		kind = ErrNoResponder
	case is(nats.ErrMaxPayload):
		kind = ErrTooLarge
	case is(nats.ErrPermissionViolation):
		kind = ErrDenied
	case is(nats.ErrBadSubject):
		kind = ErrSubject
	case is(nats.ErrReconnectBufExceeded, nats.ErrDisconnected, nats.ErrConnectionReconnecting, nats.ErrConnectionClosed, nats.ErrStaleConnection):
		kind = ErrDisconnected
	}
	return fmt.Errorf("%w: %s %s", kind, what, subject)
}

func (c *natsConn) check(subject string, data []byte) error {
	if c.ctx.Err() != nil {
		return ErrClosed
	}
	if len(data) > MaxMessage {
		return fmt.Errorf("%w: %d bytes for %s, allowed %d", ErrTooLarge, len(data), subject, MaxMessage)
	}
	return CheckSubject(subject)
}

// Publish implements Conn.
func (c *natsConn) Publish(subject string, data []byte) error {
	if err := c.check(subject, data); err != nil {
		return err
	}
	return c.wrap(c.nc.Publish(subject, data), "publish to", subject)
}

// Request implements Conn.
func (c *natsConn) Request(ctx context.Context, subject string, data []byte) ([]byte, error) {
	if err := c.check(subject, data); err != nil {
		return nil, err
	}
	if c.inbox == "" {
		return nil, fmt.Errorf("%w: request to %s: the identity has no inbox", ErrDenied, subject)
	}
	rctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	p := &pending{subject: subject, fail: fail}
	c.mu.Lock()
	c.pending[p] = struct{}{}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pending, p)
		c.mu.Unlock()
	}()
	m, err := c.nc.RequestWithContext(rctx, subject, data)
	if err == nil {
		return m.Data, nil
	}
	if ctx.Err() == nil && rctx.Err() != nil && c.ctx.Err() == nil {
		return nil, context.Cause(rctx)
	}
	return nil, c.wrap(err, "request to", subject)
}

// Subscribe implements Conn. Where the connection is up it waits for the server to
// accept the subscription; otherwise the server hears of it on connecting.
func (c *natsConn) Subscribe(pattern string, handle func(Msg)) (func(), error) {
	if c.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if err := CheckPattern(pattern); err != nil {
		return nil, err
	}
	// A synchronous subscription, because it alone knows that it was denied.
	sub, err := c.nc.SubscribeSync(pattern)
	if err != nil {
		return nil, c.wrap(err, "subscribe to", pattern)
	}
	if err := sub.SetPendingLimits(maxPendingMsgs, maxPendingBytes); err != nil {
		return nil, c.wrap(err, "subscribe to", pattern)
	}
	ctx, cancel := context.WithCancel(c.ctx)
	s := &natsSub{c: c, sub: sub, ctx: ctx, handle: handle}
	first, err := s.accepted()
	if err != nil {
		cancel()
		_ = sub.Unsubscribe()
		return nil, c.wrap(err, "subscribe to", pattern)
	}
	go s.run(first)
	return func() {
		cancel()
		_ = sub.Unsubscribe() // fails only when there is no connection left to tell
	}, nil
}

// Connected implements Conn.
func (c *natsConn) Connected() bool {
	c.state.Lock()
	defer c.state.Unlock()
	return c.up && c.ctx.Err() == nil
}

// OnChange implements Conn.
func (c *natsConn) OnChange(f func(bool)) {
	c.state.Lock()
	defer c.state.Unlock()
	c.watch = append(c.watch, f)
}

// Close implements Conn.
func (c *natsConn) Close() {
	c.cancel()
	c.nc.Close()
}
