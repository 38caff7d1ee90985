package cli

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// A job with a spare node: what people and programs see of it, and that its ranks start
// there when their node is drained.
func TestSpareNodes(t *testing.T) {
	t.Parallel()
	h := newTwo(t)
	if r := h.want(api.ExitBadInput, "run", "--detach", "--spare-nodes", "-1", "--", "true"); !strings.Contains(r.errout, "spareNodes") {
		t.Errorf("%v", r)
	}
	if r := h.want(api.ExitNever, "run", "--detach", "--spare-nodes", "2", "--", "true"); !strings.Contains(r.errout, "2 spare nodes") {
		t.Errorf("%v", r)
	}
	h.mover(100000, "--ranks", "2", "--cpus", "1", "--spare-nodes", "1")
	other := map[string]string{"box": "den", "den": "box"}
	var j api.Job
	eventually(t, "no spare node is held", func() error {
		j = h.job("mover-")
		if j.Spares == nil || len(j.Spares.Nodes) != 1 {
			return fmt.Errorf("%+v", j.Spares)
		}
		return nil
	})
	node := j.Attempts[0].Ranks[0].Node
	spare := other[node]
	if s := j.Spares; s.Want != 1 || s.Nodes[0] != spare || s.Waits != "" {
		t.Errorf("%+v", s)
	}
	shows := func(want string, args ...string) {
		t.Helper()
		if r := h.want(0, args...); !regexp.MustCompile(want).MatchString(r.out) {
			t.Errorf("not %q: %v", want, r)
		}
	}
	shows(`(?m)^Spares +`+spare+`$`, "job", "get", "mover-")
	shows(`(?m)^ *3 +`+spare+` .*spare of mover-`, "pg", "get", j.Group)
	shows(`It holds 1 spare node: `+spare, "why", "mover-")
	shows(`(?m)spares-changed.*1 spare node, 0 before: with `+spare, "job", "events", "mover-")
	var g api.Group
	if err := json.Unmarshal([]byte(h.want(0, "pg", "get", j.Group, "-o", "json").out), &g); err != nil {
		t.Fatal(err)
	}
	if b := g.Bundles; len(b) != 4 || b[1].Spare || !b[2].Spare || b[3].Node != spare || b[3].UsedBy != "" || len(g.Spec.Bundles) != 4 {
		t.Errorf("%+v", g)
	}
	h.want(0, "node", "drain", node)
	h.steps(*j.Step + 10)
	j = h.job("mover-")
	if last := j.Attempts[len(j.Attempts)-1]; last.Number != 1 || last.Ranks[1].Node != spare {
		t.Errorf("%+v", last)
	}
	shows(`(?m)^Spares +0 of 1 held; waits for a node without ranks of it and with room for 2 bundles`, "job", "get", "mover-")
	h.want(0, "job", "stop", "mover-", "--checkpoint", "--yes")
	h.noneTwice()
}

// A spare node has imported torch before it is needed, and the ranks move there.
func TestSpareNodeIsWarm(t *testing.T) {
	if testing.Short() {
		return // it imports torch
	}
	t.Parallel()
	h := newTwo(t)
	if exec.Command(h.python(), "-c", "import torch").Run() != nil {
		t.Fatal("the tests' Python has no torch; use test/scripts/python-env.sh test")
	}
	script := h.write("warm.py", `# torch is named, so that a forkserver imports it
import sys, time
forked = "libtorch" in open("/proc/self/maps").read()
print("forked" if forked else "fresh", flush=True)
import troupe
troupe.init()
for step in range(1, 100000):
    time.sleep(0.01)
    troupe.step(step)
    if troupe.should_stop():
        break
`)
	h.want(0, "run", "--detach", "--name", "mover", "--ranks", "2", "--cpus", "1", "--spare-nodes", "1", "--env", "PYTHONPATH", "--", h.python(), script)
	eventually(t, "it makes no steps", func() error {
		if j := h.job("mover-"); j.Step == nil || j.Spares == nil || len(j.Spares.Nodes) != 1 {
			return fmt.Errorf("%+v", j)
		}
		return nil
	})
	worker := map[string]*running{"box": h.worker, "den": h.den}
	j := h.job("mover-")
	node := j.Attempts[0].Ranks[0].Node
	spare := map[string]string{"box": "den", "den": "box"}[node]
	worker[spare].says(`a spare forkserver is ready.*warm\.py`)
	h.want(0, "node", "drain", node, "--deadline", "1s")
	eventually(t, "its ranks do not start on the spare node", func() error {
		j := h.job("mover-")
		last := j.Attempts[len(j.Attempts)-1]
		r := h.troupe("job", "logs", j.ID)
		if last.Number == 0 || last.Ranks[0].Node != spare || last.Running.IsZero() || strings.Count(r.out, "forked")+strings.Count(r.out, "fresh") < 2 {
			return fmt.Errorf("attempt %d on %s: %v\n%s", last.Number, last.Ranks[0].Node, r, h.troupe("job", "events", j.ID).out)
		}
		if strings.Count(r.out, "forked") < 2 {
			t.Fatalf("%s%s\n%s", r.out, h.troupe("job", "events", j.ID).out, worker[spare].errout.String())
		}
		return nil
	})
	h.want(0, "job", "stop", "mover-", "--yes", "--grace", "1s")
}
