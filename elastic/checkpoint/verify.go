package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sort"
)

// FindingKind says what is wrong with a file of a step.
type FindingKind string

// Kinds of findings. All but FindingIO are damage: the file is not what was
// committed. FindingIO says nothing about the file, only that it could not be read.
const (
	FindingMissing FindingKind = "missing" // absent, or something else stands there
	FindingShort   FindingKind = "short"
	FindingLong    FindingKind = "long"
	FindingDigest  FindingKind = "digest"
	FindingIO      FindingKind = "io" // EIO, time-out, missing mount, no permission
)

// Finding is one file that is not as its manifest says.
type Finding struct {
	Path   string // relative to the step's directory
	Kind   FindingKind
	Detail string
}

// Damage reports whether the finding proves that the file was altered. A store that
// cannot be read is no damage: rolling back for it would throw away good steps.
func (f Finding) Damage() bool { return f.Kind != FindingIO }

// String names file, kind and detail in one line.
func (f Finding) String() string {
	return fmt.Sprintf("%s: %s (%s)", f.Path, f.Kind, f.Detail)
}

// Verification is what VerifyShare found.
type Verification struct {
	Files    int64 // looked at
	Bytes    int64 // read and compared
	Findings []Finding
}

// Whole reports whether every file of the share is as it was committed.
func (v Verification) Whole() bool { return len(v.Findings) == 0 }

// Damaged returns the findings that prove damage, Unreadable the other ones.
func (v Verification) Damaged() []Finding { return v.pick(true) }

// Unreadable returns the findings that say nothing about the files.
func (v Verification) Unreadable() []Finding { return v.pick(false) }

func (v Verification) pick(damage bool) []Finding {
	var out []Finding
	for _, f := range v.Findings {
		if f.Damage() == damage {
			out = append(out, f)
		}
	}
	return out
}

// ErrNoManifest is wrapped when a step's directory holds no manifest.json.
var ErrNoManifest = errors.New("no manifest.json: the step was never complete")

// ReadManifest reads and checks dir/manifest.json, checks that it belongs to this
// directory, and returns it with the hex xxh3-128 of its bytes, to be compared with
// the digest in the log. Errors wrap ErrNoManifest, ErrManifest or ErrNewer; anything
// else is a failure to read, which proves nothing.
func ReadManifest(fsys FS, dir string) (*Manifest, string, error) {
	if err := realDir(fsys, dir); err != nil {
		return nil, "", fmt.Errorf("read the manifest of %s: %w", dir, err)
	}
	data, err := readSmall(fsys, path.Join(dir, ManifestFile), MaxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("%s: %w", dir, ErrNoManifest)
	}
	if errors.Is(err, errNotRegular) {
		return nil, "", fmt.Errorf("%w: %w", ErrManifest, err)
	}
	if err != nil {
		return nil, "", fmt.Errorf("read the manifest of %s: %w", dir, err)
	}
	m, err := Parse(data)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", path.Join(dir, ManifestFile), err)
	}
	if m.Name().String() != path.Base(dir) || m.Run != path.Base(path.Dir(dir)) {
		return nil, "", fmt.Errorf("%s: %w: it belongs to %s/%s", path.Join(dir, ManifestFile), ErrManifest, m.Run, m.Name())
	}
	return m, DigestBytes(data), nil
}

// Share returns the files of m that verifier number share of shares reads. Every
// file falls to exactly one share, shares have about the same number of bytes, and
// all verifiers compute the same division.
func Share(m *Manifest, share, shares int) []File {
	if shares < 1 || share < 0 || share >= shares {
		return nil
	}
	order := make([]int, len(m.Files))
	for i := range order {
		order[i] = i
	}
	// Largest first onto the least loaded share; ties by path, which is unique.
	sort.SliceStable(order, func(i, j int) bool {
		return m.Files[order[i]].Length > m.Files[order[j]].Length
	})
	load := make([]int64, shares)
	mine := make([]int, 0, len(order)/shares+1)
	for _, i := range order {
		least := 0
		for s := 1; s < shares; s++ {
			if load[s] < load[least] {
				least = s
			}
		}
		// An empty file costs an open, so it weighs more than nothing.
		load[least] += m.Files[i].Length + 1
		if least == share {
			mine = append(mine, i)
		}
	}
	sort.Ints(mine)
	out := make([]File, len(mine))
	for i, k := range mine {
		out[i] = m.Files[k]
	}
	return out
}

