// Package trust is who is who between machines: the certificate authority of a cluster,
// the certificates that it gives to nodes and to the listeners of a head, the checks of
// both sides of a TLS connection, and the renewal of certificates before they end. There
// is one root for each cluster and one intermediate for each role, so that a certificate
// of one role is worth nothing at a listener for another (P10). How a machine proves that
// it may have a certificate at all lives in runtime/join.
package trust

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Role says what a certificate is for.
type Role string

// Roles, each with an intermediate of its own.
const (
	RoleNode Role = "node" // the agent of a node, as a client of the bus
	RoleBus  Role = "bus"  // a head's bus, as a server
	RoleAPI  Role = "api"  // a head's API, as a server
)

var roles = []Role{RoleNode, RoleBus, RoleAPI}

// Life of certificates.
const (
	LeafLife = 24 * time.Hour
	// backdate is how far a certificate reaches into the past, for clocks that are behind.
	backdate = 10 * time.Minute
	caLife   = 10 * 365 * 24 * time.Hour
)

// Errors that callers act on.
var (
	// ErrRole: the certificate is of this cluster and for something else.
	ErrRole = errors.New("the certificate is not for this use")
	// ErrStranger: the certificate is of no, or of another, cluster.
	ErrStranger = errors.New("the certificate is not of this cluster")
	// ErrOpenKey: a key file can be read by others than its owner.
	ErrOpenKey = errors.New("the file of a secret can be read by others")
	// ErrNone: no identity is kept in the folder.
	ErrNone = errors.New("no certificate is kept here")
)

// Digest names a root certificate: the SHA-256 of its DER bytes. Whoever knows it can
// tell the cluster from an impostor.
type Digest [sha256.Size]byte

const digestPrefix = "sha256:"

// String is "sha256:" and 64 hex digits, as contexts keep it.
func (d Digest) String() string { return digestPrefix + hex.EncodeToString(d[:]) }

// ParseDigest reads what String wrote.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	raw, err := hex.DecodeString(strings.TrimPrefix(s, digestPrefix))
	if err != nil || len(raw) != len(d) || !strings.HasPrefix(s, digestPrefix) {
		return d, fmt.Errorf("%.80q is not the digest of a certificate: want sha256: and 64 hex digits", s)
	}
	copy(d[:], raw)
	return d, nil
}

// DigestOf names a root certificate.
func DigestOf(root *x509.Certificate) Digest { return sha256.Sum256(root.Raw) }

const scheme = "troupe"

// leafURI is the one name that checks look at; host names are for other programs.
func leafURI(ca string, role Role, name string) *url.URL {
	path := "/" + string(role)
	if name != "" {
		path += "/" + name
	}
	return &url.URL{Scheme: scheme, Host: ca, Path: path}
}

func issuerURI(ca string, role Role) *url.URL {
	return &url.URL{Scheme: scheme, Host: ca, Path: "/issuer/" + string(role)}
}
