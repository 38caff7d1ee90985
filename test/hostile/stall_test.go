package hostile

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// stalling is a job of three ranks of which rank 1 stands still in one way; see stalls.py.
func stalling(c *cluster, how, kill string, more ...string) map[string]any {
	script, err := filepath.Abs("stalls.py")
	if err != nil {
		c.t.Fatal(err)
	}
	argv := append([]string{pythonBin, "-u", script, "--folder", filepath.Join(c.dir, "stall-"+how), "--how", how}, more...)
	return with(spec("stall-"+how, 3, argv...), "restart", map[string]any{"stallKill": kill})
}

// TestStalls: real ranks that stand still: who holds the others up is told with the
// stacks of all, the attempt is ended and charged to the class hang; what is slow, or said
// that it would be, is left alone (F7, elastic case 38).
func TestStalls(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	ids := map[string]string{}
	for _, how := range []string{"stop", "deadlock", "slow", "phase", "brief"} {
		kill := "3s"
		switch how {
		case "slow":
			kill = "10s" // as the longest gap and more
		case "brief":
			kill = "20s"
		}
		ids[how] = c.submit(stalling(c, how, kill))
	}
	// Where they stand is asked while they do, before anything is ended.
	stood := map[string]api.Stacks{}
	for _, k := range []struct{ how, sign string }{{"stop", "T (stopped)"}, {"deadlock", "in locked"}} {
		c.await("the stacks of "+k.how, func() (string, bool) {
			r := c.troupe("job", "stack", ids[k.how], "-o", "json")
			var x api.Stacks
			ok := r.code == 0 && strings.Contains(r.out, k.sign) && json.Unmarshal([]byte(r.out), &x) == nil
			stood[k.how] = x
			// The others are on their way to where they wait until they are there.
			return r.String(), ok && len(x.Groups) == 2 && strings.Contains(x.Groups[0].Stack, "in wait_for_all")
		})
	}
	for _, k := range []struct{ how, says string }{
		{"stop", "state T (stopped)"},
		{"deadlock", "stalls.py, line"},
	} {
		t.Run(k.how, func(t *testing.T) {
			sub := *c
			sub.t = t
			id := ids[k.how]
			st := stood[k.how]
			if g := st.Groups; !strings.Contains(g[0].Stack, "in wait_for_all") || g[1].Ranks[0] != 1 || len(st.Missing) != 0 {
				t.Errorf("%+v", st)
			}
			j := sub.ended(id, api.Succeeded, 0)
			first := j.Attempts[0]
			if len(j.Attempts) != 2 || first.Cause != api.CauseHang || first.Failure == nil || first.Failure.Rank != 1 {
				t.Errorf("%+v", j.Attempts)
			}
			events := sub.events(id)
			if !strings.Contains(events, "stalled") || !strings.Contains(events, "rank 1 on n1 holds the others up") || !strings.Contains(events, k.says) {
				t.Errorf("%s", events)
			}
			f := get[api.List[api.FailureRow]](&sub, "job", "failures", id)
			if len(f.Items) == 0 || f.Items[0].Kind != "hang" || !f.Items[0].Root || f.Items[0].Rank != 1 {
				t.Errorf("%+v", f.Items)
			}
			h := get[api.List[api.History]](&sub, "job", "history", id)
			if len(h.Items) != 2 || h.Items[0].Cause != api.CauseHang || h.Items[1].RecoveryTime == nil {
				t.Errorf("%+v", h.Items)
			}
			g := get[api.Goodput](&sub, "job", "goodput", id)
			var sum int64
			for _, p := range g.Parts() {
				sum += int64(p.Time)
			}
			if sum != int64(g.Wall) || g.Stalled == 0 || g.Useful == 0 || g.Ratio <= 0 {
				t.Errorf("%+v", g)
			}
		})
	}
	for _, how := range []string{"slow", "phase", "brief"} {
		t.Run(how, func(t *testing.T) {
			sub := *c
			sub.t = t
			j := sub.ended(ids[how], api.Succeeded, 0)
			if j.Attempt != 0 {
				t.Errorf("it was restarted: %s", sub.tell(ids[how]))
			}
			if events := sub.events(ids[how]); how == "phase" && strings.Contains(events, "stalled") {
				t.Errorf("a phase is no stall:\n%s", events)
			}
		})
	}
	if r := c.troupe("job", "stack", ids["slow"]); r.code == 0 || !strings.Contains(r.err, "has no rank that runs") {
		t.Errorf("%s", r)
	}
	if r := c.trySubmit(stalling(c, "phase", "soon")); r.code == 0 || !strings.Contains(r.err, "stallKill") {
		t.Errorf("%s", fmt.Sprint(r))
	}
	c.idle()
}
