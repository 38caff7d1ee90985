package consensus

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"github.com/hashicorp/raft-wal/types"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	fileMeta  = "meta"
	metaMagic = "TRPMETA1"
	maxMeta   = 16 << 20
)

// metaStore keeps which segments the log consists of, and Raft's term and vote, in
// one small checksummed file that is replaced whole. It stands in for raft-wal's own
// database: that one has no checksum, is memory-mapped (damage can end the process)
// and stays locked after the log was closed. It is written at an election and when a
// segment fills, so two fsyncs a write cost nothing.
type metaStore struct {
	create bool // an absent file is a new store, not damage

	mu   sync.Mutex
	path string
	data metaData
}

type metaData struct {
	Log    types.PersistentState
	Stable map[string][]byte
}

var _ types.MetaStore = (*metaStore)(nil)

// Load implements types.MetaStore.
func (m *metaStore) Load(dir string) (types.PersistentState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.path = filepath.Join(dir, fileMeta)
	m.data = metaData{Stable: map[string][]byte{}}
	b, err := readBounded(m.path, maxMeta)
	if errors.Is(err, fs.ErrNotExist) {
		if m.create {
			return m.data.Log, nil
		}
		return m.data.Log, damagedFolder("%s is missing", m.path)
	}
	if err != nil {
		return m.data.Log, storageError("read", m.path, err)
	}
	if err := decodeMeta(b, &m.data); err != nil {
		return types.PersistentState{}, damagedFolder("%s: %v", m.path, err)
	}
	if m.data.Stable == nil {
		m.data.Stable = map[string][]byte{}
	}
	return m.data.Log, nil
}

// CommitState implements types.MetaStore.
func (m *metaStore) CommitState(s types.PersistentState) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.data
	next.Log = s
	return m.replace(next)
}

// GetStable implements types.MetaStore.
func (m *metaStore) GetStable(key []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.data.Stable[string(key)], nil
}

// SetStable implements types.MetaStore.
func (m *metaStore) SetStable(key, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := metaData{Log: m.data.Log, Stable: make(map[string][]byte, len(m.data.Stable)+1)}
	maps.Copy(next.Stable, m.data.Stable)
	next.Stable[string(key)] = append([]byte(nil), value...)
	if value == nil {
		delete(next.Stable, string(key))
	}
	return m.replace(next)
}

// Close implements types.MetaStore; there is nothing to close.
func (m *metaStore) Close() error { return nil }

// encodeMeta is magic, JSON, crc32c of both.
func encodeMeta(d metaData) ([]byte, error) {
	body, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	out := append([]byte(metaMagic), body...)
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli)), nil
}

// replace writes next and then holds it. The caller has the lock.
func (m *metaStore) replace(next metaData) error {
	b, err := encodeMeta(next)
	if err != nil {
		return err
	}
	if err := writeAtomic(m.path, b); err != nil {
		return err
	}
	m.data = next
	return nil
}

func decodeMeta(b []byte, d *metaData) error {
	if len(b) < len(metaMagic)+4 || string(b[:len(metaMagic)]) != metaMagic {
		return errors.New("not a meta file")
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return errors.New("checksum does not match")
	}
	return json.Unmarshal(body[len(metaMagic):], d)
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("longer than %d bytes", limit)
	}
	return b, err
}
