package consensus

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/raft"
)

// A snapshot is one file: magic, length of meta, meta (JSON), the body as Raft
// streams it, then the length of the body and a crc32c of everything before it.
const (
	snapMagic   = "TRPSNAP1"
	snapSuffix  = ".snap"
	tmpSuffix   = ".tmp"
	badSuffix   = ".damaged"
	snapTrailer = 8 + 4
	maxSnapMeta = 1 << 20
)

// snapMeta is the part of raft.SnapshotMeta that is kept.
type snapMeta struct {
	Index, Term        uint64
	Configuration      raft.Configuration
	ConfigurationIndex uint64
}

// snapshotStore keeps the newest snapshots of a folder. It is used by Raft's snapshot
// goroutine and, on a follower, by its main one; never by two at once for writing.
type snapshotStore struct {
	dir    string
	retain int
	verify func(io.Reader) error // of the body as Raft streams it; may be nil
	log    *slog.Logger
}

var _ raft.SnapshotStore = (*snapshotStore)(nil)

func openSnapshots(dir string, c Config) (*snapshotStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, storageError("make the folder", dir, err)
	}
	// What a crash left half written was never a snapshot.
	old, _ := filepath.Glob(filepath.Join(dir, "*"+tmpSuffix))
	for _, p := range old {
		_ = os.Remove(p)
	}
	return &snapshotStore{dir: dir, retain: c.Retain, verify: verifyBody(c.VerifySnapshot), log: c.Logger}, nil
}

func (s *snapshotStore) path(id string) string { return filepath.Join(s.dir, id+snapSuffix) }

// ids returns the snapshots' ids, newest first; zero padding makes names sort.
func (s *snapshotStore) ids() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, storageError("list", s.dir, err)
	}
	var ids []string
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), snapSuffix); ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	slices.Reverse(ids)
	return ids, nil
}

// List implements raft.SnapshotStore. A file whose outer parts do not fit together
// is left out; Open checks the rest.
func (s *snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	var out []*raft.SnapshotMeta
	for _, id := range ids {
		f, meta, _, err := openFile(s.path(id), id)
		if err != nil {
			s.log.Warn("snapshot is damaged", "snapshot", id, "error", err)
			continue
		}
		_ = f.Close()
		out = append(out, meta)
	}
	return out, nil
}

// openFile reads the outer parts and returns the offset of the body.
func openFile(path, id string) (_ *os.File, _ *raft.SnapshotMeta, body int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, 0, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	fi, err := f.Stat()
	if err != nil {
		return nil, nil, 0, err
	}
	var head [len(snapMagic) + 4]byte
	if _, err := f.ReadAt(head[:], 0); err != nil || string(head[:len(snapMagic)]) != snapMagic {
		return nil, nil, 0, damagedFolder("snapshot %s: not a snapshot file", id)
	}
	n := int64(binary.LittleEndian.Uint32(head[len(snapMagic):]))
	body = int64(len(head)) + n
	if n > maxSnapMeta || body+snapTrailer > fi.Size() {
		return nil, nil, 0, damagedFolder("snapshot %s: cut short", id)
	}
	raw := make([]byte, n)
	if _, err := f.ReadAt(raw, int64(len(head))); err != nil {
		return nil, nil, 0, err
	}
	var m snapMeta
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, nil, 0, damagedFolder("snapshot %s: %v", id, err)
	}
	var tail [snapTrailer]byte
	if _, err := f.ReadAt(tail[:], fi.Size()-snapTrailer); err != nil {
		return nil, nil, 0, err
	}
	size := int64(binary.LittleEndian.Uint64(tail[:]))
	if size != fi.Size()-snapTrailer-body {
		return nil, nil, 0, damagedFolder("snapshot %s: its length does not match", id)
	}
	return f, &raft.SnapshotMeta{
		Version: 1, ID: id, Index: m.Index, Term: m.Term,
		Configuration: m.Configuration, ConfigurationIndex: m.ConfigurationIndex, Size: size,
	}, body, nil
}

// Open implements raft.SnapshotStore. Nothing is handed out before the checksum of
// the whole file was found right.
func (s *snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	return openChecked(s.path(id), id)
}

func openChecked(path, id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	f, meta, body, err := openFile(path, id)
	if err != nil {
		return nil, nil, err
	}
	sum := crc32.New(castagnoli)
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, body+meta.Size+8)); err != nil {
		_ = f.Close()
		return nil, nil, storageError("read", path, err)
	}
	var want [4]byte
	if _, err := f.ReadAt(want[:], body+meta.Size+8); err != nil {
		_ = f.Close()
		return nil, nil, storageError("read", path, err)
	}
	if binary.LittleEndian.Uint32(want[:]) != sum.Sum32() {
		_ = f.Close()
		return nil, nil, damagedFolder("snapshot %s: checksum does not match", id)
	}
	return meta, &snapshotBody{Reader: bufio.NewReaderSize(io.NewSectionReader(f, body, meta.Size), 64<<10), f: f}, nil
}

