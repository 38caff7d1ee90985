package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// protocol runs the whole of a save on a disk in memory: ranks write, the saver syncs and
// hashes, the tracker agrees, an agent writes the manifest, the log takes the entry,
// an agent writes committed.json. The log is the one thing that no fault here loses.
type protocol struct {
	t    *testing.T
	mem  *disk.Mem
	fs   *disk.Faulty
	ops  int // operations so far
	log  []logged
	tell func(phase string) // called as the save gets on
}

// on puts the protocol on a disk. before sees the number and kind of every operation
// before it happens, and may inject a fault for it.
func (p *protocol) on(mem *disk.Mem, before func(op int, kind disk.Op)) {
	p.mem, p.fs, p.ops = mem, disk.NewFaulty(mem), 0
	p.fs.Before(func(kind disk.Op, _ string) {
		op := p.ops
		p.ops++
		if before != nil {
			before(op, kind)
		}
	})
}

// mkdir and write are what a rank does.
func mkdir(t testing.TB, fsys FS, name string) {
	t.Helper()
	if err := fsys.MkdirAll(name, 0o755); err != nil {
		t.Fatal(err)
	}
}

func write(fsys FS, name string, data []byte) error {
	f, err := createNew(fsys, name)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

type logged struct {
	Record
	dir    string
	marked bool // WriteCommitted returned success
}

const (
	protocolWorld = 2
	protocolLife  = "0a1b2c3d"
)

func newProtocol(t *testing.T) *protocol {
	t.Helper()
	p := &protocol{t: t, tell: func(string) {}}
	p.on(disk.NewMem(), nil)
	mkdir(t, p.mem, testStore)
	if err := p.mem.SyncDir("/"); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *protocol) records() []Record {
	var out []Record
	for _, l := range p.log {
		out = append(out, l.Record)
	}
	return out
}

func (p *protocol) content(rank, step int64, gen uint64) []byte {
	return []byte(strings.Repeat(fmt.Sprintf("rank %d step %d generation %d;", rank, step, gen), 60))
}

func (p *protocol) save(step int64, gen uint64) error {
	ctx := p.t.Context()
	name := StepName{Step: step, Generation: gen, Life: protocolLife}
	dir := StepDir(testStore, "digits", name)
	tracker := NewTracker(time.Minute)
	var newest *Record
	if n, ok := Newest(p.records(), NoCeiling); ok {
		newest = &n
	}
	tracker.Begin(t0, Attempt{Run: "digits", Generation: gen, World: protocolWorld, Store: testStore, Life: protocolLife}, newest)
	for r := range int64(protocolWorld) {
		rankDir := path.Join(dir, RankDir(r))
		if err := p.fs.MkdirAll(rankDir, 0o755); err != nil {
			return err
		}
		report := wire.Prepared{Alloc: "a", Run: "digits", Generation: gen, Step: step, Rank: r, World: protocolWorld, Dir: dir}
		for _, base := range []string{"model.pt", "rng.pt"} {
			if err := write(p.fs, path.Join(rankDir, base), p.content(r, step, gen)); err != nil {
				return err
			}
		}
		if err := SyncTree(ctx, p.fs, testStore, rankDir); err != nil {
			return err
		}
		for _, base := range []string{"model.pt", "rng.pt"} {
			digest, length, err := HashFile(ctx, p.fs, path.Join(rankDir, base))
			if err != nil {
				return err
			}
			report.Files = append(report.Files, wire.PreparedFile{Path: RankDir(r) + "/" + base, Length: length, Digest: digest})
		}
		tracker.Report(t0, report)
	}
	p.tell("prepared")
	ready, ok := tracker.Committing("digits")
	if !ok {
		p.t.Fatalf("step %d did not become ready", step)
	}
	do := func(kind wire.TaskKind, data []byte) error {
		// A leader whose agent fails asks another one.
		task := wire.Task{Kind: kind, Run: "digits", Store: testStore, Step: step, Dir: dir, Data: data, Digest: ready.Digest}
		r := Do(ctx, Directories(p.fs, "w"), p.fs, task, t0)
		if r.Error != "" {
			r = Do(ctx, Directories(p.fs, "other"), p.fs, task, t0)
		}
		if r.Error != "" {
			return errors.New(r.Error)
		}
		return nil
	}
	if err := do(wire.TaskWriteManifest, ready.Manifest); err != nil {
		return err
	}
	p.log = append(p.log, logged{Record: Record{StepName: name, Digest: ready.Digest}, dir: dir})
	p.tell("committed")
	if err := do(wire.TaskWriteCommitted, mark(p.t, ready.Digest)); err != nil {
		return err
	}
	p.log[len(p.log)-1].marked = true
	p.tell("marked")
	return nil
}

// restore is what a new attempt does: the newest of the log, verified; damage is
// rolled back and the one before is tried. It returns the step, and how many were
// rolled back.
func (p *protocol) restore() (Record, int) {
	p.t.Helper()
	back := 0
	for range len(p.log) + 1 {
		n, ok := Newest(p.records(), NoCeiling)
		if !ok {
			return Record{}, back
		}
		for i := range p.log {
			l := &p.log[i]
			if l.StepName != n.StepName {
				continue
			}
			r := Do(p.t.Context(), Directories(p.fs, "w2"), p.fs, wire.Task{Kind: wire.TaskVerify, Run: "digits", Store: testStore, Dir: l.dir, Digest: l.Digest}, t0)
			if r.Error == "" {
				p.intact(*l)
				return n, back
			}
			if len(r.Bad) == 0 {
				p.t.Fatalf("restore cannot read %s: %s", l.dir, r.Error)
			}
			l.RolledBack = true
			back++
			m, err := NewRolledBackMark("c", 1, r.Error)
			if err != nil {
				p.t.Fatal(err)
			}
			if r := Do(p.t.Context(), Directories(p.fs, "w2"), p.fs, wire.Task{Kind: wire.TaskWriteRolledBack, Run: "digits", Store: testStore, Dir: l.dir, Data: m}, t0); r.Error != "" {
				p.t.Fatal(r.Error)
			}
		}
	}
	p.t.Fatal("a step that was rolled back is chosen again")
	return Record{}, 0
}

// intact compares a step byte for byte with what the ranks wrote (I22).
func (p *protocol) intact(l logged) {
	p.t.Helper()
	for r := range int64(protocolWorld) {
		for _, base := range []string{"model.pt", "rng.pt"} {
			data, err := readSmall(p.mem, path.Join(l.dir, RankDir(r), base), 1<<20)
			if err != nil || string(data) != string(p.content(r, l.Step, l.Generation)) {
				p.t.Fatalf("step %d verified, but %s/%s is not what was saved (%v)", l.Step, RankDir(r), base, err)
			}
		}
	}
}

// adopt is what a head without its log does: the newest candidate that verifies.
func (p *protocol) adopt() (StepName, bool) {
	p.t.Helper()
	s, err := NewDirectory(p.fs, testStore, "w3")
	if err != nil {
		p.t.Fatal(err)
	}
	l, err := s.List(p.t.Context(), "digits")
	if err != nil {
		p.t.Fatal(err)
	}
	for _, c := range l.Candidates {
		if _, err := s.Verify(p.t.Context(), "digits", c.Dir, c.Mark.Digest); err == nil {
			return c.StepName, true
		}
	}
	return StepName{}, false
}

// candidatesAreWhole: whatever a step's deletion or save left behind, a directory
// that looks committed is.
func (p *protocol) candidatesAreWhole() {
	p.t.Helper()
	s, err := NewDirectory(p.fs, testStore, "w3")
	if err != nil {
		p.t.Fatal(err)
	}
	l, err := s.List(p.t.Context(), "digits")
	if err != nil {
		p.t.Fatal(err)
	}
	for _, c := range l.Candidates {
		if _, err := s.Verify(p.t.Context(), "digits", c.Dir, c.Mark.Digest); err != nil {
			p.t.Fatalf("%s looks committed: %v", c.Dir, err)
		}
	}
}

// goOn proves that the run can continue: garbage goes, the next generation saves the
// very step that was disturbed, and it commits and restores.
func (p *protocol) goOn(gen uint64) {
	p.t.Helper()
	p.on(p.mem, nil)
	var keep []StepName
	for _, l := range p.log {
		keep = append(keep, l.StepName)
	}
	order, err := NewSweepOrder(protocolLife, gen, keep)
	if err != nil {
		p.t.Fatal(err)
	}
	if r := Do(p.t.Context(), Directories(p.fs, "w"), p.fs, wire.Task{Kind: wire.TaskSweep, Run: "digits", Store: testStore, Data: order}, t0); r.Error != "" {
		p.t.Fatalf("sweep: %s", r.Error)
	}
	step := int64(20)
	if n, ok := Newest(p.records(), NoCeiling); ok && n.Step >= step {
		step = n.Step + 10
	}
	if err := p.save(step, gen); err != nil {
		p.t.Fatalf("generation %d cannot save step %d: %v", gen, step, err)
	}
	if got, back := p.restore(); got.Step != step || got.Generation != gen || back != 0 {
		p.t.Fatalf("restored %v after %d roll-backs, want step %d", got, back, step)
	}
}

// script is what the faults are thrown into: step 20 is saved over a good step 10,
// then retention deletes step 10 in favour of it.
func (p *protocol) script() error {
	if err := p.save(20, 1); err != nil {
		return err
	}
	for _, r := range Expired(p.records(), Policy{Last: 1}, nil) {
		for i := range p.log {
			l := &p.log[i]
			if l.StepName != r.StepName {
				continue
			}
			l.Tombstoned = true
			if t := Do(p.t.Context(), Directories(p.fs, "w"), p.fs, wire.Task{Kind: wire.TaskDelete, Run: "digits", Store: testStore, Dir: l.dir}, t0); t.Error != "" {
				return errors.New(t.Error)
			}
		}
	}
	return nil
}

// scriptOps returns the kind of each operation of an undisturbed script.
func scriptOps(t *testing.T) []disk.Op {
	p := newProtocol(t)
	if err := p.save(10, 1); err != nil {
		t.Fatal(err)
	}
	var ops []disk.Op
	p.on(p.mem, func(_ int, kind disk.Op) { ops = append(ops, kind) })
	if err := p.script(); err != nil {
		t.Fatal(err)
	}
	p.on(p.mem, nil)
	if got, _ := p.restore(); got.Step != 20 {
		t.Fatalf("undisturbed: restored %v", got)
	}
	if len(ops) < 100 {
		t.Fatalf("only %d operations", len(ops))
	}
	return ops
}

var errCrash = errors.New("the machine lost power")

// P4, I19, I22: power is lost before every single operation of a save and of the
// deletion after it, with every kind of luck for what was not synced. What the log
// holds as newest is whole on the disk, and the run goes on.
func TestCrashAtEveryOperation(t *testing.T) {
	ops := scriptOps(t)
	for at := 0; at <= len(ops); at++ {
		// Where the operation before changed nothing, the disk is as it was for the
		// crash before that one, and one kind of luck will do.
		lucks := 1
		if at > 0 && slices.Contains([]disk.Op{disk.OpMkdir, disk.OpOpen, disk.OpWrite, disk.OpSync, disk.OpSyncDir, disk.OpLink, disk.OpRemove}, ops[at-1]) {
			lucks = 6
		}
		for luck := range lucks {
			crashAt(t, at, len(ops), luck, false)
			if at < len(ops) && ops[at] == disk.OpWrite {
				crashAt(t, at, len(ops), luck, true)
			}
		}
	}
	t.Logf("%d crash points", len(ops)+1)
}

func crashAt(t *testing.T, at, ops, luck int, torn bool) {
	p := newProtocol(t)
	if err := p.save(10, 1); err != nil {
		t.Fatal(err)
	}
	p.on(p.mem, func(op int, _ disk.Op) {
		if op == at && torn {
			p.fs.Inject(disk.Fault{Nth: 1, Err: errCrash, Partial: 700})
		}
		if op == at {
			p.fs.Inject(disk.Fault{Err: errCrash})
		}
	})
	err := p.script()
	if (err == nil) != (at >= ops) {
		t.Fatalf("crash at %d of %d: %v", at, ops, err)
	}
	keep := 0.5
	if luck < 2 {
		keep = float64(luck) // nothing that was not synced, or everything
	}
	p.on(p.mem.CrashClone(uint64(at*10+luck), keep), nil)
	p.candidatesAreWhole()
	newest, back := p.restore()
	want := int64(10)
	if len(p.log) > 1 {
		want = 20
	}
	if newest.Step != want || back != 0 {
		t.Fatalf("crash at %d, luck %d: restored %v after %d roll-backs, want step %d", at, luck, newest.StepName, back, want)
	}
	// Without the log: at least the newest step whose mark was confirmed.
	if n, ok := p.adopt(); !ok || n.Step < 10 || p.log[len(p.log)-1].marked && n.Step != want || n.Step > want {
		t.Fatalf("crash at %d, luck %d: adopted %v, %v, the log has %d", at, luck, n, ok, want)
	}
	p.goOn(2)
}

// F36: one operation fails, once, and all later ones work; another agent is asked to
// repeat the task. Then the power goes: at the end, or as soon as the log has the
// entry. What was confirmed needs no luck, nothing is rolled back, the run goes on.
func TestErrorAtEveryOperation(t *testing.T) {
	ops := scriptOps(t)
	for _, injected := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO} {
		for at, kind := range ops {
			for _, early := range []bool{false, true} {
				errorAt(t, injected, at, false, early)
				if kind == disk.OpWrite {
					errorAt(t, injected, at, true, early)
				}
			}
		}
	}
}

