package head

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/join"
	"github.com/troupe-runtime/troupe/runtime/trust"
)

// secure is what a head needs beyond loopback: the authority, the identities of its
// listeners, and how hosts join.
type secure struct {
	opts      Options
	authority *trust.Authority
	api, bus  *trust.Listener
	names     trust.Names
	log       *slog.Logger
}

func newSecure(o Options) (*secure, error) {
	// Init makes it; a cluster of an older version gets it now.
	a, err := trust.OpenAuthority(filepath.Join(o.Dir, caDir), time.Now())
	if err != nil {
		return nil, fmt.Errorf("head: %w", err)
	}
	s := &secure{opts: o, authority: a, log: o.Logger, names: ownNames(o)}
	if s.api, err = trust.NewListener(a, trust.RoleAPI, s.names, time.Now); err != nil {
		return nil, fmt.Errorf("head: %w", err)
	}
	if s.bus, err = trust.NewListener(a, trust.RoleBus, trust.Names{}, time.Now); err != nil {
		return nil, fmt.Errorf("head: %w", err)
	}
	return s, nil
}

// ownNames are the names and addresses that this machine is reached by.
func ownNames(o Options) trust.Names {
	n := trust.Names{DNS: []string{"localhost"}}
	add := func(name string) {
		name = strings.ToLower(strings.TrimSuffix(name, "."))
		if ip := net.ParseIP(name); ip != nil {
			if !ip.IsUnspecified() {
				n.IPs = append(n.IPs, ip)
			}
		} else if name != "" && !strings.ContainsAny(name, "*/ :") {
			n.DNS = append(n.DNS, name)
		}
	}
	if host, err := os.Hostname(); err == nil {
		add(host)
	}
	for _, a := range append([]string{o.APIAddress, o.BusAddress}, o.Names...) {
		if host, _, err := net.SplitHostPort(a); err == nil {
			a = host
		}
		add(a)
	}
	if all, err := net.InterfaceAddrs(); err == nil {
		for _, a := range all {
			if ip, ok := a.(*net.IPNet); ok {
				n.IPs = append(n.IPs, ip.IP)
			}
		}
	}
	return n
}

func (s *secure) hosts() []string {
	out := append([]string(nil), s.names.DNS...)
	for _, ip := range s.names.IPs {
		out = append(out, ip.String())
	}
	return out
}

func (s *secure) busTLS() *tls.Config {
	return trust.ServerTLS(s.authority.Root(), s.bus.Certificate, trust.RoleNode, time.Now)
}

func (s *secure) apiTLS() *tls.Config {
	return trust.ServerTLS(s.authority.Root(), s.api.Certificate, "", time.Now)
}

// protocols is what the API's port speaks besides HTTP: joining, if there is a key.
func (s *secure) protocols(busPort func() int) headapi.Protocols {
	p := headapi.Protocols{}
	if s.opts.JoinKey != nil {
		j := &join.Server{
			Key: *s.opts.JoinKey, Authority: s.authority, BusPort: busPort, Admit: s.opts.Admit, Now: time.Now, Logger: s.log,
		}
		p[join.Protocol] = j.NextProto
	}
	return p
}

// authorize takes the identity from the certificate; the name that was sent must be it.
func (s *secure) authorize(user, _ string, cs *tls.ConnectionState) (bus.Permission, bool) {
	p, err := trust.PeerOf(s.authority.Root(), cs, trust.RoleNode, time.Now())
	shim := user == shimUser+p.Name
	if err != nil || user != nodeUser+p.Name && !shim || !validNode(p.Name) {
		s.log.Warn("a connection to the bus was refused", "user", cut(user), "certificate", p.Name, "err", err)
		return bus.Permission{}, false
	}
	if shim {
		return ShimPermission(p.Name), true
	}
	return NodePermission(p.Name), true
}

// cut keeps what a stranger sends out of the log but for its beginning.
func cut(s string) string {
	if len(s) > 80 {
		return s[:80]
	}
	return s
}

func (s *secure) sign(csr []byte) (string, [][]byte, error) {
	return s.authority.IssueNode(csr, time.Now())
}