type snapshotBody struct {
	io.Reader
	f *os.File
}

func (b *snapshotBody) Close() error { return b.f.Close() }

// newestGood returns the newest snapshot whose checksum is right, nil if there is
// none, and sets damaged ones aside so that they do not count as retained. bad is how
// many it set aside.
func (s *snapshotStore) newestGood() (good *raft.SnapshotMeta, bad int, err error) {
	ids, err := s.ids()
	if err != nil {
		return nil, 0, err
	}
	for _, id := range ids {
		meta, r, err := s.Open(id)
		if err == nil {
			return meta, bad, r.Close()
		}
		if !errors.Is(err, ErrDamagedFolder) {
			return nil, bad, storageError("read", s.path(id), err)
		}
		s.log.Warn("snapshot is damaged, set aside; the one before and the log replace it", "snapshot", id, "error", err)
		if err := os.Rename(s.path(id), s.path(id)+badSuffix); err != nil {
			return nil, bad, storageError("set aside", s.path(id), err)
		}
		bad++
	}
	return nil, bad, nil
}

// Create implements raft.SnapshotStore.
func (s *snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if version != 1 {
		return nil, fmt.Errorf("consensus: snapshot version %d is not supported", version)
	}
	var id string
	for n := 0; ; n++ {
		id = fmt.Sprintf("%020d-%020d-%04d", index, term, n)
		there, err := exists(s.path(id))
		if err != nil {
			return nil, err
		}
		if !there {
			break
		}
	}
	raw, err := json.Marshal(snapMeta{Index: index, Term: term, Configuration: conf, ConfigurationIndex: confIndex})
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(s.path(id)+tmpSuffix, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return nil, storageError("write", s.path(id), err)
	}
	sum := crc32.New(castagnoli)
	k := &snapshotSink{store: s, id: id, f: f, sum: sum, w: bufio.NewWriterSize(io.MultiWriter(f, sum), 64<<10)}
	head := binary.LittleEndian.AppendUint32([]byte(snapMagic), uint32(len(raw)))
	_, err1 := k.w.Write(head)
	_, err2 := k.w.Write(raw)
	if err := errors.Join(err1, err2); err != nil {
		_ = k.Cancel()
		return nil, storageError("write", s.path(id), err)
	}
	return k, nil
}

type snapshotSink struct {
	store *snapshotStore
	id    string
	f     *os.File
	sum   hash.Hash32
	w     *bufio.Writer
	n     uint64
	done  bool
}

func (k *snapshotSink) ID() string { return k.id }

func (k *snapshotSink) Write(p []byte) (int, error) {
	n, err := k.w.Write(p)
	k.n += uint64(n)
	return n, storageError("write", k.store.path(k.id), err)
}

// Cancel implements raft.SnapshotSink.
func (k *snapshotSink) Cancel() error {
	if k.done {
		return nil
	}
	k.done = true
	return errors.Join(k.f.Close(), os.Remove(k.store.path(k.id)+tmpSuffix))
}

// Close finishes the file, reads it back, and only then lets it be a snapshot: the
// log is cut on the strength of it.
func (k *snapshotSink) Close() error {
	if k.done {
		return nil
	}
	path := k.store.path(k.id)
	if err := k.finish(); err != nil {
		_ = k.Cancel()
		return storageError("write", path, err)
	}
	if err := k.store.check(path+tmpSuffix, k.id); err != nil {
		_ = k.Cancel()
		return err
	}
	k.done = true
	err := k.f.Close()
	if err == nil {
		err = os.Rename(path+tmpSuffix, path)
	}
	if err != nil {
		_ = os.Remove(path + tmpSuffix)
		return storageError("write", path, err)
	}
	if err := syncDir(k.store.dir); err != nil {
		return err
	}
	k.store.prune()
	return nil
}

func (k *snapshotSink) finish() error {
	if err := binary.Write(k.w, binary.LittleEndian, k.n); err != nil {
		return err
	}
	if err := k.w.Flush(); err != nil {
		return err
	}
	if err := binary.Write(k.f, binary.LittleEndian, k.sum.Sum32()); err != nil {
		return err
	}
	return k.f.Sync()
}

// check reads a snapshot back as a restore would.
func (s *snapshotStore) check(path, id string) error {
	_, r, err := openChecked(path, id)
	if err != nil {
		return fmt.Errorf("snapshot read back after writing: %w", err)
	}
	defer r.Close()
	if s.verify == nil {
		return nil
	}
	if err := s.verify(r); err != nil {
		return damagedFolder("snapshot %s read back after writing: %v", id, err)
	}
	return nil
}

// prune removes snapshots over the number to retain; a failure costs disk only.
func (s *snapshotStore) prune() {
	ids, err := s.ids()
	if err != nil || len(ids) <= s.retain {
		return
	}
	for _, id := range ids[s.retain:] {
		if err := os.Remove(s.path(id)); err != nil {
			s.log.Warn("old snapshot could not be removed", "snapshot", id, "error", err)
		}
	}
}
