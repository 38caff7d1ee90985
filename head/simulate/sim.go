package simulate

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/head/gang"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/head/survey"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// Options of a run.
type Options struct {
	Seed uint64
	// Check verifies the invariants of the state after every command, each as an entry of a
	// log would be; slow.
	Check bool
	// Clock times the scheduler's phases; nil: they are not timed.
	Clock func() time.Duration
	// Progress is told how many jobs are over; it is called often.
	Progress func(done int)
	// Speedup is how many times faster twice the ranks make a job that may have other sizes;
	// 0: as many times as the scheduler assumes.
	Speedup schedule.Speedup
	// Until ends the simulation at a time of the trace; 0: when nothing can happen any more.
	Until time.Duration
}

// what happens. At one instant events come in this order, and then the scheduler is
// asked once.
type happening uint8

const (
	jobEnds happening = iota
	jobSaves
	jobLeaves // a job that was told to end has saved
	jobSteps  // a job makes its first step
	jobLimits // its time limit is reached
	jobLooks  // the supervisor wants to be asked again
	nodeReturns
	gpuReturns
	nodeFails
	gpuFails
	rankFails
	jobArrives
	planLooks // the scheduler wants to be asked again
)

type event struct {
	at      time.Duration
	what    happening
	seq     uint64 // order of making, for equal ones
	job     int    // or node
	gpu     int
	version uint64 // of the part of the job's life that it was made for, see reaction
}

type events []event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].at, h[j].at), cmp.Compare(h[i].what, h[j].what), cmp.Compare(h[i].seq, h[j].seq)) < 0
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any) {
	if e, ok := x.(event); ok {
		*h = append(*h, e)
	}
}

func (h *events) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// sim is one run.
type sim struct {
	Options
	cluster *Cluster
	trace   *Trace
	now     time.Duration // since the trace's epoch

	store   *state.Store
	index   uint64
	survey  *survey.Survey
	planner *schedule.Planner
	tree    *api.Tree // of tenants and queues; nil: there is none

	events events
	seq    uint64
	nodes  []machine
	byNode map[string]int
	jobs   []job
	byID   map[string]int
	never  map[string]string // why a shape can never be placed, by shape
	dirty  bool              // the scheduler is to be asked
	sized  bool              // some job may have other sizes than the one it asks for
	idle   bool              // nothing happened but that it wants to be asked
	asked  time.Duration     // when it wants to be asked again; 0: it does not
	result Result
	meter  meter
	took   map[string]time.Duration
	done   int
	left   int // jobs that are not over
}

// Result is what a run came to.
type Result struct {
	Jobs    []Outcome
	Samples []Sample
	// Ended is the time of the last event, Commands how many entries the log has.
	Ended    time.Duration
	Commands uint64
	Cycles   int64
	// Longest is the longest cycle of the scheduler and Phases the sums of its phases, if
	// they were timed.
	Longest  time.Duration
	Phases   []schedule.Phase
	Failures int64
	// Unclaimed counts claims that came to nothing.
	Unclaimed int64
	// Waiting says, for jobs that never started, why they waited at the end.
	Waiting map[string]string
}

// Run plays a trace on a cluster.
func Run(ctx context.Context, c *Cluster, t *Trace, o Options) (*Result, error) {
	s, err := newSim(c, t, o)
	if err != nil {
		return nil, err
	}
	return s.play(ctx)
}

func newSim(c *Cluster, t *Trace, o Options) (*sim, error) {
	o.Speedup = cmp.Or(o.Speedup, schedule.UsualSpeedup)
	if !(o.Speedup > 1 && o.Speedup <= 2) {
		return nil, fmt.Errorf("a speedup of %g with twice the ranks: above 1 and at most 2", o.Speedup)
	}
	store, err := state.New()
	if err != nil {
		return nil, err
	}
	if o.Check {
		store.CheckAlways()
	}
	store.Sole()
	s := &sim{
		Options: o, cluster: c, trace: t, store: store, survey: survey.New(store, survey.Seen{}), planner: schedule.NewPlanner(),
		byNode: map[string]int{}, byID: map[string]int{}, never: map[string]string{}, took: map[string]time.Duration{},
	}
	s.planner.Clock, s.planner.PlanAge = o.Clock, c.Policy.PlanAge.D()
	s.result.Waiting = map[string]string{}
	return s, s.begin()
}

