package shim

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// buffer is the shared memory that one local rank copies its state into for an
// asynchronous save, and that the saver reads. It has no name in any file system: it
// goes with the last process that holds it. The shim keeps it warm between saves and
// attempts. Its pages belong to the memory group of who touches them first, which is
// the rank, so that they count against the bundle.
type buffer struct {
	name string
	file *os.File
	size int64
}

// newBuffer makes shared memory of a fixed size: sealed, so that a rank that
// shortens it cannot take the saver's pages away.
func newBuffer(name string, size int64) (*buffer, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("troupe-save", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3
		fd, err = unix.MemfdCreate("troupe-save", flags)
	}
	if err != nil {
		return nil, fmt.Errorf("make the buffer of asynchronous saves: %w", err)
	}
	f := os.NewFile(uintptr(fd), "troupe-save")
	if err := f.Truncate(size); err != nil {
		f.Close()
		return nil, fmt.Errorf("make a buffer of %d bytes: %w", size, err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal the buffer of asynchronous saves: %w", err)
	}
	return &buffer{name: name, file: f, size: size}, nil
}

// path opens the buffer in the saver, a child of this process and of its user.
func (b *buffer) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), b.file.Fd()) }

// bufferLimit is the most that one rank's buffer may have: the bundle's memory, else
// the machine's.
func (s *shim) bufferLimit() int64 {
	if n := int64(s.cfg.Limits.Memory); n > 0 {
		return n
	}
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return 0
	}
	return int64(si.Totalram) * int64(si.Unit)
}

// bufferOf is the buffer of a local rank, made or made anew if it is too small. It
// belongs to the loop, and must not be asked while the saver reads the old one.
func (s *shim) bufferOf(local, size int64) (*buffer, error) {
	old := s.buffers[local]
	if old != nil && old.size >= size {
		return old, nil
	}
	if old != nil { // first: two of them may be more than there is
		old.file.Close()
		delete(s.buffers, local)
	}
	page := int64(os.Getpagesize())
	s.bufferSeq++
	b, err := newBuffer(fmt.Sprintf("b%d", s.bufferSeq), (size+page-1)/page*page)
	if err != nil {
		return nil, err
	}
	s.buffers[local] = b
	return b, nil
}

// freeBuffers gives back what no rank of an attempt will use.
func (s *shim) freeBuffers(a *attempt) {
	wanted := map[int64]bool{}
	for _, r := range a.spec.Ranks {
		wanted[r.LocalRank] = true
	}
	for local, b := range s.buffers {
		if !wanted[local] && s.staged[local] == nil {
			b.file.Close()
			delete(s.buffers, local)
		}
	}
}

// buffer hands a rank its shared memory once the saver no longer reads it.
func (rc *rankConn) buffer(req *RankRequest) *RankReply {
	if req.Size <= 0 {
		return refuse("usage", "a buffer of %d bytes", req.Size)
	}
	if limit := rc.s.bufferLimit(); req.Size > limit {
		return refuse("memory", "a buffer of %d bytes for this save: the job has %d bytes of memory", req.Size, limit)
	}
	if bad := rc.settled(req); bad != nil {
		return bad
	}
	rep := refuse("ended", "the shim is ending")
	rc.s.ask(func() {
		local := rc.r.spec.LocalRank
		if st := rc.s.staged[local]; st != nil { // another connection of the rank
			rep = st.busy()
			return
		}
		b, err := rc.s.bufferOf(local, req.Size)
		if err != nil {
			rep = refuse("memory", "%v", err)
			return
		}
		rep = &RankReply{OK: true, Step: -1, Buffer: b.name, Size: b.size}
		if b.name != req.Buffer {
			rep.pass = b.file
		}
		rc.s.spring(api.SaveBegun, rc.a.spec.Generation, rc.r.spec.Rank)
	})
	return rep
}
