package cli

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Nodes whose agents were killed are drained, and their job stopped, with a checkpoint all
// the same: the shims hear of it, and the last one writes the manifest.
func TestDrainWithoutAgent(t *testing.T) {
	t.Parallel()
	h := newTwo(t)
	h.mover(100000, "--ranks", "2", "--cpus", "1")
	workers := map[string]*running{"box": h.worker, "den": h.den}
	kill := func() (node string) {
		t.Helper()
		j := h.job("mover-")
		node = j.Attempts[len(j.Attempts)-1].Ranks[0].Node
		workers[node].signal(syscall.SIGKILL)
		<-workers[node].done
		eventually(t, node+" is not agentless", func() error {
			if r := h.troupe("node", "get", node); !strings.Contains(r.out, string(api.NodeAgentless)) {
				return fmt.Errorf("%v", r)
			}
			return nil
		})
		return node
	}
	node := kill()
	before := h.job("mover-")
	h.want(0, "node", "drain", node)
	eventually(t, "the job does not go on elsewhere", func() error {
		j := h.job("mover-")
		if last := j.Attempts[len(j.Attempts)-1]; last.Number == 0 || last.Ranks[0].Node == node || j.Step == nil || *j.Step < *before.Step+10 {
			return fmt.Errorf("attempt %d: %s\n%s", last.Number, j.State, h.troupe("job", "events", j.ID).out)
		}
		return nil
	})
	if j := h.job("mover-"); len(j.Attempts) != 2 || j.Attempts[0].Cause != api.CauseNone {
		t.Errorf("%d attempts, cause %q", len(j.Attempts), j.Attempts[0].Cause)
	}
	h.noneTwice()
	kill()
	r := h.want(0, "job", "stop", "mover-", "--checkpoint", "--yes")
	j := h.job("mover-")
	if !strings.Contains(r.out, "STOPPED") || j.Committed == nil {
		t.Fatalf("%v\n%s", r, h.troupe("job", "events", j.ID).out)
	}
	h.noneTwice()
	if list := h.record(); list[len(list)-1][0] != *j.Committed {
		t.Errorf("the last step is %d, %d is committed", list[len(list)-1][0], *j.Committed)
	}
}
