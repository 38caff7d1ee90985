package join

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-runtime/troupe/runtime/trust"
)

// Bounds on those who have proven nothing.
const (
	maxOpen   = 256 // exchanges at once
	maxWrong  = 10  // refused proofs of one address in a row; then
	wrongRest = time.Second
	maxKnown  = 4096 // addresses that are remembered
)

// Admitted is whom a head is about to take: a machine that has proven the key.
type Admitted struct {
	Node    string // the id that its key leads to
	Remote  net.Addr
	Purpose json.RawMessage
}

// Server is the head's side.
type Server struct {
	Key       Key
	Authority *trust.Authority
	BusPort   func() int
	// Admit decides about a machine that has the key: its answer goes along with the
	// certificate; a *Refused is sent back with its reason. Nil: all.
	Admit  func(ctx context.Context, a Admitted) (answer any, err error)
	Now    func() time.Time
	Logger *slog.Logger

	open            atomic.Int64
	granted, denied atomic.Int64

	mu    sync.Mutex
	wrong map[string]*misses
}

type misses struct {
	count int
	rest  time.Time // nothing is heard of the address before
}

// Counts are how many machines were taken, and how many could not prove the key.
func (s *Server) Counts() (granted, denied int64) { return s.granted.Load(), s.denied.Load() }

// NextProto takes connections of Protocol from an http.Server.
func (s *Server) NextProto(_ *http.Server, c *tls.Conn, _ http.Handler) { s.Serve(c) }

// Serve runs one exchange on a connection whose handshake is done, and closes it.
func (s *Server) Serve(c *tls.Conn) {
	defer c.Close()
	if s.open.Add(1) > maxOpen {
		s.open.Add(-1)
		return
	}
	defer s.open.Add(-1)
	address := hostOf(c.RemoteAddr())
	if s.resting(address) {
		return
	}
	_ = c.SetDeadline(time.Now().Add(proveTime)) // the kernel's deadline
	ok, err := s.prove(c)
	if err != nil {
		s.Logger.Debug("a host broke off before it had joined", "remote", address, "err", err)
		return
	}
	if !ok {
		n := s.denied.Add(1)
		s.missed(address)
		s.Logger.Warn("join refused: the host does not have the join key", "remote", address, "refused_so_far", n)
		_ = writeFrame(c, maxHello, proofMessage{Denied: true})
		return
	}
	s.forgive(address)
	_ = c.SetDeadline(time.Now().Add(grantTime))
	if err := s.grant(c); err != nil {
		s.Logger.Warn("a host with the join key was not taken", "remote", address, "err", err)
	}
}

func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}

func (s *Server) prove(c net.Conn) (bool, error) {
	var hello helloMessage
	if err := readFrame(c, maxHello, &hello); err != nil {
		return false, err
	}
	if len(hello.Nonce) != nonceSize {
		return false, errFrame
	}
	own := make([]byte, nonceSize)
	if _, err := rand.Read(own); err != nil {
		return false, err
	}
	if err := writeFrame(c, maxHello, helloMessage{own}); err != nil {
		return false, err
	}
	var p proofMessage
	if err := readFrame(c, maxHello, &p); err != nil {
		return false, err
	}
	root := s.Authority.Digest()
	if !hmac.Equal(p.Proof, s.Key.proof(joiner, hello.Nonce, own, root)) {
		return false, nil
	}
	// Only now: to whom has not proven the key, nothing that it made is ever sent.
	return true, writeFrame(c, maxHello, proofMessage{Proof: s.Key.proof(head, hello.Nonce, own, root)})
}

func (s *Server) grant(c net.Conn) error {
	var r requestMessage
	if err := readFrame(c, maxBody, &r); err != nil {
		return err
	}
	node, chain, err := s.Authority.IssueNode(r.CSR, s.Now())
	if err != nil {
		_ = writeFrame(c, maxBody, grantMessage{Refused: &Refused{Text: "the certificate request cannot be signed: " + err.Error()}})
		return err
	}
	g := &Grant{Chain: chain, Node: node, BusPort: s.BusPort()}
	if s.Admit != nil {
		ctx, cancel := context.WithTimeout(context.Background(), grantTime)
		defer cancel()
		answer, err := s.Admit(ctx, Admitted{Node: node, Remote: c.RemoteAddr(), Purpose: r.Purpose})
		if err != nil {
			no, ok := errors.AsType[*Refused](err)
			if !ok {
				no = &Refused{Text: "the head cannot take this host now", Again: true}
			}
			_ = writeFrame(c, maxBody, grantMessage{Refused: no})
			return err
		}
		if g.Answer, err = json.Marshal(answer); err != nil {
			return err
		}
	}
	if err := writeFrame(c, maxBody, grantMessage{Grant: g}); err != nil {
		return err
	}
	s.Logger.Info("a host has joined", "remote", hostOf(c.RemoteAddr()), "node", node, "joined_so_far", s.granted.Add(1))
	return nil
}

// resting: an address that guesses is not heard for a while. With 256 bits to guess it
// is work that is saved here, not the key.
func (s *Server) resting(address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.wrong[address]
	return m != nil && s.Now().Before(m.rest)
}

func (s *Server) missed(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wrong == nil || len(s.wrong) >= maxKnown {
		s.wrong = map[string]*misses{}
	}
	m := s.wrong[address]
	if m == nil {
		m = &misses{}
		s.wrong[address] = m
	}
	if m.count++; m.count > maxWrong {
		m.rest = s.Now().Add(wrongRest)
	}
}

func (s *Server) forgive(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.wrong, address)
}
