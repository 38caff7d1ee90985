package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/frame"
	"github.com/troupe-runtime/troupe/worker/process"
	"github.com/troupe-runtime/troupe/worker/warm"
)

// A spare is a shim before it has an allocation: it holds one forkserver that has imported
// what the last job needed, and becomes, by exec, the shim of the next job that needs the
// same. Ranks must be the shim's own children, so the forkserver cannot change hands; the
// shim around it can. A spare ends with the connection to its agent.

const (
	modeSpare = "spare"
	modeAdopt = "adopt"
	maxSpare  = 8 << 20
)

// spareOrder is what the agent tells a spare: first what to hold, then whose shim to become.
type spareOrder struct {
	Spec  *warm.Spec `json:"spec,omitempty"`
	Adopt string     `json:"adopt,omitempty"` // path of the allocation's shim.json
}

// spareReport is what a spare tells.
type spareReport struct {
	Ready  *warm.Ready `json:"ready,omitempty"`
	PID    int         `json:"pid,omitempty"` // of the forkserver
	Failed string      `json:"failed,omitempty"`
}

// heirloom is what a spare hands to the shim that it becomes, with the connection.
type heirloom struct {
	PID   int        `json:"pid"`
	Spec  warm.Spec  `json:"spec"`
	Ready warm.Ready `json:"ready"`
}

// A spare must keep its main goroutine on the main thread, and only from here on is that
// certain: once main runs, a busy machine may move it before it locks anything.
func init() {
	if n := len(os.Args); n >= 3 && os.Args[0] == "troupe-shim" && os.Args[n-2] == modeSpare {
		lockThread()
	}
}

// spareMain serves as a spare until it is adopted or the agent hangs up.
func spareMain(path string) error {
	// PDEATHSIG of the forkserver means the end of the thread that is its parent, the main
	// one; and only an exec on that thread leaves it alive: see init.
	lockThread()
	small()
	closeOnExec()
	log.SetPrefix("troupe-shim: ")
	cfg, err := ReadConfig(path)
	if err != nil {
		return err
	}
	s, err := newShim(cfg)
	if err != nil {
		return err
	}
	ignoreSignals()
	go s.rip.run()
	agent, err := connOf(0)
	if err != nil {
		return fmt.Errorf("reach the agent: %w", err)
	}
	var o spareOrder
	if err := ReadFrame(agent, maxSpare, &o); err != nil || o.Spec == nil {
		return fmt.Errorf("hear from the agent: %w", err)
	}
	adopt := make(chan string, 1)
	go func() {
		defer close(adopt)
		var o spareOrder
		if ReadFrame(agent, maxSpare, &o) == nil {
			adopt <- o.Adopt
		}
	}()
	err = s.spare(o.Spec, agent, adopt)
	if err != nil {
		_ = WriteFrame(agent, maxSpare, spareReport{Failed: err.Error()})
	}
	agent.Close()
	s.warm.close()
	res := process.Sweep(context.Background(), s.target())
	s.cleanUp()
	return errors.Join(err, res.Error())
}

// spare brings the forkserver up and waits. It returns when there is nothing to wait for.
func (s *shim) spare(sp *warm.Spec, agent *net.UnixConn, adopt <-chan string) error {
	f := s.warm.begin(sp)
	select {
	case <-f.done:
	case <-adopt:
		return nil // before it was ready there is nothing to adopt
	}
	if err := f.failed(); err != nil {
		return err
	}
	f.mu.Lock()
	info, c := f.info, f.child
	f.mu.Unlock()
	if err := WriteFrame(agent, maxSpare, spareReport{Ready: &info, PID: c.pid}); err != nil {
		return err
	}
	select {
	case <-c.ended:
		return fmt.Errorf("the forkserver ended: %s", f.ending())
	case path, ok := <-adopt:
		if !ok {
			return nil
		}
		return s.become(path, f)
	}
}