// errorAt fails operation number at, having written half if torn; early lets the
// power go as soon as the log has the entry.
func errorAt(t *testing.T, injected error, at int, torn, early bool) {
	p := newProtocol(t)
	if err := p.save(10, 1); err != nil {
		t.Fatal(err)
	}
	p.on(p.mem, func(op int, _ disk.Op) {
		if op == at {
			fault := disk.Fault{Nth: 1, Err: injected}
			if torn {
				fault.Partial = 700
			}
			p.fs.Inject(fault)
		}
	})
	p.tell = func(phase string) {
		if early && phase == "committed" {
			p.fs.Inject(disk.Fault{Err: errCrash})
		}
	}
	_ = p.script()
	p.tell = func(string) {}
	p.on(p.mem.CrashClone(0, 0), nil)
	want := p.log[len(p.log)-1]
	got, back := p.restore()
	if got.StepName != want.StepName || back != 0 {
		t.Fatalf("%v at %d: restored %v after %d roll-backs, want %v", injected, at, got.StepName, back, want.StepName)
	}
	p.candidatesAreWhole()
	if n, ok := p.adopt(); want.marked && (!ok || n != want.StepName) {
		t.Fatalf("%v at %d: adopted %v, %v, though %v was confirmed as marked", injected, at, n, ok, want.StepName)
	}
	if !want.marked {
		r := Do(t.Context(), Directories(p.fs, "w4"), p.fs, wire.Task{Kind: wire.TaskWriteCommitted, Run: "digits", Store: testStore, Dir: want.dir, Data: mark(t, want.Digest)}, t0)
		if r.Error != "" {
			t.Fatalf("%v at %d: the mark cannot be repeated: %s", injected, at, r.Error)
		}
	}
	p.goOn(2)
}

