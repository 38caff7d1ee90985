package cluster

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-runtime/troupe/elastic/agree"
	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/consensus"
	"github.com/troupe-runtime/troupe/head/control"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// storeDir is the checkpoint store of every job, on the simulated disk.
const storeDir = "/store"

// Options make a cluster. The zero value is one head and two nodes.
type Options struct {
	Seed   uint64
	Heads  int // 1 or 3
	Nodes  []NodeOptions
	Timing control.Timing
	// OwnDisks gives each node a store of its own at the same path, as when nobody mounted
	// a shared one.
	OwnDisks bool
	// Logs prints what heads and agents log when the test fails.
	Logs bool
}

// Cluster is the simulated cluster. Everything in it runs in one bubble.
type Cluster struct {
	T       testing.TB
	Options Options
	Bus     *bus.Mem
	Disk    *disk.Mem
	Hosts   *Hosts
	History *History

	ctx   context.Context //nolint:containedctx // of the whole cluster
	dir   string
	clock clock.Clock
	net   *consensus.MemoryNetwork
	peers []consensus.Peer
	heads []*Head
	nodes []*Node
	wg    sync.WaitGroup

	mu      sync.Mutex
	rng     *rand.Rand
	worlds  map[uint64]*world
	shared  map[string]bool // jobs that share devices
	failed  []string
	closing bool
	logs    bytes.Buffer
	tape    []message
	taping  bool
	wire    *tripWire
	acts    map[act]map[int64]agree.Move
	// noisy is until when the network loses or delays messages, or a head is away.
	noisy   time.Time
	heardBy map[string]string // run/generation/step → first verdict that a shim heard
	told    []told
}

// Run builds a cluster in a bubble of its own, waits until every node is registered,
// runs f, and ends everything. A violation of an invariant fails the test.
func Run(t *testing.T, o Options, f func(c *Cluster)) {
	t.Helper()
	// Short, because sockets would have to fit below it.
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		c := newCluster(t, ctx, dir, o)
		defer func() {
			c.shut(cancel)
			c.report()
		}()
		c.boot()
		f(c)
		c.settled()
	})
}

func newCluster(t testing.TB, ctx context.Context, dir string, o Options) *Cluster {
	if o.Heads == 0 {
		o.Heads = 1
	}
	if len(o.Nodes) == 0 {
		o.Nodes = []NodeOptions{{ID: "n1"}, {ID: "n2"}}
	}
	c := &Cluster{
		T: t, Options: o, Bus: bus.NewMem(o.Seed), Disk: disk.NewMem(), ctx: ctx, dir: dir, clock: clock.Virtual(),
		rng: rand.New(rand.NewPCG(o.Seed, 1)), worlds: map[uint64]*world{}, shared: map[string]bool{}, heardBy: map[string]string{},
	}
	c.Hosts = newHosts(c.fail)
	c.History = newHistory(c)
	if err := c.Disk.MkdirAll(storeDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if o.Heads > 1 {
		c.net = consensus.NewMemoryNetwork(200 * time.Millisecond)
	}
	for i := range o.Heads {
		id := fmt.Sprintf("h%d", i+1)
		c.peers = append(c.peers, consensus.Peer{ID: id, Addr: "addr-" + id})
		c.heads = append(c.heads, &Head{ID: id, c: c, mem: consensus.NewMemory()})
	}
	for _, n := range o.Nodes {
		node := c.newNode(n)
		if o.OwnDisks {
			node.own = disk.NewMem()
			if err := node.own.MkdirAll(storeDir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		c.nodes = append(c.nodes, node)
	}
	return c
}

func (c *Cluster) boot() {
	for _, h := range c.heads {
		cfg := h.config()
		if err := consensus.Init(cfg); err != nil {
			c.T.Fatalf("%s: %v", h.ID, err)
		}
	}
	for _, h := range c.heads {
		h.Start()
	}
	for _, n := range c.nodes {
		n.Boot()
	}
	c.Wait("every node registers", time.Minute, func(v *state.View) bool {
		for _, n := range c.nodes {
			if s := v.Node(n.ID); s == nil || s.State != api.NodeReady {
				return false
			}
		}
		return true
	})
}

func (c *Cluster) shut(cancel context.CancelFunc) {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	for _, n := range c.nodes {
		n.Kill()
	}
	for _, h := range c.heads {
		h.Kill()
	}
	cancel()
	c.wg.Wait()
	c.Bus.Close()
	synctest.Wait()
}

// spawn runs f in the bubble; the end of the cluster waits for it.
func (c *Cluster) spawn(f func()) { c.wg.Go(f) }

// fail notes a violation; the test goes on, so that the first cause is seen whole.
func (c *Cluster) fail(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.failed) < 20 {
		c.failed = append(c.failed, fmt.Sprintf("%s: ", time.Now().Format("04:05.000"))+fmt.Sprintf(format, args...))
	}
}

// Failures lists the violations so far.
func (c *Cluster) Failures() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.failed)
}

