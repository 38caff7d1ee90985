package agent

import (
	"errors"
	"net"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// bindTo binds and listens like a server would, with or without SO_REUSEADDR.
func bindTo(t *testing.T, addr [4]byte, port int64, reuse int) (fd int, err error) {
	t.Helper()
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, reuse); err != nil {
		t.Fatal(err)
	}
	if err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(port), Addr: addr}); err == nil {
		err = unix.Listen(fd, 8)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func TestHeldPorts(t *testing.T) {
	loop, all := [4]byte{127, 0, 0, 1}, [4]byte{}
	p, err := HoldPorts("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	offer := p.Offer()
	if len(offer) != heldPorts {
		t.Fatalf("offers %v", offer)
	}
	port := offer[0]
	// Held: nobody who does not share gets it, not even by asking for any port.
	if fd, err := bindTo(t, loop, port, 0); !errors.Is(err, unix.EADDRINUSE) {
		unix.Close(fd)
		t.Errorf("a stranger took a held port: %v", err)
	}
	// Torch's store binds all addresses and shares.
	for _, addr := range [][4]byte{all, loop} {
		fd, err := bindTo(t, addr, port, 1)
		if err != nil {
			t.Fatalf("a server that shares cannot listen on a held port of %v: %v", addr, err)
		}
		c, err := net.Dial("tcp", (&net.TCPAddr{IP: net.IP(loop[:]), Port: int(port)}).String())
		if err != nil {
			t.Errorf("nobody reaches the server on the held port: %v", err)
		} else {
			c.Close()
		}
		unix.Close(fd)
	}
	p.Use(port)
	if next := p.Offer(); slices.Contains(next, port) || len(next) != heldPorts {
		t.Errorf("after using %d the offer is %v", port, next)
	}
	if fd, err := bindTo(t, loop, port, 0); err == nil {
		unix.Close(fd)
		t.Error("a port in use is not held any more")
	}
	p.Use(1) // not held: nothing happens
	p.Release(1)
	p.Release(port)
	if next := p.Offer(); slices.Contains(next, port) || len(next) != heldPorts {
		t.Errorf("after releasing %d the offer is %v", port, next)
	}
	p.Close()
	if next := p.Offer(); len(next) != 0 {
		t.Errorf("closed, and offers %v", next)
	}
}

func TestHeldPortsOfOtherAddresses(t *testing.T) {
	for _, addr := range []string{"", "a-host-name", "0.0.0.0"} {
		p, err := HoldPorts(addr)
		if err != nil {
			t.Errorf("%q: %v", addr, err)
			continue
		}
		p.Close()
	}
	if p, err := HoldPorts("192.0.2.1"); err == nil {
		p.Close()
		t.Error("held ports on an address that is not this machine's")
	}
}
