package control

import (
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// samples is how many measured steps of a group are remembered for its p99.
const samples = 256

// pace is how the ranks of one attempt advance, learned from what their nodes say. It is
// volatile: a new leader learns it anew.
type pace struct {
	generation uint64
	ranks      map[int64]rankPace
	advanced   time.Time // newest step of any rank; zero: none has published one
	ring       []time.Duration
	next       int
}

type rankPace struct {
	step int64
	at   time.Time
}

// note takes what a node said of an attempt at now.
func (p *pace) note(generation uint64, steps []wire.RankStep, now time.Time) {
	if generation < p.generation {
		return // P3
	}
	if generation > p.generation || p.ranks == nil {
		// The pace of the attempt before is a fair guess of this one's.
		p.generation, p.ranks, p.advanced = generation, map[int64]rankPace{}, time.Time{}
	}
	for _, s := range steps {
		old, known := p.ranks[s.Rank]
		if s.Step < 0 || known && s.Step <= old.step {
			continue
		}
		at := now.Add(-max(0, s.Age.D()))
		if known && at.Before(old.at) {
			at = old.at
		}
		if known && old.step >= 0 {
			p.sample(at.Sub(old.at) / time.Duration(s.Step-old.step))
		}
		p.ranks[s.Rank] = rankPace{s.Step, at}
		p.advanced = later(p.advanced, at)
	}
}

func (p *pace) sample(d time.Duration) {
	if len(p.ring) < samples {
		p.ring = append(p.ring, d)
		return
	}
	p.ring[p.next] = d
	p.next = (p.next + 1) % samples
}

// p99 is the time that 99 of 100 steps take at most.
func (p *pace) p99() time.Duration {
	if len(p.ring) == 0 {
		return unknownPace
	}
	s := slices.Sorted(slices.Values(p.ring))
	return s[(len(s)*99+99)/100-1]
}

// standstill is how long nothing must have advanced before it says anything.
func (p *pace) standstill(least time.Duration) time.Duration {
	return max(least, min(2*p.p99(), mostPace))
}

// learn takes the steps of all allocations that a node spoke of. s.mu is held.
func (s *sessions) learn(allocs []wire.AllocStatus, now time.Time) {
	for i := range allocs {
		a := &allocs[i]
		if a.Job == "" || a.Generation == 0 || len(a.Steps) == 0 {
			continue
		}
		p := s.paces[a.Job]
		if p == nil {
			p = &pace{}
			s.paces[a.Job] = p
		}
		p.note(a.Generation, a.Steps, now)
	}
}

// moving says until when the ranks of an attempt pass for advancing, if nothing newer is
// heard; zero when none of them has published a step.
func (s *sessions) moving(job string, generation uint64, least time.Duration) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.paces[job]
	if p == nil || p.generation != generation || p.advanced.IsZero() {
		return time.Time{}
	}
	return p.advanced.Add(p.standstill(least))
}

// forgetPaces drops what was learned of jobs that are over.
func (s *sessions) forgetPaces(live func(job string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for job := range s.paces {
		if !live(job) {
			delete(s.paces, job)
		}
	}
}
