package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CookieEnv is the environment variable that marks every process of an allocation.
const CookieEnv = "TROUPE_COOKIE"

// Proc is one process as /proc shows it.
type Proc struct {
	PID   int
	PPID  int
	State byte   // R, S, D, Z, …
	Start uint64 // field 22 of stat: clock ticks since boot
	Name  string

	forked bool // and has not executed a program since
}

// forkNoExec is the kernel's PF_FORKNOEXEC.
const forkNoExec = 0x40

// Dead reports whether nothing of the process runs any more. A zombie is dead: it
// holds no memory and no device, only a row of the table (P6).
func (p Proc) Dead() bool { return p.State == 'Z' || p.State == 'X' || p.State == 0 }

// NeverRan reports whether a child that nobody has waited for ended before it executed the
// program that it was forked for.
func NeverRan(pid int) bool {
	p, err := ReadProc(pid)
	return err == nil && p.Dead() && p.forked
}

// ErrGone is returned when a process does not exist (any more).
var ErrGone = errors.New("process does not exist")

// ReadProc reads one process; ErrGone when there is none.
func ReadProc(pid int) (Proc, error) {
	var buf [1024]byte
	n, err := readSmall("/proc/"+strconv.Itoa(pid)+"/stat", buf[:])
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
			return Proc{}, ErrGone
		}
		return Proc{}, fmt.Errorf("read stat of process %d: %w", pid, err)
	}
	p, err := parseStat(buf[:n])
	if err != nil {
		return Proc{}, fmt.Errorf("stat of process %d: %w", pid, err)
	}
	return p, nil
}

// parseStat reads the fields that are needed of /proc/PID/stat. The name may hold
// spaces and parentheses, so it ends at the last one.
func parseStat(b []byte) (Proc, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 2 || end < open {
		return Proc{}, fmt.Errorf("no name in %q", b)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	if err != nil {
		return Proc{}, fmt.Errorf("no pid in %q", b)
	}
	f := bytes.Fields(b[end+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return Proc{}, fmt.Errorf("too few fields in %q", b)
	}
	ppid, err1 := strconv.Atoi(string(f[1]))
	start, err2 := strconv.ParseUint(string(f[19]), 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return Proc{}, err
	}
	p := Proc{PID: pid, PPID: ppid, State: f[0][0], Start: start, Name: string(b[open+1 : end])}
	if flags, err := strconv.ParseUint(string(f[6]), 10, 64); err == nil {
		p.forked = flags&forkNoExec != 0
	}
	return p, nil
}

// readSmall reads a file of /proc without the allocations of os.ReadFile, which
// ask for its size first.
func readSmall(path string, buf []byte) (int, error) {
	fd, err := openRead(path)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	n := 0
	for n < len(buf) {
		m, err := unix.Read(fd, buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return n, err
		}
		if m == 0 {
			break
		}
		n += m
	}
	return n, nil
}

func openRead(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// pids lists every process of the machine.
func pids() ([]int, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	list := make([]int, 0, len(names))
	for _, n := range names {
		if n[0] < '0' || n[0] > '9' {
			continue
		}
		if pid, err := strconv.Atoi(n); err == nil {
			list = append(list, pid)
		}
	}
	return list, nil
}

// telling reports whether an error says something of the process that was looked at:
// it is gone, it belongs to somebody else, it has no environment to read. Any other
// (no descriptors, no memory) says that nothing was learned, and nothing learned is
// never taken for nothing there (P2).
func telling(err error) bool {
	for _, e := range []error{ErrGone, unix.ENOENT, unix.ESRCH, unix.EACCES, unix.EPERM, unix.EIO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Identity names a process so that it is never mistaken for a later one that got
// the same pid.
type Identity struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"` // field 22 of /proc/PID/stat
	BootID    string `json:"bootId"`
}

// Self identifies the calling process.
func Self() (Identity, error) {
	boot, err := BootID()
	if err != nil {
		return Identity{}, err
	}
	p, err := ReadProc(os.Getpid())
	if err != nil {
		return Identity{}, err
	}
	return Identity{PID: p.PID, StartTime: p.Start, BootID: boot}, nil
}

// Read reads the identified process; ErrGone when it is not of this boot, has ended or
// is a zombie. Any other error means that this machine could not tell.
func (id Identity) Read() (Proc, error) {
	if id.PID <= 0 {
		return Proc{}, ErrGone
	}
	boot, err := BootID()
	if err != nil {
		return Proc{}, err
	}
	if boot != id.BootID {
		return Proc{}, ErrGone
	}
	p, err := ReadProc(id.PID)
	if err != nil {
		return Proc{}, err
	}
	if p.Start != id.StartTime || p.Dead() {
		return Proc{}, ErrGone
	}
	return p, nil
}

// Alive reports whether the identified process lives on this boot. One that cannot be
// looked at counts as alive: what is dead is proven dead (P2).
func (id Identity) Alive() bool {
	_, err := id.Read()
	return !errors.Is(err, ErrGone)
}

// Open returns a pidfd of the identified process; ErrGone when it has ended, another
// error when this machine could not tell. The descriptor is checked after it was
// opened, so it cannot belong to a later process.
func (id Identity) Open() (int, error) {
	if _, err := id.Read(); err != nil {
		return -1, err
	}
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, ErrGone
	}
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", id.PID, err)
	}
	if _, err := id.Read(); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Kill sends SIGKILL to exactly the identified process; nil when it is gone.
func (id Identity) Kill() error {
	fd, err := id.Open()
	if errors.Is(err, ErrGone) {
		return nil // what was asked for
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", id.PID, err)
	}
	return nil
}

// BootID identifies this boot of the machine.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func untold(pid int, err error) error {
	if telling(err) {
		return nil
	}
	return fmt.Errorf("read the environment of process %d: %w", pid, err)
}

// rss is the resident memory of a process in bytes, 0 when it is gone.
func rss(pid int) int64 {
	var buf [256]byte
	n, err := readSmall("/proc/"+strconv.Itoa(pid)+"/statm", buf[:])
	if err != nil {
		return 0
	}
	f := bytes.Fields(buf[:n])
	if len(f) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(string(f[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
