package trust

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/troupe-runtime/troupe/runtime/disk"
)

// Authority issues the certificates of one cluster. Only heads have one.
type Authority struct {
	id      string
	root    *x509.Certificate
	issuers map[Role]*issuer
}

type issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

const rootName = "root"

// OpenAuthority reads the authority that a folder keeps, or makes one there. Keys are
// files of mode 0600; one that others can read is refused (ErrOpenKey).
func OpenAuthority(dir string, now time.Time) (*Authority, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := createAuthority(dir, now); err != nil {
			return nil, err
		}
	}
	a := &Authority{issuers: map[Role]*issuer{}}
	root, err := readIssuer(dir, rootName)
	if err != nil {
		return nil, err
	}
	a.root = root.cert
	if len(a.root.URIs) != 1 {
		return nil, fmt.Errorf("certificate authority: %s is not the root of a cluster; put back a copy of the folder", filepath.Join(dir, rootName+".crt"))
	}
	a.id = a.root.URIs[0].Host
	for _, role := range roles {
		i, err := readIssuer(dir, string(role))
		if err != nil {
			return nil, err
		}
		if err := i.cert.CheckSignatureFrom(a.root); err != nil {
			return nil, fmt.Errorf("certificate authority: %s.crt is not of the root beside it (%w); put back a copy of the folder %s", role, err, dir)
		}
		a.issuers[role] = i
	}
	return a, nil
}

// Digest names the authority.
func (a *Authority) Digest() Digest { return DigestOf(a.root) }

// Root is the certificate that everything of the cluster leads to.
func (a *Authority) Root() *x509.Certificate { return a.root }

// Names are host names and addresses in a certificate, for programs that look at them;
// Troupe's own check the role.
type Names struct {
	DNS []string
	IPs []net.IP
}

// Issue signs a certificate for LeafLife from now: leaf, intermediate and root in DER.
func (a *Authority) Issue(role Role, name string, key crypto.PublicKey, names Names, now time.Time) ([][]byte, error) {
	i := a.issuers[role]
	if i == nil {
		return nil, fmt.Errorf("issue a certificate: %w: no role %q", ErrRole, role)
	}
	usage := x509.ExtKeyUsageServerAuth
	if role == RoleNode {
		usage = x509.ExtKeyUsageClientAuth
	}
	common := "troupe " + string(role)
	if name != "" {
		common += " " + name
	}
	t, err := template(common, now, LeafLife)
	if err != nil {
		return nil, err
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{usage}
	t.URIs = []*url.URL{leafURI(a.id, role, name)}
	t.DNSNames, t.IPAddresses = names.DNS, names.IPs
	der, err := x509.CreateCertificate(rand.Reader, t, i.cert, key, i.key)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate: %w", err)
	}
	return [][]byte{der, i.cert.Raw, a.root.Raw}, nil
}

// maxRequest bounds a certificate request; ours have about 200 bytes.
const maxRequest = 4 << 10

// IssueNode answers a certificate request. Whatever name it asks for is ignored: the
// node's id follows from its key, so that nobody can have the id of another.
func (a *Authority) IssueNode(csr []byte, now time.Time) (node string, chain [][]byte, err error) {
	if len(csr) > maxRequest {
		return "", nil, fmt.Errorf("a certificate request has %d bytes, at most %d are read", len(csr), maxRequest)
	}
	r, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return "", nil, fmt.Errorf("read a certificate request: %w", err)
	}
	if err := r.CheckSignature(); err != nil {
		return "", nil, fmt.Errorf("read a certificate request: %w", err)
	}
	key, ok := r.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return "", nil, errors.New("read a certificate request: want a P-256 key")
	}
	if node, err = NodeID(key); err != nil {
		return "", nil, err
	}
	chain, err = a.Issue(RoleNode, node, key, Names{}, now)
	return node, chain, err
}

