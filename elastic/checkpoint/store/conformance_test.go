package store

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/disk"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWholeLife(t *testing.T) {
	on(t, func(t *testing.T, e *env) {
		ctx, s := t.Context(), e.open(t)
		x := e.save(t, step(5, 3))
		l, err := s.List(ctx, run)
		must(t, err)
		if got := describe(l); got != "highest 3 of 1 odd []" {
			t.Errorf("before the manifest: %s", got)
		}
		for range 2 { // each may be repeated
			must(t, s.WriteManifest(ctx, run, x.dir, x.data, x.digest))
			must(t, s.WriteCommitted(ctx, run, x.dir, x.mark(t)))
		}
		m, data, err := s.Manifest(ctx, run, x.dir)
		if err != nil || !bytes.Equal(data, x.data) || m.Name() != x.StepName {
			t.Fatalf("Manifest: %v", err)
		}
		l, err = s.List(ctx, run)
		if err != nil || len(l.Candidates) != 1 || l.Candidates[0].Dir != x.dir || l.Candidates[0].Mark.Digest != x.digest {
			t.Fatalf("after the commit: %s, %v", describe(l), err)
		}
		v, err := s.Verify(ctx, run, x.dir, x.digest)
		if err != nil || !v.Whole() || v.Files != 4 || v.Bytes != m.Bytes {
			t.Fatalf("Verify: %+v, %v", v, err)
		}
		for name, want := range content(x.StepName) {
			r, size, err := s.Open(ctx, run, x.dir, name)
			must(t, err)
			got, err := io.ReadAll(r)
			must(t, errors.Join(err, r.Close()))
			if !bytes.Equal(got, want) || size != int64(len(want)) {
				t.Errorf("%s: %d bytes, size %d, want %d", name, len(got), size, len(want))
			}
		}
		for range 2 {
			must(t, s.WriteRolledBack(ctx, run, x.dir, rollBackMark(t)))
		}
		if l, err = s.List(ctx, run); err != nil || len(l.Candidates) != 0 {
			t.Fatalf("after the roll-back: %s, %v", describe(l), err)
		}
		for range 2 {
			must(t, s.Delete(ctx, run, x.dir))
		}
		if l, err = s.List(ctx, run); err != nil || len(l.Steps) != 0 {
			t.Fatalf("after the deletion: %s, %v", describe(l), err)
		}
		must(t, s.WriteRolledBack(ctx, run, x.dir, rollBackMark(t))) // nobody can adopt what is not there
		if l, err = s.List(ctx, run); err != nil || len(l.Steps) != 0 {
			t.Fatalf("a mark was written where no step is: %s, %v", describe(l), err)
		}
	})
}

