package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

const testStore = "/store"

// prepared builds the report of one rank of a whole step, for tests to spoil.
func prepared(run string, step int64, gen uint64, world, rank int64) wire.Prepared {
	content := fmt.Sprintf("%s %d %d %d", run, step, gen, rank)
	return wire.Prepared{
		Alloc: fmt.Sprintf("alloc-%d", rank), Run: run, Generation: gen, Step: step, Rank: rank, World: world,
		Dir: StepDir(testStore, run, StepName{Step: step, Generation: gen, Life: "0a1b2c3d"}),
		Files: []wire.PreparedFile{{
			Path: RankDir(rank) + "/model.pt", Length: int64(len(content)), Digest: DigestBytes([]byte(content)), Part: "model",
		}},
	}
}

func preparedAll(run string, step int64, gen uint64, world int64) []wire.Prepared {
	var all []wire.Prepared
	for r := range world {
		all = append(all, prepared(run, step, gen, world, r))
	}
	return all
}

func mustBuild(t testing.TB, reports []wire.Prepared, parent *int64) ([]byte, string) {
	t.Helper()
	data, digest, err := Build(reports, parent)
	if err != nil {
		t.Fatalf("Build: %v", err)
	}
	return data, digest
}

func TestBuildGolden(t *testing.T) {
	parent := int64(10)
	reports := preparedAll("digits", 20, 3, 2)
	reports[0].Cursor = `{"epoch":1,"sample":640}`
	reports[1].Frameworks = "torch <2.15> & numpy"
	reports[1].Files = append(reports[1].Files, wire.PreparedFile{Path: "shared/__1_0.distcp", Digest: DigestBytes(nil)})
	data, digest := mustBuild(t, reports, &parent)
	const want = `{"format":"troupe-checkpoint","version":1,"self":"SELF","run":"digits","step":20,"generation":3,"life":"0a1b2c3d","world":2,"parent":10,` +
		`"cursor":"{\"epoch\":1,\"sample\":640}","config":"","frameworks":["torch <2.15> & numpy"],"bytes":26,"files":[` +
		`{"path":"rank-0/model.pt","rank":0,"length":13,"digest":"0d5cd5c9ed67cd5cd0efbd6a3c9ce9e4","part":"model"},` +
		`{"path":"rank-1/model.pt","rank":1,"length":13,"digest":"DIGEST1","part":"model"},` +
		`{"path":"shared/__1_0.distcp","rank":1,"length":0,"digest":"99aa06d3014798d86001c324468d497f","part":"other"}]}` + "\n"
	m, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(want, "SELF", m.Self, 1)
	text = strings.Replace(text, "0d5cd5c9ed67cd5cd0efbd6a3c9ce9e4", DigestBytes([]byte("digits 20 3 0")), 1)
	text = strings.Replace(text, "DIGEST1", DigestBytes([]byte("digits 20 3 1")), 1)
	if string(data) != text {
		t.Errorf("manifest\n%s\nwant\n%s", data, text)
	}
	if digest != DigestBytes(data) {
		t.Errorf("digest %s is not that of the bytes", digest)
	}
	if got := DigestBytes(bytes.Replace(data, []byte(m.Self), nil, 1)); got != m.Self {
		t.Errorf("self hash %s, hash of the bytes with the value empty is %s", m.Self, got)
	}
}

