package bus

import (
	"fmt"
	"slices"
	"sync"
	"testing"
)

// closings notes who has gone.
type closings struct {
	mu   sync.Mutex
	list []Closed
}

func (c *closings) add(x Closed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, x)
}

func (c *closings) has(user string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.ContainsFunc(c.list, func(x Closed) bool { return x.User == user }) {
		return fmt.Errorf("%s is not among %v", user, c.list)
	}
	return nil
}

// A head hears of the end of a connection, whoever closes it; nobody may read or write
// where the server tells of it.
func TestClosedIsTold(t *testing.T) {
	var d directory
	var c closings
	s := startServer(t, ServerOptions{Authorize: d.authorize, Closed: c.add})
	d.put("a", anything)
	d.put("b", anything)
	a := dial(t, DialOptions{URLs: []string{s.ClientURL()}, User: "a", Password: "a", Name: "agent", InboxPrefix: anything.Inbox})
	b, err := s.InProcess("b", "b", "b")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	heard := make(chan Msg, 16)
	subscribe(t, b, "$SYS.>", func(m Msg) { heard <- m })
	if err := c.has("a"); err == nil {
		t.Error("told before the end")
	}
	a.Close()
	eventually(t, func() error { return c.has("a") })
	c.mu.Lock()
	if x := c.list[0]; x.Name != "agent" {
		t.Errorf("%+v", x)
	}
	c.mu.Unlock()
	d.refuse(true)
	s.Disconnect("b")
	eventually(t, func() error { return c.has("b") })
	if len(heard) != 0 {
		t.Errorf("a client heard %+v", <-heard)
	}
	d.refuse(false)
	if _, err := s.InProcess(monitorUser, "", "x"); err == nil {
		t.Error("the monitor's name lets anybody in")
	}
}

func TestMemClosedIsTold(t *testing.T) {
	m := NewMem(1)
	defer m.Close()
	var c closings
	stop := m.OnClosed("head", c.add)
	m.Connect("a", anything)
	m.CutAll("a")
	eventually(t, func() error { return c.has("a") })
	b := m.Connect("b", anything)
	m.Cut("b", "*")
	b.Close()
	x := m.Connect("c", anything)
	x.Close()
	eventually(t, func() error { return c.has("c") })
	if c.has("b") == nil {
		t.Error("a cut has told of an end")
	}
	stop()
}
