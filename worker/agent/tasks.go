package agent

import (
	"context"
	"fmt"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	maxTasks   = 64 // waiting and running
	maxWorkers = 4  // running: each may read whole checkpoints
)

// onVerdict takes a verdict that the head pushes.
func (a *Agent) onVerdict(_ context.Context, m bus.Msg) {
	var v wire.Verdict
	if err := wire.Unmarshal(m.Data, &v); err != nil {
		a.Logger.Warn("a malformed verdict was refused", "err", err)
		return
	}
	a.verdict(v)
}

// onTask carries out work on a checkpoint store.
func (a *Agent) onTask(ctx context.Context, m bus.Msg) {
	var t wire.Task
	if err := wire.Unmarshal(m.Data, &t); err != nil {
		a.Logger.Warn("a malformed task was refused", "err", err)
		return
	}
	refuse := func(format string, args ...any) {
		a.respond(m, wire.TaskReply{ID: t.ID, Error: fmt.Sprintf(format, args...)})
	}
	// Tasks are made beside each other, so an index may be behind that of the desired
	// state; a term may not: its leader was deposed (P3, P4).
	a.mu.Lock()
	newest := a.newest
	a.mu.Unlock()
	if t.Position.Term < newest.Term {
		refuse("refused: the task is of term %d, this node has heard of term %d", t.Position.Term, newest.Term)
		return
	}
	select {
	case a.tasks <- struct{}{}:
	default:
		refuse("refused: %d tasks wait on this node; try again", maxTasks)
		return
	}
	a.spawn(func() {
		defer func() { <-a.tasks }()
		select {
		case a.workers <- struct{}{}:
		case <-ctx.Done():
			return
		}
		defer func() { <-a.workers }()
		// Do admits only directories of the run below the store that the task names,
		// reached through no link.
		reply := checkpoint.Do(ctx, a.stores, a.Disk, t, a.Clock.Now())
		if ctx.Err() != nil {
			return // cut short: silence says so, an answer would not
		}
		if reply.Error != "" {
			a.Logger.Warn("a task on a checkpoint failed", "kind", t.Kind, "run", t.Run, "step", t.Step, "err", reply.Error)
		}
		a.respond(m, reply)
	})
}
