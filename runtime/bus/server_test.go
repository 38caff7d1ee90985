package bus

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func portOf(t *testing.T, rawURL string) int {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestStartServerRefuses(t *testing.T) {
	if _, err := StartServer(ServerOptions{}); err == nil {
		t.Error("a server without Authorize started")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	_, err = StartServer(ServerOptions{Port: port, Authorize: func(string, string) (Permission, bool) { return anything, true }})
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(port)) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a port in use: %v", err)
	}
}

func TestServersDoNotShareOptions(t *testing.T) {
	var d directory
	a, b := startServer(t, ServerOptions{Authorize: d.authorize}), startServer(t, ServerOptions{Authorize: d.authorize})
	if a.ClientURL() == b.ClientURL() || !strings.HasPrefix(a.ClientURL(), "nats://127.0.0.1:") {
		t.Errorf("%s and %s", a.ClientURL(), b.ClientURL())
	}
}

func TestStranger(t *testing.T) { // P10
	var d directory
	d.put("known", anything)
	d.put("broken", Permission{Publish: []string{"a b"}})
	s := startServer(t, ServerOptions{Authorize: d.authorize})
	if _, err := s.InProcess("stranger", "x", ""); !errors.Is(err, ErrDenied) {
		t.Errorf("in-process: %v", err)
	}
	var log lockedBuffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for _, user := range []string{"", "stranger", "known", "broken"} {
		c, err := Dial(t.Context(), DialOptions{URLs: []string{s.ClientURL()}, User: user, Password: "hunter2-" + user, Logger: logger})
		if err != nil {
			t.Fatalf("a refused identity must try on, in case it is let in later: %v", err)
		}
		if c.Connected() {
			t.Errorf("user %q got in", user)
		}
		if err := c.Publish("x", nil); !errors.Is(err, ErrDisconnected) {
			t.Errorf("user %q: publish: %v", user, err)
		}
		c.Close()
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Errorf("a password in the log:\n%s", log.String())
	}
}

func TestPermissionThatTheServerWouldReadWider(t *testing.T) {
	for _, p := range []Permission{
		{Subscribe: []string{"one.*"}},
		{Subscribe: []string{"*"}},
		{Subscribe: []string{"a b"}},
		{Publish: []string{""}},
		{Inbox: "x"},
		{Inbox: "_INBOX.*"},
		{Inbox: "_INBOX"},
	} {
		var d directory
		d.put("u", p)
		s := startServer(t, ServerOptions{DontListen: true, Authorize: d.authorize})
		if c, err := s.InProcess("u", "u", ""); err == nil {
			c.Close()
			t.Errorf("%+v was accepted", p)
		}
	}
}

