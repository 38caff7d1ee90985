package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Keys as a terminal sends them on.
const (
	ctrlC         = "\x03"
	ctrlBackslash = "\x1c"
)

// terminal is a command that a person watches and whose keys they press.
type terminal struct {
	*running
	master *os.File
}

// openTerminal makes a pseudo-terminal.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(filepath.Join("/dev/pts", strconv.Itoa(n)), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// onTerminal starts a command at a terminal of its own; what it writes, to either
// stream, stands in out.
func (h *home) onTerminal(name string, args ...string) *terminal {
	h.t.Helper()
	master, slave := openTerminal(h.t)
	r := &running{h: h, args: args, done: make(chan struct{})}
	r.cmd = h.command(context.Background(), name, args...)
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = slave, slave, slave
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := r.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	_ = slave.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, err := io.Copy(&r.out, master)
		if err != nil && !errors.Is(err, syscall.EIO) { // EIO: the last writer is gone
			_, _ = r.out.Write([]byte(err.Error()))
		}
	}()
	go func() {
		_ = r.cmd.Wait()
		<-read
		close(r.done)
	}()
	h.t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.done
		_ = master.Close()
	})
	return &terminal{r, master}
}

func (t *terminal) press(keys string) {
	t.h.t.Helper()
	if _, err := t.master.WriteString(keys); err != nil {
		t.h.t.Fatal(err)
	}
}

// A line of a table is no wider than the screen that shows it, and shows where it was cut.
func TestTableFitsTheScreen(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	whole := h.want(0, "node", "list").out
	r := h.onTerminal("sh", "-c", "stty cols 30; exec "+troupeBin+" node list")
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(r.wait().out, "\r", "")), "\n")
	if len(lines) != 2 || !strings.HasPrefix(whole, lines[0][:12]) {
		t.Fatalf("%q", lines)
	}
	for _, l := range lines {
		if n := len([]rune(l)); n != 30 || !strings.HasSuffix(l, "…") {
			t.Errorf("%d wide: %q", n, l)
		}
	}
	if strings.Contains(whole, "…") {
		t.Errorf("cut for a program: %s", whole)
	}
}

// The first line says what the keys do; the first Ctrl-C asks and counts down, the
// second kills.
func TestKeysOfRun(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	// What is not sent is said before; here nothing is left out.
	r := h.onTerminal(troupeBin, "run", "--env-all", "--shutdown-timeout", "600", "--", "sh", "-c", stubborn)
	r.says(`^ready`)
	first, _, _ := strings.Cut(r.out.String(), "\n")
	for _, want := range []string{"job sh-", "Ctrl-C stops it", "again at once ends it by force", `Ctrl-\ detaches`} {
		if !strings.Contains(first, want) {
			t.Errorf("the first line lacks %q: %q", want, first)
		}
	}
	r.press(ctrlC)
	r.says(`got TERM`)
	r.says(`ended by force in 9m5\ds`)
	r.press(ctrlC)
	if end := r.wait(); end.code != api.ExitInterrupted || !strings.Contains(end.out, "by force") {
		t.Errorf("%v", end)
	}
}

func TestKeyThatDetaches(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	l.up()
	script := l.write("waits.sh", "echo ready; while ! test -e go; do sleep 0.05; done; echo done\n")
	for _, start := range []func() *terminal{
		func() *terminal { return l.onTerminal(troupeBin, "run", "--ranks", "1", "--", "sh", script) },
		func() *terminal {
			return l.onTerminal(l.python, "-m", "troupe.launch", "--no-python", "sh", script)
		},
	} {
		r := start()
		r.says(`^ready`)
		r.press(ctrlBackslash)
		end := r.wait()
		if end.code != 0 || !strings.Contains(end.out, "detached; the job goes on. Follow it with: troupe job logs -f sh-") && !strings.Contains(end.out, "logs -f waits-") || !strings.Contains(end.out, "stop it with: troupe job stop ") {
			t.Fatalf("%v", end)
		}
		follow := l.home.start("job", "logs", "-f", "@last")
		follow.says(`ready`)
		l.write("go", "")
		if end := follow.wait(); end.code != 0 || !strings.Contains(end.out, "done") {
			t.Errorf("%v", end)
		}
		_ = os.Remove(filepath.Join(l.dir, "go"))
	}
}

