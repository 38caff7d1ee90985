package actor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// world is a bus with hosts of one actor and what the head would say of it.
type world struct {
	t   *testing.T
	mem *bus.Mem
	mu  sync.Mutex
	is  Where
	end context.CancelFunc
}

func newWorld(t *testing.T) *world { return &world{t: t, mem: bus.NewMem(1)} }

func (w *world) host(generation uint64, pending int64) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	conn := w.mem.Connect(fmt.Sprintf("host-%d", generation), bus.Permission{
		Publish: []string{">"}, Subscribe: []string{wire.ActorCall("a", generation)}, Inbox: wire.InboxPrefix(fmt.Sprintf("host-%d", generation)),
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer conn.Close()
		err := Host(ctx, HostOptions{ID: "a", Generation: generation, Class: "counter", MaxPending: pending, Bus: conn})
		if err != nil {
			w.t.Errorf("host: %v", err)
		}
	}()
	w.end = func() { cancel(); <-done }
	w.set(Where{Generation: generation, Alive: true})
	synctest.Wait()
}

func (w *world) set(is Where) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.is = is
}

func (w *world) caller(name string) (*Caller, func()) {
	conn := w.mem.Connect(name, bus.Permission{Publish: []string{wire.AnyActorCall}, Inbox: wire.InboxPrefix(name)})
	c := &Caller{ID: "a", Name: name, Bus: conn, Locate: func(ctx context.Context, _ string, changed bool) (Where, error) {
		if changed {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return Where{}, ctx.Err()
			}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.is, nil
	}}
	return c, conn.Close
}

var registerOnce sync.Once

func counter() {
	registerOnce.Do(func() {
		_ = Register("counter", func(context.Context, []byte) (Instance, error) {
			n := 0
			return Instance{
				"add":   Func(func(_ context.Context, d int) (int, error) { n += d; return n, nil }),
				"fail":  Func(func(context.Context, int) (int, error) { return 0, errors.New("no such page") }),
				"panic": Func(func(context.Context, int) (int, error) { panic("oh") }),
				"slow":  Func(func(_ context.Context, d time.Duration) (int, error) { time.Sleep(d); return n, nil }),
			}, nil
		})
	})
}

func call1[R any](ctx context.Context, c *Caller, method string, arg any) (r R, err error) {
	args, err := wire.Marshal(arg)
	if err != nil {
		return r, err
	}
	raw, err := c.Call(ctx, method, args)
	if err != nil {
		return r, err
	}
	return r, wire.Unmarshal(raw, &r)
}

func TestCallsRunInOrder(t *testing.T) {
	counter()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.host(1, 0)
		c, closeConn := w.caller("c1")
		for i := 1; i <= 20; i++ {
			if got, err := call1[int](t.Context(), c, "add", 1); err != nil || got != i {
				t.Fatalf("call %d: %d, %v", i, got, err)
			}
		}
		closeConn()
		w.end()
	})
}

func TestMethodErrorsAndPanicsStayCalls(t *testing.T) {
	counter()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.host(1, 0)
		c, closeConn := w.caller("c1")
		var m *MethodError
		if _, err := call1[int](t.Context(), c, "fail", 0); !errors.As(err, &m) || m.Text != "no such page" {
			t.Errorf("fail: %v", err)
		}
		if _, err := call1[int](t.Context(), c, "panic", 0); !errors.As(err, &m) || !strings.Contains(m.Text, "oh") {
			t.Errorf("panic: %v", err)
		}
		if _, err := call1[int](t.Context(), c, "nothing", 0); !errors.Is(err, ErrNoMethod) {
			t.Errorf("no method: %v", err)
		}
		if _, err := c.Call(t.Context(), "add", make([]byte, MaxPayload+1)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("too large: %v", err)
		}
		if got, err := call1[int](t.Context(), c, "add", 5); err != nil || got != 5 {
			t.Errorf("the instance did not survive: %d, %v", got, err)
		}
		closeConn()
		w.end()
	})
}