func (c *Cluster) report() {
	for _, f := range c.Failures() {
		c.T.Errorf("seed %d: %s", c.Options.Seed, f)
	}
	if c.T.Failed() {
		c.T.Logf("seed %d, options %+v", c.Options.Seed, c.Options)
		if v := c.History.View(); v != nil {
			for _, e := range v.RecentEvents("", 60) {
				c.T.Logf("%s %s %s: %s", time.Unix(0, e.Time).UTC().Format("04:05.000"), e.Type, e.Object, e.Text)
			}
		}
		if c.Options.Logs {
			c.T.Logf("logs:\n%s", c.logs.String())
		}
	}
}

type logWriter struct{ c *Cluster }

func (w logWriter) Write(p []byte) (int, error) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	return w.c.logs.Write(p)
}

func (c *Cluster) logger(who string) *slog.Logger {
	if !c.Options.Logs && os.Getenv("TROUPE_SIM_LOGS") == "" {
		return slog.New(slog.DiscardHandler)
	}
	c.Options.Logs = true
	return slog.New(slog.NewTextHandler(logWriter{c}, &slog.HandlerOptions{Level: slog.LevelDebug})).With("who", who)
}

// random is the one source of randomness of heads and agents.
func (c *Cluster) random(b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range b {
		b[i] = byte(c.rng.Uint32())
	}
	return nil
}

// disturb notes that what the head hears is not what happens, until d from now.
func (c *Cluster) disturb(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := time.Now().Add(d); t.After(c.noisy) {
		c.noisy = t
	}
}

func (c *Cluster) disturbed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.noisy)
}

// Node finds a node by its id.
func (c *Cluster) Node(id string) *Node {
	for _, n := range c.nodes {
		if n.ID == id {
			return n
		}
	}
	c.T.Fatalf("no node %s", id)
	return nil
}

// Head is head number i, from 0.
func (c *Cluster) Head(i int) *Head { return c.heads[i] }

// Leader is the head that leads and serves; nil when there is none now.
func (c *Cluster) Leader() *Head {
	for _, h := range c.heads {
		if h.leads() {
			return h
		}
	}
	return nil
}

// View is the state of the leader, or of the newest log that was seen.
func (c *Cluster) View() *state.View {
	if h := c.Leader(); h != nil {
		if l := h.running(); l != nil {
			return l.store.View()
		}
	}
	return c.History.View()
}

