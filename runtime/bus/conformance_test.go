package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv("BUS_NO_LEAK_CHECK") != "" {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

// subject under test: how to connect, and how to break and mend every connection.
type harness struct {
	connect func(t *testing.T, id string, p Permission) Conn
	lose    func() // every connection is lost and cannot come back
	mend    func() // until now
}

// directory is the Authorize of the tests: the password is the user's name.
type directory struct {
	mu    sync.Mutex
	perms map[string]Permission
	shut  bool
}

func (d *directory) refuse(everybody bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = everybody
}

func (d *directory) put(user string, p Permission) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.perms == nil {
		d.perms = map[string]Permission{}
	}
	d.perms[user] = p
}

func (d *directory) authorize(user, password string) (Permission, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.perms[user]
	return p, ok && password == user && !d.shut
}

func startServer(t *testing.T, o ServerOptions) *Server {
	t.Helper()
	o.Name = "test"
	s, err := StartServer(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

func implementations() map[string]func(t *testing.T) harness {
	return map[string]func(t *testing.T) harness{
		"in-process": func(t *testing.T) harness {
			var d directory
			s := startServer(t, ServerOptions{DontListen: true, Authorize: d.authorize})
			return harness{
				connect: func(t *testing.T, id string, p Permission) Conn {
					d.put(id, p)
					c, err := s.InProcess(id, id, id)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(c.Close)
					return c
				},
				lose: func() {
					d.refuse(true)
					for _, id := range []string{"a", "b"} {
						s.Disconnect(id)
					}
				},
				mend: func() { d.refuse(false) },
			}
		},
		"loopback": func(t *testing.T) harness {
			var d directory
			s := startServer(t, ServerOptions{Authorize: d.authorize})
			url := s.ClientURL()
			return harness{
				connect: func(t *testing.T, id string, p Permission) Conn {
					d.put(id, p)
					c := dial(t, DialOptions{URLs: []string{url}, User: id, Password: id, Name: id, InboxPrefix: p.Inbox})
					t.Cleanup(c.Close)
					return c
				},
				lose: func() { s.Shutdown() },
				mend: func() { startServer(t, ServerOptions{Port: portOf(t, url), Authorize: d.authorize}) },
			}
		},
		"memory": func(t *testing.T) harness {
			m := NewMem(1)
			t.Cleanup(m.Close)
			var ids []string
			return harness{
				connect: func(_ *testing.T, id string, p Permission) Conn {
					ids = append(ids, id)
					return m.Connect(id, p)
				},
				lose: func() {
					for _, id := range ids {
						m.CutAll(id)
					}
				},
				mend: func() {
					for _, id := range ids {
						m.HealAll(id)
					}
				},
			}
		},
	}
}

func dial(t *testing.T, o DialOptions) Conn {
	t.Helper()
	c, err := Dial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if !c.Connected() {
			return errors.New("not connected")
		}
		return nil
	})
	return c
}

// eventually waits for f to succeed and reports its last error.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("did not come true: %v", err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

var anything = Permission{Publish: []string{">"}, Subscribe: []string{">"}, Inbox: "_INBOX.any"}

func subscribe(t *testing.T, c Conn, pattern string, f func(Msg)) func() {
	t.Helper()
	stop, err := c.Subscribe(pattern, f)
	if err != nil {
		t.Fatal(err)
	}
	return stop
}

// sync makes sure that everything that c published before has been delivered to a
// subscription of to: NATS keeps the order of one connection.
func settle(t *testing.T, c, to Conn) {
	t.Helper()
	done := make(chan struct{})
	var once sync.Once
	defer subscribe(t, to, "settle", func(Msg) { once.Do(func() { close(done) }) })()
	if err := c.Publish("settle", nil); err != nil {
		t.Fatal(err)
	}
	select {
	case <-done:
	case <-within(t).Done():
		t.Fatal("a published message did not arrive")
	}
}

