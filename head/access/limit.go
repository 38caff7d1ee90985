package access

import (
	"sync"
	"time"
)

// Rates for requests that have shown no identity, by address. They bound guessing and
// floods; a request with a valid token is never counted.
const (
	anonymousRate  = 500 // a second, for the few open routes
	anonymousBurst = 1000
	refusedRate    = 20 // a second, for requests without a valid identity
	refusedBurst   = 100
	maxAddresses   = 4096
)

// rates is a token bucket for each address, bounded in number.
type rates struct {
	rate, burst float64
	now         func() time.Time

	mu      sync.Mutex
	buckets map[string]*bucket
}

type bucket struct {
	tokens float64
	at     time.Time
}

func newRates(rate, burst float64, now func() time.Time) *rates {
	return &rates{rate: rate, burst: burst, now: now, buckets: map[string]*bucket{}}
}

// take counts one request of the address; false says that it has had its share.
func (l *rates) take(address string) bool {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.buckets[address]
	if !ok {
		if len(l.buckets) >= maxAddresses {
			l.dropFull(now)
		}
		b = &bucket{tokens: l.burst, at: now}
		l.buckets[address] = b
	}
	b.tokens = min(l.burst, b.tokens+l.rate*max(0, now.Sub(b.at).Seconds()))
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// dropFull forgets the addresses that would be full again, which changes nothing for
// them; if there are none, all: memory matters more than a flood from 4096 addresses.
func (l *rates) dropFull(now time.Time) {
	for k, b := range l.buckets {
		if b.tokens+l.rate*now.Sub(b.at).Seconds() >= l.burst {
			delete(l.buckets, k)
		}
	}
	if len(l.buckets) >= maxAddresses {
		clear(l.buckets)
	}
}

// Streams bounds how many requests may stay open (event streams and blocking reads),
// in all and for each identity.
type Streams struct {
	total, each int

	mu   sync.Mutex
	open map[string]int
	sum  int
}

// NewStreams allows total streams, and each for one identity.
func NewStreams(total, each int) *Streams {
	return &Streams{total: total, each: each, open: map[string]int{}}
}

// Open takes one stream for the identity; ok is false when there is no more room. The
// caller closes it exactly once.
func (s *Streams) Open(identity string) (done func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sum >= s.total || s.open[identity] >= s.each {
		return nil, false
	}
	s.sum++
	s.open[identity]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sum--
		if s.open[identity]--; s.open[identity] <= 0 {
			delete(s.open, identity)
		}
	}, true
}

// Count is how many streams are open.
func (s *Streams) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sum
}
