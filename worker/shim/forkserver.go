package shim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/worker/process"
	"github.com/troupe-runtime/troupe/worker/warm"
)

const (
	// WarmSocket is where a forkserver that is being started finds its shim.
	WarmSocket  = "warm.sock"
	warmLog     = "warm.log"        // what modules say while they are imported
	warmProbe   = "warm-probe.json" // what an interpreter says of itself
	maxTries    = 12                // forkservers in a row, each without one module more
	probeLimit  = 20 * time.Second
	acceptLimit = 30 * time.Second
	endLimit    = time.Second // between a broken connection and the end of its process
)

// forkserver is one forkserver, from before its start to after its end.
type forkserver struct {
	w    *warmth
	spec warm.Spec
	done chan struct{} // closed when ready or given up
	quit chan struct{} // closed by stop
	once sync.Once

	mu    sync.Mutex
	srv   *warm.Server
	child *child
	info  warm.Ready
	err   error
}

func newForkserver(w *warmth, sp *warm.Spec) *forkserver {
	return &forkserver{w: w, spec: *sp, done: make(chan struct{}), quit: make(chan struct{})}
}

// run brings it up to the point where it can fork, or finds out why it cannot.
func (f *forkserver) run() {
	begin := time.Now()
	err := f.prepare()
	f.mu.Lock()
	f.err = err
	info := f.info
	f.mu.Unlock()
	close(f.done)
	if err != nil {
		log.Printf("no forkserver for %s: %v", f.spec.Name(), err)
		f.stop()
		return
	}
	log.Printf("forkserver ready for %s after %s: process %d, %d modules, %d MB", f.spec.Name(),
		time.Since(begin).Round(time.Millisecond), f.process(), info.Modules, info.RSS>>20)
	for _, m := range info.Missing {
		log.Printf("forkserver: %s is left out: %s", m.Module, m.Reason)
	}
}

func (f *forkserver) prepare() error {
	if err := f.probe(); err != nil {
		return err
	}
	known := f.w.store.Get(f.spec.Program, f.spec.Name())
	order := &warm.Order{
		Preload: warm.Preload, Learned: known.Modules, Dropped: known.Names(),
		Script: f.spec.Command.Script, Safe: f.spec.SafePath(), Own: warm.Own(),
	}
	for range maxTries {
		importing, err := f.try(order)
		var bad warm.Missing
		tainted, isTainted := errors.AsType[*warm.Tainted](err)
		switch {
		case err == nil:
			return nil
		case f.stopped():
			return errors.New("it was given up")
		case isTainted:
			bad = warm.Missing{Module: tainted.Module, Reason: tainted.Reason}
		case importing != "" && f.crashed():
			bad = warm.Missing{Module: importing, Reason: "the forkserver died while it was imported: " + f.ending()}
		case importing != "":
			return fmt.Errorf("it ended while it imported %s: %s", importing, f.ending())
		default:
			return err
		}
		if slices.Contains(warm.Preload, bad.Module) {
			return neverf("%s cannot be preloaded: %s", bad.Module, bad.Reason)
		}
		log.Printf("forkserver: %s is dropped from the preload: %s", bad.Module, bad.Reason)
		f.w.update(&f.spec, func(l *warm.Learned) { l.Dropped = append(l.Dropped, bad) })
		order.Dropped = append(order.Dropped, bad.Module)
	}
	return neverf("%d modules in a row could not be preloaded", maxTries)
}

// never is why no forkserver can serve a script, however often it is tried.
type never struct{ text string }

func (n *never) Error() string { return n.text }

func neverf(format string, args ...any) error { return &never{fmt.Sprintf(format, args...)} }

// hopeless reports whether another forkserver would fail in the same way.
func hopeless(err error) bool {
	_, is := errors.AsType[*never](err)
	return is
}

