package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Peer is who stands at the other end of a connection.
type Peer struct {
	Role    Role
	Name    string // of a node: its id
	Expires time.Time
}

// Verify checks a chain as it came from a peer, leaf first: it must lead to the root
// through the intermediate of the role that is wanted, and be valid now. The error wraps
// ErrRole or ErrStranger.
func Verify(root *x509.Certificate, chain []*x509.Certificate, want Role, now time.Time) (Peer, error) {
	if root == nil || len(chain) == 0 {
		return Peer{}, fmt.Errorf("%w: it shows none", ErrStranger)
	}
	usage := x509.ExtKeyUsageServerAuth
	if want == RoleNode {
		usage = x509.ExtKeyUsageClientAuth
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	top := x509.NewCertPool()
	top.AddCert(root)
	paths, err := chain[0].Verify(x509.VerifyOptions{
		Roots: top, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
	})
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.IncompatibleUsage {
		return Peer{}, fmt.Errorf("%w: %w", ErrRole, err)
	}
	if err != nil {
		return Peer{}, fmt.Errorf("%w: %w", ErrStranger, err)
	}
	if len(root.URIs) != 1 {
		return Peer{}, fmt.Errorf("%w: its root names no cluster", ErrStranger)
	}
	ca := root.URIs[0].Host
	for _, path := range paths {
		if len(path) != 3 || len(path[1].URIs) != 1 || path[1].URIs[0].String() != issuerURI(ca, want).String() || len(path[0].URIs) != 1 {
			continue
		}
		name, ok := strings.CutPrefix(path[0].URIs[0].String(), leafURI(ca, want, "").String())
		if !ok || name != "" && name[0] != '/' {
			continue
		}
		return Peer{Role: want, Name: strings.TrimPrefix(name, "/"), Expires: path[0].NotAfter}, nil
	}
	return Peer{}, fmt.Errorf("%w: want that of a %s", ErrRole, want)
}

// PeerOf checks the peer of a connection that stands.
func PeerOf(root *x509.Certificate, cs *tls.ConnectionState, want Role, now time.Time) (Peer, error) {
	if cs == nil {
		return Peer{}, fmt.Errorf("%w: the connection has no TLS", ErrStranger)
	}
	return Verify(root, cs.PeerCertificates, want, now)
}

// ServerTLS is the configuration of a listener that shows what identity returns. With
// clients set, only those of that role are let in, by the root's word.
func ServerTLS(root *x509.Certificate, identity func() (*tls.Certificate, error), clients Role, now func() time.Time) *tls.Config {
	c := &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Time:                   now,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return identity() },
		SessionTicketsDisabled: true, // each connection is checked anew
	}
	if clients != "" {
		pool := x509.NewCertPool()
		pool.AddCert(root)
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, pool
		c.VerifyConnection = func(cs tls.ConnectionState) error {
			_, err := PeerOf(root, &cs, clients, now())
			return err
		}
	}
	return c
}

// ClientTLS is the configuration of a client that talks to servers of one role of the
// cluster, under whatever host name they are reached. identity may be nil.
func ClientTLS(root *x509.Certificate, server Role, identity func() (*tls.Certificate, error), now func() time.Time) *tls.Config {
	c := clientTLS(func(cs *tls.ConnectionState) error {
		_, err := PeerOf(root, cs, server, now())
		return err
	}, now)
	if identity != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return identity() }
	}
	return c
}

// PinnedTLS is the configuration of a client of the API that knows the digest of the
// cluster's root and nothing else; heads show their root with each chain.
func PinnedTLS(pin Digest, now func() time.Time) *tls.Config {
	return clientTLS(func(cs *tls.ConnectionState) error {
		root := RootIn(cs.PeerCertificates)
		if root == nil || DigestOf(root) != pin {
			return fmt.Errorf("%w: its root is not %s", ErrStranger, pin)
		}
		_, err := PeerOf(root, cs, RoleAPI, now())
		return err
	}, now)
}

func clientTLS(verify func(*tls.ConnectionState) error, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		Time:       now,
		// Not the check by host name that it stands for: VerifyConnection checks the whole
		// chain, whose root is the cluster's own, and the role.
		InsecureSkipVerify:     true, //nolint:gosec // see above
		VerifyConnection:       func(cs tls.ConnectionState) error { return verify(&cs) },
		SessionTicketsDisabled: true,
	}
}

// RootIn finds the root that a chain ends with; nil if it shows none. That it is the
// right one is for the caller to check.
func RootIn(chain []*x509.Certificate) *x509.Certificate {
	if len(chain) == 0 {
		return nil
	}
	last := chain[len(chain)-1]
	if !last.IsCA || last.CheckSignatureFrom(last) != nil || len(last.URIs) != 1 {
		return nil
	}
	return last
}