// overwrite changes a file in place, seen through all of its names.
func overwrite(t testing.TB, mem *disk.Mem, name string, data []byte) {
	t.Helper()
	f, err := mem.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// F19, I22: one bit flips in any file of the step, after any operation since it was
// prepared. It is found before use, and the step before is whole.
func TestBitFlipAtEveryOperation(t *testing.T) {
	probe := newProtocol(t)
	if err := probe.save(10, 1); err != nil {
		t.Fatal(err)
	}
	probe.on(probe.mem, nil)
	first := 0
	probe.tell = func(phase string) {
		if phase == "prepared" {
			first = probe.ops
		}
	}
	if err := probe.save(20, 1); err != nil {
		t.Fatal(err)
	}
	last := probe.ops
	flips, found := 0, 0
	for at := first; at <= last; at++ {
		for _, file := range []string{"rank-0/model.pt", "rank-0/rng.pt", "rank-1/model.pt", "rank-1/rng.pt", ManifestFile, CommittedFile} {
			p := newProtocol(t)
			if err := p.save(10, 1); err != nil {
				t.Fatal(err)
			}
			flipped := false
			flip := func(op int, _ disk.Op) {
				name := path.Join(StepDir(testStore, "digits", StepName{20, 1, protocolLife}), file)
				data, err := readSmall(p.mem, name, 1<<20)
				if op != at || err != nil || len(data) == 0 {
					return
				}
				data[(at*7)%len(data)] ^= 1 << (at % 8)
				overwrite(t, p.mem, name, data)
				flipped = true
			}
			p.on(p.mem, flip)
			err := p.save(20, 1)
			flip(p.ops, "")
			p.on(p.mem, nil)
			if !flipped {
				continue
			}
			flips++
			got, back := p.restore()
			switch {
			case file == CommittedFile && err == nil:
				// The log is the truth; the mark only matters to a head without one.
				if got.Step != 20 {
					t.Fatalf("a flipped mark cost step 20")
				}
				if n, ok := p.adopt(); ok && n.Step == 20 {
					if l := p.log[1]; !strings.Contains(l.dir, n.String()) {
						t.Fatalf("adopted %v", n)
					}
				}
			case got.Step != 10:
				t.Fatalf("bit flipped in %s at operation %d of %d: restored step %d (save said %v)", file, at, last, got.Step, err)
			default:
				found += back
			}
			p.goOn(2)
		}
	}
	if flips < 50 || found < 50 {
		t.Errorf("%d flips, %d found at restore: the test has lost its teeth", flips, found)
	}
	t.Logf("%d flips, %d found at restore", flips, found)
}
