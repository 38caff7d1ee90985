package cluster

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// TestNothingCommitsWhileSuspect: every rank of a step has prepared it and its manifest is
// written, and then a node falls silent: the step does not commit before the head knows
// better (DESIGN §7). With the node back it commits in the same attempt; with the node
// lost it is finished first and then restored (§8). The history looks at every commit.
func TestNothingCommitsWhileSuspect(t *testing.T) {
	for name, back := range map[string]bool{"it is back": true, "it is lost": false} {
		t.Run(name, func(t *testing.T) {
			o := Options{Nodes: four()[:3]}
			if back {
				o.Timing.Lost = 8 * time.Second // time to come back in
			}
			Run(t, o, func(c *Cluster) {
				id := c.Submit(saving(40))
				c.WaitStep(id, 12, time.Minute)
				writer, silent := c.View().Job(id).Last().Ranks[0].Node, c.View().Job(id).Last().Ranks[3].Node
				gen := c.View().Job(id).Last().Generation
				// The answer to the manifest's task alone is late: its writer is heard otherwise.
				c.Bus.SetDelay(func(from, _, subject string) time.Duration {
					if from == c.Node(writer).identity() && strings.HasPrefix(subject, "_INBOX") {
						return 2900 * ms
					}
					return 0
				})
				c.Trip("task:write-manifest:done", 1, c.Node(silent).Cut)
				v := c.Wait("a node is suspect", time.Minute, nodeIs(silent, api.NodeSuspect))
				from := time.Now()
				if v.NewestCommitted("a").Step != 10 {
					t.Fatalf("step %d is committed already", v.NewestCommitted("a").Step)
				}
				committed := func(*state.View) bool { return c.History.committed("a", gen, 15) }
				if back {
					time.Sleep(600 * ms) // the manifest is written, and the node is not lost yet
					synctest.Wait()
					if v := c.View(); committed(v) || v.Node(silent).State != api.NodeSuspect {
						t.Errorf("committed: %v, the node is %s", committed(v), v.Node(silent).State)
					}
					c.Node(silent).Heal()
				}
				c.Bus.SetDelay(nil)
				c.Wait("step 15 is committed", time.Minute, committed)
				t.Logf("committed %s after the suspicion, the node is %s", time.Since(from), c.View().Node(silent).State)
				j := c.WaitState(id, 5*time.Minute, api.Succeeded)
				switch {
				case back && len(j.Attempts) != 1:
					t.Errorf("%d attempts", len(j.Attempts))
				case !back && (len(j.Attempts) != 2 || j.Last().Restore == nil || j.Last().Restore.Step != 15):
					t.Errorf("attempt %d of %d restores %+v", j.Last().Number, len(j.Attempts), j.Last().Restore)
				}
				c.Node(silent).Heal()
				c.books()
			})
		})
	}
}
