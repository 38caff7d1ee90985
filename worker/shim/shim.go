package shim

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/page"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
)

const (
	maxRanks = 1024 // on one node
	tick     = 250 * time.Millisecond
	redirty  = 5 * time.Second // between tries to end what did not die
	watchRSS = 500 * time.Millisecond
	// staleAfter is how long the journal may name what was acknowledged: to tell an event again
	// does no harm, since the log knows it by its number.
	staleAfter = time.Second
	lastWords  = 5 * time.Second // how long an ended shim waits for its last event's ack
)

// shim owns one allocation. All state below loop belongs to the goroutine of run:
// others hand it closures through post. Nothing that can block runs there.
type shim struct {
	cfg    Config
	groups process.Groups
	rip    *reaper
	agentL *net.UnixListener
	calls  chan func()
	quit   chan struct{}        // closed when the shim is about to exit
	now    func() time.Duration // CLOCK_BOOTTIME

	// loop
	journal  Journal
	file     journalFile
	dirty    bool // the journal must be written before anything is sent
	stale    bool // it holds what was acknowledged since
	written  time.Duration
	outbox   []*ShimMessage
	agents   map[*agentConn]bool
	lease    lease
	att      *attempt // newest, nil before the first
	next     *startOrder
	state    wire.AllocState
	saver    *saver
	warm     *warmth
	prepared map[saveKey]*wire.Prepared
	fates    map[stepKey]*fate
	decided  []stepKey // keys of fates with a verdict, oldest first
	ending   bool      // the agent asked for the end, or nobody is left to serve
	leaving  bool      // last words are said
	unheard  bool      // and waited for in vain
	owner    ownerWatch
	idle     *time.Timer // until the shim makes itself small; nil in tests
	lastPrep time.Duration
	voice    *Voice                    // nil: it has none
	calledAt map[saveKey]time.Duration // when a call said last that a step is prepared
	errands  errands
	agentAt  time.Duration // when an agent said something last
	// stopHeard is the newest order to stop that the leader itself has given.
	stopHeard string
	trap      *trap // set by a fault, nil: none
	// By local rank: its shared memory, and what the saver is writing out of it.
	buffers   map[int64]*buffer
	staged    map[int64]*staging
	bufferSeq int

	// read by the accept loop of the rank socket
	rankConns, localRanks atomic.Int64

	lastPunch, lastRSS time.Duration
}

type startOrder struct {
	spec    wire.AttemptSpec
	env     []string
	cpus    []string // as in AgentMessage
	failure string   // the agent's: it cannot be started
	dropped string   // while it waited for an older attempt to end, or for its package: why
}

// boottime reads CLOCK_BOOTTIME, which goes on while the machine sleeps: a lease is
// over when its time is over everywhere else.
func boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// BootTime is the clock of AgentMessage.SentAt, in nanoseconds.
func BootTime() int64 { return int64(boottime()) }

// run serves one allocation until it is told to end and everything is proven gone.
func (s *shim) run() error {
	defer s.agentL.Close()
	rankL, err := listen(filepath.Join(s.cfg.SocketDir, RankSocket))
	if err != nil {
		return err
	}
	defer rankL.Close()
	s.dirty = true
	s.flush()
	go s.rip.run()
	go s.acceptAgents(s.agentL)
	go s.acceptRanks(rankL)
	s.watchOwner()
	s.giveVoice()

	timer := time.NewTimer(0)
	for !s.left() {
		select {
		case f := <-s.calls:
			f()
			// Whatever else has arrived is taken in the same turn: one journal for all.
			for more := true; more; {
				select {
				case f := <-s.calls:
					f()
				default:
					more = false
				}
			}
		case <-timer.C:
			timer.Reset(s.enforce())
		}
		s.flush()
	}
	close(s.quit)
	for a := range s.agents {
		a.finish()
	}
	return nil
}

// post hands f to the loop. It gives up when the shim is leaving.
func (s *shim) post(f func()) {
	select {
	case s.calls <- f:
	case <-s.quit:
	}
}

// enforce does what depends on time and returns when to look again.
func (s *shim) enforce() time.Duration {
	now := s.now()
	s.speak(now)
	wait := s.enforceLease(now)
	if s.stale && now-s.written >= staleAfter {
		s.dirty = true
	}
	if s.att.active() && s.att.began {
		s.watchMemory(now)
		s.watchPace()
		if now-s.lastPunch >= time.Second {
			s.lastPunch = now
			s.att.freeHeads()
		}
		s.lookAtRanks(s.att) // to learn their pace
	}
	if len(s.prepared) > 0 && now-s.lastPrep >= tick {
		s.lastPrep = now
		s.repeatPrepared()
	}
	if !s.att.active() && len(s.prepared) == 0 && !s.leaving {
		return min(wait, time.Second)
	}
	return min(wait, tick)
}

// emit records an event, to be told to the agent until it is acknowledged.
func (s *shim) emit(ev wire.AllocEvent) {
	s.journal.Seq++
	ev.Alloc, ev.Seq, ev.At = s.cfg.Alloc, s.journal.Seq, time.Now().UnixNano()
	ev.Message = clip(ev.Message, maxTraceback)
	s.journal.Unacked = append(s.journal.Unacked, ev)
	s.dirty = true
	s.voice.News()
	s.outbox = append(s.outbox, &ShimMessage{Type: "event", V: AgentProtocol, PID: os.Getpid(), Event: &ev})
}

