package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

func TestCrashKeepsWhatWasSynced(t *testing.T) {
	m := NewMem()
	must(t, m.MkdirAll("/d", 0o755))
	must(t, m.SyncDir("/"))
	f, err := m.OpenFile("/d/f", os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	must(t, second(f.Write([]byte("one"))))
	must(t, f.Sync())
	if got := tree(rooted{m.CrashClone(1, 0), "/"}, ""); got != "d/\n" {
		t.Errorf("content synced, name not: %q", got)
	}
	must(t, m.SyncDir("/d"))
	must(t, second(f.Write([]byte("two"))))
	must(t, m.Rename("/d/f", "/d/g"))
	if got := tree(rooted{m.CrashClone(1, 0), "/"}, ""); got != "d/\nd/f one\n" {
		t.Errorf("nothing but the synced: %q", got)
	}
	if got := tree(rooted{m.CrashClone(1, 1), "/"}, ""); got != "d/\nd/g onetwo\n" {
		t.Errorf("everything: %q", got)
	}
	c := m.CrashClone(1, 0)
	if got := tree(rooted{c.CrashClone(2, 0), "/"}, ""); got != "d/\nd/f one\n" {
		t.Errorf("a second crash lost what the first had left: %q", got)
	}
	if got := tree(rooted{m, "/"}, ""); got != "d/\nd/g onetwo\n" {
		t.Errorf("the disk itself changed: %q", got)
	}

	// A synced name of a file that was not: it may be there without its content.
	n := NewMem()
	write(t, n, "/x", "lost")
	must(t, n.SyncDir("/"))
	if got := read(n.CrashClone(1, 0), "/x"); got != "" {
		t.Errorf("content that was never synced: %q", got)
	}
	// A synced file in a folder whose own name was not.
	must(t, n.MkdirAll("/new", 0o755))
	write(t, n, "/new/x", "")
	must(t, n.SyncDir("/new"))
	if _, err := n.CrashClone(1, 0).Stat("/new"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder without a durable name: %v", err)
	}
	must(t, MkdirAllSync(n, "/a/b/c", 0o755))
	if _, err := n.CrashClone(1, 0).Stat("/a/b/c"); err != nil {
		t.Errorf("MkdirAllSync: %v", err)
	}
}

func TestCrashTearsBlocks(t *testing.T) {
	m := NewMem()
	old, new := bytes.Repeat([]byte("o"), 10*blockSize), bytes.Repeat([]byte("n"), 12*blockSize)
	must(t, WriteFileAtomic(m, "/f", old, 0o600))
	f, err := m.OpenFile("/f", os.O_WRONLY, 0)
	must(t, err)
	must(t, second(f.Write(new)))
	seen := map[string]bool{}
	for seed := range uint64(50) {
		b := []byte(read(m.CrashClone(seed, 0.5), "/f"))
		blocks := ""
		for i := 0; i < len(b); i += blockSize {
			block := b[i:min(i+blockSize, len(b))]
			if len(block) != blockSize || bytes.Count(block, block[:1]) != blockSize {
				t.Fatalf("a block is torn: %d bytes, starts %q", len(block), block[:1])
			}
			blocks += string(block[:1])
		}
		seen[blocks] = true
		if again := read(m.CrashClone(seed, 0.5), "/f"); again != string(b) {
			t.Fatal("the same seed gave another disk")
		}
	}
	if len(seen) < 40 {
		t.Errorf("50 seeds gave %d disks", len(seen))
	}
}

func TestRenameSurvivesWholeOrNotAtAll(t *testing.T) {
	for seed := range uint64(100) {
		m := NewMem()
		must(t, m.MkdirAll("/a", 0o755))
		must(t, m.MkdirAll("/b", 0o755))
		must(t, m.SyncDir("/"))
		must(t, WriteFileAtomic(m, "/a/f", []byte("kept"), 0o600))
		must(t, m.Rename("/a/f", "/b/g"))
		write(t, m, "/a/f", "") // the name is used again, and only its folder synced
		if seed%2 == 0 {
			must(t, m.SyncDir("/a"))
		}
		c := m.CrashClone(seed, 0.5)
		_, errF := c.Stat("/a/f")
		_, errG := c.Stat("/b/g")
		if errF != nil && errG != nil || seed%2 == 0 && (errF != nil || errG != nil) {
			t.Fatalf("seed %d: %v, %v", seed, errF, errG)
		}
		if read(c, "/a/f") != "kept" && read(c, "/b/g") != "kept" {
			t.Fatalf("seed %d: the new file survived and the rename before it did not", seed)
		}
	}
}

// everyCrash runs work and hands check the disk after a power cut before each
// operation, with nothing, some and everything unsynced kept.
func everyCrash(t *testing.T, m *Mem, work func(f FS), check func(c *Mem, when string)) {
	t.Helper()
	f := NewFaulty(m)
	n := 0
	cut := func(when string) {
		for seed, keep := range []float64{0, 0.2, 0.5, 0.5, 0.5, 0.8, 1} {
			check(m.CrashClone(uint64(seed), keep), fmt.Sprintf("%s, keeping %v", when, keep))
		}
	}
	f.Before(func(op Op, name string) {
		n++
		cut(fmt.Sprintf("before operation %d, %s %s", n, op, name))
	})
	work(f)
	cut("after the end")
	if n < 5 {
		t.Fatalf("only %d operations were seen", n)
	}
}

func TestWriteFileAtomicSurvivesEveryCrash(t *testing.T) {
	m := NewMem()
	old, new := strings.Repeat("old", 700), strings.Repeat("new", 1400)
	must(t, m.MkdirAll("/s", 0o755))
	must(t, m.SyncDir("/"))
	must(t, WriteFileAtomic(m, "/s/f", []byte(old), 0o600))
	done := false
	everyCrash(t, m, func(f FS) {
		must(t, WriteFileAtomic(f, "/s/f", []byte(new), 0o600))
		done = true
	}, func(c *Mem, when string) {
		got := read(c, "/s/f")
		if got != new && (got != old || done) {
			t.Errorf("%s: %d bytes %.10q", when, len(got), got)
		}
		must(t, RemoveTemps(c, "/s"))
		if list, _ := c.ReadDir("/s"); len(list) != 1 {
			t.Errorf("%s: %d names after RemoveTemps", when, len(list))
		}
	})
}

func TestWriteFileCreateOnlySurvivesEveryCrash(t *testing.T) {
	m := NewMem()
	text := strings.Repeat("manifest", 300)
	done := false
	everyCrash(t, m, func(f FS) {
		created, err := WriteFileCreateOnly(f, "/m", []byte(text), 0o644)
		if err != nil || !created {
			t.Fatal(created, err)
		}
		done = true
	}, func(c *Mem, when string) {
		if got := read(c, "/m"); got != text {
			if _, err := c.Stat("/m"); err == nil || done {
				t.Errorf("%s: %d bytes", when, len(got))
			}
		}
		// Whoever comes next finishes the work.
		if _, err := WriteFileCreateOnly(c, "/m", []byte(text), 0o644); err != nil {
			t.Errorf("%s: again: %v", when, err)
		}
		if got := read(c.CrashClone(1, 0), "/m"); got != text {
			t.Errorf("%s: not durable after the second writer", when)
		}
	})
}

func TestWriteFileCreateOnly(t *testing.T) {
	for name, f := range both(t) {
		t.Run(name, func(t *testing.T) {
			file := f.dir + "/once"
			var created atomic.Int64
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					ok, err := WriteFileCreateOnly(f, file, []byte("same"), 0o640)
					if err != nil {
						t.Error(err)
					}
					if ok {
						created.Add(1)
					}
				})
			}
			wg.Wait()
			if created.Load() != 1 {
				t.Errorf("%d writers created the file", created.Load())
			}
			for _, other := range []string{"sama", "sam", "same+", ""} {
				if ok, err := WriteFileCreateOnly(f, file, []byte(other), 0o640); ok || !errors.Is(err, ErrConflict) {
					t.Errorf("%q over %q: %v, %v", other, "same", ok, err)
				}
			}
			if got := read(f, file); got != "same" {
				t.Errorf("content %q", got)
			}
			if list, err := f.ReadDir(f.dir); err != nil || len(list) != 1 {
				t.Errorf("%d names left, %v", len(list), err)
			}
		})
	}
	// On the system a link may stand in the file's place; it is not followed.
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/target", []byte("x"), 0o600))
	must(t, os.Symlink(dir+"/target", dir+"/link"))
	if _, err := WriteFileCreateOnly(OS(), dir+"/link", []byte("x"), 0o600); err == nil {
		t.Error("a link was taken for the file")
	}
}

