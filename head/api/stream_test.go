package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// pipes is a listener in memory: a write blocks until the client reads it, so a slow
// client is slow from the first byte, and time is the bubble's.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.once.Do(func() { close(p.done) }); return nil }

func (p *pipes) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

func (p *pipes) dial(t *testing.T) net.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
	case <-p.done:
		t.Fatal("the server is closed")
	}
	return ours
}

// running serves until the test's function returns, and checks that Serve ends.
func running(t *testing.T, s *server, f func(p *pipes, stop func())) {
	t.Helper()
	p := newPipes()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, p, s.guard) }()
	f(p, cancel)
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if n := s.streams.Count(); n != 0 {
		t.Errorf("%d streams are still counted", n)
	}
}

// open asks for the stream; the reader stands behind the headers.
func open(t *testing.T, c net.Conn, query string, headers ...string) (int, http.Header, *bufio.Reader) {
	t.Helper()
	req := "GET /api/v1/events/stream" + query + " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + viewerToken + "\r\n"
	for i := 0; i+1 < len(headers); i += 2 {
		req += headers[i] + ": " + headers[i+1] + "\r\n"
	}
	if _, err := io.WriteString(c, req+"\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp.StatusCode, resp.Header, bufio.NewReader(resp.Body)
}

// message reads one server-sent event up to its empty line.
func message(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	var out strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream ended after %q: %v", out.String(), err)
		}
		if line == "\n" {
			return out.String()
		}
		out.WriteString(line)
	}
}

func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := populated()
		running(t, serverFor(t, b, nil), func(p *pipes, _ func()) {
			c := p.dial(t)
			defer c.Close()
			status, header, r := open(t, c, "")
			if status != 200 || header.Get("Content-Type") != "text/event-stream" {
				t.Fatal(status, header)
			}
			if got := message(t, r); got != "retry: 1000\n" {
				t.Errorf("first %q", got)
			}
			b.event("job/x", "six") // without `after` a stream begins with the next event
			if got := message(t, r); !strings.HasPrefix(got, "id: 6\ndata: {") || !strings.Contains(got, `"message":"six"`) {
				t.Errorf("%q", got)
			}
			b.event("job/x", "seven")
			if got := message(t, r); !strings.HasPrefix(got, "id: 7\n") {
				t.Errorf("%q", got)
			}
			if got := message(t, r); got != ": alive\n" { // virtual 15 s later
				t.Errorf("heartbeat %q", got)
			}

			again := p.dial(t)
			defer again.Close()
			_, _, r2 := open(t, again, "?after=0", "Last-Event-ID", "4") // the header wins
			message(t, r2)
			for _, id := range []string{"id: 5\n", "id: 6\n", "id: 7\n"} {
				if got := message(t, r2); !strings.HasPrefix(got, id) {
					t.Errorf("resumed with %q, want %q", got, id)
				}
			}
			one := p.dial(t)
			defer one.Close()
			_, _, r3 := open(t, one, "?after=0&object=job/x")
			message(t, r3)
			if got := message(t, r3); !strings.HasPrefix(got, "id: 6\n") {
				t.Errorf("of one object: %q", got)
			}
		})
	})
}

func TestStreamOfWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := populated()
		running(t, serverFor(t, b, nil), func(p *pipes, _ func()) {
			c := p.dial(t)
			defer c.Close()
			_, _, r := open(t, c, "?after=5")
			message(t, r)
			b.change(func() { b.dropped = 20; b.eventLog = nil })
			if got := message(t, r); !strings.HasPrefix(got, "event: gone\ndata: {") || !strings.Contains(got, "TRP-A015") {
				t.Errorf("%q", got)
			}
			if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
				t.Errorf("after gone: %q %v", rest, err)
			}
			late := p.dial(t)
			defer late.Close()
			if status, _, _ := open(t, late, "", "Last-Event-ID", "7"); status != http.StatusGone {
				t.Errorf("resume behind what is kept: %d", status)
			}
		})
	})
}

