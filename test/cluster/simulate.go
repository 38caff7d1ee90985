package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/control"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// What a run must have seen to count; a seed with less proves nothing.
const (
	minCommands   = 200
	minPlacements = 5
	minRestarts   = 1
)

const (
	faultTime   = 3 * time.Minute  // of the first phase, at least
	mostTime    = 15 * time.Minute // and at most
	healTime    = 90 * time.Minute // budgets, back-off, leases: all of it fits
	mostLive    = 8                // jobs at once
	meanBetween = 700 * time.Millisecond
)

// simulation is one run by seed: faults for a while, then none, and everything must
// come to an end by itself.
type simulation struct {
	c     *Cluster
	rng   *rand.Rand
	fired map[string]int
	want  []string // faults that this seed has to fire
	heals []heal
	next  int // job names

	mu    sync.Mutex
	ids   map[string]string // name → id, of every submit that was answered
	again map[string]bool   // ids of jobs that were requeued
}

type heal struct {
	at time.Time
	f  func()
}

// Simulate runs one seed.
func Simulate(t *testing.T, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 2))
	o := Options{Seed: seed, Heads: 1, Timing: control.Timing{LeaseStrict: 15 * time.Second, Orphan: 60 * time.Second, Protect: time.Second}}
	if rng.IntN(3) == 0 {
		o.Heads = 3
	}
	for i := range 3 + rng.IntN(3) {
		n := NodeOptions{ID: fmt.Sprintf("n%d", i+1), CPU: unit.MilliCPU(2000 + 1000*rng.IntN(3)), Labels: map[string]string{"class": fmt.Sprintf("l%d", i%2)}}
		if rng.IntN(2) == 0 {
			n.GPUs = "fake:2x80GiB"
		}
		o.Nodes = append(o.Nodes, n)
	}
	Run(t, o, func(c *Cluster) {
		s := &simulation{c: c, rng: rng, fired: map[string]int{}, ids: map[string]string{}, again: map[string]bool{}}
		s.run()
	})
}

func (s *simulation) run() {
	names := make([]string, 0, len(faults))
	for name := range faults {
		names = append(names, name)
	}
	sort.Strings(names)
	s.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	s.want = names[:3+s.rng.IntN(4)]
	s.c.Tape()
	s.found()
	start := time.Now()
	for {
		s.heal(false)
		switch s.rng.IntN(4) {
		case 0, 1:
			s.submit()
		case 2:
			s.act()
		case 3:
			name := s.want[s.rng.IntN(len(s.want))]
			if noisy[name] {
				s.c.disturb(time.Minute) // longer than any of them lasts
			}
			if faults[name](s) {
				s.fired[name]++
			}
		}
		time.Sleep(time.Duration(float64(meanBetween) * s.rng.ExpFloat64()))
		if t := time.Since(start); t > faultTime && s.enough() == "" || t > mostTime || len(s.c.Failures()) > 0 {
			break
		}
	}
	s.settle()
	if why := s.enough(); why != "" && len(s.c.Failures()) == 0 {
		s.c.fail("the run does not count: %s", why)
	}
}

// enough says what is missing for the run to count.
func (s *simulation) enough() string {
	commands, placements, restarts := s.c.History.Counts()
	if commands < minCommands || placements < minPlacements || restarts < minRestarts {
		return fmt.Sprintf("%d commands, %d placements, %d restarts", commands, placements, restarts)
	}
	for _, name := range s.want {
		if s.fired[name] == 0 {
			return "fault " + name + " was never fired"
		}
	}
	return ""
}

func (s *simulation) heal(all bool) {
	s.heals = slices.DeleteFunc(s.heals, func(h heal) bool {
		if all || !time.Now().Before(h.at) {
			h.f()
			return true
		}
		return false
	})
}

func (s *simulation) later(least, most time.Duration, f func()) {
	s.heals = append(s.heals, heal{time.Now().Add(least + time.Duration(s.rng.Int64N(int64(most-least)))), f})
}

func (s *simulation) node() *Node { return s.c.nodes[s.rng.IntN(len(s.c.nodes))] }

