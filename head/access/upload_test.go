package access

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// An upload is bounded before its first byte is read: by what it says of itself.
func TestUploadIsBoundedBeforeItIsRead(t *testing.T) {
	for _, c := range []struct {
		name, media, encoding string
		length                int64
		want                  int
	}{
		{"good", "application/octet-stream", "", 5, 200},
		{"too large", "application/octet-stream", "", MaxUpload + 1, 413},
		{"no length", "application/octet-stream", "", -1, 411},
		{"JSON", "application/json", "", 5, 415},
		{"form", "multipart/form-data; boundary=x", "", 5, 415},
		{"compressed", "application/octet-stream", "gzip", 5, 415},
		{"longer than it says", "application/octet-stream", "", 3, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := New(Options{
				Roles:  func(string) string { return "submitter" },
				Routes: []Route{{Method: "PUT", Pattern: "/up", Need: Submitter, Kind: Upload}},
			})
			if err != nil {
				t.Fatal(err)
			}
			got, readErr, called := "", error(nil), false
			if err := g.Handle("PUT", "/up", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				called = true
				b, err := io.ReadAll(r.Body)
				got, readErr = string(b), err
			})); err != nil {
				t.Fatal(err)
			}
			body := &watched{r: strings.NewReader("hello")}
			r := httptest.NewRequest("PUT", "http://localhost/up", body)
			r.ContentLength = c.length
			r.Header.Set("Content-Type", c.media)
			r.Header.Set("Content-Encoding", c.encoding)
			r.Header.Set("Authorization", "Bearer x")
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			if w.Code != c.want || called != (c.want == 200) || !called && body.read {
				t.Fatalf("status %d, handled %v, read %v: %s", w.Code, called, body.read, w.Body)
			}
			if called && (int64(len(got)) > c.length || (readErr != nil) != (c.length < 5)) {
				t.Errorf("%q, %v of %d bytes", got, readErr, c.length)
			}
		})
	}
}

type watched struct {
	r    io.Reader
	read bool
}

func (w *watched) Read(p []byte) (int, error) {
	w.read = true
	return w.r.Read(p)
}

// Who sends steadily has time for all of it, who stops does not.
func TestUploadsGetTimeForWhatTheySend(t *testing.T) {
	began := time.Unix(1000, 0)
	var deadlines []time.Duration
	s := &steady{ReadCloser: io.NopCloser(strings.NewReader(strings.Repeat("x", 2*uploadRate))), began: began, extend: func(at time.Time) {
		if at.IsZero() {
			deadlines = append(deadlines, 0)
			return
		}
		deadlines = append(deadlines, at.Sub(began))
	}}
	buf := make([]byte, uploadRate)
	for {
		if _, err := s.Read(buf); err != nil {
			break
		}
	}
	want := []time.Duration{uploadPatience, uploadPatience + time.Second, uploadPatience + 2*time.Second, 0}
	if !slices.Equal(deadlines, want) {
		t.Errorf("%v, want %v", deadlines, want)
	}
}
