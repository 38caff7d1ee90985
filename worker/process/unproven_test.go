package process

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// marked starts a process that only its mark gives away.
func marked(t *testing.T, cookie string) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.Env = []string{CookieEnv + "=" + cookie}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	eventually(t, func() error {
		if len(Find(Target{Cookie: cookie})) != 1 {
			return errors.New("not found by its mark")
		}
		return nil
	})
	return cmd.Process.Pid
}

// sweepFor sweeps without waiting for as long as a real sweep does.
func sweepFor(s *scanner) Result {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	return sweep(ctx, s, s.kill)
}

// P2: a process without descriptors sees nothing, and does not say that nothing is there.
func TestSweepWithoutDescriptorsProvesNothing(t *testing.T) {
	pid := marked(t, "descriptors")
	id := identify(t, pid)
	s := newScanner(Target{Cookie: "descriptors"})
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Fatal(err)
		}
	}
	defer restore()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	res, alive := sweepFor(s), id.Alive()
	_, opened := id.Open()
	killed := id.Kill()
	restore()
	if res.Clean() || !errors.Is(res.Unproven, unix.EMFILE) || res.Error() == nil {
		t.Errorf("a blind sweep says %+v", res)
	}
	if !alive || opened == nil || errors.Is(opened, ErrGone) || killed == nil {
		t.Errorf("a process that cannot be looked at: alive %t, open %v, kill %v", alive, opened, killed)
	}
	if p, err := ReadProc(pid); err != nil || p.Dead() {
		t.Fatalf("the process did not survive the blind sweep: %+v %v", p, err)
	}
	if res := sweepFor(s); !res.Clean() || res.Killed != 1 {
		t.Errorf("with descriptors again: %+v", res)
	}
}

func identify(t *testing.T, pid int) Identity {
	t.Helper()
	boot, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	p, err := ReadProc(pid)
	if err != nil {
		t.Fatal(err)
	}
	return Identity{PID: pid, StartTime: p.Start, BootID: boot}
}

// P2: each question that a scan asks can go without an answer.
func TestUnansweredQuestionsProveNothing(t *testing.T) {
	pid := marked(t, "questions")
	// Groups of which one file is a folder and cannot be read.
	broken := func(unreadable string) string {
		dir := filepath.Join(t.TempDir(), "ranks")
		if err := os.MkdirAll(filepath.Join(dir, unreadable), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"cgroup.events", "cgroup.procs", "cgroup.kill"} {
			if f == unreadable {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return filepath.Dir(dir)
	}
	for name, c := range map[string]struct {
		err    error
		proven bool
	}{
		"no memory":     {unix.ENOMEM, false},
		"no file":       {unix.ENFILE, false},
		"gone":          {ErrGone, true},
		"another user":  {unix.EACCES, true},
		"no such entry": {unix.ENOENT, true},
	} {
		for what, arm := range map[string]func(*scanner){
			"read": func(s *scanner) { s.read = func(int) (Proc, error) { return Proc{}, c.err } },
			"marked": func(s *scanner) {
				s.marked = func(p int) (bool, error) {
					return false, untold(p, c.err)
				}
			},
		} {
			s := newScanner(Target{Cookie: "questions"})
			arm(s)
			if res := sweepFor(s); res.Clean() != c.proven {
				t.Errorf("%s, %s: %+v", what, name, res)
			}
		}
	}
	s := newScanner(Target{Cookie: "nobody"})
	s.list = func() ([]int, error) { return nil, unix.ENOMEM }
	if res := sweepFor(s); res.Clean() {
		t.Errorf("list: %+v", res)
	}
	for what, g := range map[string]Groups{
		"events": {Kill: broken("cgroup.events")}, "members": {Kill: broken("cgroup.procs")},
		"kill": {Kill: broken("cgroup.kill")}, "members by memory": {Memory: broken("cgroup.procs")},
	} {
		if res := sweepFor(newScanner(Target{Groups: g})); res.Clean() {
			t.Errorf("%s: %+v", what, res)
		}
	}
	if p, err := ReadProc(pid); err != nil || p.Dead() {
		t.Fatalf("nothing was to be killed: %+v %v", p, err)
	}
}

// A group that holds something which no scan sees is not clean, however long it takes.
func TestPopulatedGroupIsNotClean(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "g", "ranks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cgroup.events": "populated 1\nfrozen 0\n", "cgroup.procs": "", "cgroup.kill": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if res := sweepFor(newScanner(Target{Groups: Groups{Kill: filepath.Dir(dir)}})); res.Clean() {
		t.Errorf("%+v", res)
	}
}

// What was found once is not gone before it is dead: one that ends loses its mark first.
func TestFoundProcessStaysATarget(t *testing.T) {
	marked(t, "exiting")
	s := newScanner(Target{Cookie: "exiting"})
	see, asked := s.marked, 0
	s.marked = func(pid int) (bool, error) {
		if asked++; len(s.met) > 0 {
			return false, nil // its memory is gone
		}
		return see(pid)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if res := sweep(ctx, s, func(Proc) bool { return false }); len(res.Left) != 1 {
		t.Errorf("%+v after %d questions", res, asked)
	}
}

func TestPortTaken(t *testing.T) {
	for name, c := range map[string]struct {
		share, listen bool
		addr          [4]byte
		want          bool
	}{
		"held and shared, as by an agent": {share: true},
		"a server on all addresses":       {share: true, listen: true, want: true},
		"a server on one address":         {share: true, listen: true, addr: [4]byte{127, 0, 0, 1}, want: true},
		"held without sharing":            {want: true},
	} {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: c.addr})
		if err == nil && c.share {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}
		if err == nil && c.listen {
			err = unix.Listen(fd, 1)
		}
		if err != nil {
			t.Fatal(err)
		}
		sa, err := unix.Getsockname(fd)
		if err != nil {
			t.Fatal(err)
		}
		port := int64(sa.(*unix.SockaddrInet4).Port)
		for range 2 { // asking changes nothing
			if got, err := PortTaken(port); err != nil || got != c.want {
				t.Errorf("%s: %t, %v", name, got, err)
			}
		}
		unix.Close(fd)
		if got, err := PortTaken(port); err != nil || got {
			t.Errorf("%s, closed: %t, %v", name, got, err)
		}
	}
	for _, port := range []int64{-1, 0, 65536} {
		if _, err := PortTaken(port); err == nil {
			t.Errorf("port %d was tried", port)
		}
	}
}