// crashed reports whether it ended by its own doing, not by somebody's signal.
func (f *forkserver) crashed() bool {
	f.mu.Lock()
	c := f.child
	f.mu.Unlock()
	select {
	case <-c.ended:
	default:
		return false
	}
	if !c.ws.Signaled() {
		return true
	}
	switch c.ws.Signal() { // those that the kernel sends for a fault
	case unix.SIGSEGV, unix.SIGBUS, unix.SIGILL, unix.SIGFPE, unix.SIGABRT, unix.SIGTRAP, unix.SIGSYS:
		return true
	}
	return false
}

// probe asks the interpreter whether it comes the forkserver's way at all, before a script
// is named to it that it would run otherwise.
func (f *forkserver) probe() error {
	out := filepath.Join(f.w.cfg.Dir, warmProbe)
	os.Remove(out)
	defer os.Remove(out)
	argv := append(append([]string{f.spec.Command.Program}, f.spec.Command.Flags...), "-c", "pass")
	c, err := f.w.spawn.spawn(f.spec.Dir, argv, f.spec.Environ(f.w.cfg.Warm.Hook, warm.ProbeEnv+"=1"), out)
	if err != nil {
		return fmt.Errorf("ask the interpreter: %w", err)
	}
	select {
	case <-c.ended:
	case <-f.quit:
		f.w.spawn.rip.signal(c.pid, unix.SIGKILL)
		return errors.New("it was given up")
	case <-time.After(probeLimit):
		f.w.spawn.rip.signal(c.pid, unix.SIGKILL)
		return fmt.Errorf("%s does not answer within %s", f.spec.Program, probeLimit)
	}
	var answer struct {
		Torch   bool    `json:"torch"`
		Version []int64 `json:"version"`
	}
	if !readAnswer(out, &answer) {
		return neverf("%s does not read sitecustomize from PYTHONPATH", f.spec.Program)
	}
	switch v := answer.Version; {
	case len(v) < 2 || v[0] != 3 || v[1] < 10:
		return neverf("%s is Python %v; a forkserver needs 3.10 or newer", f.spec.Program, v)
	case !answer.Torch:
		return neverf("%s has no torch", f.spec.Program)
	}
	return nil
}

// readAnswer finds the one line of JSON in what a probe said.
func readAnswer(path string, v any) bool {
	b, err := readTail(path, tailSize)
	if err != nil {
		return false
	}
	for line := range bytes.Lines(b) {
		if json.Unmarshal(line, v) == nil {
			return true
		}
	}
	return false
}

// try starts one forkserver and waits until it has imported everything.
func (f *forkserver) try(order *warm.Order) (importing string, err error) {
	path := filepath.Join(f.w.cfg.SocketDir, WarmSocket)
	l, err := listen(path)
	if err != nil {
		return "", err
	}
	defer os.Remove(path)
	defer l.Close()
	argv := append(f.spec.Command.Head(), f.spec.Command.Args...)
	c, err := f.w.spawn.spawn(f.spec.Dir, argv, f.spec.Environ(f.w.cfg.Warm.Hook, warm.SocketEnv+"="+path), filepath.Join(f.w.cfg.Dir, warmLog))
	if err != nil {
		return "", fmt.Errorf("start the forkserver: %w", err)
	}
	conn, err := acceptFrom(l, c, f.quit)
	if err != nil {
		f.w.spawn.rip.signal(c.pid, unix.SIGKILL)
		return "", err
	}
	srv := warm.NewServer(conn)
	f.mu.Lock()
	f.srv, f.child = srv, c
	f.mu.Unlock()
	if f.stopped() {
		srv.Close()
	}
	r, importing, err := srv.Prepare(order)
	if err != nil {
		srv.Close()
		if !f.endsSoon() { // what it died of is told with its end
			f.w.spawn.rip.signal(c.pid, unix.SIGKILL)
		}
		return importing, err
	}
	f.mu.Lock()
	f.info = r
	f.mu.Unlock()
	return "", nil
}