// Who finds the file there answers for it as if it had written it.
func TestWriteFileCreateOnlyMakesTheExistingDurable(t *testing.T) {
	for what, first := range map[string]func(m *Mem){
		"the first writer did not sync the name": func(m *Mem) {
			f := NewFaulty(m)
			f.Inject(Fault{Op: OpSyncDir, Err: syscall.EIO})
			if _, err := WriteFileCreateOnly(f, "/m", []byte("text"), 0o600); !errors.Is(err, syscall.EIO) {
				t.Errorf("first writer: %v", err)
			}
		},
		"the first writer did not sync the content": func(m *Mem) {
			write(t, m, "/m", "text")
			must(t, m.SyncDir("/"))
		},
	} {
		m := NewMem()
		first(m)
		if created, err := WriteFileCreateOnly(m, "/m", []byte("text"), 0o600); created || err != nil {
			t.Errorf("%s: %v, %v", what, created, err)
		}
		if got := read(m.CrashClone(1, 0), "/m"); got != "text" {
			t.Errorf("%s: after the crash %q", what, got)
		}
	}
}

func TestFaults(t *testing.T) {
	m := NewMem()
	f := NewFaulty(m)
	must(t, WriteFileAtomic(f, "/state", []byte("old"), 0o600))
	faults := []Fault{
		{Op: OpOpen, Path: ".state.*", Err: syscall.ENOSPC},
		{Op: OpWrite, Path: "/.state.*", Err: syscall.ENOSPC},
		{Op: OpWrite, Err: syscall.ENOSPC, Partial: 2},
		{Op: OpSync, Nth: 1, Err: syscall.EIO},
		{Op: OpClose, Err: syscall.EIO},
		{Op: OpRename, Path: "state", Err: syscall.EIO},
	}
	for _, fault := range faults {
		remove := f.Inject(fault)
		if err := WriteFileAtomic(f, "/state", []byte("new"), 0o600); !errors.Is(err, fault.Err) {
			t.Errorf("%+v: %v", fault, err)
		}
		if got := read(m, "/state"); got != "old" {
			t.Errorf("%+v: content %q", fault, got)
		}
		if list, _ := m.ReadDir("/"); len(list) != 1 {
			t.Errorf("%+v: %d names left", fault, len(list))
		}
		remove()
		remove()
	}
	f.Inject(Fault{Op: OpSyncDir, Path: "/", Err: syscall.EIO})
	if err := WriteFileAtomic(f, "/state", []byte("new"), 0o600); !errors.Is(err, syscall.EIO) {
		t.Errorf("the folder was not synced: %v", err)
	}
	var pe *fs.PathError
	stop := f.Inject(Fault{Op: OpRead, Nth: 2, Err: syscall.EIO})
	b := make([]byte, 1)
	file, err := f.OpenFile("/state", os.O_RDONLY, 0)
	must(t, err)
	must(t, second(file.Read(b)))
	if err := second(file.ReadAt(b, 0)); !errors.Is(err, syscall.EIO) || !errors.As(err, &pe) || pe.Path != "/state" {
		t.Errorf("second read: %v", err)
	}
	must(t, second(file.ReadAt(b, 0)))
	must(t, file.Close())
	stop()
	ops := map[Op]func() error{
		OpLink: func() error { return f.Link("/state", "/l") }, OpRemove: func() error { return f.RemoveAll("/state") },
		OpMkdir: func() error { return f.MkdirAll("/d", 0o755) }, OpStat: func() error { _, err := f.Stat("/state"); return err },
		OpReadDir: func() error { _, err := f.ReadDir("/"); return err },
	}
	for op, do := range ops {
		undo := f.Inject(Fault{Op: op, Err: syscall.EROFS})
		if err := do(); !errors.Is(err, syscall.EROFS) {
			t.Errorf("%s: %v", op, err)
		}
		undo()
		if err := do(); err != nil {
			t.Errorf("%s after the fault: %v", op, err)
		}
		if op == OpRemove {
			write(t, m, "/state", "x")
		}
	}
}

