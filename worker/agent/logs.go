package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

const (
	maxLogs  = 16        // reads under way
	maxChunk = 256 << 10 // bytes of one answer
)

// onLog answers with a range of a rank's output.
func (a *Agent) onLog(ctx context.Context, m bus.Msg) {
	var r wire.ReadLog
	if err := wire.Unmarshal(m.Data, &r); err != nil {
		a.Logger.Warn("a malformed request for output was refused", "err", err)
		return
	}
	select {
	case a.logs <- struct{}{}:
	case <-ctx.Done():
		return
	}
	a.spawn(func() {
		defer func() { <-a.logs }()
		chunk, err := a.readLog(r)
		if err != nil {
			chunk = wire.LogChunk{Error: err.Error()}
		}
		a.respond(m, chunk)
	})
}

// files are what a rank leaves, by the name of the stream.
var files = map[string]string{"stdout": "stdout.log", "stderr": "stderr.log", "error": "error.json"}

// readLog reads out/<attempt>/<rank>/<file> of one allocation, running or ended.
func (a *Agent) readLog(r wire.ReadLog) (wire.LogChunk, error) {
	switch {
	case !plain(r.Alloc):
		return wire.LogChunk{}, errors.New("the allocation's id is malformed")
	case files[r.Stream] == "":
		return wire.LogChunk{}, errors.New("the stream must be stdout, stderr or error")
	case r.Attempt < 0 || r.Rank < 0 || r.Offset < 0:
		return wire.LogChunk{}, errors.New("attempt, rank and offset must not be negative")
	}
	if r.Limit <= 0 || r.Limit > maxChunk {
		r.Limit = maxChunk
	}
	job, over, known := a.attemptOver(r.Alloc, r.Attempt)
	if !known {
		return wire.LogChunk{}, fmt.Errorf("this node keeps no output of allocation %s", r.Alloc)
	}
	if r.Job != "" && job != "" && job != r.Job {
		return wire.LogChunk{}, fmt.Errorf("allocation %s is not of job %s", r.Alloc, r.Job)
	}
	f, err := openBelow(a.allocDir(r.Alloc), shim.OutputDir, itoa(r.Attempt), itoa(r.Rank), files[r.Stream])
	if errors.Is(err, os.ErrNotExist) {
		return wire.LogChunk{Ended: over}, nil // the rank was not started
	}
	if err != nil {
		return wire.LogChunk{}, err
	}
	defer f.Close()
	chunk, err := readRange(f, r.Offset, r.Limit)
	// over was found out before the file was measured: nothing can have come since.
	chunk.Ended = over && chunk.Start+int64(len(chunk.Data)) >= chunk.Size
	return chunk, err
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// attemptOver reports whether nothing can write to an attempt's output any more, and
// whether the node knows the allocation at all.
func (a *Agent) attemptOver(id string, attempt int64) (job string, over, known bool) {
	newer := newerAttempt(a.outputDir(id), attempt)
	a.mu.Lock()
	x := a.allocs[id]
	if x == nil {
		a.mu.Unlock()
		e, ok := readEnded(a.allocDir(id))
		return e.Job, ok, ok
	}
	defer a.mu.Unlock()
	if x.gone || newer {
		return x.status.Job, true, true
	}
	i := slices.IndexFunc(x.numbers, func(n attemptNumber) bool { return n.number == attempt })
	if i >= 0 {
		return x.status.Job, x.numbers[i].generation <= x.over, true
	}
	// Started in a former life. Its folder is there and no newer one is, so it is the
	// one whose generation the shim tells, if it was started at all.
	_, err := os.Lstat(a.outputDir(id) + "/" + itoa(attempt))
	return x.status.Job, err == nil && x.over > 0 && x.over >= x.status.Generation, true
}

// newerAttempt reports whether a later attempt has begun, which is after the end of
// everything of the earlier one.
func newerAttempt(out string, attempt int64) bool {
	entries, err := os.ReadDir(out)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		n, err := strconv.ParseInt(e.Name(), 10, 64)
		return err == nil && n > attempt
	})
}

var errUnsafe = errors.New("refused: the output is not a plain file in plain folders")

// openBelow opens a regular file below dir. Ranks can write there, so no link is
// followed on the way, however it is swapped meanwhile, and what is opened was seen to
// be a file before it is read: opening a pipe or a device can have effects.
func openBelow(dir string, parts ...string) (*os.File, error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open(dir, flags|unix.O_DIRECTORY, 0)
	for i := 0; i < len(parts) && err == nil; i++ {
		folder := unix.O_DIRECTORY
		if i == len(parts)-1 {
			folder = 0
		}
		next, e := unix.Openat(fd, parts[i], flags|folder, 0)
		unix.Close(fd)
		fd, err = next, e
	}
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return nil, errUnsafe
	case err != nil:
		return nil, fmt.Errorf("open the output: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("look at the output: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1 {
		return nil, errUnsafe
	}
	f, err := os.Open("/proc/self/fd/" + itoa(int64(fd)))
	if err != nil {
		return nil, fmt.Errorf("open the output: %w", err)
	}
	return f, nil
}

// readRange reads from offset, or from the first byte behind it that is still there:
// a shim frees the heads of long files by punching holes.
func readRange(f *os.File, offset, limit int64) (wire.LogChunk, error) {
	st, err := f.Stat()
	if err != nil {
		return wire.LogChunk{}, fmt.Errorf("look at the output: %w", err)
	}
	c := wire.LogChunk{Start: min(offset, st.Size()), Size: st.Size()}
	if at, err := unix.Seek(int(f.Fd()), c.Start, unix.SEEK_DATA); err == nil && at > c.Start {
		c.Start = min(at, c.Size)
	}
	buf := make([]byte, min(limit, c.Size-c.Start))
	n, err := f.ReadAt(buf, c.Start)
	if err != nil && !errors.Is(err, io.EOF) {
		return wire.LogChunk{}, fmt.Errorf("read the output: %w", err)
	}
	c.Data = buf[:n]
	return c, nil
}
