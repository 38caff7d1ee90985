package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	adminToken  = "admin-token-of-the-test"
	viewerToken = "viewer-token-of-the-test"
)

// fake is a backend in memory. Every change counts in index, so that a test can see
// whether anything was written.
type fake struct {
	mu       sync.Mutex
	index    uint64
	changed  chan struct{}
	jobList  []api.Job
	groups   []api.Group
	nodes    []api.Node
	actors   []api.Actor
	points   []api.Checkpoint
	eventLog []api.Event
	dropped  uint64 // events up to this seq are gone
	logs     map[string]*wire.LogChunk
	keys     map[string]Idempotency
	made     map[string]time.Time
	revoked  map[string]bool
	writes   []string
	ready    error
	failWith error // every read fails with this
	lastStop time.Duration
	packages map[string]int64
}

var start = time.Date(2031, 5, 4, 12, 0, 0, 0, time.UTC)

func newFake() *fake {
	return &fake{
		index: 10, changed: make(chan struct{}), logs: map[string]*wire.LogChunk{}, packages: map[string]int64{packageHash: 7},
		keys: map[string]Idempotency{}, made: map[string]time.Time{}, revoked: map[string]bool{},
	}
}

// change runs f and wakes whoever waits.
func (b *fake) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.index++
	f()
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *fake) event(object, text string) {
	b.change(func() {
		seq := b.dropped + uint64(len(b.eventLog)) + 1
		b.eventLog = append(b.eventLog, api.Event{Seq: seq, Index: b.index, Time: start, Type: "job-placed", Object: object, Text: text})
	})
}

func (b *fake) wrote(what string) error {
	b.change(func() { b.writes = append(b.writes, what) })
	return nil
}

func (b *fake) read() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failWith
}

func (b *fake) Status(context.Context) (api.Status, error) {
	if err := b.read(); err != nil {
		return api.Status{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := api.Status{
		Cluster: "01J0CLUSTER", Leader: "head-1", Version: "0.1.0", Level: 1, Index: b.index, Time: start,
		Nodes: map[string]int64{}, Jobs: map[string]int64{}, Groups: map[string]int64{},
	}
	for _, j := range b.jobList {
		s.Jobs[string(j.State)]++
	}
	for _, g := range b.groups {
		s.Groups[string(g.State)]++
	}
	for _, n := range b.nodes {
		s.Nodes[string(n.State)]++
		s.Capacity.CPU += n.Capacity.CPU
		s.Capacity.Memory += n.Capacity.Memory
		s.Capacity.GPUs += n.Capacity.GPUs
		s.Allocated.CPU += n.Allocated.CPU
		s.Allocated.Memory += n.Allocated.Memory
		s.Allocated.GPUs += n.Allocated.GPUs
	}
	return s, nil
}

func (b *fake) Jobs(context.Context) ([]api.Job, uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.jobList, b.index, b.failWith
}

func (b *fake) Job(_ context.Context, id string) (api.Job, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failWith != nil {
		return api.Job{}, b.failWith
	}
	for _, j := range b.jobList {
		if j.ID == id {
			return j, nil
		}
	}
	return api.Job{}, notFound("job", id)
}

func (b *fake) Package(_ context.Context, hash string) (api.Package, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n, ok := b.packages[hash]; ok {
		return api.Package{Hash: hash, Size: n}, nil
	}
	return api.Package{}, notFound("package", hash)
}

func (b *fake) PutPackage(_ context.Context, hash string, size int64, body io.Reader) (api.Package, error) {
	n, err := io.Copy(io.Discard, body)
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.packages[hash] = n
	}
	return api.Package{Hash: hash, Size: n}, err
}

func (b *fake) setJob(j api.Job) {
	b.change(func() {
		j.Index = b.index
		for i := range b.jobList {
			if b.jobList[i].ID == j.ID {
				list := append([]api.Job(nil), b.jobList...)
				list[i] = j
				b.jobList = list
				return
			}
		}
		b.jobList = append([]api.Job{j}, b.jobList...)
	})
}

func (b *fake) Groups(context.Context) ([]api.Group, uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.groups, b.index, b.failWith
}

func (b *fake) Group(_ context.Context, id string) (api.Group, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.groups {
		if g.ID == id {
			return g, nil
		}
	}
	return api.Group{}, notFound("pg", id)
}

func (b *fake) setGroup(g api.Group) {
	b.change(func() {
		g.Index = b.index
		for i := range b.groups {
			if b.groups[i].ID == g.ID {
				b.groups[i] = g
				return
			}
		}
		b.groups = append(b.groups, g)
	})
}

func (b *fake) Nodes(context.Context) ([]api.Node, uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.nodes, b.index, b.failWith
}

func (b *fake) Actors(context.Context) ([]api.Actor, uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.actors, b.index, b.failWith
}

func (b *fake) Actor(_ context.Context, id string) (api.Actor, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.actors {
		if a.ID == id || a.Namespace+"/"+a.Name == id {
			return a, nil
		}
	}
	return api.Actor{}, notFound("actor", id)
}

func (b *fake) Saving(_ context.Context, run string) *api.SavingPlan {
	return &api.SavingPlan{Interval: "auto", Stall: unit.Duration(len(run))}
}

func (b *fake) Checkpoints(_ context.Context, run string) ([]api.Checkpoint, uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []api.Checkpoint
	for _, c := range b.points {
		if run == "" || c.Run == run {
			out = append(out, c)
		}
	}
	return out, b.index, b.failWith
}

func (b *fake) Events(_ context.Context, after uint64, object string, limit int) ([]api.Event, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []api.Event
	for _, e := range b.eventLog {
		if e.Seq > after && e.Seq > b.dropped && (object == "" || e.Object == object) && len(out) < limit {
			out = append(out, e)
		}
	}
	return out, after < b.dropped, b.failWith
}

func (b *fake) LastEvents(_ context.Context, object string, limit int) ([]api.Event, error) {
	rows, _, err := b.Events(context.Background(), 0, object, 1<<30)
	return rows[max(0, len(rows)-limit):], err
}

func (b *fake) JobChanged(string) <-chan struct{}   { return b.Changed() }
func (b *fake) GroupChanged(string) <-chan struct{} { return b.Changed() }

func (b *fake) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

func (b *fake) Index() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.index
}