// Whatever is done, what a crash leaves of a file is old bytes, new bytes or zeros, and
// what a crash without loss leaves is the disk itself.
func TestCrashProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := rooted{NewMem(), "/"}
		mem := m.FS.(*Mem)
		name := rapid.SampledFrom([]string{"a", "b", "d/a", "d/b", "d", "d/e/a", "d/e"})
		ops := []string{"write", "append", "rename", "link", "remove", "removeall", "mkdir", "sync", "syncdir"}
		for range rapid.IntRange(1, 40).Draw(t, "operations") {
			x, y := name.Draw(t, "x"), name.Draw(t, "y")
			switch op := rapid.SampledFrom(ops).Draw(t, "op"); op {
			case "sync":
				if f, err := mem.OpenFile("/"+x, os.O_RDONLY, 0); err == nil {
					f.Sync()
					f.Close()
				}
			case "syncdir":
				mem.SyncDir("/" + x)
				mem.SyncDir("/")
			default:
				act(m, op, x, y)
			}
		}
		if got, want := tree(rooted{mem.CrashClone(1, 1), "/"}, ""), tree(m, ""); got != want {
			t.Fatalf("kept everything and found\n%s\nwant\n%s", got, want)
		}
		seed := rapid.Uint64().Draw(t, "seed")
		once := tree(rooted{mem.CrashClone(seed, 0.5), "/"}, "")
		if again := tree(rooted{mem.CrashClone(seed, 0.5), "/"}, ""); again != once {
			t.Fatalf("one seed, two disks:\n%s\n%s", once, again)
		}
		c := mem.CrashClone(seed, 0.5)
		if got := tree(rooted{c.CrashClone(seed+1, 0), "/"}, ""); got != once {
			t.Fatalf("after a crash everything is durable, yet\n%s\nbecame\n%s", once, got)
		}
	})
}

func TestRemoveTempsLeavesTheRest(t *testing.T) {
	m := NewMem()
	for _, n := range []string{".a.1-2.tmp", "b.tmp", ".c", "d"} {
		write(t, m, "/"+n, "")
	}
	must(t, m.MkdirAll("/.dir.tmp", 0o755))
	must(t, RemoveTemps(m, "/"))
	list, err := m.ReadDir("/")
	must(t, err)
	var got []string
	for _, e := range list {
		got = append(got, e.Name())
	}
	if want := []string{".c", ".dir.tmp", "b.tmp", "d"}; !slices.Equal(got, want) {
		t.Errorf("left %q, want %q", got, want)
	}
}
