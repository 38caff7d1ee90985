package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

func TestParseStat(t *testing.T) {
	line := func(name string) string {
		return "42 (" + name + ") S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000 2 18446744073709551615"
	}
	for _, name := range []string{"sh", "a b", "a) S 1 (b", "(", ")", "x\ny", ""} {
		p, err := parseStat([]byte(line(name)))
		if err != nil || p.PID != 42 || p.PPID != 7 || p.State != 'S' || p.Start != 987654 || p.Name != name {
			t.Errorf("%q: %+v, %v", name, p, err)
		}
	}
	for _, bad := range []string{"", "42", "42 (sh", "x (sh) S 7", "42 (sh) S", strings.Replace(line("sh"), "987654", "soon", 1)} {
		if p, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was read as %+v", bad, p)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (init) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 5 1000 2"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := parseStat(b); err == nil && p.State == 0 {
			t.Errorf("%q: %+v", b, p)
		}
	})
}

func TestIdentityIsNotThePidAlone(t *testing.T) {
	id, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	if !id.Alive() {
		t.Error("this process is not alive")
	}
	for name, other := range map[string]Identity{
		"another start": {PID: id.PID, StartTime: id.StartTime + 1, BootID: id.BootID},
		"another boot":  {PID: id.PID, StartTime: id.StartTime, BootID: "x"},
		"another pid":   {PID: 1 << 30, StartTime: id.StartTime, BootID: id.BootID},
		"no pid":        {StartTime: id.StartTime, BootID: id.BootID},
	} {
		if other.Alive() {
			t.Errorf("%s counts as alive", name)
		}
		if fd, err := other.Open(); !errors.Is(err, ErrGone) {
			unix.Close(fd)
			t.Errorf("%s can be opened: %v", name, err)
		}
		if err := other.Kill(); err != nil { // and this test lives on
			t.Errorf("%s: %v", name, err)
		}
	}
}

// P6: a zombie is not alive.
func TestZombieIsDead(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	eventually(t, func() error {
		p, err := ReadProc(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if !p.Dead() {
			return fmt.Errorf("state %c", p.State)
		}
		return nil
	})
	if _, err := ReadProc(1 << 30); !errors.Is(err, ErrGone) {
		t.Errorf("no process: %v", err)
	}
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func TestCookieIsFoundWhereverItStands(t *testing.T) {
	mark := []byte(CookieEnv + "=abc\x00")
	for _, pad := range []int{0, 1, 90, 127, 128, 129, 1000, 100_000} {
		cmd := exec.Command("sleep", "1000")
		cmd.Env = []string{"PAD=" + strings.Repeat("x", pad), CookieEnv + "=abc", "END=1"}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error { // the environment shows only some time into the exec
			if has, err := hasMark(cmd.Process.Pid, [][]byte{mark}, make([]byte, 128)); err != nil {
				t.Fatal(err)
			} else if !has {
				return fmt.Errorf("not found behind %d bytes", pad)
			}
			return nil
		})
		if HasCookie(cmd.Process.Pid, "ab") || HasCookie(cmd.Process.Pid, "abcd") || HasCookie(cmd.Process.Pid, "") {
			t.Error("part of a cookie was taken for it")
		}
		cmd.Process.Kill()
		cmd.Wait()
	}
}

// tree starts a shell with children in sessions of their own and returns its pid
// once all are there.
func tree(t *testing.T, cookie string) int {
	t.Helper()
	cmd := exec.Command("sh", "-c", "setsid sleep 1000 & setsid sh -c 'sleep 1000 & sleep 1000' & echo up; wait")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), CookieEnv + "=" + cookie}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if n := len(Find(Target{Cookie: cookie})); n < 5 {
			return fmt.Errorf("%d processes are marked, want 5", n)
		}
		return nil
	})
	return cmd.Process.Pid
}

func TestSweepByCookie(t *testing.T) {
	mine, other := "sweep-"+t.Name(), "other-"+t.Name()
	tree(t, mine)
	kept := tree(t, other)
	if res := Sweep(context.Background(), Target{Cookie: mine}); !res.Clean() || res.Killed == 0 {
		t.Errorf("%+v", res)
	}
	if l := Find(Target{Cookie: mine}); len(l) > 0 {
		t.Errorf("left: %+v", l)
	}
	eventually(t, func() error {
		if n := len(Find(Target{Cookie: other})); n < 5 {
			return fmt.Errorf("of another allocation only %d are left", n)
		}
		return nil
	})
	if res := Sweep(context.Background(), Target{Root: kept, Cookie: other, Keep: []int{kept}}); !res.Clean() || res.Killed != 0 {
		t.Errorf("what was to be kept was killed: %+v", res)
	}
	if res := Sweep(context.Background(), Target{Root: kept}); !res.Clean() || res.Killed == 0 {
		t.Errorf("by tree: %+v", res)
	}
	Sweep(context.Background(), Target{Cookie: other})
}

func TestSweepOfNothing(t *testing.T) {
	if res := Sweep(context.Background(), Target{Cookie: "nobody", Groups: Groups{Kill: "/nonexistent/g", Memory: "/nonexistent/m"}, Whole: true}); !res.Clean() || res.Killed != 0 {
		t.Errorf("%+v", res)
	}
}

// P2: what does not die is named. A stopped context stands for a process that hangs
// in the kernel, which no test can make.
func TestWhatDoesNotDieIsNamed(t *testing.T) {
	cookie := "left-" + t.Name()
	tree(t, cookie)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s := newScanner(Target{Cookie: cookie})
	res := sweep(ctx, s, func(Proc) bool { return false })
	if res.Clean() || len(res.Left) < 5 || !strings.Contains(res.Error().Error(), "did not die: process ") {
		t.Errorf("%+v %v", res, res.Error())
	}
	if res := Sweep(context.Background(), Target{Cookie: cookie}); !res.Clean() {
		t.Error(res.Error())
	}
}