func (b *fake) Why(_ context.Context, target string, whatIf ...string) (api.Why, error) {
	w := api.Why{Target: target, State: "QUEUED", Answer: "it waits"}
	for _, x := range whatIf {
		w.Alternatives = append(w.Alternatives, api.Alternative{Change: x})
	}
	return w, nil
}

func (b *fake) ReadLog(_ context.Context, job string, rank, attempt int64, stream string, offset, limit int64) (wire.LogChunk, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	file, ok := b.logs[fmt.Sprintf("%s/%d/%d/%s", job, rank, attempt, stream)]
	if !ok {
		p := access.NewProblem(http.StatusNotFound, "TRP-T001", api.ExitNotFound, "not started", "")
		p.Retryable = true
		return wire.LogChunk{}, p
	}
	from := max(offset, file.Start)
	at := min(from-file.Start, int64(len(file.Data)))
	end := min(at+limit, int64(len(file.Data)))
	return wire.LogChunk{Start: file.Start + at, Data: file.Data[at:end], Size: file.Start + int64(len(file.Data)), Ended: file.Ended && file.Start+end == file.Start+int64(len(file.Data))}, nil
}

func (b *fake) Submit(_ context.Context, spec api.JobSpec, key Idempotency) (Made, error) {
	b.mu.Lock()
	old, known := b.keys[key.Key]
	at := b.made[key.Key]
	b.mu.Unlock()
	if key.Key != "" && known {
		if old.Fingerprint != key.Fingerprint {
			return Made{}, access.NewProblem(http.StatusUnprocessableEntity, "TRP-T002", api.ExitConflict, "another request has this key", "")
		}
		return Made{ID: "keyed", Previously: at, Index: b.Index()}, nil
	}
	id := spec.Name
	if key.Key != "" {
		id = "keyed"
	}
	b.setJob(api.Job{ID: id, ULID: "01J0" + id, Spec: spec, State: api.Queued, Created: start})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keys[key.Key], b.made[key.Key] = key, start
	b.writes = append(b.writes, "submit")
	return Made{ID: id, Index: b.index}, nil
}

func (b *fake) Stop(ctx context.Context, job string, grace time.Duration, _ string) (api.Job, error) {
	b.mu.Lock()
	b.lastStop = grace
	b.mu.Unlock()
	j, err := b.Job(ctx, job)
	if err != nil {
		return j, err
	}
	j.State = api.Stopped
	b.setJob(j)
	return j, b.wrote("stop")
}

