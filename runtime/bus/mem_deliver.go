package bus

import (
	"slices"
	"time"
)

// memMsg is one message on its way.
type memMsg struct {
	from    *memConn
	subject string
	data    []byte
	reply   string
	due     time.Time
}

// memSub delivers to one handler, in order of arrival. Messages of one sender never
// overtake each other, whatever their delays, as on a stream.
type memSub struct {
	c       *memConn
	pattern string
	handle  func(Msg)
	queue   []memMsg             // by due time, then by order of sending
	last    map[string]time.Time // by id of the sender
	stopped bool
	wake    chan struct{} // holds one
}

func newMemSub(c *memConn, pattern string, handle func(Msg)) *memSub {
	return &memSub{c: c, pattern: pattern, handle: handle, last: map[string]time.Time{}, wake: make(chan struct{}, 1)}
}

// push, drop and stop are called with the lock held.
func (s *memSub) push(m memMsg, late time.Duration) {
	if s.stopped || len(s.queue) >= maxPendingMsgs {
		return
	}
	m.due = time.Now().Add(late)
	if last := s.last[m.from.id]; m.due.Before(last) {
		m.due = last
	}
	s.last[m.from.id] = m.due
	i := len(s.queue)
	for i > 0 && m.due.Before(s.queue[i-1].due) {
		i--
	}
	s.queue = slices.Insert(s.queue, i, m)
	s.signal()
}

func (s *memSub) drop() { s.queue = nil }

func (s *memSub) stop() {
	s.stopped = true
	s.queue = nil
	s.signal()
}

func (s *memSub) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *memSub) run() {
	for {
		m, wait, more := s.next()
		switch {
		case !more:
			return
		case wait < 0:
			<-s.wake
		case wait > 0:
			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-s.wake:
				t.Stop()
			}
		default:
			s.handle(Msg{Subject: m.subject, Data: m.data, Respond: func(data []byte) error {
				if m.reply == "" {
					return nil
				}
				return s.c.respond(m, data)
			}})
		}
	}
}

// next takes the message that is due, or tells how long to wait: -1 until a signal.
func (s *memSub) next() (m memMsg, wait time.Duration, more bool) {
	s.c.m.mu.Lock()
	defer s.c.m.mu.Unlock()
	for {
		if s.stopped {
			return memMsg{}, 0, false
		}
		if len(s.queue) == 0 {
			return memMsg{}, -1, true
		}
		m = s.queue[0]
		if wait = time.Until(m.due); wait > 0 {
			return memMsg{}, wait, true
		}
		s.queue = s.queue[1:]
		// A link that was cut while the message travelled has swallowed it.
		if !s.c.m.faults.cut(m.from.id, s.c.id) {
			return m, 0, true
		}
	}
}
