package control

import (
	"context"
	"errors"
	"slices"

	"github.com/troupe-runtime/troupe/head/state"
)

// command is what is to be put into the log.
type command struct {
	kind state.Kind
	body any
}

// propose encodes and proposes one command and returns the machine's result; a
// refusal is the error.
func (h *Head) propose(ctx context.Context, kind state.Kind, body any) (any, error) {
	out := h.proposeAll(ctx, []command{{kind, body}})[0]
	return out.Value, out.Err
}

// proposeAll is propose of commands that stand in the log in this order and share a write to
// disk. Each has its own outcome; one that fails leaves the others as they are.
func (h *Head) proposeAll(ctx context.Context, all []command) []Outcome {
	out := make([]Outcome, len(all))
	entries, at := make([][]byte, 0, len(all)), make([]int, 0, len(all))
	now := h.Clock.Now().UnixNano()
	for i, c := range all {
		data, err := state.Encode(c.kind, now, c.body)
		if err != nil {
			out[i].Err = err
			continue
		}
		entries, at = append(entries, data), append(at, i)
	}
	if len(entries) == 0 {
		return out
	}
	for k, got := range h.Log.Propose(ctx, entries...) {
		if ref, ok := got.Value.(*state.Refused); ok && got.Err == nil {
			got = Outcome{Err: ref}
		}
		out[at[k]] = got
	}
	return out
}

// try proposes what the loop decided. A refusal means that the state moved on and
// the next pass decides anew; anything else is logged.
func (h *Head) try(ctx context.Context, kind state.Kind, body any) (any, bool) {
	out := h.proposeAll(ctx, []command{{kind, body}})[0]
	return out.Value, h.tried(ctx, kind, out.Err)
}

// mostTogether bounds how many commands go into the log at once, so that a long list
// leaves room for those of others.
const mostTogether = 256

// tryAll is try of several commands.
func (h *Head) tryAll(ctx context.Context, all []command) {
	for some := range slices.Chunk(all, mostTogether) {
		for i, out := range h.proposeAll(ctx, some) {
			h.tried(ctx, some[i].kind, out.Err)
		}
	}
}

// tried says whether a decision of the loop took effect, and what there is to say if not.
func (h *Head) tried(ctx context.Context, kind state.Kind, err error) bool {
	if err == nil {
		return true
	}
	if ref, ok := errors.AsType[*state.Refused](err); ok {
		h.refusals.Add(1)
		h.Logger.Debug("decision was overtaken", "kind", int(kind), "refusal", ref.Text)
	} else if ctx.Err() == nil {
		h.Logger.Warn("a proposal failed", "kind", int(kind), "err", err)
	}
	return false
}
