package consensus

import (
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/types"
)

// Limits of the log.
const (
	// MaxProposal is the most bytes one proposal may have.
	MaxProposal = 512 << 10
	// MaxQueued is how many proposals may wait at once; more are shed with ErrBusy.
	MaxQueued = 2000
	// MaxQueuedBytes is how many bytes they may hold together.
	MaxQueuedBytes = 64 << 20
)

// StuckAppend is how long one append may take before the head says that its disk is
// stuck.
const StuckAppend = 2 * time.Second

// Peer is one head of a cluster.
type Peer struct {
	ID   string // stable, random
	Addr string // of its Raft port; may change
}

// Config says where a node keeps its log and how it behaves. The zero value of a
// field is its default.
type Config struct {
	// Dir is the folder of the log and snapshots; nobody else writes into it.
	Dir string
	// NodeID is this head's id. Empty: random at Init, then read from the folder.
	NodeID string
	// Addr is the address other heads reach this one at. One voter needs none.
	Addr string
	// Peers are the voters of a new cluster, for Init. Empty: this node alone.
	Peers []Peer

	// Transport carries Raft's messages between heads. Nil: one voter, no listener,
	// no port. The node closes it if it has a Close.
	Transport raft.Transport

	// InMem keeps log and snapshots in memory, for the simulated cluster. Dir is not
	// used. With Memory nil, Open makes a cluster of its own that Close forgets.
	InMem bool
	// Memory is the disk of an in-memory node; it outlives Close.
	Memory *Memory

	// Heartbeat is the election timeout; 50 ms for one voter, else 500 ms. With several
	// voters a leader's lease is half of it.
	Heartbeat time.Duration
	// CommitTimeout is how soon followers hear of a commit in a quiet log; default
	// Heartbeat / 10. It must be below Heartbeat / 4.
	CommitTimeout time.Duration

	// SnapshotThreshold is how many entries make a new snapshot; default 8192.
	SnapshotThreshold uint64
	// TrailingLogs is how many entries stay after a snapshot; default 20480, at least
	// twice SnapshotThreshold, so that the log reaches back to the snapshot before the
	// newest one.
	TrailingLogs uint64
	// SnapshotInterval is how often the threshold is looked at; default 15 s.
	SnapshotInterval time.Duration
	// Retain is how many snapshots are kept; default and at least 2.
	Retain int
	// VerifySnapshot reads back a snapshot that was just written, as the machine's
	// Persist wrote it, and returns an error if it is not whole. Nil: only the
	// checksum of the file is verified.
	VerifySnapshot func(io.Reader) error

	// SegmentSize is the size of one log file in bytes, allocated at once; default 8 MiB.
	SegmentSize int

	// Logger receives the node's log; nil discards it.
	Logger *slog.Logger
	// OnStuck is called when an append has taken StuckAppend with proposals waiting,
	// once for each such append. One voter only warns; with more voters the replica
	// stops, so that another head can lead.
	OnStuck func(d time.Duration)

	// vfs replaces the file system under the log, for fault injection.
	vfs types.VFS
}

// Defaults of Config.
const (
	singleVoterHeartbeat     = 50 * time.Millisecond
	defaultHeartbeat         = 500 * time.Millisecond
	defaultSnapshotThreshold = 8192
	defaultTrailingLogs      = 20480
	defaultSnapshotInterval  = 15 * time.Second
	defaultRetain            = 2
	// A segment is allocated whole and deleted whole: small enough that an idle head
	// holds little, large enough that rotation (a few fsyncs) is rare.
	defaultSegmentSize = 8 << 20
	maxAppendEntries   = 256
	logCacheEntries    = 512
)

// withDefaults fills what was left empty and checks the relations between fields.
// Raft itself accepts timeouts with which no leader is ever elected.
func (c Config) withDefaults() (Config, error) {
	if c.Memory != nil {
		c.InMem = true
	}
	if !c.InMem && c.Dir == "" {
		return c, fmt.Errorf("%w: no folder given", ErrConfig)
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = defaultHeartbeat
		if c.Transport == nil {
			c.Heartbeat = singleVoterHeartbeat
		}
	}
	if c.CommitTimeout == 0 {
		c.CommitTimeout = c.Heartbeat / 10
	}
	if c.SnapshotThreshold == 0 {
		c.SnapshotThreshold = defaultSnapshotThreshold
	}
	if c.TrailingLogs == 0 {
		c.TrailingLogs = max(defaultTrailingLogs, 2*c.SnapshotThreshold)
	}
	if c.SnapshotInterval == 0 {
		c.SnapshotInterval = defaultSnapshotInterval
	}
	if c.Retain == 0 {
		c.Retain = defaultRetain
	}
	if c.SegmentSize == 0 {
		c.SegmentSize = defaultSegmentSize
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.Heartbeat < 5*time.Millisecond:
		return c, fmt.Errorf("%w: heartbeat %s is below 5ms", ErrConfig, c.Heartbeat)
	case c.CommitTimeout < time.Millisecond || c.CommitTimeout >= c.Heartbeat/4:
		return c, fmt.Errorf("%w: commit timeout %s must be at least 1ms and below a quarter of the heartbeat %s", ErrConfig, c.CommitTimeout, c.Heartbeat)
	case c.TrailingLogs < 2*c.SnapshotThreshold:
		return c, fmt.Errorf("%w: %d trailing entries are fewer than twice the snapshot threshold %d; a damaged snapshot could not be replaced by the one before", ErrConfig, c.TrailingLogs, c.SnapshotThreshold)
	case c.SnapshotInterval < 5*time.Millisecond:
		return c, fmt.Errorf("%w: snapshot interval %s is below 5ms", ErrConfig, c.SnapshotInterval)
	case c.Retain < 2:
		return c, fmt.Errorf("%w: %d retained snapshots are fewer than 2", ErrConfig, c.Retain)
	case c.SegmentSize < 64<<10 || c.SegmentSize > 1<<30:
		return c, fmt.Errorf("%w: segment size %d is not between 64 KiB and 1 GiB", ErrConfig, c.SegmentSize)
	case len(c.Peers) > 1 && c.Transport == nil:
		return c, fmt.Errorf("%w: %d voters need a transport", ErrConfig, len(c.Peers))
	}
	return c, nil
}

// raftConfig is the library's view of the configuration.
func (c Config) raftConfig() *raft.Config {
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(c.NodeID)
	rc.HeartbeatTimeout = c.Heartbeat
	rc.ElectionTimeout = c.Heartbeat
	// A cut-off leader steps down before the others can have elected another. One
	// voter has nobody to lose; a longer lease only means fewer wake-ups.
	rc.LeaderLeaseTimeout = c.Heartbeat
	if c.Transport != nil {
		rc.LeaderLeaseTimeout = max(c.Heartbeat/2, 5*time.Millisecond)
	}
	rc.CommitTimeout = c.CommitTimeout
	rc.MaxAppendEntries = maxAppendEntries
	// The queue in front of the log gives group commits; the price, an inexact
	// timeout of enqueueing, is not used here.
	rc.BatchApplyCh = true
	rc.TrailingLogs = c.TrailingLogs
	rc.SnapshotInterval = c.SnapshotInterval
	rc.SnapshotThreshold = c.SnapshotThreshold
	rc.NoLegacyTelemetry = true
	rc.Logger = newHCLog(c.Logger)
	return rc
}
