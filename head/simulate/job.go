package simulate

import (
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// job is one job of the run.
type job struct {
	*Job
	out     *Outcome
	version uint64 // counts its attempts
	running bool   // its ranks run
	over    bool
	held    map[int]int64 // thousandths of devices on each node, while it is placed
	// kept is how much of its work is saved; began when the newest attempt's ranks began
	// to work, and since when it was placed for it.
	kept   time.Duration
	began  time.Duration
	placed time.Duration
	saved  int64 // steps that the newest attempt has saved
	step   int64 // that was committed last
}

// id of a job's group.
func groupID(name string) string { return "pg-" + name }

// arrive submits a job as the head does: what can never run is refused.
func (s *sim) arrive(i int) error {
	j := &s.jobs[i]
	g := groupOf(&j.Spec)
	if j.Deadline != 0 {
		g.Deadline = s.trace.Epoch.Add(j.Deadline)
	}
	if why := s.refusal(j, g); why != "" {
		s.close(i, why)
		return nil
	}
	spec := j.Spec
	spec.Command = []string{"simulated"}
	s.byID[j.Name] = i
	cmd := state.SubmitJob{ID: j.Name, ULID: j.Name, Spec: spec, Group: groupID(j.Name), GroupSpec: &g}
	if !s.dirty {
		// What waits already was looked at, and nothing has changed since: as in the head,
		// record and placement can share one entry.
		cmd.Placement = s.placeNow(cmd.Group, g)
	}
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

// placeNow asks the scheduler about a request that is not in the log yet.
func (s *sim) placeNow(group string, g api.GroupSpec) []api.Placed {
	snap := s.snapshot()
	if len(snap.Pending) > 0 {
		return nil // it waits for its turn
	}
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
	shape := fmt.Sprintf("%d %v %v %s %d %v", j.Spec.Ranks, j.Spec.Resources, j.Spec.Strategy, j.Spec.Pool, j.Spec.RanksPerNode, j.Spec.Where)
	why, known := s.never[shape]
	if !known {
		if r := schedule.Never(s.survey.Snapshot(s.store.View(), s.wall()), g); r != nil {
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
	j := &s.jobs[i]
	g := s.store.View().Group(groupID(j.Name))
	j.held, j.placed = map[int]int64{}, s.now
	for _, b := range g.RankBundles() {
		j.held[s.byNode[b.Node]] += 1000*j.Spec.Resources.GPUs + j.Spec.Resources.Share
	}
	s.meter.take(s.nodes, j.held, 1)
	return s.supervise(i)
}

// started begins the work of an attempt whose ranks are all up.
func (s *sim) started(i int) error {
	j := &s.jobs[i]
	j.version++
	j.running, j.saved = true, 0
	j.began = s.now + s.cluster.Start.D()
	s.meter.running++
	if !j.out.Ran {
		j.out.Ran, j.out.Started = true, s.now
	} else {
		j.out.Restarts++
	}
	left := j.Takes - j.kept
	took := left
	if c := s.cluster.Checkpoints; c != nil {
		// A save stands between two stretches of work, none behind the last one.
		if n := (left - 1) / c.Interval.D(); n > 0 {
			took += n * c.Save.D()
			s.nextSave(i)
		}
	}
	s.at(s.cluster.Start.D()+took, event{what: jobEnds, job: i, version: j.version})
	s.mayFail(i)
	return nil
}

// nextSave puts the end of the next save into the future.
func (s *sim) nextSave(i int) {
	j, c := &s.jobs[i], s.cluster.Checkpoints
	at := j.began + time.Duration(j.saved+1)*(c.Interval.D()+c.Save.D())
	s.at(at-s.now, event{what: jobSaves, job: i, version: j.version})
}

// saves commits a step.
func (s *sim) saves(i int) error {
	j, c := &s.jobs[i], s.cluster.Checkpoints
	j.saved++
	j.kept += c.Interval.D()
	j.out.Saving += c.Save.D().Seconds() * float64(j.Milli())
	if err := s.commit(i); err != nil {
		return err
	}
	if j.kept+c.Interval.D() < j.Takes {
		s.nextSave(i)
	}
	return nil
}

// commit logs what a job has saved. Steps are seconds of work.
func (s *sim) commit(i int) error {
	j := &s.jobs[i]
	run := s.store.View().Run(j.Name)
	step := int64(j.kept / time.Second)
	if run == nil || step <= j.step {
		return nil
	}
	j.step = step
	return s.must(state.KindCommitCheckpoint, state.CommitCheckpoint{
		Run: j.Name, Step: step, Generation: run.Generation, World: j.Spec.Ranks, Store: "simulated", Dir: fmt.Sprintf("step-%d", step), Digest: "simulated", Files: 1,
	})
}

// work is how much of its work the running attempt has done so far, saved or not.
func (s *sim) work(j *job) time.Duration {
	if s.now <= j.began {
		return 0
	}
	gone := s.now - j.began
	if c := s.cluster.Checkpoints; c != nil {
		cycle := c.Interval.D() + c.Save.D()
		gone = gone/cycle*c.Interval.D() + min(gone%cycle, c.Interval.D())
	}
	return gone
}

// account closes an attempt in the books: what it held, and what of that was in vain.
func (s *sim) account(j *job) {
	milli := float64(j.Milli())
	j.out.Busy += (s.now - j.placed).Seconds() * milli
	j.running = false
	j.version++
	s.meter.running--
}

// free gives back what a job held.
func (s *sim) free(j *job) {
	s.meter.take(s.nodes, j.held, -1)
	j.held = nil
	s.dirty = true
}

// ends is the end of a job by itself: every rank with code 0.
func (s *sim) ends(i int) error {
	j := &s.jobs[i]
	s.account(j)
	j.kept = j.Takes
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
