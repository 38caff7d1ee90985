package access

import (
	"context"
	"encoding/hex"
	"net/http"
	"strings"
)

// Identity is who asks. The zero value is nobody.
type Identity struct {
	Role Role
	// Key names the identity in logs and in the bounds on streams: the start of the
	// digest of its secret, never the secret.
	Key     string
	Session bool // a browser's session and not a token
	valid   func() bool
}

// Valid reports whether the identity still holds; streams ask every few seconds, so
// that a revoked token does not keep reading.
func (i Identity) Valid() bool { return i.valid == nil || i.valid() }

type contextKey int

const (
	identityKey contextKey = iota
	requestKey
	connKey
	closingKey
)

// IdentityOf is who made the request; nobody outside of a Guard.
func IdentityOf(ctx context.Context) Identity {
	if i, ok := ctx.Value(identityKey).(Identity); ok {
		return i
	}
	if a := admissionOf(ctx); a != nil {
		return a.who
	}
	return Identity{}
}

// RequestID names the request in the log of the head and in problems.
func RequestID(ctx context.Context) string {
	if a := admissionOf(ctx); a != nil {
		return a.id
	}
	return ""
}

func admissionOf(ctx context.Context) *admission {
	a, _ := ctx.Value(requestKey).(*admission)
	return a
}

// WithClosing carries a channel that closes when the server begins to shut down.
// Streams and blocking reads end then, while writes under way may finish.
func WithClosing(ctx context.Context, closing <-chan struct{}) context.Context {
	return context.WithValue(ctx, closingKey, closing)
}

// Closing is the channel of WithClosing, nil (which never closes) without one.
func Closing(ctx context.Context) <-chan struct{} {
	c, _ := ctx.Value(closingKey).(<-chan struct{})
	return c
}

const maxSecret = 512 // bytes of a token or cookie; longer ones are nobody's

// identify finds who sends the request: the bearer token if there is one, else the
// session cookie. A wrong token is not saved by a right cookie.
func (g *Guard) identify(r *http.Request) Identity {
	if header := r.Header.Get("Authorization"); header != "" {
		scheme, token, _ := strings.Cut(header, " ")
		token = strings.TrimSpace(token)
		if !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxSecret {
			return Identity{}
		}
		role := ParseRole(g.roles(token))
		if role == None {
			return Identity{}
		}
		return Identity{Role: role, Key: keyOf(token), valid: func() bool { return ParseRole(g.roles(token)) == role }}
	}
	cookie, err := r.Cookie(cookieName(r))
	if err != nil || cookie.Value == "" || len(cookie.Value) > maxSecret {
		return Identity{}
	}
	role := g.sessions.role(cookie.Value)
	if role == None {
		return Identity{}
	}
	return Identity{
		Role: role, Key: keyOf(cookie.Value), Session: true,
		valid: func() bool { return g.sessions.role(cookie.Value) == role },
	}
}

func keyOf(secret string) string {
	d := digest(secret)
	return hex.EncodeToString(d[:6])
}

// cookieName carries the port, because browsers send the cookies of a host to all of
// its ports and two clusters on one machine would sign each other out. Over TLS the
// prefix makes browsers refuse a cookie that a sibling host planted.
func cookieName(r *http.Request) string {
	name := "troupe_session"
	if port := hostPort(r.Host); port != "" {
		name += "_" + port
	}
	if r.TLS != nil {
		name = "__Host-" + name
	}
	return name
}