func (b *fake) StopSaved(ctx context.Context, job string, deadline time.Duration, reason string) (api.Job, error) {
	return b.Stop(ctx, job, deadline, reason)
}

func (b *fake) Scale(ctx context.Context, job string, ranks int64, _ string) (api.Job, error) {
	j, err := b.Job(ctx, job)
	if err != nil {
		return j, err
	}
	j.Spec.Ranks = ranks
	b.setJob(j)
	return j, b.wrote("scale")
}

func (b *fake) DrainNode(ctx context.Context, id string, drain bool, _ time.Duration, reason string) (api.Node, error) {
	return b.cordoned(ctx, id, &api.Cordon{Drain: drain, Reason: reason, Since: start})
}

func (b *fake) UncordonNode(ctx context.Context, id string) (api.Node, error) {
	return b.cordoned(ctx, id, nil)
}

func (b *fake) cordoned(ctx context.Context, id string, c *api.Cordon) (api.Node, error) {
	nodes, _, err := b.Nodes(ctx)
	for _, n := range nodes {
		if n.ID == id {
			n.Cordon = c
			return n, b.wrote("cordon")
		}
	}
	return api.Node{}, err
}

func (b *fake) Disown(ctx context.Context, job string) (api.Job, error) {
	j, err := b.Job(ctx, job)
	if err != nil {
		return j, err
	}
	j.Spec.Owner = nil
	b.setJob(j)
	return j, b.wrote("disown")
}

func (b *fake) Signal(ctx context.Context, job string, r api.SignalRequest) (api.SignalResult, error) {
	j, err := b.Job(ctx, job)
	if err != nil {
		return api.SignalResult{}, err
	}
	return api.SignalResult{Job: j.ID, Signal: r.Signal, Ranks: r.Ranks}, b.wrote("signal")
}

func (b *fake) InjectFault(ctx context.Context, job string, r api.FaultRequest) (api.FaultResult, error) {
	j, err := b.Job(ctx, job)
	if err != nil {
		return api.FaultResult{}, err
	}
	return api.FaultResult{Fault: r.Fault, Job: j.ID, Node: "n1", Did: "harm", At: start}, b.wrote("fault")
}

func (b *fake) CreateGroup(_ context.Context, spec api.GroupSpec, _ Idempotency) (Made, error) {
	b.setGroup(api.Group{ID: "pg-1", Spec: spec, State: api.GroupPending, Created: start})
	return Made{ID: "pg-1", Index: b.Index()}, b.wrote("create-group")
}

func (b *fake) RemoveGroup(ctx context.Context, id string) (api.Group, error) {
	g, err := b.Group(ctx, id)
	if err != nil {
		return g, err
	}
	g.State = api.GroupRemoved
	b.setGroup(g)
	return g, b.wrote("remove-group")
}

func (b *fake) Verify(_ context.Context, run string, step int64) (api.VerifyResult, error) {
	return api.VerifyResult{Run: run, Step: step, OK: true}, b.wrote("verify")
}

func (b *fake) KillActor(ctx context.Context, id string, _ bool) (api.Actor, error) {
	a, err := b.Actor(ctx, id)
	if err != nil {
		return a, err
	}
	return a, b.wrote("kill")
}

func (b *fake) BusAccess(context.Context) (api.BusAccess, error) {
	return api.BusAccess{URLs: []string{"nats://127.0.0.1:7602"}, User: "u", Password: "p"}, b.wrote("bus-access")
}

func (b *fake) Version() api.Version {
	return api.Version{Version: "0.1.0", Go: "go", Level: 1, UI: "missing"}
}

func (b *fake) Ready(context.Context) error { return b.ready }

func (b *fake) TokenRole(token string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.revoked[token]:
		return ""
	case token == adminToken:
		return "admin"
	case token == viewerToken:
		return "viewer"
	}
	return ""
}

var _ Backend = (*fake)(nil)

