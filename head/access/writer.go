package access

import (
	"net/http"
	"time"
)

// renewals is how many parts of the limit a deadline of writes is renewed in.
const renewals = 16

// writer gives every write its own deadline, so that a client that does not read
// holds a goroutine for a bounded time, while a response that is written bit by bit
// over minutes is fine. It remembers the status for the log.
type writer struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
	now     func() time.Time
	status  int
	// renewed is when the deadline of writes was set last, and hurried says that there is
	// one of reads: each is a call into the poller, and a small answer would make six.
	renewed time.Time
	hurried bool
}

func newWriter(w http.ResponseWriter, limit time.Duration, now func() time.Time) *writer {
	return &writer{ResponseWriter: w, control: http.NewResponseController(w), limit: limit, now: now}
}

// extend pushes the deadline, unless that was just done; a test's recorder has none, which
// is no error.
func (w *writer) extend() {
	now := w.now()
	if w.renewed.IsZero() || now.Sub(w.renewed) >= w.limit/renewals {
		w.renewed = now
		_ = w.control.SetWriteDeadline(now.Add(w.limit))
	}
}

// SetReadDeadline is for a ResponseController. Taking back what was not set does nothing.
func (w *writer) SetReadDeadline(t time.Time) error {
	if t.IsZero() && !w.hurried {
		return nil
	}
	w.hurried = !t.IsZero()
	return w.control.SetReadDeadline(t)
}

func (w *writer) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.extend()
	return w.ResponseWriter.Write(p)
}

// FlushError sends what was written; ResponseController finds it.
func (w *writer) FlushError() error {
	w.extend()
	return w.control.Flush()
}

// Unwrap lets a ResponseController reach the connection.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
