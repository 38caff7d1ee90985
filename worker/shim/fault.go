package shim

import (
	"log"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// trap is a rank that is to be killed at a moment of its next save.
type trap struct {
	gen   uint64
	rank  int64
	point api.SavePoint
}

// fault harms a rank as somebody from outside would: to the rest of the shim it is one
// more death or standstill. It is the loop's.
func (s *shim) fault(f *wire.Fault) {
	a := s.att
	if f == nil || !a.active() || a.over || f.Generation != a.spec.Generation {
		return
	}
	r := a.rank(f.Rank)
	if r == nil || r.ended || r.pid <= 1 {
		return
	}
	log.Printf("fault on request: %s, rank %d of generation %d", f.Kind, f.Rank, f.Generation)
	switch f.Kind {
	case api.FaultKillRank:
		s.rip.signal(r.pid, unix.SIGKILL)
	case api.FaultStopRank:
		s.rip.signal(r.pid, unix.SIGSTOP)
		time.AfterFunc(f.For.D(), func() {
			s.post(func() {
				if !r.ended {
					s.rip.signal(r.pid, unix.SIGCONT)
				}
			})
		})
	case api.FaultAtSave:
		s.trap = &trap{gen: f.Generation, rank: f.Rank, point: f.Point}
	case api.FaultKillAgent, api.FaultKillNode, api.FaultFillDisk, api.FaultCut:
	}
}

// spring kills the rank that stepped into the trap. It is the loop's.
func (s *shim) spring(point api.SavePoint, gen uint64, rank int64) {
	t := s.trap
	if t == nil || t.point != point || t.gen != gen || t.rank != rank {
		return
	}
	s.trap = nil
	if a := s.att; a.active() && a.spec.Generation == gen {
		if r := a.rank(rank); r != nil && !r.ended {
			s.rip.signal(r.pid, unix.SIGKILL)
		}
	}
}

// springAt is spring for a rank's connection, beside the loop. Without a trap it costs
// nothing but the question.
func (rc *rankConn) springAt(point api.SavePoint) {
	rc.s.ask(func() { rc.s.spring(point, rc.a.spec.Generation, rc.r.spec.Rank) })
}
