package control

import (
	"context"

	"github.com/troupe-runtime/troupe/head/state"
)

// tellDropped records that steps were given up, with the reason, which names the ranks
// that did not prepare one (P7). What ended with its attempt or its run has an event of
// its own.
func (c *checkpoints) tellDropped(ctx context.Context) {
	h := c.h
	c.mu.Lock()
	dropped := c.t.Dropped()
	c.mu.Unlock()
	for _, d := range dropped {
		v := h.Store.View()
		j, r := c.liveJob(v, d.Run), v.Run(d.Run)
		if j == nil || j.Last().Ended != 0 || r.Generation != d.Generation {
			continue
		}
		h.spawn(ctx, func() {
			h.try(ctx, state.KindDropStep, state.DropStep{Run: d.Run, Generation: d.Generation, Step: d.Step, Reason: d.Reason})
		})
	}
}
