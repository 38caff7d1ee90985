package shim_test

import (
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// helper speaks for a rank on its socket.
type helper struct {
	t *testing.T
	c net.Conn
}

func (a *agent) helper() *helper {
	a.t.Helper()
	c, err := net.Dial("unix", filepath.Join(a.cfg.SocketDir, shim.RankSocket))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { c.Close() })
	return &helper{a.t, c}
}

func (h *helper) ask(req shim.RankRequest) *shim.RankReply {
	h.t.Helper()
	if err := shim.WriteFrame(h.c, shim.MaxRankFrame, req); err != nil {
		h.t.Fatal(err)
	}
	return h.read()
}

func (h *helper) read() *shim.RankReply {
	h.t.Helper()
	h.c.SetReadDeadline(time.Now().Add(patience))
	rep := &shim.RankReply{}
	if err := shim.ReadFrame(h.c, shim.MaxRankFrame, rep); err != nil {
		h.t.Fatal(err)
	}
	return rep
}

func (h *helper) ok(req shim.RankRequest) *shim.RankReply {
	h.t.Helper()
	rep := h.ask(req)
	if !rep.OK {
		h.t.Fatalf("%s: %s: %s", req.Op, rep.Code, rep.Error)
	}
	return rep
}

func (h *helper) refused(code string, req shim.RankRequest) {
	h.t.Helper()
	if rep := h.ask(req); rep.OK || rep.Code != code || rep.Error == "" {
		h.t.Errorf("%+v is answered with %+v, want code %s", req, rep, code)
	}
}

func (a *agent) saving(ranks int) *wire.AttemptSpec {
	s := a.spec(ranks, "sleep", "1000")
	s.Checkpoint = wire.CheckpointSpec{Store: filepath.Join(a.t.TempDir(), "store"), Life: "0123abcd", EverySteps: 50}
	return s
}

func TestHelloAdmitsTheCurrentGenerationOnly(t *testing.T) {
	a := newAgent(t, "fallback")
	h := a.helper()
	h.refused("ended", shim.RankRequest{Op: "hello", V: 1, Rank: 0, Generation: 1})
	a.start(a.saving(2))
	a.wait(wire.EventStarted)
	a.helper().refused("usage", shim.RankRequest{Op: "begin", Step: 1})
	a.helper().refused("version", shim.RankRequest{Op: "hello", Rank: 0, Generation: 1})
	a.helper().refused("generation", shim.RankRequest{Op: "hello", V: 1, Rank: 0, Generation: 2})
	a.helper().refused("generation", shim.RankRequest{Op: "hello", V: 1, Rank: 0})
	a.helper().refused("usage", shim.RankRequest{Op: "hello", V: 1, Rank: 2, Generation: 1})
	h = a.helper()
	rep := h.ok(shim.RankRequest{Op: "hello", V: 1, Rank: 1, Generation: 1, PID: 7})
	if rep.World != 2 || rep.EverySteps != 50 || !strings.HasSuffix(rep.Store, "/store") || rep.V != shim.ProtocolVersion {
		t.Errorf("hello: %+v", rep)
	}
	b, err := os.ReadFile(rep.Page)
	if err != nil || len(b) != 4096 || string(b[:4]) != "TRPG" || binary.LittleEndian.Uint64(b[8:]) != 1 || binary.LittleEndian.Uint64(b[16:]) != ^uint64(0) {
		t.Errorf("page %s: %x, %v", rep.Page, b[:min(len(b), 24)], err)
	}
	if rep := h.ok(shim.RankRequest{Op: "resume"}); rep.Step != -1 || rep.Path != "" {
		t.Errorf("resume: %+v", rep)
	}
	h.refused("usage", shim.RankRequest{Op: "hello", V: 1, Rank: 1, Generation: 1})
	h.refused("usage", shim.RankRequest{Op: "dance"})
	h.refused("usage", shim.RankRequest{Op: "bus"})
	h.ok(shim.RankRequest{Op: "phase", Name: "evaluate", TimeoutMS: 1000})
	h.ok(shim.RankRequest{Op: "report", Metrics: map[string]float64{"loss": 0.5}})

	// The page is how a step is told.
	f, err := os.OpenFile(rep.Page, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, 41), 16); err != nil {
		t.Fatal(err)
	}
	f.Close()
	a.last = nil
	a.c.Status()
	a.until("a status", func() bool { return a.last != nil })
	if s := a.last.Steps; len(s) != 2 || s[0].Step != -1 || s[1].Step != 41 {
		t.Errorf("steps: %+v", s)
	}
}