// TestWrongSteps: what does not fit the manifest is refused and changes nothing.
func TestWrongSteps(t *testing.T) {
	on(t, func(t *testing.T, e *env) {
		ctx, s := t.Context(), e.open(t)
		files := func(kind checkpoint.FindingKind, name string) func(error) bool {
			return func(err error) bool {
				f, ok := errors.AsType[*checkpoint.FilesError](err)
				return ok && f.Damage() && f.Findings[0].Kind == kind && f.Findings[0].Path == name
			}
		}
		is := func(want error) func(error) bool { return func(err error) bool { return errors.Is(err, want) } }
		for i, c := range []struct {
			name  string
			spoil func(x *saved)
			check func(error) bool
		}{
			{"a file is missing", func(x *saved) { must(t, os.Remove(e.at(x.StepName, "rank-1/model.pt"))) }, files(checkpoint.FindingMissing, "rank-1/model.pt")},
			{"a file is short", func(x *saved) { must(t, os.Truncate(e.at(x.StepName, "shared/a/b.bin"), 9)) }, files(checkpoint.FindingShort, "shared/a/b.bin")},
			{"a file is long", func(x *saved) { must(t, os.Truncate(e.at(x.StepName, "rank-0/rng.pt"), 9)) }, files(checkpoint.FindingLong, "rank-0/rng.pt")},
			{"another manifest is there", func(x *saved) {
				e.place(t, x.StepName, checkpoint.ManifestFile, []byte("other"))
			}, is(checkpoint.ErrDifferentManifest)},
			{"an empty manifest is there", func(x *saved) {
				e.place(t, x.StepName, checkpoint.ManifestFile, nil)
			}, is(checkpoint.ErrDifferentManifest)},
			{"another digest was sent", func(x *saved) { x.digest = checkpoint.DigestBytes(nil) }, is(checkpoint.ErrManifest)},
			{"its bytes are altered", func(x *saved) { x.data[len(x.data)/2] ^= 1 }, is(checkpoint.ErrManifest)},
			{"it is of a newer version", func(x *saved) {
				x.data = bytes.Replace(x.data, []byte(`"version":1`), []byte(`"version":9`), 1)
				x.digest = checkpoint.DigestBytes(x.data)
			}, is(checkpoint.ErrNewer)},
			{"it is of another step", func(x *saved) { x.dir = e.save(t, step(77, 3)).dir }, is(checkpoint.ErrManifest)},
			{"its directory is of another run", func(x *saved) { x.dir = strings.Replace(x.dir, run, "other", 1) }, is(checkpoint.ErrUnsafe)},
			{"its directory climbs", func(x *saved) { x.dir = x.dir + "/../x" }, is(checkpoint.ErrUnsafe)},
			{"its directory is outside", func(*saved) {}, nil},
		} {
			t.Run(c.name, func(t *testing.T) {
				x := e.save(t, step(int64(i+1), 3))
				c.spoil(&x)
				if c.check == nil {
					x.dir, c.check = "/etc", is(checkpoint.ErrUnsafe)
				}
				if err := s.WriteManifest(ctx, run, x.dir, x.data, x.digest); err == nil || !c.check(err) {
					t.Errorf("WriteManifest: %v", err)
				}
				if err := s.WriteCommitted(ctx, run, x.dir, x.mark(t)); err == nil {
					t.Error("a mark was written without its manifest")
				}
			})
		}
		x := e.commit(t, step(99, 3))
		other := x
		other.digest = checkpoint.DigestBytes(nil)
		if err := s.WriteCommitted(ctx, run, x.dir, other.mark(t)); !errors.Is(err, checkpoint.ErrDigest) {
			t.Errorf("the mark of another manifest: %v", err)
		}
		if _, err := s.Verify(ctx, run, x.dir, other.digest); !errors.Is(err, checkpoint.ErrDigest) {
			t.Errorf("another digest in the log: %v", err)
		}
		for _, name := range []string{"../committed.json", "/etc/passwd", "rank-0/../../x", "", "rank-0/\x00"} {
			if r, _, err := s.Open(ctx, run, x.dir, name); err == nil {
				_ = r.Close()
				t.Errorf("%q was opened", name)
			}
		}
	})
}

// TestCreateOnce: of many writers of different manifests exactly one wins, and all of them
// learn it (P4).
func TestCreateOnce(t *testing.T) {
	on(t, func(t *testing.T, e *env) {
		x := e.save(t, step(5, 3))
		parent := int64(4)
		data2, digest2, err := checkpoint.Build(e.put(t, x.StepName, content(x.StepName)), &parent)
		must(t, err)
		var wg sync.WaitGroup
		errs := make([]error, 12)
		for i := range errs {
			data, digest := x.data, x.digest
			if i%2 == 1 {
				data, digest = data2, digest2
			}
			s, err := New(disk.OS(), "w"+string(rune('a'+i))).Open(t.Context(), e.address)
			must(t, err)
			wg.Go(func() { errs[i] = s.WriteManifest(t.Context(), run, x.dir, data, digest) })
		}
		wg.Wait()
		_, there, err := e.open(t).Manifest(t.Context(), run, x.dir)
		must(t, err)
		for i, err := range errs {
			mine := bytes.Equal(there, x.data) == (i%2 == 0)
			if mine && err != nil || !mine && !errors.Is(err, checkpoint.ErrDifferentManifest) {
				t.Errorf("writer %d: %v", i, err)
			}
		}
	})
}

