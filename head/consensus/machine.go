package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"
	"github.com/klauspost/compress/zstd"
)

// Machine is the state that the log drives; head/state implements it.
type Machine interface {
	// Apply applies one committed entry. It is the only writer of the state, is
	// called in log order from one goroutine, and must give the same result on every
	// replica. A command that is refused is a result, not an error: an error means
	// that this replica cannot follow the log, as with a kind it does not know. The
	// replica then stops and reports it on Fatal. data must not be modified.
	Apply(index, term uint64, data []byte) (result any, err error)
	// Snapshot captures the state between two entries; it must be quick, the log
	// waits for it.
	Snapshot() (Snapshot, error)
	// Restore replaces the state by what Persist wrote, or returns an error and
	// leaves the state as it was: build a new one, verify it, then swap.
	Restore(r io.Reader) error
}

// Entry is one committed entry.
type Entry struct {
	Index, Term uint64
	Data        []byte // must not be modified
}

// BatchMachine is a Machine that applies entries which follow one another at less cost than
// one by one, with the same outcome.
type BatchMachine interface {
	Machine
	// ApplyAll returns the result of each entry; with an error those of the entries before
	// the one that it is about.
	ApplyAll(entries []Entry) (results []any, err error)
}

// Snapshot is captured state on its way to disk.
type Snapshot interface {
	// Persist writes the state; it runs beside Apply.
	Persist(w io.Writer) error
	// Release is called once, after Persist or instead of it.
	Release()
}

// maxWindow bounds the memory that decompressing a snapshot may take.
const maxWindow = 8 << 20

// fsm puts a Machine under Raft: it checks each entry once more, turns errors and
// panics into a stop, and compresses snapshots.
type fsm struct {
	machine Machine
	fail    func(error)
	running atomic.Bool // a failed Restore stops the node only once Raft runs

	stopped atomic.Bool
	// The newest entry that the state holds. Written by the goroutine of the log.
	index, term atomic.Uint64
}

var _ raft.BatchingFSM = (*fsm)(nil)

// notApplied is the result of an entry that was committed but not applied here.
type notApplied struct{}

func (f *fsm) stop(err error) {
	f.stopped.Store(true)
	f.fail(err)
}

// Apply implements raft.FSM.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM: what was committed together is applied together.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	entries, at := make([]Entry, 0, len(logs)), make([]int, 0, len(logs))
	var damage error
	for i, l := range logs {
		if l.Type != raft.LogCommand {
			continue
		}
		out[i] = notApplied{}
		// Memory and caches lie between the log's own check and here.
		if damage == nil {
			damage = checkSeal(l.Index, l)
		}
		if damage == nil {
			entries, at = append(entries, Entry{l.Index, l.Term, l.Data}), append(at, i)
		}
	}
	if f.stopped.Load() {
		return out
	}
	results, err := f.apply(entries)
	for i, r := range results {
		out[at[i]] = r
		f.term.Store(entries[i].Term)
		f.index.Store(entries[i].Index)
	}
	switch {
	case err != nil && len(results) < len(entries):
		f.stop(fmt.Errorf("apply log entry %d: %w", entries[len(results)].Index, err))
	case err != nil:
		f.stop(fmt.Errorf("apply the log: %w", err))
	case damage != nil:
		f.stop(damage)
	}
	return out
}

func (f *fsm) apply(entries []Entry) (results []any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the state machine panicked: %v", p)
		}
	}()
	if m, ok := f.machine.(BatchMachine); ok && len(entries) > 1 {
		return m.ApplyAll(entries)
	}
	for _, e := range entries {
		r, err := f.machine.Apply(e.Index, e.Term, e.Data)
		if err != nil {
			return results, err
		}
		results = append(results, r)
	}
	return results, nil
}

// Snapshot implements raft.FSM.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if f.stopped.Load() {
		return nil, ErrStopped
	}
	s, err := f.machine.Snapshot()
	if err != nil {
		return nil, err
	}
	return &fsmSnapshot{s: s, index: f.index.Load(), term: f.term.Load()}, nil
}

// Restore implements raft.FSM.
func (f *fsm) Restore(r io.ReadCloser) error {
	index, term, err := f.restore(r)
	if err != nil {
		if f.running.Load() {
			// Raft would go on applying entries to a state without what came before.
			f.stop(fmt.Errorf("restore snapshot: %w", err))
		}
		return err
	}
	f.term.Store(term)
	f.index.Store(index)
	return nil
}

func (f *fsm) restore(r io.Reader) (index, term uint64, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the state machine panicked: %v", p)
		}
	}()
	err = readBody(r, func(i, t uint64, r io.Reader) error {
		index, term = i, t
		return f.machine.Restore(r)
	})
	return index, term, err
}

type fsmSnapshot struct {
	s           Snapshot
	index, term uint64
}

// Persist implements raft.FSMSnapshot. The body is index and term of the newest entry
// in the state, then the machine's stream in zstd. Raft closes and cancels the sink.
func (s *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	var head [16]byte
	binary.LittleEndian.PutUint64(head[0:], s.index)
	binary.LittleEndian.PutUint64(head[8:], s.term)
	if _, err := sink.Write(head[:]); err != nil {
		return err
	}
	z, err := zstd.NewWriter(sink, zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(1<<20))
	if err != nil {
		return err
	}
	if err := s.s.Persist(z); err != nil {
		_ = z.Close()
		return err
	}
	return z.Close()
}

// Release implements raft.FSMSnapshot.
func (s *fsmSnapshot) Release() { s.s.Release() }

// readBody takes a snapshot's body apart and hands the machine's stream to f, which
// must read it to its end.
func readBody(r io.Reader, f func(index, term uint64, r io.Reader) error) error {
	var head [16]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return fmt.Errorf("snapshot cut short: %w", err)
	}
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return err
	}
	defer z.Close()
	if err := f(binary.LittleEndian.Uint64(head[0:]), binary.LittleEndian.Uint64(head[8:]), z); err != nil {
		return err
	}
	var one [1]byte
	if n, err := z.Read(one[:]); n != 0 || !errors.Is(err, io.EOF) {
		return errors.New("snapshot has bytes after its end")
	}
	return nil
}

// verifyBody makes a check of the machine's stream a check of a snapshot's body.
func verifyBody(verify func(io.Reader) error) func(io.Reader) error {
	if verify == nil {
		return func(r io.Reader) error {
			return readBody(r, func(_, _ uint64, r io.Reader) error {
				_, err := io.Copy(io.Discard, r)
				return err
			})
		}
	}
	return func(r io.Reader) error {
		return readBody(r, func(_, _ uint64, r io.Reader) error { return verify(r) })
	}
}
