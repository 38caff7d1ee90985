package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/unit"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

func (s *strike) target() string {
	if s.Rank != nil {
		return fmt.Sprintf("rank %d, %s", *s.Rank, s.Node)
	}
	return s.Node
}

// strike injects one fault and watches until the job trains again.
func (a *app) strike(ctx context.Context, cl *troupe.Client, job string, kind api.FaultKind, f *chaosFlags, rng *rand.Rand) (strike, error) {
	before, err := steady(ctx, cl, job, f.recover)
	if err != nil {
		return strike{FaultResult: api.FaultResult{Fault: kind}}, err
	}
	req := api.FaultRequest{Fault: kind}
	if kind.OfRank() {
		rank := f.rank
		if rank < 0 {
			rank = rng.Int64N(max(1, before.Spec.Ranks))
		}
		req.Rank = &rank
	} else {
		req.Node = f.node
	}
	if kind.Ends() {
		req.For = unit.Duration(f.last)
	}
	if kind == api.FaultAtSave {
		req.Point = api.SavePoint(f.point)
	}
	begin := time.Now()
	did, err := cl.InjectFault(ctx, job, req)
	if err != nil {
		return strike{FaultResult: api.FaultResult{Fault: kind, Job: job}}, err
	}
	s := strike{FaultResult: did, lasts: req.For.D()}
	return s, s.watch(ctx, cl, &before, begin, f.recover)
}

// steady waits until the newest attempt has made a step, and no fault is under way.
func steady(ctx context.Context, cl *troupe.Client, job string, limit time.Duration) (api.Job, error) {
	deadline := time.Now().Add(limit)
	for {
		j, err := cl.Job(ctx, job)
		if err != nil {
			return j, err
		}
		if j.State == api.Running && steps(&j) || j.State == api.Running && j.Attempt == 0 && time.Now().After(deadline.Add(-limit+time.Second)) {
			return j, nil // a script that never reports a step can be harmed, too
		}
		if j.State.Terminal() {
			return j, fail(api.ExitConflict, "TRP-C073", "troupe job get "+j.ID, "job %s is %s", j.ID, j.State)
		}
		if time.Now().After(deadline) {
			return j, fail(api.ExitTimeout, "TRP-C074", "troupe why "+j.ID, "job %s is %s and made no step within %s", j.ID, j.State, limit)
		}
		if err := clock.Real().Sleep(ctx, watchEvery); err != nil {
			return j, err
		}
	}
}

const (
	watchEvery = 50 * time.Millisecond
	// quietFor is how long a job must train on undisturbed until a fault without
	// visible effect counts as weathered.
	quietFor = 5 * time.Second
)

// watch follows the job until it trains again and fills in what is known by then.
func (s *strike) watch(ctx context.Context, cl *troupe.Client, before *api.Job, begin time.Time, limit time.Duration) error {
	var lastStep int64 = -1
	if before.Step != nil {
		lastStep = *before.Step
	}
	deadline := begin.Add(limit)
	silent := !steps(before) // a script that reports none trains again once all its ranks run
	for {
		j, err := cl.Job(ctx, s.Job)
		if err != nil && !errors.Is(err, troupe.ErrUnreachable) {
			return err
		}
		now := time.Now()
		if err == nil {
			if s.Noticed == "" {
				s.notice(ctx, cl, begin)
			}
			if j.Attempt == s.Attempt && j.Step != nil {
				lastStep = max(lastStep, *j.Step) // made before the restart, if there is one
			}
			s.Restarts = j.Attempt - s.Attempt
			switch {
			case j.State.Terminal():
				s.Recovered = j.State == api.Succeeded
				s.RecoveredAfter = unit.Duration(now.Sub(begin))
				s.Outcome = "the job ended: " + string(j.State)
				return nil
			case s.Restarts > 0 && j.State == api.Running && (silent || steps(&j)):
				s.Recovered, s.RecoveredAfter = true, unit.Duration(now.Sub(begin))
				from := restoredStep(&j)
				if lastStep > from {
					s.LostSteps = lastStep - max(from, 0)
				}
				s.Outcome = fmt.Sprintf("trains again after %s, from step %d", seconds(s.RecoveredAfter.D()), max(from, 0))
				return nil
			case s.Restarts == 0 && j.State == api.Running && s.weathered(now.Sub(begin), limit):
				s.Recovered, s.Outcome = true, "no restart, it trains on"
				if s.Fault == api.FaultAtSave {
					s.Recovered, s.Outcome = false, "the rank made no save; nothing was done"
				}
				return nil
			}
		}
		if now.After(deadline) {
			s.Outcome = fmt.Sprintf("not recovered within %s", limit)
			if err == nil {
				s.Outcome += ": " + string(j.State)
			}
			return nil
		}
		if err := clock.Real().Sleep(ctx, watchEvery); err != nil {
			return err
		}
	}
}

