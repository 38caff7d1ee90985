package bus

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Bounds of the embedded server.
const (
	maxConnections   = 16 << 10
	maxSubscriptions = 10_000 // of one connection
	maxControlLine   = 4 << 10
	maxPendingBytes  = 16 << 20 // of one connection that reads slowly; then it is closed
	writeDeadline    = 5 * time.Second
	authTimeout      = 2 * time.Second
	pingInterval     = time.Second
	maxPingsOut      = 2
	startTimeout     = 10 * time.Second
	// responseLife is how long a responder may answer a request that it received.
	responseLife = 2 * time.Minute
)

// ServerOptions say how a head embeds the bus.
type ServerOptions struct {
	Name string // of the server, without spaces; shown in logs
	Host string // address to listen on; default 127.0.0.1
	Port int    // 0 or -1: any free port
	// DontListen serves in-process connections only.
	DontListen bool
	// Authorize decides about every connection, in-process ones too; required (P10).
	// It is called from several goroutines and must not block.
	Authorize Authorize
	// TLS makes the listener speak TLS from the first byte. It must demand certificates
	// of clients; AuthorizePeer then decides about every connection that came over it.
	TLS           *tls.Config
	AuthorizePeer AuthorizePeer
	// Closed is told of each connection that has ended, whoever ended it, within
	// milliseconds, also of those on other servers of the cluster. It must not block.
	Closed func(Closed)
	Logger *slog.Logger // default: discard
}

// Server is a NATS server within this process. It keeps nothing on disk and installs
// no signal handler.
type Server struct {
	ns   *server.Server
	auth Authorize
	peer AuthorizePeer // of connections over TLS; nil without it
	log  *slog.Logger
	once sync.Once
	// monitor hears of closed connections; with it the server's system account, where
	// they are told, is used by this process alone.
	monitor *monitor
}

