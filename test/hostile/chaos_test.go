package hostile

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// report is what troupe chaos -o json prints.
type report struct {
	Strikes []struct {
		api.FaultResult
		Noticed   string `json:"noticed"`
		Recovered bool   `json:"recovered"`
		Restarts  int64  `json:"restarts"`
		Outcome   string `json:"outcome"`
	} `json:"strikes"`
	WentBack bool `json:"committedWentBack"`
	OK       bool `json:"ok"`
}

// chaos harms a job and returns the report, which the exit code must agree with.
func (c *cluster) chaos(id string, args ...string) report {
	c.t.Helper()
	r := c.troupe(append([]string{"chaos", id, "--yes", "-o", "json"}, args...)...)
	var out report
	if err := json.Unmarshal([]byte(r.out), &out); err != nil {
		c.t.Fatalf("%s\n%v\n%s", r, err, c.tell(id))
	}
	if r.code != map[bool]int{true: 0, false: api.ExitFailed}[out.OK] || out.WentBack {
		c.t.Errorf("%s", r)
	}
	return out
}

// training submits a job that goes on until the test ends it, and waits for its first
// commits.
func (c *cluster) training(name string, more ...any) string {
	c.t.Helper()
	id := c.submit(with(chain(name, "--steps", "100000", "--step-time", "0.02"), append(more, "restart", map[string]any{"infrastructure": 50})...))
	c.await("a step is committed", func() (string, bool) {
		j := c.job(id)
		return c.tell(id), j.Committed != nil
	})
	return id
}

// over ends a job of training, and checks what every attempt resumed.
func (c *cluster) over(id string) {
	c.t.Helper()
	if out := c.troupe("logs", id).out; strings.Contains(out, "WRONG") {
		c.t.Errorf("%s", clip(out))
	}
	c.troupe("stop", id, "--yes")
	c.ended(id, api.Stopped, 0)
	c.idle()
}

// TestChaosOfRanks: each fault of a rank does what it says and the job recovers (P4).
func TestChaosOfRanks(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	id := c.training("ranks")
	for _, s := range c.chaos(id, "kill-rank", "stop-rank", "--for", "500ms", "--seed", "1").Strikes {
		if want := map[api.FaultKind]int64{api.FaultKillRank: 1}[s.Fault]; s.Restarts != want || !s.Recovered {
			t.Errorf("%s: %d restarts, want %d: %s", s.Fault, s.Restarts, want, s.Outcome)
		}
	}
	for _, point := range api.SavePoints {
		r := c.chaos(id, "at-save", "--point", string(point), "--rank", "1")
		if len(r.Strikes) != 1 || r.Strikes[0].Restarts != 1 || r.Strikes[0].Noticed != "rank-exited" {
			t.Errorf("at-save, %s: %+v", point, r)
		}
	}
	if r := c.troupe("chaos", id, "kill-agent", "--yes"); r.code != api.ExitConflict || !strings.Contains(r.err, "shares its process with the head") {
		t.Errorf("%s", r)
	}
	if n := strings.Count(c.troupe("job", "events", id, "--all").out, "fault-injected"); n != 6 {
		t.Errorf("%d faults are in the log, want 6", n) // the one that was refused is there, too
	}
	c.over(id)
}

// TestChaosOfNodes: an agent that is killed and comes back costs no rank, a node that is
// killed with all it runs costs one restart (P5, P6).
func TestChaosOfNodes(t *testing.T) {
	t.Parallel()
	c := start(t, options{split: true})
	id := c.training("nodes")
	for fault, restarts := range map[string]int64{"kill-agent": 0, "kill-node": 1} {
		ranks := ranksOf(id)
		got := make(chan report, 1)
		go func() { got <- c.chaos(id, fault) }()
		c.daemons["worker"].wait(t, patience) // it is killed by its own hand
		c.startWorker()
		r := <-got
		if len(r.Strikes) != 1 || r.Strikes[0].Restarts != restarts || !r.Strikes[0].Recovered {
			t.Errorf("%s: %+v\n%s", fault, r, c.tell(id))
		}
		for rank, pid := range ranks {
			if same := ranksOf(id)[rank] == pid; same != (restarts == 0) {
				t.Errorf("%s: rank %s is the same process: %t", fault, rank, same)
			}
		}
	}
	if r := c.troupe("chaos", id, "cut", "--yes"); r.code != api.ExitConflict || !strings.Contains(r.err, "no network to cut") {
		t.Errorf("%s", r)
	}
	c.over(id)
}

// TestChaosFillsTheDisk: a full store costs steps while it is full, and none after.
func TestChaosFillsTheDisk(t *testing.T) {
	t.Parallel()
	c := start(t, options{})
	store := filepath.Join(c.dir, "store")
	mountSmall(t, store, "16m")
	id := c.training("disk", "checkpoint", map[string]any{"store": store, "interval": "1steps"})
	r := c.chaos(id, "fill-disk", "--for", "1s")
	if len(r.Strikes) != 1 || !r.Strikes[0].Recovered || !strings.Contains(r.Strikes[0].Did, "is full for 1s") {
		t.Errorf("%+v\n%s", r, c.tell(id))
	}
	was := c.job(id).Committed
	c.await("it commits again", func() (string, bool) {
		j := c.job(id)
		return c.tell(id), j.Committed != nil && *j.Committed > *was
	})
	c.over(id)
}