func (s *shim) send(m *ShimMessage) { s.outbox = append(s.outbox, m) }

// flush writes the journal, then sends: an agent never hears of an event that the
// journal does not hold.
func (s *shim) flush() {
	if s.dirty {
		s.dirty, s.stale, s.written = false, false, s.now()
		s.journal.Groups = s.groups
		if err := s.file.write(&s.journal); err != nil {
			log.Printf("journal: %v", err) // the agent still hears it from here
		}
	}
	for _, m := range s.outbox {
		for a := range s.agents {
			a.queue(m)
		}
	}
	s.outbox = s.outbox[:0]
}

func (s *shim) status() *ShimMessage {
	st := &wire.AllocStatus{ID: s.cfg.Alloc, Job: s.cfg.Job, Generation: s.journal.Generation, State: s.state}
	// Between a start order and the start of its ranks the old attempt is still the one
	// here: its steps must not pass for those of the new generation (P3).
	if s.att.active() && s.att.began && s.att.spec.Generation == st.Generation {
		st.Steps, st.Answers = s.att.steps(), s.att.agree.shim.Answers()
		st.Saving, st.Saves = s.att.saveTimes()
		st.Upload, st.Uploads = int64(s.att.upload), s.att.uploads
		st.Excused = s.att.excused(page.Monotonic())
	}
	return &ShimMessage{Type: "status", V: AgentProtocol, PID: os.Getpid(), Status: st, Until: int64(s.lease.until())}
}

// ack forgets events that are in the log.
func (s *shim) ack(seq uint64) {
	n := 0
	for n < len(s.journal.Unacked) && s.journal.Unacked[n].Seq <= seq {
		n++
	}
	if n > 0 {
		s.journal.Unacked = append([]wire.AllocEvent(nil), s.journal.Unacked[n:]...)
		s.stale = true
	}
}

// target is everything of this allocation's ranks, never the shim and its saver; sweep
// spares the forkserver too.
func (s *shim) target() process.Target {
	t := process.Target{Cookie: s.cfg.Cookie, Groups: s.groups, Root: os.Getpid()}
	// Devices go to somebody else at once, so all three nets must say that they are free.
	t.Near = len(s.cfg.Devices) == 0
	if pid := s.saver.pid(); pid > 0 {
		t.Keep = []int{pid}
	}
	return t
}

// finish ends the allocation: ranks first, then the groups, then the last words.
func (s *shim) finish(reason string) {
	if s.ending {
		return
	}
	s.ending = true
	s.dropNext(reason)
	if s.att.active() {
		s.end(endOrder{reason: reason})
		return
	}
	s.sayGone()
}

// sayGone proves that nothing is left and says so. It is called when no attempt
// runs and again by itself while something hangs.
func (s *shim) sayGone() {
	if s.leaving || !s.ending {
		return
	}
	s.saver.stop()
	t := s.target()
	t.Keep = nil // saver and forkserver go too
	go func() {
		s.warm.close()
		res := process.Sweep(context.Background(), t)
		var err error
		if res.Clean() {
			err = s.groups.Remove(time.Second, true)
		}
		s.post(func() { s.proven(res, err) })
	}()
}

func (s *shim) proven(res process.Result, err error) {
	if !res.Clean() {
		if s.state != wire.AllocDirty {
			s.state = wire.AllocDirty
			s.emit(wire.AllocEvent{Kind: wire.EventDirty, Generation: s.journal.Generation, Message: res.Error().Error()})
		}
		time.AfterFunc(redirty, func() { s.post(s.sayGone) })
		return
	}
	if err != nil {
		log.Printf("remove cgroups: %v", err) // empty all the same; the agent removes them later
	}
	s.state, s.leaving = wire.AllocGone, true
	s.journal.Gone = true
	s.emit(wire.AllocEvent{Kind: wire.EventGone, Generation: s.journal.Generation})
	time.AfterFunc(lastWords, func() { s.post(func() { s.unheard = true }) })
}

// left reports whether the shim may exit: last words said, and heard, or nobody
// there to hear them. The journal keeps them.
func (s *shim) left() bool {
	return s.leaving && (len(s.journal.Unacked) == 0 || s.unheard || len(s.agents) == 0 && !s.voice.Answered(reached))
}

// agentListener listens for agents, on a socket that was handed over or on one of its own.
func agentListener(cfg *Config, socket string) (*net.UnixListener, error) {
	if socket == "" {
		return listen(filepath.Join(cfg.SocketDir, AgentSocket))
	}
	fd, err := strconv.Atoi(socket)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("descriptor %q is no socket to hear agents on", socket)
	}
	f := os.NewFile(uintptr(fd), AgentSocket)
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("hear agents: %w", err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, fmt.Errorf("hear agents: descriptor %d is a socket of another kind", fd)
	}
	return u, nil
}

// listen makes a Unix socket that only this user reaches, in place of one that a
// dead shim left.
func listen(path string) (*net.UnixListener, error) {
	if len(path) > 107 {
		return nil, fmt.Errorf("socket path %s has %d bytes, a Unix address holds 107: choose a shorter state folder", path, len(path))
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("replace socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("protect socket: %w", err)
	}
	return l, nil
}
