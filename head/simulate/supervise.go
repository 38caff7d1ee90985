package simulate

import (
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/elastic/supervise"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// maxSteps bounds how many decisions on one job follow each other at one instant.
const maxSteps = 16

// supervise asks the supervisor about a job until it has nothing more to say, and carries
// out what it says, each decision in one entry of the log.
func (s *sim) supervise(i int) error {
	for range maxSteps {
		again, err := s.superviseOnce(i)
		if err != nil || !again {
			return err
		}
	}
	return fmt.Errorf("the supervisor does not come to rest about %s", s.jobs[i].Name)
}

func (s *sim) superviseOnce(i int) (again bool, err error) {
	j := &s.jobs[i]
	v := s.store.View()
	rec := v.Job(j.Name)
	if rec == nil || rec.State.Terminal() {
		return false, nil
	}
	d := supervise.Decide(s.facts(v, rec), s.time())
	cmd := state.Supervise{Job: rec.ID, Attempt: -1}
	if last := rec.Last(); last != nil {
		cmd.Attempt, cmd.Generation = last.Number, last.Generation
	}
	if d.End != nil {
		cmd.End = &state.AttemptEnd{Cause: d.End.Cause, Failure: d.End.Failure, Ledger: d.End.Ledger, Again: d.End.Again}
		cmd.Reason, cmd.State = reasonOf(d), api.Recovering
	}
	switch d.Action {
	case supervise.Wait, supervise.Stop, supervise.Resize:
		if d.Delay > 0 {
			s.at(d.Delay, event{what: jobLooks, job: i})
		}
		if cmd.End == nil {
			return false, nil
		}
	case supervise.Run:
		cmd.State = api.Running
	case supervise.Finish:
		cmd.State, cmd.Reason = d.State, reasonOf(d)
		cmd.ExitCode = &d.ExitCode
	case supervise.Replace, supervise.Release:
		if cmd.End != nil {
			if err := s.must(state.KindSupervise, cmd); err != nil {
				return false, err
			}
		}
		return false, s.release(i, d.Reason.Text)
	case supervise.Start:
		if cmd.Start = startOf(v, rec); cmd.Start == nil {
			return false, nil
		}
		cmd.State, cmd.Reason = api.Starting, reasonOf(d)
		if rec.Last() != nil {
			cmd.State = api.Recovering
		}
	}
	r, err := s.propose(state.KindSupervise, cmd)
	if err != nil {
		return false, err
	}
	if ref, refused := r.(*state.Refused); refused {
		// A bundle may still be in use; the job is looked at again with what frees it.
		s.at(time.Second, event{what: jobLooks, job: i})
		return false, ignore(ref)
	}
	switch {
	case cmd.Start != nil:
		return true, s.begun(i)
	case cmd.State == api.Running:
		return false, s.started(i)
	case cmd.State.Terminal():
		return false, s.finished(i, cmd.State, d.Reason.Text)
	}
	return true, nil
}

// ignore is for a refusal that is an answer and no failure of the run.
func ignore(*state.Refused) error { return nil }

func reasonOf(d supervise.Decision) *api.Reason {
	if d.Reason.Code == "" && d.Reason.Text == "" {
		return nil
	}
	r := d.Reason
	return &r
}

// facts gathers what the state knows of a job. Agents are never silent here, and ports
// never taken: that is what test/cluster simulates.
func (s *sim) facts(v *state.View, rec *state.Job) supervise.Group {
	g := supervise.Group{Job: rec.ID, Kind: rec.Spec.Kind, State: rec.State, Policy: rec.Spec.Restart, Ledger: rec.Ledger, FailureGrace: rec.Spec.FailureGrace.D()}
	if d := rec.Drain; d != nil {
		last := rec.Last()
		g.Drain = &supervise.Drain{After: supervise.ThenWait, Reason: d.Reason, Ordered: d.Ordered != "" && last != nil && d.Generation == last.Generation}
	}
	if pg := v.Group(rec.Group); pg != nil && pg.State == api.GroupPlaced {
		g.Placed = true
		for _, b := range pg.RankBundles() {
			if m := &s.nodes[s.byNode[b.Node]]; m.lost {
				g.Lost = append(g.Lost, m.name)
			}
		}
	}
	last := rec.Last()
	if last == nil {
		return g
	}
	a := &supervise.Attempt{
		Number: last.Number, Generation: last.Generation, Created: time.Unix(0, last.Created), World: int64(len(last.Ranks)),
		FirstStep: last.FirstStep, Ended: last.Ended != 0, Newest: last.Pace.Newest, From: last.Pace.From,
	}
	if last.Pace.First != 0 {
		a.FirstStepAt = time.Unix(0, last.Pace.First)
	}
	ranks, names := map[string][]int64{}, map[string]string{}
	for _, r := range last.Ranks {
		ranks[r.Alloc] = append(ranks[r.Alloc], r.Rank)
		names[r.Alloc] = s.nodes[s.byNode[r.Node]].name
	}
	for _, id := range last.Allocs {
		x := supervise.Alloc{ID: id, Node: names[id], Ranks: ranks[id], Lost: true, Ended: true}
		if al := v.Alloc(id); al != nil && al.Generation == last.Generation {
			x.Started, x.Ended, x.Lost = al.Started, al.Ended, al.Gone || al.Lost
			x.GPUFault = s.gpuFault(v, al)
			if al.FailedAt != 0 {
				x.FailedAt = time.Unix(0, al.FailedAt)
			}
		}
		a.Allocs = append(a.Allocs, x)
	}
	for _, e := range last.Exits {
		a.Exits = append(a.Exits, supervise.Exit{Alloc: e.Alloc, Node: names[e.Alloc], At: time.Unix(0, e.At), RankExit: e.RankExit})
	}
	g.Attempt = a
	return g
}

// startOf maps ranks to the bundles of a placed group, each to its own.
func startOf(v *state.View, rec *state.Job) *state.AttemptStart {
	g := v.Group(rec.Group)
	if g == nil || g.State != api.GroupPlaced {
		return nil
	}
	local := map[string]int64{}
	start := &state.AttemptStart{MasterAddr: g.Placed[0].Node, MasterPort: 29500}
	for i, b := range g.RankBundles() {
		start.Ranks = append(start.Ranks, state.RankStart{Rank: int64(i), LocalRank: local[b.Node], Bundle: int64(i), Node: b.Node})
		local[b.Node]++
	}
	if c := v.NewestCommitted(rec.Run()); c != nil {
		start.Restore = &state.Restore{Step: c.Step, Dir: c.Dir, Digest: c.Digest, Verified: true}
	}
	return start
}

// begun says that every node has started its ranks.
func (s *sim) begun(i int) error {
	v := s.store.View()
	rec := v.Job(s.jobs[i].Name)
	for _, id := range rec.Last().Allocs {
		al := v.Alloc(id)
		if al == nil || s.nodes[s.byNode[al.Node]].lost {
			continue
		}
		f := state.Facts{Node: al.Node, Events: []wire.AllocEvent{{Alloc: id, Seq: al.Acked + 1, Generation: al.Generation, Kind: wire.EventStarted}}}
		if err := s.must(state.KindFacts, f); err != nil {
			return err
		}
	}
	return nil
}

// finished closes a job that came to its end.
func (s *sim) finished(i int, end api.JobState, why string) error {
	j := &s.jobs[i]
	j.out.Done = end == api.Succeeded
	failed := ""
	if !j.out.Done {
		failed = string(end) + ": " + why
	}
	s.lose(j)
	s.close(i, failed)
	if err := s.gone(i); err != nil {
		return err
	}
	s.free(j)
	return nil
}

// lose sums what of a job's time was in vain, once it is over or looked at for the last
// time: all that it held its devices for, less its work and its saves.
func (s *sim) lose(j *job) {
	j.out.Lost = max(0, j.out.Busy-j.out.Saving-j.kept.Seconds()*float64(j.Milli()))
}

// release gives a placement back, to wait for another one with the same seniority.
func (s *sim) release(i int, why string) error {
	j := &s.jobs[i]
	if err := s.must(state.KindReleaseGroup, state.ReleaseGroup{Group: groupID(j.Name), Why: why}); err != nil {
		return err
	}
	if err := s.gone(i); err != nil {
		return err
	}
	s.free(j)
	return nil
}

// evict carries out what the scheduler decided on preemption: one entry for each group
// that others leave for.
func (s *sim) evict(r *schedule.Result) error {
	for _, u := range r.Unclaims {
		if err := s.must(state.KindDropClaim, state.DropClaim{Group: u.Group, Why: u.Why}); err != nil {
			return err
		}
		s.dirty = true
	}
	for _, e := range r.Evictions {
		cmd := state.Preempt{Group: e.Preemptor, Claim: e.Claim}
		for _, x := range e.Victims {
			cmd.Victims = append(cmd.Victims, state.Victim{Group: x.Group, Ranks: x.Keeps, Why: x.Why})
		}
		r, err := s.propose(state.KindPreempt, cmd)
		if err != nil {
			return err
		}
		if ref, refused := r.(*state.Refused); refused {
			return fmt.Errorf("the scheduler evicts for %s what the state refuses: %s", e.Preemptor, ref.Text)
		}
		for _, x := range e.Victims {
			if err := s.told(x.Group); err != nil {
				return err
			}
		}
	}
	return nil
}

// told begins the orderly end of a job that is to leave: it saves, if it can, and ends.
func (s *sim) told(group string) error {
	g := s.store.View().Group(group)
	if g == nil {
		return nil
	}
	i, ok := s.byID[g.Job]
	if !ok || !s.jobs[i].running {
		return nil
	}
	s.jobs[i].out.Evictions++
	wait := time.Duration(0)
	if c := s.cluster.Checkpoints; c != nil {
		wait = c.Save.D()
	}
	s.at(wait, event{what: jobLeaves, job: i, version: s.jobs[i].version})
	return nil
}

// leaves ends a job that was told to leave.
func (s *sim) leaves(i int) error {
	j := &s.jobs[i]
	rec := s.store.View().Job(j.Name)
	if rec == nil || rec.Drain == nil || rec.Last() == nil {
		return nil // it may stay after all
	}
	if c := s.cluster.Checkpoints; c != nil {
		// The save took its time; what was done until it began is kept.
		done := s.work(j) - time.Duration(j.saved)*c.Interval.D()
		j.kept += max(0, done-c.Save.D())
		j.out.Saving += c.Save.D().Seconds() * float64(j.Milli())
		if err := s.commit(i); err != nil {
			return err
		}
	}
	s.account(j)
	if err := s.must(state.KindOrderEnd, state.OrderEnd{Job: rec.ID, Generation: rec.Last().Generation, Why: "it has saved"}); err != nil {
		return err
	}
	if err := s.exits(i, wire.RankExit{Code: -1, Signal: 15, ByShim: true}); err != nil {
		return err
	}
	return s.supervise(i)
}
