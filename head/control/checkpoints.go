package control

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// finishFor is how long a step whose ranks have all prepared may delay a restart.
const finishFor = 2 * time.Second

// suspectAgain is how soon a commit that waits for a suspect node looks again.
const suspectAgain = 50 * time.Millisecond

// checkpoints drives the commit protocol of DESIGN §9 on the leader: reports go into
// the tracker, a step that is ready gets its manifest written by a live agent, then
// its commit entry, then committed.json; retention follows.
type checkpoints struct {
	h  *Head
	mu sync.Mutex
	t  *checkpoint.Tracker
	// working holds what a task is under way for, so that the loop starts it once.
	working  map[string]bool
	readings map[string]*reading
	failures map[string]int       // checkpoint → marks that failed in a row
	swept    map[string]uint64    // run → generation whose start swept the garbage
	held     map[string]time.Time // run → since when its restart waits for a commit
	adopting map[string]*adoption // job → what is known of its run's folder
	proofs   map[string]*proof    // store and nodes → whether they share it
	// order is held while a commit entry is on its way, and while a node becomes suspect, so
	// that no commit of a node's step comes after the word that it is suspect.
	order turn
}

func newCheckpoints(h *Head) *checkpoints {
	return &checkpoints{h: h, order: newTurn(), t: checkpoint.NewTracker(h.Timing.Prepare), working: map[string]bool{}, held: map[string]time.Time{}, swept: map[string]uint64{}, readings: map[string]*reading{}, failures: map[string]int{}, adopting: map[string]*adoption{}, proofs: map[string]*proof{}}
}

// lead starts an empty tracker from the state; shims repeat what is open.
func (c *checkpoints) lead(v *state.View) {
	c.mu.Lock()
	c.t = checkpoint.NewTracker(c.h.Timing.Prepare)
	c.working, c.held, c.swept = map[string]bool{}, map[string]time.Time{}, map[string]uint64{}
	c.readings, c.failures = map[string]*reading{}, map[string]int{}
	c.adopting, c.proofs = map[string]*adoption{}, map[string]*proof{}
	c.mu.Unlock()
	for _, j := range v.LiveJobs() {
		if j.Last() != nil {
			c.began(v, j)
		}
	}
}

func record(ck *state.Checkpoint) *checkpoint.Record {
	if ck == nil {
		return nil
	}
	r := &checkpoint.Record{
		Digest: ck.Digest, RolledBack: ck.State == state.CheckpointRolledBack,
		Tombstoned: ck.State == state.CheckpointDeleting, Pinned: ck.Pinned, Metrics: ck.Metrics,
	}
	r.Step, r.Generation = ck.Step, ck.Generation
	if n, err := checkpoint.ParseStepName(lastElement(ck.Dir)); err == nil {
		r.StepName = n
	}
	return r
}

func lastElement(p string) string {
	for i := len(p) - 1; i >= 0; i-- {
		if p[i] == '/' {
			return p[i+1:]
		}
	}
	return p
}

// began tells the tracker of a run's newest attempt.
func (c *checkpoints) began(v *state.View, j *state.Job) {
	last := j.Last()
	a := checkpoint.Attempt{
		Run: j.Run(), Generation: last.Generation, World: int64(len(last.Ranks)),
		Store: c.h.storeOf(v, j), Life: v.Meta().Life,
		Deadline: c.h.saveDeadline(j).D(),
	}
	if last.Restore != nil {
		step := last.Restore.Step
		a.Parent = &step
	}
	c.mu.Lock()
	e := c.t.Begin(c.h.Clock.Now(), a, record(v.NewestCommitted(j.Run())))
	delete(c.held, j.Run())
	c.mu.Unlock()
	c.effects(e)
}

func (c *checkpoints) ended(run string) {
	c.mu.Lock()
	e := c.t.Forget(run)
	delete(c.held, run)
	delete(c.swept, run)
	for key := range c.readings {
		if strings.HasPrefix(key, "read/"+run+"/") {
			delete(c.readings, key)
		}
	}
	c.mu.Unlock()
	c.effects(e)
}

func (c *checkpoints) rolledBack(v *state.View, run string) {
	c.mu.Lock()
	c.t.RolledBack(run, record(v.NewestCommitted(run)))
	c.mu.Unlock()
}

