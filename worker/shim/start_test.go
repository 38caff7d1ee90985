package shim_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
)

// A rank is the same whoever started it: the shim itself, or a rank-init, as for a folder
// that may lie on a network, for which /proc stands here.
func TestRanksStartAlike(t *testing.T) {
	const look = "grep -E '^(PPid|NSsid|SigIgn)' /proc/self/status; readlink /proc/self/fd/0; ls /proc/self/fd | wc -l; pwd >&2"
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	ignored := regexp.MustCompile(`SigIgn:\t[0-9a-f]+`).FindString(string(own)) // by whoever started the tests
	for _, mode := range []string{"cgroup", "fallback"} {
		t.Run(mode, func(t *testing.T) {
			var seen []string
			for _, dir := range []string{t.TempDir(), "/proc"} {
				a := newAgent(t, mode, fallbackIfNone)
				s := a.spec(2, "sh", "-c", "exec 3>&-; sh -c 'sleep 0' ; "+look)
				s.WorkingDir = dir
				a.start(s)
				a.wait(wire.EventEnded)
				for rank, x := range a.exits(1) {
					if x.Code != 0 {
						t.Errorf("in %s rank %d: %+v", dir, rank, x)
					}
				}
				if got := strings.TrimSpace(a.output(0, 0, "stderr")); got != dir {
					t.Errorf("it ran in %q, want %s", got, dir)
				}
				out := a.output(0, 0, "stdout")
				if !strings.Contains(out, ignored) || !strings.Contains(out, "/dev/null") {
					t.Errorf("in %s: %s", dir, out)
				}
				lines := strings.Split(strings.TrimSpace(out), "\n")
				seen = append(seen, lines[len(lines)-1])
				a.end()
			}
			if seen[0] != seen[1] {
				t.Errorf("%s and %s descriptors are open", seen[0], seen[1])
			}
		})
	}
}

// A process that has left its group, its session, its mark and its parent ends with the
// attempt all the same: it is below its shim.
func TestWhatLeavesItsGroupEnds(t *testing.T) {
	root := process.Probe().KillRoot
	if root == "" {
		t.Skip("no writable cgroup2 mount")
	}
	a := newAgent(t, "cgroup")
	long := fmt.Sprintf("1000.%d", os.Getpid())
	a.start(a.spec(2, "sh", "-c", "setsid sh -c 'echo $$ > "+root+"/cgroup.procs && touch left && exec env -i sleep "+long+"' & while ! test -e left; do sleep 0.01; done"))
	a.wait(wire.EventEnded)
	for _, exe := range pids(t) {
		if b, _ := os.ReadFile("/proc/" + exe + "/cmdline"); string(b) == "sleep\x00"+long+"\x00" {
			t.Errorf("process %s is left", exe)
		}
	}
	a.end()
}

func pids(t *testing.T) []string {
	t.Helper()
	d, err := os.Open("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		t.Fatal(err)
	}
	return names
}