// P4: any agent writes the same bytes, whatever the order of arrival and whoever reports.
func TestBuildIsPure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.Int64Range(1, 9).Draw(t, "world")
		reports := preparedAll("r", rapid.Int64Range(0, 1000).Draw(t, "step"), rapid.Uint64().Draw(t, "gen"), world)
		for i := range reports {
			for k := range rapid.IntRange(0, 3).Draw(t, "shared") {
				reports[i].Files = append(reports[i].Files, wire.PreparedFile{
					Path: fmt.Sprintf("shared/%d_%d", i, k), Digest: DigestBytes([]byte{byte(k)}), Length: 1, Part: "data",
				})
			}
			reports[i].Frameworks = rapid.SampledFrom([]string{"", "torch 2.15", "numpy"}).Draw(t, "frameworks")
		}
		data, digest, err := Build(reports, nil)
		if err != nil {
			t.Fatal(err)
		}
		shuffled := append([]wire.Prepared(nil), reports...)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for i := range shuffled {
			shuffled[i].Alloc = fmt.Sprintf("other-%d", i)
			files := append([]wire.PreparedFile(nil), shuffled[i].Files...)
			rng.Shuffle(len(files), func(a, b int) { files[a], files[b] = files[b], files[a] })
			shuffled[i].Files = files
		}
		again, digestAgain, err := Build(shuffled, nil)
		if err != nil || !bytes.Equal(data, again) || digest != digestAgain {
			t.Fatalf("another order gives other bytes (%v)\n%s\n%s", err, data, again)
		}
		m, err := Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		if m.Bytes < world || int64(len(m.Files)) < world {
			t.Fatalf("manifest lost files: %+v", m)
		}
	})
}