func TestSlowClientIsCut(t *testing.T) { // attack 38
	synctest.Test(t, func(t *testing.T) {
		b := populated()
		s := serverFor(t, b, func(o *Options) { o.WriteLimit = 2 * time.Second; o.Now = time.Now })
		running(t, s, func(p *pipes, _ func()) {
			var conns []net.Conn
			for range 20 {
				c := p.dial(t)
				defer c.Close()
				open(t, c, "?after=0") // and never reads on
				conns = append(conns, c)
			}
			synctest.Wait()
			if n := s.streams.Count(); n != 20 {
				t.Fatalf("%d streams", n)
			}
			for i := range 100 {
				b.event("job/x", fmt.Sprint(i))
			}
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if n := s.streams.Count(); n != 0 {
				t.Errorf("%d streams hold on to clients that do not read", n)
			}
			_ = conns
		})
	})
}

func TestRevokedWhileItStreams(t *testing.T) { // attack 18
	synctest.Test(t, func(t *testing.T) {
		b := populated()
		running(t, serverFor(t, b, nil), func(p *pipes, _ func()) {
			c := p.dial(t)
			defer c.Close()
			_, _, r := open(t, c, "")
			message(t, r)
			b.mu.Lock()
			b.revoked[viewerToken] = true
			b.mu.Unlock()
			from := time.Now()
			if _, err := io.ReadAll(r); err != nil || time.Since(from) > 5*time.Second {
				t.Errorf("ended after %s: %v", time.Since(from), err)
			}
		})
	})
}

func TestShutdownEndsStreamsAndFinishesWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := populated()
		running(t, serverFor(t, b, nil), func(p *pipes, stop func()) {
			c := p.dial(t)
			defer c.Close()
			_, _, r := open(t, c, "")
			message(t, r)
			stop()
			from := time.Now()
			if _, err := io.ReadAll(r); err != nil || time.Since(from) > time.Second {
				t.Errorf("the stream ended after %s: %v", time.Since(from), err)
			}
		})
	})
}

func TestSlowSendersAreCut(t *testing.T) { // attack 37
	synctest.Test(t, func(t *testing.T) {
		s := serverFor(t, populated(), func(o *Options) { o.Now = time.Now })
		running(t, s, func(p *pipes, _ func()) {
			header := p.dial(t)
			defer header.Close()
			from := time.Now()
			if _, err := io.WriteString(header, "GET /livez HTTP/1.1\r\nHost: loc"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(header); time.Since(from) > 6*time.Second {
				t.Errorf("half a header was waited for %s: %v", time.Since(from), err)
			}
			body := p.dial(t)
			defer body.Close()
			from = time.Now()
			req := "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + adminToken +
				"\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
			if _, err := io.WriteString(body, req); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(body), nil)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusRequestTimeout || time.Since(from) > 11*time.Second {
				t.Errorf("half a body: %s after %s", resp.Status, time.Since(from))
			}
			// Refused before its body was read, and still not waited for.
			for _, start := range []string{
				"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\n",
				"POST /api/v1/jobs HTTP/1.1\r\nHost: evil.example\r\n",
				"POST /livez HTTP/1.1\r\nHost: localhost\r\n",
				"GET /livez HTTP/1.1\r\nHost: localhost\r\n",
			} {
				c := p.dial(t)
				defer c.Close()
				from = time.Now()
				if _, err := io.WriteString(c, start+"Transfer-Encoding: chunked\r\n\r\n5\r\n{"); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadAll(c); time.Since(from) > 12*time.Second {
					t.Errorf("%q was waited for %s: %v", start, time.Since(from), err)
				}
			}
		})
	})
}

func TestHugeHeader(t *testing.T) { // attack 36
	synctest.Test(t, func(t *testing.T) {
		running(t, serverFor(t, populated(), nil), func(p *pipes, _ func()) {
			c := p.dial(t)
			defer c.Close()
			go func() {
				_, _ = io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", 4<<20))
			}()
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
				t.Error(resp.Status)
			}
		})
	})
}

func TestServeOnLoopback(t *testing.T) {
	defer goleak.VerifyNone(t)
	s := serverFor(t, populated(), nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, ln, s.guard) }()
	client := &http.Client{Transport: &http.Transport{}}
	resp, err := client.Get("http://" + ln.Addr().String() + "/version")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 200 || !strings.Contains(string(body), `"ui":"missing"`) {
		t.Errorf("%s %s", resp.Status, body)
	}
	client.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