func TestGroups(t *testing.T) {
	c := Probe()
	if c.KillRoot == "" {
		t.Skipf("no writable cgroup2 mount with cgroup.kill: %v", c.Why)
	}
	name := fmt.Sprintf("test-groups-%d", os.Getpid())
	g, fallbacks := NewGroups(c, name, 1<<30)
	t.Cleanup(func() { g.KillAll(); g.Remove(5*time.Second, false) })
	if g.Kill == "" || (c.MemoryRoot != "") != (g.Memory != "") || (c.MemoryRoot == "") != (len(fallbacks) > 0) {
		t.Fatalf("%+v, fallbacks %v", g, fallbacks)
	}
	// Twice: a group that was killed once must not kill what comes later.
	for i := range 2 {
		kill, tasks, err := g.RankDirs(3)
		if err != nil || kill == "" || (tasks == "") != (g.Memory == "" || g.MemoryV2) {
			t.Fatalf("%q %q %v", kill, tasks, err)
		}
		fd, err := unix.Open(kill, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		// No mark, own session: only the group holds it.
		cmd := exec.Command("setsid", "sleep", "1000")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		eventually(t, func() error {
			if p, err := ReadProc(cmd.Process.Pid); err != nil || p.Dead() {
				t.Fatalf("it died at birth: %+v %v", p, err)
			}
			full, err := populated(filepath.Join(g.Kill, "ranks"))
			if list, lerr := members(g.Kill); err != nil || lerr != nil || !full || len(list) != 1 {
				return fmt.Errorf("members %v, populated %t, %w", list, full, errors.Join(err, lerr))
			}
			return nil
		})
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		// Once by the group alone, once by a sweep.
		if i == 0 {
			if err := g.KillRanks(); err != nil {
				t.Error(err)
			}
			select {
			case <-done:
			case <-time.After(30 * time.Second):
				t.Fatal("cgroup.kill did not end it")
			}
		}
		if res := Sweep(context.Background(), Target{Groups: g}); !res.Clean() {
			t.Error(res.Error())
		}
		if i == 1 {
			<-done
		}
		g.Fresh()
	}
	if err := g.Remove(5*time.Second, false); err != nil {
		t.Error(err)
	}
	for _, d := range []string{g.Kill, g.Memory} {
		if _, err := os.Stat(d); d != "" && !os.IsNotExist(err) {
			t.Errorf("%s is left", d)
		}
	}
}

func TestGroupNamesStayInside(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"", ".", "..", "../x", "a/b", "a b", "a\x00", strings.Repeat("x", 300)} {
		g, fallbacks := NewGroups(Capabilities{KillRoot: root, MemoryRoot: root}, name, unit.Bytes(1))
		if g != (Groups{}) || len(fallbacks) == 0 {
			t.Errorf("%q made %+v", name, g)
		}
	}
	if ents, _ := os.ReadDir(root); len(ents) != 0 {
		t.Errorf("made: %v", ents)
	}
}

func TestBasesAreFound(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"unified/user/me", "memory/docker/abc", "v2"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount := func(root, point, kind, opts string) string {
		return fmt.Sprintf("30 25 0:26 %s %s rw,relatime shared:9 - %s cgroup %s\n", root, filepath.Join(dir, point), kind, opts)
	}
	cases := []struct {
		name, mounts, self string
		v2                 []string
		v1                 string
	}{
		{
			"hybrid", mount("/", "unified", "cgroup2", "rw") + mount("/", "memory", "cgroup", "rw,memory"),
			"4:memory:/docker/abc\n1:name=systemd:/\n0::/user/me\n",
			[]string{"unified/user/me"},
			"memory/docker/abc",
		},
		{"a container without a namespace", mount("/docker/abc", "v2", "cgroup2", "rw"), "0::/docker/abc\n", []string{"v2"}, ""},
		{"a path that the mount hides", mount("/docker/abc", "v2", "cgroup2", "rw"), "0::/other\n", []string{"v2"}, ""},
		{"a path that is not there", mount("/", "v2", "cgroup2", "rw"), "0::/gone\n", []string{"v2"}, ""},
		{"none", "30 25 0:26 / / rw - ext4 /dev/sda rw\nnonsense\n", "0::/\n", nil, ""},
		{"other controllers", mount("/", "memory", "cgroup", "rw,cpu,cpuacct"), "3:cpu,cpuacct:/\n", nil, ""},
	}
	for _, c := range cases {
		v2, v1 := cgroupBases([]byte(c.mounts), []byte(c.self))
		var want []string
		for _, p := range c.v2 {
			want = append(want, filepath.Join(dir, p))
		}
		w1 := ""
		if c.v1 != "" {
			w1 = filepath.Join(dir, c.v1)
		}
		if fmt.Sprint(v2) != fmt.Sprint(want) || v1 != w1 {
			t.Errorf("%s: %v %q, want %v %q", c.name, v2, v1, want, w1)
		}
	}
}

func TestFallbackSwitch(t *testing.T) {
	t.Setenv(FallbackEnv, "fallback")
	if c := Probe(); c.KillRoot != "" || c.MemoryRoot != "" || len(c.Why) == 0 {
		t.Errorf("%+v", c)
	}
}

func TestPlainNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "name")
		if plainName(s) && filepath.Join("/r", s) != "/r/"+s {
			t.Fatalf("%q leaves its folder", s)
		}
	})
}
