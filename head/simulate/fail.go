package simulate

import (
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// nodeFails takes a machine away; everything on it is gone with it.
func (s *sim) nodeFails(i int) error {
	m := &s.nodes[i]
	if m.lost {
		return nil
	}
	s.result.Failures++
	m.lost = true
	s.meter.lose(m)
	hit := s.jobsOn(m.id)
	if err := s.must(state.KindSetNodeState, state.SetNodeState{ID: m.id, State: api.NodeLost, Why: "it failed"}); err != nil {
		return err
	}
	s.at(s.cluster.Failures.Node.repairs(m.dice), event{what: nodeReturns, job: i})
	for _, k := range hit {
		if err := s.breakDown(k, wire.RankExit{Code: -1, Signal: 9, ByShim: true}); err != nil {
			return err
		}
	}
	s.dirty = true
	return nil
}

// nodeReturns brings a machine back with another boot id, which proves that nothing of
// the former boot runs (P2).
func (s *sim) nodeReturns(i int) error {
	m := &s.nodes[i]
	m.lost = false
	m.boot++
	s.meter.regain(m)
	waiting := s.jobsOn(m.id)
	if err := s.register(i); err != nil {
		return err
	}
	if d, ok := s.cluster.Failures.Node.lives(m.dice); ok {
		s.at(d, event{what: nodeFails, job: i})
	}
	s.dirty = true
	for _, k := range waiting {
		if err := s.supervise(k); err != nil {
			return err
		}
	}
	return nil
}

// jobsOn lists the jobs with an allocation on a node, in order.
func (s *sim) jobsOn(node string) []int {
	var out []int
	seen := map[int]bool{}
	for _, a := range s.store.View().AllocsOn(node) {
		if i, ok := s.byID[a.Job]; ok && !a.Gone && !seen[i] {
			seen[i] = true
			out = append(out, i)
		}
	}
	return out
}

// breakDown ends the ranks of a job that can still be heard.
func (s *sim) breakDown(i int, how wire.RankExit) error {
	if j := &s.jobs[i]; j.running {
		s.account(j)
	}
	if err := s.exits(i, how); err != nil {
		return err
	}
	return s.supervise(i)
}

// gpuFails breaks one device: the rank on it dies, and the device is offered to nobody.
func (s *sim) gpuFails(i, k int) error {
	m := &s.nodes[i]
	if m.ill[k] {
		return nil
	}
	if m.lost { // it broke together with its machine, or before
		s.gpuBreaks(i, k)
		return nil
	}
	s.result.Failures++
	m.ill[k] = true
	m.info.GPUs[k].Health, m.info.GPUs[k].Note = "failed", "it failed"
	victim := s.userOf(m, k)
	if err := s.register(i); err != nil {
		return err
	}
	s.at(s.cluster.Failures.GPU.repairs(m.gpus[k]), event{what: gpuReturns, job: i, gpu: k})
	s.dirty = true
	if victim < 0 {
		return nil
	}
	return s.killed(victim, m.id, wire.RankExit{Code: -1, Signal: 6, Message: fmt.Sprintf("device %d of %s failed", k, m.name)})
}

func (s *sim) gpuReturns(i, k int) error {
	m := &s.nodes[i]
	m.ill[k] = false
	m.info.GPUs[k].Health, m.info.GPUs[k].Note = "", ""
	s.gpuBreaks(i, k)
	s.dirty = true
	if m.lost {
		return nil
	}
	return s.register(i)
}

// userOf finds the job that runs on a device; -1: none does.
func (s *sim) userOf(m *machine, k int) int {
	v := s.store.View()
	for _, h := range v.HoldsOn(m.id) {
		for _, uuid := range h.Devices {
			if uuid != m.info.GPUs[k].UUID {
				continue
			}
			if g := v.Group(h.Group); g != nil {
				if i, ok := s.byID[g.Job]; ok && s.jobs[i].running {
					return i
				}
			}
		}
	}
	return -1
}

// gpuFault names a broken device of an allocation, as the head does.
func (s *sim) gpuFault(v *state.View, al *state.Alloc) string {
	m := &s.nodes[s.byNode[al.Node]]
	if m.ill == nil {
		return ""
	}
	for _, id := range al.Holds {
		h := v.Hold(id)
		if h == nil {
			continue
		}
		for k := range m.ill {
			for _, uuid := range h.Devices {
				if m.ill[k] && uuid == m.info.GPUs[k].UUID {
					return fmt.Sprintf("device %d of %s failed", k, m.name)
				}
			}
		}
	}
	return ""
}

// mayFail draws whether and when a job's own program fails in its newest attempt.
func (s *sim) mayFail(i int) {
	j := &s.jobs[i]
	l := s.cluster.Failures.Rank
	if l.MTBF <= 0 {
		return
	}
	// The first of so many ranks fails so much sooner, if failures have no memory.
	dice := stream(s.Seed, fmt.Sprintf("job %s %d", j.Name, j.attempt))
	first := longest
	for range min(j.ranks, 1<<14) {
		if d, ok := l.lives(dice); ok {
			first = min(first, d)
		}
	}
	s.at(first, event{what: rankFails, job: i, version: j.attempt})
}

// rankFails is a program's own failure.
func (s *sim) rankFails(i int) error {
	s.result.Failures++
	rec := s.store.View().Job(s.jobs[i].Name)
	if rec == nil || rec.Last() == nil || len(rec.Last().Ranks) == 0 {
		return nil
	}
	return s.killed(i, rec.Last().Ranks[0].Node, wire.RankExit{Code: 1, Message: "the program failed"})
}

// killed ends a job's attempt: its first rank on a node in the given way, the others as
// a consequence.
func (s *sim) killed(i int, node string, how wire.RankExit) error {
	j := &s.jobs[i]
	if j.running {
		s.stepped(i)
		s.account(j)
	}
	v := s.store.View()
	rec := v.Job(j.Name)
	if rec == nil || rec.Last() == nil {
		return nil
	}
	for _, id := range rec.Last().Allocs {
		al := v.Alloc(id)
		if al == nil || al.Node != node || al.Ended || len(al.Ranks) == 0 {
			continue
		}
		x := how
		x.Rank, x.StepsDone = al.Ranks[0].Rank, int64(j.kept/time.Second)
		f := state.Facts{Node: node, Events: []wire.AllocEvent{{Alloc: id, Seq: al.Acked + 1, Generation: al.Generation, Kind: wire.EventRankExited, Exit: &x}}}
		if err := s.must(state.KindFacts, f); err != nil {
			return err
		}
		break
	}
	if err := s.exits(i, wire.RankExit{Code: -1, Signal: 9, ByShim: true}); err != nil {
		return err
	}
	return s.supervise(i)
}

// stepped logs that an attempt has made steps, which the budgets go by.
func (s *sim) stepped(i int) {
	j := &s.jobs[i]
	run := s.store.View().Run(j.Name)
	if done := s.work(j); run != nil && done >= time.Second {
		// A refusal says that the attempt is over, which is as well.
		_, _ = s.propose(state.KindFirstStep, state.FirstStep{Job: j.Name, Generation: run.Generation, Step: int64((j.kept + done) / time.Second)})
	}
}
