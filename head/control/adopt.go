package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// maxParents bounds how many parents of the newest step are read whole before they are
// adopted; the others are read before they are restored, as every step is.
const maxParents = 16

// readErr says that a store could not be looked at; the step or run may be fine.
type readErr struct{ error }

// Unwrap implements errors.Is.
func (e readErr) Unwrap() error { return e.error }

// errNoStore: no node sees the folder of the store, which the first save makes.
var errNoStore = errors.New("there is no such store")

// adopt takes what a run's folder holds and the records lack into them: first the
// generation counter is raised above everything found there (P3), then the newest step and
// its parents are read whole, then all are logged in one entry.
func (h *Head) adopt(ctx context.Context, run, store string, nodes []string) (api.AdoptResult, error) {
	v := h.Store.View()
	out := api.AdoptResult{Run: run, Store: store, Adopted: []int64{}}
	reply, err := h.ask(ctx, v, nodes, wire.Task{Kind: wire.TaskList, Run: run, Store: store})
	if err == nil && reply.Error != "" {
		err = fmt.Errorf("%s", reply.Error)
	}
	var l checkpoint.ListReply
	if err == nil {
		err = json.Unmarshal(reply.Data, &l)
	}
	if err != nil && reply.Absent {
		err = fmt.Errorf("%w: %w", errNoStore, err)
	}
	if err != nil {
		return out, readErr{err}
	}
	out.GenerationAbove = l.HighestGeneration
	if m := v.Meta(); l.HighestGeneration > m.Epoch<<48|m.Counter {
		if _, err := h.propose(ctx, state.KindRaiseGeneration, state.RaiseGeneration{Above: l.HighestGeneration}); err != nil {
			return out, err
		}
	}
	for _, name := range l.Odd {
		out.Refused = append(out.Refused, api.LeftAside{Name: name, Reason: "it is no step, or its marks cannot be read"})
	}
	var fresh []checkpoint.Found
	known := map[string]bool{}
	for _, c := range v.Checkpoints(run) {
		known[c.ID] = true
	}
	for _, f := range l.Found {
		n, err := checkpoint.ParseStepName(lastElement(f.Dir))
		switch {
		case err != nil:
		case known[state.CheckpointID(run, n.Generation, n.Step)]:
			out.Known++
		case f.Problem != "":
			out.Refused = append(out.Refused, api.LeftAside{Name: n.String(), Reason: f.Problem})
		default:
			known[state.CheckpointID(run, n.Generation, n.Step)] = true
			fresh = append(fresh, f)
		}
	}
	whole := map[string]bool{}
	if fresh, err = h.verifyNewest(ctx, v, run, store, nodes, fresh, whole, &out); err != nil || len(fresh) == 0 {
		return out, err
	}
	cmd := state.AdoptCheckpoints{Run: run, Store: store}
	for i, f := range fresh {
		n, _ := checkpoint.ParseStepName(lastElement(f.Dir))
		a := state.Adopted{
			Step: n.Step, Generation: n.Generation, Dir: f.Dir, Digest: f.Digest, Cluster: f.Cluster, World: f.World,
			Bytes: f.Bytes, Files: f.Files, Metrics: f.Metrics, Verified: whole[f.Dir],
		}
		if i+1 < len(fresh) { // the next older one is what it came from
			p, _ := checkpoint.ParseStepName(lastElement(fresh[i+1].Dir))
			a.Parent, a.ParentGen = &p.Step, p.Generation
		}
		cmd.Steps = append(cmd.Steps, a)
		out.Adopted = append(out.Adopted, n.Step)
		if whole[f.Dir] {
			out.Verified = append(out.Verified, n.Step)
		}
	}
	if _, err := h.propose(ctx, state.KindAdoptCheckpoints, cmd); err != nil {
		return out, err
	}
	h.Kick()
	return out, nil
}

// verifyNewest reads the newest step and those that it restored whole. What is damaged is
// left aside, and then the next one is the newest.
func (h *Head) verifyNewest(ctx context.Context, v *state.View, run, store string, nodes []string, fresh []checkpoint.Found, whole map[string]bool, out *api.AdoptResult) ([]checkpoint.Found, error) {
	for at, seen := 0, 0; at >= 0 && at < len(fresh) && seen < maxParents; {
		f := fresh[at]
		n, _ := checkpoint.ParseStepName(lastElement(f.Dir))
		r, err := h.ask(ctx, v, nodes, wire.Task{Kind: wire.TaskVerify, Run: run, Store: store, Step: n.Step, Dir: f.Dir, Digest: f.Digest})
		switch {
		case err != nil:
			return nil, readErr{err}
		case len(r.Bad) > 0:
			out.Refused = append(out.Refused, api.LeftAside{Name: n.String(), Reason: "damaged: " + r.Bad[0]})
			fresh = slices.Delete(fresh, at, at+1)
			continue
		case r.Error != "":
			return nil, readErr{fmt.Errorf("%s", r.Error)}
		}
		whole[f.Dir] = true
		seen++
		at = parentOf(fresh, at)
	}
	return fresh, nil
}