// populated is a backend with some of everything.
func populated() *fake {
	b := newFake()
	b.nodes = []api.Node{
		{
			ID: "node-a1", Name: "alpha", State: api.NodeReady, Registered: start, LastHeartbeat: start,
			Capacity:  api.Resources{CPU: 16000, Memory: 64 * unit.GiB, GPUs: 2},
			Allocated: api.Resources{CPU: 4000, Memory: 8 * unit.GiB, GPUs: 1}, Groups: []string{"pg-digits"},
			GPUs: []api.GPU{
				{Index: 0, UUID: "GPU-0", Model: "Fake 80GiB", Total: 80 << 30, Usable: 77 << 30, Used: new(int64(0)), Owner: "pg-digits"},
				{Index: 1, UUID: "GPU-1", Model: "Fake 80GiB", Total: 80 << 30, Usable: 77 << 30},
			},
		},
		{
			ID: "node-b2", Name: "beta", State: api.NodeSuspect, Registered: start, LastHeartbeat: start.Add(-5 * time.Second),
			Capacity:   api.Resources{CPU: 8000, Memory: 32 * unit.GiB},
			Conditions: []api.Condition{{Type: "Ready", Status: "Unknown", Message: "no heartbeat for 4 s"}},
		},
	}
	b.groups = []api.Group{
		{
			ID: "pg-digits", State: api.GroupPlaced, Job: "digits-7f3k", Created: start.Add(-time.Minute), Placed: start,
			Spec:    api.GroupSpec{Bundles: []api.Bundle{{Resources: api.Resources{CPU: 1000}}, {Resources: api.Resources{CPU: 1000}}}, Strategy: api.Pack},
			Bundles: []api.Placed{{Bundle: 0, Node: "alpha"}, {Bundle: 1, Node: "alpha"}},
		},
		{
			ID: "pg-big", State: api.GroupPending, Created: start.Add(-30 * time.Second),
			Spec:   api.GroupSpec{Name: "big", Bundles: []api.Bundle{{Resources: api.Resources{CPU: 4000, GPUs: 8, Memory: 512 * unit.GiB}}}, Strategy: api.StrictPack},
			Reason: &api.Reason{Code: api.ReasonNeverFits, Text: "needs 8 GPUs on one node; the largest node has 2 (alpha)", Blockers: []string{"alpha"}, Frees: "a node with 8 GPUs"},
		},
	}
	b.jobList = []api.Job{
		{
			ID: "digits-7f3k", ULID: "01J3", Run: "digits", State: api.Recovering, Group: "pg-digits", Attempt: 1, Generation: 2, Created: start.Add(-2 * time.Minute), Started: start.Add(-100 * time.Second),
			Spec: api.JobSpec{Name: "digits", Command: []string{"python", "train.py", "--lr", "<0.1>"}, Ranks: 4, Resources: api.Resources{CPU: 1000}}, Index: 9,
			Reason: &api.Reason{Code: api.ReasonUserError, Text: "rank 2 was killed by signal 9 (SIGKILL); attempt 1 restores step 40"}, Step: new(int64(0)), Committed: new(int64(40)),
			Attempts: []api.Attempt{
				{
					Number: 0, Generation: 1, Created: start.Add(-100 * time.Second), Ended: start.Add(-10 * time.Second), Cause: api.CauseInfra,
					Ranks:   []api.Rank{{Rank: 0, Node: "alpha", PID: 4001, State: "ended", Step: new(int64(43))}, {Rank: 1, LocalRank: 1, Node: "alpha", PID: 4002, State: "ended", Step: new(int64(43))}},
					Failure: &api.Failure{Rank: 2, Node: "alpha", ExitCode: 137, Signal: "SIGKILL", Message: "killed by signal 9 (SIGKILL)", Traceback: "Traceback (most recent call last):\n  File \"train.py\", line 3\nValueError: bad shape"},
				},
				{Number: 1, Generation: 2, Created: start.Add(-5 * time.Second), RestoreStep: new(int64(40)), Ranks: []api.Rank{{Rank: 0, Node: "alpha"}, {Rank: 1, LocalRank: 1, Node: "alpha"}}},
			},
		},
		{ID: "eval-k2m9", ULID: "01J2", Run: "eval", State: api.Queued, Created: start.Add(-40 * time.Second), Spec: api.JobSpec{Name: "eval", Command: []string{"true"}, Ranks: 16}, Reason: &api.Reason{Code: api.ReasonFit, Text: "needs 16 CPU; 12 are free", Blockers: []string{"digits-7f3k"}, Frees: "the end of digits-7f3k"}},
		{ID: "warm-aaaa", ULID: "01J1", Run: "warm", State: api.Succeeded, Created: start.Add(-3 * time.Hour), Started: start.Add(-3 * time.Hour), Ended: start.Add(-2 * time.Hour), ExitCode: new(int64(0)), Spec: api.JobSpec{Name: "warm", Command: []string{"true"}, Ranks: 1}},
		{ID: "fail-bbbb", ULID: "01J0", Run: "fail", State: api.Failed, Created: start.Add(-26 * time.Hour), Started: start.Add(-26 * time.Hour), Ended: start.Add(-26 * time.Hour).Add(3 * time.Second), ExitCode: new(int64(1)), Spec: api.JobSpec{Name: "fail", Command: []string{"false"}, Ranks: 1}, Reason: &api.Reason{Code: api.ReasonBudget, Text: "the budget of 3 restarts is used up"}},
	}
	b.actors = []api.Actor{{ID: "counter-1a2b", Name: "counter", Namespace: "default", Class: "Counter", State: "ALIVE", Node: "alpha", PID: 77, Generation: 3}}
	b.points = []api.Checkpoint{
		{Run: "digits", Step: 40, Generation: 1, World: 4, Bytes: 5 << 20, Files: 8, State: "committed", Committed: start.Add(-12 * time.Second)},
		{Run: "digits", Step: 20, Generation: 1, World: 4, Bytes: 5 << 20, Files: 8, State: "rolled-back", Reason: "rank-1/model.pt has another digest", Committed: start.Add(-50 * time.Second)},
	}
	b.logs["digits-7f3k/0/1/stdout"] = &wire.LogChunk{Data: []byte("step 41\nstep 42\n")}
	for i := range 5 {
		b.event("job/digits-7f3k", fmt.Sprintf("event %d", i))
	}
	return b
}

