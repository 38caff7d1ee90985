package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"github.com/troupe-runtime/troupe/runtime/disk"
)

var (
	// ErrDifferentManifest is wrapped when another manifest (or the mark of another
	// one) is in the place already. The step fails; nothing was changed.
	ErrDifferentManifest = errors.New("another manifest is there already")
	// ErrDigest is wrapped when the manifest on the disk is not the one in the log.
	ErrDigest = errors.New("the manifest is not the one that was committed")
)

// FilesError says which files of a step are not as their manifest says.
type FilesError struct {
	Dir      string
	Findings []Finding
}

// Error names the first finding and the number of others.
func (e *FilesError) Error() string {
	if len(e.Findings) == 0 {
		return e.Dir + ": files differ from the manifest"
	}
	s := fmt.Sprintf("%s: %s", e.Dir, e.Findings[0])
	if n := len(e.Findings) - 1; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	return s
}

// Damage reports whether at least one finding proves damage; otherwise the store
// could not be read and the same request may be tried again.
func (e *FilesError) Damage() bool {
	for _, f := range e.Findings {
		if f.Damage() {
			return true
		}
	}
	return false
}

// Directory is a directory store, <root>/<run>/<step>/. It holds no state of its own, so
// any agent that has the store mounted can do any of its operations, and each of
// them may be repeated after it was cut short anywhere.
//
// Ranks write into the store too, so every folder on the way is looked at before it
// is used and a symbolic link is never followed.
type Directory struct {
	fs     FS
	root   string
	writer string
}

// maxTemp bounds the temporaries that one writer leaves for one file.
const maxTemp = 64

// NewStore opens the store at root, an absolute clean path. writer names this
// process in temporary files and must be unique among all that write to the store
// now, such as an agent's session; it obeys ValidRun. One Directory is used by one
// goroutine at a time.
func NewDirectory(fsys FS, root, writer string) (*Directory, error) {
	if err := validAbsolute(root); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if err := ValidRun(writer); err != nil {
		return nil, fmt.Errorf("store %s: writer: %w", root, err)
	}
	return &Directory{fs: fsys, root: root, writer: writer}, nil
}

// stepDir admits a directory of this store: the right name, and no link on the way.
func (s *Directory) stepDir(run, dir string) (StepName, error) {
	n, err := ValidDir(s.root, run, dir)
	if err != nil {
		return StepName{}, fmt.Errorf("%w: %w", ErrUnsafe, err)
	}
	return n, realDirs(s.fs, s.root, dir)
}

// nothingAt reports that no step stands at a valid dir, though the run's folder can be
// seen. An unmounted store shows no run's folder, and then nothing is known; nor is it
// where a link leads.
func (s *Directory) nothingAt(run, dir string) bool {
	if _, err := ValidDir(s.root, run, dir); err != nil || realDirs(s.fs, s.root, path.Dir(dir)) != nil {
		return false
	}
	info, err := s.fs.Lstat(dir)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() && info.Mode()&fs.ModeSymlink == 0
}

// WriteManifest writes manifest.json, create-only, after it has opened every file
// and compared its length. An equal manifest that is there already counts as
// written, a different one is ErrDifferentManifest, a file that does not fit a
// *FilesError. digest is that of data, as the leader computed it.
func (s *Directory) WriteManifest(ctx context.Context, run, dir string, data []byte, digest string) error {
	n, err := s.stepDir(run, dir)
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	m, err := Parse(data)
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	if m.Name() != n || m.Run != run {
		return fmt.Errorf("write manifest: %w: it belongs to %s/%s, not to %s", ErrManifest, m.Run, m.Name(), dir)
	}
	if got := DigestBytes(data); got != digest {
		return fmt.Errorf("write manifest: %w: its digest is %s, %s was sent", ErrManifest, got, trim(digest))
	}
	var bad []Finding
	for _, f := range m.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if found := s.statFile(dir, f); found != nil {
			bad = append(bad, *found)
		}
	}
	if len(bad) > 0 {
		return &FilesError{Dir: dir, Findings: bad}
	}
	there, err := s.createOnly(dir, ManifestFile, data)
	if err != nil {
		return fmt.Errorf("write manifest of %s: %w", dir, err)
	}
	if there != nil && !bytes.Equal(there, data) {
		return fmt.Errorf("write manifest of %s: %w", dir, ErrDifferentManifest)
	}
	return nil
}

