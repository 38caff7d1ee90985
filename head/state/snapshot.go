package state

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// A snapshot is a stream: magic, format, index and term; then records, each a type
// byte, a length and msgpack; then a trailer with their count and the crc32c of all
// that stands before it. Restore reads into a new store and swaps only at the end.
const (
	snapshotMagic = "TRPS"
	maxRecord     = 64 << 20
	trailerType   = 0xff
)

// ErrDamagedSnapshot: trailer, count or checksum are not what was written.
var ErrDamagedSnapshot = errors.New("state: snapshot is damaged")

// ErrNewerFormat: a newer version wrote the snapshot.
var ErrNewerFormat = errors.New("state: snapshot has a newer format")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// section is one table of a snapshot; type bytes are only appended.
type section struct {
	kind  byte
	table string
	index string
	fresh func() any
}

var sections = []section{
	{1, tMeta, "id", func() any { return new(Meta) }},
	{2, tNode, "id", func() any { return new(Node) }},
	{3, tGroup, "id", func() any { return new(Group) }},
	{4, tHold, "id", func() any { return new(Hold) }},
	{5, tAlloc, "id", func() any { return new(Alloc) }},
	{6, tJob, "id", func() any { return new(Job) }},
	{7, tRun, "id", func() any { return new(Run) }},
	{8, tCheckpoint, "id", func() any { return new(Checkpoint) }},
	{9, tEvent, "id", func() any { return new(Event) }},
	{10, tIdem, "id", func() any { return new(Idempotency) }},
	{11, tToken, "id", func() any { return new(Token) }},
	{12, tQueue, "id", func() any { return new(Queue) }},
	{13, tAccount, "id", func() any { return new(Account) }},
	{14, tReservation, "id", func() any { return new(Reservation) }},
	{15, tCapacity, "id", func() any { return new(Capacity) }},
	{16, tLink, "id", func() any { return new(Link) }},
	{17, tSettings, "id", func() any { return new(Settings) }},
	{18, tPast, "id", func() any { return new(Past) }},
	{19, tShape, "id", func() any { return new(Shape) }},
}

// Snapshot captures the state in constant time; Persist may run beside Apply.
type Snapshot struct{ view *View }

// Snapshot captures the state now.
func (s *Store) Snapshot() *Snapshot { return &Snapshot{view: s.View()} }

// Release ends the capture.
func (s *Snapshot) Release() {}

// Persist writes the snapshot.
func (s *Snapshot) Persist(w io.Writer) error {
	sum := crc32.New(castagnoli)
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), 64<<10)
	head := make([]byte, 0, 24)
	head = append(head, snapshotMagic...)
	head = binary.LittleEndian.AppendUint32(head, Format)
	head = binary.LittleEndian.AppendUint64(head, s.view.index)
	head = binary.LittleEndian.AppendUint64(head, s.view.term)
	if _, err := out.Write(head); err != nil {
		return fmt.Errorf("state: write snapshot: %w", err)
	}
	var count uint64
	for _, sec := range sections {
		var err error
		s.view.records.each(sec.table, sec.index, func(rec any) bool {
			var body []byte
			if body, err = wire.MarshalMax(rec, maxRecord); err != nil {
				err = fmt.Errorf("state: encode %s: %w", sec.table, err)
				return false
			}
			if err = writeRecord(out, sec.kind, body); err != nil {
				return false
			}
			count++
			return true
		})
		if err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("state: write snapshot: %w", err)
	}
	trailer := []byte{trailerType}
	trailer = binary.LittleEndian.AppendUint64(trailer, count)
	trailer = binary.LittleEndian.AppendUint32(trailer, sum.Sum32())
	if _, err := w.Write(trailer); err != nil {
		return fmt.Errorf("state: write snapshot: %w", err)
	}
	return nil
}

func writeRecord(w io.Writer, kind byte, body []byte) error {
	h := binary.LittleEndian.AppendUint32([]byte{kind}, uint32(len(body)))
	if _, err := w.Write(h); err != nil {
		return fmt.Errorf("state: write snapshot: %w", err)
	}
	if _, err := w.Write(body); err != nil {
		return fmt.Errorf("state: write snapshot: %w", err)
	}
	return nil
}

