package access

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// hosts is the set of names that requests may address the head by. Refusing others is
// what defeats DNS rebinding: there the page and the request have the same origin, and
// only the name gives it away.
type hosts map[string]bool

func newHosts(extra []string) (hosts, error) {
	h := hosts{"localhost": true}
	for _, name := range extra {
		n := hostName(name)
		if n == "" || strings.ContainsAny(n, "*/ ") {
			return nil, fmt.Errorf("host %q is no name or address that requests can be addressed to; give names without wildcards", name)
		}
		h[n] = true
	}
	return h, nil
}

// allows reports whether a Host header names this head: a loopback address, localhost
// or a configured name, whatever the port (forwarded ports differ).
func (h hosts) allows(header string) bool {
	name := hostName(header)
	if name == "" {
		return false
	}
	if h[name] {
		return true
	}
	addr, err := netip.ParseAddr(name)
	return err == nil && addr.Unmap().IsLoopback()
}

// fromHere reports whether a request was made on this machine and meant for it: a proxy
// that passes on what comes from elsewhere says so, or names another host.
func fromHere(r *http.Request) bool {
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	local := func(s string) bool {
		name := hostName(s)
		addr, err := netip.ParseAddr(name)
		return name == "localhost" || err == nil && addr.Unmap().IsLoopback()
	}
	return local(r.RemoteAddr) && local(r.Host)
}

// hostName is the lower-case name or address of a Host header, "" if it has none.
func hostName(header string) string {
	name := header
	if host, _, err := net.SplitHostPort(header); err == nil {
		name = host
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	return strings.ToLower(strings.TrimSuffix(name, "."))
}

// hostPort is the port of a Host header, "" if it has none.
func hostPort(header string) string {
	_, port, err := net.SplitHostPort(header)
	if err != nil {
		return ""
	}
	return port
}
