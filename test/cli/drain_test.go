package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// two is a head with two workers, box and den.
func newTwo(t *testing.T) *apart {
	h := newApart(t)
	den := h.start("worker", "start", "--state", h.path("node2"), "--name", "den", "--cpus", "4",
		"--head", "nats://"+h.busAddr, "--token-file", h.path("head/node.token"), "--notice-file", h.path("notice-den"))
	h.den = den
	den.says(`^node n[0-9a-f]+, head nats://`)
	t.Cleanup(func() {
		for line := range strings.FieldsSeq(h.troupe("ps", "--all", "-o", "name").out) {
			h.troupe("stop", line, "--yes", "--grace", "1s")
		}
		_ = den.cmd.Process.Signal(syscall.SIGTERM) // may have ended
		den.wait()
	})
	eventually(t, "two nodes are not ready", func() error {
		if r := h.troupe("node", "list"); strings.Count(r.out, "READY") != 2 {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	return h
}

// mover starts a job of two ranks, each on a node of its own choice, that takes steps of
// 10 ms, and returns when it has made some.
func (h *apart) mover(steps int, args ...string) {
	h.t.Helper()
	script, err := filepath.Abs("testdata/mover.py")
	if err != nil {
		h.t.Fatal(err)
	}
	words := append([]string{"run", "--detach", "--name", "mover", "--env", "PYTHONPATH"}, args...)
	h.want(0, append(words, "--", h.python(), script, strconv.Itoa(steps), h.dir)...)
	h.steps(20)
}

func (h *apart) steps(least int64) {
	h.t.Helper()
	eventually(h.t, "the job makes no steps", func() error {
		j := h.job("mover-")
		if j.State.Terminal() {
			h.t.Fatalf("the job has ended:\n%s", h.troupe("job", "events", j.ID).out)
		}
		if j.State != api.Running || j.Step == nil || *j.Step < least {
			return fmt.Errorf("%s at step %v", j.State, j.Step)
		}
		return nil
	})
}

// record is what rank 0 wrote down: step, world, attempt.
func (h *apart) record() [][3]int64 {
	h.t.Helper()
	b, err := os.ReadFile(h.path("rank-0"))
	if err != nil {
		h.t.Fatal(err)
	}
	var out [][3]int64
	for line := range strings.Lines(string(b)) {
		var r [3]int64
		if _, err := fmt.Sscan(line, &r[0], &r[1], &r[2]); err != nil {
			h.t.Fatalf("%q: %v", line, err)
		}
		out = append(out, r)
	}
	return out
}

// noneTwice: no step was lost and none was made again.
func (h *apart) noneTwice() {
	h.t.Helper()
	for i, r := range h.record() {
		if r[0] != int64(i+1) {
			h.t.Fatalf("step %d follows step %d (attempt %d)", r[0], i, r[2])
		}
	}
}

// A node is drained: the job goes on on the other one from the step that its ranks agreed
// on, uncharged; back and forth.
func TestNodeDrain(t *testing.T) {
	t.Parallel()
	h := newTwo(t)
	h.mover(100000, "--ranks", "2", "--cpus", "1")
	for k := range 2 {
		j := h.job("mover-")
		node := j.Attempts[len(j.Attempts)-1].Ranks[0].Node
		r := h.want(0, "node", "drain", node, "--reason", "new fan")
		if !strings.Contains(r.out, node+"  READY,drained") || !strings.Contains(r.errout, "waits for") {
			t.Errorf("%v", r)
		}
		h.steps(*j.Step + 10)
		now := h.job("mover-")
		last := now.Attempts[len(now.Attempts)-1]
		if last.Number != int64(k+1) || last.Ranks[0].Node == node || now.Attempts[k].Cause != api.CauseNone {
			t.Fatalf("attempt %d on %s, cause %q", last.Number, last.Ranks[0].Node, now.Attempts[k].Cause)
		}
		h.want(0, "node", "undrain", node)
	}
	r := h.want(0, "job", "stop", "mover-", "--checkpoint", "--yes")
	j := h.job("mover-")
	if !strings.Contains(r.out, "STOPPED") || j.Committed == nil || !strings.Contains(r.errout, fmt.Sprintf("step %d is saved", *j.Committed)) {
		t.Errorf("%v", r)
	}
	h.noneTwice()
	if list := h.record(); list[len(list)-1][0] != *j.Committed {
		t.Errorf("the last step is %d, %d is committed", list[len(list)-1][0], *j.Committed)
	}
}

// A job gets more ranks and then fewer: no step is lost or made again.
func TestJobScale(t *testing.T) {
	t.Parallel()
	h := newTwo(t)
	h.mover(100000, "--ranks", "2", "--cpus", "1", "--sizes", "1,2,3")
	exits := func(code int, want string, args ...string) {
		t.Helper()
		if r := h.want(code, args...); !strings.Contains(r.out+r.errout, want) {
			t.Errorf("%v", r)
		}
	}
	exits(65, "not an allowed size", "job", "scale", "mover-", "--ranks", "4")
	for _, n := range []int64{3, 1} {
		at := h.job("mover-").Step
		exits(0, fmt.Sprintf("RUNNING  %d rank", n), "job", "scale", "mover-", "--ranks", strconv.FormatInt(n, 10))
		h.steps(*at + 20)
	}
	h.want(0, "job", "stop", "mover-", "--checkpoint=wait", "--yes", "--deadline", "1m")
	h.noneTwice()
	var worlds []int64
	for _, r := range h.record() {
		if len(worlds) == 0 || worlds[len(worlds)-1] != r[1] {
			worlds = append(worlds, r[1])
		}
	}
	if fmt.Sprint(worlds) != "[2 3 1]" {
		t.Errorf("worlds %v", worlds)
	}
	b, err := json.Marshal(h.job("mover-").Attempts)
	if err != nil || strings.Contains(string(b), `"cause"`) {
		t.Errorf("something is charged: %s, %v", b, err)
	}
}

// A script that never calls should_checkpoint is ended by TERM, and the events say so.
func TestDrainOfADeafScript(t *testing.T) {
	t.Parallel()
	h := newTwo(t)
	h.want(0, "run", "--detach", "--name", "deaf", "--", "sleep", "1000")
	h.want(0, "job", "wait", "deaf-", "--for", "running")
	h.want(0, "job", "stop", "deaf-", "--checkpoint", "--yes")
	if r := h.want(0, "job", "events", "deaf-"); !strings.Contains(r.out, "no checkpoint is possible: rank 0 has not called should_checkpoint yet") {
		t.Errorf("%v", r)
	}
}

// TestDigitsResized trains the digits example with DDP: 3 ranks, then 4, then 2, then on
// another node. Every step is made once, at whatever size.
func TestDigitsResized(t *testing.T) {
	if testing.Short() {
		return // a minute of torch
	}
	t.Parallel()
	h := newTwo(t)
	if exec.Command(h.python(), "-c", "import torch, sklearn").Run() != nil {
		return // the tests' Python has no torch
	}
	script, err := filepath.Abs("../../examples/digits/train.py")
	if err != nil {
		t.Fatal(err)
	}
	h.want(0, "run", "--detach", "--name", "mover", "--ranks", "3", "--cpus", "1", "--sizes", "2,3,4", "--env", "PYTHONPATH",
		"--", h.python(), script, "--steps", "1000000", "--step-time", "0.02")
	h.steps(5)
	for _, n := range []int64{4, 2} {
		at := h.job("mover-").Step
		h.want(0, "job", "scale", "mover-", "--ranks", strconv.FormatInt(n, 10))
		h.steps(*at + 10)
	}
	j := h.job("mover-")
	node := j.Attempts[len(j.Attempts)-1].Ranks[0].Node
	h.want(0, "node", "drain", node)
	h.steps(*j.Step + 10)
	h.want(0, "job", "stop", "mover-", "--checkpoint", "--yes")
	j = h.job("mover-")
	var worlds []int
	next := 1
	for _, a := range j.Attempts {
		if a.Cause != api.CauseNone || a.Failure != nil {
			t.Errorf("attempt %d: %q %+v", a.Number, a.Cause, a.Failure)
		}
		worlds = append(worlds, len(a.Ranks))
		r := h.want(0, "job", "logs", "mover-", "--rank", "0", "--attempt", strconv.FormatInt(a.Number, 10), "--prefix", "none")
		for line := range strings.Lines(r.out) {
			var step int
			if _, err := fmt.Sscanf(line, "rank 0: step %d loss", &step); err != nil {
				continue
			}
			if step != next {
				t.Fatalf("attempt %d of %d ranks: step %d, want %d", a.Number, len(a.Ranks), step, next)
			}
			next++
		}
	}
	if fmt.Sprint(worlds) != "[3 4 2 2]" || j.Committed == nil || int(*j.Committed) != next-1 {
		t.Errorf("worlds %v, the last step is %d, committed %v", worlds, next-1, j.Committed)
	}
}