// serverFor builds the handler; times stand still at start.
func serverFor(t *testing.T, b *fake, change func(*Options)) *server {
	t.Helper()
	o := Options{Backend: b, Now: func() time.Time { return start }}
	if change != nil {
		change(&o)
	}
	s, err := build(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ask sends one request in memory; headers come in pairs.
func ask(h http.Handler, method, target, token, body string, headers ...string) *httptest.ResponseRecorder {
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r := httptest.NewRequest(method, target, reader)
	r.Host = "127.0.0.1:7600"
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func (b *fake) Goodput(_ context.Context, id string) (api.Goodput, error) {
	g := api.Goodput{Job: id, Wall: unit.Duration(time.Minute), Useful: unit.Duration(45 * time.Second), Waiting: unit.Duration(15 * time.Second), Ratio: 0.75, AsOf: start}
	return g, b.read()
}

func (b *fake) History(context.Context, string) ([]api.History, uint64, error) {
	took := unit.Duration(3 * time.Second)
	return []api.History{
		{Attempt: 1, Generation: 2, Start: start, Ranks: 4, RecoveryTime: &took},
		{Attempt: 0, Generation: 1, Start: start.Add(-time.Minute), End: start, Ranks: 4, Cause: api.CauseInfra, LostWork: unit.Duration(5 * time.Second)},
	}, b.Index(), b.read()
}

func (b *fake) Failures(context.Context, string) ([]api.FailureRow, uint64, error) {
	return []api.FailureRow{
		{Time: start, Attempt: 0, Rank: 2, Kind: "infrastructure", Root: true, Message: "killed"},
		{Time: start, Attempt: 0, Rank: 1, Kind: api.KindConsequence, Message: "Connection reset"},
		{Time: start, Attempt: 1, Rank: 0, Kind: "user", Root: true, Message: "ValueError"},
	}, b.Index(), b.read()
}

func (b *fake) Stacks(_ context.Context, id string) (api.Stacks, error) {
	return api.Stacks{Job: id, Groups: []api.StackGroup{{Ranks: []int64{0, 1}, Stack: "recv"}}, Time: start}, b.read()
}

func (b *fake) Measures(ctx context.Context) (Measures, error) {
	s, err := b.Status(ctx)
	age := 7.5
	g, _ := b.Goodput(ctx, "digits-7f3k")
	return Measures{
		Status: s, GPUs: map[string]int64{"free": 3}, Pending: map[QueueReason]int64{{"default", "Fit"}: 2},
		Jobs: []JobMeasures{{Job: "digits-7f3k", Goodput: g, CheckpointAge: &age}}, Lost: map[string]float64{"user": 12.5},
		Recovery: map[string]Histogram{"user": {Count: 3, Sum: 4, Bounds: []float64{1, 2}, Counts: []uint64{1, 3}}},
	}, err
}
