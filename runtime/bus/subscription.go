package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// natsSub feeds one subscription's messages to its handler, one at a time.
type natsSub struct {
	c      *natsConn
	sub    *nats.Subscription
	ctx    context.Context // ends with unsubscribe and with the connection
	handle func(Msg)
}

// accepted asks the server whether the subscription stands, by a round trip. A
// message that came meanwhile is returned.
func (s *natsSub) accepted() (*nats.Msg, error) {
	if !s.c.nc.IsConnected() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, subscribeTimeout)
	defer cancel()
	if err := s.c.nc.FlushWithContext(ctx); err != nil {
		return nil, nil // the connection broke; it will be asked again on reconnect
	}
	m, err := s.sub.NextMsg(time.Nanosecond)
	if errors.Is(err, nats.ErrPermissionViolation) {
		return nil, err
	}
	return m, nil
}

func (s *natsSub) run(m *nats.Msg) {
	for {
		if m != nil {
			s.deliver(m)
		}
		var err error
		m, err = s.sub.NextMsgWithContext(s.ctx)
		switch {
		case err == nil, errors.Is(err, nats.ErrSlowConsumer): // reported by async
		case s.ctx.Err() != nil, errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrBadSubscription):
			return
		case errors.Is(err, nats.ErrPermissionViolation):
			// Denied on a reconnect; the next reconnect may find it allowed.
			if !s.waitChange() {
				return
			}
		default:
			s.c.log.Warn("bus: subscription failed", "subject", s.sub.Subject, "error", err)
			if !s.waitChange() {
				return
			}
		}
	}
}

// waitChange waits a little before the subscription is asked again; false: it ended.
func (s *natsSub) waitChange() bool {
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

func (s *natsSub) deliver(m *nats.Msg) {
	if s.ctx.Err() != nil {
		return
	}
	s.handle(Msg{Subject: m.Subject, Data: m.Data, Respond: func(data []byte) error {
		if m.Reply == "" {
			return nil
		}
		if !strings.HasPrefix(m.Reply, inboxRoot) {
			return fmt.Errorf("%w: reply to %.64q, which is no inbox", ErrDenied, m.Reply)
		}
		if err := s.c.check(m.Reply, data); err != nil {
			return err
		}
		return s.c.wrap(s.c.nc.Publish(m.Reply, data), "respond to", m.Subject)
	}})
}
