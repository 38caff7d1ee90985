package agent

import (
	"context"
	"fmt"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// maxAllocs bounds what a head may want of one node.
const maxAllocs = 4096

// maxWarmRanks bounds the ranks that a node prepares for.
const maxWarmRanks = 4096

// onDesired takes the node's desired state and answers with the newest position that
// was taken, at once: making it so comes after.
func (a *Agent) onDesired(ctx context.Context, m bus.Msg) {
	var d wire.Desired
	err := wire.Unmarshal(m.Data, &d)
	if err == nil {
		err = checkDesired(&d)
	}
	if err != nil {
		a.Logger.Warn("a malformed desired state was refused", "err", err)
		return
	}
	a.respond(m, a.take(ctx, d))
}

func checkDesired(d *wire.Desired) error {
	if len(d.Allocs) > maxAllocs {
		return fmt.Errorf("%d allocations, at most %d are taken", len(d.Allocs), maxAllocs)
	}
	seen := make(map[string]bool, len(d.Allocs))
	for i := range d.Allocs {
		id := d.Allocs[i].ID
		if !plain(id) || seen[id] {
			return fmt.Errorf("allocation %q is named twice or badly", clip(id))
		}
		seen[id] = true
	}
	if w := d.Warm; w != nil && (len(w.Attempt.Ranks) == 0 || len(w.Attempt.Ranks) > maxWarmRanks) {
		return fmt.Errorf("%d ranks to prepare for; 1 to %d", len(w.Attempt.Ranks), maxWarmRanks)
	}
	return nil
}

// take makes d the desired state unless something newer was taken. It returns the
// newest position.
func (a *Agent) take(ctx context.Context, d wire.Desired) wire.Position {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ending || a.life == "" || d.Position.Less(a.newest) {
		// P3: a leader that was deposed may still speak. Before the first registration
		// nothing tells one from the other; what was missed then is fetched after it.
		return a.newest
	}
	a.newest = d.Position
	if a.spares != nil && (d.Warm != nil || a.warmOrder != nil) {
		a.warmOrder = d.Warm
		a.spawnLocked(a.spares.follow)
	}
	wanted := make(map[string]bool, len(d.Allocs))
	for i := range d.Allocs {
		w := d.Allocs[i]
		wanted[w.ID] = true
		x := a.allocs[w.ID]
		if x == nil {
			x = a.newAlloc(w.ID)
			a.allocs[w.ID] = x
			a.spawnLocked(func() { x.run(ctx) })
		}
		if w.End {
			x.desire(nil, d.Position)
			continue
		}
		x.desire(&w, d.Position)
	}
	for id, x := range a.allocs {
		if !wanted[id] {
			x.desire(nil, d.Position)
		}
	}
	return a.newest
}

// keepFetching asks for the desired state after each registration, and now and then
// in case that a push was lost for good.
func (a *Agent) keepFetching(ctx context.Context) {
	var wait backoff
	next := fetchEvery
	for ctx.Err() == nil {
		a.pause(ctx, a.wakeFetch, next)
		if !a.isOpen() {
			continue
		}
		var d wire.Desired
		err := a.call(ctx, wire.HeadFetch+a.NodeID, callTimeout, nil, &d)
		if err == nil {
			err = checkDesired(&d)
		}
		if err != nil {
			if ctx.Err() == nil {
				a.Logger.Debug("the desired state could not be fetched", "err", err)
			}
			next = wait.next()
			continue
		}
		wait.reset()
		next = fetchEvery
		a.take(ctx, d)
	}
}
