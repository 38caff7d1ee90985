// Package head assembles one head: the log, the state machine, the bus, the loops of
// a leader and the HTTP API, in the order in which they depend on each other. It
// decides nothing; each part has its own folder below.
package head

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/consensus"
	"github.com/troupe-runtime/troupe/head/control"
	"github.com/troupe-runtime/troupe/head/packages"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/join"
	"github.com/troupe-runtime/troupe/runtime/trust"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Files of a head's folder beside the log.
const (
	raftDir        = "raft"
	storeDir       = "store" // default checkpoint store
	packageDir     = "packages"
	caDir          = "ca" // the cluster's certificate authority
	busKeyFile     = "bus.key"
	AdminTokenFile = "admin.token" // 0600; who can read it is an admin
	// ViewerTokenFile is made when a launch over several hosts first needs it.
	ViewerTokenFile = "viewer.token"
	NodeTokenFile   = "node.token" // 0600; who can read it may join as a node of this machine
)

// ports of a head (DESIGN §5).
const (
	DefaultAPIAddress = "127.0.0.1:7600"
	DefaultBusAddress = "127.0.0.1:7602"
)

// Options of a head.
type Options struct {
	Dir        string
	Name       string // for people; default the host's name
	APIAddress string // host:port; port 0 for any free one
	BusAddress string
	Timing     control.Timing
	Logger     *slog.Logger
	Version    api.Version
	// Secure asks for TLS on loopback addresses too; anything wider has it anyhow.
	Secure bool
	// JoinKey lets hosts that know it join; nil: none can.
	JoinKey *join.Key
	// Admit decides about hosts that have the key; nil: all.
	Admit func(ctx context.Context, a join.Admitted) (answer any, err error)
	// Names are host names, besides the machine's own, that the API is reached by.
	Names []string
}

// Head is a running head.
type Head struct {
	opts  Options
	store *state.Store
	node  *consensus.Node
	bus   *bus.Server
	conn  bus.Conn
	// nodeToken is what the head's own file says, for the time before the state does.
	nodeToken string
	control   atomic.Pointer[control.Head]
	secure    *secure // nil: plain HTTP and the plain bus, on loopback
	listener  net.Listener
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	fail      chan error
	serveErr  chan error
}

// Init creates a cluster in the folder, once: log, tokens and keys.
func Init(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("head: make the folder %s: %w", dir, err)
	}
	if err := consensus.Init(consensus.Config{Dir: filepath.Join(dir, raftDir)}); err != nil {
		return err
	}
	for _, f := range []string{busKeyFile, AdminTokenFile, NodeTokenFile} {
		if _, err := secret(filepath.Join(dir, f), true); err != nil {
			return err
		}
	}
	_, err := trust.OpenAuthority(filepath.Join(dir, caDir), time.Now())
	return err
}

// machine puts the state's store under the log.
type machine struct{ *state.Store }

func (m machine) Snapshot() (consensus.Snapshot, error) { return m.Store.Snapshot(), nil }

// ApplyAll implements consensus.BatchMachine.
func (m machine) ApplyAll(entries []consensus.Entry) ([]any, error) {
	all := make([]state.Entry, len(entries))
	for i, e := range entries {
		all[i] = state.Entry(e)
	}
	return m.Store.ApplyAll(all)
}

var _ consensus.BatchMachine = machine{}

// proposer is what the loops see of the log.
type proposer struct{ n *consensus.Node }

func (p proposer) Propose(ctx context.Context, entries ...[]byte) []control.Outcome {
	out := make([]control.Outcome, len(entries))
	for i, r := range p.n.ProposeAll(ctx, entries) {
		out[i] = control.Outcome{Value: r.Value, Err: r.Err}
		switch {
		case errors.Is(r.Err, consensus.ErrOutcomeUnknown):
			out[i].Err = fmt.Errorf("%w: %w", control.ErrOutcomeUnknown, r.Err)
		case errors.Is(r.Err, consensus.ErrTooLarge):
			out[i].Err = fmt.Errorf("%w: %w", control.ErrTooLarge, r.Err)
		}
	}
	return out
}
func (p proposer) Verify(ctx context.Context) error { return p.n.Verify(ctx) }
func (p proposer) IsLeader() bool                   { return p.n.IsLeader() }

// Start starts a head on a folder that Init has made.
func Start(o Options) (_ *Head, err error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.APIAddress == "" {
		o.APIAddress = DefaultAPIAddress
	}
	if o.BusAddress == "" {
		o.BusAddress = DefaultBusAddress
	}
	if o.Name == "" {
		if o.Name, err = os.Hostname(); err != nil {
			o.Name = "head"
		}
	}
	h := &Head{opts: o, fail: make(chan error, 1), serveErr: make(chan error, 1)}
	for _, a := range []string{o.APIAddress, o.BusAddress} {
		local, err := loopback(a)
		if err != nil {
			return nil, err
		}
		h.opts.Secure = h.opts.Secure || !local
	}
	if h.opts.Secure {
		if h.secure, err = newSecure(h.opts); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	if h.store, err = state.New(); err != nil {
		return nil, err
	}
	// Ports first: a taken one must be told before anything is opened or changed.
	if h.listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", o.APIAddress); err != nil {
		return nil, fmt.Errorf("head: listen on %s: %w", o.APIAddress, err)
	}
	h.node, err = consensus.Open(consensus.Config{
		Dir: filepath.Join(o.Dir, raftDir), Logger: o.Logger, VerifySnapshot: state.Verify,
		OnStuck: func(d time.Duration) { o.Logger.Warn("the disk of the log is stuck", "append", d) },
	}, machine{h.store})
	if err != nil {
		return nil, err
	}
	if err := h.startBus(); err != nil {
		return nil, err
	}
	return h, h.startLoops()
}