func TestBuildRefuses(t *testing.T) {
	cases := []struct {
		name  string
		spoil func([]wire.Prepared) []wire.Prepared
		want  string
	}{
		{"nothing", func(r []wire.Prepared) []wire.Prepared { return nil }, "there is none"},
		{"a rank missing", func(r []wire.Prepared) []wire.Prepared { return r[:2] }, "2 reports for a world of 3"},
		{"a rank twice", func(r []wire.Prepared) []wire.Prepared { return append(r[:2], r[0]) }, "rank 1 reported twice or not at all"},
		{"a rank too many", func(r []wire.Prepared) []wire.Prepared { return append(r, r[2]) }, "4 reports"},
		{"negative rank", func(r []wire.Prepared) []wire.Prepared { r[0].Rank = -1; return r }, "found rank -1"},
		{"other run", func(r []wire.Prepared) []wire.Prepared { r[1].Run = "x"; return r }, `run "digits" and "x"`},
		{"other step", func(r []wire.Prepared) []wire.Prepared { r[1].Step = 6; return r }, "step 5 and 6"},
		{"other generation", func(r []wire.Prepared) []wire.Prepared { r[2].Generation = 8; return r }, "generation 7 and 8"},
		{"other world", func(r []wire.Prepared) []wire.Prepared { r[2].World = 4; return r }, "world size 3 and 4"},
		{"other directory", func(r []wire.Prepared) []wire.Prepared { r[2].Dir = "/elsewhere" + r[2].Dir; return r }, "directory"},
		{"huge world", func(r []wire.Prepared) []wire.Prepared { r[0].World = math.MaxInt64; return r }, "world size"},
		{"directory of another step", func(r []wire.Prepared) []wire.Prepared {
			for i := range r {
				r[i].Dir = StepDir(testStore, "digits", StepName{6, 7, "0a1b2c3d"})
			}
			return r
		}, "not of step 5"},
		{"directory of another run", func(r []wire.Prepared) []wire.Prepared {
			for i := range r {
				r[i].Dir = StepDir(testStore, "other", StepName{5, 7, "0a1b2c3d"})
			}
			return r
		}, "not one of run"},
		{"relative directory", func(r []wire.Prepared) []wire.Prepared {
			for i := range r {
				r[i].Dir = r[i].Dir[1:]
			}
			return r
		}, "not an absolute path"},
		{"two cursors", func(r []wire.Prepared) []wire.Prepared { r[0].Cursor = "1"; r[2].Cursor = "2"; return r }, "another data cursor"},
		{"cursor is no JSON", func(r []wire.Prepared) []wire.Prepared { r[0].Cursor = "{"; return r }, "not JSON"},
		{"cursor too large", func(r []wire.Prepared) []wire.Prepared {
			r[0].Cursor = strings.Repeat("1", MaxNote+1)
			return r
		}, "65537 bytes"},
		{"two configurations", func(r []wire.Prepared) []wire.Prepared { r[0].Config = "a"; r[2].Config = "b"; return r }, "another configuration"},
		{"invalid text", func(r []wire.Prepared) []wire.Prepared { r[0].Frameworks = "\xff"; return r }, "not UTF-8"},
		{"no files", func(r []wire.Prepared) []wire.Prepared {
			for i := range r {
				r[i].Files = nil
			}
			return r
		}, "nothing to restore"},
		{"too many files", func(r []wire.Prepared) []wire.Prepared {
			r[0].Files = make([]wire.PreparedFile, MaxFiles)
			return r
		}, "more than 100000 files"},
		{"digest too short", file(func(f *wire.PreparedFile) { f.Digest = "abcd" }), "32 hexadecimal"},
		{"digest in capitals", file(func(f *wire.PreparedFile) { f.Digest = strings.Repeat("A", 32) }), "32 hexadecimal"},
		{"negative length", file(func(f *wire.PreparedFile) { f.Length = -1 }), "length -1"},
		{"lengths overflow", file(func(f *wire.PreparedFile) { f.Length = math.MaxInt64 }), "length"},
		{"unknown part", file(func(f *wire.PreparedFile) { f.Part = "weights" }), "known are model"},
	}
	for _, p := range []string{
		"", "/etc/passwd", "../x", "rank-0/../../x", "rank-0/..", "rank-0", "shared", "shared/", "rank-0//a", "./rank-0/a",
		"rank-1/a", "manifest.json", "committed.json", "rank-0/a\x00b", `rank-0\a`, "rank-0/\xff", "rank-0/a\nb",
		"rank-00/a", "RANK-0/a", "rank-0/" + strings.Repeat("x", 256), strings.Repeat("shared/", 17) + "x", "shared/" + strings.Repeat("y/", 600) + "z",
	} {
		cases = append(cases, struct {
			name  string
			spoil func([]wire.Prepared) []wire.Prepared
			want  string
		}{fmt.Sprintf("path %.40q", p), file(func(f *wire.PreparedFile) { f.Path = p }), "file"})
	}
	cases = append(cases, []struct {
		name  string
		spoil func([]wire.Prepared) []wire.Prepared
		want  string
	}{
		{"path twice", func(r []wire.Prepared) []wire.Prepared {
			for i := range 2 {
				r[i].Files[0].Path = "shared/one"
			}
			return r
		}, "named twice, by ranks 0 and 1"},
		{"file and folder", func(r []wire.Prepared) []wire.Prepared {
			r[0].Files[0].Path = "shared/one"
			r[1].Files[0].Path = "shared/one/two"
			return r
		}, "both as a file and as a folder"},
	}...)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			data, _, err := Build(c.spoil(preparedAll("digits", 5, 7, 3)), nil)
			if !errors.Is(err, ErrReports) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Build = %q, %v; want an error about %q", data, err, c.want)
			}
		})
	}
}

func file(spoil func(*wire.PreparedFile)) func([]wire.Prepared) []wire.Prepared {
	return func(r []wire.Prepared) []wire.Prepared { spoil(&r[0].Files[0]); return r }
}

