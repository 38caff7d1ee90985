package bus

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/trust"
)

// Over TLS the identity is that of the certificate: nobody gets in without one, and with
// one nobody speaks for another (P10).
func TestMutualTLS(t *testing.T) {
	a, err := trust.OpenAuthority(filepath.Join(t.TempDir(), "ca"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	own, err := trust.NewListener(a, trust.RoleBus, trust.Names{}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	s, err := StartServer(ServerOptions{
		TLS:       trust.ServerTLS(a.Root(), own.Certificate, trust.RoleNode, time.Now),
		Authorize: func(user, password string) (Permission, bool) { return anything, user == "head" && password == "own" },
		AuthorizePeer: func(user, _ string, cs *tls.ConnectionState) (Permission, bool) {
			p, err := trust.PeerOf(a.Root(), cs, trust.RoleNode, time.Now())
			return Permission{Publish: []string{"x." + p.Name}}, err == nil && user == "node/"+p.Name
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	head, err := s.InProcess("head", "own", "head")
	if err != nil {
		t.Fatal(err)
	}
	defer head.Close()
	heard := make(chan string, 4)
	if _, err := head.Subscribe("x.*", func(m Msg) { heard <- m.Subject }); err != nil {
		t.Fatal(err)
	}

	node, err := trust.OpenIdentity(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	csr, err := node.Request()
	if err != nil {
		t.Fatal(err)
	}
	id, chain, err := a.IssueNode(csr, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Take(chain, a.Root(), time.Now()); err != nil {
		t.Fatal(err)
	}
	dial := func(user string, config *tls.Config) Conn {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c, err := Dial(ctx, DialOptions{URLs: []string{s.ClientURL()}, User: user, TLS: config, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	with := trust.ClientTLS(a.Root(), trust.RoleBus, node.Certificate, time.Now)
	c := dial("node/"+id, with)
	if !c.Connected() {
		t.Fatal("the node was not let in")
	}
	if err := c.Publish("x."+id, nil); err != nil {
		t.Fatal(err)
	}
	select {
	case subject := <-heard:
		if subject != "x."+id {
			t.Errorf("heard %s", subject)
		}
	case <-time.After(time.Minute):
		t.Fatal("the node was not heard")
	}
	for name, c := range map[string]Conn{
		"another's name":           dial("node/n0", with),
		"the head's name":          dial("head", with),
		"no certificate":           dial("node/"+id, trust.ClientTLS(a.Root(), trust.RoleBus, nil, time.Now)),
		"no TLS":                   dial("node/"+id, nil),
		"a head's own certificate": dial("node/"+id, trust.ClientTLS(a.Root(), trust.RoleBus, own.Certificate, time.Now)),
	} {
		if c.Connected() {
			t.Errorf("with %s it got in", name)
		}
	}
	// Who speaks no TLS hears not even who is there.
	u, err := url.Parse(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if _, err := raw.Write([]byte("CONNECT {\"user\":\"head\",\"pass\":\"own\"}\r\nPING\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := raw.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(raw); len(b) > 0 && b[0] != 21 { // 21: a TLS alert
		t.Errorf("a stranger heard %q", b)
	}
}

func TestTLSWantsCertificates(t *testing.T) {
	_, err := StartServer(ServerOptions{
		TLS: &tls.Config{MinVersion: tls.VersionTLS13}, Authorize: func(string, string) (Permission, bool) { return anything, true },
		AuthorizePeer: func(string, string, *tls.ConnectionState) (Permission, bool) { return anything, true },
	})
	if err == nil {
		t.Error("a server started that asks nobody for a certificate")
	}
}