func (s *simulation) liveJobs() []*state.Job {
	v := s.c.History.View()
	if v == nil {
		return nil
	}
	return v.LiveJobs()
}

// spec draws a job. Every job ends by itself: its steps and its budgets are finite.
func (s *simulation) spec() api.JobSpec {
	r := s.rng
	s.next++
	script := Script{
		Steps: int64(3 + r.IntN(60)), StepTime: time.Duration(20+r.IntN(300)) * time.Millisecond,
		Start: time.Duration(r.IntN(400)) * time.Millisecond, Silent: r.IntN(2) == 0, Stubborn: r.IntN(6) == 0,
	}
	ranks := int64(1 + r.IntN(5))
	if r.IntN(4) == 0 {
		script.Dies = append(script.Dies, Death{Attempt: int64(r.IntN(3)), Rank: r.Int64N(ranks), Step: 1 + r.Int64N(script.Steps), Code: int64(1 + r.IntN(3))})
	}
	if r.IntN(8) == 0 {
		script.Exit = 3
	}
	if r.IntN(10) == 0 {
		script.NoStart = 1
	}
	spec := NewSpec(fmt.Sprintf("j%d", s.next), ranks, script)
	spec.Resources = api.Resources{CPU: unit.MilliCPU(200 + 100*r.IntN(14)), Memory: unit.Bytes(1+r.IntN(4)) * unit.GiB}
	switch r.IntN(6) {
	case 0:
		spec.Resources.GPUs = 1
	case 1:
		spec.Resources.Share = int64(100 * (1 + r.IntN(6)))
	}
	spec.Strategy = []api.Strategy{api.Pack, api.Spread, api.StrictPack, api.StrictSpread}[r.IntN(4)]
	spec.Priority = int64(r.IntN(3))
	spec.Preemptible = s.next%3 == 0
	if r.IntN(5) < 3 {
		spec.Checkpoint.Interval = fmt.Sprintf("%dsteps", 2+r.IntN(6))
		spec.Checkpoint.KeepLast = int64(1 + r.IntN(3))
	}
	if r.IntN(3) == 0 {
		spec.Sizes = &api.Sizes{Min: 1, Max: ranks}
	}
	if r.IntN(6) == 0 {
		spec.SpareNodes = 1
	}
	if each := int64(1 + r.IntN(2)); r.IntN(6) == 0 && ranks%each == 0 && !spec.Sizes.Any() && (spec.Strategy == api.Pack || spec.Strategy == api.Spread) {
		spec.RanksPerNode = each
	}
	script.Deaf = r.IntN(8) == 0
	spec.Command = script.Command()
	if r.IntN(3) == 0 {
		n := int64(r.IntN(4))
		spec.Restart.MaxRestarts = &n
		spec.Restart.NoBackoff = r.IntN(2) == 0
	}
	if r.IntN(6) == 0 {
		spec.Run = fmt.Sprintf("run%d", r.IntN(4))
	}
	s.wishes(&spec)
	spec.ShutdownTimeout = unit.Duration(time.Duration(r.IntN(3)) * time.Second)
	return spec
}

// submit sends a job under a key and repeats itself until it is answered, as a client
// does; whatever happens to heads meanwhile, the key makes one job at most (I16).
func (s *simulation) submit() {
	if len(s.liveJobs()) >= mostLive {
		return
	}
	spec := s.spec()
	again := s.rng.IntN(4) == 0
	c := s.c
	c.spawn(func() {
		key := headapi.Idempotency{Key: "key-" + spec.Name, Fingerprint: spec.Name, FirstSent: time.Now()}
		first := ""
		for range 40 {
			id, err := c.TrySubmit(spec, key)
			if err == nil {
				s.mu.Lock()
				s.ids[spec.Name] = id
				s.mu.Unlock()
				if first != "" && first != id {
					c.fail("I16: %s was made twice, as %s and as %s", spec.Name, first, id)
				}
				if first != "" || !again {
					return
				}
				first = id
				continue
			}
			if p, ok := err.(*api.Problem); ok && !p.Retryable { //nolint:errorlint // the API's own type
				return
			}
			if !pause(c.ctx, 500*time.Millisecond) {
				return
			}
		}
	})
}

