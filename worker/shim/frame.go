package shim

import (
	"io"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/worker/frame"
)

// ErrFrame is wrapped when a peer does not speak the protocol, see frame.ErrMalformed.
var ErrFrame = frame.ErrMalformed

// ErrFrameSize is wrapped when a frame would be larger than its limit, see frame.ErrSize.
var ErrFrameSize = frame.ErrSize

// ReadFrame reads one frame of at most limit bytes into v, see frame.Read.
func ReadFrame(r io.Reader, limit int, v any) error { return frame.Read(r, limit, v) }

// WriteFrame writes v as one frame, see frame.Write.
func WriteFrame(w io.Writer, limit int, v any) error { return frame.Write(w, limit, v) }

// writeFrameFile writes v as one frame and hands an open file over with it. Whoever
// reads without asking for files loses it, and no more.
func writeFrameFile(c *net.UnixConn, limit int, v any, f *os.File) error {
	buf, err := frame.Encode(limit, v)
	if err != nil {
		return err
	}
	// The file belongs to the first byte; a short write leaves only plain ones.
	n, _, err := c.WriteMsgUnix(buf, unix.UnixRights(int(f.Fd())), nil)
	if err == nil && n < len(buf) {
		_, err = c.Write(buf[n:])
	}
	runtime.KeepAlive(f)
	return err
}