// Wait waits in virtual time until cond holds, or fails the test with the last state.
func (c *Cluster) Wait(what string, limit time.Duration, cond func(v *state.View) bool) *state.View {
	c.T.Helper()
	end := time.Now().Add(limit)
	for {
		if v := c.View(); v != nil && cond(v) {
			return v
		}
		if time.Now().After(end) {
			c.T.Fatalf("seed %d: %s: not within %s\n%s", c.Options.Seed, what, limit, c.Describe())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Describe says where every job stands.
func (c *Cluster) Describe() string {
	v := c.View()
	if v == nil {
		return "no head has any state"
	}
	var b strings.Builder
	for _, n := range v.Nodes() {
		fmt.Fprintf(&b, "node %s %s %s\n", n.ID, n.State, n.Why)
	}
	for _, j := range v.LiveJobs() {
		fmt.Fprintf(&b, "job %s %s, attempts %d", j.ID, j.State, len(j.Attempts))
		if j.Reason != nil {
			fmt.Fprintf(&b, ", reason %s", j.Reason.Text)
		}
		if g := v.Group(j.Group); g != nil {
			fmt.Fprintf(&b, ", group %s %s", g.ID, g.State)
		}
		b.WriteByte('\n')
		for _, a := range v.AllocsOf(j.ID) {
			fmt.Fprintf(&b, "  alloc %s on %s gen %d started %v ended %v lost %v gone %v dirty %q acked %d\n", a.ID, a.Node, a.Generation, a.Started, a.Ended, a.Lost, a.Gone, a.Dirty, a.Acked)
		}
	}
	for _, n := range v.Nodes() {
		for _, a := range v.AllocsOn(n.ID) {
			if j := v.Job(a.Job); j == nil || j.State.Terminal() {
				fmt.Fprintf(&b, "left: alloc %s on %s gen %d boot %s of %s started %v ended %v lost %v gone %v dirty %q acked %d\n",
					a.ID, a.Node, a.Generation, a.BootID, n.Info.BootID, a.Started, a.Ended, a.Lost, a.Gone, a.Dirty, a.Acked)
			}
		}
	}
	for _, h := range v.Holds() {
		fmt.Fprintf(&b, "hold %s on %s releasing %v\n", h.ID, h.Node, h.Releasing)
	}
	for _, p := range c.Hosts.Live("") {
		fmt.Fprintf(&b, "runs: %s\n", p)
	}
	return b.String()
}

// Job describes what to submit; NewSpec makes one with a script.
func NewSpec(name string, ranks int64, s Script) api.JobSpec {
	return api.JobSpec{
		Name: name, Ranks: ranks, Command: s.Command(),
		Resources: api.Resources{CPU: 1000, Memory: 1 << 20},
	}
}

// TrySubmit submits a job to the leader.
func (c *Cluster) TrySubmit(spec api.JobSpec, key headapi.Idempotency) (string, error) {
	h := c.Leader()
	if h == nil {
		return "", context.DeadlineExceeded
	}
	l := h.running()
	if l == nil {
		return "", context.DeadlineExceeded
	}
	ctx, cancel := context.WithTimeout(c.ctx, 10*time.Second)
	defer cancel()
	made, err := l.control.Submit(ctx, spec, key)
	if err != nil {
		return "", err
	}
	if spec.Resources.Share > 0 {
		c.mu.Lock()
		c.shared[made.ID] = true
		c.mu.Unlock()
	}
	return made.ID, nil
}

// Submit submits a job or fails the test.
func (c *Cluster) Submit(spec api.JobSpec) string {
	c.T.Helper()
	id, err := c.TrySubmit(spec, headapi.Idempotency{})
	if err != nil {
		c.T.Fatalf("submit %s: %v", spec.Name, err)
	}
	return id
}

func (c *Cluster) wholeDevices(job string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.shared[job]
}

// Stop stops a job through the leader, with the job's own grace.
func (c *Cluster) Stop(job string, grace, limit time.Duration) (api.Job, error) {
	h := c.Leader()
	if h == nil {
		return api.Job{}, context.DeadlineExceeded
	}
	ctx, cancel := context.WithTimeout(c.ctx, limit)
	defer cancel()
	return h.running().control.Stop(ctx, job, grace, "the test says so")
}

// WaitState waits until a job is in one of the states.
func (c *Cluster) WaitState(job string, limit time.Duration, states ...api.JobState) *state.Job {
	c.T.Helper()
	v := c.Wait(fmt.Sprintf("%s becomes %v", job, states), limit, func(v *state.View) bool {
		j := v.Job(job)
		return j != nil && slices.Contains(states, j.State)
	})
	return v.Job(job)
}

// WaitStep waits until every rank of a job has published a step of its newest attempt.
func (c *Cluster) WaitStep(job string, step int64, limit time.Duration) {
	c.T.Helper()
	c.Wait(fmt.Sprintf("%s reaches step %d", job, step), limit, func(v *state.View) bool {
		j := v.Job(job)
		if j == nil || j.Last() == nil {
			return false
		}
		w := c.world(j.Last().Generation, int64(len(j.Last().Ranks)))
		w.mu.Lock()
		defer w.mu.Unlock()
		for r := range int64(len(j.Last().Ranks)) {
			if w.at[r] < step {
				return false
			}
		}
		return true
	})
}

// settled is the end of every test: what is left must be explained by the state.
func (c *Cluster) settled() {
	synctest.Wait()
	c.checkActs()
	c.checkTold()
	if v := c.History.View(); v != nil {
		if err := state.Check(v); err != nil {
			c.fail("at the end: %v", err)
		}
	}
}

// heard notes a verdict that a shim was given: the first one is the last (P4).
func (c *Cluster) heard(run string, v *wire.Verdict) {
	c.mu.Lock()
	k := stepKey(run, v.Generation, v.Step)
	before, ok := c.heardBy[k]
	if !ok {
		c.heardBy[k] = v.State
	}
	if v.State == "committed" {
		c.told = append(c.told, told{run, v.Generation, v.Step, time.Now()})
	}
	c.mu.Unlock()
	if ok && before != v.State {
		c.fail("P4: step %d of run %s, generation %d, was told %s and then %s", v.Step, run, v.Generation, before, v.State)
	}
}

// told is a step that a shim heard to be committed.
type told struct {
	run        string
	generation uint64
	step       int64
	at         time.Time
}

// checkTold: what was told committed is committed by an entry (P4). A head answers from a
// state that the history is shown an instant later, so this waits until all is still.
func (c *Cluster) checkTold() {
	c.mu.Lock()
	list := c.told
	c.told = nil
	c.mu.Unlock()
	for _, x := range list {
		if at, ok := c.History.committedAt(x.run, x.generation, x.step); !ok || at.After(x.at) {
			c.fail("P4: step %d of run %s, generation %d, was told committed at %s, and no entry said so by then (%v, %s)",
				x.step, x.run, x.generation, x.at.Format("04:05.000"), ok, at.Format("04:05.000"))
		}
	}
}