// VerifyShare compares the files of one share with the manifest: length first, then
// every byte. A file that does not match is read a second time past the page cache,
// where the file system can do that, and counts as damaged only if it fails again.
// It returns an error only for a wrong call or an ended ctx; what it found is in the
// result.
func VerifyShare(ctx context.Context, fsys FS, dir string, m *Manifest, share, shares int) (Verification, error) {
	var v Verification
	if shares < 1 || share < 0 || share >= shares {
		return v, fmt.Errorf("verify %s: share %d of %d", dir, share, shares)
	}
	for _, file := range Share(m, share, shares) {
		if err := ValidFile(file.Path, file.Rank); err != nil {
			return v, fmt.Errorf("verify %s: %w", dir, err)
		}
		if err := ctx.Err(); err != nil {
			return v, err
		}
		v.Files++
		found := verifyFile(ctx, fsys, dir, m, file)
		if found != nil && found.Damage() {
			dropCache(fsys, path.Join(dir, file.Path))
			found = verifyFile(ctx, fsys, dir, m, file)
		}
		if err := ctx.Err(); err != nil {
			return v, err
		}
		if found == nil {
			v.Bytes += file.Length
			continue
		}
		v.Findings = append(v.Findings, *found)
	}
	return v, nil
}

// VerifyStep compares a whole step.
func VerifyStep(ctx context.Context, fsys FS, dir string, m *Manifest) (Verification, error) {
	return VerifyShare(ctx, fsys, dir, m, 0, 1)
}

func verifyFile(ctx context.Context, fsys FS, dir string, m *Manifest, file File) *Finding {
	find := func(kind FindingKind, format string, args ...any) *Finding {
		return &Finding{Path: file.Path, Kind: kind, Detail: fmt.Sprintf(format, args...)}
	}
	name := path.Join(dir, file.Path)
	if err := realDir(fsys, dir); err != nil {
		return classify(fsys, dir, find, err)
	}
	if err := realDirs(fsys, dir, path.Dir(name)); err != nil {
		return classify(fsys, dir, find, err)
	}
	f, size, err := OpenRegular(fsys, name)
	if err != nil {
		return classify(fsys, dir, find, err)
	}
	defer f.Close()
	switch {
	case size < file.Length:
		return find(FindingShort, "%d bytes, %d were committed", size, file.Length)
	case size > file.Length:
		return find(FindingLong, "%d bytes, %d were committed", size, file.Length)
	}
	digest, length, err := HashReader(ctx, f, size)
	switch {
	case err != nil:
		return find(FindingIO, "%s", err)
	case length < file.Length:
		return find(FindingShort, "%d bytes could be read, %d were committed", length, file.Length)
	case length > file.Length:
		return find(FindingLong, "%d bytes could be read, %d were committed", length, file.Length)
	case digest != file.Digest:
		return find(FindingDigest, "xxh3-128 is %s, %s was committed", digest, file.Digest)
	}
	return nil
}

// classify tells a file that is gone from a store that is gone. A missing file is
// damage only while the manifest beside it can still be seen: an unmounted store
// shows an empty folder, in which every file is "not found".
func classify(fsys FS, dir string, find func(FindingKind, string, ...any) *Finding, err error) *Finding {
	switch {
	case errors.Is(err, errNotRegular), errors.Is(err, ErrUnsafe):
		return find(FindingMissing, "%s", err)
	case errors.Is(err, fs.ErrNotExist):
		if _, there := fsys.Lstat(path.Join(dir, ManifestFile)); there == nil {
			return find(FindingMissing, "%s", err)
		}
		return find(FindingIO, "neither the file nor %s beside it can be seen: the store may not be mounted", ManifestFile)
	}
	return find(FindingIO, "%s", err)
}