// TestRestartFences: a caller that knows the old generation is refused by the new
// instance, looks again and reaches it (P3).
func TestRestartFences(t *testing.T) {
	counter()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.host(1, 0)
		c, closeConn := w.caller("c1")
		if got, err := call1[int](t.Context(), c, "add", 3); err != nil || got != 3 {
			t.Fatalf("%d, %v", got, err)
		}
		w.end()
		w.set(Where{})
		done := make(chan error, 1)
		go func() {
			got, err := call1[int](t.Context(), c, "add", 4)
			if err == nil && got != 4 {
				err = fmt.Errorf("the new instance answered %d", got)
			}
			done <- err
		}()
		synctest.Wait()
		w.host(2, 0)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		// A message of the old generation reaches the new instance: refused, not run.
		stale, _ := wire.Marshal(call{Generation: 1, Method: "add", Args: []byte{100}})
		raw, err := c.Bus.Request(t.Context(), wire.ActorCall("a", 2), stale)
		var r reply
		if err != nil || wire.Unmarshal(raw, &r) != nil || r.Code != codeStale {
			t.Fatalf("a stale call was answered %+v, %v", r, err)
		}
		if got, err := call1[int](t.Context(), c, "add", 0); err != nil || got != 4 {
			t.Fatalf("the stale call was executed: %d, %v", got, err)
		}
		closeConn()
		w.end()
	})
}

// TestStaleReplyIsRefused: an answer under another generation is no answer (P3).
func TestStaleReplyIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		liar := w.mem.Connect("liar", bus.Permission{Publish: []string{">"}, Subscribe: []string{wire.ActorCall("a", 7)}, Inbox: "_INBOX.liar"})
		un, err := liar.Subscribe(wire.ActorCall("a", 7), func(m bus.Msg) {
			data, _ := wire.Marshal(reply{Generation: 6, Result: []byte{1}})
			_ = m.Respond(data)
		})
		if err != nil {
			t.Fatal(err)
		}
		w.set(Where{Generation: 7, Alive: true})
		c, closeConn := w.caller("c1")
		if _, err := call1[int](t.Context(), c, "add", 1); !errors.Is(err, ErrStale) {
			t.Fatalf("got %v", err)
		}
		un()
		closeConn()
		liar.Close()
	})
}

func TestDeadAndUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c, closeConn := w.caller("c1")
		w.set(Where{Dead: true})
		if _, err := call1[int](t.Context(), c, "add", 1); !errors.Is(err, ErrDied) {
			t.Errorf("dead: %v", err)
		}
		w.set(Where{Generation: 3})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := call1[int](ctx, c, "add", 1); !errors.Is(err, ErrUnavailable) {
			t.Errorf("restarting: %v", err)
		}
		closeConn()
	})
}

func TestMailboxIsBounded(t *testing.T) {
	counter()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.host(1, 2)
		c, closeConn := w.caller("c1")
		var wg sync.WaitGroup
		busy := make(chan error, 10)
		for range 10 {
			wg.Go(func() {
				_, err := call1[int](t.Context(), c, "slow", time.Second)
				busy <- err
			})
		}
		wg.Wait()
		close(busy)
		full := 0
		for err := range busy {
			if errors.Is(err, ErrBusy) {
				full++
			} else if err != nil {
				t.Errorf("%v", err)
			}
		}
		if full != 7 { // one runs, two wait
			t.Errorf("%d calls were refused", full)
		}
		closeConn()
		w.end()
	})
}

// A call that an instance took with it is given up when the next instance is known,
// not when the caller's own time is over.
func TestCallOfADeadInstanceEnds(t *testing.T) {
	counter()
	for _, dead := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.host(1, 0)
			c, closeConn := w.caller("c1")
			ended := make(chan error, 1)
			begin := time.Now()
			go func() {
				_, err := call1[int](t.Context(), c, "slow", 10*time.Minute)
				ended <- err
			}()
			synctest.Wait()
			w.set(Where{Generation: 1}) // it died with the call, and the next has not come
			time.Sleep(time.Minute)
			select {
			case err := <-ended:
				t.Fatalf("given up without a word of the head: %v", err)
			default:
			}
			w.set(Where{Generation: 2, Alive: !dead, Dead: dead})
			if err := <-ended; !errors.Is(err, ErrUnavailable) || !errors.Is(err, errMoved) {
				t.Errorf("dead=%t: %v", dead, err)
			}
			if took := time.Since(begin); took > time.Minute+2*slowestLook {
				t.Errorf("dead=%t: known only after %s", dead, took)
			}
			w.end()
			closeConn()
		})
	}
}