// TestDamage: each kind of damage is found and named; a store that cannot be read is none.
func TestDamage(t *testing.T) {
	on(t, func(t *testing.T, e *env) {
		ctx, s := t.Context(), e.open(t)
		for i, c := range []struct {
			name string
			file string
			how  func(t *testing.T, name string)
			kind checkpoint.FindingKind
		}{
			{"bit flip", "shared/a/b.bin", flip, checkpoint.FindingDigest},
			{"cut", "rank-0/model.pt", func(t *testing.T, name string) { must(t, os.Truncate(name, 100)) }, checkpoint.FindingShort},
			{"grown", "rank-0/rng.pt", func(t *testing.T, name string) { must(t, os.Truncate(name, 1)) }, checkpoint.FindingLong},
			{"removed", "rank-1/model.pt", func(t *testing.T, name string) { must(t, os.Remove(name)) }, checkpoint.FindingMissing},
		} {
			t.Run(c.name, func(t *testing.T) {
				x := e.commit(t, step(int64(i+1), 3))
				c.how(t, e.at(x.StepName, c.file))
				v, err := s.Verify(ctx, run, x.dir, x.digest)
				f, ok := errors.AsType[*checkpoint.FilesError](err)
				if !ok || !f.Damage() || len(v.Findings) != 1 || v.Findings[0].Kind != c.kind || v.Findings[0].Path != c.file {
					t.Errorf("Verify: %+v, %v", v, err)
				}
				into := t.TempDir()
				m, _, err := s.Manifest(ctx, run, x.dir)
				must(t, err)
				v, err = checkpoint.Fetch(ctx, s, run, x.dir, m, disk.OS(), into)
				if err != nil || len(v.Findings) != 1 || v.Findings[0].Kind != c.kind || v.Files != 4 {
					t.Errorf("Fetch: %+v, %v", v, err)
				}
			})
		}
		x := e.commit(t, step(50, 3))
		back := e.gone()
		_, err := s.Verify(ctx, run, x.dir, x.digest)
		if f, ok := errors.AsType[*checkpoint.FilesError](err); err == nil || ok && f.Damage() || errors.Is(err, checkpoint.ErrNoManifest) || errors.Is(err, checkpoint.ErrManifest) {
			t.Errorf("a store that is gone: %v", err)
		}
		if _, err := s.List(ctx, run); err == nil {
			t.Error("a store that is gone was listed")
		}
		back()
		if _, err := s.Verify(ctx, run, x.dir, x.digest); err != nil {
			t.Errorf("after it came back: %v", err)
		}
	})
}

func flip(t *testing.T, name string) {
	data, err := os.ReadFile(name)
	must(t, err)
	data[len(data)/2] ^= 1
	must(t, os.WriteFile(name, data, 0o600))
}

// TestFetch: what is fetched is byte-equal, read-only, and each file is read once.
func TestFetch(t *testing.T) {
	on(t, func(t *testing.T, e *env) {
		ctx, s := t.Context(), e.open(t)
		x := e.commit(t, step(5, 3))
		m, _, err := s.Manifest(ctx, run, x.dir)
		must(t, err)
		into := t.TempDir()
		var requests int64
		for range 2 {
			v, err := checkpoint.Fetch(ctx, s, run, x.dir, m, disk.OS(), into)
			if err != nil || !v.Whole() || v.Bytes != m.Bytes {
				t.Fatalf("%+v, %v", v, err)
			}
			if e.proxy != nil && requests > 0 && e.proxy.Requests.Load() != requests {
				t.Error("files that are here already were asked for again")
			}
			if e.proxy != nil {
				requests = e.proxy.Requests.Load()
			}
		}
		for name, want := range content(x.StepName) {
			got, err := os.ReadFile(filepath.Join(into, name))
			must(t, err)
			st, err := os.Stat(filepath.Join(into, name))
			must(t, err)
			if !bytes.Equal(got, want) || st.Mode().Perm() != 0o444 {
				t.Errorf("%s: %d bytes, mode %s", name, len(got), st.Mode())
			}
		}
		// One that was altered here is fetched anew.
		name := filepath.Join(into, "shared/a/b.bin")
		must(t, os.Chmod(name, 0o600))
		flip(t, name)
		if v, err := checkpoint.Fetch(ctx, s, run, x.dir, m, disk.OS(), into); err != nil || !v.Whole() {
			t.Fatalf("%+v, %v", v, err)
		}
		if got, _ := os.ReadFile(name); !bytes.Equal(got, content(x.StepName)["shared/a/b.bin"]) {
			t.Error("an altered copy stayed")
		}
	})
}

