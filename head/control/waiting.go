package control

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Stop ends a job and returns when its processes are gone wherever a node can be
// reached (P11).
func (h *Head) Stop(ctx context.Context, id string, grace time.Duration, reason string) (api.Job, error) {
	if err := h.leader(); err != nil {
		return api.Job{}, err
	}
	v := h.Store.View()
	j, err := v.Resolve(id)
	if err != nil {
		return api.Job{}, h.problemOf(err)
	}
	if grace == 0 {
		grace = j.Spec.ShutdownTimeout.D()
	}
	if reason == "" {
		reason = "stopped on request"
	}
	if !j.State.Terminal() {
		if _, err := h.propose(ctx, state.KindStopJob, state.StopJob{Job: j.ID, GraceNS: int64(grace), Reason: reason}); err != nil {
			return api.Job{}, h.problemOf(err)
		}
		h.Kick()
	}
	return h.ended(ctx, j.ID)
}

// ended waits until a job has ended and its processes are gone wherever a node can be
// reached (P11).
func (h *Head) ended(ctx context.Context, job string) (api.Job, error) {
	unreachable, err := h.until(ctx, func(v *state.View) (bool, []string) {
		allocs := v.AllocsOf(job)
		nodes := make([]string, 0, len(allocs))
		for _, a := range allocs {
			if !a.Gone {
				nodes = append(nodes, a.Node)
			}
		}
		now := v.Job(job)
		return len(nodes) == 0 && (now == nil || now.State.Terminal()), nodes
	})
	if err != nil {
		return api.Job{}, err
	}
	if len(unreachable) > 0 {
		return api.Job{}, h.unreachable("job "+job+" is stopped where nodes could be reached", unreachable)
	}
	return h.Job(ctx, job)
}

// Disown takes a job's owner away; the job goes on without it.
func (h *Head) Disown(ctx context.Context, id string) (api.Job, error) {
	if err := h.leader(); err != nil {
		return api.Job{}, err
	}
	j, err := h.Store.View().Resolve(id)
	if err == nil {
		_, err = h.propose(ctx, state.KindDisownJob, state.DisownJob{Job: j.ID})
	}
	if err != nil {
		return api.Job{}, h.problemOf(err)
	}
	h.Kick()
	return h.Job(ctx, j.ID)
}

// until waits for done; it gives up on nodes that cannot be reached and names them.
func (h *Head) until(ctx context.Context, done func(*state.View) (bool, []string)) (unreachable []string, err error) {
	for {
		changed := h.Store.Changed()
		v := h.Store.View()
		ok, nodes := done(v)
		if ok {
			return nil, nil
		}
		away := len(nodes) > 0
		for _, id := range nodes {
			// The shims of an agentless node hear orders by themselves.
			if n := v.Node(id); n != nil && (n.State == api.NodeReady || n.State == api.NodeAgentless) {
				away = false
			}
		}
		if away {
			return nodes, nil
		}
		t := h.Clock.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, problem(504, "TRP-A504", api.ExitTimeout, "timed out", "still waiting for processes on %s", strings.Join(nodes, ", "))
		case <-changed:
		case <-t.C():
		}
		t.Stop()
	}
}

func (h *Head) unreachable(what string, nodes []string) *api.Problem {
	return problem(504, "TRP-N504", api.ExitTimeout, "nodes cannot be reached",
		"%s; not reached: %s. What runs there ends by itself within %s", what, strings.Join(nodes, ", "), max(h.Timing.Orphan, h.Timing.LeaseStrict))
}

// Verify reads a committed step whole.
func (h *Head) Verify(ctx context.Context, run string, step int64) (api.VerifyResult, error) {
	v := h.Store.View()
	var ck *state.Checkpoint
	for _, c := range v.Checkpoints(run) {
		if c.Step == step && c.State == state.CheckpointCommitted {
			ck = c
		}
	}
	if ck == nil {
		p := notFound("checkpoint", fmt.Sprintf("%s step %d", run, step))
		p.Help = "troupe checkpoint list " + run
		return api.VerifyResult{}, p
	}
	r, err := h.task(ctx, v, run, wire.Task{Kind: wire.TaskVerify, Run: run, Store: ck.Store, Step: step, Dir: ck.Dir, Digest: ck.Digest})
	if err != nil {
		p := problem(503, "TRP-N503", api.ExitUnreachable, "no node could read the step", "%v", err)
		p.Retryable = true
		return api.VerifyResult{}, p
	}
	if r.Error != "" && len(r.Bad) == 0 {
		// A store that cannot be read says nothing about the step.
		p := problem(503, "TRP-N503", api.ExitUnreachable, "the step could not be read", "%s", r.Error)
		p.Retryable = true
		return api.VerifyResult{}, p
	}
	return api.VerifyResult{Run: run, Step: step, OK: len(r.Bad) == 0, Files: r.Files, Bytes: r.Bytes, Bad: r.Bad}, nil
}

// ReadLog reads one rank's output of one attempt through the node that has it.
func (h *Head) ReadLog(ctx context.Context, job string, rank, attempt int64, stream string, offset, limit int64) (wire.LogChunk, error) {
	v := h.Store.View()
	j, err := v.Resolve(job)
	if err != nil {
		return wire.LogChunk{}, h.problemOf(err)
	}
	var at *state.Attempt
	for i := range j.Attempts {
		if a := &j.Attempts[i]; a.Number == attempt || attempt < 0 && i == len(j.Attempts)-1 {
			at = a
		}
	}
	if at == nil {
		p := problem(404, "TRP-A404", api.ExitNotFound, "not found", "job %s has no attempt %d", j.ID, attempt)
		p.Retryable = !j.State.Terminal() && attempt < 0
		return wire.LogChunk{}, p
	}
	if len(at.Ranks) == 0 {
		return wire.LogChunk{}, problem(404, "TRP-A404", api.ExitNotFound, "not found", "where attempt %d of %s ran is no longer known", at.Number, j.ID)
	}
	if rank < 0 || rank >= int64(len(at.Ranks)) {
		return wire.LogChunk{}, problem(404, "TRP-A404", api.ExitNotFound, "not found", "attempt %d of %s has ranks 0 to %d", at.Number, j.ID, len(at.Ranks)-1)
	}
	place := at.Ranks[rank]
	data, err := wire.Marshal(wire.ReadLog{Job: j.ID, Alloc: place.Alloc, Attempt: at.Number, Rank: rank, Stream: stream, Offset: offset, Limit: limit})
	if err != nil {
		return wire.LogChunk{}, err
	}
	rctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var chunk wire.LogChunk
	raw, err := h.Bus.Request(rctx, wire.NodeLog(place.Node), data)
	if err == nil {
		err = wire.Unmarshal(raw, &chunk)
	}
	if err != nil {
		p := problem(503, "TRP-N503", api.ExitUnreachable, "the node is away", "the output of rank %d is on node %s: %v", rank, nodeName(v, place.Node), err)
		// Worth another try while it may come back; what is over there stays away.
		n := v.Node(place.Node)
		p.Retryable = n != nil && n.State != api.NodeLost
		if !p.Retryable {
			p.Status, p.Exit = 404, api.ExitNotFound
		}
		return wire.LogChunk{}, p
	}
	if chunk.Error != "" {
		p := problem(404, "TRP-N404", api.ExitNotFound, "no output", "node %s: %s", place.Node, chunk.Error)
		p.Retryable = at.Ended == 0 && !j.State.Terminal()
		return wire.LogChunk{}, p
	}
	return chunk, nil
}
