package access

import (
	"crypto/sha256"
	"encoding/base64"
	"io"
	"sync"
	"time"
)

// How long and how many.
const (
	CodeLife    = 60 * time.Second
	SessionLife = 12 * time.Hour
	MaxCodes    = 100
	MaxSessions = 1000
)

type grant struct {
	role    Role
	expires time.Time
}

// sessions keeps sign-in codes and browser sessions, in memory only: a restart of the
// head ends them. Secrets are kept hashed, so that a dump of the memory or a mistake in
// a log gives nobody a session, and a lookup compares digests, not secrets.
type sessions struct {
	now  func() time.Time
	rand io.Reader

	mu     sync.Mutex
	codes  map[[32]byte]grant
	active map[[32]byte]grant
}

func newSessions(now func() time.Time, random io.Reader) *sessions {
	return &sessions{now: now, rand: random, codes: map[[32]byte]grant{}, active: map[[32]byte]grant{}}
}

// secret draws 256 bits.
func (s *sessions) secret() (string, error) {
	var raw [32]byte
	if _, err := io.ReadFull(s.rand, raw[:]); err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(raw[:]), nil
}

// newCode makes a code that opens one session of the role; ok is false when too many
// are waiting to be used.
func (s *sessions) newCode(role Role) (code string, expires time.Time, ok bool, err error) {
	if code, err = s.secret(); err != nil {
		return "", time.Time{}, false, err
	}
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	dropExpired(s.codes, now)
	if len(s.codes) >= MaxCodes {
		return "", time.Time{}, false, nil
	}
	expires = now.Add(CodeLife)
	s.codes[digest(code)] = grant{role: role, expires: expires}
	return code, expires, true, nil
}

// redeem turns a code into a session, once.
func (s *sessions) redeem(code string) (session string, expires time.Time, ok bool, err error) {
	if session, err = s.secret(); err != nil {
		return "", time.Time{}, false, err
	}
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	key := digest(code)
	g, found := s.codes[key]
	delete(s.codes, key)
	if !found || !now.Before(g.expires) {
		return "", time.Time{}, false, nil
	}
	dropExpired(s.active, now)
	if len(s.active) >= MaxSessions {
		dropOldest(s.active)
	}
	expires = now.Add(SessionLife)
	s.active[digest(session)] = grant{role: g.role, expires: expires}
	return session, expires, true, nil
}

// role is what a session may do, None if it is unknown or over.
func (s *sessions) role(session string) Role {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.active[digest(session)]
	if !ok || !now.Before(g.expires) {
		return None
	}
	return g.role
}

func (s *sessions) end(session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.active, digest(session))
}

func digest(secret string) [32]byte { return sha256.Sum256([]byte(secret)) }

func dropExpired(m map[[32]byte]grant, now time.Time) {
	for k, g := range m {
		if !now.Before(g.expires) {
			delete(m, k)
		}
	}
}

// dropOldest makes room by ending the session that would end first anyway.
func dropOldest(m map[[32]byte]grant) {
	var oldest [32]byte
	var at time.Time
	for k, g := range m {
		if at.IsZero() || g.expires.Before(at) {
			oldest, at = k, g.expires
		}
	}
	delete(m, oldest)
}
