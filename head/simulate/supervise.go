package simulate

import (
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/elastic/supervise"
	"github.com/troupe-runtime/troupe/head/gang"
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
	case supervise.Wait, supervise.Stop:
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
	case supervise.Replace, supervise.Release, supervise.Resize:
		if cmd.End != nil {
			if err := s.must(state.KindSupervise, cmd); err != nil {
				return false, err
			}
		}
		return s.movesOn(i, &d)
	case supervise.Start:
		if cmd.Start = s.startOf(v, rec); cmd.Start == nil {
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
	if g.Drain = gang.DrainFacts(v, rec); rec.Stop != nil {
		g.StopAsked, g.StopReason, g.TimeLimit = true, rec.Stop.Reason, rec.Stop.Code == api.ReasonLimit
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

// startOf maps ranks to the bundles of a placed group.
func (s *sim) startOf(v *state.View, rec *state.Job) *state.AttemptStart {
	g := v.Group(rec.Group)
	if g == nil || g.State != api.GroupPlaced {
		return nil
	}
	ranks := gang.Ranks(v, rec, g)
	if len(ranks) == 0 {
		return nil
	}
	start := &state.AttemptStart{Ranks: ranks, MasterAddr: ranks[0].Node, MasterPort: 29500}
	if s.cluster.Checkpoints == nil {
		start.NoSaves = "the cluster file names no checkpoints"
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
	s.close(i, failed)
	if err := s.gone(i); err != nil {
		return err
	}
	s.free(j)
	return nil
}
