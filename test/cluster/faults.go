package cluster

import (
	"fmt"
	"hash/fnv"
	"path"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
)

// noisy faults keep the head from hearing what happens, so that it cannot be asked to
// judge by it.
var noisy = map[string]bool{
	"cut": true, "one-way": true, "head": true, "head-cut": true, "delay": true, "loss": true, "slow": true, "closed": true,
	"agent-cut": true, "agent-stopped": true, "clock": true, "replay": true,
}

// faults by name; each says whether it did anything.
var faults = map[string]func(s *simulation) bool{
	"drain":   (*simulation).drain,
	"declare": (*simulation).declare,
	"rank": func(s *simulation) bool {
		jobs := s.liveJobs()
		if len(jobs) == 0 {
			return false
		}
		j := jobs[s.rng.IntN(len(jobs))]
		hit := false
		rank := s.rng.Int64N(j.Spec.Ranks)
		for _, n := range s.c.nodes {
			hit = n.KillRank(j.ID, rank) || hit
		}
		return hit
	},
	"shim": func(s *simulation) bool {
		jobs := s.liveJobs()
		if len(jobs) == 0 {
			return false
		}
		return s.node().KillShim(jobs[s.rng.IntN(len(jobs))].ID)
	},
	"agent": func(s *simulation) bool {
		n := s.node()
		n.KillAgent()
		s.later(0, 20*time.Second, n.StartAgent)
		return true
	},
	"node": func(s *simulation) bool {
		n := s.node()
		if !n.Up() {
			return false
		}
		n.Kill()
		s.later(time.Second, 40*time.Second, func() {
			if !n.Up() {
				n.Boot()
			}
		})
		return true
	},
	// Every process ends at once, and the machine goes on: another agent, the same boot.
	"processes": func(s *simulation) bool {
		n := s.node()
		if !n.Up() {
			return false
		}
		n.KillProcesses()
		s.later(0, 30*time.Second, n.Recover)
		return true
	},
	// The agent stays away for longer than its work is held, announced or not.
	"agent-away": func(s *simulation) bool {
		n := s.node()
		if s.rng.IntN(2) == 0 {
			n.KillAgent()
		} else {
			s.c.spawn(n.LeaveAgent)
		}
		s.later(10*time.Second, 7*time.Minute, n.StartAgent)
		return true
	},
	// The agent is stopped by a signal: its shims have to notice.
	"agent-stopped": func(s *simulation) bool {
		n := s.node()
		n.Stun(true)
		s.later(0, 40*time.Second, func() { n.Stun(false) })
		return true
	},
	// The agent's connection ends; it comes back, at once or not.
	"closed": func(s *simulation) bool {
		n := s.node()
		s.c.Bus.CutAll(n.identity())
		s.later(0, 8*time.Second, func() { s.c.Bus.HealAll(n.identity()) })
		return true
	},
	"agent-cut": func(s *simulation) bool {
		n := s.node()
		n.CutAgent()
		s.later(0, 40*time.Second, n.Heal)
		return true
	},
	"clock": func(s *simulation) bool {
		s.node().Jump(time.Duration(s.rng.IntN(20))*time.Second, time.Duration(s.rng.IntN(20)-10)*24*365*time.Hour)
		return true
	},
	// The links of one node are slow, not so slow that it must pass for lost.
	"slow": func(s *simulation) bool {
		n, most := s.node(), 100+s.rng.Int64N(500)
		s.c.Bus.SetDelay(func(from, to, _ string) time.Duration {
			for _, id := range []string{n.identity(), shimIdentity + n.ID} {
				if from == id || to == id {
					return time.Duration(most) * time.Millisecond
				}
			}
			return 0
		})
		s.later(0, 20*time.Second, func() { s.c.Bus.SetDelay(nil) })
		return true
	},
	"cut": func(s *simulation) bool {
		n := s.node()
		n.Cut()
		s.later(0, 40*time.Second, n.Heal)
		return true
	},
	"one-way": func(s *simulation) bool {
		n := s.node()
		h := s.c.heads[s.rng.IntN(len(s.c.heads))]
		if s.rng.IntN(2) == 0 {
			s.c.Bus.CutOneWay(n.identity(), h.identity())
		} else {
			s.c.Bus.CutOneWay(h.identity(), n.identity())
		}
		s.later(0, 20*time.Second, func() { s.c.Bus.Heal(n.identity(), h.identity()) })
		return true
	},
	"head": func(s *simulation) bool {
		h := s.c.heads[s.rng.IntN(len(s.c.heads))]
		if s.rng.IntN(2) == 0 {
			// At a point of some protocol rather than at a time.
			points := []string{"propose", "decide", "drain-job", "order-end", "preempt", "drop-claim", "park-job", "edit-job", "put-queues", "put-reservation", "resize", "prepared", "report", "task:write-manifest", "task:write-manifest:done", "commit", "done", "supervise", "release", "facts", "place", "tombstone", "submit"}
			s.c.Trip(points[s.rng.IntN(len(points))], 1+s.rng.IntN(3), func() { s.c.crashLeader(2 * time.Second) })
			return true
		}
		h.Crash(time.Duration(s.rng.IntN(8000)) * time.Millisecond)
		return true
	},
	"head-cut": func(s *simulation) bool {
		h := s.c.heads[s.rng.IntN(len(s.c.heads))]
		h.Cut()
		s.later(0, 15*time.Second, h.Heal)
		return true
	},
	"delay": func(s *simulation) bool {
		salt, most := s.rng.Uint64(), 1+s.rng.Int64N(2500)
		s.c.Bus.SetDelay(func(from, to, _ string) time.Duration {
			h := fnv.New64a()
			_, _ = fmt.Fprintf(h, "%d %s %s", salt, from, to)
			return time.Duration(int64(h.Sum64()%uint64(most))) * time.Millisecond
		})
		s.later(0, 20*time.Second, func() { s.c.Bus.SetDelay(nil) })
		return true
	},
	"loss": func(s *simulation) bool {
		s.c.Bus.SetLoss(s.rng.Float64()*0.4, s.rng.Float64()*0.4)
		s.later(0, 20*time.Second, func() { s.c.Bus.SetLoss(0, 0) })
		return true
	},
	"damage": func(s *simulation) bool {
		v := s.c.History.View()
		var all []*state.Checkpoint
		for _, ck := range v.Checkpoints("") {
			if ck.State == state.CheckpointCommitted {
				all = append(all, ck)
			}
		}
		if len(all) == 0 {
			return false
		}
		ck := all[s.rng.IntN(len(all))]
		file := path.Join(ck.Dir, fmt.Sprintf("rank-%d", s.rng.Int64N(ck.World)), "model.bin")
		if _, err := s.c.Disk.Stat(file); err != nil {
			return false
		}
		return s.c.Disk.Remove(file) == nil
	},
	"replay": func(s *simulation) bool {
		tape := s.c.Taped()
		s.c.Tape()
		if len(tape) == 0 {
			return false
		}
		if len(tape) > 300 {
			from := s.rng.IntN(len(tape) - 300)
			tape = tape[from : from+300]
		}
		s.rng.Shuffle(len(tape), func(i, j int) { tape[i], tape[j] = tape[j], tape[i] })
		s.c.Replay(tape)
		return true
	},
	"no-fork": func(s *simulation) bool {
		s.node().FailShims(1 + s.rng.IntN(2))
		return true
	},
}