// act is what users do beside submitting.
func (s *simulation) act() {
	jobs := s.liveJobs()
	if len(jobs) == 0 || s.rng.IntN(2) == 0 {
		return
	}
	j := jobs[s.rng.IntN(len(jobs))]
	grace := time.Duration(s.rng.IntN(3)) * time.Second
	c := s.c
	if s.askAbout(j.ID) {
		return
	}
	c.spawn(func() {
		h := c.Leader()
		if h == nil {
			return
		}
		_, err := c.Stop(j.ID, max(grace, 1), 5*time.Minute)
		if err == nil {
			if live := c.Hosts.Live(j.ID); len(live) > 0 {
				c.fail("P11: stop of %s has returned, and %v runs", j.ID, live)
			}
		}
	})
}

// settle ends all faults and waits for the end of everything (L1).
func (s *simulation) settle() {
	c := s.c
	c.Trip("", 0, func() {})
	s.heal(true)
	c.Bus.SetLoss(0, 0)
	c.Bus.SetDelay(nil)
	for _, h := range c.heads {
		h.Heal()
		h.Start()
	}
	for _, n := range c.nodes {
		n.Heal()
		n.Stun(false)
		c.Bus.HealAll(n.identity())
		for _, h := range c.heads {
			c.Bus.Heal(n.identity(), h.identity())
		}
		if !n.Up() {
			n.Boot()
		}
		n.StartAgent()
	}
	c.disturb(10 * time.Second)
	end := time.Now().Add(healTime)
	for len(c.Failures()) == 0 {
		s.undrain()
		s.unpark()
		left := s.left()
		if left == "" {
			break
		}
		if time.Now().After(end) {
			c.fail("L1: %s\n%s%s", left, c.Describe(), s.why())
			return
		}
		time.Sleep(time.Second)
	}
	for _, n := range c.nodes {
		if ids := n.running(); len(ids) > 0 && len(c.Failures()) == 0 {
			c.fail("I26: shims of %v run on %s after everything has ended", ids, n.ID)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, id := range s.ids {
		if c.History.View().Job(id) == nil {
			c.fail("I5: the request for %s was answered with %s, which does not exist", name, id)
		}
	}
	names := map[string]int{}
	for _, j := range c.History.View().Jobs() {
		if s.again[j.ID] {
			continue // its run went on in another job
		}
		if names[j.Spec.Name]++; names[j.Spec.Name] > 1 {
			c.fail("I16: two jobs were made of the one request for %s", j.Spec.Name)
		}
	}
}

// left says what has not come to its end.
func (s *simulation) left() string {
	if s.c.Leader() == nil {
		return "no head leads"
	}
	v := s.c.View()
	switch {
	case len(v.LiveJobs()) > 0:
		return fmt.Sprintf("%d jobs have not ended", len(v.LiveJobs()))
	case len(v.Holds()) > 0:
		return fmt.Sprintf("%d holds are charged to nobody's work", len(v.Holds()))
	case len(v.Groups()) > 0:
		return fmt.Sprintf("%d groups are left", len(v.Groups()))
	case len(v.OpenCheckpoints()) > 0:
		return fmt.Sprintf("%d checkpoints have work left", len(v.OpenCheckpoints()))
	case len(s.c.Hosts.Live("")) > 0:
		return fmt.Sprintf("%v runs", s.c.Hosts.Live(""))
	}
	for _, n := range v.Nodes() {
		if n.State != api.NodeReady {
			return fmt.Sprintf("node %s is %s", n.ID, n.State)
		}
	}
	return ""
}

// why asks the product to explain each job that has not ended (P7).
func (s *simulation) why() string {
	var b strings.Builder
	h := s.c.Leader()
	if h == nil {
		return ""
	}
	for _, j := range s.liveJobs() {
		w, err := h.running().control.Why(s.c.ctx, j.ID)
		fmt.Fprintf(&b, "why %s: %+v %v\n", j.ID, w, err)
	}
	return b.String()
}

// running lists the allocations whose shim lives on the node.
func (n *Node) running() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]string, 0, len(n.shims))
	for id := range n.shims {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}