func TestLetInLater(t *testing.T) {
	var d directory
	var refused atomic.Int64
	s := startServer(t, ServerOptions{Authorize: func(user, password string) (Permission, bool) {
		p, ok := d.authorize(user, password)
		if !ok {
			refused.Add(1)
		}
		return p, ok
	}})
	c, err := Dial(t.Context(), DialOptions{URLs: []string{s.ClientURL()}, User: "u", Password: "u"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	eventually(t, func() error { // the library would give up after two
		if n := refused.Load(); n < 4 {
			return fmt.Errorf("%d attempts", n)
		}
		return nil
	})
	d.put("u", anything)
	eventually(t, func() error {
		if !c.Connected() {
			return errors.New("still refused")
		}
		return nil
	})
}

func TestDisconnect(t *testing.T) {
	var d directory
	d.put("a", anything)
	d.put("b", anything)
	s := startServer(t, ServerOptions{Authorize: d.authorize})
	a := dial(t, DialOptions{URLs: []string{s.ClientURL()}, User: "a", Password: "a"})
	defer a.Close()
	in, err := s.InProcess("a", "a", "")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	b := dial(t, DialOptions{URLs: []string{s.ClientURL()}, User: "b", Password: "b"})
	defer b.Close()
	changed := make(chan bool, 10)
	b.OnChange(func(up bool) { changed <- up })
	d.mu.Lock()
	delete(d.perms, "a")
	d.mu.Unlock()
	if n := s.Disconnect("a"); n != 2 {
		t.Errorf("%d connections closed, want 2", n)
	}
	eventually(t, func() error {
		if a.Connected() || in.Connected() {
			return errors.New("still connected")
		}
		return nil
	})
	if n := s.Disconnect("nobody"); n != 0 {
		t.Errorf("%d connections of nobody", n)
	}
	settle(t, b, b)
	if len(changed) != 0 {
		t.Error("another user's connection was touched")
	}
}

func TestDialWithoutServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().(*net.TCPAddr)
	l.Close()
	c, err := Dial(t.Context(), DialOptions{URLs: []string{"nats://" + addr.String()}, User: "u", Password: "u", InboxPrefix: "_INBOX.u"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Connected() {
		t.Error("connected to nothing")
	}
	if _, err := c.Request(within(t), "x", nil); !errors.Is(err, ErrDisconnected) {
		t.Errorf("request: %v", err)
	}
	got := make(chan struct{}, 1)
	subscribe(t, c, "early", func(Msg) { got <- struct{}{} })
	up := make(chan bool, 10)
	c.OnChange(func(u bool) { up <- u })
	var d directory
	d.put("u", Permission{Publish: []string{">"}, Subscribe: []string{">"}, Inbox: "_INBOX.u"})
	startServer(t, ServerOptions{Port: addr.Port, Authorize: d.authorize})
	if !<-up {
		t.Error("the first change is down")
	}
	eventually(t, func() error {
		if err := c.Publish("early", nil); err != nil {
			return err
		}
		select {
		case <-got:
			return nil
		default:
			return errors.New("nothing heard")
		}
	})
	if _, err := Dial(t.Context(), DialOptions{}); err == nil {
		t.Error("no URL was accepted")
	}
	if _, err := Dial(t.Context(), DialOptions{URLs: []string{"nats://127.0.0.1:1"}, InboxPrefix: "x"}); !errors.Is(err, ErrSubject) {
		t.Errorf("an inbox outside the root: %v", err)
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if conn, err := l.Accept(); err == nil {
			cancel()
			io.Copy(io.Discard, conn)
			conn.Close()
		}
	}()
	if _, err := Dial(ctx, DialOptions{URLs: []string{"nats://" + l.Addr().String()}}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// The requester names the subject of its reply; it must not make the responder, who
// may publish anywhere, speak for it.
func TestReplyOutsideAnInbox(t *testing.T) {
	var d directory
	d.put("head", anything)
	d.put("node", Permission{Publish: []string{"head.report.n1"}})
	s := startServer(t, ServerOptions{Authorize: d.authorize})
	head := dial(t, DialOptions{URLs: []string{s.ClientURL()}, User: "head", Password: "head"})
	defer head.Close()
	heard := make(chan struct{}, 1)
	subscribe(t, head, "n.victim.desired", func(Msg) { heard <- struct{}{} })
	result := make(chan error, 1)
	subscribe(t, head, "head.report.n1", func(m Msg) { result <- m.Respond([]byte("order")) })
	raw := rawClient(t, s, `{"user":"node","pass":"node","verbose":false}`)
	fmt.Fprint(raw, "PUB head.report.n1 n.victim.desired 0\r\n\r\n")
	if err := <-result; !errors.Is(err, ErrDenied) {
		t.Errorf("respond: %v", err)
	}
	settle(t, head, head)
	if len(heard) != 0 {
		t.Error("the head spoke to the victim")
	}
}

func rawClient(t *testing.T, s *Server, connect string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.ClientURL(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if connect != "" {
		fmt.Fprintf(conn, "CONNECT %s\r\n", connect)
	}
	return conn
}

func TestHostileClients(t *testing.T) {
	var d directory
	d.put("u", anything)
	s := startServer(t, ServerOptions{Authorize: d.authorize})
	t.Run("attacks", func(t *testing.T) { attack(t, s) })
	stillServes(t, s)
}

func attack(t *testing.T, s *Server) {
	good := `{"user":"u","pass":"u","verbose":false}`
	cases := []struct{ name, connect, send string }{
		{"garbage before CONNECT", "", strings.Repeat("\x00\xff\x13garbage\r\n", 1000)},
		{"TLS hello", "", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"},
		{"HTTP", "", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
		{"publish without CONNECT", "", "PUB x 0\r\n\r\n"},
		{"CONNECT that is no JSON", "not json", ""},
		{"CONNECT with deep JSON", strings.Repeat("[", 3000), ""},
		{"garbage after CONNECT", good, strings.Repeat("\xde\xad\xbe\xef", 5000)},
		{"control line of 5,000 bytes", good, "PUB " + strings.Repeat("a", 5000) + " 0\r\n\r\n"},
		{"payload over the limit", good, "PUB x 2000000\r\n"},
		{"negative size", good, "PUB x -1\r\n\r\n"},
		{"size over 64 bits", good, "PUB x 99999999999999999999999\r\n\r\n"},
		{"payload without its end", good, "PUB x 5\r\nhelloXX"},
		{"header larger than its message", good, "HPUB x 100 5\r\nNATS/\r\n"},
		{"acting as a route", good, "RS+ x y\r\n"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn := rawClient(t, s, c.connect)
			_, _ = io.WriteString(conn, c.send) // the server may close first
			// The server ends the connection by itself, with or without a word.
			conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
				t.Error("the connection is still open")
			}
			stillServes(t, s)
		})
	}
	t.Run("half-open connections", func(t *testing.T) {
		var conns []net.Conn
		for range 200 {
			conns = append(conns, rawClient(t, s, "")) // never authenticate
		}
		stillServes(t, s)
		for _, c := range conns {
			c.SetReadDeadline(time.Now().Add(20 * time.Second))
			if _, err := io.Copy(io.Discard, c); isTimeout(err) {
				t.Fatal("a connection that never authenticated is still open")
			}
		}
	})
	t.Run("cut in the middle", func(t *testing.T) {
		for range 50 {
			conn := rawClient(t, s, good)
			fmt.Fprint(conn, "SUB > 1\r\nPUB x 100\r\nabc")
			conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
		}
		stillServes(t, s)
	})
	t.Run("authenticated, then silent", func(t *testing.T) {
		t.Parallel()
		conn := rawClient(t, s, good)
		conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
			t.Error("a peer that answers no ping is still connected")
		}
	})
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func stillServes(t *testing.T, s *Server) {
	t.Helper()
	c := dial(t, DialOptions{URLs: []string{s.ClientURL()}, User: "u", Password: "u", InboxPrefix: anything.Inbox})
	defer c.Close()
	subscribe(t, c, "alive", func(m Msg) { m.Respond([]byte("yes")) })
	if got, err := c.Request(within(t), "alive", nil); err != nil || string(got) != "yes" {
		t.Fatalf("after the attack: %q, %v", got, err)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
