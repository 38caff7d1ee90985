package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func authority(t *testing.T) *Authority {
	t.Helper()
	a, err := OpenAuthority(filepath.Join(t.TempDir(), "ca"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// member is a node of the authority's cluster.
func member(t *testing.T, a *Authority, now time.Time) *Identity {
	t.Helper()
	i, err := OpenIdentity(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	csr, err := i.Request()
	if err != nil {
		t.Fatal(err)
	}
	_, chain, err := a.IssueNode(csr, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Take(chain, a.Root(), now); err != nil {
		t.Fatal(err)
	}
	return i
}

func listener(t *testing.T, a *Authority, role Role, now func() time.Time) *Listener {
	t.Helper()
	l, err := NewListener(a, role, Names{DNS: []string{"head"}}, now)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// handshake connects a client to a server and returns what each side says.
func handshake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	left, right := net.Pipe()
	s, c := tls.Server(left, server), tls.Client(right, client)
	done := make(chan error, 1)
	go func() {
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte{1}) // a client hears of its refusal when it reads
		}
		s.Close()
		done <- err
	}()
	clientErr = c.Handshake()
	if clientErr == nil {
		_, clientErr = c.Read(make([]byte, 1))
	}
	c.Close()
	return <-done, clientErr
}

// Each listener takes the certificates of one role of its own cluster, while they are
// valid, and nothing else.
func TestListenersTakeTheirRole(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { return now }
	a, other := authority(t), authority(t)
	later := func() time.Time { return now.Add(LeafLife + time.Second) }
	earlier := func() time.Time { return now.Add(-backdate - time.Second) }
	node, stranger := member(t, a, now), member(t, other, now)
	bus, api := listener(t, a, RoleBus, clock), listener(t, a, RoleAPI, clock)
	foreign := listener(t, other, RoleBus, clock)
	for _, tc := range []struct {
		name           string
		server, client *tls.Config
		refused        bool
	}{
		{"a node at the bus", ServerTLS(a.Root(), bus.Certificate, RoleNode, clock), ClientTLS(a.Root(), RoleBus, node.Certificate, clock), false},
		{"no certificate at the bus", ServerTLS(a.Root(), bus.Certificate, RoleNode, clock), ClientTLS(a.Root(), RoleBus, nil, clock), true},
		{"a node of another cluster", ServerTLS(a.Root(), bus.Certificate, RoleNode, clock), ClientTLS(a.Root(), RoleBus, stranger.Certificate, clock), true},
		{"the bus of another cluster", ServerTLS(other.Root(), foreign.Certificate, RoleNode, clock), ClientTLS(a.Root(), RoleBus, node.Certificate, clock), true},
		{"the API in the bus's place", ServerTLS(a.Root(), api.Certificate, RoleNode, clock), ClientTLS(a.Root(), RoleBus, node.Certificate, clock), true},
		{"a node in the bus's place", ServerTLS(a.Root(), node.Certificate, "", clock), ClientTLS(a.Root(), RoleBus, node.Certificate, clock), true},
		{"a head's certificate as a node", ServerTLS(a.Root(), bus.Certificate, RoleNode, clock), ClientTLS(a.Root(), RoleBus, api.Certificate, clock), true},
		{"an expired node", ServerTLS(a.Root(), bus.Certificate, RoleNode, later), ClientTLS(a.Root(), RoleBus, node.Certificate, clock), true},
		{"a node that is not valid yet", ServerTLS(a.Root(), bus.Certificate, RoleNode, earlier), ClientTLS(a.Root(), RoleBus, node.Certificate, clock), true},
		{"an expired bus", ServerTLS(a.Root(), bus.Certificate, RoleNode, clock), ClientTLS(a.Root(), RoleBus, node.Certificate, later), true},
		{"the API by its pin", ServerTLS(a.Root(), api.Certificate, "", clock), PinnedTLS(a.Digest(), clock), false},
		{"the API by another pin", ServerTLS(a.Root(), api.Certificate, "", clock), PinnedTLS(other.Digest(), clock), true},
		{"the bus by the API's pin", ServerTLS(a.Root(), bus.Certificate, "", clock), PinnedTLS(a.Digest(), clock), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, c := handshake(t, tc.server, tc.client)
			if refused := s != nil || c != nil; refused != tc.refused {
				t.Errorf("refused %v; server: %v; client: %v", refused, s, c)
			}
		})
	}
}

// What the root is pinned by is the root that signs, not one that is shown beside.
func TestShownRootMustSign(t *testing.T) {
	now := time.Now()
	a, other := authority(t), authority(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := other.Issue(RoleAPI, "", &key.PublicKey, Names{}, now)
	if err != nil {
		t.Fatal(err)
	}
	chain[2] = a.Root().Raw
	clock := func() time.Time { return now }
	show := func() (*tls.Certificate, error) { return &tls.Certificate{Certificate: chain, PrivateKey: key}, nil }
	if _, c := handshake(t, ServerTLS(a.Root(), show, "", clock), PinnedTLS(a.Digest(), clock)); !errors.Is(c, ErrStranger) {
		t.Errorf("an impostor with our root in its chain: %v", c)
	}
}

// A request cannot ask for anything: the name follows from the key.
func TestRequestsGetTheNameOfTheirKey(t *testing.T) {
	a := authority(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse("troupe://" + a.id + "/bus")
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "head"}, DNSNames: []string{"*"}, URIs: []*url.URL{u},
		ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}}, // CA: true
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	node, chain, err := a.IssueNode(csr, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(chain[0])
	if err != nil {
		t.Fatal(err)
	}
	if c.IsCA || len(c.DNSNames) != 0 || len(c.URIs) != 1 || c.URIs[0].Path != "/node/"+node || len(c.ExtKeyUsage) != 1 || c.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("granted %v, CA %v, usages %v, names %v", c.URIs, c.IsCA, c.ExtKeyUsage, c.DNSNames)
	}
	if want, err := NodeID(&key.PublicKey); err != nil || node != want {
		t.Errorf("node %s, want %s; %v", node, want, err)
	}
}

func TestBadRequests(t *testing.T) {
	a := authority(t)
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaRequest, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, weak)
	if err != nil {
		t.Fatal(err)
	}
	i, err := OpenIdentity(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	good, err := i.Request()
	if err != nil {
		t.Fatal(err)
	}
	torn := append([]byte(nil), good...)
	torn[len(torn)-1] ^= 1
	for name, csr := range map[string][]byte{
		"empty": nil, "an RSA key": rsaRequest, "a broken signature": torn, "half": good[:len(good)/2], "oversize": make([]byte, maxRequest+1),
	} {
		if _, _, err := a.IssueNode(csr, time.Now()); err == nil {
			t.Errorf("%s was signed", name)
		}
	}
}

// Keys are 0600 and are not used when others could have read them; what is there stays.
func TestKeyFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	a, err := OpenAuthority(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	keys, err := filepath.Glob(filepath.Join(dir, "*.key"))
	if err != nil || len(keys) != 4 {
		t.Fatalf("keys %v, %v", keys, err)
	}
	for _, k := range keys {
		if fi, err := os.Stat(k); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", k, fi.Mode(), err)
		}
	}
	again, err := OpenAuthority(dir, time.Now())
	if err != nil || again.Digest() != a.Digest() {
		t.Fatalf("opened again: %v", err)
	}
	if err := os.Chmod(keys[0], 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(dir, time.Now()); !errors.Is(err, ErrOpenKey) || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that a group can read: %v", err)
	}
	if err := os.WriteFile(keys[0], []byte("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(keys[0], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(dir, time.Now()); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a damaged key: %v", err)
	}
}

