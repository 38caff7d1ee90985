package shim

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/elastic/agree"
	"github.com/troupe-runtime/troupe/elastic/plan"
	"github.com/troupe-runtime/troupe/runtime/page"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/numa"
	"github.com/troupe-runtime/troupe/worker/process"
)

// defaultGrace is how long the other ranks of a failed attempt may live on, to end
// by themselves with their own message.
const defaultGrace = 200 * time.Millisecond

// attempt is one start of the local ranks. It belongs to the loop.
type attempt struct {
	spec    wire.AttemptSpec
	cpus    []string // see AgentMessage.CPUs
	ranks   []*rank
	out     string // out/<attempt>
	began   bool   // EventStarted was emitted
	over    bool   // ranks are being ended; nothing undoes it, but helpers are still served
	killed  bool   // SIGKILL was sent
	swept   bool   // nothing of it is left
	done    bool   // the last event is out
	exits   int64  // ranks that were reaped
	told    int    // ranks whose end was emitted
	failed  bool   // a rank failed by itself
	slain   bool   // one was killed from outside: no peer knows a better cause
	reason  string // why the shim ended it
	startup error  // it never began: why
	held    []wire.RankExit
	suspect bool // rank 0 could not listen on the master port, it says
	dirty   bool
	stall   stall
	// Staged steps: since when each is under way (CLOCK_MONOTONIC, ns), and how long those
	// that were committed took, all together.
	uploading map[int64]int64
	upload    time.Duration
	uploads   int64
	// verified is closed when every share of the restore step is whole.
	verified chan struct{}
	restore  *restoring
	restored bool
	ctx      context.Context // ends with the attempt: waiting helpers are answered
	cancel   context.CancelFunc
	forked   bool   // its ranks come from a forkserver
	observe  func() // whether its script loads torch, once its ranks run; nil: not
	learn    func() // of the rank with local number 0, after its first step and when it has ended
	agree    agreement
	quitAt   *time.Timer
	quitBy   time.Duration // when it fires
}

// rank is one rank of an attempt.
type rank struct {
	spec    wire.RankSpec
	pid     int
	dir     string
	page    *rankPage  // nil until the rank has said hello
	paging  sync.Mutex // while it is made
	stopBy  int64      // CLOCK_MONOTONIC ns, 0: it was not asked to stop
	oomBase int64
	oom     bool // the watchdog found it over the limit
	ended   bool
	gone    <-chan struct{} // closed when it was reaped
	byShim  bool
	ctl     *started
	punch   [2]int64 // freed up to, of stdout and stderr
	pace    paced
	speaks  speaker
	phase   string
	calls   agree.Pace
	metrics map[string]float64
}

func (a *attempt) active() bool { return a != nil && !a.done }

// rank finds a local rank by its global number.
func (a *attempt) rank(n int64) *rank {
	for _, r := range a.ranks {
		if r.spec.Rank == n {
			return r
		}
	}
	return nil
}

func (a *attempt) steps() []wire.RankStep {
	list := make([]wire.RankStep, 0, len(a.ranks))
	now := page.Monotonic()
	for _, r := range a.ranks {
		list = append(list, r.report(now))
	}
	return list
}

// start takes an attempt that the agent wants to run. An older or equal generation
// than the newest seen is ignored (P3), and nothing starts without a valid lease;
// the status that follows tells the agent that it was not taken. What can never start
// is taken all the same, so that its generation has an end.
func (s *shim) start(o startOrder) {
	switch {
	case o.spec.Generation <= s.journal.Generation:
		log.Printf("start of generation %d ignored: %d was seen", o.spec.Generation, s.journal.Generation)
		s.send(s.status())
		return
	case s.ending:
		s.send(s.status())
		return
	case !s.owner.over() && o.failure == "" && o.dropped == "" && !s.lease.valid(s.now()):
		log.Printf("start of generation %d refused: no valid lease", o.spec.Generation)
		s.send(s.status())
		return
	}
	s.journal.Generation, s.dirty = o.spec.Generation, true
	if s.att.active() {
		// Never two generations alive: the old one ends first, all of it.
		if old := s.next; old != nil {
			s.unbegun(old, wire.EventEnded, "superseded before it could start")
		}
		s.next = &o
		s.end(endOrder{reason: fmt.Sprintf("superseded by generation %d", o.spec.Generation)})
		return
	}
	s.take(&o)
}