// finishing says how much longer a restart of the run waits for a commit under way, or
// for files that every rank has staged.
func (c *checkpoints) finishing(run string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.t.Finishing(run) {
		delete(c.held, run)
		return 0
	}
	now := c.h.Clock.Now()
	since, ok := c.held[run]
	if !ok {
		since = now
		c.held[run] = now
	}
	if left := finishFor - now.Sub(since); left > 0 {
		return min(left, 50*time.Millisecond)
	}
	return 0
}

// effects pushes verdicts and starts the commit of what is ready.
func (c *checkpoints) effects(e checkpoint.Effects) {
	h := c.h
	ctx := h.context()
	for _, verdict := range e.Verdicts {
		a := h.Store.View().Alloc(verdict.Alloc)
		if a == nil {
			continue
		}
		if data, err := wire.Marshal(verdict); err == nil {
			if err := h.Bus.Publish(wire.NodeVerdict(a.Node), data); err != nil {
				h.Logger.Debug("a verdict was not pushed; the shim asks again", "node", a.Node, "err", err)
			}
		}
	}
	c.tellDropped(ctx)
	for _, r := range e.Ready {
		h.spawn(ctx, func() { c.commit(ctx, r) })
	}
}

// commit takes a prepared step through manifest, commit entry and committed.json.
func (c *checkpoints) commit(ctx context.Context, r checkpoint.CommitReady) {
	h := c.h
	refuse := func(reason string) {
		h.Logger.Warn("a step was not committed", "run", r.Run, "step", r.Step, "reason", reason)
		c.mu.Lock()
		e := c.t.Refused(h.Clock.Now(), r.Run, r.Generation, r.Step, reason)
		c.mu.Unlock()
		c.effects(e)
		h.Kick()
	}
	v := h.Store.View()
	j := c.liveJob(v, r.Run)
	if j == nil {
		refuse("the run has no live job")
		return
	}
	store := h.storeOf(v, j)
	reply, err := h.task(ctx, v, r.Run, wire.Task{
		Kind: wire.TaskWriteManifest, Run: r.Run, Store: store, Step: r.Step, Dir: r.Dir, Data: r.Manifest, Digest: r.Digest,
	})
	if err != nil {
		refuse("the manifest was not written: " + err.Error())
		return
	}
	if reply.Error != "" {
		refuse("the manifest was not written: " + reply.Error)
		return
	}
	cmd := state.CommitCheckpoint{
		Run: r.Run, Step: r.Step, Generation: r.Generation, World: int64(len(j.Last().Ranks)), Store: store,
		Dir: r.Dir, Digest: r.Digest, Bytes: r.Bytes, Files: r.Files, Metrics: r.Metrics,
	}
	for {
		known, err := c.proposeCommit(ctx, cmd)
		if err == nil && known {
			break
		}
		if err == nil { // a node is suspect
			if h.Clock.Sleep(ctx, suspectAgain) != nil {
				return
			}
			continue
		}
		if ref, ok := errors.AsType[*state.Refused](err); ok {
			refuse(ref.Text)
			return
		}
		// Not done or unknown: the entry is the same each time, so it is told again
		// until this leadership ends; a new leader learns the outcome from the log.
		if h.Clock.Sleep(ctx, 200*time.Millisecond) != nil {
			return
		}
	}
	v = h.Store.View()
	ck := v.Checkpoint(state.CheckpointID(r.Run, r.Generation, r.Step))
	if ck == nil {
		return
	}
	c.mu.Lock()
	e := c.t.Committed(h.Clock.Now(), r.Run, *record(ck))
	c.mu.Unlock()
	c.effects(e)
	h.Kick()
}

// proposeCommit logs the commit entry of a step, but not while a node of its attempt is
// suspect (DESIGN §7): then known is false. A node that is back, or lost, ends the wait.
func (c *checkpoints) proposeCommit(ctx context.Context, cmd state.CommitCheckpoint) (known bool, err error) {
	if !c.order.take(ctx) {
		return false, ctx.Err()
	}
	defer c.order.give()
	v := c.h.Store.View()
	if j := c.liveJob(v, cmd.Run); j != nil && j.Last().Generation == cmd.Generation && rankSuspect(v, j.Last()) {
		return false, nil
	}
	_, err = c.h.propose(ctx, state.KindCommitCheckpoint, cmd)
	return true, err
}

