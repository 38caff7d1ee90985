package access

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// connection remembers the deadlines that it is given.
type connection struct {
	*httptest.ResponseRecorder
	reads, writes []time.Time
}

func (c *connection) SetReadDeadline(t time.Time) error {
	c.reads = append(c.reads, t)
	return nil
}

func (c *connection) SetWriteDeadline(t time.Time) error {
	c.writes = append(c.writes, t)
	return nil
}

// A small answer sets one deadline; one that is written for long gets more time while it
// is, and always most of the limit.
func TestDeadlinesOfWrites(t *testing.T) {
	begin := time.Unix(1000, 0)
	now, c := begin, &connection{ResponseRecorder: httptest.NewRecorder()}
	w := newWriter(c, 16*time.Second, func() time.Time { return now })
	w.WriteHeader(http.StatusOK)
	for range 3 {
		if _, err := w.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if want := []time.Time{begin.Add(16 * time.Second)}; !slices.Equal(c.writes, want) {
		t.Errorf("at once: %v, want %v", c.writes, want)
	}
	for range 100 {
		now = now.Add(700 * time.Millisecond)
		if err := w.FlushError(); err != nil {
			t.Fatal(err)
		}
		if left := c.writes[len(c.writes)-1].Sub(now); left < 15*time.Second {
			t.Fatalf("%s after the begin a write has %s left", now.Sub(begin), left)
		}
	}
}

// A body is hurried from the start, and what has come whole is not; a request without one
// touches no deadline.
func TestDeadlinesOfReads(t *testing.T) {
	g, err := New(Options{Roles: func(string) string { return "admin" }, Routes: []Route{{Method: "POST", Pattern: "/x", Need: Admin, Kind: API}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Handle("POST", "/x", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusOK)
	})); err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]int{"{}": 2, "": 0} {
		c := &connection{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequest("POST", "/x", strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer t")
		r.Header.Set("Content-Type", "application/json")
		r.Host = "localhost"
		if body == "" {
			r.Body = http.NoBody
		}
		g.ServeHTTP(c, r)
		if c.Code != http.StatusOK || len(c.reads) != want || want > 0 && (c.reads[0].IsZero() || !c.reads[1].IsZero()) {
			t.Errorf("body %q: %d, %v", body, c.Code, c.reads)
		}
	}
}

// All answers share the values of these headers: whoever adds to one must get a copy.
func TestSecurityHeadersAreNotWrittenTo(t *testing.T) {
	h := http.Header{}
	SecurityHeaders(h)
	for name, values := range h {
		if cap(values) != len(values) {
			t.Errorf("an answer that adds to %s would write where the others read", name)
		}
	}
}
