package control

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// runNamed resolves the name of a run, or the id of a job to its run.
func (h *Head) runNamed(v *state.View, run string) (string, error) {
	if v.Run(run) != nil || len(v.Checkpoints(run)) > 0 {
		return run, nil
	}
	j, err := v.Resolve(run)
	if err != nil {
		p := notFound("run", run)
		p.Help = "troupe checkpoint list"
		return "", p
	}
	return j.Run(), nil
}

// stepOf finds one step of a run: of a generation, or (0) the one that stands, else the
// newest that has the number.
func (h *Head) stepOf(v *state.View, run string, step int64, generation uint64) (*state.Checkpoint, error) {
	run, err := h.runNamed(v, run)
	if err != nil {
		return nil, err
	}
	var found *state.Checkpoint
	for _, c := range v.Checkpoints(run) { // by generation
		if c.Step != step || generation != 0 && c.Generation != generation {
			continue
		}
		if found == nil || c.State == state.CheckpointCommitted || found.State != state.CheckpointCommitted {
			found = c
		}
	}
	if found == nil {
		p := notFound("checkpoint", fmt.Sprintf("%s step %d", run, step))
		if generation != 0 {
			p.Detail += fmt.Sprintf(" of generation %d", generation)
		}
		p.Help = "troupe checkpoint list " + run
		return nil, p
	}
	return found, nil
}

// Checkpoint is one step with what its manifest says.
func (h *Head) Checkpoint(ctx context.Context, run string, step int64, generation uint64) (api.CheckpointDetail, error) {
	v := h.Store.View()
	c, err := h.stepOf(v, run, step, generation)
	if err != nil {
		return api.CheckpointDetail{}, err
	}
	out := api.CheckpointDetail{Checkpoint: checkpointView(c)}
	r, err := h.task(ctx, v, c.Run, wire.Task{Kind: wire.TaskManifest, Run: c.Run, Store: c.Store, Step: c.Step, Dir: c.Dir})
	switch {
	case err != nil:
		out.Problem = "no node could read the manifest: " + err.Error()
	case r.Error != "":
		out.Problem = r.Error
	case checkpoint.DigestBytes(r.Data) != c.Digest:
		out.Problem = "the manifest is not the one that was committed: its digest is " + checkpoint.DigestBytes(r.Data)
	default:
		var m api.Manifest
		if err := json.Unmarshal(r.Data, &m); err != nil {
			out.Problem = "the manifest cannot be read: " + err.Error()
			break
		}
		out.Manifest = &m
	}
	return out, nil
}

// PinCheckpoint keeps a step from retention and removal, or lets it go again.
func (h *Head) PinCheckpoint(ctx context.Context, run string, step int64, generation uint64, pinned bool) (api.Checkpoint, error) {
	if err := h.leader(); err != nil {
		return api.Checkpoint{}, err
	}
	c, err := h.stepOf(h.Store.View(), run, step, generation)
	if err != nil {
		return api.Checkpoint{}, err
	}
	if _, err := h.propose(ctx, state.KindPinCheckpoint, state.PinCheckpoint{ID: c.ID, Pinned: pinned}); err != nil {
		return api.Checkpoint{}, h.problemOf(err)
	}
	h.Kick()
	if now := h.Store.View().Checkpoint(c.ID); now != nil {
		c = now
	}
	return checkpointView(c), nil
}

// RemoveCheckpoint deletes a step and returns when its files are gone, or with its state
// DELETING when no node could do it yet: it is tried until it is done.
func (h *Head) RemoveCheckpoint(ctx context.Context, run string, step int64, generation uint64) (api.Checkpoint, error) {
	if err := h.leader(); err != nil {
		return api.Checkpoint{}, err
	}
	c, err := h.stepOf(h.Store.View(), run, step, generation)
	if err != nil {
		return api.Checkpoint{}, err
	}
	if _, err := h.propose(ctx, state.KindTombstone, state.Tombstone{ID: c.ID, Reason: "removed on request", Asked: true}); err != nil {
		err := h.problemOf(err)
		if p, ok := err.(*api.Problem); ok && c.Pinned { //nolint:errorlint // made right above
			p.Help = fmt.Sprintf("troupe checkpoint unpin %s %d", c.Run, c.Step)
		}
		return api.Checkpoint{}, err
	}
	h.Kick()
	limit, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		changed := h.Store.Changed()
		now := h.Store.View().Checkpoint(c.ID)
		if now == nil {
			out := checkpointView(c)
			out.State = "removed"
			return out, nil
		}
		select {
		case <-changed:
		case <-limit.Done():
			return checkpointView(now), nil
		}
	}
}