// statFile opens one file and compares its length. Before the manifest exists an
// absent file cannot be told from an absent mount by it, so the directory stands in.
func (s *Directory) statFile(dir string, file File) *Finding {
	find := func(kind FindingKind, err error) *Finding {
		return &Finding{Path: file.Path, Kind: kind, Detail: err.Error()}
	}
	name := path.Join(dir, file.Path)
	err := realDirs(s.fs, dir, path.Dir(name))
	var f disk.File
	var size int64
	if err == nil {
		f, size, err = OpenRegular(s.fs, name)
	}
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNotRegular), errors.Is(err, ErrUnsafe):
		if realDir(s.fs, dir) != nil {
			return find(FindingIO, err)
		}
		return find(FindingMissing, err)
	default:
		return find(FindingIO, err)
	}
	f.Close()
	switch {
	case size < file.Length:
		return find(FindingShort, fmt.Errorf("%d bytes, %d were prepared", size, file.Length))
	case size > file.Length:
		return find(FindingLong, fmt.Errorf("%d bytes, %d were prepared", size, file.Length))
	}
	return nil
}

// WriteCommitted writes committed.json beside the manifest whose digest it names.
// A mark of the same manifest that is there already counts as written, whichever
// cluster wrote it.
func (s *Directory) WriteCommitted(_ context.Context, run, dir string, mark []byte) error {
	if _, err := s.stepDir(run, dir); err != nil {
		return fmt.Errorf("write %s: %w", CommittedFile, err)
	}
	c, err := ParseCommittedMark(mark)
	if err != nil {
		return fmt.Errorf("write %s: %w", CommittedFile, err)
	}
	_, digest, err := ReadManifest(s.fs, dir)
	if err != nil {
		return fmt.Errorf("write %s: %w", CommittedFile, err)
	}
	if digest != c.Digest {
		return fmt.Errorf("write %s of %s: %w: digest %s, the log says %s", CommittedFile, dir, ErrDigest, digest, c.Digest)
	}
	there, err := s.createOnly(dir, CommittedFile, mark)
	if err != nil || there == nil {
		return err
	}
	if before, err := ParseCommittedMark(there); err != nil || before.Digest != c.Digest {
		return fmt.Errorf("write %s of %s: %w", CommittedFile, dir, ErrDifferentManifest)
	}
	return nil
}

// WriteRolledBack writes rolled-back.json. One that is there already stands.
func (s *Directory) WriteRolledBack(_ context.Context, run, dir string, mark []byte) error {
	if _, err := s.stepDir(run, dir); err != nil {
		if s.nothingAt(run, dir) {
			return nil // nobody can adopt what is not there
		}
		return fmt.Errorf("write %s: %w", RolledBackFile, err)
	}
	if _, err := ParseRolledBackMark(mark); err != nil {
		return fmt.Errorf("write %s: %w", RolledBackFile, err)
	}
	if _, err := s.createOnly(dir, RolledBackFile, mark); err != nil {
		return fmt.Errorf("write %s of %s: %w", RolledBackFile, dir, err)
	}
	return nil
}

