package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// rawLog is what the node needs of a log underneath: raft-wal on disk, a map in
// memory. Another store is another implementation of this.
type rawLog interface {
	raft.LogStore
	raft.StableStore
	io.Closer
}

// The envelope of an entry: one version byte and a crc32c over index, term, type and
// data, in the entry's extensions. It is made once, by the leader, and travels with
// the entry, so that a follower checks what the leader's disk and the wire made of it.
const (
	sealVersion = 1
	sealLen     = 5
)

func sealOf(l *raft.Log) uint32 {
	var h [17]byte
	binary.LittleEndian.PutUint64(h[0:], l.Index)
	binary.LittleEndian.PutUint64(h[8:], l.Term)
	h[16] = byte(l.Type)
	return crc32.Update(crc32.Checksum(h[:], castagnoli), castagnoli, l.Data)
}

func seal(l *raft.Log) {
	ext := make([]byte, 1, sealLen)
	ext[0] = sealVersion
	l.Extensions = binary.LittleEndian.AppendUint32(ext, sealOf(l))
}

// checkSeal returns a *DamagedLogError unless the entry is what was sealed as want.
func checkSeal(want uint64, l *raft.Log) error {
	switch {
	case l.Index != want:
		return &DamagedLogError{Index: want, Reason: fmt.Sprintf("it says that it is entry %d", l.Index)}
	case len(l.Extensions) != sealLen || l.Extensions[0] != sealVersion:
		return &DamagedLogError{Index: want, Reason: "it has no checksum"}
	case binary.LittleEndian.Uint32(l.Extensions[1:]) != sealOf(l):
		return &DamagedLogError{Index: want, Reason: "its checksum does not match"}
	}
	return nil
}

// checkedLog seals entries as they are stored and checks them as they are read.
type checkedLog struct {
	raw  rawLog
	path string

	// fail stops the node. Set, with running, when Raft's goroutines start; before
	// that errors go back to Open.
	fail    func(error)
	onStuck func(time.Duration)
	running atomic.Bool
	failed  atomic.Bool

	appends     atomic.Uint64
	appendNanos atomic.Int64
}

var (
	_ raft.LogStore          = (*checkedLog)(nil)
	_ raft.StableStore       = (*checkedLog)(nil)
	_ raft.MonotonicLogStore = (*checkedLog)(nil)
)

// IsMonotonic implements raft.MonotonicLogStore: entries have no gaps.
func (c *checkedLog) IsMonotonic() bool { return true }

func (c *checkedLog) FirstIndex() (uint64, error) { return c.raw.FirstIndex() }
func (c *checkedLog) LastIndex() (uint64, error)  { return c.raw.LastIndex() }

// read returns one entry, checked. raft-wal slices by numbers it reads from disk, so
// damage can also show as a panic there.
func (c *checkedLog) read(index uint64, l *raft.Log) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &DamagedLogError{Index: index, Reason: fmt.Sprintf("it does not decode (%v)", p)}
		}
	}()
	err = c.raw.GetLog(index, l)
	switch {
	case errors.Is(err, raft.ErrLogNotFound), errors.Is(err, wal.ErrClosed):
		return err
	case err != nil:
		return &DamagedLogError{Index: index, Reason: err.Error()}
	}
	return checkSeal(index, l)
}

// GetLog implements raft.LogStore. On a damaged entry it stops the node and, once
// Raft runs, ends the calling goroutine: Raft answers an error here with a panic,
// and going on without the entry would be drift. Entries that Raft reads back come
// before any that waits for an answer, so nothing is answered wrongly.
func (c *checkedLog) GetLog(index uint64, l *raft.Log) error {
	err := c.read(index, l)
	if errors.Is(err, ErrDamagedLog) && c.running.Load() {
		c.stop(err)
		runtime.Goexit()
	}
	return err
}

// StoreLog implements raft.LogStore.
func (c *checkedLog) StoreLog(l *raft.Log) error { return c.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore. After one failed append nothing is written any
// more: what a failed write or fsync left on disk is known only after a restart.
func (c *checkedLog) StoreLogs(logs []*raft.Log) error {
	if c.failed.Load() {
		return ErrStopped
	}
	for _, l := range logs {
		if l.Extensions == nil {
			seal(l)
		} else if err := checkSeal(l.Index, l); err != nil {
			return err // from another head: refuse it, this log is whole
		}
	}
	if c.onStuck != nil {
		stuck := time.AfterFunc(StuckAppend, func() { c.onStuck(StuckAppend) })
		defer stuck.Stop()
	}
	start := time.Now()
	err := c.raw.StoreLogs(logs)
	c.appends.Add(1)
	c.appendNanos.Add(int64(time.Since(start)))
	if err != nil && !errors.Is(err, wal.ErrClosed) {
		err = storageError("append to the log", c.path, err)
		c.stop(err)
	}
	return err
}

// DeleteRange implements raft.LogStore.
func (c *checkedLog) DeleteRange(lo, hi uint64) error {
	return storageError("cut the log", c.path, c.raw.DeleteRange(lo, hi))
}

// Set implements raft.StableStore.
func (c *checkedLog) Set(k, v []byte) error { return c.raw.Set(k, v) }

// Get implements raft.StableStore.
func (c *checkedLog) Get(k []byte) ([]byte, error) { return c.raw.Get(k) }

// SetUint64 implements raft.StableStore. Raft panics when its term cannot be stored;
// a full disk must end in an error instead, so the goroutine ends here.
func (c *checkedLog) SetUint64(k []byte, v uint64) error {
	err := c.raw.SetUint64(k, v)
	if err != nil && c.running.Load() {
		c.stop(storageError("store the term", c.path, err))
		runtime.Goexit()
	}
	return err
}

// GetUint64 implements raft.StableStore.
func (c *checkedLog) GetUint64(k []byte) (uint64, error) { return c.raw.GetUint64(k) }

func (c *checkedLog) stop(err error) {
	c.failed.Store(true)
	if c.fail != nil {
		c.fail(err)
	}
}

// scan reads the whole log before Raft sees it. covered is the newest index that a
// verified snapshot holds. Damage above it is an error; damage at or below it is cut
// away, since no value is lost by that. It returns the first index left, 0 if none.
func (c *checkedLog) scan(covered uint64, warn func(msg string, args ...any)) (uint64, error) {
	first, err := c.FirstIndex()
	if err != nil {
		return 0, storageError("read the log", c.path, err)
	}
	last, err := c.LastIndex()
	if err != nil {
		return 0, storageError("read the log", c.path, err)
	}
	var cut uint64
	for i := first; i != 0 && i <= last; i++ {
		var l raft.Log
		err := c.read(i, &l)
		if err == nil {
			continue
		}
		if errors.Is(err, raft.ErrLogNotFound) {
			err = &DamagedLogError{Index: i, Reason: "it is missing"}
		}
		if i > covered {
			return 0, err
		}
		warn("log entry is damaged, a snapshot holds what it did", "index", i, "snapshot", covered, "error", err)
		cut = i
	}
	if cut != 0 {
		if err := c.DeleteRange(first, cut); err != nil {
			return 0, err
		}
		first = cut + 1
	}
	if first > last {
		return 0, nil
	}
	return first, nil
}