// ExportCheckpoint copies a committed step to a folder of a node, verified.
func (h *Head) ExportCheckpoint(ctx context.Context, run string, step int64, generation uint64, req api.ExportRequest) (api.ExportResult, error) {
	if err := h.leader(); err != nil {
		return api.ExportResult{}, err
	}
	v := h.Store.View()
	c, err := h.stepOf(v, run, step, generation)
	if err != nil {
		return api.ExportResult{}, err
	}
	if c.State == state.CheckpointDeleting {
		return api.ExportResult{}, problem(409, "TRP-A409", api.ExitConflict, "conflict", "step %d of run %s is being deleted", c.Step, c.Run)
	}
	if l, err := checkpoint.ParseStore(req.Folder); err != nil || l.Dir == "" {
		return api.ExportResult{}, invalid([]api.FieldError{{Pointer: "/folder", Detail: fmt.Sprintf("%q: an absolute, clean path", cut(req.Folder, 200))}})
	}
	nodes := h.taskNodes(v, c.Run)
	if req.Node != "" {
		nodes = slices.DeleteFunc(readyNodes(v), func(id string) bool { return id != req.Node && nodeName(v, id) != req.Node })
	}
	if len(nodes) == 0 {
		return api.ExportResult{}, problem(503, "TRP-N503", api.ExitUnreachable, "no node can do it", "no ready node %s", req.Node)
	}
	r, err := h.ask(ctx, v, nodes[:1], wire.Task{
		Kind: wire.TaskExport, Run: c.Run, Store: c.Store, Step: c.Step, Dir: c.Dir, Digest: c.Digest, Data: checkpoint.NewExportTask(req.Folder),
	})
	if err != nil {
		return api.ExportResult{}, problem(503, "TRP-N503", api.ExitUnreachable, "the node did not do it", "%v", err)
	}
	if r.Error != "" {
		p := problem(422, "TRP-K422", api.ExitFailed, "the step was not exported", "%s: %s", nodeName(v, nodes[0]), r.Error)
		if len(r.Bad) > 0 {
			p.Title, p.Help = "the step is damaged", fmt.Sprintf("troupe checkpoint verify %s %d", c.Run, c.Step)
		}
		return api.ExportResult{}, p
	}
	return api.ExportResult{Run: c.Run, Step: c.Step, Node: nodeName(v, nodes[0]), Folder: req.Folder, Files: r.Files, Bytes: r.Bytes}, nil
}

func readyNodes(v *state.View) []string {
	var out []string
	for _, n := range v.Nodes() {
		if n.State == api.NodeReady {
			out = append(out, n.ID)
		}
	}
	return out
}

// CollectGarbage sweeps what attempts of a run left half written, now.
func (h *Head) CollectGarbage(ctx context.Context, run string) (api.GCResult, error) {
	if err := h.leader(); err != nil {
		return api.GCResult{}, err
	}
	v := h.Store.View()
	run, err := h.runNamed(v, run)
	if err != nil {
		return api.GCResult{}, err
	}
	r := v.Run(run)
	if r == nil {
		return api.GCResult{}, notFound("run", run)
	}
	gen, store := r.Generation+1, cmp.Or(r.Store, v.Meta().Store)
	if j := h.ck.liveJob(v, run); j != nil {
		store = h.storeOf(v, j)
		if j.Last().Ended == 0 {
			gen = j.Last().Generation // what it writes now is no garbage
		}
	}
	h.ck.mu.Lock()
	out, committing := h.ck.t.Committing(run)
	h.ck.mu.Unlock()
	order, err := h.ck.sweepOrder(v, run, gen, out, committing)
	if err != nil {
		return api.GCResult{}, err
	}
	reply, err := h.task(ctx, v, run, wire.Task{Kind: wire.TaskSweep, Run: run, Store: store, Data: order})
	if err == nil && reply.Error != "" {
		err = fmt.Errorf("%s", reply.Error)
	}
	if err != nil {
		return api.GCResult{}, problem(503, "TRP-N503", api.ExitUnreachable, "the store was not swept", "%v", err)
	}
	res := api.GCResult{Run: run, Removed: []string{}}
	if err := json.Unmarshal(reply.Data, &res.Removed); err != nil || res.Removed == nil {
		res.Removed = []string{}
	}
	return res, nil
}

// Lineage is how the steps and attempts of a run came out of each other.
func (h *Head) Lineage(_ context.Context, run string) (api.Lineage, error) {
	v := h.Store.View()
	run, err := h.runNamed(v, run)
	if err != nil {
		return api.Lineage{}, err
	}
	byGen := map[uint64]*api.LineageAttempt{}
	get := func(gen uint64) *api.LineageAttempt {
		if byGen[gen] == nil {
			byGen[gen] = &api.LineageAttempt{Generation: gen, Attempt: -1, Steps: []api.Checkpoint{}}
		}
		return byGen[gen]
	}
	all := v.Checkpoints(run)
	first := map[uint64]*state.Checkpoint{}
	for _, c := range all {
		a := get(c.Generation)
		a.Steps = append(a.Steps, checkpointView(c))
		if first[c.Generation] == nil {
			first[c.Generation] = c
		}
	}
	for _, j := range v.Jobs() {
		if j.Run() != run {
			continue
		}
		for i := range j.Attempts {
			at := &j.Attempts[i]
			a := get(at.Generation)
			a.Job, a.Attempt, a.Cause = j.ID, at.Number, at.Cause
			if r := at.Restore; r != nil {
				step := r.Step
				a.RestoreStep = &step
				if n, err := checkpoint.ParseStepName(lastElement(r.Dir)); err == nil {
					a.RestoreGen = n.Generation
				}
			}
		}
	}
	for gen, c := range first {
		// Where the attempt is forgotten, its first step tells what it went on from.
		if a := byGen[gen]; a.RestoreStep == nil && a.Attempt < 0 && c.Parent != nil {
			step := *c.Parent
			a.RestoreStep, a.RestoreGen = &step, c.ParentGeneration
		}
	}
	out := api.Lineage{Run: run, Attempts: []api.LineageAttempt{}}
	for _, a := range byGen {
		out.Attempts = append(out.Attempts, *a)
	}
	slices.SortFunc(out.Attempts, func(a, b api.LineageAttempt) int { return cmp.Compare(a.Generation, b.Generation) })
	return out, nil
}

// text joins names for a sentence, a few of many.
func text(names []string) string {
	const most = 5
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}
