package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// heldPorts is how many master ports an agent offers: so many attempts can begin on a node
// from one heartbeat to the next.
const heldPorts = 64

// Ports holds the ports that rank 0 of an attempt may listen on.
type Ports interface {
	// Offer lists the ports that are free to be handed out.
	Offer() []int64
	// Use takes a port out of the offer and puts a new one into its place. The port
	// stays held until Release. It does nothing for a port that is not held.
	Use(port int64)
	Release(port int64)
	Close()
}

// holder holds ports bound and not listening, with SO_REUSEADDR: nobody who asks for
// any free port gets one of them, and a server that binds it with SO_REUSEADDR, as
// torch's store does, can listen on it all the same.
type holder struct {
	addr   netip.Addr
	mu     sync.Mutex
	free   []held
	used   []held
	closed bool
}

type held struct {
	port int64
	fd   int
}

// HoldPorts holds heldPorts ports on address, an IP address or "" for all.
func HoldPorts(address string) (Ports, error) {
	h := &holder{addr: netip.IPv4Unspecified()}
	// A name is resolved by those who connect; here all addresses do as well.
	if a, err := netip.ParseAddr(address); err == nil {
		h.addr = a.Unmap()
	}
	if err := h.fill(); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

func (h *holder) fill() error {
	for len(h.free) < heldPorts {
		p, err := hold(h.addr)
		if err != nil {
			return fmt.Errorf("hold a port on %s for ranks: %w", h.addr, err)
		}
		h.free = append(h.free, p)
	}
	return nil
}

func hold(addr netip.Addr) (held, error) {
	domain := unix.AF_INET
	var sa unix.Sockaddr = &unix.SockaddrInet4{Addr: unspecified4(addr)}
	if addr.Is6() {
		domain = unix.AF_INET6
		sa = &unix.SockaddrInet6{Addr: addr.As16()}
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return held{}, err
	}
	// Bound to any free port first and made sharable afterwards: with the option set
	// before, the kernel could give out a port that somebody else shares already.
	err = unix.Bind(fd, sa)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	var name unix.Sockaddr
	if err == nil {
		name, err = unix.Getsockname(fd)
	}
	if err != nil {
		unix.Close(fd)
		return held{}, err
	}
	switch n := name.(type) {
	case *unix.SockaddrInet4:
		return held{int64(n.Port), fd}, nil
	case *unix.SockaddrInet6:
		return held{int64(n.Port), fd}, nil
	}
	unix.Close(fd)
	return held{}, errors.New("a socket has an address of an unknown kind")
}

func unspecified4(addr netip.Addr) [4]byte {
	if addr.Is4() {
		return addr.As4()
	}
	return [4]byte{}
}

// Offer implements Ports.
func (h *holder) Offer() []int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]int64, 0, len(h.free))
	for _, p := range h.free {
		list = append(list, p.port)
	}
	return list
}

// Use implements Ports.
func (h *holder) Use(port int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.free, func(p held) bool { return p.port == port })
	if i < 0 || h.closed {
		return
	}
	h.used = append(h.used, h.free[i])
	h.free = slices.Delete(h.free, i, i+1)
	_ = h.fill() // out of descriptors: one less is offered until the next use
}

// Release implements Ports.
func (h *holder) Release(port int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.used, func(p held) bool { return p.port == port })
	if i < 0 {
		return
	}
	unix.Close(h.used[i].fd)
	h.used = slices.Delete(h.used, i, i+1)
	if !h.closed {
		_ = h.fill()
	}
}

// Close implements Ports.
func (h *holder) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, p := range append(h.free, h.used...) {
		unix.Close(p.fd)
	}
	h.free, h.used = nil, nil
}
