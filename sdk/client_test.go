package troupe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func TestParseAddress(t *testing.T) {
	for in, want := range map[string]string{
		"head": "http://head:7600", "head:1": "http://head:1", "https://h": "https://h:7600", " http://h:1/ ": "http://h:1",
		"::1": "", "[::1]:5": "http://[::1]:5", "[::1]": "http://[::1]:7600", "": "", "http://": "", "ftp://h": "", "http://u:p@h": "",
		"h:port": "", "http://h/base": "http://h:7600/base",
	} {
		u, err := ParseAddress(in)
		if (err != nil) != (want == "") || err == nil && u.String() != want {
			t.Errorf("%q: %v, %v; want %q", in, u, err, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		if u, err := ParseAddress(rapid.String().Draw(t, "address")); err == nil && (u.Hostname() == "" || u.Port() == "" || u.User != nil) {
			t.Fatalf("%v", u)
		}
	})
}

// headOf serves what handle answers.
func headOf(t *testing.T, handle http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(handle)
	t.Cleanup(s.Close)
	c, err := New(s.URL, "tok")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// A write is repeated under the key it was first sent with, and says how old it is; a
// write without a key never is.
func TestRepeatsKeepTheirKey(t *testing.T) {
	var calls atomic.Int64
	keys := make(chan string, 10)
	c := headOf(t, func(w http.ResponseWriter, r *http.Request) {
		keys <- r.Header.Get(api.HeaderIdempotencyKey)
		if r.Header.Get("Authorization") != "Bearer tok" {
			t.Errorf("no token in %v", r.Header)
		}
		if calls.Add(1) < 3 {
			answer(w, 503, api.Problem{Title: "no leader", Status: 503, Code: "TRP-A503", Retryable: true})
			return
		}
		if age := r.Header.Get(api.HeaderIdempotencyAge); age == "" {
			t.Error("no age")
		}
		answer(w, 201, api.Job{ID: "j-1"})
	})
	j, err := c.SubmitJob(t.Context(), api.JobSpec{Name: "j", Command: []string{"x"}}, "")
	if err != nil || j.ID != "j-1" {
		t.Fatalf("%+v %v", j, err)
	}
	first := <-keys
	if a, b := <-keys, <-keys; first == "" || a != first || b != first {
		t.Errorf("keys %q, %q, %q", first, a, b)
	}
	calls.Store(-100)
	_, err = c.StopJob(t.Context(), "j-1", -1, "")
	if p := AsProblem(err); p == nil || p.Status != 503 || calls.Load() != -99 {
		t.Errorf("%v after %d calls", err, calls.Load()+100)
	}
}

// What an address can be that is no head's API.
func TestStrangersAreTold(t *testing.T) {
	for name, handle := range map[string]http.HandlerFunc{
		"a web page":    func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"an error page": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "nope", 500) },
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		},
		"json of another": func(w http.ResponseWriter, _ *http.Request) { answer(w, 404, map[string]string{"error": "x"}) },
		"an array":        func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, []int{1}) },
	} {
		c := headOf(t, handle)
		if _, err := c.Status(t.Context()); err == nil {
			t.Errorf("%s was taken for a head", name)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // nobody listens there now
	c, err := New(l.Addr().String(), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Status(t.Context()); !errors.Is(err, ErrUnreachable) {
		t.Errorf("%v", err)
	}
}

// A list is collected over its pages, and no further than asked.
func TestListsFollowCursors(t *testing.T) {
	c := headOf(t, func(w http.ResponseWriter, r *http.Request) {
		from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
		n, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		l := api.List[api.Node]{Items: []api.Node{}}
		for i := from; i < min(from+n, 2500); i++ {
			l.Items = append(l.Items, api.Node{ID: strconv.Itoa(i)})
		}
		if l.Remaining = int64(2500 - from - len(l.Items)); l.Remaining > 0 {
			l.Cursor = strconv.Itoa(from + len(l.Items))
		}
		answer(w, 200, l)
	})
	for limit, want := range map[int]int{0: 2500, 1: 1, 1000: 1000, 1500: 1500, 9999: 2500} {
		l, err := c.Nodes(t.Context(), limit)
		if err != nil || len(l.Items) != want || l.Remaining != int64(2500-want) {
			t.Errorf("limit %d: %d items, %d remain, %v", limit, len(l.Items), l.Remaining, err)
		}
		for i, n := range l.Items {
			if n.ID != strconv.Itoa(i) {
				t.Fatalf("limit %d: item %d is %s", limit, i, n.ID)
			}
		}
	}
}

// logHead is a rank's output that grows, is answered in pieces, is cut off in the midst
// of an answer and loses the head of its file.
type logHead struct {
	mu   sync.Mutex
	rng  func(n int) int
	text []byte
	freed,
	written int
	cuts int
}

func (h *logHead) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
	h.written = min(len(h.text), h.written+h.rng(50))
	start := max(offset, h.freed)
	body := h.text[min(start, h.written):min(start+h.rng(40), h.written)]
	w.Header().Set(api.HeaderLogStart, strconv.Itoa(start))
	w.Header().Set(api.HeaderLogSize, strconv.Itoa(h.written))
	w.Header().Set(api.HeaderLogEnd, strconv.FormatBool(h.written == len(h.text)))
	w.Header().Set("X-Log-Attempt", "2")
	if len(body) > 3 && h.cuts > 0 && h.rng(3) == 0 {
		h.cuts--
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body[:h.rng(len(body))])
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body)
}

