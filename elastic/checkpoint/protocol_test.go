package checkpoint_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/test/saves"
)

// root is the store.
const root = "/store"

// protocol runs whole saves on a disk in memory.
type protocol struct {
	*saves.Protocol
	mem *disk.Mem
	fs  *disk.Faulty
	mu  sync.Mutex
	ops int // operations so far
}

// on puts the protocol on a disk. before sees the number and kind of every operation
// before it happens, and may inject a fault for it.
func (p *protocol) on(mem *disk.Mem, before func(op int, kind disk.Op)) {
	p.mem, p.fs, p.ops = mem, disk.NewFaulty(mem), 0
	p.fs.Before(func(kind disk.Op, _ string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		op := p.ops
		p.ops++
		if before != nil {
			before(op, kind)
		}
	})
}

func newProtocol(t *testing.T) *protocol {
	t.Helper()
	p := &protocol{}
	p.Protocol = &saves.Protocol{
		T: t, Store: root, Content: content, Put: p.put,
		Open: func(writer string) checkpoint.Opener { return checkpoint.Directories(p.fs, writer) },
		Look: func(dir, file string) ([]byte, error) { return slurp(p.mem, path.Join(dir, file)) },
		Left: func() ([]string, error) {
			files, err := saves.Files(p.mem, path.Join(root, saves.Run))
			// The temporary of a writer that was killed goes with its step.
			return slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, ".tmp") }), err
		},
	}
	p.on(disk.NewMem(), nil)
	if err := errors.Join(p.mem.MkdirAll(root, 0o755), p.mem.SyncDir("/")); err != nil {
		t.Fatal(err)
	}
	return p
}

func content(rank, step int64, gen uint64) []saves.File {
	data := []byte(strings.Repeat(fmt.Sprintf("rank %d step %d generation %d;", rank, step, gen), 60))
	return []saves.File{{Name: checkpoint.RankDir(rank) + "/model.pt", Data: data}, {Name: checkpoint.RankDir(rank) + "/rng.pt", Data: data}}
}

