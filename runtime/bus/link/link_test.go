package link_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/bus/link"
)

func start(t *testing.T) *bus.Server {
	t.Helper()
	s, err := bus.StartServer(bus.ServerOptions{Name: "test", Authorize: func(user, password string) (bus.Permission, bool) {
		switch user {
		case "head":
			return bus.Permission{Subscribe: []string{"head.>"}, Inbox: "_INBOX.head"}, true
		case "shim/n1":
			return bus.Permission{Publish: []string{"head.shim.n1"}, Inbox: "_INBOX.shim-n1"}, password == "s3cret"
		}
		return bus.Permission{}, false
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

// until asks again until the answer is as wanted, and fails with the last one.
func until(t *testing.T, c link.Conn, subject string, ok func([]byte, error) bool) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		data, err := c.Request(ctx, subject, []byte("x"))
		cancel()
		if ok(data, err) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%q %v", data, err)
		}
	}
}

// A link asks and is answered; a wrong password gets nothing and stands in no error.
func TestLink(t *testing.T) {
	s := start(t)
	h, err := s.InProcess("head", "", "head")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if _, err := h.Subscribe("head.>", func(m bus.Msg) { _ = m.Respond(append([]byte("re:"), m.Data...)) }); err != nil {
		t.Fatal(err)
	}
	a := link.Access{URLs: []string{s.ClientURL()}, User: "shim/n1", Password: "s3cret", InboxPrefix: "_INBOX.shim-n1"}
	c, err := link.Dial(a, "shim")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	until(t, c, "head.shim.n1", func(b []byte, err error) bool { return err == nil && string(b) == "re:x" })
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if b, err := c.Request(ctx, "head.shim.n2", nil); err == nil {
		t.Errorf("it spoke for another node: %q", b)
	}
	a.Password = "wr0ng"
	bad, err := link.Dial(a, "shim")
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	ctx, cancel = context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := bad.Request(ctx, "head.shim.n1", nil); err == nil || strings.Contains(err.Error(), "wr0ng") {
		t.Errorf("%v", err)
	}
	for _, a := range []link.Access{{}, {URLs: []string{s.ClientURL()}}, {InboxPrefix: "_INBOX.x"}} {
		if _, err := link.Dial(a, "shim"); !errors.Is(err, link.ErrNoAccess) {
			t.Errorf("%+v: %v", a, err)
		}
	}
	if _, err := link.Dial(link.Access{URLs: []string{"nats://u:s3cret@[bad"}, InboxPrefix: "_INBOX.x"}, "shim"); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v", err)
	}
}
