package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	// callSoon is how soon a shim that speaks for itself is to call again while ranks may
	// wait for what it hears.
	callSoon = 100 * time.Millisecond
	// errandLook is how often the wait for a shim looks whether it still speaks.
	errandLook = 500 * time.Millisecond
	maxErrand  = 2 << 20 // bytes of a task's data
	maxWaiting = 64      // errands of one allocation
)

// errands are the tasks that a shim is asked for because its node has no agent and no other
// node sees the store. They travel in the answers to its calls, again and again until it
// says that they are done.
type errands struct {
	mu  sync.Mutex
	all map[string][]*errand // by allocation
}

type errand struct {
	task  wire.Task
	reply chan wire.TaskReply // holds one
}

// byShims: what a shim may be asked for. It writes a few small files of a step; what reads
// every byte, or deletes, waits for an agent.
func byShims(k wire.TaskKind) bool {
	return k == wire.TaskWriteManifest || k == wire.TaskWriteCommitted || k == wire.TaskWriteRolledBack
}

// add queues a task; nil: there are too many.
func (e *errands) add(alloc string, t wire.Task) *errand {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all == nil {
		e.all = map[string][]*errand{}
	}
	if len(e.all[alloc]) >= maxWaiting {
		return nil
	}
	x := &errand{task: t, reply: make(chan wire.TaskReply, 1)}
	e.all[alloc] = append(e.all[alloc], x)
	return x
}

func (e *errands) drop(alloc string, x *errand) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all[alloc] = slices.DeleteFunc(e.all[alloc], func(o *errand) bool { return o == x })
	if len(e.all[alloc]) == 0 {
		delete(e.all, alloc)
	}
}

// hear takes what a shim says that it has done.
func (e *errands) hear(c *wire.ShimCall) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range c.Done {
		for i, x := range e.all[c.Alloc] {
			if x.task.ID == r.ID {
				x.reply <- r
				e.all[c.Alloc] = slices.Delete(e.all[c.Alloc], i, i+1)
				break
			}
		}
	}
}

// of lists the oldest tasks of an allocation.
func (e *errands) of(alloc string) []wire.Task {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []wire.Task
	for _, x := range e.all[alloc][:min(len(e.all[alloc]), wire.MaxErrands)] {
		out = append(out, x.task)
	}
	return out
}

// speaksFor reports whether a node has no agent and the shim of an allocation on it speaks
// for itself.
func (h *Head) speaksFor(n *state.Node, alloc string) bool {
	return n.State == api.NodeAgentless && h.nodes.calls(n.ID, alloc, h.Timing.Lost)
}

// speakers are the nodes of a run's attempt whose shims speak for themselves.
func (h *Head) speakers(v *state.View, run string) []string {
	var nodes []string
	if j := h.ck.liveJob(v, run); j != nil {
		for _, id := range j.Last().Allocs {
			if a := v.Alloc(id); a != nil && v.Node(a.Node) != nil && h.speaksFor(v.Node(a.Node), id) {
				nodes = append(nodes, a.Node)
			}
		}
	}
	return nodes[:min(len(nodes), 3)]
}

// askShim hands a task on a run's store to the shim of the run on a node without an agent.
func (h *Head) askShim(ctx context.Context, node string, limit time.Duration, t wire.Task) (wire.TaskReply, error) {
	if len(t.Data) > maxErrand {
		return wire.TaskReply{}, fmt.Errorf("%d bytes are more than a shim is handed; start the node's agent", len(t.Data))
	}
	alloc := ""
	v := h.Store.View()
	if j := h.ck.liveJob(v, t.Run); j != nil {
		for _, id := range j.Last().Allocs {
			if a := v.Alloc(id); a != nil && a.Node == node {
				alloc = id
			}
		}
	}
	x := h.errands.add(alloc, t)
	if alloc == "" || x == nil {
		return wire.TaskReply{}, errors.New("no shim of the run can take it")
	}
	defer h.errands.drop(alloc, x)
	end := h.Clock.NewTimer(limit)
	defer end.Stop()
	for {
		look := h.Clock.NewTimer(errandLook)
		select {
		case r := <-x.reply:
			look.Stop()
			return r, nil
		case <-ctx.Done():
			look.Stop()
			return wire.TaskReply{}, ctx.Err()
		case <-end.C():
			look.Stop()
			return wire.TaskReply{}, fmt.Errorf("its shim did not answer within %s", limit)
		case <-look.C():
		}
		if n := h.Store.View().Node(node); n == nil || !h.speaksFor(n, alloc) {
			return wire.TaskReply{}, errors.New("its shim speaks for itself no more")
		}
	}
}

// verdictsFor answers the prepared steps of a call. A shim speaks of its own allocation
// alone.
func (h *Head) verdictsFor(ctx context.Context, node string, c *wire.ShimCall) []wire.Verdict {
	var out []wire.Verdict
	for _, p := range c.Prepared {
		if p.Alloc != c.Alloc {
			continue
		}
		if verdict, ok := h.prepared(ctx, node, p); ok {
			out = append(out, verdict)
		}
	}
	return out
}

// waits: a step of these is not decided yet.
func waits(list []wire.Verdict) bool {
	return slices.ContainsFunc(list, func(v wire.Verdict) bool { return v.State == checkpoint.VerdictPending })
}