func TestConformance(t *testing.T) {
	cases := map[string]func(*testing.T, harness){
		"request and reply":       testRequest,
		"order":                   testOrder,
		"no responder":            testNoResponder,
		"denied":                  testDenied,
		"inbox isolation":         testInbox,
		"sizes":                   testSizes,
		"patterns":                testPatterns,
		"close":                   testClose,
		"unsubscribe":             testUnsubscribe,
		"context":                 testContext,
		"data is not shared":      testData,
		"slow handlers are apart": testSlow,
		"reconnect":               testReconnect,
	}
	for name, start := range implementations() {
		for what, f := range cases {
			t.Run(name+"/"+what, func(t *testing.T) { f(t, start(t)) })
		}
	}
}

func testRequest(t *testing.T, h harness) {
	a, b := h.connect(t, "a", anything), h.connect(t, "b", Permission{Subscribe: []string{"work.>"}})
	subscribe(t, b, "work.*", func(m Msg) {
		if err := m.Respond(append([]byte(m.Subject+":"), m.Data...)); err != nil {
			t.Error(err)
		}
	})
	for i := range 20 {
		got, err := a.Request(within(t), fmt.Sprint("work.", i), []byte("x"))
		if want := fmt.Sprint("work.", i, ":x"); err != nil || string(got) != want {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			got, err := a.Request(within(t), fmt.Sprint("work.", i), nil)
			if want := fmt.Sprint("work.", i, ":"); err != nil || string(got) != want {
				t.Errorf("got %q, %v; want %q", got, err, want)
			}
		})
	}
	wg.Wait()
}

