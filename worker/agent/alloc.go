package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
	"github.com/troupe-runtime/troupe/worker/warm"
)

const (
	pollSteps   = 500 * time.Millisecond // how often a running attempt's steps are read
	minRetry    = 10 * time.Millisecond  // of a lost connection to a living shim
	maxRetry    = time.Second
	dirtyRetry  = 5 * time.Second // between tries to end what did not die
	maxVerdicts = 256
	maxNumbers  = 64
)

// alloc is one allocation on this node. Its goroutine is run.
type alloc struct {
	a    *Agent
	id   string
	cfg  shim.Config
	wake chan struct{}
	// settled is closed when a former life's shim was found or swept.
	settled chan struct{}

	// under Agent.mu
	known   bool // the head's wish was heard; until then want says nothing
	want    *wire.Alloc
	class   wire.Class
	classAt wire.Position // where the log stood when class was said
	length  time.Duration // of its lease; 0: that of the acknowledgement
	status  wire.AllocStatus
	heardAt time.Duration // when its steps were heard, in boot time
	until   time.Duration // when the shim ends its ranks by itself; 0: it does not say
	// askSteps: somebody waits for its ranks' steps.
	askSteps bool
	pending  []wire.AllocEvent // not acknowledged by the head, in order
	seq      uint64            // of the newest event
	acked    uint64            // by the head
	over     uint64            // newest generation of which nothing is left
	numbers  []attemptNumber   // of attempts that were started here, newest last
	verdict  []wire.Verdict
	// questions for the shim, and the number of the newest
	questions []*question
	asks      uint64
	parted    bool                // gone, and the shim has left
	orders    []shim.AgentMessage // faults that its shim is to be told of
	shimPID   int
	devices   []string         // of cfg, once it is known
	mark      string           // likewise its cookie
	last      *wire.AllocEvent // kept back until the devices are proved free
	free      bool             // they were
	gone      bool             // nothing is left, and the event that says so is in pending or acknowledged

	work work // its copy of its job's package

	// of the goroutine
	ctx      context.Context //nolint:containedctx // of run
	sh       Shim
	greeted  bool // the shim has said what it runs
	told     told
	failed   uint64        // newest generation that could not be given to a shim
	port     int64         // master port in use
	started  bool          // a shim was started at some time
	restored bool          // found in the state folder of a former life
	retry    time.Duration // pause after the newest messages that a shim did not take
	asked    int           // polls since the shim said anything
	why      string        // it was ended from here: why
	warm     *warm.Spec    // what its newest attempt could be forked from; nil if it cannot
}

type attemptNumber struct {
	number     int64
	generation uint64
}

// told is what this connection's shim has been told.
type told struct {
	lease    time.Duration // sent time of the newest renewal
	length   time.Duration // of that lease
	class    wire.Class    // of that renewal
	start    uint64        // generation
	startAt  time.Duration // lease under which it was told
	stop     string
	verified uint64
	acked    uint64
	proposal wire.Proposal
	disowned bool
	end      bool
}

func (a *Agent) newAlloc(id string) *alloc {
	return &alloc{
		a: a, id: id, wake: make(chan struct{}, 1), settled: make(chan struct{}),
		status: wire.AllocStatus{ID: id, State: wire.AllocIdle},
	}
}

// desire notes the head's wish; nil: the allocation is to end. Agent.mu is held.
func (x *alloc) desire(w *wire.Alloc, at wire.Position) {
	x.known, x.want = true, w
	if w != nil {
		x.status.Job = w.Job
		if !at.Less(x.classAt) {
			x.class, x.classAt = w.Class, at
		}
	}
	wake(x.wake)
}

// terms takes what an acknowledgement says of the allocation. Agent.mu is held.
func (x *alloc) terms(t *wire.AllocTerms, at wire.Position) {
	if at.Less(x.classAt) || t.Class != wire.ClassFast && t.Class != wire.ClassStrict {
		return
	}
	x.class, x.classAt, x.length = t.Class, at, t.Lease.D()
}

// lease is what the newest acknowledgement grants this allocation. Agent.mu is held.
func (x *alloc) lease() lease {
	l := x.a.lease
	if x.length > 0 {
		l.length = x.length
	}
	return l
}

func (x *alloc) dir() string { return x.a.allocDir(x.id) }

// run makes one allocation what is desired, until it is gone and that is known.
func (x *alloc) run(ctx context.Context) {
	x.ctx = ctx
	defer x.hangUp()
	for ctx.Err() == nil {
		switch {
		case x.isGone():
			if x.warm != nil {
				x.a.spares.want(x.warm)
				x.warm = nil
			}
			x.hangUpWhenHeard(ctx)
			if ctx.Err() == nil && x.forget() {
				return
			}
			x.wait(ctx, nil)
		case x.isReleasing():
			x.release(ctx)
		case x.sh != nil:
			x.serve(ctx)
		default:
			x.connect(ctx)
		}
	}
}