// StartServer starts a server and returns when it accepts connections. The error
// names the address when it is in use.
func StartServer(o ServerOptions) (*Server, error) {
	if o.Authorize == nil {
		return nil, errors.New("bus: start server: no Authorize given; without one anybody could speak for anybody")
	}
	if o.TLS != nil && (o.AuthorizePeer == nil || o.TLS.ClientAuth != tls.RequireAndVerifyClientCert) {
		return nil, errors.New("bus: start server: TLS without certificates of clients would know nobody")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	if o.Port == 0 {
		o.Port = server.RANDOM_PORT // 0 would mean the library's well-known port
	}
	s := &Server{auth: o.Authorize, peer: o.AuthorizePeer, log: o.Logger}
	if o.TLS == nil {
		s.peer = nil
	}
	if o.Closed != nil {
		var err error
		if s.monitor, err = newMonitor(o.Closed); err != nil {
			return nil, err
		}
	}
	// The server keeps and changes its options: each gets its own.
	ns, err := server.NewServer(&server.Options{
		ServerName:      o.Name,
		Host:            o.Host,
		Port:            o.Port,
		DontListen:      o.DontListen,
		NoSigs:          true,
		NoSystemAccount: s.monitor == nil,
		MaxConn:         maxConnections,
		MaxSubs:         maxSubscriptions,
		MaxControlLine:  maxControlLine,
		MaxPayload:      MaxMessage,
		MaxPending:      maxPendingBytes,
		WriteDeadline:   writeDeadline,
		AuthTimeout:     authTimeout.Seconds(),
		PingInterval:    pingInterval,
		MaxPingsOut:     maxPingsOut,
		// Closed connections are remembered only for a monitoring page we do not serve.
		MaxClosedClients:           16,
		CustomClientAuthentication: s,
		TLSConfig:                  o.TLS,
		TLS:                        o.TLS != nil,
		TLSTimeout:                 authTimeout.Seconds(),
		TLSHandshakeFirst:          o.TLS != nil, // a stranger hears nothing
	})
	if err != nil {
		return nil, fmt.Errorf("bus: start server: %w", err)
	}
	log := &natsLog{log: o.Logger}
	ns.SetLoggerV2(log, false, false, false)
	s.ns = ns // Check needs it
	ns.Start()
	if !ready(ns, log) {
		ns.Shutdown()
		// Only the logger hears why a start failed.
		why := "it did not become ready"
		if p := log.fatal.Load(); p != nil {
			why = *p
		}
		return nil, fmt.Errorf("bus: start server on %s: %s", net.JoinHostPort(o.Host, strconv.Itoa(o.Port)), why)
	}
	if s.monitor != nil {
		if err := s.monitor.listen(ns); err != nil {
			s.Shutdown()
			return nil, err
		}
	}
	return s, nil
}

// ready waits until the server accepts connections or has told that it cannot.
func ready(ns *server.Server, log *natsLog) bool {
	for end := time.Now().Add(startTimeout); ; {
		switch {
		case ns.ReadyForConnections(50 * time.Millisecond):
			return true
		case log.fatal.Load() != nil || time.Now().After(end):
			return false
		}
	}
}

// Check implements the server's authentication hook.
func (s *Server) Check(c server.ClientAuthentication) bool {
	if c.Kind() != server.CLIENT {
		return false
	}
	o := c.GetOpts()
	if s.monitor.is(o.Username, o.Password) && inProcess(c) {
		c.RegisterUser(s.monitor.user(s.ns.SystemAccount()))
		return true
	}
	var p Permission
	var ok bool
	if cs := c.GetTLSConnectionState(); s.peer != nil && !inProcess(c) {
		p, ok = s.peer(o.Username, o.Password, cs)
	} else {
		p, ok = s.auth(o.Username, o.Password)
	}
	if !ok {
		return false
	}
	if err := p.check(); err != nil {
		s.log.Error("bus: identity refused because its permission is malformed", "user", o.Username, "error", err)
		return false
	}
	perms := &server.Permissions{
		// An empty list that is not nil allows nothing.
		Publish:  &server.SubjectPermission{Allow: append([]string{}, p.Publish...)},
		Response: &server.ResponsePermission{MaxMsgs: 1, Expires: responseLife},
	}
	sub := append([]string{}, p.Subscribe...)
	if p.Inbox != "" {
		sub = append(sub, p.Inbox+".>")
	}
	perms.Subscribe = &server.SubjectPermission{Allow: sub}
	if len(sub) == 0 {
		// Here an empty list would allow everything.
		perms.Subscribe = &server.SubjectPermission{Deny: []string{">"}}
	}
	c.RegisterUser(&server.User{Username: o.Username, Permissions: perms})
	return true
}

// inProcess tells a connection of InProcess, which has no socket and no TLS.
func inProcess(c server.ClientAuthentication) bool {
	a := c.RemoteAddress()
	return a == nil || a.Network() == "pipe"
}

// Port is where clients connect.
func (s *Server) Port() int {
	addr, ok := s.ns.Addr().(*net.TCPAddr)
	if !ok {
		return 0
	}
	return addr.Port
}

// ClientURL is what Dial takes, "nats://127.0.0.1:4321"; empty with DontListen.
func (s *Server) ClientURL() string {
	addr, ok := s.ns.Addr().(*net.TCPAddr)
	if !ok {
		return ""
	}
	return "nats://" + addr.String()
}

// InProcess connects within the process, without a socket; authorisation runs all
// the same. ErrDenied: the server does not know the user.
func (s *Server) InProcess(user, password, name string) (Conn, error) {
	// A refusal would surface as a closed pipe, so ask first.
	p, ok := s.auth(user, password)
	if !ok {
		return nil, fmt.Errorf("%w: user %q was refused", ErrDenied, user)
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	return connect(DialOptions{User: user, Password: password, Name: name, InboxPrefix: p.Inbox, Logger: s.log}, nats.InProcessServer(s.ns))
}

// Disconnect closes every connection of user and returns how many there were. Make
// Authorize refuse the user first, or it comes back at once.
func (s *Server) Disconnect(user string) int {
	closed := 0
	for offset := 0; ; {
		list, err := s.ns.Connz(&server.ConnzOptions{Username: true, Offset: offset, Limit: 1024})
		if err != nil || len(list.Conns) == 0 {
			return closed
		}
		before := closed
		for _, c := range list.Conns {
			if c.AuthorizedUser == user && s.ns.DisconnectClientByID(c.Cid) == nil {
				closed++
			}
		}
		offset += len(list.Conns) - (closed - before)
	}
}

// Shutdown closes every connection and waits for the server's goroutines. It may be
// called more than once.
func (s *Server) Shutdown() {
	s.once.Do(func() {
		s.monitor.close() // the end of all connections is nobody's loss
		s.ns.Shutdown()
		s.ns.WaitForShutdown()
	})
}

// natsLog carries the server's messages to slog; it never enables traces, which
// would print payloads and passwords.
type natsLog struct {
	log   *slog.Logger
	fatal atomic.Pointer[string]
}

func (l *natsLog) Noticef(f string, v ...any) { l.log.Debug("bus server: " + fmt.Sprintf(f, v...)) }

func (l *natsLog) Warnf(f string, v ...any) {
	text := fmt.Sprintf(f, v...)
	if strings.Contains(text, "TLS Handshake First") {
		l.log.Debug("bus server: " + text) // all of our clients use it
		return
	}
	l.log.Warn("bus server: " + text)
}

func (l *natsLog) Errorf(f string, v ...any) { l.log.Warn("bus server: " + fmt.Sprintf(f, v...)) }
func (l *natsLog) Debugf(string, ...any)     {}
func (l *natsLog) Tracef(string, ...any)     {}

func (l *natsLog) Fatalf(f string, v ...any) {
	text := fmt.Sprintf(f, v...)
	l.fatal.Store(&text)
	l.log.Error("bus server: " + text)
}

var _ server.Logger = (*natsLog)(nil)