// I22: not one altered byte of a manifest passes.
func TestParseFindsEveryFlip(t *testing.T) {
	data, _ := mustBuild(t, preparedAll("digits", 5, 7, 2), nil)
	for i := range data {
		for bit := range 8 {
			b := bytes.Clone(data)
			b[i] ^= 1 << bit
			if _, err := Parse(b); !errors.Is(err, ErrManifest) && !errors.Is(err, ErrNewer) {
				t.Fatalf("bit %d of byte %d (%q) flipped: %v", bit, i, data[i], err)
			}
		}
	}
	for i := range data {
		if _, err := Parse(data[:i]); !errors.Is(err, ErrManifest) {
			t.Fatalf("cut to %d bytes: %v", i, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	data, _ := mustBuild(t, preparedAll("digits", 5, 7, 2), nil)
	resign := func(change func(map[string]any)) []byte {
		var doc map[string]any
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		if err := d.Decode(&doc); err != nil {
			t.Fatal(err)
		}
		change(doc)
		out, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	evil := func(change func(*Manifest)) []byte {
		m, err := Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		change(m)
		out, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for _, c := range []struct {
		name string
		data []byte
		want string
		err  error
	}{
		{"empty", nil, "empty", ErrManifest},
		{"blank", []byte(" \n"), "empty", ErrManifest},
		{"no JSON", []byte("hello"), "invalid character", ErrManifest},
		{"another document", []byte(`{"format":"zip","version":1}`), `format "zip"`, ErrManifest},
		{"no version", []byte(`{"format":"troupe-checkpoint"}`), "version 0", ErrManifest},
		{"newer", resign(func(d map[string]any) { d["version"] = 7; d["future"] = true }), "has version 7, this build reads 1", ErrNewer},
		{"unknown field", resign(func(d map[string]any) { d["future"] = true }), "unknown field", ErrManifest},
		{"altered", bytes.Replace(data, []byte(`"world":2`), []byte(`"world":3`), 1), "does not match its own hash", ErrManifest},
		{"missing field", resign(func(d map[string]any) { delete(d, "cursor") }), "", ErrManifest},
		{"other order", resign(func(map[string]any) {}), "canonical", ErrManifest},
		{"trailing data", append(bytes.Clone(data), "{}"...), "", ErrManifest},
		{"trailing space", append(bytes.Clone(data), '\n'), "canonical", ErrManifest},
		{"deep", bytes.Repeat([]byte("["), 1<<20), "", ErrManifest},
		{"too large", make([]byte, MaxManifest+1), "at most", ErrManifest},
		{"signed, foreign path", evil(func(m *Manifest) { m.Files[0].Path = "../../etc/passwd" }), "not clean", ErrManifest},
		{"signed, absolute path", evil(func(m *Manifest) { m.Files[0].Path = "/etc/passwd" }), "absolute", ErrManifest},
		{"signed, wrong sum", evil(func(m *Manifest) { m.Bytes++ }), "together", ErrManifest},
		{"signed, no rank", evil(func(m *Manifest) { m.Files[0].Rank = 9 }), "rank 9", ErrManifest},
		{"signed, bad life", evil(func(m *Manifest) { m.Life = "XYZ" }), "life", ErrManifest},
		{"signed, bad run", evil(func(m *Manifest) { m.Run = "../x" }), "run name", ErrManifest},
		{"signed, unsorted", evil(func(m *Manifest) { m.Files[0], m.Files[1] = m.Files[1], m.Files[0] }), "sorted", ErrManifest},
		{"signed, null files", evil(func(m *Manifest) { m.Files = nil; m.Bytes = 0 }), "nothing to restore", ErrManifest},
		{"signed, negative step", evil(func(m *Manifest) { m.Step = -1 }), "negative", ErrManifest},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse(c.data)
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Parse: %v; want %v with %q", err, c.err, c.want)
			}
		})
	}
}

// Whatever is accepted is canonical, so no two readers see different documents.
func FuzzParse(f *testing.F) {
	data, _ := mustBuild(f, preparedAll("digits", 5, 7, 2), nil)
	f.Add(data)
	f.Add([]byte(`{"format":"troupe-checkpoint","version":1}`))
	f.Add([]byte(`{"format":"troupe-checkpoint","version":2}`))
	f.Add(bytes.Replace(data, []byte("rank-0/"), []byte("../../"), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			if !errors.Is(err, ErrManifest) && !errors.Is(err, ErrNewer) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		out, err := m.encode()
		if err != nil || !bytes.Equal(out, b) {
			t.Fatalf("accepted but not canonical: %v", err)
		}
		if err := m.check(); err != nil {
			t.Fatalf("accepted but invalid: %v", err)
		}
	})
}