// parentOf is the step that another one's attempt restored; -1 when it is not there.
func parentOf(found []checkpoint.Found, at int) int {
	f := found[at]
	if f.Parent == nil {
		return -1
	}
	me, _ := checkpoint.ParseStepName(lastElement(f.Dir))
	for i := at + 1; i < len(found); i++ { // the newest first
		n, err := checkpoint.ParseStepName(lastElement(found[i].Dir))
		if err == nil && n.Step == *f.Parent && n.Generation < me.Generation {
			return i
		}
	}
	return -1
}

// Adopt takes the committed steps of a store's folder of a run into the records.
func (h *Head) Adopt(ctx context.Context, run, store string) (api.AdoptResult, error) {
	if err := h.leader(); err != nil {
		return api.AdoptResult{}, err
	}
	if err := checkpoint.ValidRun(run); err != nil {
		return api.AdoptResult{}, invalid([]api.FieldError{{Pointer: "/run", Detail: err.Error()}})
	}
	if _, err := checkpoint.ParseStore(store); err != nil {
		return api.AdoptResult{}, invalid([]api.FieldError{{Pointer: "/store", Detail: err.Error()}})
	}
	v := h.Store.View()
	if r := v.Run(run); r != nil && h.ck.liveJob(v, run) != nil {
		return api.AdoptResult{}, problem(409, "TRP-A409", api.ExitConflict, "conflict",
			"job %s of run %s lives: steps that came in below it would be restored behind its back; stop it first", r.Job, run)
	}
	out, err := h.adopt(ctx, run, store, h.taskNodes(v, run))
	if e, ok := err.(readErr); ok { //nolint:errorlint // made right below
		return out, problem(503, "TRP-N503", api.ExitUnreachable, "the store could not be read", "%v", e.error)
	}
	if err != nil {
		return out, h.problemOf(err)
	}
	return out, nil
}

// Patience of a job's first start with a store that cannot be read: one that asks for
// checkpoints waits, since it may have steps there.
const (
	adoptAgain = 2 * time.Second
	adoptFor   = time.Minute
)

// adoption is what is known of a run's folder before a job's first attempt.
type adoption struct {
	done  bool
	since time.Time
	err   error
}

// adoptFirst looks into the run's folder before the first attempt of a job; false while
// that is under way. A folder that cannot be read holds up a job that asks for
// checkpoints, for a while.
func (c *checkpoints) adoptFirst(ctx context.Context, v *state.View, j *state.Job, nodes []string) bool {
	h, key := c.h, "adopt/"+j.ID
	c.mu.Lock()
	a := c.adopting[j.ID]
	if a == nil {
		if len(c.adopting) >= maxProofs { // jobs that never started
			c.adopting = map[string]*adoption{}
		}
		a = &adoption{since: h.Clock.Now()}
		c.adopting[j.ID] = a
	}
	done := a.done
	c.mu.Unlock()
	if done {
		return true
	}
	store := h.storeOf(v, j)
	if store == "" {
		return true
	}
	wants := asksForCheckpoints(v, j)
	c.once(ctx, key, func() {
		limit, cancel := context.WithTimeout(ctx, 30*time.Minute)
		defer cancel()
		_, err := h.adopt(limit, j.Run(), store, nodes)
		if ref, ok := err.(*state.Refused); ok && ref.Code == "exists" { //nolint:errorlint // of propose
			err = nil
		}
		c.mu.Lock()
		a.err = err
		// Waiting makes no folder; a rank that saves does. What a run had committed to one
		// that is gone now, its restore finds out.
		a.done = err == nil || errors.Is(err, errNoStore) || !wants || h.Clock.Now().Sub(a.since) >= adoptFor
		gaveUp := a.done && err != nil && !errors.Is(err, errNoStore)
		c.mu.Unlock()
		switch {
		case gaveUp && ctx.Err() == nil:
			h.Logger.Warn("the run's folder could not be read before the first start; steps that are there are not restored", "run", j.Run(), "store", store, "err", err)
		case err != nil && !errors.Is(err, errNoStore):
			h.Logger.Info("the run's folder cannot be read; the job waits for it", "run", j.Run(), "store", store, "err", err)
			_ = h.Clock.Sleep(ctx, adoptAgain)
		}
		h.Kick()
	})
	return false
}

// asksForCheckpoints reports whether a job says that it saves: by its policy, or since its
// run has saved before.
func asksForCheckpoints(v *state.View, j *state.Job) bool {
	p := j.Spec.Checkpoint
	return p.Store != "" || p.Interval != "" || p.FromStep != nil || v.NewestCommitted(j.Run()) != nil
}
