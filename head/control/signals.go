package control

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// signalLimit bounds a node's answer.
const signalLimit = 10 * time.Second

// Signal sends a signal to the main processes of a running job's ranks. It changes no
// state; what the ranks do of it stands in their ends.
func (h *Head) Signal(ctx context.Context, id string, req api.SignalRequest) (api.SignalResult, error) {
	if err := h.leader(); err != nil {
		return api.SignalResult{}, err
	}
	number, ok := api.Signals[req.Signal]
	if !ok {
		return api.SignalResult{}, invalid([]api.FieldError{{
			Pointer: "/signal", Detail: "must be one of " + strings.Join(slices.Sorted(maps.Keys(api.Signals)), ", "),
		}})
	}
	v := h.Store.View()
	j, err := v.Resolve(id)
	if err != nil {
		return api.SignalResult{}, h.problemOf(err)
	}
	last := j.Last()
	if last == nil || last.Ended != 0 || j.State != api.Running {
		p := problem(409, "TRP-A409", api.ExitConflict, "the job does not run", "job %s is %s; only ranks that run can be sent a signal", j.ID, j.State)
		p.Retryable = !j.State.Terminal()
		return api.SignalResult{}, p
	}
	out := api.SignalResult{Job: j.ID, Attempt: last.Number, Signal: req.Signal, Ranks: []int64{}}
	orders := map[string]*wire.Signal{}
	nodes := map[string]string{}
	ended := map[int64]bool{}
	for _, e := range last.Exits {
		ended[e.Rank] = true
	}
	for _, r := range last.Ranks {
		if ended[r.Rank] || len(req.Ranks) > 0 && !slices.Contains(req.Ranks, r.Rank) {
			continue
		}
		if orders[r.Alloc] == nil {
			orders[r.Alloc] = &wire.Signal{
				Position: wire.Position{Term: v.Term(), Index: v.Index()}, Job: j.ID, Alloc: r.Alloc, Generation: last.Generation, Number: number,
			}
			nodes[r.Alloc] = r.Node
		}
		orders[r.Alloc].Ranks = append(orders[r.Alloc].Ranks, r.Rank)
	}
	for _, n := range req.Ranks {
		if n < 0 || n >= int64(len(last.Ranks)) {
			return out, problem(404, "TRP-A404", api.ExitNotFound, "not found", "the job has ranks 0 to %d, not %d", len(last.Ranks)-1, n)
		}
	}
	for _, alloc := range slices.Sorted(maps.Keys(orders)) {
		if err := h.signalNode(ctx, v, nodes[alloc], orders[alloc]); err != nil {
			return out, err
		}
		out.Ranks = append(out.Ranks, orders[alloc].Ranks...)
	}
	slices.Sort(out.Ranks)
	return out, nil
}

func (h *Head) signalNode(ctx context.Context, v *state.View, node string, s *wire.Signal) error {
	data, err := wire.Marshal(s)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, signalLimit)
	defer cancel()
	var reply wire.SignalReply
	raw, err := h.Bus.Request(ctx, wire.NodeSignal(node), data)
	if err == nil {
		err = wire.Unmarshal(raw, &reply)
	}
	switch {
	case err != nil:
		return problem(503, "TRP-N503", api.ExitUnreachable, "the node did not answer", "node %s: %v; whether its ranks got the signal is not known", nodeName(v, node), err)
	case reply.Error != "":
		return problem(409, "TRP-A409", api.ExitConflict, "the node refused", "node %s: %s", nodeName(v, node), reply.Error)
	}
	return nil
}
