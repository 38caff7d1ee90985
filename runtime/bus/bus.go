// Package bus carries messages between heads, nodes and actors. It has two
// implementations behind one conformance suite: NATS, embedded in the head and
// dialled by everybody else, and an in-memory bus that the simulated cluster owns.
// Nothing here is authoritative: a message may be lost, and no caller may think
// otherwise. What the messages mean belongs to runtime/wire and its users.
package bus

import (
	"context"
	"crypto/tls"
	"errors"
)

// Errors of the bus.
var (
	// ErrNoResponder: nobody listens on the subject now; a hint, no proof of death.
	ErrNoResponder = errors.New("bus: nobody listens on the subject")
	// ErrClosed: the connection was closed by its owner.
	ErrClosed = errors.New("bus: connection closed")
	// ErrTooLarge: the message is over MaxMessage; nothing was sent.
	ErrTooLarge = errors.New("bus: message too large")
	// ErrDenied: the identity may not use the subject.
	ErrDenied = errors.New("bus: subject not permitted")
)

// MaxMessage bounds one message: the desired state of a full node, or the manifest of
// a step with tens of thousands of files, goes in one.
const MaxMessage = 8 << 20

// Msg is one delivered message. Respond answers a request and does nothing for
// a message that was published.
type Msg struct {
	Subject string
	Data    []byte
	Respond func(data []byte) error
}

// Conn is one identity's connection. Handlers of one subscription are called in
// order, one at a time, and must hand long work to someone else.
type Conn interface {
	Publish(subject string, data []byte) error
	Request(ctx context.Context, subject string, data []byte) ([]byte, error)
	// Subscribe delivers subjects that match pattern (`*` one token, `>` the rest).
	Subscribe(pattern string, handle func(Msg)) (unsubscribe func(), err error)
	// Connected reports whether the connection is up now.
	Connected() bool
	// OnChange calls f on every change of Connected, in order.
	OnChange(f func(connected bool))
	Close()
}

// Permission is what one identity may do; patterns as in Subscribe. A pattern of
// Subscribe may not end in `*`.
type Permission struct {
	Publish   []string
	Subscribe []string
	// Inbox is the prefix of the identity's replies.
	Inbox string
}

// Authorize decides who a connecting client is. user and password are what the
// client sent; ok false closes the connection.
type Authorize func(user, password string) (Permission, bool)

// AuthorizePeer is Authorize for a connection whose certificate was checked; cs is nil
// if there is none.
type AuthorizePeer func(user, password string, cs *tls.ConnectionState) (Permission, bool)
