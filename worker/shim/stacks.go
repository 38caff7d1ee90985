package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	// StackSignal is the signal on which the Python helper has faulthandler write the
	// stacks of its threads: a real-time signal that no library is known to use.
	StackSignal = 46
	maxStack    = 4 << 10
	stackWait   = time.Second
)

// stackFile is where a rank's helper writes its stacks.
func (s *shim) stackFile(generation uint64, rank int64) string {
	return filepath.Join(s.cfg.SocketDir, fmt.Sprintf("stack-g%d-r%d", generation, rank))
}

// speaker is the process that said hello for a rank; the descriptor keeps its number from
// being another process's. It belongs to the loop.
type speaker struct {
	pid int
	fd  int
}

// listenTo notes who speaks for a rank, by what the kernel says of the connection: behind
// a wrapper it is not the process that the shim started.
func (rc *rankConn) listenTo() {
	raw, err := rc.c.SyscallConn()
	if err != nil {
		return
	}
	var pid int
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	if pid <= 1 {
		return
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended, or the kernel is too old: /proc has to do
	}
	rc.own = speaker{pid, fd}
	rc.s.post(func() {
		if rc.r.speaks.pid == 0 {
			rc.r.speaks = rc.own
		}
	})
}

// leave forgets the speaker when its connection ends.
func (rc *rankConn) leave() {
	if rc.own.fd <= 0 {
		return
	}
	own := rc.own
	rc.s.post(func() {
		if rc.r.speaks == own {
			rc.r.speaks = speaker{}
		}
		unix.Close(own.fd)
	})
}

// stacks asks every local rank where it stands and hands the answer to tell, in the loop.
func (s *shim) stacks(tell func([]wire.RankStack)) {
	a := s.att
	if !a.active() || !a.began {
		tell(nil)
		return
	}
	var out []wire.RankStack
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, r := range a.ranks {
		if r.ended {
			continue
		}
		rank, main, step := r.spec.Rank, r.pid, r.page.step()
		speaks, file := r.speaks, s.stackFile(a.spec.Generation, rank)
		if speaks.fd > 0 {
			// Its own, since the rank's connection may end meanwhile.
			fd, err := unix.FcntlInt(uintptr(speaks.fd), unix.F_DUPFD_CLOEXEC, 3)
			if err != nil {
				speaks = speaker{}
			} else {
				speaks.fd = fd
			}
		}
		wg.Go(func() {
			x := stackOf(main, speaks, file)
			if speaks.fd > 0 {
				unix.Close(speaks.fd)
			}
			x.Rank, x.Step = rank, step
			mu.Lock()
			out = append(out, x)
			mu.Unlock()
		})
	}
	go func() {
		wg.Wait()
		s.post(func() { tell(out) })
	}()
}

// stackOf finds out where a process stands: by its own word if its helper waits for the
// signal, else by the kernel's.
func stackOf(main int, speaks speaker, file string) wire.RankStack {
	pid := main
	if speaks.pid > 0 {
		pid = speaks.pid
	}
	state, caught := procState(pid)
	x := wire.RankStack{State: state}
	stopped := state != "" && strings.ContainsAny(state[:1], "TtDZX")
	if speaks.fd > 0 && caught && !stopped {
		if text, err := ownWord(speaks.fd, file); err == nil {
			x.Stack = text
			return x
		}
	}
	x.Stack = kernelWord(pid)
	return x
}

// procState reads a process's state and whether it has a handler for the signal; without
// one the signal would end it.
func procState(pid int) (state string, caught bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "", false
	}
	for line := range bytes.Lines(b) {
		k, v, _ := strings.Cut(strings.TrimSpace(string(line)), ":")
		v = strings.TrimSpace(v)
		switch k {
		case "State":
			state = v
		case "SigCgt":
			mask, err := strconv.ParseUint(v, 16, 64)
			caught = err == nil && mask&(1<<(StackSignal-1)) != 0
		}
	}
	return state, caught
}

// ownWord has faulthandler write the stacks and reads them, once they grow no more.
func ownWord(pidfd int, file string) (string, error) {
	if err := os.Truncate(file, 0); err != nil {
		return "", err
	}
	if err := unix.PidfdSendSignal(pidfd, StackSignal, nil, 0); err != nil {
		return "", err
	}
	deadline := time.Now().Add(stackWait)
	var size int64
	for time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
		st, err := os.Lstat(file)
		if err != nil || !st.Mode().IsRegular() {
			return "", errors.New("the file of stacks is gone")
		}
		if st.Size() > 0 && st.Size() == size {
			break
		}
		size = st.Size()
	}
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return "", err
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return "", errors.New("it did not answer")
	}
	return tidyStack(string(b)), nil
}

var (
	threadOf   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^(Current thread|Thread) 0x[0-9a-f]+`) })
	addressesA = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`0x[0-9a-f]{6,}`) })
)

// tidyStack drops what differs between equal stacks, and puts the thread that answered,
// which is the main one where it can, first.
func tidyStack(s string) string {
	s = threadOf().ReplaceAllString(strings.ToValidUTF8(s, "?"), "$1")
	var first, rest []string
	for part := range strings.SplitSeq(strings.TrimSpace(s), "\n\n") {
		if strings.HasPrefix(part, "Current thread") {
			first = append(first, part)
		} else {
			rest = append(rest, part)
		}
	}
	return clip(strings.Join(append(first, rest...), "\n"), maxStack)
}

// kernelWord is what the kernel tells of a process: the call that it waits in, and its
// stack in the kernel where this process may read it.
func kernelWord(pid int) string {
	var b strings.Builder
	read := func(name string) string {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(strings.ToValidUTF8(string(raw[:min(len(raw), maxStack)]), "?"))
	}
	if comm := read("comm"); comm != "" {
		fmt.Fprintf(&b, "program %s\n", comm)
	}
	if w := read("wchan"); w != "" && w != "0" {
		fmt.Fprintf(&b, "waits in %s\n", w)
	}
	if call, _, _ := strings.Cut(read("syscall"), " "); call != "" && call != "running" {
		fmt.Fprintf(&b, "system call %s\n", call)
	}
	if k := read("stack"); k != "" {
		b.WriteString("in the kernel:\n" + addressesA().ReplaceAllString(k, "0x…") + "\n")
	}
	if b.Len() == 0 {
		return "nothing is known of the process"
	}
	return clip(strings.TrimSpace(b.String()), maxStack)
}
