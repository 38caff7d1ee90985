package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// shimProgram is the real shim, built once.
var shimProgram string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "shim")
	if err != nil {
		panic(err)
	}
	shimProgram = filepath.Join(dir, "troupe-shim")
	out, err := exec.Command("go", "build", "-o", shimProgram, "github.com/troupe-runtime/troupe/cmd/troupe-shim").CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "build the shim: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

const node = "n1"

var worlds atomic.Int64

// testHead is the counterpart of an agent: it grants leases, acknowledges what is
// reported and remembers everything.
type testHead struct {
	t    testing.TB
	conn bus.Conn

	mu       sync.Mutex
	changed  chan struct{}
	term     uint64
	index    uint64
	allocs   []wire.Alloc
	sessions []wire.RegisterRequest
	beats    []wire.Heartbeat
	events   []wire.AllocEvent
	prepared []wire.Prepared
	known    string // session
	mute     map[string]bool
	lease    time.Duration
	refuse   string
	onReg    func()
	verdict  string
	offset   int64 // by which it answers about another step
	repeats  int   // events that were told again
	piece    func(wire.PackageRequest) wire.PackagePiece
	// prefix makes ids of allocations unique: their cgroups belong to the machine.
	prefix string
}

func newTestHead(t testing.TB, conn bus.Conn) *testHead {
	h := &testHead{
		t: t, conn: conn, changed: make(chan struct{}), term: 1, index: 1, mute: map[string]bool{},
		lease: time.Minute, verdict: "pending", prefix: fmt.Sprintf("t%d-%d-", os.Getpid(), worlds.Add(1)),
	}
	for prefix, f := range map[string]func([]byte) any{
		wire.HeadRegister: h.register, wire.HeadHeartbeat: h.heartbeat, wire.HeadReport: h.report,
		wire.HeadPrepared: h.prepare, wire.HeadFetch: h.fetch, wire.HeadPackage: h.givePiece,
	} {
		un, err := conn.Subscribe(prefix+"*", func(m bus.Msg) {
			if id := strings.TrimPrefix(m.Subject, prefix); id != node {
				t.Errorf("%s spoke on %s", id, m.Subject)
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.mute[prefix] {
				return
			}
			reply := f(m.Data)
			close(h.changed)
			h.changed = make(chan struct{})
			data, err := wire.Marshal(reply)
			if err != nil {
				t.Error(err)
			}
			_ = m.Respond(data)
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(un)
	}
	return h
}

func decode[T any](t testing.TB, data []byte) T {
	var v T
	if err := wire.Unmarshal(data, &v); err != nil {
		t.Errorf("an agent sent what does not decode: %v", err)
	}
	return v
}

func (h *testHead) pos() wire.Position { return wire.Position{Term: h.term, Index: h.index} }

func (h *testHead) register(data []byte) any {
	r := decode[wire.RegisterRequest](h.t, data)
	if h.refuse != "" {
		return wire.RegisterReply{Error: h.refuse}
	}
	if h.onReg != nil {
		h.onReg()
	}
	h.sessions = append(h.sessions, r)
	h.known = r.Node.Session
	return wire.RegisterReply{Position: h.pos(), Life: "0a0b0c0d", Cluster: "test"}
}

func (h *testHead) heartbeat(data []byte) any {
	b := decode[wire.Heartbeat](h.t, data)
	if b.Session != h.known {
		return wire.HeartbeatAck{Seq: b.Seq, Unknown: true}
	}
	h.beats = append(h.beats, b)
	return wire.HeartbeatAck{Seq: b.Seq, Position: h.pos(), Lease: unit.Duration(h.lease), Orphan: unit.Duration(10 * h.lease)}
}

func (h *testHead) report(data []byte) any {
	r := decode[wire.Report](h.t, data)
	ack := wire.ReportAck{Position: h.pos()}
	for _, e := range r.Events {
		newest := uint64(0)
		for _, old := range h.events {
			if old.Alloc == e.Alloc {
				newest = old.Seq
			}
		}
		switch {
		case e.Seq == newest+1:
			h.events = append(h.events, e)
		case e.Seq <= newest:
			h.repeats++
		default:
			h.t.Errorf("event %d of %s follows %d", e.Seq, e.Alloc, newest)
		}
		ack.Acked = append(ack.Acked, wire.SeqAck{Alloc: e.Alloc, Seq: e.Seq})
	}
	return ack
}

func (h *testHead) prepare(data []byte) any {
	p := decode[wire.Prepared](h.t, data)
	h.prepared = append(h.prepared, p)
	return wire.Verdict{Alloc: p.Alloc, Run: p.Run, Generation: p.Generation, Step: p.Step + h.offset, State: h.verdict}
}

func (h *testHead) givePiece(data []byte) any {
	return h.piece(decode[wire.PackageRequest](h.t, data))
}

func (h *testHead) fetch([]byte) any {
	return wire.Desired{Position: h.pos(), Allocs: h.allocs}
}

// want makes allocs the desired state and pushes it.
func (h *testHead) want(allocs ...wire.Alloc) wire.Position {
	h.t.Helper()
	h.mu.Lock()
	h.index++
	h.allocs = allocs
	d := wire.Desired{Position: h.pos(), Allocs: allocs}
	h.mu.Unlock()
	return h.push(d)
}

func (h *testHead) push(d wire.Desired) wire.Position {
	h.t.Helper()
	var p wire.Position
	h.ask(wire.NodeDesired(node), d, &p)
	return p
}

func (h *testHead) ask(subject string, body, reply any) {
	h.t.Helper()
	data, err := wire.Marshal(body)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	raw, err := h.conn.Request(ctx, subject, data)
	if err != nil {
		h.t.Fatalf("%s: %v", subject, err)
	}
	if err := wire.Unmarshal(raw, reply); err != nil {
		h.t.Fatalf("%s: %v", subject, err)
	}
}

// until waits for a condition on what the head has heard, and fails with it.
func (h *testHead) until(what string, cond func() bool) {
	h.t.Helper()
	limit := time.After(30 * time.Second)
	for {
		h.mu.Lock()
		ok, changed := cond(), h.changed
		h.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-limit:
			h.mu.Lock()
			defer h.mu.Unlock()
			var last any
			if n := len(h.beats); n > 0 {
				last = h.beats[n-1].Allocs
			}
			h.t.Fatalf("no %s; events %+v; last heartbeat %+v", what, h.events, last)
		}
	}
}

// event waits for an event of kind of an allocation's generation (0: any).
func (h *testHead) event(alloc string, kind wire.EventKind, gen uint64) wire.AllocEvent {
	h.t.Helper()
	alloc = h.prefix + alloc
	var found wire.AllocEvent
	h.until(fmt.Sprintf("event %s of %s generation %d", kind, alloc, gen), func() bool {
		for _, e := range h.events {
			if e.Alloc == alloc && e.Kind == kind && (gen == 0 || e.Generation == gen) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

func (h *testHead) kinds(alloc string) []wire.EventKind {
	h.mu.Lock()
	defer h.mu.Unlock()
	alloc = h.prefix + alloc
	var list []wire.EventKind
	for _, e := range h.events {
		if e.Alloc == alloc && e.Kind != wire.EventFallback {
			list = append(list, e.Kind)
		}
	}
	return list
}

func (h *testHead) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// world is a head, a bus and a place for an agent.
type world struct {
	*testHead
	t       *testing.T
	mem     *bus.Mem
	state   string
	sockets string
	log     *logBuffer
	change  []func(*Options) // of simulated agents
}

func newWorld(t *testing.T) *world {
	t.Helper()
	sockets, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sockets) })
	w := &world{t: t, mem: bus.NewMem(1), state: filepath.Join(t.TempDir(), "state"), sockets: sockets, log: &logBuffer{}}
	t.Cleanup(w.mem.Close)
	w.testHead = newTestHead(t, w.mem.Connect("head", bus.Permission{
		Publish: []string{"n.>"}, Subscribe: []string{"head.>"}, Inbox: wire.InboxPrefix("head"),
	}))
	t.Cleanup(w.sweep)
	return w
}

// sweep ends whatever a failed test has left.
func (w *world) sweep() {
	for _, cfg := range w.configs() {
		j, _ := shim.ReadJournal(cfg.Dir)
		if err := NewLauncher([]string{shimProgram}).Sweep(context.Background(), cfg, j); err != nil {
			w.t.Error(err)
		}
		eventually(w.t, "the end of a shim", func() error {
			if j != nil && j.Alive() {
				return fmt.Errorf("process %d lives", j.PID)
			}
			return nil
		})
	}
}

func (w *world) configs() []shim.Config {
	files, err := filepath.Glob(filepath.Join(w.state, allocFolder, "*", shim.ConfigFile))
	if err != nil {
		w.t.Fatal(err)
	}
	var list []shim.Config
	for _, f := range files {
		if cfg, err := shim.ReadConfig(f); err == nil {
			list = append(list, cfg)
		}
	}
	return list
}

func (w *world) options() Options {
	return Options{
		NodeID: node, Address: "127.0.0.1", StateDir: w.state, SocketRoot: w.sockets, CPU: 2000, Memory: unit.GiB,
		Bus: w.mem.Connect("node-"+node, bus.Permission{
			Publish: []string{"head.*." + node}, Subscribe: []string{"n." + node + ".>"}, Inbox: wire.InboxPrefix("node-" + node),
		}),
		Logger: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Version: "test", ShimPath: []string{shimProgram}, Clock: clock.Real(),
	}
}

// agent starts an agent; stop cancels it, without a word to its shims, as its death
// would.
func (w *world) agent(change ...func(*Options)) (a *Agent, stop func()) {
	w.t.Helper()
	o := w.options()
	for _, f := range change {
		f(&o)
	}
	a, err := New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
		o.Bus.Close()
	})
	w.t.Cleanup(stop)
	w.until("heartbeat of the new session", func() bool {
		return slices.ContainsFunc(w.beats, func(b wire.Heartbeat) bool { return b.Session == a.session })
	})
	return a, stop
}

func (w *world) registered() []wire.RegisterRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.sessions)
}

