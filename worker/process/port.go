package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// PortTaken reports whether a server that shares its address, as torch's store does,
// could not listen on the TCP port of all addresses: another process listens on it, or
// holds it without sharing. It binds and never listens, so that no client meets it. A
// port that somebody else merely holds and shares, as the agent does, is not taken.
func PortTaken(port int64) (bool, error) {
	if port < 1 || port > 65535 {
		return false, fmt.Errorf("%d is no TCP port", port)
	}
	// As the store: both families at once, or IPv4 alone on a machine without IPv6.
	err := tryBind(unix.AF_INET6, &unix.SockaddrInet6{Port: int(port)})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
		err = tryBind(unix.AF_INET, &unix.SockaddrInet4{Port: int(port)})
	}
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("try port %d: %w", port, err)
	}
	return false, nil
}

func tryBind(domain int, to unix.Sockaddr) error {
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if domain == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0); err != nil {
			return err
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	return unix.Bind(fd, to)
}
