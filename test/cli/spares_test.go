package cli

import (
	"encoding/json"
	"fmt"
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