// play lets everything happen, one instant after the other.
func (s *sim) play(ctx context.Context) (*Result, error) {
	for len(s.events) > 0 && s.left > 0 {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		at := s.events[0].at
		if s.Until > 0 && at > s.Until {
			break
		}
		if at > lastMoment {
			return nil, beyond(at)
		}
		if err := s.instant(); err != nil {
			return nil, fmt.Errorf("at %s of the trace: %w", s.now, err)
		}
		if s.Progress != nil {
			s.Progress(s.done)
		}
		if s.stuck() {
			break
		}
	}
	return s.finish(), nil
}

// instant plays everything that happens at one time, then asks the scheduler.
func (s *sim) instant() error {
	now := s.events[0].at
	s.meter.pass(now - s.now)
	s.now = now
	for len(s.events) > 0 && s.events[0].at == now {
		e, _ := heap.Pop(&s.events).(event)
		if err := s.happens(e); err != nil {
			return err
		}
	}
	for range maxRounds {
		if !s.dirty {
			break
		}
		s.dirty = false
		if err := s.plan(); err != nil {
			return err
		}
		s.idle = false
	}
	s.meter.sample(now)
	return nil
}

// maxRounds bounds how often the scheduler is asked at one instant: placing may end the
// drain of a job, which frees what another one waits for.
const maxRounds = 8

// reaction is what follows from a kind of event.
type reaction struct {
	// of is the part of a job's life that the event was made for; nothing follows when that
	// is over. nil: it is not about such a part.
	of func(*job) uint64
	do func(*sim, event) error
}

func ofAttempt(j *job) uint64 { return j.attempt }
func ofStretch(j *job) uint64 { return j.stretch }

// reactions by kind of event.
var reactions = [...]reaction{
	jobEnds:     {ofStretch, func(s *sim, e event) error { return s.ends(e.job) }},
	jobSaves:    {ofStretch, func(s *sim, e event) error { return s.saves(e.job) }},
	jobLeaves:   {ofStretch, func(s *sim, e event) error { return s.leaves(e.job) }},
	jobSteps:    {ofAttempt, func(s *sim, e event) error { s.stepped(e.job); return nil }},
	jobLimits:   {nil, func(s *sim, e event) error { return s.limit(e.job) }},
	jobLooks:    {nil, func(s *sim, e event) error { return s.supervise(e.job) }},
	nodeReturns: {nil, func(s *sim, e event) error { return s.nodeReturns(e.job) }},
	gpuReturns:  {nil, func(s *sim, e event) error { return s.gpuReturns(e.job, e.gpu) }},
	nodeFails:   {nil, func(s *sim, e event) error { return s.nodeFails(e.job) }},
	gpuFails:    {nil, func(s *sim, e event) error { return s.gpuFails(e.job, e.gpu) }},
	rankFails:   {ofAttempt, func(s *sim, e event) error { return s.rankFails(e.job) }},
	jobArrives:  {nil, func(s *sim, e event) error { return s.arrive(e.job) }},
	planLooks:   {nil, func(s *sim, _ event) error { s.asked, s.idle, s.dirty = 0, !s.dirty, true; return nil }},
}

func (s *sim) happens(e event) error {
	r := &reactions[e.what]
	if r.of != nil {
		if j := &s.jobs[e.job]; !j.running || r.of(j) != e.version {
			return nil
		}
	}
	return r.do(s, e)
}