func TestTooManyConnections(t *testing.T) {
	a := newAgent(t, "fallback")
	a.start(a.saving(1))
	a.wait(wire.EventStarted)
	for range 8 {
		a.helper().ok(shim.RankRequest{Op: "hello", V: 1, Generation: 1})
	}
	if rep := a.helper().read(); rep.OK || !strings.Contains(rep.Error, "too many") {
		t.Errorf("the ninth connection: %+v", rep)
	}
}

// P4, seen from the node: prepared only when durable and hashed, told until decided.
func TestPrepareAndVerdict(t *testing.T) {
	a := newAgent(t, "cgroup", fallbackIfNone)
	s := a.saving(2)
	a.start(s)
	a.wait(wire.EventStarted)
	h := a.helper()
	h.ok(shim.RankRequest{Op: "hello", V: 1, Rank: 1, Generation: 1})
	rep := h.ok(shim.RankRequest{Op: "begin", Step: 7})
	dir := filepath.Join(s.Checkpoint.Store, "run-a", "step-7-g1-0123abcd")
	if rep.Path != filepath.Join(dir, "rank-1") || rep.Shared != filepath.Join(dir, "shared") {
		t.Fatalf("begin: %+v", rep)
	}
	if err := os.WriteFile(filepath.Join(rep.Path, "model.pt"), []byte("weights"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(rep.Path, "link")); err != nil {
		t.Fatal(err)
	}
	prepare := func(paths ...string) shim.RankRequest {
		r := shim.RankRequest{Op: "prepare", Step: 7, Cursor: "{}", Frameworks: "torch 2"}
		for _, p := range paths {
			r.Files = append(r.Files, shim.RankFile{Path: p, Part: "model"})
		}
		return r
	}
	for _, bad := range []string{"rank-0/model.pt", "../x", "/etc/passwd", "rank-1/link", "rank-1/gone", "rank-1", "rank-1/../rank-1/model.pt", ""} {
		h.refused("usage", prepare(bad))
	}
	h.refused("usage", prepare("rank-1/model.pt", "rank-1/model.pt"))
	h.refused("usage", shim.RankRequest{Op: "begin", Step: -1})
	if len(a.saves) != 0 {
		t.Fatalf("prepared was told: %+v", a.saves)
	}
	h.ok(prepare("rank-1/model.pt"))
	a.until("prepared three times", func() bool { return len(a.saves) >= 3 })
	p := a.saves[0]
	want := wire.PreparedFile{Path: "rank-1/model.pt", Length: 7, Digest: checkpoint.DigestBytes([]byte("weights")), Part: "model"}
	if p.Dir != dir || p.Rank != 1 || p.World != 2 || p.Generation != 1 || p.Step != 7 || len(p.Files) != 1 || p.Files[0] != want {
		t.Errorf("prepared: %+v", p)
	}

	// Pending decides nothing; the word of another generation neither.
	a.c.Verdict(&wire.Verdict{Generation: 1, Step: 7, State: "pending"})
	a.c.Verdict(&wire.Verdict{Generation: 2, Step: 7, State: "committed"})
	n := len(a.saves)
	a.until("prepared again", func() bool { return len(a.saves) >= n+2 })

	answer := make(chan *shim.RankReply, 1)
	go func() { answer <- h.ask(shim.RankRequest{Op: "verdict", Step: 7}) }()
	a.c.Verdict(&wire.Verdict{Generation: 1, Step: 7, State: "dropped", Reason: "rank 0 failed"})
	a.c.Verdict(&wire.Verdict{Generation: 1, Step: 7, State: "committed"}) // too late: it was decided
	if rep := <-answer; !rep.OK || rep.State != "dropped" || rep.Reason != "rank 0 failed" {
		t.Errorf("verdict: %+v", rep)
	}
	if rep := h.ok(shim.RankRequest{Op: "abort", Step: 7}); rep.State != "dropped" || rep.Reason != "rank 0 failed" {
		t.Errorf("given up after it was dropped: %+v", rep)
	}

	// A rank that waits for a verdict is answered when its attempt ends, and what it
	// prepared is told even then.
	h.ok(shim.RankRequest{Op: "begin", Step: 8})
	os.WriteFile(filepath.Join(s.Checkpoint.Store, "run-a", "step-8-g1-0123abcd", "rank-1", "m"), nil, 0o600)
	r := prepare("rank-1/m")
	r.Step = 8
	h.ok(r)
	go func() { answer <- h.ask(shim.RankRequest{Op: "verdict", Step: 8}) }()
	a.c.Stop(&wire.StopOrder{Reason: "test"})
	a.wait(wire.EventEnded)
	if rep := <-answer; rep.OK || rep.Code != "ended" {
		t.Errorf("verdict after the end: %+v", rep)
	}
	a.saves = nil
	a.until("prepared after the end", func() bool { return len(a.saves) >= 2 })
	if a.saves[0].Step != 8 {
		t.Errorf("prepared: %+v", a.saves[0])
	}
	a.end()
	for _, p := range process.Find(process.Target{Cookie: a.cfg.Cookie}) {
		t.Errorf("left: %+v", p)
	}
}

func TestBeginRefusesLinks(t *testing.T) {
	a := newAgent(t, "fallback")
	s := a.saving(1)
	elsewhere := t.TempDir()
	if err := os.MkdirAll(s.Checkpoint.Store, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(s.Checkpoint.Store, "run-a")); err != nil {
		t.Fatal(err)
	}
	a.start(s)
	a.wait(wire.EventStarted)
	h := a.helper()
	h.ok(shim.RankRequest{Op: "hello", V: 1, Generation: 1})
	h.refused("usage", shim.RankRequest{Op: "begin", Step: 1})
	if ents, _ := os.ReadDir(elsewhere); len(ents) != 0 {
		t.Errorf("something was made behind the link: %v", ents)
	}
}

// committed makes a whole step of one rank on disk and returns how to restore it.
func committed(t *testing.T, store string) *wire.RestoreSpec {
	t.Helper()
	dir := filepath.Join(store, "run-a", "step-5-g1-0123abcd")
	if err := os.MkdirAll(filepath.Join(dir, "rank-0"), 0o700); err != nil {
		t.Fatal(err)
	}
	data := []byte("some weights")
	if err := os.WriteFile(filepath.Join(dir, "rank-0", "m"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	b, digest, err := checkpoint.Build([]wire.Prepared{{
		Run: "run-a", Generation: 1, Step: 5, World: 1, Dir: dir,
		Files: []wire.PreparedFile{{Path: "rank-0/m", Length: int64(len(data)), Digest: checkpoint.DigestBytes(data), Part: "model"}},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, checkpoint.ManifestFile), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return &wire.RestoreSpec{Step: 5, Dir: dir, Digest: digest}
}

func TestRestoreIsVerifiedFirst(t *testing.T) {
	cases := []struct {
		name   string
		damage func(t *testing.T, r *wire.RestoreSpec)
		want   string // of the damaged event; "" for a whole step
	}{
		{"whole", func(*testing.T, *wire.RestoreSpec) {}, ""},
		{"a flipped byte", func(t *testing.T, r *wire.RestoreSpec) {
			os.WriteFile(filepath.Join(r.Dir, "rank-0", "m"), []byte("some weighte"), 0o600)
		}, "rank-0/m: digest"},
		{"a short file", func(t *testing.T, r *wire.RestoreSpec) { os.Truncate(filepath.Join(r.Dir, "rank-0", "m"), 3) }, "rank-0/m: short"},
		{"a missing file", func(t *testing.T, r *wire.RestoreSpec) { os.Remove(filepath.Join(r.Dir, "rank-0", "m")) }, "rank-0/m: missing"},
		{"another manifest", func(t *testing.T, r *wire.RestoreSpec) { r.Digest = strings.Repeat("0", 32) }, "manifest.json: xxh3-128"},
		{"no manifest", func(t *testing.T, r *wire.RestoreSpec) { os.Remove(filepath.Join(r.Dir, checkpoint.ManifestFile)) }, "manifest.json: missing"},
		{"a spoiled manifest", func(t *testing.T, r *wire.RestoreSpec) {
			os.WriteFile(filepath.Join(r.Dir, checkpoint.ManifestFile), []byte("{}"), 0o600)
		}, "manifest.json: "},
		{"an unmounted store", func(t *testing.T, r *wire.RestoreSpec) { os.RemoveAll(filepath.Dir(filepath.Dir(r.Dir))) }, "io: "},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a := newAgent(t, "fallback")
			s := a.saving(1)
			s.Restore = committed(t, s.Checkpoint.Store)
			c.damage(t, s.Restore)
			a.start(s)
			a.wait(wire.EventStarted)
			h := a.helper()
			h.ok(shim.RankRequest{Op: "hello", V: 1, Generation: 1})
			answer := make(chan *shim.RankReply, 1)
			go func() { answer <- h.ask(shim.RankRequest{Op: "resume"}) }()
			if c.want != "" {
				e := a.wait(wire.EventDamaged)
				if !strings.HasPrefix(e.Message, c.want) {
					t.Errorf("damaged: %q, want %q", e.Message, c.want)
				}
				if a.event(wire.EventVerified, 0) != nil {
					t.Error("verified as well")
				}
				a.c.Stop(&wire.StopOrder{Reason: "test"})
				if rep := <-answer; rep.OK || rep.Code != "ended" {
					t.Errorf("resume: %+v", rep)
				}
				return
			}
			a.wait(wire.EventVerified)
			select {
			case rep := <-answer:
				t.Fatalf("resume answered before every share was verified: %+v", rep)
			default:
			}
			a.c.Verified(1)
			if rep := <-answer; !rep.OK || rep.Step != 5 || rep.Path != s.Restore.Dir {
				t.Errorf("resume: %+v", rep)
			}
		})
	}
}

// A saver that dies answers what it was doing with an error, and the next save works.
func TestSaverDeath(t *testing.T) {
	a := newAgent(t, "fallback")
	a.start(a.saving(1))
	a.wait(wire.EventStarted)
	h := a.helper()
	h.ok(shim.RankRequest{Op: "hello", V: 1, Generation: 1})
	h.ok(shim.RankRequest{Op: "begin", Step: 1})
	var killed bool
	for _, p := range process.Find(process.Target{Cookie: a.cfg.Cookie}) {
		if isSaver(p.PID) {
			q, _ := os.FindProcess(p.PID)
			q.Kill()
			killed = true
		}
	}
	if !killed {
		t.Fatal("no saver runs after begin")
	}
	eventually(t, "a new saver", func() error {
		rep := h.ask(shim.RankRequest{Op: "begin", Step: 2})
		if !rep.OK && rep.Code != "io" {
			t.Fatalf("begin: %+v", rep)
		}
		if !rep.OK {
			return os.ErrProcessDone
		}
		return nil
	})
}