// weathered: whatever the fault could do it has done, and it cost no restart.
func (s *strike) weathered(passed, limit time.Duration) bool {
	if s.Fault == api.FaultAtSave {
		return passed > limit-quietFor // its moment comes with the next save
	}
	return passed > s.lasts+quietFor
}

// steps reports whether a rank of the newest attempt has published a step.
func steps(j *api.Job) bool { return j.Step != nil && *j.Step >= 0 }

// notice takes the first thing that the head logged after the fault.
func (s *strike) notice(ctx context.Context, cl *troupe.Client, begin time.Time) {
	l, err := cl.Events(ctx, s.EventSeq, "", 100)
	if err != nil {
		return // the report does without
	}
	for _, e := range l.Items {
		if (e.Object == "job/"+s.Job && (noticed[e.Type] || strings.HasPrefix(e.Type, "rank-"))) || strings.HasPrefix(e.Object, "node/") {
			s.Noticed = e.Type
			s.NoticedAfter = unit.Duration(max(0, e.Time.Sub(s.At)))
			return
		}
	}
}

// noticed are the events of a job that tell of something wrong.
var noticed = map[string]bool{"attempt-failed": true, "shim-lost": true, "start-failed": true, "stalled": true, "checkpoint-dropped": true, "dirty": true}

// restoredStep is the step that the newest attempt began with, -1 from scratch.
func restoredStep(j *api.Job) int64 {
	for i := range j.Attempts {
		if a := &j.Attempts[i]; a.Number == j.Attempt && a.RestoreStep != nil {
			return *a.RestoreStep
		}
	}
	return -1
}

func (a *app) printChaos(r *chaosReport) {
	t := table{head: []string{"FAULT", "TARGET", "DONE", "NOTICED", "AFTER", "RECOVERED", "RESTARTS", "LOST-STEPS", "OUTCOME"}, right: map[int]bool{4: true, 5: true, 6: true, 7: true}}
	for i := range r.Strikes {
		s := &r.Strikes[i]
		recovered := "-"
		if s.RecoveredAfter > 0 {
			recovered = seconds(s.RecoveredAfter.D())
		}
		after := "-"
		if s.Noticed != "" {
			after = seconds(s.NoticedAfter.D())
		}
		t.add(string(s.Fault), s.target(), s.Did, s.Noticed, after, recovered, fmt.Sprint(s.Restarts), fmt.Sprint(s.LostSteps), s.Outcome)
	}
	a.print(t)
	var lost, restarts int64
	var longest time.Duration
	for i := range r.Strikes {
		lost += r.Strikes[i].LostSteps
		restarts += r.Strikes[i].Restarts
		longest = max(longest, r.Strikes[i].RecoveredAfter.D())
	}
	a.note("%s, %s, longest recovery %s, %s lost; committed step %s before, %s after", plural(int64(len(r.Strikes)), "fault"),
		plural(restarts, "restart"), seconds(longest), plural(lost, "step"), number(r.CommittedBefore), number(r.CommittedAfter))
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2fs", d.Seconds()) }