// loopback reports whether an address is reached from this machine alone.
func loopback(addr string) (bool, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false, fmt.Errorf("head: address %q: %w", addr, err)
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback(), nil
}

// startBus embeds the bus; who may connect is a node with a token of role node, an
// actor host or caller with signed credentials, and this head itself.
func (h *Head) startBus() error {
	host, port, err := net.SplitHostPort(h.opts.BusAddress)
	if err != nil {
		return fmt.Errorf("head: address %q: %w", h.opts.BusAddress, err)
	}
	p, err := net.LookupPort("tcp", port)
	if err != nil {
		return fmt.Errorf("head: address %q: %w", h.opts.BusAddress, err)
	}
	key, err := secret(filepath.Join(h.opts.Dir, busKeyFile), true)
	if err != nil {
		return err
	}
	// Made by Init, and never again: a second one would be unknown to the cluster.
	if h.nodeToken, err = secret(filepath.Join(h.opts.Dir, NodeTokenFile), false); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var own [16]byte
	if _, err := rand.Read(own[:]); err != nil {
		return fmt.Errorf("head: draw a secret: %w", err)
	}
	ownToken := hex.EncodeToString(own[:])
	so := bus.ServerOptions{
		Name: "troupe-" + h.node.ID(), Host: host, Port: p, Logger: h.opts.Logger,
		Authorize: func(user, password string) (bus.Permission, bool) {
			return h.authorize(user, password, ownToken, []byte(key))
		},
		Closed: h.closed,
	}
	if h.secure != nil {
		so.TLS, so.AuthorizePeer = h.secure.busTLS(), h.secure.authorize
	}
	h.bus, err = bus.StartServer(so)
	if err != nil {
		return err
	}
	if h.conn, err = h.bus.InProcess("head", ownToken, "head"); err != nil {
		return fmt.Errorf("head: connect to the own bus: %w", err)
	}
	kept, err := packages.Open(packages.Options{FS: disk.OS(), Dir: filepath.Join(h.opts.Dir, packageDir), Now: time.Now})
	if err != nil {
		return fmt.Errorf("head: %w", err)
	}
	co := control.Options{
		Name: h.opts.Name, Store: h.store, Log: proposer{h.node}, Bus: h.conn, Clock: clock.Real(), Logger: h.opts.Logger,
		Version: h.opts.Version, Timing: h.opts.Timing, BusURLs: []string{h.bus.ClientURL()}, BusSecret: []byte(key),
		Random: func(b []byte) error { _, err := rand.Read(b); return err }, Packages: kept,
	}
	if h.secure != nil {
		co.SignNode = h.secure.sign
	}
	h.control.Store(control.New(co))
	return nil
}

// closed passes the end of a node's connections on to whoever judges it.
func (h *Head) closed(x bus.Closed) {
	c := h.control.Load()
	if c == nil {
		return
	}
	if id, ok := strings.CutPrefix(x.User, nodeUser); ok && x.Name == id {
		c.Closed(id, false) // others of its connections have other names
	}
	if id, ok := strings.CutPrefix(x.User, shimUser); ok {
		c.Closed(id, true)
	}
}

// Users of the bus that belong to a node: its agent, and its shims while they speak for
// themselves.
const (
	nodeUser = "node/"
	shimUser = "shim/"
)

func (h *Head) authorize(user, password, own string, key []byte) (bus.Permission, bool) {
	if user == "head" {
		return bus.Permission{
			Publish:   []string{"n.>"},
			Subscribe: []string{"head.>"}, Inbox: wire.InboxPrefix("head"),
		}, password == own
	}
	if id, ok := strings.CutPrefix(user, nodeUser); ok {
		return NodePermission(id), validNode(id) && h.isNodeToken(password)
	}
	if id, ok := strings.CutPrefix(user, shimUser); ok {
		return ShimPermission(id), validNode(id) && h.isNodeToken(password)
	}
	return control.AuthorizeActor(key, user, password, time.Now())
}

// isNodeToken asks the state, or, until the log is applied after a start, the head's
// own token file: nodes that come back must not be sent away to a long back-off.
func (h *Head) isNodeToken(password string) bool {
	c := h.control.Load()
	if c != nil && c.Restored() {
		return c.TokenRole(password) == "node"
	}
	return subtle.ConstantTimeCompare([]byte(password), []byte(h.nodeToken)) == 1 && h.nodeToken != ""
}

