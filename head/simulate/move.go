package simulate

import (
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/elastic/supervise"
	"github.com/troupe-runtime/troupe/head/gang"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// movesOn carries out what becomes of the placement of a job whose attempt has ended, as
// the head does (head/gang): whole elsewhere or smaller after a loss, another size, or
// nothing, to wait for another placement with the same seniority. again says that the job
// can be looked at once more.
func (s *sim) movesOn(i int, d *supervise.Decision) (again bool, err error) {
	j := &s.jobs[i]
	v := s.store.View()
	rec := v.Job(j.Name)
	g := v.Group(rec.Group)
	if g == nil || g.State != api.GroupPlaced {
		return false, nil
	}
	before := rec.Spec.Ranks
	switch d.Action {
	case supervise.Replace:
		s.gangs().AfterLoss(rec, g, d.Reason.Text, gang.KeepPlace, s.try(&err))
	case supervise.Resize:
		s.gangs().Resize(rec, s.try(&err))
	default:
		s.try(&err)(state.KindReleaseGroup, state.ReleaseGroup{Group: g.ID, Why: d.Reason.Text})
	}
	if err != nil {
		return false, err
	}
	if err := s.gone(i); err != nil {
		return false, err
	}
	v = s.store.View()
	if g = v.Group(rec.Group); g == nil || g.State != api.GroupPlaced {
		s.free(j)
		return false, nil
	}
	switch now := v.Job(j.Name).Spec.Ranks; {
	case now > before:
		j.out.Grown++
	case now < before:
		j.out.Shrunk++
	}
	s.moves(i)
	return true, nil
}

// unclaim drops the claims that cannot come true any more.
func (s *sim) unclaim(r *schedule.Result) error {
	for _, u := range r.Unclaims {
		if err := s.must(state.KindDropClaim, state.DropClaim{Group: u.Group, Why: u.Why}); err != nil {
			return err
		}
		s.result.Unclaimed++
		s.dirty = true
	}
	return nil
}

// evict carries out what the scheduler decided on preemption: one entry for each group
// that others leave or shrink for.
func (s *sim) evict(r *schedule.Result) error {
	for _, cmd := range gang.Preemptions(r, 0) {
		r, err := s.propose(state.KindPreempt, cmd)
		if err != nil {
			return err
		}
		if ref, refused := r.(*state.Refused); refused {
			return fmt.Errorf("the scheduler evicts for %s what the state refuses: %s", cmd.Group, ref.Text)
		}
		for _, x := range cmd.Victims {
			g := s.store.View().Group(x.Group)
			if g == nil {
				continue
			}
			if i, ok := s.byID[g.Job]; ok {
				if x.Ranks == 0 {
					s.jobs[i].out.Evictions++
				}
				if err := s.told(i); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// grow lets jobs go on with more ranks.
func (s *sim) grow(r *schedule.Result) error {
	for _, cmd := range gang.Growths(s.store.View(), r) {
		var err error
		if i, ok := s.byID[cmd.Job]; ok && s.try(&err)(state.KindDrainJob, cmd) {
			err = s.told(i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// limits puts the end of a job's time into the future.
func (s *sim) limits(i int) {
	j := &s.jobs[i]
	if l := j.Spec.TimeLimit.D(); l > 0 {
		if g := s.store.View().Group(groupID(j.Name)); g != nil {
			s.at(l-g.Held(s.wall()), event{what: jobLimits, job: i})
		}
	}
}

// limit stops a job that has held its devices for as long as it may.
func (s *sim) limit(i int) error {
	j := &s.jobs[i]
	v := s.store.View()
	rec, g := v.Job(j.Name), v.Group(groupID(j.Name))
	if rec == nil || rec.State.Terminal() || g == nil || g.Begun == 0 || g.Held(s.wall()) < j.Spec.TimeLimit.D() {
		return nil // it is over, or waits meanwhile
	}
	why := fmt.Sprintf("its time limit of %s is reached", j.Spec.TimeLimit)
	if err := s.must(state.KindStopJob, state.StopJob{Job: j.Name, Code: api.ReasonLimit, Reason: why}); err != nil {
		return err
	}
	return s.breakDown(i, wire.RankExit{Code: -1, Signal: 15, ByShim: true})
}

// told begins the orderly end of an attempt: the job stands still and saves, if it can, and
// ends.
func (s *sim) told(i int) error {
	j := &s.jobs[i]
	if !j.running {
		return s.supervise(i)
	}
	wait := time.Duration(0)
	if c := s.cluster.Checkpoints; c != nil && s.now >= j.since {
		wait = c.Save.D()
	}
	j.still, j.told = s.work(j), true
	j.stretch++
	s.at(wait, event{what: jobLeaves, job: i, version: j.stretch})
	return nil
}

// leaves ends an attempt that was told to.
func (s *sim) leaves(i int) error {
	j := &s.jobs[i]
	saved := s.cluster.Checkpoints != nil && s.now >= j.since
	if saved {
		if err := s.keep(i, j.still); err != nil {
			return err
		}
		j.still = 0
	}
	rec := s.store.View().Job(j.Name)
	if rec == nil || rec.Last() == nil {
		return nil
	}
	if rec.Drain == nil { // it may stay after all
		since := s.now - s.takes(j, j.still)
		if s.now < j.since {
			since = j.since
		}
		s.works(i, since)
		return nil
	}
	s.account(j)
	why := "nothing can be saved"
	if saved {
		why = "it has saved"
	}
	if err := s.must(state.KindOrderEnd, state.OrderEnd{Job: rec.ID, Generation: rec.Last().Generation, Why: why}); err != nil {
		return err
	}
	if err := s.exits(i, wire.RankExit{Code: -1, Signal: 15, ByShim: true}); err != nil {
		return err
	}
	return s.supervise(i)
}
