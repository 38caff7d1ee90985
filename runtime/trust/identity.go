package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Listener is the identity of a head's listener: a key of this process and certificates
// that the authority renews at two thirds of their life.
type Listener struct {
	a     *Authority
	role  Role
	names Names
	now   func() time.Time

	mu   sync.Mutex
	key  *ecdsa.PrivateKey
	cert *tls.Certificate
	due  time.Time
}

// NewListener makes the identity of a listener of the role.
func NewListener(a *Authority, role Role, names Names, now func() time.Time) (*Listener, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	l := &Listener{a: a, role: role, names: names, now: now, key: key}
	_, err = l.Certificate()
	return l, err
}

// Certificate is the present one.
func (l *Listener) Certificate() (*tls.Certificate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if l.cert != nil && now.Before(l.due) {
		return l.cert, nil
	}
	chain, err := l.a.Issue(l.role, "", &l.key.PublicKey, l.names, now)
	if err != nil {
		return nil, err
	}
	l.cert, l.due = &tls.Certificate{Certificate: chain, PrivateKey: l.key}, now.Add(LeafLife*2/3)
	return l.cert, nil
}

// Files of a node's identity.
const (
	nodeKeyFile  = "node.key"
	nodeCertFile = "node.crt"
)

// Identity is a node's key and certificate, as a folder keeps them. It is safe for
// concurrent use.
type Identity struct {
	dir string
	key *ecdsa.PrivateKey

	mu    sync.Mutex
	chain []*x509.Certificate // leaf, intermediate, root; empty before the first grant
}

// OpenIdentity reads the identity in a folder, or makes a key there. The certificate, if
// there is one, may be over; see Valid.
func OpenIdentity(dir string) (*Identity, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the certificate: %w", err)
	}
	i := &Identity{dir: dir}
	path := filepath.Join(dir, nodeKeyFile)
	var err error
	if i.key, err = readKey(path); errors.Is(err, fs.ErrNotExist) {
		if i.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err == nil {
			err = writeKey(path, i.key)
		}
	}
	if err != nil {
		return nil, err
	}
	chain, err := readCerts(filepath.Join(dir, nodeCertFile))
	if errors.Is(err, fs.ErrNotExist) {
		return i, nil
	}
	if err == nil {
		err = i.fits(chain)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; or remove it to join anew", err)
	}
	i.chain = chain
	return i, nil
}

// Node is the id that follows from the key.
func (i *Identity) Node() (string, error) { return NodeID(&i.key.PublicKey) }

// Request is a certificate request by this key; it asks for no name.
func (i *Identity) Request() ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, i.key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return der, nil
}

func (i *Identity) fits(chain []*x509.Certificate) error {
	if len(chain) != 3 {
		return fmt.Errorf("the certificate comes with a chain of %d; want leaf, intermediate and root", len(chain))
	}
	if pub, ok := chain[0].PublicKey.(*ecdsa.PublicKey); !ok || !pub.Equal(&i.key.PublicKey) {
		return errors.New("the certificate is not for the key beside it")
	}
	return nil
}

// Take keeps a certificate that was granted: leaf, intermediate and root in DER. It must
// be one of the cluster that root belongs to, for this key.
func (i *Identity) Take(chain [][]byte, root *x509.Certificate, now time.Time) error {
	certs := make([]*x509.Certificate, 0, len(chain))
	for _, der := range chain {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("read the granted certificate: %w", err)
		}
		certs = append(certs, c)
	}
	if err := i.fits(certs); err != nil {
		return err
	}
	p, err := Verify(root, certs, RoleNode, now)
	if err != nil {
		return err
	}
	if id, err := i.Node(); err != nil || p.Name != id {
		return fmt.Errorf("%w: it is for node %.63q, not for %s", ErrRole, p.Name, id)
	}
	if err := writeCerts(filepath.Join(i.dir, nodeCertFile), chain); err != nil {
		return err
	}
	i.mu.Lock()
	i.chain = certs
	i.mu.Unlock()
	return nil
}

func (i *Identity) certs() []*x509.Certificate {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.chain
}

// Root is the root of the cluster that granted the certificate; nil before.
func (i *Identity) Root() *x509.Certificate {
	if c := i.certs(); len(c) > 0 {
		return c[len(c)-1]
	}
	return nil
}

// Valid reports whether there is a certificate that holds now.
func (i *Identity) Valid(now time.Time) bool {
	c := i.certs()
	return len(c) > 0 && !now.Before(c[0].NotBefore) && now.Before(c[0].NotAfter)
}

// Due is when the certificate is to be renewed: at two thirds of its life.
func (i *Identity) Due() time.Time {
	c := i.certs()
	if len(c) == 0 {
		return time.Time{}
	}
	begin := c[0].NotBefore.Add(backdate)
	return begin.Add(c[0].NotAfter.Sub(begin) * 2 / 3)
}

// Certificate is what the node shows; ErrNone before the first grant.
func (i *Identity) Certificate() (*tls.Certificate, error) {
	c := i.certs()
	if len(c) == 0 {
		return nil, ErrNone
	}
	out := &tls.Certificate{PrivateKey: i.key}
	for _, x := range c {
		out.Certificate = append(out.Certificate, x.Raw)
	}
	return out, nil
}