// put is what a rank and its saver do on a directory: write all, sync, read back.
func (p *protocol) put(dir string, files []saves.File) ([]wire.PreparedFile, error) {
	own := path.Join(dir, path.Dir(files[0].Name))
	if err := p.fs.MkdirAll(own, 0o755); err != nil {
		return nil, err
	}
	for _, f := range files {
		w, err := p.fs.OpenFile(path.Join(dir, f.Name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return nil, err
		}
		_, err = w.Write(f.Data)
		if err := errors.Join(err, w.Close()); err != nil {
			return nil, err
		}
	}
	ctx := p.T.Context()
	if err := checkpoint.SyncTree(ctx, p.fs, root, own); err != nil {
		return nil, err
	}
	var out []wire.PreparedFile
	for _, f := range files {
		digest, length, err := checkpoint.HashFile(ctx, p.fs, path.Join(dir, f.Name))
		if err != nil {
			return nil, err
		}
		out = append(out, wire.PreparedFile{Path: f.Name, Length: length, Digest: digest})
	}
	return out, nil
}

// slurp reads a whole file.
func slurp(mem *disk.Mem, name string) ([]byte, error) {
	f, err := mem.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(f)
	return data, errors.Join(err, f.Close())
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

// scriptOps returns the kind of each operation of an undisturbed script.
func scriptOps(t *testing.T) []disk.Op {
	p := newProtocol(t)
	if err := p.Save(10, 1); err != nil {
		t.Fatal(err)
	}
	var ops []disk.Op
	p.on(p.mem, func(_ int, kind disk.Op) { ops = append(ops, kind) })
	if err := p.Script(); err != nil {
		t.Fatal(err)
	}
	p.on(p.mem, nil)
	p.Nothing("undisturbed")
	if got, _ := p.Restore(); got.Step != 20 {
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
	if err := p.Save(10, 1); err != nil {
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
	err := p.Script()
	if (err == nil) != (at >= ops) {
		t.Fatalf("crash at %d of %d: %v", at, ops, err)
	}
	keep := 0.5
	if luck < 2 {
		keep = float64(luck) // nothing that was not synced, or everything
	}
	p.on(p.mem.CrashClone(uint64(at*10+luck), keep), nil)
	p.Crashed(10, fmt.Sprintf("crash at %d, luck %d", at, luck))
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
	if err := p.Save(10, 1); err != nil {
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
	p.Tell = func(phase string) {
		if early && phase == "committed" {
			p.fs.Inject(disk.Fault{Err: errCrash})
		}
	}
	_ = p.Script()
	p.Tell = nil
	p.on(p.mem.CrashClone(0, 0), nil)
	want := p.Log[len(p.Log)-1]
	got, back := p.Restore()
	if got.StepName != want.StepName || back != 0 {
		t.Fatalf("%v at %d: restored %v after %d roll-backs, want %v", injected, at, got.StepName, back, want.StepName)
	}
	p.CandidatesAreWhole()
	if n, ok := p.Adopt(); want.Marked && (!ok || n != want.StepName) {
		t.Fatalf("%v at %d: adopted %v, %v, though %v was confirmed as marked", injected, at, n, ok, want.StepName)
	}
	if !want.Marked {
		r := checkpoint.Do(t.Context(), checkpoint.Directories(p.fs, "w4"), p.fs, wire.Task{Kind: wire.TaskWriteCommitted, Run: saves.Run, Store: root, Dir: want.Dir, Data: p.Mark(want.Digest)}, saves.Now)
		if r.Error != "" {
			t.Fatalf("%v at %d: the mark cannot be repeated: %s", injected, at, r.Error)
		}
	}
	p.GoOn(2)
	p.Nothing(fmt.Sprintf("%v at %d", injected, at))
}

// F19, I22: one bit flips in any file of the step, after any operation since it was
// prepared. It is found before use, and the step before is whole.
func TestBitFlipAtEveryOperation(t *testing.T) {
	probe := newProtocol(t)
	if err := probe.Save(10, 1); err != nil {
		t.Fatal(err)
	}
	probe.on(probe.mem, nil)
	first := 0
	probe.Tell = func(phase string) {
		if phase == "prepared" {
			first = probe.ops
		}
	}
	if err := probe.Save(20, 1); err != nil {
		t.Fatal(err)
	}
	last := probe.ops
	flips, found := 0, 0
	for at := first; at <= last; at++ {
		for _, file := range []string{"rank-0/model.pt", "rank-0/rng.pt", "rank-1/model.pt", "rank-1/rng.pt", checkpoint.ManifestFile, checkpoint.CommittedFile} {
			p := newProtocol(t)
			if err := p.Save(10, 1); err != nil {
				t.Fatal(err)
			}
			flipped := false
			flip := func(op int, _ disk.Op) {
				name := path.Join(checkpoint.StepDir(root, saves.Run, checkpoint.StepName{Step: 20, Generation: 1, Life: saves.Life}), file)
				data, err := slurp(p.mem, name)
				if op != at || err != nil || len(data) == 0 {
					return
				}
				data[(at*7)%len(data)] ^= 1 << (at % 8)
				overwrite(t, p.mem, name, data)
				flipped = true
			}
			p.on(p.mem, flip)
			err := p.Save(20, 1)
			flip(p.ops, "")
			p.on(p.mem, nil)
			if !flipped {
				continue
			}
			flips++
			got, back := p.Restore()
			switch {
			case file == checkpoint.CommittedFile && err == nil:
				// The log is the truth; the mark only matters to a head without one.
				if got.Step != 20 {
					t.Fatalf("a flipped mark cost step 20")
				}
				if n, ok := p.Adopt(); ok && n.Step == 20 {
					if l := p.Log[1]; !strings.Contains(l.Dir, n.String()) {
						t.Fatalf("adopted %v", n)
					}
				}
			case got.Step != 10:
				t.Fatalf("bit flipped in %s at operation %d of %d: restored step %d (save said %v)", file, at, last, got.Step, err)
			default:
				found += back
			}
			p.GoOn(2)
		}
	}
	if flips < 50 || found < 50 {
		t.Errorf("%d flips, %d found at restore: the test has lost its teeth", flips, found)
	}
	t.Logf("%d flips, %d found at restore", flips, found)
}
