package consensus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// diskLog is raft-wal with the checksummed meta file.
type diskLog struct {
	*wal.WAL
	filer *noticingFiler
}

// openWAL opens the log in dir. create allows a log that has nothing yet.
func openWAL(dir string, c Config, create bool) (_ rawLog, err error) {
	defer func() {
		if p := recover(); p != nil { // see checkedLog.read
			err = damagedFolder("log in %s does not open (%v)", dir, p)
		}
	}()
	vfs := c.vfs
	if vfs == nil {
		vfs = walfs.New()
	}
	if !create {
		if err := checkTail(vfs, dir); err != nil {
			return nil, err
		}
	}
	filer := &noticingFiler{SegmentFiler: segment.NewFiler(dir, vfs)}
	w, err := wal.Open(dir,
		wal.WithMetaStore(&finishingMeta{MetaStore: &metaStore{create: create}, filer: filer}),
		wal.WithSegmentFiler(filer),
		wal.WithSegmentSize(c.SegmentSize),
		wal.WithLogger(newHCLog(c.Logger).Named("wal")))
	var errno syscall.Errno
	switch {
	case err == nil:
		return &diskLog{WAL: w, filer: filer}, nil
	case errors.Is(err, ErrDamagedFolder):
		return nil, err
	case errors.As(err, &errno) && errno != syscall.ENOENT:
		return nil, storageError("open the log", dir, err)
	default: // a segment is missing, cut short or not what the meta file says
		return nil, fmt.Errorf("%w: log in %s: %w", ErrDamagedFolder, dir, err)
	}
}

// finishingMeta completes, when the log opens, a rotation that a crash interrupted. The
// append that fills a segment seals its file and is acknowledged; the meta file learns
// of it afterwards. raft-wal opens such a tail as it is and then refuses every append
// to it, so that a head killed in between could never start again.
type finishingMeta struct {
	types.MetaStore
	filer types.SegmentFiler
}

// Load implements types.MetaStore.
func (m *finishingMeta) Load(dir string) (types.PersistentState, error) {
	st, err := m.MetaStore.Load(dir)
	n := len(st.Segments)
	if err != nil || n == 0 || !st.Segments[n-1].SealTime.IsZero() {
		return st, err
	}
	tail := st.Segments[n-1]
	w, err := m.filer.RecoverTail(tail)
	if err != nil {
		return st, nil //nolint:nilerr // a missing or unreadable tail is for Open to judge
	}
	sealed, indexStart, err := w.Sealed()
	last := w.LastIndex()
	if err := errors.Join(err, w.Close()); err != nil || !sealed {
		return st, err
	}
	now := time.Now()
	tail.SealTime, tail.MaxIndex, tail.IndexStart = now, last, indexStart
	next := types.SegmentInfo{
		ID: st.NextSegmentID, BaseIndex: last + 1, MinIndex: last + 1, SizeLimit: tail.SizeLimit, Codec: tail.Codec, CreateTime: now,
	}
	st.NextSegmentID++
	st.Segments = append(slices.Clone(st.Segments[:n-1]), tail, next)
	// The file of the new segment need not exist: Open creates it.
	return st, m.CommitState(st)
}

// StoreLogs implements raft.LogStore. When the next segment could not be made,
// raft-wal only logs it and then calls the old one sealed; the caller needs the
// system's reason.
func (d *diskLog) StoreLogs(logs []*raft.Log) error {
	err := d.WAL.StoreLogs(logs)
	if errors.Is(err, wal.ErrSealed) {
		if cause := d.filer.lastError(); cause != nil {
			return fmt.Errorf("create the next segment: %w", cause)
		}
	}
	return err
}

// noticingFiler remembers why a segment could not be created.
type noticingFiler struct {
	types.SegmentFiler
	mu  sync.Mutex
	err error
}

func (f *noticingFiler) Create(info types.SegmentInfo) (types.SegmentWriter, error) {
	w, err := f.SegmentFiler.Create(info)
	f.mu.Lock()
	f.err = err
	f.mu.Unlock()
	return w, err
}

func (f *noticingFiler) lastError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// segmentBytes is how much disk the log files take.
func segmentBytes(dir string) int64 {
	var n int64
	names, _ := filepath.Glob(filepath.Join(dir, "*.wal"))
	for _, name := range names {
		if fi, err := os.Stat(name); err == nil {
			n += fi.Size()
		}
	}
	return n
}
