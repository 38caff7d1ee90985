package control

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	defaultFaultFor = 10 * time.Second
	faultLimit      = 10 * time.Second // for a node's answer
)

// InjectFault harms a running job on purpose. The event that records it is in the log
// before anything happens (P7).
func (h *Head) InjectFault(ctx context.Context, id string, req api.FaultRequest) (api.FaultResult, error) {
	if err := h.leader(); err != nil {
		return api.FaultResult{}, err
	}
	if p := checkFault(&req); p != nil {
		return api.FaultResult{}, p
	}
	v := h.Store.View()
	j, err := v.Resolve(id)
	if err != nil {
		return api.FaultResult{}, h.problemOf(err)
	}
	last := j.Last()
	if j.State != api.Running || last == nil || last.Ended != 0 {
		p := problem(409, "TRP-A409", api.ExitConflict, "the job does not run", "job %s is %s; a fault needs one whose ranks run", j.ID, j.State)
		p.Retryable = !j.State.Terminal()
		return api.FaultResult{}, p
	}
	target, err := h.faultTarget(v, last, &req)
	if err != nil {
		return api.FaultResult{}, err
	}
	f := wire.Fault{
		Position: wire.Position{Term: v.Term(), Index: v.Index()}, Kind: req.Fault, Job: j.ID, Alloc: target.Alloc,
		Generation: last.Generation, Rank: target.Rank, For: req.For, Point: req.Point, Store: h.storeOf(v, j),
	}
	out := api.FaultResult{
		Fault: req.Fault, Job: j.ID, Attempt: last.Number, Generation: last.Generation,
		Node: nodeName(v, target.Node), EventSeq: v.Meta().EventSeq,
	}
	if req.Fault.OfRank() {
		out.Rank = &target.Rank
	}
	if _, err := h.propose(ctx, state.KindInjectFault, state.InjectFault{Job: j.ID, Fault: describeFault(&req, &out)}); err != nil {
		return out, h.problemOf(err)
	}
	out.At = h.Clock.Now().UTC()
	data, err := wire.Marshal(f)
	if err != nil {
		return out, err
	}
	rctx, cancel := context.WithTimeout(ctx, faultLimit)
	defer cancel()
	var reply wire.FaultReply
	raw, err := h.Bus.Request(rctx, wire.NodeFault(target.Node), data)
	if err == nil {
		err = wire.Unmarshal(raw, &reply)
	}
	switch {
	case err != nil:
		return out, problem(503, "TRP-N503", api.ExitUnreachable, "the node did not answer", "node %s: %v; whether it did anything is not known", out.Node, err)
	case reply.Error != "":
		return out, problem(409, "TRP-A409", api.ExitConflict, "the node refused", "node %s: %s", out.Node, reply.Error)
	}
	out.Did = reply.Did
	return out, nil
}

// checkFault fills in what the request leaves out and says what is wrong with it.
func checkFault(r *api.FaultRequest) error {
	var errs []api.FieldError
	bad := func(pointer, format string, args ...any) {
		errs = append(errs, api.FieldError{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	if !slices.Contains(api.FaultKinds, r.Fault) {
		bad("/fault", "%.40q is none of %v", r.Fault, api.FaultKinds)
	}
	if r.Rank != nil && !r.Fault.OfRank() {
		bad("/rank", "%s strikes a node; name that", r.Fault)
	}
	if r.Node != "" && r.Fault.OfRank() {
		bad("/node", "%s strikes a rank; name that", r.Fault)
	}
	switch {
	case r.For != 0 && !r.Fault.Ends():
		bad("/for", "%s does not end by itself", r.Fault)
	case r.For < 0 || r.For > api.MaxFaultFor:
		bad("/for", "must be between 0 and %s", api.MaxFaultFor)
	case r.For == 0 && r.Fault.Ends():
		r.For = unit.Duration(defaultFaultFor)
	}
	switch {
	case r.Point != "" && r.Fault != api.FaultAtSave:
		bad("/point", "only at-save has one")
	case r.Fault == api.FaultAtSave && r.Point == "":
		r.Point = api.SavePrepared
	case r.Fault == api.FaultAtSave && !slices.Contains(api.SavePoints, r.Point):
		bad("/point", "%.40q is none of %v", r.Point, api.SavePoints)
	}
	if len(errs) > 0 {
		return invalid(errs)
	}
	return nil
}

// faultTarget is the rank to strike, or some rank of the node to strike.
func (h *Head) faultTarget(v *state.View, last *state.Attempt, r *api.FaultRequest) (state.RankPlace, error) {
	var ranks []state.RankPlace
	for _, p := range last.Ranks {
		switch {
		case r.Rank != nil && p.Rank != *r.Rank:
		case r.Node != "" && p.Node != r.Node && nodeName(v, p.Node) != r.Node:
		default:
			ranks = append(ranks, p)
		}
	}
	switch {
	case len(ranks) == 0 && r.Rank != nil:
		return state.RankPlace{}, problem(404, "TRP-A404", api.ExitNotFound, "not found", "the job has ranks 0 to %d, not %d", len(last.Ranks)-1, *r.Rank)
	case len(ranks) == 0:
		return state.RankPlace{}, problem(404, "TRP-A404", api.ExitNotFound, "not found", "no rank of the job runs on node %q", r.Node)
	}
	var b [8]byte
	if err := h.Random(b[:]); err != nil {
		return state.RankPlace{}, fmt.Errorf("draw a target: %w", err)
	}
	return ranks[binary.LittleEndian.Uint64(b[:])%uint64(len(ranks))], nil
}

func describeFault(r *api.FaultRequest, out *api.FaultResult) string {
	text := string(r.Fault)
	if r.Point != "" {
		text += " (" + string(r.Point) + ")"
	}
	if out.Rank != nil {
		text += fmt.Sprintf(", rank %d", *out.Rank)
	}
	text += " on " + out.Node
	if r.Fault.Ends() {
		text += fmt.Sprintf(", for %s", r.For)
	}
	return text
}