func testOrder(t *testing.T, h harness) {
	a, b := h.connect(t, "a", anything), h.connect(t, "b", anything)
	const n = 2000
	got := make(chan int, n)
	inside := make(chan struct{}, 1)
	subscribe(t, b, "seq", func(m Msg) {
		select {
		case inside <- struct{}{}:
		default:
			t.Error("two calls of one handler at once")
		}
		var i int
		fmt.Sscan(string(m.Data), &i)
		got <- i
		<-inside
		if err := m.Respond([]byte("nobody waits")); err != nil {
			t.Errorf("respond to a published message: %v", err)
		}
	})
	for i := range n {
		if err := a.Publish("seq", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		select {
		case v := <-got:
			if v != i {
				t.Fatalf("message %d came as number %d", v, i)
			}
		case <-within(t).Done():
			t.Fatalf("message %d did not arrive", i)
		}
	}
}

func testNoResponder(t *testing.T, h harness) {
	a, b := h.connect(t, "a", anything), h.connect(t, "b", anything)
	if _, err := a.Request(within(t), "nobody.here", nil); !errors.Is(err, ErrNoResponder) {
		t.Fatalf("got %v", err)
	}
	stop := subscribe(t, b, "nobody.here", func(m Msg) { m.Respond(nil) })
	if _, err := a.Request(within(t), "nobody.here", nil); err != nil {
		t.Fatal(err)
	}
	stop()
	eventually(t, func() error {
		// A request that is faster than the unsubscribe finds a listener that never answers.
		ctx, cancel := context.WithTimeout(within(t), 100*time.Millisecond)
		defer cancel()
		if _, err := a.Request(ctx, "nobody.here", nil); !errors.Is(err, ErrNoResponder) {
			return fmt.Errorf("after unsubscribe: %w", err)
		}
		return nil
	})
}

func testDenied(t *testing.T, h harness) {
	a := h.connect(t, "a", anything)
	node := h.connect(t, "node", Permission{Publish: []string{"head.*.n1", "settle"}, Subscribe: []string{"n.n1.>", "one.a", "two.*.end"}, Inbox: "_INBOX.n1"})
	none := h.connect(t, "none", Permission{})
	var mu sync.Mutex
	var seen []string
	subscribe(t, a, ">", func(m Msg) {
		mu.Lock()
		defer mu.Unlock()
		if m.Subject != "settle" {
			seen = append(seen, m.Subject)
		}
	})
	for _, s := range []string{"head.report.n2", "n.n1.desired", "head.n1", "head.a.n1.b", "_INBOX.n2.x"} {
		if err := node.Publish(s, nil); err != nil && !errors.Is(err, ErrDenied) {
			t.Errorf("publish to %s: %v", s, err)
		}
	}
	if err := none.Publish("x", nil); err != nil && !errors.Is(err, ErrDenied) {
		t.Error(err)
	}
	if err := node.Publish("head.report.n1", nil); err != nil {
		t.Error(err)
	}
	settle(t, node, a)
	eventually(t, func() error {
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(seen, []string{"head.report.n1"}) {
			return fmt.Errorf("arrived: %q", seen)
		}
		return nil
	})
	if _, err := node.Request(within(t), "head.report.n2", nil); !errors.Is(err, ErrDenied) {
		t.Errorf("request on another's subject: %v", err)
	}
	for _, p := range []string{">", "n.>", "n.n2.desired", "n.*.desired", "head.report.n1", "_INBOX.>", "*.n1.x", "one.>", "one.*", "one.a.b", "two.>", "two.*.*"} {
		if _, err := node.Subscribe(p, func(Msg) {}); !errors.Is(err, ErrDenied) {
			t.Errorf("subscribe to %s: %v", p, err)
		}
		if _, err := none.Subscribe(p, func(Msg) {}); !errors.Is(err, ErrDenied) {
			t.Errorf("subscribe to %s without any permission: %v", p, err)
		}
	}
	for _, p := range []string{"n.n1.desired", "n.n1.*", "n.n1.>", "one.a", "two.*.end", "two.x.end", "_INBOX.n1.x.>"} {
		if _, err := node.Subscribe(p, func(Msg) {}); err != nil {
			t.Errorf("subscribe to %s: %v", p, err)
		}
	}
	if _, err := none.Request(within(t), "x", nil); !errors.Is(err, ErrDenied) {
		t.Errorf("request without an inbox: %v", err)
	}
}

func testInbox(t *testing.T, h harness) {
	a := h.connect(t, "a", Permission{Publish: []string{"work", "settle"}, Inbox: "_INBOX.a"})
	b := h.connect(t, "b", Permission{Publish: []string{"settle"}, Subscribe: []string{"work", "settle"}, Inbox: "_INBOX.b"})
	for _, p := range []string{"_INBOX.>", "_INBOX.a.>", "_INBOX.*.*", ">"} {
		if _, err := b.Subscribe(p, func(Msg) {}); !errors.Is(err, ErrDenied) {
			t.Errorf("b may listen to %s: %v", p, err)
		}
	}
	// A responder may answer although it may publish nothing, and only once.
	subscribe(t, b, "work", func(m Msg) {
		m.Respond([]byte("first"))
		m.Respond([]byte("second"))
	})
	for range 3 {
		if got, err := a.Request(within(t), "work", nil); err != nil || string(got) != "first" {
			t.Errorf("got %q, %v", got, err)
		}
	}
}

func testSizes(t *testing.T, h harness) {
	a, b := h.connect(t, "a", anything), h.connect(t, "b", anything)
	subscribe(t, b, "echo", func(m Msg) { m.Respond(m.Data) })
	full := bytes.Repeat([]byte{7}, MaxMessage)
	if got, err := a.Request(within(t), "echo", full); err != nil || !bytes.Equal(got, full) {
		t.Errorf("a message of MaxMessage bytes: %d bytes, %v", len(got), err)
	}
	over := make([]byte, MaxMessage+1)
	if err := a.Publish("echo", over); !errors.Is(err, ErrTooLarge) {
		t.Errorf("publish: %v", err)
	}
	if _, err := a.Request(within(t), "echo", over); !errors.Is(err, ErrTooLarge) {
		t.Errorf("request: %v", err)
	}
	tooLong := make(chan error, 1)
	subscribe(t, b, "long", func(m Msg) { tooLong <- m.Respond(over); m.Respond(nil) })
	if got, err := a.Request(within(t), "long", nil); err != nil || len(got) != 0 {
		t.Errorf("an empty reply: %q, %v", got, err)
	}
	if err := <-tooLong; !errors.Is(err, ErrTooLarge) {
		t.Errorf("respond: %v", err)
	}
	if !a.Connected() || !b.Connected() {
		t.Error("a refused size broke the connection")
	}
}

func testPatterns(t *testing.T, h harness) {
	a, b := h.connect(t, "a", anything), h.connect(t, "b", anything)
	subjects := []string{"a", "a.b", "a.b.c", "a.c", "b.b", "x.y.z", "a.b.c.d"}
	for _, pattern := range []string{"a", "a.*", "*.b", "a.>", "*", "*.*.*", "a.*.c", "x.>", "A.b", "a.b.*.d"} {
		var mu sync.Mutex
		var got, want []string
		stop := subscribe(t, b, pattern, func(m Msg) {
			mu.Lock()
			defer mu.Unlock()
			if m.Subject != "settle" {
				got = append(got, m.Subject)
			}
		})
		for _, s := range subjects {
			if Match(pattern, s) {
				want = append(want, s)
			}
			if err := a.Publish(s, nil); err != nil {
				t.Fatal(err)
			}
		}
		settle(t, a, b)
		eventually(t, func() error {
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(got, want) {
				return fmt.Errorf("%s got %q, want %q", pattern, got, want)
			}
			return nil
		})
		stop()
	}
	for _, bad := range []string{"", ".", "a.", ".a", "a..b", "a b", "a\r\nPUB b 0\r\n\r\n", "a*", "a.>.b", "ü", "a\x00"} {
		if err := a.Publish(bad, nil); !errors.Is(err, ErrSubject) {
			t.Errorf("publish to %q: %v", bad, err)
		}
		if _, err := a.Subscribe(bad, func(Msg) {}); !errors.Is(err, ErrSubject) {
			t.Errorf("subscribe to %q: %v", bad, err)
		}
	}
	for _, bad := range []string{"a.*", ">"} {
		if err := a.Publish(bad, nil); !errors.Is(err, ErrSubject) {
			t.Errorf("publish to %q: %v", bad, err)
		}
	}
}

func testClose(t *testing.T, h harness) {
	a, b := h.connect(t, "a", anything), h.connect(t, "b", anything)
	changed := make(chan bool, 4)
	a.OnChange(func(up bool) { changed <- up })
	taken := make(chan struct{})
	subscribe(t, b, "hang", func(Msg) { close(taken) })
	failed := make(chan error)
	go func() {
		_, err := a.Request(context.Background(), "hang", nil)
		failed <- err
	}()
	<-taken
	a.Close()
	if err := <-failed; !errors.Is(err, ErrClosed) {
		t.Errorf("request under way: %v", err)
	}
	if a.Connected() {
		t.Error("connected after Close")
	}
	if up := <-changed; up {
		t.Error("OnChange told that a closed connection is up")
	}
	if err := a.Publish("x", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("publish: %v", err)
	}
	if _, err := a.Request(within(t), "x", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("request: %v", err)
	}
	if _, err := a.Subscribe("x", func(Msg) {}); !errors.Is(err, ErrClosed) {
		t.Errorf("subscribe: %v", err)
	}
	a.Close()
	// From within a handler.
	c := h.connect(t, "c", anything)
	closed := make(chan struct{})
	subscribe(t, c, "suicide", func(Msg) { c.Close(); close(closed) })
	if err := b.Publish("suicide", nil); err != nil {
		t.Fatal(err)
	}
	select {
	case <-closed:
	case <-within(t).Done():
		t.Fatal("Close within a handler did not return")
	}
}

func testUnsubscribe(t *testing.T, h harness) {
	a, b := h.connect(t, "a", anything), h.connect(t, "b", anything)
	got := make(chan string, 10)
	var stop func()
	stop = subscribe(t, b, "once", func(m Msg) {
		stop()
		got <- string(m.Data)
	})
	for _, s := range []string{"1", "2", "3"} {
		if err := a.Publish("once", []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	settle(t, a, b)
	eventually(t, func() error {
		if len(got) != 1 {
			return fmt.Errorf("%d messages", len(got))
		}
		return nil
	})
	if s := <-got; s != "1" {
		t.Errorf("got %s", s)
	}
	stop()
}

func testContext(t *testing.T, h harness) {
	a, b := h.connect(t, "a", anything), h.connect(t, "b", anything)
	ctx, cancel := context.WithCancel(within(t))
	late := make(chan Msg, 1)
	subscribe(t, b, "slow", func(m Msg) { late <- m; cancel() })
	if _, err := a.Request(ctx, "slow", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := a.Request(ctx, "slow", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that had ended: %v", err)
	}
	m := <-late
	if err := m.Respond([]byte("too late")); err != nil {
		t.Errorf("a late reply: %v", err)
	}
}

func testData(t *testing.T, h harness) {
	a, b := h.connect(t, "a", anything), h.connect(t, "b", anything)
	got := make(chan []byte, 2)
	for range 2 {
		subscribe(t, b, "data", func(m Msg) {
			m.Data[0]++
			got <- m.Data
		})
	}
	data := []byte{1}
	if err := a.Publish("data", data); err != nil {
		t.Fatal(err)
	}
	data[0] = 100
	for range 2 {
		if d := <-got; d[0] != 2 {
			t.Errorf("a handler saw %d, want 1 before its own change", d[0]-1)
		}
	}
}

func testSlow(t *testing.T, h harness) {
	a, b := h.connect(t, "a", anything), h.connect(t, "b", anything)
	hold, held := make(chan struct{}), make(chan struct{})
	subscribe(t, b, "slow", func(Msg) { close(held); <-hold })
	subscribe(t, b, "quick", func(m Msg) { m.Respond(nil) })
	if err := a.Publish("slow", nil); err != nil {
		t.Fatal(err)
	}
	<-held
	if _, err := a.Request(within(t), "quick", nil); err != nil {
		t.Errorf("one slow handler holds up another: %v", err)
	}
	close(hold)
}

func testReconnect(t *testing.T, h harness) {
	a, b := h.connect(t, "a", anything), h.connect(t, "b", anything)
	changes := make(chan bool, 100)
	a.OnChange(func(up bool) {
		if a.Connected() && !up {
			t.Error("OnChange says down while Connected says up")
		}
		changes <- up
	})
	taken := make(chan struct{}, 1)
	subscribe(t, b, "echo", func(m Msg) { m.Respond(m.Data) })
	subscribe(t, b, "hang", func(Msg) { taken <- struct{}{} })
	failed := make(chan error)
	go func() {
		_, err := a.Request(context.Background(), "hang", nil)
		failed <- err
	}()
	<-taken
	h.lose()
	if err := <-failed; !errors.Is(err, ErrDisconnected) {
		t.Errorf("request under way: %v", err)
	}
	if up := <-changes; up {
		t.Error("the first change is up")
	}
	eventually(t, func() error {
		if err := a.Publish("echo", nil); !errors.Is(err, ErrDisconnected) {
			return fmt.Errorf("publish while disconnected: %w", err)
		}
		return nil
	})
	if _, err := a.Request(within(t), "echo", nil); !errors.Is(err, ErrDisconnected) {
		t.Errorf("request while disconnected: %v", err)
	}
	got := make(chan Msg, 1)
	subscribe(t, b, "meanwhile", func(m Msg) { got <- m }) // made while the connection is down
	h.mend()
	if up := <-changes; !up {
		t.Error("the second change is down")
	}
	eventually(t, func() error { // b may come back later than a
		_, err := a.Request(within(t), "echo", []byte("x"))
		return err
	})
	eventually(t, func() error {
		if err := a.Publish("meanwhile", nil); err != nil {
			return err
		}
		select {
		case <-got:
			return nil
		default:
			return errors.New("a subscription made while disconnected hears nothing")
		}
	})
}
