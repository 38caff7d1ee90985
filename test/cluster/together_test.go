package cluster

import (
	"fmt"
	"sync"
	"testing"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// TestGroupsTogether: many ask for a group at once, and the leader ends in the middle of
// them, or of placing those that waited. Each asks again under its key until it hears, and
// then has one group; what there is room for holds it, and the rest waits (P1, P2, I16).
func TestGroupsTogether(t *testing.T) {
	const many, room = 20, 8
	for _, heads := range []int{1, 3} {
		for _, k := range []struct {
			point string
			nth   int
		}{{"create-group", 1}, {"create-group", 7}, {"place", 1}, {"place", 3}} {
			t.Run(fmt.Sprint(heads, " ", k.point, " ", k.nth), func(t *testing.T) {
				Run(t, Options{Heads: heads, Nodes: four()}, func(c *Cluster) {
					spec := api.GroupSpec{Bundles: []api.Bundle{{Resources: api.Resources{CPU: 1000}}}}
					if k.point == "create-group" {
						c.Trip(k.point, k.nth, func() { c.crashLeader(time.Second) })
					}
					ids := make([]string, many)
					var wg sync.WaitGroup
					for i := range ids {
						wg.Go(func() {
							ids[i] = c.createGroupWith(spec, headapi.Idempotency{Key: fmt.Sprint("k", i), Fingerprint: "f"})
						})
					}
					wg.Wait()
					count := func(v *state.View) (placed, pending int) {
						for _, g := range v.Groups() {
							switch g.State {
							case api.GroupPlaced:
								placed++
							case api.GroupPending:
								pending++
							}
						}
						return placed, pending
					}
					full := func(left int) func(*state.View) bool {
						return func(v *state.View) bool {
							placed, pending := count(v)
							return placed == min(room, left) && placed+pending == left
						}
					}
					v := c.Wait("there are as many as were asked for", time.Minute, full(many))
					seen := map[string]bool{}
					for i, id := range ids {
						if k := v.Key(fmt.Sprint("k", i)); v.Group(id) == nil || seen[id] || k == nil || k.Result != id {
							t.Errorf("%d heard of %s, which is not there or another's: %+v", i, id, k)
						}
						seen[id] = true
					}
					if k.point == "place" {
						c.Trip(k.point, k.nth, func() { c.crashLeader(time.Second) })
					}
					// All that holds something goes at once.
					for _, g := range v.Groups() {
						if g.State == api.GroupPlaced {
							wg.Go(func() { c.removeGroup(g.ID) })
						}
					}
					wg.Wait()
					c.Wait("others have their place", time.Minute, full(many-room))
					if !c.Tripped() {
						t.Error("the point was never passed")
					}
					for _, g := range c.View().Groups() {
						c.removeGroup(g.ID)
					}
					c.books()
				})
			})
		}
	}
}

// createGroupWith asks under a key until a leader answers.
func (c *Cluster) createGroupWith(spec api.GroupSpec, key headapi.Idempotency) string {
	for range 600 {
		if h := c.Leader(); h != nil {
			if l := h.running(); l != nil {
				if made, err := l.control.CreateGroup(c.ctx, spec, key); err == nil {
					return made.ID
				}
			}
		}
		_ = c.clock.Sleep(c.ctx, 100*ms)
	}
	c.T.Errorf("no leader made the group of key %s", key.Key)
	return ""
}

// removeGroup likewise; a group that is gone already is removed.
func (c *Cluster) removeGroup(id string) {
	for range 600 {
		if h := c.Leader(); h != nil {
			if l := h.running(); l != nil {
				_, err := l.control.RemoveGroup(c.ctx, id)
				if err == nil || l.store.View().Group(id) == nil && h.leads() {
					return
				}
			}
		}
		_ = c.clock.Sleep(c.ctx, 100*ms)
	}
	c.T.Errorf("no leader removed group %s", id)
}
