package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Format names the document and Version its form; both stand first in every
// manifest, so that any build can tell what it is looking at.
const (
	Format  = "troupe-checkpoint"
	Version = 1
)

// Bounds of a manifest. Build refuses what is beyond them and Parse refuses to read it.
const (
	MaxFiles    = 100_000
	MaxWorld    = 1 << 20
	MaxNote     = 64 << 10 // bytes of one cursor, configuration digest or framework note
	MaxNotes    = 1 << 20  // bytes of all notes of a step together
	MaxManifest = 32 << 20 // bytes of manifest.json
)

var (
	// ErrReports is wrapped when prepared reports do not make one whole step.
	ErrReports = errors.New("the prepared reports do not make a checkpoint")
	// ErrManifest is wrapped when bytes are not a whole, unaltered manifest.
	ErrManifest = errors.New("not a valid manifest")
	// ErrNewer is wrapped when a newer Troupe wrote the manifest; upgrade to read it.
	ErrNewer = errors.New("the manifest was written by a newer Troupe")
)

// Manifest describes one step completely. Its bytes are a pure function of the
// prepared reports: no clock, no writer, no order of arrival. So every agent that is
// asked to write it writes the same bytes, and an equal existing file is success.
type Manifest struct {
	Format     string   `json:"format"`
	Version    int64    `json:"version"`
	Self       string   `json:"self"` // hex xxh3-128 of the file with this value empty
	Run        string   `json:"run"`
	Step       int64    `json:"step"`
	Generation uint64   `json:"generation"`
	Life       string   `json:"life"`
	World      int64    `json:"world"` // ranks that saved
	Parent     *int64   `json:"parent"`
	Cursor     string   `json:"cursor"`     // world-size independent data position, JSON; "" when none was given
	Config     string   `json:"config"`     // digest of the run's configuration; "" when none was given
	Frameworks []string `json:"frameworks"` // what ranks said they ran, sorted, each once
	// Metrics are numbers that ranks gave with the step, sorted by name, each once: what
	// the lowest rank that names it said. Absent when there are none.
	Metrics []wire.Metric `json:"metrics,omitempty"`
	// Mesh is the device mesh of the ranks, outermost first. Absent when none was given.
	Mesh  []wire.MeshDim `json:"mesh,omitempty"`
	Bytes int64          `json:"bytes"` // sum of all lengths
	Files []File         `json:"files"` // sorted by path
}

// File is one file of a step.
type File struct {
	Path   string `json:"path"` // relative to the step's directory
	Rank   int64  `json:"rank"` // which prepared it
	Length int64  `json:"length"`
	Digest string `json:"digest"` // hex xxh3-128
	Part   string `json:"part"`
}

// Parts that a file may be.
var parts = []string{"model", "optimizer", "scheduler", "rng", "data", "other"}

// Name returns the directory name that the manifest belongs to.
func (m *Manifest) Name() StepName {
	return StepName{Step: m.Step, Generation: m.Generation, Life: m.Life}
}

func badReports(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrReports, fmt.Sprintf(format, args...))
}

// Build makes the manifest of one step from the prepared reports of all ranks, in
// any order, and returns its bytes and their digest. parent is the step that the
// attempt restored from, nil when it began from nothing. Every refusal wraps
// ErrReports and names what is wrong.
func Build(reports []wire.Prepared, parent *int64) (data []byte, digest string, err error) {
	if len(reports) == 0 {
		return nil, "", badReports("there is none")
	}
	first := reports[0]
	name, err := checkHeader(first)
	if err != nil {
		return nil, "", err
	}
	if parent != nil && *parent < 0 {
		return nil, "", badReports("parent step %d is negative", *parent)
	}
	byRank := slices.Clone(reports)
	sort.SliceStable(byRank, func(i, j int) bool { return byRank[i].Rank < byRank[j].Rank })
	if int64(len(byRank)) != first.World {
		return nil, "", badReports("%d reports for a world of %d ranks", len(byRank), first.World)
	}
	m := Manifest{
		Format: Format, Version: Version, Run: first.Run, Step: first.Step,
		Generation: first.Generation, Life: name.Life, World: first.World, Parent: parent,
		Frameworks: []string{}, Files: []File{},
	}
	notes := 0
	for i, r := range byRank {
		if r.Rank != int64(i) {
			return nil, "", badReports("rank %d reported twice or not at all (found rank %d in its place)", i, r.Rank)
		}
		if err := sameStep(first, r); err != nil {
			return nil, "", err
		}
		notes += len(r.Cursor) + len(r.Config) + len(r.Frameworks)
		if notes > MaxNotes {
			return nil, "", badReports("cursors, configurations and framework notes are together larger than %d bytes", MaxNotes)
		}
		if err := m.addNotes(r); err != nil {
			return nil, "", err
		}
		if !slices.Equal(r.Mesh, byRank[0].Mesh) {
			return nil, "", badReports("ranks 0 and %d differ: device mesh %s and %s", i, meshText(byRank[0].Mesh), meshText(r.Mesh))
		}
		if len(m.Files)+len(r.Files) > MaxFiles {
			return nil, "", badReports("more than %d files; write fewer, larger files", MaxFiles)
		}
		for _, f := range r.Files {
			m.Files = append(m.Files, File{Path: f.Path, Rank: r.Rank, Length: f.Length, Digest: f.Digest, Part: partOf(f.Part)})
		}
	}
	slices.Sort(m.Frameworks)
	m.Frameworks = slices.Compact(m.Frameworks)
	m.Metrics, m.Mesh = metricsOf(byRank), byRank[0].Mesh
	sort.Slice(m.Files, func(i, j int) bool {
		a, b := m.Files[i], m.Files[j]
		return a.Path < b.Path || a.Path == b.Path && a.Rank < b.Rank
	})
	for _, f := range m.Files {
		m.Bytes += f.Length // checked for sign and overflow by check
	}
	if err := m.check(); err != nil {
		return nil, "", badReports("%s", err)
	}
	if data, err = m.encode(); err != nil {
		return nil, "", badReports("%s", err)
	}
	return data, DigestBytes(data), nil
}

