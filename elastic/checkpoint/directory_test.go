package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

func openStore(t *testing.T, root string) *Directory {
	t.Helper()
	s, err := NewDirectory(OS(), root, "writer-1")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mark(t testing.TB, digest string) []byte {
	t.Helper()
	b, err := NewCommittedMark("cluster-1", 7, digest)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func rolledBack(t testing.TB) []byte {
	t.Helper()
	b, err := NewRolledBackMark("cluster-1", 8, "damaged")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// unsaved is a step on the real disk whose manifest is not written yet.
func unsaved(t *testing.T) (s *Directory, dir string, data []byte, digest string) {
	t.Helper()
	dir, _ = savedStep(t)
	data, err := os.ReadFile(filepath.Join(dir, ManifestFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, ManifestFile)); err != nil {
		t.Fatal(err)
	}
	return openStore(t, filepath.Dir(filepath.Dir(dir))), dir, data, DigestBytes(data)
}

func TestStoreWholeLife(t *testing.T) {
	s, dir, data, digest := unsaved(t)
	ctx := t.Context()
	for range 2 { // each may be repeated
		if err := s.WriteManifest(ctx, "digits", dir, data, digest); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(dir, ManifestFile)); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("manifest on the disk: %v", err)
	}
	l, err := s.List(ctx, "digits")
	if err != nil || len(l.Candidates) != 0 || len(l.Steps) != 1 || l.HighestGeneration != 7 {
		t.Fatalf("before the commit: %+v, %v", l, err)
	}
	for range 2 {
		if err := s.WriteCommitted(t.Context(), "digits", dir, mark(t, digest)); err != nil {
			t.Fatal(err)
		}
	}
	l, err = s.List(ctx, "digits")
	if err != nil || len(l.Candidates) != 1 || l.Candidates[0].Dir != dir || l.Candidates[0].Mark.Digest != digest {
		t.Fatalf("after the commit: %+v, %v", l, err)
	}
	if v, err := s.Verify(ctx, "digits", dir, digest); err != nil || !v.Whole() || v.Files != 6 {
		t.Fatalf("Verify = %+v, %v", v, err)
	}
	if _, err := s.Verify(ctx, "digits", dir, DigestBytes(nil)); !errors.Is(err, ErrDigest) {
		t.Errorf("another digest in the log: %v", err)
	}
	for range 2 {
		if err := s.WriteRolledBack(t.Context(), "digits", dir, rolledBack(t)); err != nil {
			t.Fatal(err)
		}
	}
	if l, err = s.List(ctx, "digits"); err != nil || len(l.Candidates) != 0 {
		t.Fatalf("after the roll-back: %+v, %v", l, err)
	}
	for range 2 {
		if err := s.Delete(ctx, "digits", dir); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
	left, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestStoreLeavesNoTemporary(t *testing.T) {
	s, dir, data, digest := unsaved(t)
	if err := s.WriteManifest(t.Context(), "digits", dir, data, digest); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".tmp") {
			t.Errorf("%s is left", e.Name())
		}
	}
}

func TestWriteManifestRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, dir string, data []byte) ([]byte, string)
		check func(error) bool
	}{
		{"a different one is there", func(t *testing.T, dir string, data []byte) ([]byte, string) {
			if err := os.WriteFile(filepath.Join(dir, ManifestFile), []byte("other"), 0o600); err != nil {
				t.Fatal(err)
			}
			return data, DigestBytes(data)
		}, func(err error) bool { return errors.Is(err, ErrDifferentManifest) }},
		{"an empty one is there", func(t *testing.T, dir string, data []byte) ([]byte, string) {
			if err := os.WriteFile(filepath.Join(dir, ManifestFile), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return data, DigestBytes(data)
		}, func(err error) bool { return errors.Is(err, ErrDifferentManifest) }},
		{"a file is short", func(t *testing.T, dir string, data []byte) ([]byte, string) {
			if err := os.Truncate(filepath.Join(dir, "rank-2/rng.pt"), 1); err != nil {
				t.Fatal(err)
			}
			return data, DigestBytes(data)
		}, func(err error) bool {
			var f *FilesError
			return errors.As(err, &f) && f.Damage() && f.Findings[0].Kind == FindingShort && f.Findings[0].Path == "rank-2/rng.pt"
		}},
		{"a file is missing", func(t *testing.T, dir string, data []byte) ([]byte, string) {
			if err := os.Remove(filepath.Join(dir, "rank-0/rng.pt")); err != nil {
				t.Fatal(err)
			}
			return data, DigestBytes(data)
		}, func(err error) bool {
			var f *FilesError
			return errors.As(err, &f) && f.Findings[0].Kind == FindingMissing
		}},
		{
			"a wrong digest is sent", func(_ *testing.T, _ string, data []byte) ([]byte, string) { return data, DigestBytes(nil) },
			func(err error) bool { return errors.Is(err, ErrManifest) },
		},
		{"it is damaged", func(_ *testing.T, _ string, data []byte) ([]byte, string) {
			data[len(data)/2] ^= 1
			return data, DigestBytes(data)
		}, func(err error) bool { return errors.Is(err, ErrManifest) }},
		{"it belongs to another step", func(t *testing.T, _ string, _ []byte) ([]byte, string) {
			return mustBuild(t, preparedAll("digits", 6, 7, 1), nil)
		}, func(err error) bool { return errors.Is(err, ErrManifest) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, dir, data, _ := unsaved(t)
			data, digest := c.spoil(t, dir, data)
			before, _ := os.ReadFile(filepath.Join(dir, ManifestFile))
			if err := s.WriteManifest(t.Context(), "digits", dir, data, digest); err == nil || !c.check(err) {
				t.Errorf("WriteManifest: %v", err)
			}
			if after, _ := os.ReadFile(filepath.Join(dir, ManifestFile)); !bytes.Equal(before, after) {
				t.Error("what was there has changed")
			}
		})
	}
}

