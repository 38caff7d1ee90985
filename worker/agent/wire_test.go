package agent

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

func TestLaunchEnvironmentStaysInMemory(t *testing.T) {
	w := newWorld(t)
	// A state folder whose socket's name is too long for an address.
	w.state = filepath.Join(w.state, strings.Repeat("long", 30))
	a, _ := w.agent()
	const canary = "canary-5d1f"
	env := []string{"SECRET=" + canary, "PATH=/bin:/usr/bin"}
	if err := SendLocalEnv(t.Context(), w.state, "launch-1", env); err != nil {
		t.Fatal(err)
	}
	al := w.attempt("a1", 1, 1, `echo "$SECRET"`)
	al.Attempt.LaunchEnv = "launch-1"
	w.want(al)
	w.event("a1", wire.EventEnded, 1)
	if c := w.readLog(wire.ReadLog{Alloc: "a1", Stream: "stdout"}); string(c.Data) != canary+"\n" {
		t.Fatalf("the rank saw %q", c.Data)
	}
	if strings.Contains(w.log.String(), canary) {
		t.Error("the log holds the secret")
	}
	err := filepath.WalkDir(w.state, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.HasSuffix(path, "stdout.log") {
			return err
		}
		b, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			return nil // a file that was replaced meanwhile
		}
		if strings.Contains(string(b), canary) {
			t.Errorf("%s holds the secret", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}

	if st, err := os.Stat(filepath.Join(w.state, localSocket)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket %v, %v; want mode 0600", st, err)
	}
	for name, bad := range map[string]func() error{
		"no key":        func() error { return a.LocalEnv("", env) },
		"key":           func() error { return a.LocalEnv("a b", env) },
		"not NAME":      func() error { return a.LocalEnv("k", []string{"=x"}) },
		"too large":     func() error { return a.LocalEnv("k", []string{"A=" + strings.Repeat("<", maxEnv/6)}) },
		"too many":      func() error { return a.LocalEnv("k", make([]string, maxEnvVars+1)) },
		"by the socket": func() error { return SendLocalEnv(t.Context(), w.state, "", env) },
	} {
		if bad() == nil {
			t.Errorf("%s: taken", name)
		}
	}
	for i := range 3 * maxEnvs { // bounded
		if err := a.LocalEnv("k"+itoa(int64(i)), env); err != nil {
			t.Fatal(err)
		}
	}
	a.mu.Lock()
	n := len(a.env.byKey)
	a.mu.Unlock()
	if n != maxEnvs {
		t.Errorf("%d environments kept, want %d", n, maxEnvs)
	}
	w.want()
	w.event("a1", wire.EventGone, 0)
}

func TestMalformedMessagesAreRefused(t *testing.T) {
	w := newWorld(t)
	a, _ := w.agent()
	w.want(w.attempt("a1", 1, 1, hello))
	w.event("a1", wire.EventStarted, 1)
	for _, subject := range []string{wire.NodeDesired(node), wire.NodeVerdict(node), wire.NodeTask(node), wire.NodeLog(node)} {
		for _, data := range [][]byte{nil, {0xc1}, []byte("no message"), make([]byte, 1<<20)} {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			if raw, err := w.conn.Request(ctx, subject, data); err == nil {
				t.Errorf("%s answered %.40q to what it cannot read", subject, raw)
			}
			cancel()
		}
	}
	for _, bad := range []wire.Desired{
		{Position: wire.Position{Term: 9}, Allocs: []wire.Alloc{{ID: "../x"}}},
		{Position: wire.Position{Term: 9}, Allocs: []wire.Alloc{{ID: "x"}, {ID: "x"}}},
		{Position: wire.Position{Term: 9}, Allocs: make([]wire.Alloc, maxAllocs+1)},
	} {
		data, err := wire.Marshal(bad)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		if _, err := w.conn.Request(ctx, wire.NodeDesired(node), data); err == nil {
			t.Errorf("took %.80v", bad)
		}
		cancel()
	}
	// The socket for processes of this machine.
	for _, data := range []string{"\xff\xff\xff\xff", "\x00\x00\x00\x00", "\x00\x00\x00\x02{}", "\x00\x00\x00\x05nojsn", "GET / HTTP/1.1\r\n\r\n"} {
		c, err := net.Dial("unix", filepath.Join(w.state, localSocket))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte(data))
		var r localReply
		if err := shim.ReadFrame(c, maxLocal, &r); err != nil || r.Error == "" {
			t.Errorf("%q was answered with %+v, %v", data, r, err)
		}
		c.Close()
	}
	if got := a.running(); len(got) != 1 {
		t.Errorf("running %v after malformed messages", got)
	}
	w.want(w.attempt("a1", 2, 1, "true")) // it still serves
	w.event("a1", wire.EventEnded, 2)
	w.want()
	w.event("a1", wire.EventGone, 0)
}

