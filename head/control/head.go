// Package control holds the loops of the leading head: it takes views of the state,
// asks the pure deciders (head/schedule, elastic/supervise, elastic/checkpoint) and
// proposes what they decide; it keeps sessions and leases of nodes, pushes desired
// state, and answers the API. It is the only proposer. What is decided, and how the
// log or the bus work, lives elsewhere; every truth is in head/state.
package control

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/gang"
	"github.com/troupe-runtime/troupe/head/packages"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/head/survey"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Log is what control needs of the replicated log; head/consensus implements it.
type Log interface {
	// Propose puts entries into the log in their order, close to one another, and returns
	// what became of each once it is durable and applied, or is not going to be.
	Propose(ctx context.Context, entries ...[]byte) []Outcome
	// Verify confirms that this head still leads, by asking now.
	Verify(ctx context.Context) error
	IsLeader() bool
}

// Errors of a Log that callers act on.
var (
	// ErrOutcomeUnknown: the entry may be applied, now or later, or never.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrTooLarge: the entry was never proposed.
	ErrTooLarge = errors.New("too large for a log entry")
)

// Outcome is the state machine's result of one entry, or why there is none.
type Outcome struct {
	Value any
	Err   error
}

// Options make a Head.
type Options struct {
	Name    string // of this head, for people
	Store   *state.Store
	Log     Log
	Bus     bus.Conn // the head's own connection
	Clock   clock.Clock
	Logger  *slog.Logger
	Version api.Version
	Timing  Timing
	// Random fills b with random bytes; crypto/rand.Read in production.
	Random func(b []byte) error
	// BusURLs are where SDKs reach the bus; BusSecret signs their credentials.
	BusURLs   []string
	BusSecret []byte
	// Packages keeps the folders that users send along; nil: this head takes none.
	Packages *packages.Store
	// SignNode answers a certificate request of a node: its id by the key, and the chain.
	// Nil where nodes have no certificates.
	SignNode func(csr []byte) (node string, chain [][]byte, err error)
}

// Timing holds every interval and deadline that the loops use.
type Timing struct {
	Suspect     time.Duration // silence after which a node takes nothing new; default 2.5 s
	Lost        time.Duration // silence of agent and shims after which a node is lost; default 3.5 s
	Closed      time.Duration // the same after its connections were closed; default 1.5 s
	Grace       time.Duration // a new leader declares nobody lost before; default 4 s
	Arrival     time.Duration // a new leader waits so long for nodes while others come back; default 60 s
	Start       time.Duration // an allocation that has not started by then has failed to; default 5 min
	LeaseStrict time.Duration // training; default 60 s
	// LeaseService is that of services; default 30 s.
	LeaseService time.Duration
	Orphan       time.Duration // default 10 min; embedded 5 s
	Prepare      time.Duration // a step not prepared by all ranks is dropped; default 10 min
	Replace      time.Duration // the place of a gang that lost a part is kept for it; default 10 min
	Protect      time.Duration // what has just started is not preempted; default 1 min
	Resend       time.Duration // desired state not taken is sent again; default 1 s
}

func (t Timing) withDefaults() Timing {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&t.Suspect, 2500*time.Millisecond)
	def(&t.Lost, 3500*time.Millisecond)
	def(&t.Closed, 1500*time.Millisecond)
	def(&t.LeaseService, 30*time.Second)
	def(&t.Grace, 4*time.Second)
	def(&t.Arrival, time.Minute)
	def(&t.Start, 5*time.Minute)
	def(&t.LeaseStrict, time.Minute)
	def(&t.Orphan, 10*time.Minute)
	def(&t.Prepare, 10*time.Minute)
	def(&t.Replace, gang.KeepPlace)
	def(&t.Protect, time.Minute)
	def(&t.Resend, time.Second)
	return t
}

// Head is the control side of one head.
type Head struct {
	Options
	nodes  *sessions
	survey *survey.Survey
	kick   chan struct{} // something outside the state changed
	look   chan struct{} // something was heard of a node, or its connection ended
	ck     *checkpoints
	// asked is when a job was last asked to save because its time had come.
	asked   map[string]time.Time
	errands errands
	saves   saves // checkpoints that are wanted beside those of every N steps
	starts  startChecks
	ready   readyNames
	// planned is the newest answer of the scheduler.
	planned  planned
	arrivals arrivals
	meters   meters

	restored atomic.Bool
	refusals atomic.Int64 // proposals of decisions that the state refused

	mu      sync.Mutex
	leading bool
	ctx     context.Context //nolint:containedctx // of the current leadership; ended by Follow
	// cancel ends what the current leadership started.
	cancel context.CancelFunc
	wg     sync.WaitGroup
	unsub  []func()
	verify *verifier
}

var _ headapi.Backend = (*Head)(nil)