func (x *alloc) isGone() bool {
	x.a.mu.Lock()
	defer x.a.mu.Unlock()
	return x.gone
}

// wait returns when somebody has news, at the latest when timer fires.
func (x *alloc) wait(ctx context.Context, timer <-chan time.Time) {
	select {
	case <-ctx.Done():
	case <-x.wake:
	case <-timer:
	}
}

func (x *alloc) pause(ctx context.Context, d time.Duration) {
	t := x.a.Clock.NewTimer(d)
	defer t.Stop()
	x.wait(ctx, t.C())
}

func (x *alloc) hangUp() {
	if x.sh != nil {
		x.sh.Close()
		for range x.sh.Messages() { //nolint:revive // drained, so that its reader ends
		}
		x.sh = nil
	}
	x.greeted, x.told = false, told{}
}

// hangUpWhenHeard passes the acknowledgement of the last event on, so that the shim
// can leave, and waits until it has.
func (x *alloc) hangUpWhenHeard(ctx context.Context) {
	for x.sh != nil && ctx.Err() == nil {
		if !x.tell() {
			break
		}
		select {
		case <-ctx.Done():
		case <-x.wake:
		case _, ok := <-x.sh.Messages():
			if !ok {
				x.hangUp()
			}
		}
	}
	x.hangUp()
	if ctx.Err() == nil {
		x.a.mu.Lock()
		x.parted = true
		x.a.mu.Unlock()
	}
}

// connect makes a connection where there is none: to a shim that is found, to a new
// one, or it establishes that nothing is left.
func (x *alloc) connect(ctx context.Context) {
	if x.started || x.restored {
		x.reconnect(ctx)
		return
	}
	x.a.mu.Lock()
	want, known := x.want, x.known
	x.a.mu.Unlock()
	if !known {
		x.wait(ctx, nil)
		return
	}
	if ended, ok := readEnded(x.dir()); ok {
		// The head names an allocation that has ended here: say so again.
		x.a.mu.Lock()
		x.seq = ended.Seq
		x.a.mu.Unlock()
		x.emitGone(wire.EventGone, "it had ended before")
		return
	}
	if want == nil {
		x.emitGone(wire.EventGone, "it was not wanted any more before it was started")
		return
	}
	gen := uint64(0)
	if want.Attempt != nil {
		gen = want.Attempt.Generation
	}
	if gen != 0 && gen <= x.failed {
		x.wait(ctx, nil) // it was told that this one cannot start
		return
	}
	if err := x.launch(ctx, want); err != nil {
		if ctx.Err() != nil {
			x.started = true // find out in the next life
			return
		}
		x.a.Logger.Error("a shim could not be started", "alloc", x.id, "job", want.Job, "err", err)
		if swept := x.a.Launcher.Sweep(ctx, x.cfg, nil); swept != nil {
			x.a.Logger.Error("what a failed start left did not die", "alloc", x.id, "err", swept)
		}
		if gen == 0 {
			x.pause(ctx, maxRetry)
			return
		}
		x.failed = gen
		x.emit(wire.AllocEvent{Kind: wire.EventStartFailed, Generation: gen, Message: clip(fmt.Sprintf("cannot start a shim: %v", err))})
	}
}

// launch starts a shim.
func (x *alloc) launch(ctx context.Context, want *wire.Alloc) error {
	var mark [16]byte
	if err := x.a.Random(mark[:]); err != nil {
		return fmt.Errorf("draw a cookie: %w", err)
	}
	dir := x.dir()
	x.a.mu.Lock()
	orphan := x.a.lease.orphan
	x.a.mu.Unlock()
	x.cfg = shim.Config{
		Version: shim.ProtocolVersion, Alloc: x.id, Job: want.Job, JobName: want.JobName, Run: want.Run, Node: x.a.NodeID,
		Dir: dir, SocketDir: filepath.Join(x.a.SocketRoot, shortName(x.id)),
		Cookie: hex.EncodeToString(mark[:]), Binary: x.a.Binary, Limits: want.Limits, Devices: want.Devices,
		Orphan: unit.Duration(orphan), Owner: want.Owner, Bus: x.a.accessPath(),
	}
	x.claim()
	if x.cfg.Warm = x.a.warmConfig(want.Tenant); x.cfg.Warm != nil {
		x.cfg.Warm.Run, x.cfg.Warm.Work = want.Run, x.workDir()
	}
	spare := x.takeSpare(ctx, want)
	if spare != nil {
		x.cfg.Cookie = spare.Cookie() // which its forkserver carries
	}
	var err error
	if spare != nil {
		if x.sh, err = x.a.spares.adopt(ctx, spare, x.cfg); err == nil {
			x.started = true
			return nil
		}
		x.a.Logger.Warn("a spare did not become a shim; another is started", "alloc", x.id, "err", err)
	}
	x.sh, err = x.a.Launcher.Start(ctx, x.cfg)
	if err == nil {
		x.started = true
	}
	return err
}

