package hosts

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// agreer saves where the ranks agree to, and ends there when it is asked to. Rank 0 writes
// every step down.
const agreer = `
import json, sys, time, troupe
folder = sys.argv[1]
ctx = troupe.init()
point, start = troupe.resume_point(), 0
if point is not None:
    start = json.load(open(point / "rank-0" / "state.json"))["step"]
print(f"rank {ctx.rank} of {ctx.world} begins, attempt {ctx.attempt}", flush=True)
log = open(f"{folder}/steps", "a", buffering=1) if ctx.rank == 0 else None
for step in range(start + 1, 1000000):
    time.sleep(0.02)
    if log:
        log.write(f"{step} {ctx.world}\n")
    troupe.step(step)
    if troupe.should_checkpoint(step):
        with troupe.checkpoint(step) as ck:
            (ck.path / "state.json").write_text(json.dumps({"step": step}))
    if troupe.should_stop():
        break
`

// made reads what rank 0 wrote down: the worlds in their order, each with its number of
// steps. The first is first; a step that is lost or made again fails.
func made(t *testing.T, dir string, first int) (worlds []string, steps []int) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "steps"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	text = text[:strings.LastIndexByte(text, '\n')+1] // a rank may be writing
	want := first - 1
	for line := range strings.Lines(text) {
		var step int
		var world string
		if _, err := fmt.Sscan(line, &step, &world); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if want++; step != want {
			t.Fatalf("step %d follows step %d, world %s", step, want-1, world)
		}
		if len(worlds) == 0 || worlds[len(worlds)-1] != world {
			worlds, steps = append(worlds, world), append(steps, 0)
		}
		steps[len(steps)-1]++
	}
	return worlds, steps
}

// makes waits until so many steps were made in the newest world.
func makes(t *testing.T, dir string, first int, world string, least int) {
	t.Helper()
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		if _, err := os.Stat(filepath.Join(dir, "steps")); err == nil {
			if w, n := made(t, dir, first); len(w) > 0 && w[len(w)-1] == world && n[len(n)-1] >= least {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %d steps of %s ranks", least, world)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// A host that is told to end leaves in order: the ranks of all hosts agree on a step and
// save it, and the others go on from there, so that no step is lost or made twice. A run that
// is interrupted at the host that keeps it ends on all; the same commands once more go on with
// the newest step that was saved.
func TestHostLeavesWithACheckpoint(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, 3)
	dir, again, store := t.TempDir(), t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "agree.py")
	if err := os.WriteFile(path, []byte(agreer), 0o600); err != nil {
		t.Fatal(err)
	}
	launch := func(h *host, folder string) *process {
		return h.launch(nil, "--nnodes=1:3", "--rdzv-endpoint=10.77.0.1:29466", "--rdzv-backend=c10d", "--rdzv-id=leaves",
			"--rdzv-conf=last_call_timeout=5,store="+store, path, folder)
	}
	a, b, c := launch(w.hosts[0], dir), launch(w.hosts[1], dir), launch(w.hosts[2], dir)
	makes(t, dir, 1, "3", 20)
	if err := c.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.ends(130)
	w.hosts[2].empty()
	a.says("rank 0 of 2 begins, attempt 1")
	b.says("rank 1 of 2 begins, attempt 1")
	makes(t, dir, 1, "2", 20)

	if err := a.signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	a.ends(130)
	b.ends(130)
	w.hosts[0].empty()
	w.hosts[1].empty()
	worlds, steps := made(t, dir, 1)
	if strings.Join(worlds, " ") != "3 2" {
		t.Fatalf("worlds %v", worlds)
	}
	saved := steps[0] // the step that the three have ended with
	c, a, b = launch(w.hosts[2], again), launch(w.hosts[0], again), launch(w.hosts[1], again)
	makes(t, again, saved+1, "3", 20)
	for _, p := range []*process{b, c, a} {
		if err := p.signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		p.ends(130)
	}
	made(t, again, saved+1)
	for _, h := range w.hosts {
		h.empty()
	}
}
