package control

import (
	"context"
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/elastic/supervise"
	"github.com/troupe-runtime/troupe/head/gang"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// superviseAll asks the supervisor about every live job and carries out what it
// says. It returns when the first of them wants to be asked again.
func (h *Head) superviseAll(ctx context.Context) time.Duration {
	var next time.Duration
	for _, j := range h.Store.View().LiveJobs() {
		if waitsForPlace(j) {
			continue // there may be thousands of them, and each change is a pass
		}
		// One job may take several steps in a row: ended, then started again.
		for range 4 {
			if ctx.Err() != nil {
				return 0
			}
			v := h.Store.View()
			job := v.Job(j.ID)
			if job == nil || job.State.Terminal() {
				break
			}
			if wait := h.limit(ctx, v, job); wait > 0 && (next == 0 || wait < next) {
				next = wait
			}
			again, delay := h.superviseOne(ctx, v, job)
			if delay > 0 && (next == 0 || delay < next) {
				next = delay
			}
			if !again {
				break
			}
		}
	}
	return next
}

// waitsForPlace: the job's own group is not placed, and nothing can be decided before it is,
// which is a change of the job.
func waitsForPlace(j *state.Job) bool {
	return j.State == api.Queued && j.Spec.PlacementGroup == "" && j.Spec.Hosts == nil && j.Stop == nil && j.Drain == nil &&
		!j.OwnerGone && (j.Last() == nil || j.Last().Ended != 0)
}

// superviseOne takes one decision; again says that another may follow at once.
func (h *Head) superviseOne(ctx context.Context, v *state.View, j *state.Job) (again bool, delay time.Duration) {
	if j.Spec.Hosts != nil {
		if done, again, delay := h.gather(ctx, v, j); done {
			return again, delay
		}
	}
	g := h.groupOf(v, j)
	d := supervise.Decide(g, h.Clock.Now())
	cmd := state.Supervise{Job: j.ID, Attempt: -1}
	last := j.Last()
	if last != nil {
		cmd.Attempt, cmd.Generation = last.Number, last.Generation
	}
	if d.End != nil {
		// A step whose ranks have all prepared is finished first, for 2 s at most.
		if wait := h.ck.finishing(j.Run()); wait > 0 {
			return false, wait
		}
		cmd.End = h.attemptEnd(v, j, d.End)
		cmd.Reason = reasonOf(d)
		cmd.State = api.Recovering
		if j.Stop != nil {
			cmd.State = api.Stopping
		}
	}
	if d.RollBack != "" && last != nil && last.Restore != nil {
		// What one node read as damaged another one reads again before the step is given
		// up for everybody (DESIGN §9).
		switch whole, known := h.ck.secondReading(ctx, v, j, last); {
		case !known:
			return false, 100 * time.Millisecond
		case whole:
			cmd.End = h.ck.badReader(v, d, j)
			_, ok := h.try(ctx, state.KindSupervise, cmd)
			return ok, 0
		}
		if _, ok := h.try(ctx, state.KindRollBack, state.RollBack{Run: j.Run(), Step: last.Restore.Step, Reason: d.RollBack, Damaged: true}); ok {
			h.ck.rolledBack(h.Store.View(), j.Run())
		}
	}
	switch d.Action {
	case supervise.Wait, supervise.Stop:
		if d.Abort != "" && last != nil && last.Aborted == 0 {
			// P3, and the patience of nobody's collective: those that are left end now.
			_, ok := h.try(ctx, state.KindAbortAttempt, state.AbortAttempt{Job: j.ID, Generation: last.Generation, Why: d.Abort})
			return ok, d.Delay
		}
		// Stop needs no entry of its own: desired state carries the order.
		if cmd.End == nil {
			return false, d.Delay
		}
	case supervise.Run:
		cmd.State = api.Running
	case supervise.Finish:
		cmd.State, cmd.Reason = d.State, reasonOf(d)
		if code := d.ExitCode; d.State != api.Stopped { // nobody's code: it was asked to end
			cmd.ExitCode = &code
		}
	case supervise.Replace:
		if h.anySuspect(v, j.Group) || d.End == nil && h.othersLeaving(v, j) {
			// It is back, or lost as well, within seconds; a whole gang is not released
			// for one that may be.
			return false, 500 * time.Millisecond
		}
		if cmd.End != nil {
			if _, ok := h.try(ctx, state.KindSupervise, cmd); !ok {
				return false, 0
			}
			v = h.Store.View()
		}
		if j.Spec.Hosts != nil {
			return true, 0 // gather forms the next group
		}
		return h.replace(ctx, v, j.ID, d.Reason.Text), 0
	case supervise.Release:
		_, ok := h.try(ctx, state.KindReleaseGroup, state.ReleaseGroup{Group: j.Group, Why: d.Reason.Text})
		return ok, 0
	case supervise.Resize:
		return h.gangs(v).Resize(j, h.trying(ctx)), 0
	case supervise.Start:
		refused, code, known := h.checkStart(ctx, v, j)
		if !known {
			return false, 100 * time.Millisecond
		}
		if refused != nil {
			cmd.State, cmd.ExitCode, cmd.Reason = api.Failed, &code, refused
			break
		}
		start, ok := h.startOf(ctx, v, j)
		if !ok && cmd.End == nil {
			return false, 100 * time.Millisecond
		}
		if start != nil && start.NoSaves != "" && last == nil && asksForCheckpoints(v, j) {
			// It could train and never save; whoever asked for checkpoints hears it now.
			code := int64(api.ExitNever)
			cmd.State, cmd.ExitCode = api.Failed, &code
			cmd.Reason = &api.Reason{Code: api.ReasonStore, Text: start.NoSaves}
			break
		}
		cmd.Start = start
		if start != nil {
			cmd.State = api.Starting
			if last != nil {
				cmd.State = api.Recovering
			}
			cmd.Reason = reasonOf(d)
		}
	}
	if _, ok := h.try(ctx, state.KindSupervise, cmd); !ok {
		return false, d.Delay
	}
	nv := h.Store.View()
	if nj := nv.Job(j.ID); nj != nil {
		if nj.State.Terminal() {
			h.ck.sweepLast(ctx, nv, nj)
			h.ck.ended(nj.Run())
			h.meters.watch(nj, nv.PlanJob(nj), h.Clock.Now(), true)
		} else if cmd.Start != nil {
			h.ck.began(nv, nj)
		}
	}
	return true, d.Delay
}

func reasonOf(d supervise.Decision) *api.Reason {
	if d.Reason.Code == "" && d.Reason.Text == "" {
		return nil
	}
	r := d.Reason
	return &r
}

// replace moves a gang after a loss in one log entry: whole elsewhere, or waiting
// with its seniority (P1).
func (h *Head) replace(ctx context.Context, v *state.View, job, why string) bool {
	j := v.Job(job)
	if j == nil {
		return false
	}
	g := v.Group(j.Group)
	if g == nil || g.State != api.GroupPlaced {
		return false
	}
	placement, ok := h.gangs(v).AfterLoss(j, g, why, h.Timing.Replace, h.trying(ctx))
	if ok {
		h.keepOthers(ctx, v, g, placement)
	}
	return ok
}

// trying is h.try where nobody looks at the answer.
func (h *Head) trying(ctx context.Context) gang.Try {
	return func(kind state.Kind, command any) bool {
		_, ok := h.try(ctx, kind, command)
		return ok
	}
}

// anySuspect reports whether a node of a placement is silent but not yet lost.
func (h *Head) anySuspect(v *state.View, group string) bool {
	g := v.Group(group)
	if g == nil {
		return false
	}
	for _, b := range g.RankBundles() {
		if n := v.Node(b.Node); n != nil && n.State == api.NodeSuspect {
			return true
		}
	}
	return false
}

// groupOf gathers the facts of a job for the supervisor.
func (h *Head) groupOf(v *state.View, j *state.Job) supervise.Group {
	g := supervise.Group{
		Job: j.ID, Kind: j.Spec.Kind, State: j.State, Policy: j.Spec.Restart, StopAsked: j.Stop != nil,
		OwnerGone: j.OwnerGone, Ledger: j.Ledger, FailureGrace: j.Spec.FailureGrace.D(),
	}
	if j.Stop != nil {
		g.StopReason, g.TimeLimit = j.Stop.Reason, j.Stop.Code == api.ReasonLimit
	}
	g.Drain = gang.DrainFacts(v, j)
	if a := j.Spec.Actor; a != nil {
		n := a.MaxRestarts
		g.ActorMaxRestarts = &n
	}
	if pg := v.Group(j.Group); pg != nil && pg.State == api.GroupPlaced {
		g.Placed = h.bundlesFree(v, j, pg)
		for _, b := range pg.RankBundles() {
			n := v.Node(b.Node)
			if n != nil && (n.State == api.NodeLost && h.mayLeave(v, j, n) || h.staysAway(j, n)) || h.gangs(v).Dirty(b.Hold) {
				g.Lost = append(g.Lost, nodeName(v, b.Node))
			}
			g.Silent = g.Silent || n != nil && (n.State == api.NodeSuspect || n.State == api.NodeReady && h.nodes.lastBeat(b.Node).IsZero())
		}
	}
	if j.Spec.Hosts == nil {
		h.barredOf(v, j, &g)
	}
	if last := j.Last(); last != nil {
		g.Attempt = h.attemptFacts(v, j, last)
		if j.Spec.Hosts != nil {
			g.MinRanks = leastRanks(j.Spec.Hosts, g.Attempt, g.Lost)
		}
	}
	return g
}

// agentAway is how long a group that must start anyway waits for an agent.
const agentAway = 10 * time.Second

// staysAway: the node of a group between two attempts has no agent that could start the
// next one.
func (h *Head) staysAway(j *state.Job, n *state.Node) bool {
	return n.State == api.NodeAgentless && (j.Last() == nil || j.Last().Ended != 0) &&
		h.Clock.Now().Sub(time.Unix(0, n.Changed)) > agentAway
}

// bundlesFree reports whether no other job uses the bundles that this one wants.
func (h *Head) bundlesFree(_ *state.View, j *state.Job, pg *state.Group) bool {
	for r := range j.Spec.Ranks {
		b := pg.Position(state.BundleOf(j.Spec, r))
		if b < 0 {
			return false
		}
		if u := pg.Placed[b].UsedBy; u != "" && u != j.ID {
			return false
		}
	}
	return true
}

// mayLeave says whether work of a lost node may start elsewhere: at once in the fast
// class, after the lease's end + 1 % + 1 s in the strict one (DESIGN §7).
func (h *Head) mayLeave(_ *state.View, j *state.Job, n *state.Node) bool {
	if j.Last() == nil || j.ClassOf() == wire.ClassFast {
		return true
	}
	// The lease began when the last acknowledged message was sent. That was before it was
	// heard, and, if another leader heard it, before this one began.
	lease := h.leaseOf(j)
	return h.Clock.Now().Sub(h.nodes.lastWord(n.ID)) >= lease+lease/100+time.Second
}

// nodeName is what people know a node by.
func nodeName(v *state.View, id string) string {
	if n := v.Node(id); n != nil && n.Info.Name != "" {
		return n.Info.Name
	}
	return id
}

func (h *Head) attemptFacts(v *state.View, j *state.Job, last *state.Attempt) *supervise.Attempt {
	a := &supervise.Attempt{
		Number: last.Number, Generation: last.Generation, Created: time.Unix(0, last.Created),
		World: int64(len(last.Ranks)), FirstStep: last.FirstStep, Ended: last.Ended != 0,
	}
	h.paceFacts(v, last, a)
	if last.Restore != nil {
		step := last.Restore.Step
		a.Restore = &step
	}
	byAlloc := map[string][]int64{}
	nodes := map[string]string{}
	for _, r := range last.Ranks {
		byAlloc[r.Alloc] = append(byAlloc[r.Alloc], r.Rank)
		nodes[r.Alloc] = nodeName(v, r.Node)
	}
	late, rank, text := h.overdue(v, last)
	for _, id := range last.Allocs {
		al := v.Alloc(id)
		x := supervise.Alloc{ID: id, Node: nodes[id], Ranks: byAlloc[id]}
		if al == nil || al.Generation != last.Generation {
			x.Lost, x.Ended = true, true
			a.Allocs = append(a.Allocs, x)
			continue
		}
		x.Started, x.Ended, x.StartFailed, x.Damaged = al.Started, al.Ended, al.StartFailed, al.Damaged
		x.PortUsed, x.StartCode, x.GPUFault = al.PortUsed, al.StartCode, h.gpuFault(v, al)
		if id == late {
			x.Overdue, x.SlowRank = text, rank
		}
		if al.FailedAt != 0 {
			x.FailedAt = time.Unix(0, al.FailedAt)
		}
		x.Lost = al.Gone || al.Dirty != ""
		if !al.Started && !al.Ended && al.StartFailed == "" && h.Clock.Now().Sub(a.Created) > h.Timing.Start {
			x.StartFailed = fmt.Sprintf("the node did not start it within %s", h.Timing.Start)
		}
		if al.Lost && !al.Gone {
			n := v.Node(al.Node)
			x.Lost = n == nil || n.State != api.NodeLost || h.mayLeave(v, j, n)
		}
		a.Allocs = append(a.Allocs, x)
	}
	for _, e := range last.Exits {
		a.Exits = append(a.Exits, supervise.Exit{Alloc: e.Alloc, Node: nodes[e.Alloc], At: time.Unix(0, e.At), RankExit: e.RankExit})
	}
	return a
}

// startOf maps ranks to bundles and chooses master port and restore step.
func (h *Head) startOf(ctx context.Context, v *state.View, j *state.Job) (*state.AttemptStart, bool) {
	g := v.Group(j.Group)
	if g == nil || g.State != api.GroupPlaced {
		return nil, false
	}
	ranks := gang.Ranks(v, j, g)
	if len(ranks) == 0 {
		return nil, false
	}
	for _, r := range ranks {
		if n := v.Node(r.Node); n == nil || n.State != api.NodeReady {
			return nil, false // it would be refused, and cost a port
		}
	}
	nodes := make([]string, len(ranks))
	for i, r := range ranks {
		nodes[i] = r.Node
	}
	noSaves, ready := h.storeReady(ctx, v, j, nodes)
	if !ready {
		return nil, false
	}
	v = h.Store.View() // steps may have been adopted
	first := v.Node(ranks[0].Node)
	if stillLeaving(v, j, ranks) {
		return nil, false // the entry would be refused, and a port used up each time
	}
	port, ok := h.nodes.takePort(ranks[0].Node)
	if first == nil || !ok {
		return nil, false // the node has not offered a port to this leader yet
	}
	s := &state.AttemptStart{Ranks: ranks, MasterAddr: first.Info.Address, MasterPort: port, NoSaves: noSaves}
	if from := j.Spec.Checkpoint.FromStep; from != nil && j.Last() == nil {
		if c := v.NewestCommitted(j.Run()); c != nil && c.Step > *from {
			if _, ok := h.try(ctx, state.KindRollBack, state.RollBack{Run: j.Run(), Step: *from + 1, Reason: "--from-step"}); !ok {
				return nil, false
			}
			v = h.Store.View()
		}
	}
	if c := v.NewestCommitted(j.Run()); c != nil {
		s.Restore = &state.Restore{Step: c.Step, Dir: c.Dir, Digest: c.Digest}
		if c.Store != h.storeOf(v, j) {
			s.Restore.Store = c.Store
		}
	}
	return s, true
}