// take begins an attempt, now that no other runs, or tells the end of its generation.
func (s *shim) take(o *startOrder) {
	switch {
	case o.dropped != "":
		s.unbegun(o, wire.EventEnded, o.dropped)
	case s.owner.over():
		s.unbegun(o, wire.EventEnded, ownerEnded)
	case o.failure != "":
		s.unbegun(o, wire.EventStartFailed, "cannot start: "+o.failure)
	case !s.lease.valid(s.now()):
		s.unbegun(o, wire.EventEnded, "the lease ended before the attempt could start")
	default:
		s.begin(*o)
	}
}

// unbegun tells the end of a generation of which nothing ran.
func (s *shim) unbegun(o *startOrder, kind wire.EventKind, why string) {
	if !s.att.active() {
		s.state = wire.AllocEnded
	}
	s.emit(wire.AllocEvent{Kind: kind, Generation: o.spec.Generation, Message: why})
}

// begin starts the ranks; the work is done beside the loop.
func (s *shim) begin(o startOrder) {
	ctx, cancel := context.WithCancel(context.Background())
	a := &attempt{spec: o.spec, cpus: o.cpus, ctx: ctx, cancel: cancel, verified: make(chan struct{}), restore: newRestoring(o.spec.Restore)}
	a.out = filepath.Join(s.cfg.Dir, OutputDir, strconv.FormatInt(o.spec.Number, 10))
	s.att, s.state = a, wire.AllocIdle
	// What cannot be read was written by a newer head: then the pace decides.
	a.stall.kill, _ = plan.ParseStallKill(o.spec.StallKill)
	s.dropOldSaves()
	r := o.spec.Restore
	if r == nil || r.Verified {
		a.restored = true
		close(a.verified)
	}
	if r != nil && (!r.Verified || remoteStore(r.Dir)) {
		s.verifyShare(a)
	}
	if err := checkSpec(&o.spec); err != nil {
		a.startup = err
		s.end(endOrder{})
		return
	}
	s.freeBuffers(a)
	s.localRanks.Store(int64(len(o.spec.Ranks)))
	for _, r := range o.spec.Ranks {
		a.ranks = append(a.ranks, &rank{spec: r, pace: paced{step: -1}})
	}
	base, groups := baseEnv(), s.groups
	go func() {
		err := s.launch(a, groups, base, o.env)
		s.post(func() { s.launched(a, err) })
	}()
}

// checkSpec refuses what cannot be run, with the reason.
func checkSpec(a *wire.AttemptSpec) error {
	switch {
	case len(a.Command) == 0:
		return unusablef(exitNotFound, "the command is empty")
	case len(a.Ranks) == 0 || len(a.Ranks) > maxRanks:
		return fmt.Errorf("%d ranks on one node: between 1 and %d can run", len(a.Ranks), maxRanks)
	}
	seen := map[int64]bool{}
	for _, r := range a.Ranks {
		if r.Rank < 0 || r.LocalRank < 0 || r.LocalRank >= maxRanks || seen[r.LocalRank] {
			return fmt.Errorf("rank %d with local rank %d cannot be started", r.Rank, r.LocalRank)
		}
		seen[r.LocalRank] = true
	}
	return nil
}