// New makes a head that does nothing until Lead.
func New(o Options) *Head {
	o.Timing = o.Timing.withDefaults()
	h := &Head{Options: o, kick: make(chan struct{}, 1), look: make(chan struct{}, 1)}
	h.nodes = newSessions(o.Clock)
	h.survey = survey.New(o.Store, survey.Seen{Devices: h.nodes.said, Skip: ofHosts})
	h.arrivals.turn = newTurn()
	h.planned.planner = schedule.NewPlanner()
	h.planned.planner.PlanAge = planAge
	h.ck = newCheckpoints(h)
	h.verify = newVerifier(o.Log)
	return h
}

// Lead enables the components in order; ctx ends when leadership is lost. The log's
// barrier has passed before it is called.
func (h *Head) Lead(ctx context.Context, term uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	h.mu.Lock()
	h.cancel, h.leading, h.ctx = cancel, true, ctx
	h.mu.Unlock()
	h.restored.Store(true)
	var nonce [8]byte
	if err := h.Random(nonce[:]); err != nil {
		cancel()
		return fmt.Errorf("draw a nonce: %w", err)
	}
	h.nodes.lead(h.Clock.Now(), hex.EncodeToString(nonce[:]))
	h.ck.lead(h.Store.View())
	h.meters.lead(h.Store.View(), h.Clock.Now())
	if err := h.subscribe(ctx); err != nil {
		cancel()
		return err
	}
	h.wg.Add(3)
	go func() { defer h.wg.Done(); h.loop(ctx) }()
	go func() { defer h.wg.Done(); h.watch(ctx) }()
	go func() { defer h.wg.Done(); h.verify.loop(ctx) }()
	h.Logger.Info("leading", "term", term)
	return nil
}

// Restored reports whether this head has led once since its start: from then on its
// state holds all that was acknowledged before, tokens included.
func (h *Head) Restored() bool { return h.restored.Load() }

// Follow disables everything that only a leader does.
func (h *Head) Follow() {
	h.mu.Lock()
	cancel := h.cancel
	h.cancel, h.leading = nil, false
	unsub := h.unsub
	h.unsub = nil
	h.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	for _, f := range unsub {
		f()
	}
	h.wg.Wait()
}

// context is that of the current leadership; an ended one when there is none.
func (h *Head) context() context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx == nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return ctx
	}
	return h.ctx
}

// spawn runs f beside the loop, unless this leadership is over; Follow waits for it.
func (h *Head) spawn(ctx context.Context, f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.leading && ctx.Err() == nil {
		h.wg.Go(f)
	}
}

// Kick makes the loop look again soon.
func (h *Head) Kick() {
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

// loop reacts to every change of state, to kicks, and to the passing of time.
func (h *Head) loop(ctx context.Context) {
	timer := h.Clock.NewTimer(0)
	defer timer.Stop()
	stuck := 0 // passes in a row with a refusal
	for {
		changed := h.Store.Changed()
		refused := h.refusals.Load()
		next := h.pass(ctx)
		if ctx.Err() != nil {
			return
		}
		if stuck++; h.refusals.Load() == refused {
			stuck = 0
		}
		if stuck == stuckLong {
			h.Logger.Warn("what the head decides is refused again and again; this is a defect of troupe", "passes", stuck)
		}
		if h.Clock.Sleep(ctx, stuckPause(stuck)) != nil {
			return
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-h.kick:
		case <-timer.C():
		}
	}
}

const stuckLong = 20

// stuckPause keeps the loop from spinning. A refusal is an entry of the log, so it wakes
// the loop; a decision that is refused once more, though it was made from the newest state,
// would be proposed as fast as the disk writes.
func stuckPause(stuck int) time.Duration {
	if stuck <= 2 {
		return 0 // the state had moved on
	}
	return min(time.Millisecond<<min(stuck, 8), 250*time.Millisecond)
}

// pass runs the numbered phases once and says when time alone wants the next.
func (h *Head) pass(ctx context.Context) time.Duration {
	next := 500 * time.Millisecond
	h.schedule(ctx) // 1. what waits and fits
	h.keepSpares(ctx)
	if d := h.superviseAll(ctx); d > 0 && d < next {
		next = d // 2. worker groups
	}
	if d := h.drainAll(ctx); d > 0 && d < next {
		next = d // orderly ends: nodes that are drained, ranks that agree
	}
	h.saveByTime()
	h.meter()
	h.diagnose(ctx)
	h.push(ctx)    // 3. desired state of every node
	h.ck.tend(ctx) // 4. checkpoints: marks, retention, deadlines
	v := h.Store.View()
	h.nodes.forgetPaces(func(id string) bool { j := v.Job(id); return j != nil && !j.State.Terminal() })
	return next
}

// Init creates the cluster record as the log's first entry, unless it exists.
func (h *Head) Init(ctx context.Context, c state.CreateCluster) error {
	if h.Store.View().Meta().Cluster != "" {
		return nil
	}
	if _, err := h.propose(ctx, state.KindCreateCluster, c); err != nil {
		return fmt.Errorf("create the cluster: %w", err)
	}
	return nil
}

func dur(d time.Duration) unit.Duration { return unit.Duration(d) }
