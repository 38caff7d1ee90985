package process

import (
	"bytes"
	"context"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// markOf is how a cookie stands in an environment.
func markOf(cookie string) []byte { return []byte(CookieEnv + "=" + cookie + "\x00") }

// hasMark reports whether the process was started with one of the marks.
// The environment is searched in pieces, so that a rank with a large
// one costs no memory here. A process that has gone, or of another user, has no mark; the
// error says that nothing was learned.
func hasMark(pid int, marks [][]byte, buf []byte) (bool, error) {
	fd, err := openRead("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false, untold(pid, err)
	}
	defer unix.Close(fd)
	longest := 0
	for _, m := range marks {
		longest = max(longest, len(m))
	}
	kept := 0
	for {
		n, err := unix.Read(fd, buf[kept:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, untold(pid, err)
		}
		if n <= 0 {
			return false, nil
		}
		n += kept
		// Few environments hold the name at all: one search settles most.
		if bytes.Contains(buf[:n], cookieName) {
			for _, m := range marks {
				if bytes.Contains(buf[:n], m) {
					return true, nil
				}
			}
		}
		kept = min(longest-1, n)
		copy(buf, buf[n-kept:n])
	}
}

var cookieName = []byte(CookieEnv + "=")

// HasCookie reports whether the process carries the allocation's mark, as far as can
// be seen.
func HasCookie(pid int, cookie string) bool {
	if cookie == "" {
		return false
	}
	has, _ := hasMark(pid, [][]byte{markOf(cookie)}, make([]byte, 16<<10))
	return has
}

// SweepMarks ends every process that carries one of the marks, with one look at the machine
// for all of them, and then another until nothing is found.
func SweepMarks(ctx context.Context, cookies []string) Result {
	var all Result
	if len(cookies) == 0 {
		return all
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	s := newScanner(Target{})
	marks := make([][]byte, len(cookies))
	for i, c := range cookies {
		marks[i] = markOf(c)
	}
	s.mark, s.buf = marks[0], make([]byte, 16<<10)
	s.marked = func(pid int) (bool, error) { return hasMark(pid, marks, s.buf) }
	return sweep(ctx, s, s.kill)
}