func TestCheckpointTasks(t *testing.T) {
	w := newWorld(t)
	w.agent()
	store := t.TempDir()
	name := checkpoint.StepName{Step: 7, Generation: 1, Life: "0a0b0c0d"}
	dir := checkpoint.StepDir(store, "run", name)
	if err := os.MkdirAll(filepath.Join(dir, "rank-0"), 0o700); err != nil {
		t.Fatal(err)
	}
	data := []byte("weights")
	if err := os.WriteFile(filepath.Join(dir, "rank-0", "model"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	tracker := checkpoint.NewTracker(time.Minute)
	tracker.Begin(time.Unix(0, 0), checkpoint.Attempt{Run: "run", Generation: 1, World: 1, Store: store, Life: "0a0b0c0d"}, nil)
	_, effects := tracker.Report(time.Unix(0, 0), wire.Prepared{
		Alloc: "a1", Run: "run", Generation: 1, Step: 7, World: 1, Dir: dir,
		Files: []wire.PreparedFile{{Path: "rank-0/model", Length: int64(len(data)), Digest: checkpoint.DigestBytes(data), Part: "model"}},
	})
	if len(effects.Ready) != 1 {
		t.Fatalf("effects %+v", effects)
	}
	ready := effects.Ready[0]
	do := func(kind wire.TaskKind, data []byte, change ...func(*wire.Task)) wire.TaskReply {
		t.Helper()
		task := wire.Task{ID: "t-" + string(kind), Position: wire.Position{Term: 1}, Kind: kind, Run: "run", Store: store, Step: 7, Dir: dir, Data: data, Digest: ready.Digest}
		for _, f := range change {
			f(&task)
		}
		var r wire.TaskReply
		w.ask(wire.NodeTask(node), task, &r)
		if r.ID != task.ID {
			t.Errorf("reply %+v to %s", r, task.ID)
		}
		return r
	}
	ok := func(r wire.TaskReply) {
		t.Helper()
		if r.Error != "" {
			t.Error(r.Error)
		}
	}
	ok(do(wire.TaskWriteManifest, ready.Manifest))
	mark, err := checkpoint.NewCommittedMark("test", 5, ready.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if r := do(wire.TaskWriteCommitted, mark, func(t *wire.Task) { t.Position = wire.Position{} }); r.Error == "" {
		t.Error("a deposed leader's task was carried out")
	}
	if r := do(wire.TaskDelete, nil, func(t *wire.Task) { t.Dir = store }); r.Error == "" {
		t.Error("a task outside of its run was carried out")
	}
	if r := do(wire.TaskDelete, nil, func(t *wire.Task) { t.Store = filepath.Dir(store) }); r.Error == "" {
		t.Error("a task outside of its store was carried out")
	}
	ok(do(wire.TaskWriteCommitted, mark))
	r := do(wire.TaskVerify, nil)
	ok(r)
	if r.Files != 1 || r.Bytes != int64(len(data)) {
		t.Errorf("verified %+v", r)
	}
	if err := os.WriteFile(filepath.Join(dir, "rank-0", "model"), []byte("Weights"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := do(wire.TaskVerify, nil); len(r.Bad) == 0 {
		t.Errorf("a damaged file was not found: %+v", r)
	}
	back, err := checkpoint.NewRolledBackMark("test", 6, "damaged")
	if err != nil {
		t.Fatal(err)
	}
	ok(do(wire.TaskWriteRolledBack, back))
	ok(do(wire.TaskDelete, nil))
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("deleted, and there: %v", err)
	}
	garbage := checkpoint.StepDir(store, "run", checkpoint.StepName{Step: 9, Generation: 1, Life: "0a0b0c0d"})
	if err := os.MkdirAll(garbage, 0o700); err != nil {
		t.Fatal(err)
	}
	order, err := checkpoint.NewSweepOrder("0a0b0c0d", 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r := do(wire.TaskSweep, order); r.Error != "" || r.Files != 1 {
		t.Errorf("sweep: %+v", r)
	}
	if r := do("unheard-of", nil); r.Error == "" {
		t.Error("an unknown task was carried out")
	}
}
