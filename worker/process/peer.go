package process

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// CheckPeer accepts a peer of this process's user, and root, by what the kernel says
// of it; any other is an error.
func CheckPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, cerr); err != nil {
		return fmt.Errorf("identify the peer: %w", err)
	}
	if int(cred.Uid) != os.Getuid() && cred.Uid != 0 {
		return fmt.Errorf("user %d may not talk to a process of user %d", cred.Uid, os.Getuid())
	}
	return nil
}
