package cluster

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
)

// TestStartCheckHolds: while something else holds up a start, the nodes are asked now and
// then whether the job's folder and program are there, not with every pass of the loop,
// which each of their answers starts.
func TestStartCheckHolds(t *testing.T) {
	Run(t, Options{Nodes: four()[:2]}, func(c *Cluster) {
		var asked atomic.Int64
		ear := c.Bus.Connect("ear", bus.Permission{Subscribe: []string{"n.>"}})
		defer ear.Close()
		if _, err := ear.Subscribe("n.*.start-check", func(bus.Msg) { asked.Add(1) }); err != nil {
			t.Fatal(err)
		}
		// The run's folder takes 25 s to list; an answer about the start takes 10 ms.
		c.Bus.SetDelay(func(_, _, subject string) time.Duration {
			switch {
			case strings.HasSuffix(subject, ".task"):
				return 25 * time.Second
			case strings.HasSuffix(subject, ".start-check"):
				return 10 * ms
			}
			return 0
		})
		id := c.Submit(saving(10))
		c.Wait("the nodes are asked", time.Minute, func(*state.View) bool { return asked.Load() > 0 })
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if j := c.View().Job(id); j.Last() != nil {
			t.Fatalf("it has started: %s", j.State)
		}
		// Twice, each of two nodes: an answer holds for ten seconds.
		if n := asked.Load(); n < 4 || n > 6 {
			t.Fatalf("the nodes were asked %d times within 20 s", n)
		}
		c.Bus.SetDelay(nil)
		c.WaitState(id, time.Minute, api.Succeeded)
	})
}
