package cluster

import (
	"context"
	"time"

	"github.com/troupe-runtime/troupe/head/control"
)

// ask asks the leader, if there is one; what it answers is its own affair.
func (s *simulation) ask(f func(ctx context.Context, h *control.Head) error) {
	c := s.c
	c.spawn(func() {
		if h := c.control(); h != nil {
			ctx, cancel := context.WithTimeout(c.ctx, 5*time.Minute)
			defer cancel()
			_ = f(ctx, h) // refused, or the head is gone meanwhile
		}
	})
}

// undrain frees every node, whatever it takes.
func (s *simulation) undrain() {
	h := s.c.control()
	if h == nil {
		return
	}
	for _, n := range s.c.View().Nodes() {
		if n.Cordoned() != nil {
			ctx, cancel := context.WithTimeout(s.c.ctx, 5*time.Second)
			_, _ = h.UncordonNode(ctx, n.ID) // tried again by the caller
			cancel()
		}
	}
}

// askAbout is what users ask of a job beside its end; false: nothing was asked.
func (s *simulation) askAbout(job string) bool {
	switch s.rng.IntN(6) {
	case 3, 4:
		s.parkAbout(job)
		return true
	case 0:
		s.ask(func(ctx context.Context, h *control.Head) error {
			_, err := h.StopSaved(ctx, job, time.Minute, "the test says so")
			return err
		})
		return true
	case 1:
		n := 1 + s.rng.Int64N(5)
		s.ask(func(ctx context.Context, h *control.Head) error {
			_, err := h.Scale(ctx, job, n, "the test says so")
			return err
		})
		return true
	case 2:
		if h := s.c.control(); h != nil {
			h.ProposeCheckpoint(job)
		}
		return true
	}
	return false
}

// drain keeps new work off a node, and mostly lets what is there leave, for a while.
func (s *simulation) drain() bool {
	id, deadline := s.node().ID, time.Duration(s.rng.IntN(20))*time.Second
	h := s.c.control()
	if h == nil {
		return false
	}
	drain := s.rng.IntN(4) > 0
	s.ask(func(ctx context.Context, h *control.Head) error {
		_, err := h.DrainNode(ctx, id, drain, deadline, "the test says so")
		return err
	})
	s.later(time.Second, 30*time.Second, func() {
		s.ask(func(ctx context.Context, h *control.Head) error {
			_, err := h.UncordonNode(ctx, id)
			return err
		})
	})
	return true
}

// control is the leader that answers requests; nil when there is none now.
func (c *Cluster) control() *control.Head {
	h := c.Leader()
	if h == nil || h.running() == nil {
		return nil
	}
	return h.running().control
}