// become turns this process into the shim of an allocation. It returns only on an error.
func (s *shim) become(path string, f *forkserver) error {
	if unix.Gettid() != os.Getpid() {
		return errors.New("this is not the main thread")
	}
	if err := redirect(filepath.Join(filepath.Dir(path), "shim.log"), 1); err != nil {
		return err
	}
	if err := unix.Dup3(1, 2, 0); err != nil {
		return err
	}
	conn, err := f.srv.File()
	if err != nil {
		return err
	}
	b, err := json.Marshal(heirloom{PID: f.process(), Spec: f.spec, Ready: f.info})
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("troupe-warm", 0) // the environment is in it: never on a disk
	if err != nil {
		return fmt.Errorf("hand the forkserver over: %w", err)
	}
	if _, err := unix.Write(fd, b); err != nil {
		return fmt.Errorf("hand the forkserver over: %w", err)
	}
	if _, err := unix.FcntlInt(conn.Fd(), unix.F_SETFD, 0); err != nil {
		return err
	}
	null, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	if err := unix.Dup3(null, 0, 0); err != nil { // it was the agent's
		return err
	}
	argv := []string{"troupe-shim", "shim", modeAdopt, strconv.Itoa(fd), strconv.Itoa(int(conn.Fd())), path}
	err = syscall.Exec(selfExe, argv, os.Environ())
	runtime.KeepAlive(conn)
	return fmt.Errorf("become the shim of %s: %w", path, err)
}

// inherit reads what a spare has handed over.
func inherit(memory, conn string) (h heirloom, c *net.UnixConn, err error) {
	m, err1 := strconv.Atoi(memory)
	n, err2 := strconv.Atoi(conn)
	if err := errors.Join(err1, err2); err != nil {
		return h, nil, err
	}
	f := os.NewFile(uintptr(m), "heirloom")
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxSpare))
	if err != nil {
		return h, nil, err
	}
	if err := json.Unmarshal(b, &h); err != nil {
		return h, nil, err
	}
	c, err = connOf(n)
	return h, c, err
}

func connOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	if f == nil {
		return nil, fmt.Errorf("descriptor %d is not open", fd)
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("descriptor %d is no Unix socket", fd)
	}
	return u, nil
}

// adopt makes the forkserver that a spare held this shim's own.
func (w *warmth) adopt(h *heirloom, c *net.UnixConn) {
	f := newForkserver(w, &h.Spec)
	f.srv, f.info = warm.NewServer(c), h.Ready
	f.child = w.spawn.adopt(h.PID)
	close(f.done)
	w.mu.Lock()
	w.cur = f
	w.mu.Unlock()
	log.Printf("a spare forkserver was taken over: process %d", h.PID)
	go w.spawn.move(h.PID)
}

// Spare is the agent's side of a spare.
type Spare struct {
	Process *os.Process
	Ended   chan struct{} // closed when it has ended, whatever it was by then
	Spec    warm.Spec
	cfg     Config
	conn    *net.UnixConn
	ready   chan struct{}
	info    warm.Ready
	err     error
	adopted bool
	groups  *process.Groups // its own, when it was adopted
}

// StartSpare starts a spare in cfg.Dir as Launch starts a shim. Of cfg, Alloc names its
// groups and Cookie its processes, and those of the allocation that adopts it.
func StartSpare(binary string, args []string, cfg Config, sp *warm.Spec) (*Spare, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket pair: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "spare")
	defer theirs.Close()
	conn, err := connOf(pair[0])
	if err != nil {
		return nil, err
	}
	p, err := launch(binary, append(append([]string{}, args...), modeSpare), cfg, theirs, false)
	if err != nil {
		conn.Close()
		return nil, err
	}
	s := &Spare{Process: p, Ended: make(chan struct{}), Spec: *sp, cfg: cfg, conn: conn, ready: make(chan struct{})}
	go func() {
		defer close(s.Ended)
		_, _ = p.Wait()
	}()
	if err := WriteFrame(conn, maxSpare, spareOrder{Spec: sp}); err != nil {
		s.Close()
		return nil, fmt.Errorf("tell the spare what to hold: %w", err)
	}
	go func() {
		defer close(s.ready)
		var r spareReport
		switch err := frame.Read(conn, maxSpare, &r); {
		case err != nil:
			s.err = fmt.Errorf("the spare ended: %w", err)
		case r.Ready == nil:
			s.err = errors.New(r.Failed)
		default:
			s.info = *r.Ready
		}
	}()
	return s, nil
}

