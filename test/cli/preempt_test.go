package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// A preemptible job of real ranks leaves for a more important one: its ranks agree on a step,
// save it and end; it waits with a reason that names who it left for, and goes on from that
// very step when there is room again. No step is lost and none is made twice.
func TestPreemption(t *testing.T) {
	t.Parallel()
	h := newTwo(t)
	policy := h.path("policy.yaml")
	if err := os.WriteFile(policy, []byte("scheduler: {protect: 0s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := h.want(0, "topology", "apply", policy); !strings.Contains(r.out, "protects what has just started for 0s") {
		t.Errorf("%v", r)
	}
	h.mover(100000, "--ranks", "2", "--cpus", "4", "--preemptible")
	h.want(0, "run", "--detach", "--name", "vip", "--ranks", "2", "--cpus", "4", "--", "sleep", "3")
	eventually(t, "the mover does not leave", func() error {
		j := h.job("mover-")
		if j.State != api.Queued || j.Reason == nil || !strings.Contains(j.Reason.Text, "vip-") {
			return fmt.Errorf("%s, %+v", j.State, j.Reason)
		}
		return nil
	})
	r := h.want(0, "why", "mover-")
	if !strings.Contains(r.out, "vip-") {
		t.Errorf("%v", r)
	}
	h.want(0, "wait", "vip-", "--for", "succeeded")
	before := h.job("mover-")
	if before.Committed == nil {
		t.Fatalf("nothing was saved: %+v", before.Attempts)
	}
	h.steps(*before.Committed + 20)
	j := h.job("mover-")
	if n := len(j.Attempts); n != 2 || j.Attempts[0].Cause != api.CauseNone || j.Attempts[0].Failure != nil || *j.Attempts[1].RestoreStep != *before.Committed {
		t.Errorf("%d attempts: %+v", n, j.Attempts)
	}
	if r := h.want(0, "job", "events", "mover-"); !strings.Contains(r.out, "job-preempted") || !strings.Contains(r.out, "preempted for") {
		t.Errorf("%v", r)
	}
	h.want(0, "job", "stop", "mover-", "--checkpoint", "--yes")
	h.noneTwice()
}

// An elastic job that began small grows by itself when there is room and nobody waits, with
// no step lost; and gives its surplus back to more important work without being ended.
func TestGrowth(t *testing.T) {
	t.Parallel()
	h := newTwo(t)
	policy := h.path("policy.yaml")
	if err := os.WriteFile(policy, []byte("scheduler: {protect: 0s, growAfter: 1s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.want(0, "topology", "apply", policy)
	h.want(0, "run", "--detach", "--name", "first", "--ranks", "1", "--cpus", "4", "--", "sleep", "600")
	h.mover(100000, "--ranks", "2", "--cpus", "4", "--sizes", "1,2", "--preemptible", "--checkpoint-every", "50steps")
	if n := h.job("mover-").Spec.Ranks; n != 1 {
		t.Fatalf("it began with %d ranks", n)
	}
	h.want(0, "stop", "first-", "--yes", "--grace", "1s")
	size := func(n int64) {
		t.Helper()
		eventually(t, fmt.Sprintf("it does not run with %d ranks", n), func() error {
			j := h.job("mover-")
			if j.State != api.Running || j.Spec.Ranks != n {
				return fmt.Errorf("%s with %d ranks", j.State, j.Spec.Ranks)
			}
			return nil
		})
	}
	size(2)
	h.steps(*h.job("mover-").Committed + 20)
	h.want(0, "run", "--detach", "--name", "vip", "--ranks", "1", "--cpus", "4", "--priority", "5", "--", "sleep", "600")
	size(1)
	h.want(0, "wait", "vip-", "--for", "running")
	j := h.job("mover-")
	for _, a := range j.Attempts {
		if a.Failure != nil || a.Cause != api.CauseNone {
			t.Errorf("attempt %d is charged: %+v", a.Number, a.Failure)
		}
	}
	h.want(0, "job", "stop", "mover-", "--checkpoint", "--yes")
	h.noneTwice()
}
