package state

import (
	"fmt"
	"slices"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

func submitJob(t *tx, c SubmitJob) any {
	if r := t.remember(c.Key, c.Fingerprint, c.ID); r != nil {
		return r
	}
	if c.ID == "" || t.Job(c.ID) != nil {
		return refuse("exists", "job "+c.ID+" exists already")
	}
	name := RunName(c.Spec)
	run := Run{Name: name, Tenant: c.Spec.Tenant}
	if r := t.Run(name); r != nil {
		run = *r
		if live := t.Job(r.Job); live != nil && !live.State.Terminal() {
			return refuse("conflict", fmt.Sprintf("run %s has a live job, %s; one at a time", name, live.ID))
		}
	}
	if a := c.Spec.Actor; a != nil && a.Name != "" {
		if live := t.ActorNamed(a.Namespace, a.Name); live != nil {
			return refuse("exists", fmt.Sprintf("an actor named %s lives already: %s", a.Name, live.ID))
		}
	}
	j := Job{
		ID: c.ID, ULID: c.ULID, Spec: c.Spec, State: api.Queued, Group: c.Group,
		Seq: t.index, Created: t.now, Index: t.index, User: c.User,
	}
	if _, err := t.Tree().Path(c.Spec.Tenant, c.Spec.Queue); err != nil {
		return refuse("invalid", err.Error())
	}
	parked := ""
	if c.Spec.Hold {
		parked = "held: submitted so"
		j.State, j.Reason = api.Held, &api.Reason{Code: api.ReasonHeld, Text: parked, Frees: freesParked(j.ID, api.Held)}
	}
	t.event("job-submitted", "job/"+j.ID, "%s of %s, run %s", plural(c.Spec.Ranks, "rank"), c.Spec.Name, name)
	if c.GroupSpec != nil {
		if t.Group(c.Group) != nil {
			return refuse("exists", "placement group "+c.Group+" exists already")
		}
		if t.newGroup(&Group{ID: c.Group, Spec: *c.GroupSpec, Job: c.ID, User: c.User, Parked: parked}, c.Placement) {
			j.State = api.Reserved
		}
	} else {
		g := t.Group(c.Group)
		if g == nil || g.State == api.GroupRemoving {
			return refuse("not-found", "no placement group "+c.Group)
		}
		asked := int64(len(g.AskedSpec().Bundles))
		for r := range c.Spec.Ranks {
			b := bundleOf(c.Spec, r)
			if b < 0 || b >= asked {
				return refuse("invalid", fmt.Sprintf("rank %d wants bundle %d; group %s has %d", r, b, g.ID, asked))
			}
			if g.Asked != nil && g.Position(b) < 0 {
				return refuse("conflict", fmt.Sprintf("rank %d wants bundle %d; group %s was placed without it and holds %v", r, b, g.ID, g.Asked.Chosen))
			}
		}
	}
	run.Job = c.ID
	if c.Spec.Checkpoint.Store != "" {
		run.Store = c.Spec.Checkpoint.Store
	}
	t.put(tRun, &run)
	t.put(tJob, &j)
	return &Made{ID: j.ID}
}

// bundleOf says which bundle of an existing group a rank uses.
func bundleOf(s api.JobSpec, rank int64) int64 {
	if len(s.Bundles) == 0 {
		return rank
	}
	if rank < 0 || rank >= int64(len(s.Bundles)) {
		return -1
	}
	return s.Bundles[rank]
}

// BundleOf is the number of the bundle that a rank uses: that of the rank, or the one the
// spec names. Group.Position says where it stands.
func BundleOf(s api.JobSpec, rank int64) int64 { return bundleOf(s, rank) }

func stopJob(t *tx, c StopJob) any {
	j := t.Job(c.Job)
	if j == nil {
		return refuse("not-found", "no job "+c.Job)
	}
	if j.State.Terminal() {
		return nil
	}
	if j.Stop != nil {
		if c.GraceNS >= j.Stop.GraceNS {
			return nil
		}
		w := *j
		stop := *j.Stop
		stop.GraceNS = c.GraceNS
		w.Stop, w.Index = &stop, t.index
		t.put(tJob, &w)
		t.event("job-stopping", "job/"+j.ID, "sooner: %s", c.Reason)
		return nil
	}
	w := *j
	w.Stop = &Stop{GraceNS: c.GraceNS, Reason: c.Reason, At: t.now, Code: c.Code}
	w.State, w.Index = api.Stopping, t.index
	t.put(tJob, &w)
	t.event("job-stopping", "job/"+j.ID, "%s", c.Reason)
	return nil
}

// applySupervise applies one decision of the supervisor whole or not at all (P9).
func applySupervise(t *tx, c Supervise) any {
	j := t.Job(c.Job)
	if j == nil {
		return refuse("not-found", "no job "+c.Job)
	}
	if j.State.Terminal() {
		return refuse("conflict", "job "+j.ID+" is "+string(j.State)+", which is final")
	}
	newest := int64(-1)
	if a := j.Last(); a != nil {
		newest = a.Number
	}
	if last := j.Last(); last != nil && c.Generation != 0 && c.Generation != last.Generation {
		return refuse("stale", fmt.Sprintf("decided on generation %d of %s, the newest is %d", c.Generation, j.ID, last.Generation))
	}
	if newest != c.Attempt {
		return refuse("stale", fmt.Sprintf("decided on attempt %d of %s, the newest is %d", c.Attempt, j.ID, newest))
	}
	if j.Stop != nil {
		// A decision taken before the stop was asked for must not undo it.
		if c.Start != nil {
			return refuse("stale", "job "+j.ID+" is being stopped")
		}
		if c.State != "" && !c.State.Terminal() {
			c.State = api.Stopping
		}
	}
	w := *j
	w.Attempts = slices.Clone(j.Attempts)
	w.Index = t.index
	if c.End != nil {
		if err := t.endAttempt(&w, c.End); err != nil {
			return err
		}
	}
	if c.State != "" {
		w.State = c.State
	}
	if c.Reason != nil {
		w.Reason = c.Reason
	}
	if w.State == api.Running {
		w.Reason = nil // nothing is in its way
	}
	var result any
	if c.Start != nil {
		started, err := t.startAttempt(&w, c.Start)
		if err != nil {
			return err
		}
		result = started
	}
	if w.State == api.Running && w.Last() != nil && w.Last().Running == 0 {
		w.Last().Running = t.now
		if w.Started == 0 {
			w.Started = t.now
		}
		t.event("job-running", "job/"+j.ID, "attempt %d, every rank started", w.Last().Number)
	}
	if w.State.Terminal() {
		t.finish(&w, c)
	}
	t.put(tJob, &w)
	if w.State.Terminal() {
		t.afterEnd(&w)
	}
	return result
}

func (t *tx) endAttempt(w *Job, end *AttemptEnd) any {
	last := w.Last()
	if last == nil || last.Ended != 0 {
		return refuse("stale", "the attempt of "+w.ID+" was closed already")
	}
	last.Ended, last.Cause, last.Failure, last.Again = t.now, end.Cause, end.Failure, end.Again
	last.Pace.close(last, end, t.now)
	w.Ledger = end.Ledger
	if f := end.Failure; f != nil {
		t.event("attempt-failed", "job/"+w.ID, "attempt %d%s: %s; charged to %s", last.Number, t.blamed(f), f.Message, orNone(string(end.Cause)))
	}
	if end.Exclude != nil {
		t.exclude(w, *end.Exclude)
	}
	return nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// startAttempt opens the next attempt with a new generation (P3).
func (t *tx) startAttempt(w *Job, c *AttemptStart) (any, any) {
	if last := w.Last(); last != nil && last.Ended == 0 {
		return nil, refuse("conflict", fmt.Sprintf("attempt %d of %s has not ended", last.Number, w.ID))
	}
	g := t.Group(w.Group)
	if g == nil || g.State != api.GroupPlaced {
		return nil, refuse("conflict", "the placement group of "+w.ID+" is not placed")
	}
	if len(c.Ranks) == 0 || len(c.Ranks) > len(g.RankBundles()) {
		return nil, refuse("invalid", fmt.Sprintf("%d ranks for %d bundles", len(c.Ranks), len(g.RankBundles())))
	}
	if why := t.restoreStale(w, c.Restore); why != "" {
		return nil, refuse("stale", why)
	}
	gw := *g
	gw.Placed = slices.Clone(g.Placed)
	gw.Index = t.index
	perNode := map[string][]int{}
	var nodes []string
	for i, r := range c.Ranks {
		if r.Rank != int64(i) || r.Bundle < 0 || r.Bundle >= int64(len(gw.RankBundles())) {
			return nil, refuse("invalid", fmt.Sprintf("rank %d stands at position %d with bundle %d", r.Rank, i, r.Bundle))
		}
		b := &gw.Placed[r.Bundle]
		if b.Node != r.Node {
			return nil, refuse("stale", fmt.Sprintf("bundle %d of %s stands on %s, not on %s", g.Number(r.Bundle), g.ID, b.Node, r.Node))
		}
		if b.UsedBy != "" && b.UsedBy != w.ID {
			return nil, refuse("conflict", fmt.Sprintf("bundle %d of %s is used by %s", g.Number(r.Bundle), g.ID, b.UsedBy))
		}
		if n := t.Node(r.Node); n == nil || n.State != api.NodeReady {
			return nil, refuse("conflict", "node "+r.Node+" is not ready")
		}
		if why := t.holdBusy(w, b.Hold, r.Node); why != "" {
			return nil, refuse("conflict", why)
		}
		b.UsedBy = w.ID
		if _, ok := perNode[r.Node]; !ok {
			nodes = append(nodes, r.Node)
		}
		perNode[r.Node] = append(perNode[r.Node], i)
	}
	a := Attempt{
		Number: 0, Generation: t.nextGeneration(), MasterAddr: c.MasterAddr, MasterPort: c.MasterPort,
		Restore: c.Restore, Created: t.now, Ranks: make([]RankPlace, len(c.Ranks)), NoSaves: c.NoSaves,
	}
	a.Pace.Placed = g.PlacedAt
	if c.Restore != nil {
		a.Pace.From = c.Restore.Step
	}
	if last := w.Last(); last != nil {
		a.Number = last.Number + 1
		if last.Again {
			a.Number = last.Number
			w.Attempts = w.Attempts[:len(w.Attempts)-1]
		}
	}
	t.dropGone(w.ID)
	for _, node := range nodes {
		t.openAlloc(w, &gw, &a, c, node, perNode[node])
	}
	a.Class = t.classOf(w, len(nodes))
	run := *t.runOf(w)
	run.Generation = a.Generation
	t.put(tRun, &run)
	t.put(tGroup, &gw)
	for i := range w.Attempts {
		w.Attempts[i].settle(i >= len(w.Attempts)-keptPlaces)
	}
	w.Attempts = append(w.Attempts, a)
	t.forget(w)
	if w.State == api.Queued || w.State == api.Reserved || w.State == api.Running {
		w.State = api.Starting
		if a.Number > 0 {
			w.State = api.Recovering
		}
	}
	from := "from scratch"
	if a.Restore != nil {
		from = fmt.Sprintf("from step %d", a.Restore.Step)
	}
	t.event("attempt-started", "job/"+w.ID, "attempt %d, generation %d, %s on %s, %s", a.Number, a.Generation, plural(len(a.Ranks), "rank"), plural(len(nodes), "node"), from)
	return &Started{Number: a.Number, Generation: a.Generation}, nil
}

// holdBusy says why a hold cannot be used by a new attempt on a node: something of
// another allocation may still run there (P2).
func (t *tx) holdBusy(w *Job, hold, node string) string {
	for _, a := range t.AllocsOn(node) {
		if a.Gone || !slices.Contains(a.Holds, hold) && (a.Job != w.ID || !a.Leaving) {
			continue
		}
		switch {
		case a.Dirty != "":
			return fmt.Sprintf("allocation %s has processes that do not die: %s", a.ID, a.Dirty)
		case a.Leaving:
			return fmt.Sprintf("allocation %s of the former placement has not ended", a.ID)
		case a.Job != w.ID:
			return fmt.Sprintf("allocation %s still uses the bundle", a.ID)
		}
	}
	return ""
}

// restoreStale says why a restore step is not the one to load: it must be the newest
// committed at this very entry, or an attempt would do again what is done (P4).
func (t *tx) restoreStale(w *Job, r *Restore) string {
	newest := t.NewestCommitted(w.Run())
	switch {
	case newest == nil && r == nil:
		return ""
	case newest == nil:
		return fmt.Sprintf("step %d of run %s is not committed", r.Step, w.Run())
	case r == nil || r.Dir != newest.Dir || r.Step != newest.Step:
		return fmt.Sprintf("step %d of run %s was committed meanwhile", newest.Step, w.Run())
	}
	return ""
}

// openAlloc finds the allocation of a job on a node, or makes one, and gives it the
// new generation; facts of the former one are cleared.
func (t *tx) openAlloc(w *Job, g *Group, a *Attempt, c *AttemptStart, node string, idx []int) {
	var holds []string
	var bundles []int64
	var ranks []wire.RankSpec
	for _, i := range idx {
		r := c.Ranks[i]
		holds = append(holds, g.Placed[r.Bundle].Hold)
		bundles = append(bundles, r.Bundle)
		ranks = append(ranks, wire.RankSpec{Rank: r.Rank, LocalRank: r.LocalRank})
	}
	var al *Alloc
	for _, old := range t.AllocsOf(w.ID) {
		if old.Node == node && !old.Gone && !old.Lost && !old.Leaving && old.Dirty == "" && slices.Equal(old.Holds, holds) {
			cp := *old
			al = &cp
		}
	}
	if al == nil {
		t.meta.AllocSeq++
		boot := ""
		if n := t.Node(node); n != nil {
			boot = n.Info.BootID
		}
		al = &Alloc{ID: fmt.Sprintf("%s.%d", w.ID, t.meta.AllocSeq), Job: w.ID, Group: g.ID, Node: node, BootID: boot}
	}
	al.Holds, al.Bundles, al.Ranks, al.Generation = holds, bundles, ranks, a.Generation
	al.PIDs, al.Started, al.Ended, al.StartFailed, al.Verified, al.Damaged = nil, false, false, "", false, ""
	al.PortUsed, al.FailedAt, al.StartCode = false, 0, 0
	al.StalledAt, al.StallText, al.SlowRank, al.Overdue = 0, "", 0, false
	t.put(tAlloc, al)
	a.Allocs = append(a.Allocs, al.ID)
	for _, i := range idx {
		r := c.Ranks[i]
		a.Ranks[i] = RankPlace{Rank: r.Rank, LocalRank: r.LocalRank, Node: node, Alloc: al.ID, Bundle: r.Bundle}
	}
}

// dropGone forgets allocations that are proven gone; the attempts keep their names.
func (t *tx) dropGone(job string) {
	for _, a := range t.AllocsOf(job) {
		if a.Gone {
			t.drop(tAlloc, a)
		}
	}
}

func (t *tx) runOf(w *Job) *Run {
	if r := t.Run(w.Run()); r != nil {
		return r
	}
	return &Run{Name: w.Run(), Tenant: w.Spec.Tenant, Job: w.ID}
}

// classOf is the fencing class (DESIGN §7): training is fast from the run's first
// prepared step on, or when the group spans nodes; plain actors are fast.
func (t *tx) classOf(w *Job, nodes int) wire.Class {
	if w.Spec.Kind == api.KindService {
		return wire.ClassStrict
	}
	if nodes > 1 || w.Spec.Kind == api.KindActor || t.runOf(w).Fast {
		return wire.ClassFast
	}
	return wire.ClassStrict
}

func (t *tx) finish(w *Job, c Supervise) {
	w.Ended = t.now
	w.ExitCode = c.ExitCode
	text := string(w.State)
	if w.Reason != nil {
		text += ": " + w.Reason.Text
	}
	t.event("job-"+lower(string(w.State)), "job/"+w.ID, "%s", text)
	// The history keeps the exits of the last attempt only.
	for i := range w.Attempts {
		if i < len(w.Attempts)-1 {
			w.Attempts[i].settle(i >= len(w.Attempts)-keptPlaces)
		}
	}
}

// afterEnd gives back what a finished job held and bounds the history.
func (t *tx) afterEnd(w *Job) {
	if r := t.Run(w.Run()); r != nil && r.Job == w.ID {
		run := *r
		run.Job = ""
		t.put(tRun, &run)
		if len(t.Checkpoints(run.Name)) == 0 {
			// Nothing is known of it that another job of the name would need:
			// generations come from the cluster's counter.
			t.drop(tRun, &run)
		}
	}
	t.dropGone(w.ID)
	if g := t.Group(w.Group); g != nil {
		if g.Job == w.ID {
			t.past(w, g)
			t.remove(g, "its job "+w.ID+" has ended")
		} else {
			t.settle(g.ID)
		}
	}
	t.meta.Terminal++
	if t.meta.Terminal <= keptTerminal {
		return
	}
	var oldest *Job // submission of those that nothing is left of
	t.records.each(tJob, "seq", func(rec any) bool {
		if j, ok := rec.(*Job); ok && j.State.Terminal() && j.ID != w.ID && len(t.AllocsOf(j.ID)) == 0 {
			oldest = j
		}
		return oldest == nil
	})
	if oldest != nil {
		t.drop(tJob, oldest)
		t.meta.Terminal--
	}
}

func firstStep(t *tx, c FirstStep) any {
	j := t.Job(c.Job)
	if j == nil || j.State.Terminal() || j.Last() == nil || j.Last().Generation != c.Generation {
		return refuse("stale", "no such attempt of "+c.Job)
	}
	if j.Last().FirstStep {
		return nil
	}
	w := *j
	w.Attempts = slices.Clone(j.Attempts)
	w.Last().stepped(c.Step, t.now)
	w.Index = t.index
	t.put(tJob, &w)
	t.event("first-step", "job/"+j.ID, "attempt %d", w.Last().Number)
	return nil
}