// Ready is closed when the forkserver can fork, or never will; Err tells which.
func (s *Spare) Ready() <-chan struct{} { return s.ready }

// Err is why it is of no use; nil before Ready.
func (s *Spare) Err() error {
	select {
	case <-s.ready:
		return s.err
	default:
		return nil
	}
}

// RSS is the forkserver's resident memory in bytes when it was ready.
func (s *Spare) RSS() int64 { return s.info.RSS }

// Fits says why it cannot start a job's ranks; "" when it can, now.
func (s *Spare) Fits(sp *warm.Spec) string {
	select {
	case <-s.ready:
	default:
		return "it is not ready"
	}
	if s.err != nil {
		return s.err.Error()
	}
	return s.Spec.Differs(sp, s.info.Reads)
}

// Dir is its folder, to be removed when it has ended or been adopted.
func (s *Spare) Dir() string { return s.cfg.Dir }

// Adopt makes it the shim of an allocation, with the spare's cookie. The caller dials it as
// one that was launched.
func (s *Spare) Adopt(cfg Config) error {
	cfg.Cookie = s.cfg.Cookie
	path, _, err := prepareDir(&cfg)
	if err != nil {
		return err
	}
	// Its own configuration goes before it gets the word: an agent that starts again would
	// take the two for one, by their cookie, and end both.
	s.groups = groupsIn(s.cfg.Dir)
	if err := os.Remove(filepath.Join(s.cfg.Dir, ConfigFile)); err != nil {
		return fmt.Errorf("adopt a spare: %w", err)
	}
	s.adopted = true
	if err := WriteFrame(s.conn, maxSpare, spareOrder{Adopt: path}); err != nil {
		return fmt.Errorf("tell the spare to become a shim: %w", err)
	}
	return nil
}

func groupsIn(dir string) *process.Groups {
	cfg, err := ReadConfig(filepath.Join(dir, ConfigFile))
	if err != nil {
		return nil
	}
	return cfg.Groups
}

// Clear removes what a spare has left that has ended or was adopted, and ends what it has
// left alive. The error names what did not die.
func (s *Spare) Clear() error {
	if !s.adopted {
		res, _, err := Sweep(context.Background(), s.cfg.Dir)
		if err := errors.Join(err, res.Error()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err // the next agent sweeps it again
		}
	} else if s.groups != nil {
		_ = s.groups.Remove(10*time.Second, false) // its processes are moving out
	}
	os.RemoveAll(s.cfg.Dir)
	removeSockets(s.cfg.SocketDir)
	return nil
}

// AttemptSpec is what a forkserver for the ranks of an attempt would be started for; ok is
// false when they cannot be forked. launchEnv is the launch environment, NAME=value.
func AttemptSpec(cfg *Config, a *wire.AttemptSpec, launchEnv []string) (sp warm.Spec, ok bool) {
	if len(a.Ranks) == 0 || len(a.Command) == 0 {
		return sp, false
	}
	env := rankEnv(cfg, a, a.Ranks[0], baseEnv(), launchEnv, "", "")
	sp, _, ok = WarmSpec(cfg.Warm, a, rankArgs(a.Command, a.Ranks[0].LocalRank), env)
	return sp, ok
}

// Cookie marks its processes.
func (s *Spare) Cookie() string { return s.cfg.Cookie }

// Close hangs up: a spare ends, one that was adopted does not.
func (s *Spare) Close() { s.conn.Close() }