func TestListing(t *testing.T) {
	on(t, func(t *testing.T, e *env) {
		ctx, s := t.Context(), e.open(t)
		if e.disk != nil {
			must(t, os.MkdirAll(e.root, 0o755))
		}
		l, err := s.List(ctx, run)
		if err != nil || describe(l) != "highest 0 of 0 odd []" {
			t.Fatalf("an empty store: %s, %v", describe(l), err)
		}
		e.commit(t, step(20, 1))
		e.commit(t, step(10, 2)) // a higher generation is newer, even at a smaller step
		e.save(t, step(30, 9))
		back := e.commit(t, step(30, 1))
		must(t, s.WriteRolledBack(ctx, run, back.dir, rollBackMark(t)))
		odd := e.commit(t, step(40, 4))
		must(t, os.WriteFile(e.at(odd.StepName, checkpoint.CommittedFile), []byte("{}"), 0o600))
		must(t, os.MkdirAll(filepath.Join(e.root, run, "step-07-g1-"+life), 0o755))
		must(t, os.WriteFile(filepath.Join(e.root, run, "step-07-g1-"+life, "x"), nil, 0o600))
		l, err = s.List(ctx, run)
		want := "highest 9 step-10-g2-0a1b2c3d step-20-g1-0a1b2c3d of 5 odd [step-07-g1-0a1b2c3d step-40-g4-0a1b2c3d]"
		if err != nil || describe(l) != want {
			t.Errorf("%s, %v\nwant %s", describe(l), err, want)
		}
	})
}

func TestSweep(t *testing.T) {
	on(t, func(t *testing.T, e *env) {
		ctx, s := t.Context(), e.open(t)
		now := time.Now()
		committed := e.commit(t, step(1, 1))
		old := e.save(t, step(2, 1))
		kept := e.save(t, step(3, 1))
		current := e.save(t, step(4, 5))
		foreign := e.save(t, checkpoint.StepName{Step: 5, Generation: 1, Life: "ffffffff"})
		data, err := checkpoint.NewSweepOrder(life, 5, []checkpoint.StepName{kept.StepName})
		must(t, err)
		o, err := checkpoint.ParseSweepOrder(data)
		must(t, err)
		// A clock that is a month ahead takes nobody's fresh save for an old one.
		removed, err := s.Sweep(ctx, run, o, now.Add(30*24*time.Hour))
		if err != nil || !slices.Equal(removed, []string{old.String()}) {
			t.Errorf("removed %v, %v", removed, err)
		}
		// And one that is far behind removes no more.
		if removed, err = s.Sweep(ctx, run, o, now.Add(-10*365*24*time.Hour)); err != nil || len(removed) != 0 {
			t.Errorf("removed %v, %v", removed, err)
		}
		for _, x := range []saved{committed, kept, current, foreign} {
			if !e.exists(t, x.StepName, "shared/a/b.bin") {
				t.Errorf("%s is gone", x)
			}
		}
	})
}

func TestNonces(t *testing.T) {
	on(t, func(t *testing.T, e *env) {
		ctx, s := t.Context(), e.open(t)
		must(t, s.WriteNonce(ctx, "abc"))
		for nonce, want := range map[string]bool{"abc": true, "abd": false} {
			if got, err := s.HasNonce(ctx, nonce); err != nil || got != want {
				t.Errorf("%s: %t, %v", nonce, got, err)
			}
		}
		for range 2 {
			must(t, s.ForgetNonce(ctx, "abc"))
		}
		if got, err := s.HasNonce(ctx, "abc"); err != nil || got {
			t.Errorf("still there: %v", err)
		}
		for _, bad := range []string{"", "../x", "a/b", strings.Repeat("x", 65)} {
			if err := s.WriteNonce(ctx, bad); err == nil {
				t.Errorf("nonce %q was written", bad)
			}
		}
	})
}