// NodePermission is what a node may do on the bus: speak to the head under its own
// id, and hear what is sent to it.
func NodePermission(id string) bus.Permission {
	return bus.Permission{
		Publish: []string{
			wire.HeadRegister + id, wire.HeadHeartbeat + id, wire.HeadReport + id, wire.HeadPrepared + id, wire.HeadFetch + id,
			wire.HeadPackage + id, wire.HeadRenew + id, wire.HeadNotice + id,
		},
		Subscribe: []string{"n." + id + ".>"},
		Inbox:     wire.InboxPrefix("node-" + id),
	}
}

// ShimPermission is what the shims of a node may do on the bus while its agent is gone:
// say that they live, and hear the answer.
func ShimPermission(id string) bus.Permission {
	return bus.Permission{Publish: []string{wire.HeadShim + id}, Inbox: wire.InboxPrefix("shim-" + id)}
}

// validNode keeps wildcards and separators of subjects out of ids.
func validNode(id string) bool {
	if id == "" || len(id) > 63 {
		return false
	}
	for _, c := range id {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// startLoops runs leadership and serves the API.
func (h *Head) startLoops() error {
	c := h.control.Load()
	o := headapi.Options{Backend: c, Logger: h.opts.Logger, Restored: c.Restored}
	if h.secure != nil {
		o.Hosts = h.secure.hosts()
	}
	handler, err := headapi.New(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	h.wg.Go(func() {
		err := h.node.RunLeadership(ctx, func(ctx context.Context, term uint64) error {
			if h.store.View().Meta().Cluster == "" {
				create, err := h.firstEntry()
				if err != nil {
					return err
				}
				if err := c.Init(ctx, create); err != nil {
					return err
				}
			}
			return c.Lead(ctx, term)
		}, c.Follow)
		h.failed(err)
	})
	h.wg.Go(func() { tendCollector(ctx, clock.Real()) })
	h.wg.Go(func() {
		select {
		case err := <-h.node.Fatal():
			h.failed(err)
		case <-ctx.Done():
		}
	})
	h.wg.Go(func() {
		serve := func() error { return headapi.Serve(ctx, h.listener, handler) }
		if h.secure != nil {
			serve = func() error {
				return headapi.ServeTLS(ctx, h.listener, handler, h.secure.apiTLS(), h.secure.protocols(h.bus.Port))
			}
		}
		if err := serve(); err != nil && !errors.Is(err, http.ErrServerClosed) {
			h.failed(fmt.Errorf("head: serve the API: %w", err))
		}
	})
	return nil
}

func (h *Head) failed(err error) {
	if err == nil {
		return
	}
	select {
	case h.fail <- err:
	default:
	}
}

// APIURL is where the API is reached from this machine.
func (h *Head) APIURL() string {
	u := &url.URL{Scheme: "http", Host: h.listener.Addr().String()}
	if h.secure != nil {
		u.Scheme = "https"
	}
	if host, port, err := net.SplitHostPort(u.Host); err == nil && net.ParseIP(host).IsUnspecified() {
		u.Host = net.JoinHostPort("127.0.0.1", port)
	}
	return u.String()
}

// Pin is the digest of the cluster's root certificate, by which clients know the API;
// ok false: it is served without TLS.
func (h *Head) Pin() (pin trust.Digest, ok bool) {
	if h.secure == nil {
		return pin, false
	}
	return h.secure.authority.Digest(), true
}

// BusURL is where nodes connect.
func (h *Head) BusURL() string { return h.bus.ClientURL() }

// Control is the backend, for a caller in the same process.
func (h *Head) Control() *control.Head { return h.control.Load() }

// InProcess connects a node of the same process to the bus, with its own token.
func (h *Head) InProcess(node, token string) (bus.Conn, error) {
	return h.bus.InProcess("node/"+node, token, node)
}

// WaitReady returns when the head leads and serves.
func (h *Head) WaitReady(ctx context.Context) error {
	for {
		changed := h.store.Changed()
		if h.control.Load().Ready(ctx) == nil {
			return h.checkTokens()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("head: not ready: %w", ctx.Err())
		case err := <-h.fail:
			h.failed(err)
			return err
		case <-changed:
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Failed receives the error that ended the head, if one does.
func (h *Head) Failed() <-chan error { return h.fail }

// Close ends the head in reverse order. Nodes and their ranks go on.
func (h *Head) Close() error {
	h.close()
	return nil
}

func (h *Head) close() {
	if h.cancel != nil {
		h.cancel()
	}
	if h.listener != nil {
		_ = h.listener.Close()
	}
	h.wg.Wait()
	if h.conn != nil {
		h.conn.Close()
	}
	if h.bus != nil {
		h.bus.Shutdown()
	}
	if h.node != nil {
		if err := h.node.Close(); err != nil {
			h.opts.Logger.Warn("the log was not closed in order", "err", err)
		}
	}
}

var _ io.Closer = (*Head)(nil)