func TestWriteCommittedNeedsItsManifest(t *testing.T) {
	s, dir, data, digest := unsaved(t)
	if err := s.WriteCommitted(t.Context(), "digits", dir, mark(t, digest)); !errors.Is(err, ErrNoManifest) {
		t.Errorf("without a manifest: %v", err)
	}
	if err := s.WriteManifest(t.Context(), "digits", dir, data, digest); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteCommitted(t.Context(), "digits", dir, mark(t, DigestBytes(nil))); !errors.Is(err, ErrDigest) {
		t.Errorf("with another's digest: %v", err)
	}
	if err := s.WriteCommitted(t.Context(), "digits", dir, []byte(`{}`)); !errors.Is(err, ErrMark) {
		t.Errorf("with another document: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, CommittedFile), mark(t, DigestBytes(nil)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteCommitted(t.Context(), "digits", dir, mark(t, digest)); !errors.Is(err, ErrDifferentManifest) {
		t.Errorf("over another's mark: %v", err)
	}
}

// Ranks run as the job's user and can put links anywhere below the store. No
// operation may follow one out of it.
func TestStoreFollowsNoLink(t *testing.T) {
	ops := map[string]func(*Directory, string, []byte, string) error{
		"write-manifest": func(s *Directory, d string, data []byte, dig string) error {
			return s.WriteManifest(t.Context(), "digits", d, data, dig)
		},
		"write-committed": func(s *Directory, d string, _ []byte, dig string) error {
			return s.WriteCommitted(t.Context(), "digits", d, mark(t, dig))
		},
		"write-rolled-back": func(s *Directory, d string, _ []byte, _ string) error {
			return s.WriteRolledBack(t.Context(), "digits", d, rolledBack(t))
		},
		"verify": func(s *Directory, d string, _ []byte, dig string) error {
			_, err := s.Verify(t.Context(), "digits", d, dig)
			return err
		},
		"delete": func(s *Directory, d string, _ []byte, _ string) error { return s.Delete(t.Context(), "digits", d) },
	}
	for name, op := range ops {
		for _, level := range []string{"step", "run"} {
			t.Run(name+"/"+level, func(t *testing.T) {
				s, dir, data, digest := unsaved(t)
				if err := os.WriteFile(filepath.Join(dir, ManifestFile), data, 0o600); err != nil {
					t.Fatal(err)
				}
				moved := dir
				if level == "run" {
					moved = filepath.Dir(dir)
				}
				outside := filepath.Join(t.TempDir(), "outside")
				if err := os.Rename(moved, outside); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(outside, moved); err != nil {
					t.Fatal(err)
				}
				before := tree(t, outside)
				if err := op(s, dir, data, digest); !errors.Is(err, ErrUnsafe) {
					t.Errorf("%v, want a refusal", err)
				}
				if after := tree(t, outside); !slices.Equal(before, after) {
					t.Errorf("outside the store changed:\n%v\n%v", before, after)
				}
			})
		}
	}
	t.Run("delete removes the link, not its target", func(t *testing.T) {
		s, dir, _, _ := unsaved(t)
		outside := t.TempDir()
		if err := os.WriteFile(filepath.Join(outside, "precious"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, l := range []string{"rank-0/link", "link", ".x.tmp"} {
			if err := os.Symlink(outside, filepath.Join(dir, l)); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Delete(t.Context(), "digits", dir); err != nil {
			t.Fatal(err)
		}
		if got := tree(t, outside); len(got) != 1 {
			t.Errorf("outside holds %v", got)
		}
	})
}

func TestStoreRefusesForeignDirectories(t *testing.T) {
	s, dir, data, digest := unsaved(t)
	for _, d := range []string{"/etc", "/", "", filepath.Dir(dir), dir + "/rank-0", dir + "/../" + filepath.Base(dir), "/tmp/digits/" + filepath.Base(dir)} {
		if err := s.Delete(t.Context(), "digits", d); !errors.Is(err, ErrUnsafe) {
			t.Errorf("Delete(%q): %v", d, err)
		}
		if err := s.WriteManifest(t.Context(), "digits", d, data, digest); !errors.Is(err, ErrUnsafe) {
			t.Errorf("WriteManifest(%q): %v", d, err)
		}
	}
	if err := s.Delete(t.Context(), "other", dir); !errors.Is(err, ErrUnsafe) {
		t.Errorf("Delete for another run: %v", err)
	}
	for _, root := range []string{"", "/", "relative", "/a/../b", "/a/"} {
		if _, err := NewDirectory(OS(), root, "w"); !errors.Is(err, ErrName) {
			t.Errorf("NewDirectory(%q): %v", root, err)
		}
	}
}

func tree(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // for the times of files
		m := disk.NewMem()
		s, err := NewDirectory(m, testStore, "w")
		if err != nil {
			t.Fatal(err)
		}
		const own, foreign = "0a1b2c3d", "ffffffff"
		save := func(n StepName, files ...string) {
			for _, f := range append(files, "rank-0/model.pt") {
				name := StepDir(testStore, "digits", n) + "/" + f
				mkdir(t, m, filepath.Dir(name))
				if err := write(m, name, []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
		}
		begin := time.Now()
		save(StepName{1, 1, foreign})
		time.Sleep(time.Hour) // of the bubble
		save(StepName{2, 1, foreign})
		save(StepName{3, 1, own})
		save(StepName{4, 1, own}, CommittedFile)
		save(StepName{5, 1, own}) // in the log, committed.json not written yet
		save(StepName{6, 2, own}) // of the current generation: being written
		save(StepName{7, 3, own}) // of a newer one: the order is old
		save(StepName{8, 1, own}, ManifestFile, ".manifest.json.x.0.tmp")
		if err := write(m, testStore+"/digits/notes.txt", nil); err != nil {
			t.Fatal(err)
		}
		data, err := NewSweepOrder(own, 2, []StepName{{5, 1, own}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(begin.Add(24*time.Hour + time.Minute)))
		reply := Do(t.Context(), Directories(m, "w"), m, wire.Task{ID: "x", Kind: wire.TaskSweep, Run: "digits", Store: testStore, Data: data}, begin.Add(24*time.Hour+time.Minute))
		if reply.Error != "" || reply.Files != 3 {
			t.Fatalf("sweep: %+v", reply)
		}
		l, err := s.List(t.Context(), "digits")
		if err != nil {
			t.Fatal(err)
		}
		var left []int64
		for _, n := range l.Steps {
			left = append(left, n.Step)
		}
		if !slices.Equal(left, []int64{2, 4, 5, 6, 7}) {
			t.Errorf("left: %v", left)
		}
		if l.HighestGeneration != 3 || !slices.Contains(l.Odd, "notes.txt") {
			t.Errorf("listing: %+v", l)
		}
	})
}

// Most runs never save: a sweep of a store that was never made is no failure.
func TestSweepWithoutAStore(t *testing.T) {
	order, err := NewSweepOrder("0a1b2c3d", 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := Do(t.Context(), Directories(disk.NewMem(), "w"), disk.NewMem(), wire.Task{Kind: wire.TaskSweep, Run: "digits", Store: testStore, Data: order}, t0)
	if r.Error != "" || r.Files != 0 {
		t.Errorf("%+v", r)
	}
}

// What is gone needs no mark, and deleting it is done; but an absence in a store that
// may not be mounted proves nothing.
func TestMarksOfWhatIsGone(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, root)
	n := StepName{5, 1, "0a1b2c3d"}
	dir := StepDir(root, "digits", n)
	mark, err := NewRolledBackMark("c", 1, "it was damaged")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WriteRolledBack(t.Context(), "digits", dir, mark); err == nil {
		t.Error("the run's folder cannot be seen, and the mark counts as written")
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteRolledBack(t.Context(), "digits", dir, mark); err != nil {
		t.Errorf("gone: %v", err)
	}
	if err := os.WriteFile(dir, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteRolledBack(t.Context(), "digits", dir, mark); err != nil {
		t.Errorf("a file in its place: %v", err)
	}
	if err := s.Delete(t.Context(), "digits", dir); err != nil {
		t.Errorf("delete a file in its place: %v", err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the stranger's file: %v", err)
	}
}

func TestListTellsEmptyFromUnmounted(t *testing.T) {
	root := t.TempDir()
	if l, err := openStore(t, root).List(t.Context(), "digits"); err != nil || len(l.Steps) != 0 {
		t.Errorf("a new run: %+v, %v", l, err)
	}
	if _, err := openStore(t, root+"/gone").List(t.Context(), "digits"); err == nil {
		t.Error("a store that is not there lists as empty")
	}
	if err := openStore(t, root+"/gone").Delete(t.Context(), "digits", StepDir(root+"/gone", "digits", StepName{1, 1, "0a1b2c3d"})); err == nil {
		t.Error("a store that is not there counts as deleted")
	}
}

func TestSyncTreeOrder(t *testing.T) {
	m := disk.NewFaulty(disk.NewMem())
	dir := testStore + "/digits/step-1-g1-0a1b2c3d/rank-0"
	mkdir(t, m, dir+"/sub")
	mkdir(t, m, "/elsewhere")
	for _, f := range []string{"/a", "/sub/b"} {
		if err := write(m, dir+f, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	m.Before(func(op disk.Op, name string) {
		if op == disk.OpSync || op == disk.OpSyncDir {
			got = append(got, strings.TrimPrefix(name, testStore))
		}
	})
	if err := SyncTree(t.Context(), m, testStore, dir); err != nil {
		t.Fatal(err)
	}
	step := "/digits/step-1-g1-0a1b2c3d"
	want := []string{step + "/rank-0/a", step + "/rank-0/sub/b", step + "/rank-0/sub", step + "/rank-0", step, "/digits", ""}
	if !slices.Equal(got, want) {
		t.Errorf("synced %q\nwant   %q", got, want)
	}
	if err := SyncTree(t.Context(), m, testStore, "/elsewhere"); !errors.Is(err, ErrUnsafe) {
		t.Errorf("outside the store: %v", err)
	}
}

// spoiling alters what is read and leaves the disk alone, as bad memory does.
type spoiling struct {
	FS
	spoil func(name string, b []byte)
}

type spoilingFile struct {
	disk.File
	fs *spoiling
}

func (s *spoiling) OpenFile(name string, flag int, perm os.FileMode) (disk.File, error) {
	f, err := s.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &spoilingFile{f, s}, nil
}

func (f *spoilingFile) Read(b []byte) (int, error) {
	n, err := f.File.Read(b)
	if n > 0 {
		f.fs.spoil(f.Name(), b[:n])
	}
	return n, err
}

// A bit that flips in memory is not damage: the second reading counts.
func TestVerifyReadsAMismatchAgain(t *testing.T) {
	mem, dir, m := inMemory(t)
	reads := 0
	once := &spoiling{mem, func(name string, b []byte) {
		if strings.HasSuffix(name, "rank-1/model.pt") {
			if reads++; reads == 1 {
				b[0] ^= 1
			}
		}
	}}
	if v, err := VerifyStep(t.Context(), once, dir, m); err != nil || !v.Whole() || reads < 2 {
		t.Errorf("Verify = %+v, %v after %d reads", v, err, reads)
	}
	always := &spoiling{mem, func(name string, b []byte) {
		if strings.HasSuffix(name, "rank-1/model.pt") {
			b[0] ^= 1
		}
	}}
	v, err := VerifyStep(t.Context(), always, dir, m)
	if err != nil || len(v.Damaged()) != 1 || v.Damaged()[0].Kind != FindingDigest {
		t.Errorf("Verify = %+v, %v", v, err)
	}
}

// EIO and time-outs are never a failed verification, wherever they strike: once, or
// every operation of that kind from there on, as a bad block or a lost right does.
func TestVerifyErrorsAreNoDamage(t *testing.T) {
	mem, dir, m := inMemory(t)
	var kinds []disk.Op
	faulty := disk.NewFaulty(mem)
	faulty.Before(func(kind disk.Op, _ string) { kinds = append(kinds, kind) })
	if v, err := VerifyStep(t.Context(), faulty, dir, m); err != nil || !v.Whole() || len(kinds) < 10 {
		t.Fatalf("undisturbed: %+v, %v, %d operations", v, err, len(kinds))
	}
	for _, injected := range []error{syscall.EIO, syscall.ETIMEDOUT, syscall.ESTALE, syscall.EACCES} {
		for at, kind := range kinds {
			for _, fault := range []disk.Fault{{Nth: 1, Err: injected}, {Op: kind, Err: injected}} {
				faulty, op := disk.NewFaulty(mem), 0
				faulty.Before(func(disk.Op, string) {
					if op == at {
						faulty.Inject(fault)
					}
					op++
				})
				v, err := VerifyStep(t.Context(), faulty, dir, m)
				if err != nil || len(v.Damaged()) != 0 {
					t.Fatalf("%v at %s, operation %d: %+v, %v", injected, kind, at, v, err)
				}
				if kind != disk.OpClose && len(v.Unreadable()) == 0 {
					t.Fatalf("%v at %s, operation %d went unnoticed", injected, kind, at)
				}
			}
		}
	}
}

func TestHashFileThatStillGrows(t *testing.T) {
	mem := disk.NewMem()
	if err := write(mem, "/f", []byte("abc")); err != nil {
		t.Fatal(err)
	}
	m := disk.NewFaulty(mem)
	m.Before(func(op disk.Op, _ string) {
		if op == disk.OpRead {
			overwrite(t, mem, "/f", []byte("abcd"))
		}
	})
	if digest, _, err := HashFile(t.Context(), m, "/f"); err == nil || !strings.Contains(err.Error(), "still writes") {
		t.Errorf("HashFile = %s, %v", digest, err)
	}
}

func TestDoUnknownTask(t *testing.T) {
	r := Do(t.Context(), Directories(OS(), "w"), OS(), wire.Task{ID: "1", Kind: "dance", Store: t.TempDir()}, t0)
	if r.ID != "1" || !strings.Contains(r.Error, "upgrade") {
		t.Errorf("%+v", r)
	}
}

func TestMarksRefuse(t *testing.T) {
	good := mark(t, DigestBytes(nil))
	for _, b := range [][]byte{nil, []byte("{}"), good[:len(good)-2], append(bytes.Clone(good), ' '), bytes.Replace(good, []byte(`"version":1`), []byte(`"version":0`), 1), make([]byte, maxMark+1)} {
		if _, err := ParseCommittedMark(b); !errors.Is(err, ErrMark) {
			t.Errorf("ParseCommittedMark(%.40q): %v", b, err)
		}
	}
	if _, err := ParseCommittedMark(bytes.Replace(good, []byte(`"version":1`), []byte(`"version":9`), 1)); !errors.Is(err, ErrNewer) {
		t.Errorf("newer: %v", err)
	}
	if _, err := ParseRolledBackMark(good); !errors.Is(err, ErrMark) {
		t.Errorf("another mark: %v", err)
	}
	if _, err := NewSweepOrder("xx", 1, nil); !errors.Is(err, ErrMark) {
		t.Errorf("bad life: %v", err)
	}
	if _, err := ParseSweepOrder([]byte(fmt.Sprintf(`{"format":"troupe-sweep","version":1,"life":"0a1b2c3d","generation":1,"keep":["../x"]}%s`, "\n"))); !errors.Is(err, ErrMark) {
		t.Errorf("bad name: %v", err)
	}
}
