package hostile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// both runs a test against an embedded cluster and one of separate processes.
func both(t *testing.T, o options, f func(t *testing.T, c *cluster)) {
	for _, split := range []bool{false, true} {
		t.Run(map[bool]string{false: "embedded", true: "split"}[split], func(t *testing.T) {
			t.Parallel()
			o := o
			// With separate processes the shims outlive more, and without groups they are
			// harder to find.
			o.split, o.fallback = split, split
			f(t, start(t, o))
		})
	}
}

// again starts what was killed.
func (c *cluster) again(name string) {
	c.t.Helper()
	switch name {
	case "up":
		c.up()
	case "head":
		c.startHead()
	case "worker":
		c.startWorker()
	}
}

// TestRanksOutliveTheCluster: killed and started again within the orphan time, a cluster
// finds its ranks as they were (P5, P6).
func TestRanksOutliveTheCluster(t *testing.T) {
	t.Parallel()
	both(t, options{}, func(t *testing.T, c *cluster) {
		hold := filepath.Join(c.dir, "hold")
		id := c.submit(chain("outlives", "--steps", "60", "--step-time", "0.01", "--hold", hold))
		var before map[string]int
		c.await("ranks run", func() (string, bool) {
			before = ranksOf(id)
			j := c.job(id)
			return c.tell(id), len(before) == 2 && j.Committed != nil && *j.Committed >= 3
		})
		for range 3 {
			for name := range maps.Keys(c.daemons) {
				c.kill(name)
				c.again(name)
				if after := ranksOf(id); !maps.Equal(before, after) {
					t.Fatalf("%s was killed: ranks were %v, are %v\n%s", name, before, after, c.tell(id))
				}
			}
		}
		c.await("all steps are done", func() (string, bool) {
			r := c.troupe("logs", id)
			return r.String(), strings.Count(r.out, "done 60") == 2
		})
		if after := ranksOf(id); !maps.Equal(before, after) {
			t.Errorf("ranks were %v, are %v", before, after)
		}
		if err := os.WriteFile(hold, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if j := c.ended(id, api.Succeeded, 0); j.Attempt != 0 {
			t.Errorf("%d restarts", j.Attempt)
		}
		c.idle()
	})
}

// TestOrphansEnd: ranks of an embedded cluster that stays away end by themselves, also
// those that ignore SIGTERM, and the job goes on from its checkpoint afterwards (P6).
func TestOrphansEnd(t *testing.T) {
	t.Parallel()
	c := start(t, options{orphan: 2 * time.Second})
	id := c.submit(chain("orphan", "--steps", "400", "--step-time", "0.01", "--ignore-term"))
	c.await("steps are committed", func() (string, bool) {
		j := c.job(id)
		return c.tell(id), j.Committed != nil && *j.Committed >= 5
	})
	c.kill("up")
	took := awaitFor(t, "the orphans are gone", 20*2*time.Second, func() (string, bool) {
		l := append(ofJob(id), c.shims()...)
		return fmt.Sprint(l), len(l) == 0
	})
	t.Logf("gone %s after the cluster", took.Round(10*time.Millisecond))
	if g := cgroups(id); len(g) > 0 {
		t.Logf("cgroups until the agent is back: %v", g)
	}
	c.up()
	j := c.ended(id, api.Succeeded, 0)
	out := c.troupe("logs", id).out
	if j.Attempt != 1 || strings.Contains(out, "WRONG") || strings.Contains(out, "attempt 1 resumes 0\n") {
		t.Errorf("%s\n%s", c.tell(id), clip(out))
	}
	c.idle()
}

// TestKillMoments kills the daemons at the moments in which something is half done:
// right after a submission was acknowledged, during start, commit, restart and stop.
// Nothing acknowledged is lost, every job ends as it must, the books balance (P3–P6, P8).
func TestKillMoments(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rounds := 5
	if testing.Short() {
		rounds = 1
	}
	both(t, options{}, func(t *testing.T, c *cluster) {
		rng := rand.New(rand.NewPCG(seed, 0))
		victims := []string{"up"}
		if c.o.split {
			victims = []string{"head", "worker", "both"}
		}
		hit := func(limit time.Duration) {
			t.Helper()
			<-time.After(time.Duration(rng.Int64N(int64(limit)))) // the moment of the kill is what is drawn
			switch v := victims[rng.IntN(len(victims))]; v {
			case "both":
				c.kill("head")
				c.kill("worker")
				c.startHead()
				c.startWorker()
			default:
				c.kill(v)
				c.again(v)
			}
		}
		for i := range rounds {
			// During start and the commits that follow.
			id := c.submit(with(chain(fmt.Sprintf("start-%d", i), "--steps", "30", "--step-time", "0.005"), "restart", map[string]any{"infrastructure": 50}))
			hit(120 * time.Millisecond)
			hit(400 * time.Millisecond)
			j := c.ended(id, api.Succeeded, 0)
			if out := c.troupe("logs", id).out; strings.Contains(out, "WRONG") {
				t.Errorf("%s", out)
			}
			// During a restart.
			id = c.submit(with(chain(fmt.Sprintf("restart-%d", i), "--steps", "200", "--step-time", "0.01"), "restart", map[string]any{"infrastructure": 50}))
			c.await("a step is committed", func() (string, bool) {
				j = c.job(id)
				return c.tell(id), j.Committed != nil
			})
			for _, pid := range ranksOf(id) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				break
			}
			hit(60 * time.Millisecond)
			j = c.ended(id, api.Succeeded, 0)
			if out := c.troupe("logs", id).out; strings.Contains(out, "WRONG") || j.Attempt < 1 {
				t.Errorf("%s\n%s", c.tell(id), clip(out))
			}
			// During a stop, which was acknowledged or not.
			id = c.submit(with(spec(fmt.Sprintf("stop-%d", i), 2, c.hostile, "family"), "restart", map[string]any{"infrastructure": 50}))
			c.awaitState(id, api.Running)
			done := make(chan result, 1)
			go func() { done <- c.troupe("stop", id, "--yes") }()
			hit(500 * time.Millisecond)
			r := <-done
			if r.code != 0 && c.job(id).State != api.Stopping && !c.job(id).State.Terminal() {
				c.troupe("stop", id, "--yes")
			}
			c.ended(id, api.Stopped, 0)
			c.idle()
		}
	})
}

