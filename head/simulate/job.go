package simulate

import (
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/head/gang"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// job is one job of the run. Work is told as the time that it takes with the ranks that the
// job asks for.
type job struct {
	*Job
	out     *Outcome
	attempt uint64 // counts its attempts, and stretch those of work between two saves
	stretch uint64
	running bool // its ranks run
	over    bool
	ranks   int64         // that it has now
	held    map[int]int64 // thousandths of devices on each node, while it is placed
	placed  time.Duration // since when what it holds is not in the books yet
	// kept is how much of its work is saved; since is when the newest stretch began, and
	// still how much of the stretch was done when it was told to save and end.
	kept, since, still time.Duration
	told               bool
	step               int64 // that was committed last
}

// milli is what the job holds of devices, in thousandths.
func (j *job) milli() float64 { return float64(j.ranks * j.each()) }

// id of a job's group.
func groupID(name string) string { return "pg-" + name }

// arrive submits a job as the head does: what can never run is refused, and one that may
// have several sizes starts with the one that gang.StartSize chooses.
func (s *sim) arrive(i int) error {
	j := &s.jobs[i]
	spec := j.Spec
	spec.Command = []string{"simulated"}
	if j.Deadline != 0 {
		spec.Deadline = s.trace.Epoch.Add(j.Deadline)
	}
	g := groupOf(&spec)
	if why := s.refusal(j, g); why != "" {
		s.close(i, why)
		return nil
	}
	s.byID[j.Name] = i
	cmd := state.SubmitJob{ID: j.Name, ULID: j.Name, Spec: spec, Group: groupID(j.Name), GroupSpec: &g}
	switch {
	case spec.Sizes.Any():
		place := func(g api.GroupSpec) []api.Placed { return s.placeNow(cmd.Group, g) }
		cmd.Spec.Ranks, cmd.Placement = s.gangs().StartSize(spec, g, place)
		g = gang.Sized(g, spec.Ranks, cmd.Spec.Ranks)
	case !s.dirty && len(s.snapshot().Pending) == 0:
		// Nothing waits, and nothing has changed since the scheduler was asked last: record and
		// placement can share one entry. Else it waits for its turn in this very instant.
		cmd.Placement = s.placeNow(cmd.Group, g)
	}
	j.ranks = cmd.Spec.Ranks
	r, err := s.propose(state.KindSubmitJob, cmd)
	if err != nil {
		return err
	}
	if ref, refused := r.(*state.Refused); refused {
		s.close(i, ref.Text)
		return nil
	}
	if cmd.Placement == nil {
		s.dirty = true
		return nil
	}
	return s.holds(i)
}

// placeNow asks the scheduler about a request that is not in the log yet. What waits
// already keeps its turn.
func (s *sim) placeNow(group string, g api.GroupSpec) []api.Placed {
	snap := s.snapshot()
	snap.Pending = append(snap.Pending, &schedule.Request{ID: group, Name: g.Name, Spec: g, Seq: s.index + 1, Since: s.time(), Expect: g.Estimate.D()})
	for _, d := range s.cycle(snap).Decisions {
		if d.Group == group && len(d.Chosen) == 0 {
			return d.Bundles
		}
	}
	return nil
}

// refusal says why a job can never run here; "" if it can.
func (s *sim) refusal(j *job, g api.GroupSpec) string {
	if s.tree != nil {
		if _, err := s.tree.Path(g.Tenant, g.Queue); err != nil {
			return err.Error()
		}
	}
	shape := fmt.Sprintf("%d %v %v %s %d %v %v", j.Spec.Ranks, j.Spec.Resources, j.Spec.Strategy, j.Spec.Pool, j.Spec.RanksPerNode, j.Spec.Where, j.Spec.Sizes)
	why, known := s.never[shape]
	if !known {
		if r := schedule.Never(s.snapshot(), g); r != nil && !s.gangs().FitsSmaller(j.Spec, g) {
			why = r.Text
		}
		s.never[shape] = why
	}
	return why
}

// close ends a job in the books of the run.
func (s *sim) close(i int, failed string) {
	j := &s.jobs[i]
	if j.over {
		return
	}
	j.over = true
	j.out.Failed = failed
	j.out.Ended = s.now
	s.left--
	s.done++
}

// place carries out a placement.
func (s *sim) place(d *schedule.Decision) error {
	r, err := s.propose(state.KindPlaceGroup, state.PlaceGroup{Group: d.Group, Placement: d.Bundles})
	if err != nil {
		return err
	}
	if ref, refused := r.(*state.Refused); refused {
		return fmt.Errorf("the scheduler placed %s where the state refuses it: %s", d.Group, ref.Text)
	}
	g := s.store.View().Group(d.Group)
	i, ok := s.byID[g.Job]
	if !ok {
		return fmt.Errorf("group %s of no job was placed", d.Group)
	}
	return s.holds(i)
}

// holds takes note of where a job was placed, and starts it.
func (s *sim) holds(i int) error {
	s.moves(i)
	s.limits(i)
	return s.supervise(i)
}

// moves takes note of what a job holds now instead of what it held.
func (s *sim) moves(i int) {
	j := &s.jobs[i]
	s.book(j)
	if len(j.held) > 0 {
		s.meter.take(s.nodes, j.held, -1)
		s.dirty = true
	}
	v := s.store.View()
	j.held, j.placed = map[int]int64{}, s.now
	if rec := v.Job(j.Name); rec != nil {
		j.ranks = rec.Spec.Ranks
	}
	for _, b := range v.Group(groupID(j.Name)).RankBundles() {
		j.held[s.byNode[b.Node]] += j.each()
	}
	s.meter.take(s.nodes, j.held, 1)
}

// book puts what a job has held until now into its books.
func (s *sim) book(j *job) {
	if len(j.held) > 0 {
		j.out.Busy += (s.now - j.placed).Seconds() * j.milli()
	}
	j.placed = s.now
}

// started begins the work of an attempt whose ranks are all up.
func (s *sim) started(i int) error {
	j := &s.jobs[i]
	j.attempt++
	j.running = true
	s.meter.running++
	if !j.out.Ran {
		j.out.Ran, j.out.Started = true, s.now
	} else {
		j.out.Restarts++
	}
	start := s.cluster.Start.D()
	s.works(i, s.now+start)
	if s.cluster.Checkpoints != nil {
		s.at(start+s.takes(j, aStep), event{what: jobSteps, job: i, version: j.attempt})
	}
	s.mayFail(i)
	return nil
}

// aStep is a step of every job.
const aStep = time.Second

// works begins a stretch of work, which ends with a save, or with the last of the work.
func (s *sim) works(i int, since time.Duration) {
	j := &s.jobs[i]
	j.stretch++
	j.since, j.told = since, false
	e := event{what: jobEnds, job: i, version: j.stretch}
	takes := s.takes(j, j.Takes-j.kept)
	// A save stands between two stretches, none behind the last one.
	if c := s.cluster.Checkpoints; c != nil && takes > c.Interval.D() {
		takes, e.what = c.Interval.D()+c.Save.D(), jobSaves
	}
	s.at(since+takes-s.now, e)
}

// saves commits a step and begins the next stretch.
func (s *sim) saves(i int) error {
	j := &s.jobs[i]
	if err := s.keep(i, s.work(j)); err != nil {
		return err
	}
	s.works(i, s.now)
	return nil
}

// keep is a save: so much more work of a job is kept.
func (s *sim) keep(i int, work time.Duration) error {
	j, c := &s.jobs[i], s.cluster.Checkpoints
	s.useful(j, work)
	j.out.Saving += c.Save.D().Seconds() * j.milli()
	return s.commit(i)
}

// useful counts work that is not lost any more.
func (s *sim) useful(j *job, work time.Duration) {
	j.kept += work
	j.out.Useful += s.takes(j, work).Seconds() * j.milli()
}

// commit logs what a job has saved. Steps are seconds of work.
func (s *sim) commit(i int) error {
	j := &s.jobs[i]
	run := s.store.View().Run(j.Name)
	step := int64(j.kept / aStep)
	if run == nil || step <= j.step {
		return nil
	}
	j.step = step
	s.dirty = s.dirty || s.sized // what has saved may have another size
	return s.must(state.KindCommitCheckpoint, state.CommitCheckpoint{
		Run: j.Name, Step: step, Generation: run.Generation, World: j.ranks, Store: "simulated", Dir: fmt.Sprintf("step-%d", step), Digest: "simulated", Files: 1,
	})
}

// work is how much was done of the newest stretch so far.
func (s *sim) work(j *job) time.Duration {
	if j.told {
		return j.still
	}
	gone := max(0, s.now-j.since)
	if c := s.cluster.Checkpoints; c != nil {
		gone = min(gone, c.Interval.D()) // then it stands still to save
	}
	return min(j.Takes-j.kept, s.does(j, gone))
}

// account closes an attempt in the books.
func (s *sim) account(j *job) {
	s.book(j)
	j.running, j.told = false, false
	j.attempt++
	j.stretch++
	s.meter.running--
}

// free gives back what a job held.
func (s *sim) free(j *job) {
	s.book(j)
	s.meter.take(s.nodes, j.held, -1)
	j.held = nil
	s.dirty = true
}

// ends is the end of a job by itself: every rank with code 0.
func (s *sim) ends(i int) error {
	j := &s.jobs[i]
	s.account(j)
	s.useful(j, j.Takes-j.kept)
	if err := s.exits(i, wire.RankExit{}); err != nil {
		return err
	}
	return s.supervise(i)
}

// exits tells the state that all ranks of a job's attempt that can still be heard have
// ended, each in the same way.
func (s *sim) exits(i int, how wire.RankExit) error {
	v := s.store.View()
	rec := v.Job(s.jobs[i].Name)
	if rec == nil || rec.Last() == nil {
		return nil
	}
	for _, id := range rec.Last().Allocs {
		al := v.Alloc(id)
		if al == nil || al.Gone || al.Ended || s.nodes[s.byNode[al.Node]].lost {
			continue
		}
		f := state.Facts{Node: al.Node}
		seq := al.Acked
		say := func(e wire.AllocEvent) {
			seq++
			e.Alloc, e.Seq, e.Generation = id, seq, al.Generation
			f.Events = append(f.Events, e)
		}
		for k, r := range al.Ranks {
			x := how
			x.Rank, x.Order = r.Rank, int64(k)
			say(wire.AllocEvent{Kind: wire.EventRankExited, Exit: &x})
		}
		say(wire.AllocEvent{Kind: wire.EventEnded})
		if err := s.must(state.KindFacts, f); err != nil {
			return err
		}
	}
	return nil
}

// gone tells the state that nothing of a job is left on any node that can be heard.
func (s *sim) gone(i int) error {
	for _, al := range s.store.View().AllocsOf(s.jobs[i].Name) {
		if al.Gone || s.nodes[s.byNode[al.Node]].lost {
			continue
		}
		f := state.Facts{Node: al.Node, Events: []wire.AllocEvent{{Alloc: al.ID, Seq: al.Acked + 1, Generation: al.Generation, Kind: wire.EventGone}}}
		if err := s.must(state.KindFacts, f); err != nil {
			return err
		}
	}
	return nil
}