// shortName is the allocation's folder in SocketRoot.
func shortName(id string) string {
	h := sha256.Sum256([]byte(id))
	return hex.EncodeToString(h[:5])
}

// reconnect finds the shim again, or sweeps what it left and tells.
func (x *alloc) reconnect(ctx context.Context) {
	retry := minRetry
	for ctx.Err() == nil {
		found, err := x.a.Launcher.Find(x.cfg)
		if err != nil {
			// A journal that cannot be read: what is alive is found by its mark.
			x.a.Logger.Error("the journal of a shim cannot be read; what it ran is ended", "alloc", x.id, "err", err)
		}
		if found.Alive {
			sh, err := x.a.Launcher.Attach(ctx, x.cfg)
			if err == nil {
				x.sh = sh
				return
			}
			x.pause(ctx, retry)
			retry = min(2*retry, maxRetry)
			continue
		}
		if x.lost(ctx, found.Journal) || x.isReleasing() {
			return
		}
	}
}

// lost deals with a shim that is dead: its ranks die with it, what is left is swept
// (P6), then its last words and its end are told. It reports false when something
// did not die and it must be tried again.
func (x *alloc) lost(ctx context.Context, j *shim.Journal) bool {
	x.adopt(j)
	if j != nil && j.PID != 0 {
		x.cfg.Groups = &j.Groups // a journal of the agent's own goes on with them
	}
	gone := j != nil && j.Gone
	err := x.a.Launcher.Sweep(ctx, x.cfg, j)
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		x.a.mu.Lock()
		first := x.status.State != wire.AllocDirty
		x.a.mu.Unlock()
		if first {
			// P2: its devices are held until it has died.
			x.emit(wire.AllocEvent{Kind: wire.EventDirty, Message: clip(err.Error())})
		}
		x.settle()
		x.pause(ctx, dirtyRetry)
		return false
	}
	switch {
	case x.isGone(), x.isReleasing(): // the journal's last event said so
	case gone:
		x.emitGone(wire.EventGone, "")
	case j == nil:
		x.emitGone(wire.EventShimLost, "the shim ended before it ran anything")
	default:
		x.emitGone(wire.EventShimLost, fmt.Sprintf("the shim (process %d) %s; its ranks ended with it and the rest was swept", j.PID, orElse(x.why, "died")))
	}
	if !x.isReleasing() {
		x.settle()
	}
	return true
}

// adopt takes over what a dead shim had not told.
func (x *alloc) adopt(j *shim.Journal) {
	if j == nil {
		return
	}
	x.a.mu.Lock()
	defer x.a.mu.Unlock()
	x.status.Generation = max(x.status.Generation, j.Generation)
	for _, ev := range j.Unacked {
		if ev.Alloc == x.id {
			x.takeLocked(ev)
		}
	}
	x.seq = max(x.seq, j.Seq)
}

func (x *alloc) settle() {
	select {
	case <-x.settled:
	default:
		close(x.settled)
	}
}

// emit tells an event of the agent's own. There is no shim then, so the agent goes
// on with the numbers, and writes a journal that the next shim or agent goes on with.
func (x *alloc) emit(ev wire.AllocEvent) {
	x.a.mu.Lock()
	ev.Alloc, ev.Seq, ev.At = x.id, x.seq+1, x.a.Clock.Now().UnixNano()
	if ev.Generation == 0 {
		ev.Generation = x.status.Generation
	}
	x.takeLocked(ev)
	j := shim.Journal{
		Version: shim.ProtocolVersion, Alloc: x.id, Generation: x.status.Generation, Seq: x.seq,
		Unacked: slices.Clip(x.pending), Gone: x.gone || x.last != nil && x.last.Kind == wire.EventGone,
	}
	if x.cfg.Groups != nil {
		j.Groups = *x.cfg.Groups
	}
	x.a.mu.Unlock()
	b, err := json.Marshal(j)
	if err == nil {
		if err = os.MkdirAll(x.dir(), 0o700); err == nil {
			err = writeWhole(filepath.Join(x.dir(), shim.JournalFile), b)
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		x.a.Logger.Warn("an event is only in memory until it is acknowledged", "alloc", x.id, "err", err)
	}
}

func (x *alloc) emitGone(kind wire.EventKind, message string) {
	x.emit(wire.AllocEvent{Kind: kind, Message: message})
}

// clip bounds a message; what it says first matters most.
func clip(s string) string {
	const most = 2048
	if len(s) > most {
		s = s[:most] + "…"
	}
	return s
}
