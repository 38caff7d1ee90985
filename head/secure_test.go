package head

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/join"
	"github.com/troupe-runtime/troupe/runtime/trust"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

const patience = time.Minute

// startSecure is a head with TLS on loopback that can be joined with the key.
func startSecure(t *testing.T) (*Head, join.Key) {
	t.Helper()
	key, err := join.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := Init(dir); err != nil {
		t.Fatal(err)
	}
	h, err := Start(Options{
		Dir: dir, APIAddress: "127.0.0.1:0", BusAddress: "127.0.0.1:0", Secure: true, JoinKey: &key, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := h.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return h, key
}

func hostOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// Beyond loopback the API speaks TLS and nothing else, to clients that know the cluster
// by its root; a token is wanted all the same (P10).
func TestAPIOverTLS(t *testing.T) {
	t.Parallel()
	h, _ := startSecure(t)
	pin, ok := h.Pin()
	if !ok || !strings.HasPrefix(h.APIURL(), "https://") {
		t.Fatalf("the API is at %s", h.APIURL())
	}
	token, err := ReadToken(h.opts.Dir, AdminTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	client := func(config *tls.Config) *http.Client {
		return &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}, Timeout: patience}
	}
	type answer struct{ status, proto int }
	ask := func(c *http.Client, address, token string) (answer, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/api/v1/status", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := c.Do(r)
		if err != nil {
			return answer{}, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return answer{resp.StatusCode, resp.ProtoMajor}, err
	}
	good := client(trust.PinnedTLS(pin, time.Now))
	if r, err := ask(good, h.APIURL(), token); err != nil || r.status != http.StatusOK || r.proto != 2 {
		t.Errorf("by its pin and with the token: %+v, %v", r, err)
	}
	if r, err := ask(good, h.APIURL(), strings.Repeat("0", 64)); err != nil || r.status != http.StatusUnauthorized {
		t.Errorf("with another token: %+v, %v", r, err)
	}
	other := pin
	other[0] ^= 1
	if r, err := ask(client(trust.PinnedTLS(other, time.Now)), h.APIURL(), token); err == nil {
		t.Errorf("by another pin: %+v", r)
	}
	if r, err := ask(client(nil), h.APIURL(), token); err == nil {
		t.Errorf("by public authorities: %+v", r)
	}
	if r, err := ask(client(nil), "http://"+hostOf(t, h.APIURL()), token); err == nil && r.status < 400 {
		t.Errorf("without TLS: %+v", r)
	}
}

// A host joins, is a node on the bus by its certificate, and renews it over the bus; for
// another node it can do nothing.
func TestNodeByCertificate(t *testing.T) {
	t.Parallel()
	h, key := startSecure(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	member := func() (*trust.Identity, join.Joined) {
		i, err := trust.OpenIdentity(filepath.Join(t.TempDir(), "identity"))
		if err != nil {
			t.Fatal(err)
		}
		j, err := join.Ask(ctx, join.Request{Address: hostOf(t, h.APIURL()), Key: key, Identity: i, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		return i, j
	}
	i, j := member()
	other, k := member()
	if pin, _ := h.Pin(); j.Root != pin || j.Node == k.Node {
		t.Fatalf("joined as %s and %s of %s", j.Node, k.Node, j.Root)
	}
	dial := func(i *trust.Identity, node string) bus.Conn {
		c, err := bus.Dial(ctx, bus.DialOptions{
			URLs: []string{"nats://" + net.JoinHostPort("127.0.0.1", portText(j.BusPort))}, User: "node/" + node, Name: node,
			InboxPrefix: wire.InboxPrefix("node-" + node), TLS: trust.ClientTLS(i.Root(), trust.RoleBus, i.Certificate, time.Now),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	c := dial(i, j.Node)
	if !c.Connected() {
		t.Fatal("the node is not let in")
	}
	if dial(other, j.Node).Connected() {
		t.Error("a node got in under the name of another")
	}
	renew := func(subject string, by *trust.Identity) (wire.RenewReply, error) {
		csr, err := by.Request()
		if err != nil {
			t.Fatal(err)
		}
		b, err := wire.Marshal(wire.RenewRequest{CSR: csr})
		if err != nil {
			t.Fatal(err)
		}
		var r wire.RenewReply
		raw, err := c.Request(ctx, subject, b)
		if err == nil {
			err = wire.Unmarshal(raw, &r)
		}
		return r, err
	}
	before := i.Due()
	r, err := renew(wire.HeadRenew+j.Node, i)
	if err != nil || r.Error != "" {
		t.Fatalf("renewal: %+v, %v", r, err)
	}
	if err := i.Take(r.Chain, i.Root(), time.Now()); err != nil || i.Due().Before(before) {
		t.Errorf("the new certificate: %v", err)
	}
	if r, err := renew(wire.HeadRenew+j.Node, other); err != nil || r.Error == "" || len(r.Chain) > 0 {
		t.Errorf("a certificate by the key of another node: %+v, %v", r, err)
	}
	if _, err := renew(wire.HeadRenew+k.Node, other); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("under the name of another node: %v", err)
	}
	if _, err := c.Subscribe("n.>", func(bus.Msg) {}); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("listening to what others are told: %v", err)
	}
}

func portText(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}

// Without a join key the port speaks HTTP alone.
func TestNobodyJoinsWithoutAKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := Init(dir); err != nil {
		t.Fatal(err)
	}
	h, err := Start(Options{Dir: dir, APIAddress: "127.0.0.1:0", BusAddress: "127.0.0.1:0", Secure: true})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	key, err := join.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	i, err := trust.OpenIdentity(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := join.Ask(t.Context(), join.Request{Address: hostOf(t, h.APIURL()), Key: key, Identity: i, Now: time.Now}); !errors.Is(err, join.ErrNotHead) {
		t.Errorf("joined a head without a key: %v", err)
	}
}
