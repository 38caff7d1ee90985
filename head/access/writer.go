package access

import (
	"net/http"
	"time"
)

// writer gives every write its own deadline, so that a client that does not read
// holds a goroutine for a bounded time, while a response that is written bit by bit
// over minutes is fine. It remembers the status for the log.
type writer struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
	now     func() time.Time
	status  int
}

func newWriter(w http.ResponseWriter, limit time.Duration, now func() time.Time) *writer {
	return &writer{ResponseWriter: w, control: http.NewResponseController(w), limit: limit, now: now}
}

// extend pushes the deadline; a test's recorder has none, which is no error.
func (w *writer) extend() { _ = w.control.SetWriteDeadline(w.now().Add(w.limit)) }

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
