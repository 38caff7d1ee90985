package consensus

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// testMachine keeps every entry it was given, and refuses to go on at some of them.
type testMachine struct {
	mu      sync.Mutex
	entries []string
	index   uint64
	gate    chan struct{} // if set, Apply waits for it
}

var errUnknownKind = errors.New("unknown kind")

func (m *testMachine) Apply(index, _ uint64, data []byte) (any, error) {
	m.mu.Lock()
	gate := m.gate
	m.mu.Unlock()
	if gate != nil {
		<-gate
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch string(data) {
	case "unknown":
		return nil, errUnknownKind
	case "panic":
		panic("state machine defect")
	}
	if index <= m.index {
		return nil, fmt.Errorf("entry %d after %d", index, m.index)
	}
	m.index = index
	m.entries = append(m.entries, string(data))
	return len(m.entries), nil
}

func (m *testMachine) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.entries)
}

type testSnapshot struct {
	entries []string
	index   uint64
}

func (m *testMachine) Snapshot() (Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &testSnapshot{entries: slices.Clone(m.entries), index: m.index}, nil
}

func (s *testSnapshot) Release() {}

func (s *testSnapshot) Persist(w io.Writer) error {
	sum := crc32.New(castagnoli)
	out := io.MultiWriter(w, sum)
	if err := binary.Write(out, binary.BigEndian, []uint64{s.index, uint64(len(s.entries))}); err != nil {
		return err
	}
	for _, e := range s.entries {
		if err := binary.Write(out, binary.BigEndian, uint32(len(e))); err != nil {
			return err
		}
		if _, err := io.WriteString(out, e); err != nil {
			return err
		}
	}
	return binary.Write(w, binary.BigEndian, sum.Sum32())
}

func readTestSnapshot(r io.Reader) (*testSnapshot, error) {
	b := bufio.NewReader(r)
	sum := crc32.New(castagnoli)
	in := io.TeeReader(b, sum)
	var head [2]uint64
	if err := binary.Read(in, binary.BigEndian, &head); err != nil {
		return nil, err
	}
	s := &testSnapshot{index: head[0]}
	for range head[1] {
		var n uint32
		if err := binary.Read(in, binary.BigEndian, &n); err != nil {
			return nil, err
		}
		e, err := io.ReadAll(io.LimitReader(in, int64(n)))
		if err != nil {
			return nil, err
		}
		s.entries = append(s.entries, string(e))
	}
	want := sum.Sum32()
	var got uint32
	if err := binary.Read(b, binary.BigEndian, &got); err != nil {
		return nil, err
	}
	if got != want {
		return nil, errors.New("snapshot trailer does not match")
	}
	return s, nil
}

func verifyTestSnapshot(r io.Reader) error { _, err := readTestSnapshot(r); return err }

func (m *testMachine) Restore(r io.Reader) error {
	s, err := readTestSnapshot(r)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries, m.index = s.entries, s.index
	return nil
}

const childEnv = "TROUPE_TEST_CONSENSUS_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		child(dir)
		return
	}
	goleak.VerifyTestMain(m)
}
