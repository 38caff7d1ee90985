package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/elastic/supervise"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// task hands work on a store to a live agent: one that runs the job, else any ready.
func (h *Head) task(ctx context.Context, v *state.View, run string, t wire.Task) (wire.TaskReply, error) {
	nodes := h.taskNodes(v, run)
	if byShims(t.Kind) {
		nodes = append(nodes, h.speakers(v, run)...)
	}
	return h.ask(ctx, v, nodes, t)
}

// ask hands a task to the first of some nodes that can do it.
func (h *Head) ask(ctx context.Context, v *state.View, nodes []string, t wire.Task) (wire.TaskReply, error) {
	if len(nodes) == 0 {
		return wire.TaskReply{}, errors.New("no ready node to write through")
	}
	t.Position = wire.Position{Term: v.Term(), Index: v.Index()}
	t.ID = fmt.Sprintf("%s-%s-%d-%d", t.Kind, t.Run, t.Step, t.Position.Index)
	data, err := wire.Marshal(t)
	if err != nil {
		return wire.TaskReply{}, err
	}
	limit := 30 * time.Second
	if t.Kind == wire.TaskVerify || t.Kind == wire.TaskExport {
		// It reads every byte; one node does it, and a second try would only double it.
		limit, nodes = 30*time.Minute, nodes[:1]
	}
	var last error
	var refused *wire.TaskReply
	for _, n := range nodes {
		var raw []byte
		var reply wire.TaskReply
		var err error
		if x := v.Node(n); x != nil && x.State == api.NodeAgentless {
			reply, err = h.askShim(ctx, n, limit, t)
		} else if raw, err = h.askNode(ctx, n, limit, data); err == nil {
			err = wire.Unmarshal(raw, &reply)
		}
		switch {
		case err != nil:
			last = fmt.Errorf("node %s: %w", nodeName(v, n), err)
		case reply.Error == "" || len(reply.Bad) > 0 || reply.Exact:
			return reply, nil
		default:
			// One node's mount or queue says nothing about the files.
			refused = &reply
		}
	}
	if refused != nil {
		return *refused, nil
	}
	return wire.TaskReply{}, last
}

// sessionTries bounds how often one task follows a node into its next session.
const sessionTries = 10

// errSessionOver is the cause when the session that a task was sent to ended.
var errSessionOver = errors.New("the node's agent went away before it answered")

// askNode hands a task to one node. An agent that dies, or loses its connection, takes
// the question or the answer with it: its next session is asked again at once, for tasks
// may be repeated; a lost node is given up.
func (h *Head) askNode(ctx context.Context, node string, limit time.Duration, data []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for try := 1; ; try++ {
		over := h.nodes.ending(node)
		rctx, stop := context.WithCancelCause(ctx)
		done := make(chan struct{})
		h.spawn(ctx, func() {
			select {
			case <-over:
				stop(errSessionOver)
			case <-done:
			}
		})
		raw, err := h.Bus.Request(rctx, wire.NodeTask(node), data)
		close(done)
		cut := context.Cause(rctx) == errSessionOver //nolint:errorlint // the very value
		stop(nil)
		if err == nil || !cut || ctx.Err() != nil {
			return raw, err
		}
		if n := h.Store.View().Node(node); try == sessionTries || n == nil || n.State != api.NodeReady {
			return nil, errSessionOver
		}
	}
}

func (h *Head) taskNodes(v *state.View, run string) []string {
	var nodes []string
	add := func(id string) {
		if n := v.Node(id); n != nil && n.State == api.NodeReady && !slices.Contains(nodes, id) {
			nodes = append(nodes, id)
		}
	}
	if j := h.ck.liveJob(v, run); j != nil {
		for _, r := range j.Last().Ranks {
			add(r.Node)
		}
	}
	for _, n := range v.Nodes() {
		add(n.ID)
	}
	return nodes[:min(len(nodes), 3)]
}

// reading is what a second node found of a step that a first one read as damaged.
type reading struct {
	done  bool
	whole bool
}

// secondReading has a damaged step read again by another node, or by the same one if
// there is no other; known is false while that is under way.
func (c *checkpoints) secondReading(ctx context.Context, v *state.View, j *state.Job, at *state.Attempt) (whole, known bool) {
	key := fmt.Sprintf("read/%s/%d", j.Run(), at.Generation)
	c.mu.Lock()
	r := c.readings[key]
	c.mu.Unlock()
	if r != nil && r.done {
		return r.whole, true
	}
	first := map[string]bool{}
	for _, id := range at.Allocs {
		if a := v.Alloc(id); a != nil && a.Damaged != "" {
			first[a.Node] = true
		}
	}
	nodes := slices.DeleteFunc(c.h.taskNodes(v, j.Run()), func(n string) bool { return first[n] })
	restore := *at.Restore
	store := cmp.Or(restore.Store, c.h.storeOf(v, j))
	c.once(ctx, key, func() {
		got := &reading{done: true}
		if len(nodes) > 0 {
			t := wire.Task{Kind: wire.TaskVerify, Run: j.Run(), Store: store, Step: restore.Step, Dir: restore.Dir, Digest: restore.Digest}
			reply, err := c.h.ask(ctx, v, nodes[:1], t)
			got.whole = err == nil && reply.Error == "" && len(reply.Bad) == 0
		}
		c.mu.Lock()
		c.readings[key] = got
		c.mu.Unlock()
		c.h.Kick()
	})
	return false, false
}

// badReader charges the attempt to the node whose reading differs from another's; the
// step stands.
func (c *checkpoints) badReader(v *state.View, d supervise.Decision, j *state.Job) *state.AttemptEnd {
	reader := ""
	for _, id := range j.Last().Allocs {
		if a := v.Alloc(id); a != nil && a.Damaged != "" {
			reader = nodeName(v, a.Node)
		}
	}
	end := c.h.attemptEnd(v, j, &supervise.End{Cause: api.CauseInfra, Ledger: j.Ledger.Charge(reader, c.h.Clock.Now()), Bar: supervise.BarReader(reader)})
	end.Failure = &api.Failure{Rank: -1, Node: reader, ExitCode: api.ExitRetry, Message: fmt.Sprintf("node %s read the restore step as damaged (%s), another read it whole; the step stands", reader, d.RollBack)}
	return end
}