func checkHeader(r wire.Prepared) (StepName, error) {
	if r.World < 1 || r.World > MaxWorld {
		return StepName{}, badReports("world size %d", r.World)
	}
	store, run, _ := SplitDir(r.Dir)
	if run != r.Run {
		return StepName{}, badReports("directory %q is not one of run %q", trim(r.Dir), trim(r.Run))
	}
	name, err := ValidDir(store, r.Run, r.Dir)
	if err != nil {
		return StepName{}, badReports("%s", err)
	}
	if name.Step != r.Step || name.Generation != r.Generation {
		return StepName{}, badReports("directory %q is not of step %d and generation %d", path.Base(r.Dir), r.Step, r.Generation)
	}
	return name, nil
}

func sameStep(a, b wire.Prepared) error {
	var what string
	switch {
	case a.Run != b.Run:
		what = fmt.Sprintf("run %q and %q", trim(a.Run), trim(b.Run))
	case a.Step != b.Step:
		what = fmt.Sprintf("step %d and %d", a.Step, b.Step)
	case a.Generation != b.Generation:
		what = fmt.Sprintf("generation %d and %d", a.Generation, b.Generation)
	case a.World != b.World:
		what = fmt.Sprintf("world size %d and %d", a.World, b.World)
	case a.Dir != b.Dir:
		what = fmt.Sprintf("directory %q and %q", trim(a.Dir), trim(b.Dir))
	default:
		return nil
	}
	return badReports("ranks %d and %d differ: %s", a.Rank, b.Rank, what)
}

// addNotes merges what a rank said beside its files. Cursor and configuration
// describe the run, not the rank, so two ranks that disagree have not saved the
// same step, and restoring it would continue from a position nobody was at.
func (m *Manifest) addNotes(r wire.Prepared) error {
	for _, n := range []struct{ what, text string }{{"cursor", r.Cursor}, {"configuration", r.Config}, {"frameworks", r.Frameworks}} {
		if len(n.text) > MaxNote {
			return badReports("%s of rank %d has %d bytes, at most %d are allowed", n.what, r.Rank, len(n.text), MaxNote)
		}
		if !utf8.ValidString(n.text) {
			return badReports("%s of rank %d is not UTF-8", n.what, r.Rank)
		}
	}
	if r.Cursor != "" {
		if m.Cursor != "" && m.Cursor != r.Cursor {
			return badReports("rank %d gives another data cursor than a lower rank; the cursor must not depend on the rank", r.Rank)
		}
		m.Cursor = r.Cursor
	}
	if r.Config != "" {
		if m.Config != "" && m.Config != r.Config {
			return badReports("rank %d runs another configuration than a lower rank", r.Rank)
		}
		m.Config = r.Config
	}
	if r.Frameworks != "" {
		m.Frameworks = append(m.Frameworks, r.Frameworks)
	}
	return nil
}

func partOf(p string) string {
	if p == "" {
		return "other"
	}
	return p
}

