package cli

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// A machine that is about to be taken away says so by a file or takes a signal: what runs
// there saves at an agreed step and goes on elsewhere; its agent may be restarted meanwhile,
// and the end of the file takes it back.
func TestSpotNotice(t *testing.T) {
	t.Parallel()
	h := newTwo(t)
	h.mover(100000, "--ranks", "2", "--cpus", "1")
	gone := func(k int, node, how string, step int64) {
		t.Helper()
		eventually(t, node+" does not drain", func() error {
			r := h.troupe("node", "get", node)
			if !strings.Contains(r.out, "READY,drained,noticed") || !strings.Contains(r.out, "spot notice on "+node+": "+how) {
				return fmt.Errorf("%v", r)
			}
			return nil
		})
		eventually(t, "the job does not go on elsewhere", func() error {
			j := h.job("mover-")
			if last := j.Attempts[len(j.Attempts)-1]; j.State != api.Running || last.Number != int64(k+1) || last.Ranks[0].Node == node {
				return fmt.Errorf("%s, attempt %d on %s", j.State, last.Number, last.Ranks[0].Node)
			}
			return nil
		})
		if j := h.job("mover-"); j.Attempts[k].Cause != api.CauseNone {
			t.Errorf("charged: %s", j.Attempts[k].Cause)
		}
		h.steps(step + 10)
		if r := h.want(0, "why", "node/"+node); !strings.Contains(r.out, "spot notice on "+node+": "+how) {
			t.Errorf("%v", r)
		}
	}
	at := func() (node string, step int64) {
		j := h.job("mover-")
		return j.Attempts[len(j.Attempts)-1].Ranks[0].Node, *j.Step
	}

	node, step := at()
	file := h.path("notice-" + node)
	if err := os.WriteFile(file, []byte("120s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone(0, node, "file "+file+" says 120s", step)
	state := map[string]string{"box": "node", "den": "node2"}
	h.want(0, "worker", "restart", "--state", h.path(state[node]))
	if r := h.want(0, "node", "list"); !strings.Contains(r.out, "READY,drained,noticed") {
		t.Errorf("%v", r)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node takes no work again", func() error {
		if r := h.troupe("node", "list"); strings.Contains(r.out, "drain") {
			return fmt.Errorf("%v", r)
		}
		return nil
	})

	node, step = at()
	worker := map[string]*running{"box": h.worker, "den": h.den}[node]
	if err := worker.cmd.Process.Signal(syscall.SIGPWR); err != nil {
		t.Fatal(err)
	}
	gone(1, node, "signal SIGPWR", step)
	r := h.want(0, "job", "events", "mover-")
	if !strings.Contains(r.out, "spot notice on "+node) {
		t.Errorf("%v", r)
	}
	h.want(0, "node", "undrain", node)
	h.want(0, "job", "stop", "mover-", "--checkpoint", "--yes")
	h.noneTwice()
	for _, args := range [][]string{
		{"worker", "start", "--state", h.path("x"), "--notice-grace", "0s"},
		{"worker", "start", "--state", h.path("x"), "--notice-grace", "25h"},
		{"up", "--state", h.path("x"), "--notice-grace", "-1s"},
	} {
		h.want(api.ExitUsage, args...)
	}
}
