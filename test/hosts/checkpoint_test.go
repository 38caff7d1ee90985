package hosts

import (
	"os"
	"path/filepath"
	"testing"
)

// saver saves every 5 steps and says where it begins. It stands still at step 12 of its
// first attempts until the gate is there, so that what happens to its host happens in
// mid-run.
const saver = `
import json, os, sys, time, troupe
gate = sys.argv[1]
ctx = troupe.init()
point, start = troupe.resume_point(), 0
if point is not None:
    start = json.load(open(point / "rank-0" / "state.json"))["step"]
print(f"rank {ctx.rank} of {ctx.world} begins after step {start}, attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
for step in range(start + 1, 31):
    while step == 12 and not os.path.exists(gate):
        time.sleep(0.02)
        if troupe.should_stop():
            sys.exit(0)
    time.sleep(0.01)
    troupe.step(step)
    if step % 5 == 0:
        with troupe.checkpoint(step) as ck:
            json.dump({"step": step}, open(os.path.join(ck.path, "state.json"), "w"))
        print(f"rank {ctx.rank} saved step {step}", flush=True)
print(f"rank {ctx.rank} ends", flush=True)
`

// Steps commit over several hosts; a host that is lost, and later the one that keeps the
// run, cost what was done since the newest committed step and no more.
func TestHostsCheckpoint(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, 3)
	dir := t.TempDir()
	path, gate := filepath.Join(dir, "save.py"), filepath.Join(dir, "gate")
	if err := os.WriteFile(path, []byte(saver), 0o600); err != nil {
		t.Fatal(err)
	}
	store := t.TempDir()
	launch := func(h *host) *process {
		return h.launch(nil, "--nnodes=1:3", "--rdzv-endpoint=10.77.0.1:29455", "--rdzv-backend=c10d", "--rdzv-id=saved",
			"--rdzv-conf=last_call_timeout=5,store="+store, path, gate)
	}
	a, b, c := launch(w.hosts[0]), launch(w.hosts[1]), launch(w.hosts[2])
	a.says("rank 0 of 3 begins after step 0, attempt 0", "rank 0 saved step 10")
	b.says("rank 1 of 3 begins after step 0", "rank 1 saved step 10")
	c.says("rank 2 of 3 begins after step 0", "rank 2 saved step 10")

	w.hosts[1].kill()
	a.says("rank 0 of 2 begins after step 10, attempt 1")
	c.says("rank 1 of 2 begins after step 10, attempt 1")

	w.hosts[0].kill()
	c.ends(75)
	w.hosts[2].empty()

	// The same command once more finds what was committed.
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a, c = launch(w.hosts[0]), launch(w.hosts[2])
	a.says("rank 0 of 2 begins after step 10", "rank 0 saved step 30")
	c.says("rank 1 of 2 begins after step 10", "rank 1 saved step 30")
	a.ends(0)
	c.ends(0)
	for _, h := range w.hosts {
		h.empty()
	}
}
