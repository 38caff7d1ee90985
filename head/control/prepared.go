package control

import (
	"context"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// onPrepared takes one rank's report of a step.
func (h *Head) onPrepared(ctx context.Context, node string, data []byte) (any, error) {
	var p wire.Prepared
	if err := wire.Unmarshal(data, &p); err != nil {
		return nil, err
	}
	answer, ok := h.prepared(ctx, node, p)
	if !ok {
		return nil, nil //nolint:nilnil // no answer
	}
	return answer, nil
}

// prepared decides what one rank's report of a step is answered; ok is false when nothing
// can be said.
func (h *Head) prepared(ctx context.Context, node string, p wire.Prepared) (answer wire.Verdict, ok bool) {
	v := h.Store.View()
	a := v.Alloc(p.Alloc)
	answer = wire.Verdict{Alloc: p.Alloc, Run: p.Run, Generation: p.Generation, Step: p.Step, State: checkpoint.VerdictDropped}
	if v.Checkpoint(state.CheckpointID(p.Run, p.Generation, p.Step)) != nil {
		// Whoever asks once more, long after its attempt, hears what the log says (P4).
		answer.State = checkpoint.VerdictCommitted
		return answer, true
	}
	if a == nil || a.Node != node {
		if c := v.NewestCommitted(p.Run); c != nil && (p.Generation < c.Generation || p.Generation == c.Generation && p.Step < c.Step) {
			// It may have been committed and deleted since: nobody knows any more, and nobody
			// who could use the answer is left.
			return answer, false
		}
		answer.Reason = "the allocation is not on this node"
		return answer, true
	}
	j := v.Job(a.Job)
	if j == nil || j.Run() != p.Run {
		answer.Reason = "the allocation does not belong to the run"
		return answer, true
	}
	if r := v.Run(p.Run); r != nil && !r.Fast && p.Abandoned == "" && j.Last() != nil && j.Last().Generation == p.Generation {
		// Before it counts: from here on the run checkpoints through Troupe.
		h.try(ctx, state.KindRunFast, state.RunFast{Run: p.Run, Generation: p.Generation})
	}
	h.ck.mu.Lock()
	verdict, e := h.ck.t.Report(h.Clock.Now(), p)
	h.ck.mu.Unlock()
	h.ck.effects(e)
	return verdict, true
}