// launch prepares everything and brings the rank-inits to the point where only the
// word to go is missing, then gives it to all. It runs beside the loop and touches
// only fields of ranks that the loop does not read before launched.
func (s *shim) launch(a *attempt, groups process.Groups, base map[string]string, env []string) error {
	if portTaken(&a.spec) {
		return portUsed(&a.spec)
	}
	if len(a.cpus) != 0 && len(a.cpus) != len(a.ranks) {
		return fmt.Errorf("%d lists of CPUs for %d ranks", len(a.cpus), len(a.ranks))
	}
	specs := make([]initSpec, len(a.ranks))
	dirs := make([]string, len(a.ranks))
	for i, r := range a.ranks {
		r.dir = filepath.Join(a.out, strconv.FormatInt(r.spec.Rank, 10))
		if err := os.MkdirAll(r.dir, 0o750); err != nil {
			return fmt.Errorf("make the output folder: %w", err)
		}
		errorFile := filepath.Join(r.dir, errorFile)
		if err := os.Remove(errorFile); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("remove an old error file: %w", err)
		}
		kill, tasks, err := groups.RankDirs(r.spec.LocalRank)
		if err != nil {
			return err
		}
		r.oomBase = groups.OOMKills(r.spec.LocalRank)
		dirs[i] = kill
		specs[i] = initSpec{
			Shim: os.Getpid(), Dir: a.spec.WorkingDir,
			Argv:   rankArgs(a.spec.Command, r.spec.LocalRank),
			Env:    rankEnv(&s.cfg, &a.spec, r.spec, base, env, filepath.Join(s.cfg.SocketDir, RankSocket), errorFile),
			Stdout: filepath.Join(r.dir, "stdout.log"), Stderr: filepath.Join(r.dir, "stderr.log"),
			Tasks: tasks,
		}
		if len(a.cpus) > 0 {
			if specs[i].CPUs, err = numa.ParseList(a.cpus[i]); err != nil || len(specs[i].CPUs) == 0 {
				return fmt.Errorf("the CPUs of rank %d: %q is no list of them", r.spec.Rank, a.cpus[i])
			}
		}
		if specs[i].Dir == "" {
			specs[i].Dir = "/"
		}
		if kill != "" {
			specs[i].Procs = filepath.Join(kill, "cgroup.procs")
		}
	}
	ctls, err := s.warm.start(a, specs, dirs)
	if err != nil {
		return err
	}
	for i, r := range a.ranks {
		r.ctl = ctls[i]
		gone := make(chan struct{})
		r.gone = gone
		r.ctl.claim(s.rip, func(pid int, ws unix.WaitStatus) {
			close(gone)
			s.post(func() {
				r.pid = pid
				s.exited(a, r, ws)
			})
		})
	}
	if a.ctx.Err() != nil {
		for _, r := range a.ranks {
			r.ctl.close()
		}
		return errors.New("ended before the start")
	}
	s.releaseAll(a)
	for _, r := range a.ranks {
		if e := r.ctl.confirm(); e != nil && err == nil {
			err = fmt.Errorf("rank %d: %w", r.spec.Rank, e)
		}
	}
	if err == nil && a.observe != nil {
		go a.observe()
	}
	return err
}

// headStart is how much earlier than the others rank 0 starts on its node. It makes the
// server at the master port; a TCPStore client of torch that comes before it sleeps half
// a second before it tries again, and with all ranks started at once chance decides who
// comes first.
const headStart = 100 * time.Millisecond

const lookAtPort = 2 * time.Millisecond

// leadIn waits until the server at the master port listens, and for headStart at most.
// After a warm start it listens at once; after an exec never so soon.
func (s *shim) leadIn(a *attempt, first *rank) {
	limit := time.NewTimer(headStart)
	defer limit.Stop()
	look := time.NewTicker(lookAtPort)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if taken, err := process.PortTaken(a.spec.MasterPort); err != nil || taken {
				return
			}
		case <-limit.C:
			return
		case <-first.gone: // a short program, without a server
			return
		case <-a.ctx.Done():
			return
		}
	}
}

// releaseAll gives the word to go, to rank 0 first.
func (s *shim) releaseAll(a *attempt) {
	first := func(r *rank) bool { return r.spec.Rank == 0 && a.spec.MasterPort > 0 }
	if a.forked && a.spec.MasterPort > 0 && !slices.ContainsFunc(a.ranks, first) {
		// Rank 0 is on another node and cannot be seen from here; forks come at once.
		select {
		case <-time.After(headStart):
		case <-a.ctx.Done():
		}
	}
	for _, r := range a.ranks {
		if first(r) {
			r.ctl.release()
			if len(a.ranks) > 1 {
				s.leadIn(a, r)
			}
		}
	}
	for _, r := range a.ranks {
		if !first(r) {
			r.ctl.release()
		}
	}
}

