package checkpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Values of the reference implementation (xxhsum -H2).
func TestDigestKnownValues(t *testing.T) {
	for text, want := range map[string]string{
		"": "99aa06d3014798d86001c324468d497f",
	} {
		if got := DigestBytes([]byte(text)); got != want {
			t.Errorf("digest of %q = %s, want %s", text, got, want)
		}
	}
}

func TestHashFileStreams(t *testing.T) {
	dir := t.TempDir()
	data := make([]byte, 3<<20+17)
	for i := range data {
		data[i] = byte(i * 7)
	}
	for _, n := range []int{0, 1, 1 << 20, len(data)} {
		name := filepath.Join(dir, "f")
		if err := os.WriteFile(name, data[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		digest, length, err := HashFile(t.Context(), OS(), name)
		if err != nil || length != int64(n) || digest != DigestBytes(data[:n]) {
			t.Errorf("HashFile of %d bytes = %s, %d, %v", n, digest, length, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := HashFile(ctx, OS(), filepath.Join(dir, "f")); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
}

func TestHashFileRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := os.WriteFile(target, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	link, pipe := filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{link, pipe, dir} {
		if _, _, err := HashFile(t.Context(), OS(), name); !errors.Is(err, errNotRegular) {
			t.Errorf("HashFile(%s): %v, want refusal", name, err)
		}
	}
}

// savedStep writes a whole step on the real disk and returns its directory.
func savedStep(t *testing.T) (string, *Manifest) {
	t.Helper()
	store := t.TempDir()
	name := StepName{Step: 5, Generation: 7, Life: "0a1b2c3d"}
	dir := StepDir(store, "digits", name)
	var reports []wire.Prepared
	for r := range int64(3) {
		p := wire.Prepared{Run: "digits", Step: 5, Generation: 7, Rank: r, World: 3, Dir: dir}
		if err := os.MkdirAll(filepath.Join(dir, RankDir(r)), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, base := range []string{"model.pt", "rng.pt"} {
			rel := RankDir(r) + "/" + base
			content := strings.Repeat(rel, 100)
			if err := os.WriteFile(filepath.Join(dir, rel), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			p.Files = append(p.Files, wire.PreparedFile{Path: rel, Length: int64(len(content)), Digest: DigestBytes([]byte(content)), Part: "model"})
		}
		reports = append(reports, p)
	}
	data, _ := mustBuild(t, reports, nil)
	if err := os.WriteFile(filepath.Join(dir, ManifestFile), data, 0o600); err != nil {
		t.Fatal(err)
	}
	m, _, err := ReadManifest(OS(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir, m
}

func TestVerifyFindings(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, file string) error
		kind  FindingKind
	}{
		{"cut", func(_ *testing.T, f string) error { return os.Truncate(f, 3) }, FindingShort},
		{"empty", func(_ *testing.T, f string) error { return os.Truncate(f, 0) }, FindingShort},
		{"longer", func(_ *testing.T, f string) error { return os.Truncate(f, 1<<20) }, FindingLong},
		{"one bit", func(_ *testing.T, f string) error {
			b, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			b[len(b)/2] ^= 4
			return os.WriteFile(f, b, 0o600)
		}, FindingDigest},
		{"gone", func(_ *testing.T, f string) error { return os.Remove(f) }, FindingMissing},
		{"folder gone", func(_ *testing.T, f string) error { return os.RemoveAll(filepath.Dir(f)) }, FindingMissing},
		{"link to the same bytes", func(_ *testing.T, f string) error {
			if err := os.Rename(f, f+".moved"); err != nil {
				return err
			}
			return os.Symlink(f+".moved", f)
		}, FindingMissing},
		{"folder is a link", func(_ *testing.T, f string) error {
			d := filepath.Dir(f)
			if err := os.Rename(d, d+".moved"); err != nil {
				return err
			}
			return os.Symlink(d+".moved", d)
		}, FindingMissing},
		{"store unmounted", func(_ *testing.T, f string) error { return os.RemoveAll(filepath.Dir(filepath.Dir(f))) }, FindingIO},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, m := savedStep(t)
			v, err := VerifyStep(t.Context(), OS(), dir, m)
			if err != nil || !v.Whole() || v.Files != 6 || v.Bytes != m.Bytes {
				t.Fatalf("before: %+v, %v", v, err)
			}
			if err := c.spoil(t, filepath.Join(dir, "rank-1/rng.pt")); err != nil {
				t.Fatal(err)
			}
			v, err = VerifyStep(t.Context(), OS(), dir, m)
			if err != nil {
				t.Fatal(err)
			}
			var got *Finding
			for i := range v.Findings {
				if v.Findings[i].Path == "rank-1/rng.pt" {
					got = &v.Findings[i]
				}
			}
			if got == nil || got.Kind != c.kind {
				t.Errorf("findings %v, want %s", v.Findings, c.kind)
			}
			if got != nil && got.Damage() == (c.kind == FindingIO) {
				t.Errorf("%v: Damage() = %v", got, got.Damage())
			}
		})
	}
}

// Every file is verified exactly once, however many nodes share the work.
func TestSharesPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m Manifest
		for i := range rapid.IntRange(0, 40).Draw(t, "files") {
			m.Files = append(m.Files, File{Path: string(rune('a'+i%26)) + string(rune('a'+i/26)), Length: rapid.Int64Range(0, 1000).Draw(t, "length")})
		}
		shares := rapid.IntRange(1, 12).Draw(t, "shares")
		seen := map[string]int{}
		var most, sum, largest int64
		for s := range shares {
			var load int64
			for _, f := range Share(&m, s, shares) {
				seen[f.Path]++
				load += f.Length + 1
				largest = max(largest, f.Length+1)
			}
			most, sum = max(most, load), sum+load
		}
		for _, f := range m.Files {
			if seen[f.Path] != 1 {
				t.Fatalf("%s is in %d shares", f.Path, seen[f.Path])
			}
		}
		if len(seen) != len(m.Files) {
			t.Fatalf("%d files of %d", len(seen), len(m.Files))
		}
		if most > sum/int64(shares)+largest {
			t.Fatalf("largest share %d of %d in %d shares", most, sum, shares)
		}
	})
}

func TestReadManifestBelongsToItsDirectory(t *testing.T) {
	dir, _ := savedStep(t)
	other := filepath.Join(filepath.Dir(dir), StepName{6, 7, "0a1b2c3d"}.String())
	if _, _, err := ReadManifest(OS(), other); !errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrNoManifest) {
		t.Errorf("no directory: %v", err)
	}
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadManifest(OS(), other); !errors.Is(err, ErrNoManifest) {
		t.Errorf("no manifest: %v", err)
	}
	if err := os.Rename(filepath.Join(dir, ManifestFile), filepath.Join(other, ManifestFile)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadManifest(OS(), other); !errors.Is(err, ErrManifest) {
		t.Errorf("manifest of another step: %v", err)
	}
}