// A launch on its own detaches too: what it had started goes on in the background, is
// found by its context, and nothing is left when it ends.
func TestLaunchThatIsDetached(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	script := l.write("waits.sh", "echo ready $TORCHELASTIC_RESTART_COUNT $MINE $$; while ! test -e go; do sleep 0.05; done; rm go; echo over; exit $(cat code)\n")
	l.env = append(l.env, "MINE=secret")
	r := l.onTerminal(l.python, "-m", "troupe.launch", "--no-python", "--max-restarts=1", "sh", script)
	pid := r.says(`ready 0 secret (\d+)`)[1]
	r.press(ctrlBackslash)
	end := r.wait()
	if end.code != 0 || !strings.Contains(end.out, "detached; the run goes on, its output in ") {
		t.Fatalf("%v", end)
	}
	l.env = append(l.env, "TROUPE_CONTEXT="+r.says(`TROUPE_CONTEXT=(\S+) troupe job stop`)[1])
	follow := l.home.start("job", "logs", "-f", "@last")
	follow.says(`^\[0\] ready 0 secret ` + pid + `$`)
	// It fails, and is started again with the same environment.
	l.write("code", "7")
	l.write("go", "")
	follow.says(`ready 1 secret`)
	l.write("code", "0")
	l.write("go", "")
	if end := follow.wait(); end.code != 0 || strings.Count(end.out, "over") != 2 {
		t.Errorf("%v", end)
	}
	gone(t, l.dir)
	out, err := os.ReadFile(r.says(`its output in (\S+?)\.? Follow`)[1])
	if err != nil || strings.Count(string(out), "over") != 2 {
		t.Errorf("%s %v", out, err)
	}
	// Detached again, it is stopped by its context.
	l.env = l.env[:len(l.env)-1]
	r = l.onTerminal(l.python, "-m", "troupe.launch", "--no-python", "sh", script)
	r.says(`ready 0`)
	r.press(ctrlBackslash)
	r.wait()
	l.env = append(l.env, "TROUPE_CONTEXT="+r.says(`TROUPE_CONTEXT=(\S+) troupe job stop`)[1])
	l.want(0, "job", "stop", "@last", "--yes")
	gone(t, l.dir)
}

// A launch at a terminal says what the keys do and who failed; a progress bar is drawn
// as it grows, and a line of another rank does not tear it.
func TestLaunchAtATerminal(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	script := l.write("bar.py", `import os, sys, time
rank = os.environ["RANK"]
if rank == "0":
    for i in range(3):
        sys.stdout.write(f"\rstep {i}|"); sys.stdout.flush(); time.sleep(0.2)
    while not os.path.exists("seen"): time.sleep(0.02)
    print("\rstep 3| over")
    open("spoken", "w").close()
    time.sleep(1000)
while not os.path.exists("spoken"): time.sleep(0.02)
print("whole line of rank", rank, flush=True)
time.sleep(1000)
`)
	r := l.onTerminal(l.python, "-m", "troupe.launch", "--nproc-per-node=2", script)
	r.says(`Ctrl-C stops it, Ctrl-C again at once ends it by force, Ctrl-\\ detaches`)
	r.says(`step 2\|`)
	l.write("seen", "")
	r.says(`whole line of rank 1`)
	r.press(ctrlC)
	end := r.wait()
	l.left(end)
	if end.code != api.ExitInterrupted || !strings.Contains(end.out, "step 3| over\r\n") || !strings.Contains(end.out, "stopping ") {
		t.Errorf("%q", end.out)
	}
}