// check holds for every manifest that is written or read.
func (m *Manifest) check() error {
	if err := ValidRun(m.Run); err != nil {
		return err
	}
	if err := ValidLife(m.Life); err != nil {
		return err
	}
	switch {
	case m.Step < 0:
		return fmt.Errorf("step %d is negative", m.Step)
	case m.World < 1 || m.World > MaxWorld:
		return fmt.Errorf("world size %d", m.World)
	case m.Parent != nil && *m.Parent < 0:
		return fmt.Errorf("parent step %d is negative", *m.Parent)
	case m.Cursor != "" && !json.Valid([]byte(m.Cursor)):
		return errors.New("the data cursor is not JSON")
	case len(m.Files) == 0:
		return errors.New("no rank names a file: there would be nothing to restore")
	case len(m.Files) > MaxFiles:
		return fmt.Errorf("%d files, at most %d are allowed", len(m.Files), MaxFiles)
	case !slices.IsSorted(m.Frameworks):
		return errors.New("frameworks are not sorted")
	}
	if err := checkMetrics(m.Metrics); err != nil {
		return err
	}
	if err := checkMesh(m.Mesh, m.World); err != nil {
		return err
	}
	for i := 1; i < len(m.Frameworks); i++ {
		if m.Frameworks[i] == m.Frameworks[i-1] {
			return errors.New("a framework is named twice")
		}
	}
	return m.checkFiles()
}

func (m *Manifest) checkFiles() error {
	seen := make(map[string]int64, len(m.Files))
	var total int64
	for i, f := range m.Files {
		if f.Rank < 0 || f.Rank >= m.World {
			return fmt.Errorf("file %q belongs to rank %d of a world of %d", trim(f.Path), f.Rank, m.World)
		}
		if err := ValidFile(f.Path, f.Rank); err != nil {
			return err
		}
		if other, ok := seen[f.Path]; ok {
			return fmt.Errorf("file %q is named twice, by ranks %d and %d", trim(f.Path), other, f.Rank)
		}
		seen[f.Path] = f.Rank
		if i > 0 && m.Files[i-1].Path > f.Path {
			return errors.New("files are not sorted by path")
		}
		if f.Length < 0 || total+f.Length < total {
			return fmt.Errorf("length %d of file %q", f.Length, trim(f.Path))
		}
		total += f.Length
		if !validDigest(f.Digest) {
			return fmt.Errorf("digest %q of file %q is not 32 hexadecimal digits", trim(f.Digest), trim(f.Path))
		}
		if !slices.Contains(parts, f.Part) {
			return fmt.Errorf("part %q of file %q; known are %s", trim(f.Part), trim(f.Path), strings.Join(parts, ", "))
		}
	}
	if total != m.Bytes {
		return fmt.Errorf("the files have %d bytes together, the manifest says %d", total, m.Bytes)
	}
	// A path that is also another's folder cannot exist on any file system.
	for p := range seen {
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			if _, ok := seen[d]; ok {
				return fmt.Errorf("%q is named both as a file and as a folder", trim(d))
			}
		}
	}
	return nil
}

// encode writes the canonical bytes: fixed field order, one line, the self-hash
// over everything with its own value empty.
func (m *Manifest) encode() ([]byte, error) {
	c := *m
	c.Self = ""
	empty, err := marshal(&c)
	if err != nil {
		return nil, err
	}
	c.Self = DigestBytes(empty)
	data, err := marshal(&c)
	if err != nil {
		return nil, err
	}
	if len(data) > MaxManifest {
		return nil, fmt.Errorf("the manifest has %d bytes, at most %d are allowed; write fewer, larger files", len(data), MaxManifest)
	}
	m.Self = c.Self
	return data, nil
}

func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func badManifest(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrManifest, fmt.Sprintf(format, args...))
}

// Parse reads manifest.json. It accepts exactly what Build wrote: a newer version is
// refused with ErrNewer, anything else that differs by one byte with ErrManifest.
// A missing field is never filled by a default.
func Parse(data []byte) (*Manifest, error) {
	if len(data) > MaxManifest {
		return nil, badManifest("%d bytes, at most %d are allowed", len(data), MaxManifest)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, badManifest("the file is empty")
	}
	// The version is looked at before anything else, leniently: a newer form may
	// have fields that this build does not know.
	var head struct {
		Format  string `json:"format"`
		Version int64  `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, badManifest("%s", err)
	}
	if head.Format != Format {
		return nil, badManifest("format %q, want %q", trim(head.Format), Format)
	}
	if head.Version > Version {
		return nil, fmt.Errorf("%w: it has version %d, this build reads %d; upgrade Troupe to read it", ErrNewer, head.Version, Version)
	}
	if head.Version != Version {
		return nil, badManifest("version %d is unknown, this build reads %d", head.Version, Version)
	}
	var m Manifest
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return nil, badManifest("%s", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, badManifest("something follows the document")
	}
	said := m.Self
	canonical, err := m.encode()
	if err != nil {
		return nil, badManifest("%s", err)
	}
	if said != m.Self {
		return nil, badManifest("its content does not match its own hash (%s, computed %s): it was altered or cut", trim(said), m.Self)
	}
	// Equal bytes rule out what a decoder forgives: other spacing, doubled or
	// renamed keys, missing fields. Another reader then cannot see another document.
	if !bytes.Equal(canonical, data) {
		return nil, badManifest("not in canonical form")
	}
	if err := m.check(); err != nil {
		return nil, badManifest("%s", err)
	}
	return &m, nil
}