// Verify compares a whole step with its manifest, and the manifest with the digest
// in the log ("" if there is none to compare with). Damage is a *FilesError or wraps
// ErrNoManifest, ErrManifest or ErrDigest.
func (s *Directory) Verify(ctx context.Context, run, dir, digest string) (Verification, error) {
	if _, err := s.stepDir(run, dir); err != nil {
		return Verification{}, fmt.Errorf("verify: %w", err)
	}
	m, got, err := ReadManifest(s.fs, dir)
	if err != nil {
		return Verification{}, fmt.Errorf("verify: %w", err)
	}
	if digest != "" && got != digest {
		return Verification{}, fmt.Errorf("verify %s: %w: digest %s, the log says %s", dir, ErrDigest, got, trim(digest))
	}
	v, err := VerifyStep(ctx, s.fs, dir, m)
	if err == nil && !v.Whole() {
		err = &FilesError{Dir: dir, Findings: v.Findings}
	}
	return v, err
}

// Manifest implements Store.
func (s *Directory) Manifest(_ context.Context, run, dir string) (*Manifest, []byte, error) {
	if _, err := s.stepDir(run, dir); err != nil {
		return nil, nil, fmt.Errorf("read the manifest: %w", err)
	}
	m, _, err := ReadManifest(s.fs, dir)
	if err != nil {
		return nil, nil, err
	}
	data, err := m.encode() // canonical, so these are the bytes of the file
	return m, data, err
}

// Open implements Store.
func (s *Directory) Open(_ context.Context, run, dir, file string) (io.ReadCloser, int64, error) {
	if _, err := s.stepDir(run, dir); err != nil {
		return nil, 0, fmt.Errorf("open %s: %w", trim(file), err)
	}
	if _, _, err := splitFile(file); err != nil {
		return nil, 0, err
	}
	name := path.Join(dir, file)
	if err := realDirs(s.fs, dir, path.Dir(name)); err != nil {
		return nil, 0, err
	}
	return OpenRegular(s.fs, name)
}

// createOnly makes dir/name with these bytes, durable and all at once: temporary,
// fsync, link, fsync of the folder. If the name is taken it returns what is there
// instead (never nil then), made durable too, since its writer may have died before
// that. After a crash the name is either absent or holds whole bytes.
func (s *Directory) createOnly(dir, name string, data []byte) (there []byte, err error) {
	final := path.Join(dir, name)
	existing := func() ([]byte, error) {
		have, err := readSmall(s.fs, final, MaxManifest)
		if err != nil {
			return nil, err
		}
		if have == nil {
			have = []byte{}
		}
		return have, s.fs.SyncDir(dir)
	}
	if have, err := existing(); !errors.Is(err, fs.ErrNotExist) {
		return have, err
	}
	temp, err := s.writeTemp(dir, name, data)
	if err != nil {
		return nil, err
	}
	err = s.fs.Link(temp, final)
	// The temporary goes in every case; if that fails, only garbage is left.
	_ = s.fs.Remove(temp)
	switch {
	case errors.Is(err, fs.ErrExist):
		return existing()
	case errors.Is(err, fs.ErrNotExist):
		// Another writer cleared the temporaries; its file may stand by now.
		have, readErr := existing()
		if readErr != nil {
			return nil, err
		}
		return have, nil
	case err != nil:
		return nil, err
	}
	return nil, s.fs.SyncDir(dir)
}

// writeTemp writes a temporary that no other writer uses: two that shared a name
// could link each other's half-written bytes. What a killed writer leaves is small
// and goes with its step.
func (s *Directory) writeTemp(dir, name string, data []byte) (string, error) {
	var f disk.File
	var temp string
	for k := 0; f == nil; k++ {
		temp = path.Join(dir, fmt.Sprintf(".%s.%s.%d.tmp", name, s.writer, k))
		var err error
		if f, err = createNew(s.fs, temp); err != nil && (!errors.Is(err, fs.ErrExist) || k >= maxTemp) {
			return "", err
		} else if err != nil {
			f = nil
		}
	}
	n, err := f.Write(data)
	if err == nil && n != len(data) {
		err = fmt.Errorf("%s: %d of %d bytes were written", temp, n, len(data))
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		_ = s.fs.Remove(temp)
		return "", err
	}
	return temp, nil
}
