package warm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/worker/frame"
)

const (
	maxFrame    = 4 << 20
	fdsAMessage = 64 // as the forkserver receives them
	forkLimit   = 60 * time.Second
)

// SocketEnv tells a forkserver where its shim listens, ProbeEnv asks an interpreter what it
// is instead.
const (
	SocketEnv = "TROUPE_WARM"
	ProbeEnv  = "TROUPE_WARM_PROBE"
)

// Order is the first thing that a forkserver is told.
type Order struct {
	Op      string   `json:"op"` // prepare
	Preload []string `json:"preload"`
	Learned []string `json:"learned"`
	Dropped []string `json:"dropped"`
	Script  string   `json:"script"`
	Safe    bool     `json:"safe"`
	Own     []string `json:"own"`
}

// Missing is a module that could not be imported, and is left out.
type Missing struct {
	Module string `json:"module"`
	Reason string `json:"reason"`
}

// message is what a forkserver says.
type message struct {
	State   string    `json:"state"` // importing, ready, tainted, failed, forked, refused
	Module  string    `json:"module,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Reads   []string  `json:"reads,omitempty"`
	Modules int64     `json:"modules,omitempty"`
	RSS     int64     `json:"rss,omitempty"`
	Missing []Missing `json:"missing,omitempty"`
}

// Ready is what a forkserver says of itself when it can fork.
type Ready struct {
	Reads   []string  `json:"reads"` // variables that were read during its imports
	Modules int64     `json:"modules"`
	RSS     int64     `json:"rss"` // bytes
	Missing []Missing `json:"missing,omitempty"`
}

// Tainted is the end of a forkserver that imported a module which ranks cannot share. It
// cannot be taken back: another forkserver must be started without that module.
type Tainted struct{ Module, Reason string }

// Error names the module.
func (t *Tainted) Error() string {
	return fmt.Sprintf("%s cannot be preloaded: %s", t.Module, t.Reason)
}

// ErrRefused is wrapped when a forkserver that works declines to fork, because a rank would
// not be what a fresh start gives.
var ErrRefused = errors.New("the forkserver declines")

// Server is the connection to a forkserver.
type Server struct {
	mu sync.Mutex
	c  *net.UnixConn
}

// NewServer speaks over c, which it owns from now on.
func NewServer(c *net.UnixConn) *Server { return &Server{c: c} }

// Prepare tells the forkserver what to import and waits until it has, without a limit: close
// the connection to give up. The error is a *Tainted, or says why this forkserver is of no
// use; importing is the module during which it died, if it did.
func (s *Server) Prepare(o *Order) (r Ready, importing string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.Op = "prepare"
	for _, list := range []*[]string{&o.Preload, &o.Learned, &o.Dropped, &o.Own} {
		if *list == nil {
			*list = []string{} // a list, also in JSON
		}
	}
	if err := frame.Write(s.c, maxFrame, o); err != nil {
		return r, "", fmt.Errorf("tell the forkserver what to import: %w", err)
	}
	for {
		var m message
		if err := frame.Read(s.c, maxFrame, &m); err != nil {
			return r, importing, fmt.Errorf("the forkserver hung up: %w", err)
		}
		switch m.State {
		case "importing":
			importing = m.Module
		case "ready":
			return Ready{Reads: m.Reads, Modules: m.Modules, RSS: m.RSS, Missing: m.Missing}, "", nil
		case "tainted":
			return r, "", &Tainted{m.Module, m.Reason}
		case "failed":
			return r, "", &Tainted{m.Module, m.Reason}
		default:
			return r, importing, fmt.Errorf("the forkserver says %q out of turn", m.State)
		}
	}
}

// Fork asks for one rank for each socket, over which each then speaks the protocol of a
// start. The error wraps ErrRefused when the forkserver lives on.
func (s *Server) Fork(fds []int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.c.SetDeadline(time.Now().Add(forkLimit))
	defer func() { _ = s.c.SetDeadline(time.Time{}) }()
	msg, err := frame.Encode(maxFrame, struct {
		Op    string `json:"op"`
		Ranks int    `json:"ranks"`
	}{"fork", len(fds)})
	if err != nil {
		return err
	}
	for len(fds) > 0 {
		n := min(len(fds), fdsAMessage)
		if _, _, err := s.c.WriteMsgUnix(msg, unix.UnixRights(fds[:n]...), nil); err != nil {
			return fmt.Errorf("ask the forkserver for ranks: %w", err)
		}
		fds = fds[n:]
	}
	var m message
	if err := frame.Read(s.c, maxFrame, &m); err != nil {
		return fmt.Errorf("the forkserver hung up: %w", err)
	}
	switch m.State {
	case "forked":
		return nil
	case "refused":
		return fmt.Errorf("%w: %s", ErrRefused, m.Reason)
	}
	return fmt.Errorf("the forkserver says %q out of turn", m.State)
}

// File returns a descriptor of the connection for another program, which a shim becomes.
func (s *Server) File() (*os.File, error) { return s.c.File() }

// Close hangs up, which ends the forkserver.
func (s *Server) Close() { s.c.Close() }