// at puts an event into the future.
func (s *sim) at(after time.Duration, e event) {
	s.seq++
	e.at, e.seq = s.now+min(max(0, after), never), s.seq
	heap.Push(&s.events, e)
}

// stuck: jobs wait, and nothing will ever happen that could start one. Failures alone
// go on for ever.
func (s *sim) stuck() bool {
	if s.meter.running > 0 || len(s.events) > s.broken() {
		return false
	}
	for _, e := range s.events {
		if e.what != nodeFails && e.what != gpuFails {
			return false
		}
	}
	return true
}

// broken bounds the events that failures alone make.
func (s *sim) broken() int { return 2*len(s.nodes) + 2*int(s.cluster.GPUs()) }

// propose applies a command, as the log does.
func (s *sim) propose(kind state.Kind, body any) (any, error) {
	s.index++
	if !s.Check {
		return s.store.ApplyDirect(kind, s.index, 1, s.wall(), body)
	}
	data, err := state.Encode(kind, s.wall(), body)
	if err != nil {
		return nil, err
	}
	return s.store.Apply(s.index, 1, data)
}

// must is propose for a command that nothing may refuse here.
func (s *sim) must(kind state.Kind, body any) error {
	r, err := s.propose(kind, body)
	if err != nil {
		return err
	}
	if ref, refused := r.(*state.Refused); refused {
		return fmt.Errorf("command %d: %w", kind, ref)
	}
	return nil
}

// wall is the time of the trace as a date, in nanoseconds.
func (s *sim) wall() int64 { return s.trace.Epoch.Add(s.now).UnixNano() }

func (s *sim) time() time.Time { return s.trace.Epoch.Add(s.now) }

// snapshot is what the scheduler looks at now.
func (s *sim) snapshot() *schedule.Snapshot {
	snap := s.survey.Snapshot(s.store.View(), s.wall())
	snap.Policy.Planned = int(s.cluster.Policy.Planned)
	return snap
}

// gangs decides where single gangs go on.
func (s *sim) gangs() gang.Cluster {
	return gang.Cluster{View: s.store.View(), Now: s.time(), Snapshot: s.snapshot}
}

// try proposes what may be refused; what went wrong otherwise is kept in err.
func (s *sim) try(err *error) gang.Try {
	return func(kind state.Kind, command any) bool {
		if *err != nil {
			return false
		}
		var r any
		if r, *err = s.propose(kind, command); *err != nil {
			return false
		}
		_, refused := r.(*state.Refused)
		return !refused
	}
}

// cycle asks the scheduler once.
func (s *sim) cycle(snap *schedule.Snapshot) *schedule.Result {
	var began time.Duration
	if s.Clock != nil {
		began = s.Clock()
	}
	plan := s.planner.Plan
	if s.idle { // as a head does, it goes on with its plan then
		plan = s.planner.Replan
	}
	r := plan(snap, s.time())
	s.result.Cycles++
	if s.Clock != nil {
		s.result.Longest = max(s.result.Longest, s.Clock()-began)
		for _, p := range r.Phases {
			s.took[p.Name] += p.Took
		}
	}
	return r
}

// plan asks the scheduler and carries out what it decides.
func (s *sim) plan() error {
	snap := s.snapshot()
	if len(snap.Pending) == 0 && (!s.sized || !gang.MayGrow(s.store.View())) {
		return nil
	}
	r := s.cycle(snap)
	if err := s.unclaim(r); err != nil {
		return err
	}
	for i := range r.Decisions {
		d := &r.Decisions[i]
		if d.Bundles == nil {
			continue
		}
		if err := s.place(d); err != nil {
			return err
		}
	}
	if err := s.evict(r); err != nil {
		return err
	}
	if err := s.grow(r); err != nil {
		return err
	}
	if !r.Again.IsZero() {
		if at := r.Again.Sub(s.trace.Epoch); at > s.now && (s.asked == 0 || at < s.asked) {
			s.asked = at
			s.at(at-s.now, event{what: planLooks})
		}
	}
	return nil
}