// A certificate of another cluster, or for another key, is not taken.
func TestTakeOnlyOwn(t *testing.T) {
	now := time.Now()
	a, other := authority(t), authority(t)
	i := member(t, a, now)
	before := i.certs()[0]
	csr, err := i.Request()
	if err != nil {
		t.Fatal(err)
	}
	_, foreign, err := other.IssueNode(csr, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Take(foreign, i.Root(), now); !errors.Is(err, ErrStranger) {
		t.Errorf("of another cluster: %v", err)
	}
	if err := i.Take([][]byte{member(t, a, now).certs()[0].Raw, foreign[1], foreign[2]}, i.Root(), now); err == nil {
		t.Error("one for another key was taken")
	}
	if !i.certs()[0].Equal(before) {
		t.Error("the good certificate is gone")
	}
	again, err := OpenIdentity(i.dir)
	if err != nil || !again.Valid(now) {
		t.Errorf("opened again: %v", err)
	}
}

func TestDigests(t *testing.T) {
	d := authority(t).Digest()
	if got, err := ParseDigest(d.String()); err != nil || got != d {
		t.Errorf("%v, %v", got, err)
	}
	for _, s := range []string{"", "sha256:", d.String()[:70], d.String()[7:], "sha256:" + strings.Repeat("g", 64)} {
		if _, err := ParseDigest(s); err == nil {
			t.Errorf("%q was read", s)
		}
	}
}

// The intermediate of one role signs nothing for another, even in wrong hands.
func TestIntermediatesKeepToTheirRole(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { return now }
	a := authority(t)
	a.issuers[RoleAPI] = a.issuers[RoleNode]
	forged := listener(t, a, RoleAPI, clock)
	if _, c := handshake(t, ServerTLS(a.Root(), forged.Certificate, "", clock), PinnedTLS(a.Digest(), clock)); !errors.Is(c, ErrRole) {
		t.Errorf("an API certificate by the intermediate of nodes: %v", c)
	}
}