// NodeID is the id that belongs to a key: 'n' and 64 bits of its digest.
func NodeID(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("encode a public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return "n" + hex.EncodeToString(sum[:8]), nil
}

func template(name string, now time.Time, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(life), BasicConstraintsValid: true,
	}, nil
}

// createAuthority makes root and intermediates beside the folder and moves them there
// at once: half an authority is never seen.
func createAuthority(dir string, now time.Time) error {
	var raw [8]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	id := hex.EncodeToString(raw[:])
	tmp := dir + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	root, err := newIssuer(tmp, rootName, "troupe cluster "+id, &url.URL{Scheme: scheme, Host: id}, nil, 1, now)
	if err != nil {
		return err
	}
	for _, role := range roles {
		if _, err := newIssuer(tmp, string(role), "troupe cluster "+id+" "+string(role), issuerURI(id, role), root, 0, now); err != nil {
			return err
		}
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	return nil
}

func newIssuer(dir, file, name string, uri *url.URL, by *issuer, below int, now time.Time) (*issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: make a key: %w", err)
	}
	t, err := template(name, now, caLife)
	if err != nil {
		return nil, err
	}
	t.IsCA, t.MaxPathLen, t.MaxPathLenZero = true, below, below == 0
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	t.URIs = []*url.URL{uri}
	parent, signer := t, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: sign %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: sign %s: %w", name, err)
	}
	if err := writeKey(filepath.Join(dir, file+".key"), key); err != nil {
		return nil, err
	}
	return &issuer{cert, key}, writeCerts(filepath.Join(dir, file+".crt"), [][]byte{der})
}

func readIssuer(dir, file string) (*issuer, error) {
	key, err := readKey(filepath.Join(dir, file+".key"))
	if err != nil {
		return nil, err
	}
	chain, err := readCerts(filepath.Join(dir, file+".crt"))
	if err != nil {
		return nil, err
	}
	if pub, ok := chain[0].PublicKey.(*ecdsa.PublicKey); !ok || !pub.Equal(&key.PublicKey) {
		return nil, fmt.Errorf("certificate authority: %s.key and %s.crt in %s do not belong together; put back a copy of the folder", file, file, dir)
	}
	return &issuer{chain[0], key}, nil
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode a key: %w", err)
	}
	b := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := disk.WriteFileAtomic(disk.OS(), path, b, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func writeCerts(path string, chain [][]byte) error {
	var b []byte
	for _, der := range chain {
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	if err := disk.WriteFileAtomic(disk.OS(), path, b, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// maxFile bounds what is read of a key or a chain.
const maxFile = 64 << 10

// ReadSecret reads a small file that nobody but its owner may read; the error wraps
// ErrOpenKey for one that others can.
func ReadSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if mode := fi.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%w: %s has mode %04o; run: chmod 600 %s", ErrOpenKey, path, mode, path)
	}
	if fi.Size() > maxFile {
		return nil, fmt.Errorf("read %s: it has %d bytes, and no secret of ours is longer than %d", path, fi.Size(), maxFile)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return b, nil
}

func readKey(path string) (*ecdsa.PrivateKey, error) {
	b, err := ReadSecret(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("%s holds no key: it is damaged; put back a copy of it", path)
	}
	// The error of the parser is left out: it may quote what it read.
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := k.(*ecdsa.PrivateKey)
	if err != nil || !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("%s holds no P-256 key: it is damaged; put back a copy of it", path)
	}
	return key, nil
}

func readCerts(path string) ([]*x509.Certificate, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	var chain []*x509.Certificate
	for len(b) > 0 && len(b) <= maxFile {
		block, rest := pem.Decode(b)
		if block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w; put back a copy of it", path, err)
		}
		chain, b = append(chain, c), rest
	}
	if len(chain) == 0 {
		return nil, fmt.Errorf("%s holds no certificate: it is damaged; put back a copy of it", path)
	}
	return chain, nil
}