// TestNodeIDLost: a node that lost its id is a new node. What the old one ran ends, and
// goes on as a new attempt on the new one: never two generations at once (P2, P3).
func TestNodeIDLost(t *testing.T) {
	if testing.Short() {
		return // a short run leaves it out
	}
	t.Parallel()
	c := start(t, options{orphan: 30 * time.Second})
	id := c.submit(chain("renamed", "--steps", "300", "--step-time", "0.01"))
	c.await("steps are committed", func() (string, bool) {
		j := c.job(id)
		return c.tell(id), j.Committed != nil && *j.Committed >= 3
	})
	c.kill("up")
	if err := os.Remove(filepath.Join(c.state, "node", "node-id")); err != nil {
		t.Fatal(err)
	}
	c.up()
	c.await(id+" ends", func() (string, bool) {
		generations := map[string]bool{}
		for _, p := range ofJob(id) {
			generations[p.env["TROUPE_GENERATION"]] = true
		}
		if len(generations) > 1 {
			t.Fatalf("generations %v at once\n%s", slices.Collect(maps.Keys(generations)), c.tell(id))
		}
		return c.tell(id) + c.troupe("node", "list").out, c.job(id).State.Terminal()
	})
	j := c.job(id)
	if out := c.troupe("logs", id).out; j.State != api.Succeeded || strings.Contains(out, "WRONG") || j.Attempt < 1 {
		t.Errorf("%s\n%s", c.tell(id), clip(out))
	}
	// What the old node held stays held, for nobody can prove for it that it is free; but
	// no process is left.
	awaitFor(t, "no process is left", goneLimit, func() (string, bool) {
		l := append(ofJob(id), c.shims()...)
		return fmt.Sprint(l), len(l) == 0
	})
}