// Restore replaces the state by a snapshot, or changes nothing and returns why.
func (s *Store) Restore(r io.Reader) error {
	db, index, term, err := read(r)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draft, s.journal = db, journal{}
	s.view = &View{records: db.commit(shared{}), index: index, term: term, store: s}
	s.waits.all()
	s.wake()
	return nil
}

// Verify reads a snapshot whole and says whether it would restore.
func Verify(r io.Reader) error {
	_, _, _, err := read(r)
	return err
}

// summed feeds everything read through a checksum.
type summed struct {
	r   io.Reader
	sum hash.Hash32
}

func (s summed) full(b []byte) error {
	if _, err := io.ReadFull(s.r, b); err != nil {
		return fmt.Errorf("%w: cut short: %w", ErrDamagedSnapshot, err)
	}
	s.sum.Write(b)
	return nil
}

func read(r io.Reader) (*draft, uint64, uint64, error) {
	db := newDraft()
	in := summed{r: bufio.NewReaderSize(r, 64<<10), sum: crc32.New(castagnoli)}
	head := make([]byte, 24)
	if err := in.full(head); err != nil {
		return nil, 0, 0, err
	}
	if string(head[:4]) != snapshotMagic {
		return nil, 0, 0, fmt.Errorf("%w: it does not start with %s", ErrDamagedSnapshot, snapshotMagic)
	}
	if f := binary.LittleEndian.Uint32(head[4:]); f != Format {
		return nil, 0, 0, fmt.Errorf("%w: %d; this version reads %d", ErrNewerFormat, f, Format)
	}
	index, term := binary.LittleEndian.Uint64(head[8:]), binary.LittleEndian.Uint64(head[16:])
	kinds := map[byte]section{}
	for _, sec := range sections {
		kinds[sec.kind] = sec
	}
	var count uint64
	for {
		want := in.sum.Sum32()
		h := make([]byte, 5)
		if err := in.full(h[:1]); err != nil {
			return nil, 0, 0, err
		}
		if h[0] == trailerType {
			rest := make([]byte, 12)
			if err := in.full(rest); err != nil {
				return nil, 0, 0, err
			}
			if n, sum := binary.LittleEndian.Uint64(rest), binary.LittleEndian.Uint32(rest[8:]); n != count || sum != want {
				return nil, 0, 0, fmt.Errorf("%w: trailer says %d records and sum %08x, read %d and %08x", ErrDamagedSnapshot, n, sum, count, want)
			}
			if _, err := in.r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				return nil, 0, 0, fmt.Errorf("%w: bytes after the trailer", ErrDamagedSnapshot)
			}
			return db, index, term, nil
		}
		sec, ok := kinds[h[0]]
		if !ok {
			return nil, 0, 0, fmt.Errorf("%w: record of unknown type %d", ErrDamagedSnapshot, h[0])
		}
		if err := in.full(h[1:]); err != nil {
			return nil, 0, 0, err
		}
		n := binary.LittleEndian.Uint32(h[1:])
		if n > maxRecord {
			return nil, 0, 0, fmt.Errorf("%w: record of %d bytes", ErrDamagedSnapshot, n)
		}
		body, err := in.record(int(n))
		if err != nil {
			return nil, 0, 0, err
		}
		rec := sec.fresh()
		if err := wire.UnmarshalMax(body, rec, maxRecord); err != nil {
			return nil, 0, 0, fmt.Errorf("%w: %s record: %w", ErrDamagedSnapshot, sec.table, err)
		}
		if err := db.insert(sec.table, rec); err != nil {
			return nil, 0, 0, fmt.Errorf("%w: %s record: %w", ErrDamagedSnapshot, sec.table, err)
		}
		count++
	}
}

// record reads n bytes in pieces, so that a damaged length costs no more memory
// than the file has bytes.
func (s summed) record(n int) ([]byte, error) {
	const piece = 64 << 10
	var body []byte
	for len(body) < n {
		b := make([]byte, min(piece, n-len(body)))
		if err := s.full(b); err != nil {
			return nil, err
		}
		body = append(body, b...)
	}
	return body, nil
}
