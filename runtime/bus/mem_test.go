package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// trace runs a fixed exchange on a bus with losses and returns what arrived when.
func trace(t *testing.T, seed uint64) (got []string) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMem(seed)
		defer m.Close()
		m.SetLoss(0.3, 0.2)
		m.SetDelay(func(from, _, _ string) time.Duration { return time.Duration(len(from)) * time.Millisecond })
		start := time.Now()
		var mu sync.Mutex
		to := m.Connect("to", anything)
		for _, id := range []string{"a", "bb"} {
			c := m.Connect(id, anything)
			if _, err := to.Subscribe("from."+id, func(msg Msg) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, fmt.Sprint(time.Since(start), " ", msg.Subject, " ", string(msg.Data)))
			}); err != nil {
				t.Fatal(err)
			}
			go func() {
				for i := range 100 {
					if err := c.Publish("from."+id, fmt.Append(nil, i)); err != nil {
						t.Error(err)
					}
					time.Sleep(10 * time.Millisecond)
				}
			}()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
	})
	return got
}

func TestMemIsDeterministic(t *testing.T) {
	first := trace(t, 7)
	if n := len(first); n < 100 || n > 220 {
		t.Fatalf("%d of 200 messages arrived with loss 0.3 and doubles 0.2", n)
	}
	for range 3 {
		if again := trace(t, 7); !slices.Equal(first, again) {
			t.Fatalf("the same seed gave\n%q\nand then\n%q", first, again)
		}
	}
	if slices.Equal(first, trace(t, 8)) {
		t.Error("another seed loses the same messages")
	}
}

func TestMemDelayKeepsTheOrderOfASender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMem(1)
		defer m.Close()
		n := 0
		m.SetDelay(func(from, _, _ string) time.Duration { // ever shorter
			if from != "a" {
				return 0
			}
			n++
			return time.Second / time.Duration(n)
		})
		a, b, c := m.Connect("a", anything), m.Connect("b", anything), m.Connect("c", anything)
		var mu sync.Mutex
		var all []string
		subscribe(t, b, "x", func(msg Msg) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, string(msg.Data))
		})
		arrived := func() []string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}
		for _, s := range []string{"1", "2", "3"} {
			if err := a.Publish("x", []byte(s)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Publish("x", []byte("c")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(999 * time.Millisecond)
		if got := arrived(); !slices.Equal(got, []string{"c"}) {
			t.Errorf("before a second: %q", got)
		}
		time.Sleep(time.Millisecond)
		if got, want := arrived(), []string{"c", "1", "2", "3"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestMemCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMem(1)
		defer m.Close()
		a, b, c := m.Connect("a", anything), m.Connect("b", anything), m.Connect("c", anything)
		subscribe(t, b, "b", func(msg Msg) { msg.Respond([]byte("ok")) })
		ask := func(from Conn) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := from.Request(ctx, "b", nil)
			return err
		}
		expect := func(what string, err, want error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		expect("whole", ask(a), nil)
		m.Cut("a", "b")
		expect("cut: silence, no proof", ask(a), context.DeadlineExceeded)
		expect("another pair", ask(c), nil)
		if !a.Connected() || !b.Connected() {
			t.Error("a cut pair noticed")
		}
		m.Heal("a", "b")
		expect("healed", ask(a), nil)
		m.CutOneWay("b", "a")
		expect("the reply is lost", ask(a), context.DeadlineExceeded)
		m.Heal("b", "a")
		m.Cut("b", "*")
		expect("b cut from everybody", ask(c), context.DeadlineExceeded)
		m.Heal("b", "*")
		expect("healed", ask(c), nil)
		m.CutAll("b")
		expect("b off the bus", ask(a), ErrNoResponder)
		expect("b itself", b.Publish("x", nil), ErrDisconnected)
		if late := m.Connect("b", anything); late.Connected() {
			t.Error("an id that is cut off connected")
		}
		m.HealAll("b")
		expect("b back", ask(a), nil)

		// What travels when the link is cut does not arrive.
		m.SetDelay(func(string, string, string) time.Duration { return time.Second })
		var heard atomic.Bool
		subscribe(t, c, "late", func(Msg) { heard.Store(true) })
		if err := a.Publish("late", nil); err != nil {
			t.Fatal(err)
		}
		m.Cut("a", "c")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if heard.Load() {
			t.Error("a message crossed a cut link")
		}
	})
}

func TestMemOnChangeMayCallBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMem(1)
		defer m.Close()
		a := m.Connect("a", anything)
		told := make(chan bool, 100)
		a.OnChange(func(up bool) {
			_ = a.Publish("x", nil)
			told <- up
		})
		for range 3 {
			m.CutAll("a")
			m.CutAll("a")
			m.HealAll("a")
		}
		synctest.Wait()
		var got []bool
		for len(told) > 0 {
			got = append(got, <-told)
		}
		if want := []bool{false, true, false, true, false, true}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// The bubble itself fails when a goroutine stays after Close.
func TestMemEndsWithItsBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMem(1)
		m.SetDelay(func(string, string, string) time.Duration { return time.Hour })
		a := m.Connect("a", anything)
		subscribe(t, a, ">", func(Msg) {})
		go func() {
			if _, err := a.Request(context.Background(), "x", nil); !errors.Is(err, ErrClosed) {
				t.Errorf("request under way: %v", err)
			}
		}()
		synctest.Wait()
		m.Close()
		if c := m.Connect("b", anything); c.Connected() || !errors.Is(c.Publish("x", nil), ErrClosed) {
			t.Error("a closed bus took a connection")
		}
	})
}

func FuzzSubject(f *testing.F) {
	for _, s := range []string{"a.b", "a.*.>", "", "..", "a\r\n", "_INBOX.x.y"} {
		f.Add(s, "a.b")
	}
	f.Fuzz(func(t *testing.T, p, s string) {
		if CheckPattern(p) != nil || CheckSubject(s) != nil {
			return
		}
		if !Match(p, p) || !Match(">", p) || !Match(s, s) {
			t.Errorf("%q or %q does not cover itself", p, s)
		}
		if Match(p, s) && CheckSubject(p) == nil && p != s {
			t.Errorf("%q covers %q", p, s)
		}
	})
}