// attempt is one allocation with an attempt of some ranks, each a shell script.
func (h *testHead) attempt(id string, gen uint64, ranks int, script string) wire.Alloc {
	id = h.prefix + id
	at := &wire.AttemptSpec{
		Number: int64(gen) - 1, Generation: gen, World: int64(ranks), MasterAddr: "127.0.0.1", GroupWorld: 1,
		Command: []string{"/bin/sh", "-c", script}, WorkingDir: "/",
		FailureGrace: unit.Duration(50 * time.Millisecond),
	}
	for i := range ranks {
		at.Ranks = append(at.Ranks, wire.RankSpec{Rank: int64(i), LocalRank: int64(i)})
	}
	return wire.Alloc{ID: id, Job: "job-" + id, JobName: "test", Run: "test", Class: wire.ClassFast, Attempt: at}
}

func pids(e wire.AllocEvent) []int {
	var list []int
	for _, p := range e.PIDs {
		list = append(list, int(p.PID))
	}
	return list
}

func alive(pid int) bool {
	p, err := process.ReadProc(pid)
	return err == nil && !p.Dead()
}

// eventually waits for something outside the head's hearing.
func eventually(t testing.TB, what string, cond func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func (w *world) dir(alloc string) string { return filepath.Join(w.state, allocFolder, w.prefix+alloc) }

func (w *world) journal(alloc string) *shim.Journal {
	w.t.Helper()
	j, err := shim.ReadJournal(w.dir(alloc))
	if err != nil {
		w.t.Fatal(err)
	}
	return j
}

// readLog asks the agent for output.
func (w *world) readLog(r wire.ReadLog) wire.LogChunk {
	w.t.Helper()
	r.Alloc = w.prefix + r.Alloc
	var c wire.LogChunk
	w.ask(wire.NodeLog(node), r, &c)
	return c
}

// output waits until a rank has written something.
func (w *world) output(alloc string, attempt, rank int64) string {
	w.t.Helper()
	var c wire.LogChunk
	eventually(w.t, "output", func() error {
		c = w.readLog(wire.ReadLog{Alloc: alloc, Attempt: attempt, Rank: rank, Stream: "stdout"})
		if len(c.Data) == 0 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	return string(c.Data)
}

type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (h *testHead) job(alloc string) string { return "job-" + h.prefix + alloc }