// launched is the end of launch, in the loop.
func (s *shim) launched(a *attempt, err error) {
	if err != nil {
		if a.startup == nil {
			a.startup = err
		}
		s.end(endOrder{})
		return
	}
	a.began = true
	for _, r := range a.ranks {
		r.pid = r.ctl.pid
	}
	if s.idle != nil {
		s.idle.Reset(idleAfter) // from here on it waits
	}
	s.showBoard(a)
	s.keepLooking(a)
	pids := a.steps()
	for i := range pids {
		pids[i] = wire.RankStep{Rank: pids[i].Rank, Step: -1, PID: pids[i].PID}
	}
	s.emit(wire.AllocEvent{Kind: wire.EventStarted, Generation: a.spec.Generation, PIDs: pids})
	if !a.over {
		s.state = wire.AllocRunning
	}
	if !a.suspect {
		s.tellHeld(a)
	}
	if a.over {
		s.kill(a) // the end was asked for while the ranks were being started
		return
	}
	s.check(a)
}

// exited takes the end of a rank's main process. It runs in the order of the ends.
func (s *shim) exited(a *attempt, r *rank, ws unix.WaitStatus) {
	r.ended = true
	x := wire.RankExit{Rank: r.spec.Rank, Order: a.exits, ByShim: r.byShim, StepsDone: r.page.step(), PID: int64(r.pid)}
	a.exits++
	if ws.Signaled() {
		x.Code, x.Signal = -1, int64(ws.Signal())
	} else {
		x.Code = int64(ws.ExitStatus())
	}
	bad := x.Code != 0
	if bad && !r.byShim && x.StepsDone <= r.pace.diskStep {
		x.Disk = r.pace.disk
	}
	if bad && !r.byShim {
		a.failed = true
		a.slain = a.slain || x.Signal == int64(unix.SIGKILL)
	}
	groups, watched := s.groups, r.oom
	learn := func() {}
	if a.learn != nil && r == a.ranks[0] {
		learn = a.learn
	}
	// Rank 0 makes the server; before its first step it has hardly done anything else.
	mayBePort := bad && !r.byShim && r.spec.Rank == 0 && x.StepsDone < 0 && a.spec.MasterPort > 0
	go func() {
		learn()
		x.OOM = bad && (watched || groups.OOMKills(r.spec.LocalRank) > r.oomBase)
		if bad {
			errorFile := filepath.Join(r.dir, errorFile)
			f := findFailure(errorFile, filepath.Join(r.dir, "stderr.log"))
			if st, err := os.Lstat(errorFile); err == nil && st.Mode().IsRegular() {
				x.ErrorFile = errorFile
			}
			x.Message, x.Traceback, x.ErrorTime = f.message, f.traceback, f.errorTime
			mayBePort = mayBePort && f.addressInUse()
			if x.Message == "" || x.OOM || ws.Signaled() {
				x.Message = endText(ws, x.OOM)
			}
		}
		s.post(func() {
			a.told++
			a.suspect = a.suspect || mayBePort
			switch {
			case !a.began && a.startup == nil:
				a.held = append(a.held, x) // started is told first
				return
			case a.suspect:
				a.held = append(a.held, x) // what it means shows when all are gone
			case a.began:
				s.tellExit(a, x)
			}
			s.check(a)
		})
	}()
}

func (s *shim) tellHeld(a *attempt) {
	for _, x := range a.held {
		s.tellExit(a, x)
	}
	a.held = nil
}

func (s *shim) tellExit(a *attempt, x wire.RankExit) {
	s.emit(wire.AllocEvent{Kind: wire.EventRankExited, Generation: a.spec.Generation, Exit: &x})
}

// check decides what the ends so far mean.
func (s *shim) check(a *attempt) {
	switch {
	case a.done || s.att != a:
	case a.killed:
		s.conclude(a)
	case int(a.exits) == len(a.ranks) && (a.began || a.startup != nil):
		s.kill(a) // nothing to wait for: what they left behind goes
	case a.failed && !a.over:
		s.end(endOrder{grace: peersGrace(a.spec.FailureGrace, a.slain), quiet: true})
	}
}

// peersGrace is how long the others of a failed rank may live on, to say what they see.
// Of a kill from outside they can only say that somebody is gone, so they get nothing,
// unless a longer grace than the default was asked for.
func peersGrace(asked unit.Duration, slain bool) time.Duration {
	d := asked.D()
	if d <= 0 {
		d = defaultGrace
	}
	if slain && d <= defaultGrace {
		return 0
	}
	return d
}
