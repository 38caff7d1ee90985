package shim

import (
	"errors"
	"fmt"
	"log"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
)

// lease is how long this allocation may run without hearing from a leader. All
// times are CLOCK_BOOTTIME.
type lease struct {
	class  wire.Class
	sent   time.Duration // of the newest renewal
	end    time.Duration // of the lease: strict allocations end here
	orphan time.Duration // fast allocations end here
	span   time.Duration // from a renewal to orphan
}

// renew takes an acknowledged heartbeat's terms. A lease runs from the moment the
// heartbeat was sent; the newest one sent counts, so an old message that arrives
// late changes nothing, and shorter terms hold as soon as they are heard.
func (l *lease) renew(m *AgentMessage, now time.Duration) {
	sent := min(time.Duration(m.SentAt), now)
	if sent < l.sent {
		return
	}
	l.sent = sent
	if m.Class == wire.ClassFast || m.Class == wire.ClassStrict {
		l.class = m.Class
	}
	if d := m.Lease.D(); d > 0 && d < maxSpan {
		l.end = sent + d
	}
	if d := m.Orphan.D(); d > 0 && d < maxSpan {
		l.span = d
	}
	l.orphan = sent + l.span
}

const maxSpan = 365 * 24 * time.Hour

// valid reports whether something may be started.
func (l *lease) valid(now time.Duration) bool { return now < l.end }

// over returns why ranks must end now, "" while they may run.
func (l *lease) over(now time.Duration) string {
	switch {
	case l.class == wire.ClassStrict && now >= l.end:
		return "the lease ended without a renewal: the node may be cut off and the job may start elsewhere"
	case l.class != wire.ClassStrict && now >= l.orphan:
		return "no leader was heard of for the orphan time"
	}
	return ""
}

// until is when ranks end if nothing is renewed.
func (l *lease) until() time.Duration {
	if l.class == wire.ClassStrict {
		return l.end
	}
	return l.orphan
}

// deadline is when to look again.
func (l *lease) deadline(now time.Duration) time.Duration {
	at := l.until()
	if at <= now {
		return tick
	}
	return at - now
}

// enforceLease ends ranks whose time is over. The attempt is then over for good: a
// late renewal starts nothing again. A shim that has no agent left to serve either
// leaves at the orphan time.
func (s *shim) enforceLease(now time.Duration) time.Duration {
	if why := s.lease.over(now); why != "" && s.att.active() && !s.att.killed {
		s.dropNext(why)
		s.end(endOrder{reason: why})
	}
	if now >= s.lease.orphan && len(s.agents) == 0 && !s.ending {
		s.finish("no agent and no leader was heard of for the orphan time")
	}
	return max(time.Millisecond, s.lease.deadline(now))
}

// ownerGrace is how long ranks outlive the process that owns their job.
const ownerGrace = 2 * time.Second

type ownerWatch struct {
	gone     bool
	disowned bool // the job goes on without its owner
}

// over reports whether nothing of the job may run any more.
func (w ownerWatch) over() bool { return w.gone && !w.disowned }

const ownerEnded = "the process that owns the job ended"

// watchOwner waits for the end of the process that owns the job, if it is one of
// this boot.
func (s *shim) watchOwner() {
	o := s.cfg.Owner
	if o == nil {
		return
	}
	if boot, err := process.BootID(); err != nil || boot != o.BootID {
		return // another machine's: the leader's word counts, not ours
	}
	id := process.Identity{PID: int(o.PID), StartTime: o.StartTime, BootID: o.BootID}
	go func() {
		for {
			if gone, err := waitGone(id); gone {
				break
			} else if err != nil {
				log.Printf("watch the owner of the job: %v", err)
			}
			time.Sleep(time.Second) // no descriptors, no memory: later
		}
		s.post(s.ownerGone)
	}()
}

// waitGone returns true when the process has ended, and false when that cannot be known
// now.
func waitGone(id process.Identity) (bool, error) {
	fd, err := id.Open()
	if err != nil {
		return errors.Is(err, process.ErrGone), err
	}
	defer unix.Close(fd)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 60_000)
		if n > 0 {
			return true, nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, err
		}
	}
}

func (s *shim) ownerGone() {
	if s.owner.gone || s.owner.disowned {
		return
	}
	s.owner.gone = true
	s.emit(wire.AllocEvent{
		Kind: wire.EventOwnerGone, Generation: s.journal.Generation,
		Message: fmt.Sprintf("process %d, which owns the job, ended; its ranks end %s later", s.cfg.Owner.PID, ownerGrace),
	})
	time.AfterFunc(ownerGrace, func() {
		s.post(func() {
			if s.owner.disowned {
				return // the word came while it was dying
			}
			s.dropNext(ownerEnded)
			if s.att.active() {
				s.end(endOrder{reason: ownerEnded})
			}
		})
	})
}