// Whatever happens on the way, a follower gets every byte once, in order, to the end.
func TestFollowLogIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &logHead{text: []byte(rapid.StringN(0, 300, 300).Draw(t, "text")), cuts: 5}
		seed := rapid.Uint32().Draw(t, "seed")
		h.rng = func(n int) int { // small, and the same for the same seed
			seed = seed*1664525 + 1013904223
			return int(seed>>8) % max(n, 1)
		}
		s := httptest.NewServer(h)
		defer s.Close()
		c, err := New(s.URL, "")
		if err != nil {
			t.Fatal(err)
		}
		from := rapid.IntRange(0, len(h.text)).Draw(t, "from")
		var got []byte
		end, err := c.FollowLog(context.Background(), "j", 0, -1, "stdout", int64(from), func(p []byte) error {
			got = append(got, p...)
			return nil
		})
		if err != nil || string(got) != string(h.text[from:]) || end != int64(len(h.text)) {
			t.Fatalf("%q from %d gave %q, end %d, %v", h.text, from, got, end, err)
		}
	})
}

func TestFollowLogSkipsWhatWasFreed(t *testing.T) {
	h := &logHead{text: []byte("0123456789"), freed: 4, rng: func(n int) int { return n - 1 }}
	s := httptest.NewServer(h)
	defer s.Close()
	c, err := New(s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	end, err := c.FollowLog(t.Context(), "j", 0, 2, "stdout", 0, func(p []byte) error { got = append(got, p...); return nil })
	if err != nil || string(got) != "456789" || end != 10 {
		t.Errorf("%q, %d, %v", got, end, err)
	}
	stop := errors.New("enough")
	if _, err = c.FollowLog(t.Context(), "j", 0, 2, "stdout", 0, func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("the writer's error is lost: %v", err)
	}
}

// WaitGroup ends with the group's reason when the time is over.
func TestWaitGroupTellsTheReason(t *testing.T) {
	c := headOf(t, func(w http.ResponseWriter, r *http.Request) {
		wait, _ := time.ParseDuration(r.URL.Query().Get("wait"))
		select {
		case <-time.After(min(wait, 20*time.Millisecond)):
		case <-r.Context().Done():
		}
		answer(w, 200, api.Group{ID: "g", State: api.GroupPending, Reason: &api.Reason{Code: api.ReasonFit, Text: "no room"}})
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	g, err := c.WaitGroup(ctx, "g")
	if !errors.Is(err, context.DeadlineExceeded) || g.Reason == nil || g.Reason.Text != "no room" {
		t.Errorf("%+v, %v", g, err)
	}
}

// Names with anything in them stay one segment of the path.
func TestNamesAreEscaped(t *testing.T) {
	c := headOf(t, func(w http.ResponseWriter, r *http.Request) {
		if want := "/api/v1/jobs/a%2Fb%3Fc%20d"; r.URL.EscapedPath() != want {
			t.Errorf("path %s, want %s", r.URL.EscapedPath(), want)
		}
		answer(w, 200, api.Job{})
	})
	if _, err := c.Job(t.Context(), "a/b?c d"); err != nil {
		t.Error(err)
	}
}

func TestLocate(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	for _, k := range []string{"TROUPE_ADDRESS", "TROUPE_TOKEN", "TROUPE_CONTEXT"} {
		t.Setenv(k, "")
	}
	if _, err := Connect(); !errors.Is(err, ErrNoCluster) {
		t.Errorf("nothing known: %v", err)
	}
	token := filepath.Join(dir, "token")
	text := fmt.Sprintf("current: one\ncontexts:\n- {name: one, address: 'http://127.0.0.1:1', tokenFile: %s}\n- {name: two, address: '127.0.0.1:2', tokenFile: %s}\n", token, token)
	if err := os.MkdirAll(filepath.Join(dir, "troupe"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "troupe", "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Connect(); !errors.Is(err, ErrConfig) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a token that is gone: %v", err)
	}
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flag               string
		env                map[string]string
		address, want, why string
	}{
		{"", nil, "http://127.0.0.1:1", "secret", "the current context"},
		{"", map[string]string{"TROUPE_CONTEXT": "two"}, "127.0.0.1:2", "secret", "the named context"},
		{"", map[string]string{"TROUPE_ADDRESS": "127.0.0.1:2"}, "127.0.0.1:2", "secret", "the token of the same address"},
		{"127.0.0.1:3", map[string]string{"TROUPE_ADDRESS": "127.0.0.1:2"}, "127.0.0.1:3", "", "a token is not for another address"},
		{"", map[string]string{"TROUPE_TOKEN": "mine"}, "http://127.0.0.1:1", "mine", "the environment's token"},
	} {
		t.Run(strings.ReplaceAll(c.why, " ", "_"), func(t *testing.T) {
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			address, token, err := Locate(c.flag)
			if err != nil || address != c.address || token != c.want {
				t.Errorf("%s: %q, %q, %v", c.why, address, token, err)
			}
		})
	}
	if err := os.WriteFile(file, []byte("contexts: 7"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadConfig(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), file) {
		t.Errorf("a file that makes no sense: %v", err)
	}
}