// acceptFrom takes the connection of one process and of no other.
func acceptFrom(l *net.UnixListener, c *child, quit <-chan struct{}) (*net.UnixConn, error) {
	_ = l.SetDeadline(time.Now().Add(acceptLimit))
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-c.ended:
		case <-quit:
		case <-stop:
			return
		}
		l.Close()
	}()
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			select {
			case <-c.ended:
				return nil, fmt.Errorf("the forkserver ended at once: %s", endText(c.ws, false))
			default:
				return nil, fmt.Errorf("the forkserver did not call: %w", err)
			}
		}
		if err := process.CheckPeer(conn); err != nil || peerPID(conn) != c.pid {
			log.Printf("warm socket: a process that is not the forkserver called (%d, %v)", peerPID(conn), err)
			conn.Close()
			continue
		}
		return conn, nil
	}
}

func peerPID(c *net.UnixConn) int {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// wait returns when it can fork, or why it cannot.
func (f *forkserver) wait(ctx context.Context) error {
	select {
	case <-f.done:
		return f.failed()
	case <-ctx.Done():
		return fmt.Errorf("the forkserver is not ready after %s", warmLimit)
	}
}

// failed is why it can never fork, nil while that is not known.
func (f *forkserver) failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// alive reports whether it is being started or can fork.
func (f *forkserver) alive() bool {
	f.mu.Lock()
	c := f.child
	f.mu.Unlock()
	select {
	case <-f.done:
	default:
		return true
	}
	if c == nil {
		return false
	}
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// endsSoon waits a moment for the end of a process whose connection failed: a dying
// process closes its sockets before its parent can be told what it died of.
func (f *forkserver) endsSoon() bool {
	f.mu.Lock()
	c := f.child
	f.mu.Unlock()
	if c == nil {
		return true
	}
	select {
	case <-c.ended:
		return true
	case <-time.After(endLimit):
		return false
	}
}

func (f *forkserver) process() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.child == nil {
		return 0
	}
	return f.child.pid
}

func (f *forkserver) reads() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.info.Reads
}

// ending tells how its process ended.
func (f *forkserver) ending() string {
	f.mu.Lock()
	c := f.child
	f.mu.Unlock()
	if c == nil {
		return "it was never started"
	}
	select {
	case <-c.ended:
		return endText(c.ws, false)
	default:
		return "it lives"
	}
}

// stop gives it up.
func (f *forkserver) stop() {
	f.once.Do(func() { close(f.quit) })
	f.mu.Lock()
	srv, c := f.srv, f.child
	f.mu.Unlock()
	if srv != nil {
		srv.Close()
	}
	if c != nil {
		f.w.spawn.rip.signal(c.pid, unix.SIGKILL)
	}
}

func (f *forkserver) stopped() bool {
	select {
	case <-f.quit:
		return true
	default:
		return false
	}
}

// fork starts a rank for each spec, brought to the point where only the word to go is
// missing. On an error nothing of them goes on, as with tryFork.
func (f *forkserver) fork(specs []initSpec) (_ []*started, err error) {
	ranks := make([]*started, len(specs))
	defer func() {
		if err != nil {
			closeAll(ranks)
		}
	}()
	fds := make([]int, 0, len(specs))
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	for i := range specs {
		s, fd, err := rankSocket()
		if err != nil {
			return nil, err
		}
		ranks[i] = s
		fds = append(fds, fd)
	}
	f.mu.Lock()
	srv := f.srv
	f.mu.Unlock()
	f.w.spawn.rip.forget()
	if err := srv.Fork(fds); err != nil {
		if !errors.Is(err, warm.ErrRefused) && f.endsSoon() {
			return nil, fmt.Errorf("the forkserver ended: %s", f.ending())
		}
		return nil, err
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	fds = nil
	return ranks, handshake(ranks, specs)
}

// loadsTorch reports whether a process, or one of its children's interpreters, has torch's
// library mapped.
func loadsTorch(pid int) bool {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		return false
	}
	defer f.Close()
	sc := bufio.NewScanner(io.LimitReader(f, 8<<20))
	for sc.Scan() {
		if strings.Contains(sc.Text(), "/libtorch") {
			return true
		}
	}
	return false
}
