package join

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/troupe-runtime/troupe/runtime/trust"
)

// Request is what a machine asks a head for.
type Request struct {
	Address  string // host:port of the head's API
	Local    string // address to dial from; "" for whichever leads there
	Key      Key
	Identity *trust.Identity // takes the certificate
	Purpose  any             // as JSON, for the head's Admit
	Now      func() time.Time
}

// Joined is what came of it, beside the certificate in the identity.
type Joined struct {
	Node    string
	Answer  json.RawMessage // of the head's Admit
	Root    trust.Digest
	BusPort int
	Remote  netip.Addr // of the head, as it was reached
	Local   netip.Addr // of this machine on the way there: where others reach it
}

// Ask joins: see the package's comment. It gives up 15 s after the connection stands.
func Ask(ctx context.Context, r Request) (Joined, error) {
	var j Joined
	d := net.Dialer{Timeout: proveTime}
	if r.Local != "" {
		a, err := netip.ParseAddr(r.Local)
		if err != nil {
			return j, fmt.Errorf("local address %q: %w", r.Local, err)
		}
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
	}
	raw, err := d.DialContext(ctx, "tcp", r.Address)
	if err != nil {
		return j, err
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	_ = raw.SetDeadline(time.Now().Add(proveTime + grantTime)) // the kernel's deadline
	c := tls.Client(raw, &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{Protocol},
		// Nobody is known yet; the proofs below are over the root that is shown here.
		InsecureSkipVerify:     true, //nolint:gosec // see above
		SessionTicketsDisabled: true,
	})
	if err := c.HandshakeContext(ctx); err != nil {
		if _, plain := errors.AsType[tls.RecordHeaderError](err); plain {
			return j, fmt.Errorf("%w: it speaks no TLS", ErrNotHead)
		}
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
			return j, fmt.Errorf("%w: %w", ErrNotHead, err) // a TLS alert: it knows no such protocol
		}
		return j, err
	}
	cs := c.ConnectionState()
	root := trust.RootIn(cs.PeerCertificates)
	if cs.NegotiatedProtocol != Protocol || root == nil {
		return j, ErrNotHead
	}
	if _, err := trust.PeerOf(root, &cs, trust.RoleAPI, r.Now()); err != nil {
		return j, fmt.Errorf("%w: %w", ErrImpostor, err)
	}
	j.Root = trust.DigestOf(root)
	if err := r.prove(c, j.Root); err != nil {
		return j, err
	}
	grant, err := r.request(c)
	if err != nil {
		return j, err
	}
	if err := r.Identity.Take(grant.Chain, root, r.Now()); err != nil {
		return j, err
	}
	j.Node, j.Answer, j.BusPort = grant.Node, grant.Answer, grant.BusPort
	j.Local, j.Remote = addrOf(raw.LocalAddr()), addrOf(raw.RemoteAddr())
	return j, nil
}

func addrOf(a net.Addr) netip.Addr {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return t.AddrPort().Addr().Unmap()
}

func (r *Request) prove(c net.Conn, root trust.Digest) error {
	own := make([]byte, nonceSize)
	if _, err := rand.Read(own); err != nil {
		return fmt.Errorf("draw a nonce: %w", err)
	}
	if err := writeFrame(c, maxHello, helloMessage{own}); err != nil {
		return err
	}
	var hello helloMessage
	if err := readFrame(c, maxHello, &hello); err != nil {
		return err
	}
	if len(hello.Nonce) != nonceSize {
		return fmt.Errorf("%w: its nonce has %d bytes", ErrImpostor, len(hello.Nonce))
	}
	if err := writeFrame(c, maxHello, proofMessage{Proof: r.Key.proof(joiner, own, hello.Nonce, root)}); err != nil {
		return err
	}
	var p proofMessage
	if err := readFrame(c, maxHello, &p); err != nil {
		return err
	}
	switch {
	case p.Denied:
		return ErrDenied
	case !hmac.Equal(p.Proof, r.Key.proof(head, own, hello.Nonce, root)):
		return ErrImpostor
	}
	return nil
}

func (r *Request) request(c net.Conn) (*Grant, error) {
	csr, err := r.Identity.Request()
	if err != nil {
		return nil, err
	}
	m := requestMessage{CSR: csr}
	if r.Purpose != nil {
		if m.Purpose, err = json.Marshal(r.Purpose); err != nil {
			return nil, fmt.Errorf("encode the purpose: %w", err)
		}
	}
	if err := writeFrame(c, maxBody, m); err != nil {
		return nil, err
	}
	var g grantMessage
	if err := readFrame(c, maxBody, &g); err != nil {
		return nil, err
	}
	switch {
	case g.Refused != nil:
		return nil, g.Refused
	case g.Grant == nil:
		return nil, errFrame
	}
	return g.Grant, nil
}