// rankSuspect reports whether a node that ranks of an attempt run on is suspect.
func rankSuspect(v *state.View, a *state.Attempt) bool {
	return slices.ContainsFunc(a.Ranks, func(r state.RankPlace) bool {
		n := v.Node(r.Node)
		return n != nil && n.State == api.NodeSuspect
	})
}

func (c *checkpoints) liveJob(v *state.View, run string) *state.Job {
	r := v.Run(run)
	if r == nil {
		return nil
	}
	j := v.Job(r.Job)
	if j == nil || j.State.Terminal() || j.Last() == nil {
		return nil
	}
	return j
}

// tend writes outstanding marks, deletes what has a tombstone, applies retention and
// drops steps whose time is over. What is under way is not started twice.
func (c *checkpoints) tend(ctx context.Context) {
	h := c.h
	v := h.Store.View()
	c.mu.Lock()
	e := c.t.Expire(h.Clock.Now())
	for _, j := range v.LiveJobs() {
		if last := j.Last(); last != nil {
			for _, x := range last.Exits {
				if x.Code == 0 && x.Signal == 0 && !x.ByShim { // others end the attempt
					e.Verdicts = append(e.Verdicts, c.t.RankOver(j.Run(), last.Generation, x.Rank).Verdicts...)
				}
			}
		}
	}
	c.mu.Unlock()
	c.effects(e)
	for _, ck := range v.OpenCheckpoints() {
		c.once(ctx, ck.ID, func() { c.mark(ctx, ck) })
	}
	for _, j := range v.LiveJobs() {
		if j.Last() == nil {
			continue
		}
		c.retain(ctx, v, j)
		if last := j.Last(); j.State == api.Running && last.Ended == 0 {
			c.sweepOnce(ctx, v, j)
		}
	}
}

// once runs f beside the loop unless the same work is under way.
func (c *checkpoints) once(ctx context.Context, key string, f func()) {
	c.mu.Lock()
	busy := c.working[key]
	c.working[key] = true
	c.mu.Unlock()
	if busy {
		return
	}
	c.h.spawn(ctx, func() {
		f()
		c.mu.Lock()
		delete(c.working, key)
		c.mu.Unlock()
	})
}

// markDelay is how long to wait after one more failure of a mark: doubling, since a
// store that refuses may do so for days.
func (c *checkpoints) markDelay(id string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.failures[id]
	c.failures[id] = n + 1
	return min(c.h.Timing.Resend<<min(n, 16), time.Minute)
}

// mark brings the files of a checkpoint in line with its entry.
func (c *checkpoints) mark(ctx context.Context, ck *state.Checkpoint) {
	h := c.h
	v := h.Store.View()
	t := wire.Task{Run: ck.Run, Store: ck.Store, Step: ck.Step, Dir: ck.Dir}
	var err error
	switch ck.State {
	case state.CheckpointCommitted:
		t.Kind = wire.TaskWriteCommitted
		t.Data, err = checkpoint.NewCommittedMark(v.Meta().Cluster, ck.Index, ck.Digest)
	case state.CheckpointRolledBack:
		t.Kind = wire.TaskWriteRolledBack
		t.Data, err = checkpoint.NewRolledBackMark(v.Meta().Cluster, ck.Index, ck.Reason)
	case state.CheckpointDeleting:
		t.Kind = wire.TaskDelete
	}
	if err != nil {
		h.Logger.Error("a mark could not be made", "checkpoint", ck.ID, "err", err)
		return
	}
	reply, err := h.task(ctx, v, ck.Run, t)
	if err != nil || reply.Error != "" {
		if ctx.Err() == nil {
			h.Logger.Warn("work on a checkpoint was not done; it is tried again", "checkpoint", ck.ID, "kind", t.Kind, "err", err, "reply", reply.Error)
			_ = h.Clock.Sleep(ctx, c.markDelay(ck.ID))
		}
		return
	}
	c.mu.Lock()
	delete(c.failures, ck.ID)
	c.mu.Unlock()
	h.try(ctx, state.KindCheckpointDone, state.CheckpointDone{ID: ck.ID, Deleted: ck.State == state.CheckpointDeleting, State: ck.State, Index: ck.Index})
}
