package cli

import (
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// hears says what its main process and a child of it are sent. The child stands for a
// data loader's worker: it must live until the main process has saved.
const hears = `import os, signal, subprocess, sys, time
import troupe
child = subprocess.Popen([sys.executable, "-c", """
import signal, time
for s in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
    signal.signal(s, lambda n, f: print("CHILD GOT", n, flush=True))
print("child ready", flush=True)
time.sleep(1000)
"""])
troupe.init()
def heard(n, frame):
    print("got", signal.Signals(n).name, flush=True)
def ends(n, frame):
    time.sleep(0.3)  # a save
    left = troupe.seconds_left()
    print("saved", child.poll() is None, troupe.should_stop(), left is not None and 0 < left <= float(os.environ["TROUPE_SHUTDOWN_TIMEOUT"]), flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, heard)
signal.signal(signal.SIGUSR2, heard)
signal.signal(signal.SIGTERM, ends)
print("main ready", troupe.seconds_left(), flush=True)
while True:
    time.sleep(0.1)
`

// SIGUSR1 and SIGUSR2 go on to the main process of every rank and end nothing, though
// they are named among the signals to handle; TERM comes to main processes alone, with
// the whole grace, and their children live until they have ended.
func TestLaunchPassesSignalsOn(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	r := l.start("--nproc-per-node=2", "--shutdown-timeout=60", "--signals-to-handle=SIGTERM,SIGUSR1", l.write("hears.py", hears))
	ready := regexp.MustCompile(`(?s)(main ready None.*){2}`)
	l.until(r, ready)
	l.until(r, regexp.MustCompile(`(?s)(child ready.*){2}`))
	for _, s := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2} {
		r.signal(s)
		l.until(r, regexp.MustCompile(`(?s)(got `+map[syscall.Signal]string{syscall.SIGUSR1: "SIGUSR1", syscall.SIGUSR2: "SIGUSR2"}[s]+`.*){2}`))
	}
	r.signal(syscall.SIGTERM)
	end := r.wait()
	l.left(end)
	if end.code != api.ExitInterrupted || strings.Count(end.out, "saved True True True\n") != 2 || strings.Contains(end.out, "CHILD GOT") {
		t.Errorf("%v", end)
	}
}

func (l *launcher) until(r *running, re *regexp.Regexp) {
	l.t.Helper()
	r.says("(?s)" + re.String())
}

// A signal that is not to be handled has its default effect; one that was ignored stays so.
func TestLaunchLeavesOtherSignalsAlone(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	script := l.write("waits.py", waits)
	r := l.start("--signals-to-handle=SIGTERM", script)
	r.says(`^ready`)
	r.signal(syscall.SIGHUP)
	if end := r.wait(); end.code != -1 || strings.Contains(end.errout, "FAILED") { // killed by it
		t.Errorf("%v", end)
	}
	gone(t, l.dir) // the owner is gone, so are its ranks

	r = l.startProgram("sh", "-c", `trap "" HUP; exec "$0" "$@"`, l.python, "-m", "troupe.launch", script)
	r.says(`^ready`)
	r.signal(syscall.SIGHUP)
	r.signal(syscall.SIGUSR1) // kills a rank that does not take it, and nothing else
	end := r.wait()
	l.left(end)
	if end.code != 1 || !strings.Contains(end.errout, "exitcode  : -10 (pid: ") {
		t.Errorf("%v", end)
	}
}

// Signals by the command line reach the ranks that are named.
func TestJobSignal(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	r := h.start("run", "--ranks", "2", "--max-restarts", "0", "--", "sh", "-c", `trap 'echo usr' USR1; trap 'echo bye; exit 0' USR2; echo ready; while :; do sleep 0.05; done`)
	r.says(`^\[0\] ready`)
	r.says(`^\[1\] ready`)
	if out := h.want(0, "job", "signal", "@last", "usr1", "--rank", "1").out; !strings.Contains(out, "SIGUSR1 to 1 rank\n") {
		t.Errorf("%s", out)
	}
	r.says(`^\[1\] usr`)
	if strings.Contains(r.out.String(), "[0] usr") {
		t.Error("rank 0 got it too")
	}
	r.signal(syscall.SIGUSR2) // run passes it on as launch does
	if end := r.wait(); end.code != 0 || strings.Count(end.out, "bye") != 2 {
		t.Errorf("%v", end)
	}
	for code, args := range map[int][]string{
		64: {"job", "signal", "@last", "SIGKILL"}, 73: {"job", "signal", "@last", "USR1"}, 66: {"job", "signal", "nobody", "USR1"},
	} {
		if r := h.troupe(args...); r.code != code {
			t.Errorf("want %d: %v", code, r)
		}
	}
}
