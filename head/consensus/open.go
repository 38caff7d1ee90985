package consensus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
)

// Init makes the folder hold a new cluster: this node alone, or Config.Peers. It does
// so once and is whole or absent after a crash. ErrAlreadyInitialized if the folder
// holds a cluster, ErrLocked, ErrNewerFormat, ErrStorage, ErrConfig.
func Init(c Config) error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	if c.InMem {
		return initMemory(c)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return storageError("make the folder", c.Dir, err)
	}
	lock, err := lockFolder(c.Dir)
	if err != nil {
		return err
	}
	defer lock.Close()

	walDir := filepath.Join(c.Dir, dirWAL)
	hasLog, err := exists(walDir)
	if err != nil {
		return err
	}
	hasFormat, err := exists(filepath.Join(c.Dir, fileFormat))
	if err != nil {
		return err
	}
	if hasLog || hasFormat {
		if err := checkFormat(c.Dir); err != nil {
			return err
		}
	}
	if hasLog {
		return fmt.Errorf("%w: %s; start it with `troupe head start`", ErrAlreadyInitialized, c.Dir)
	}
	if hasSnaps, err := exists(filepath.Join(c.Dir, dirSnapshots)); err != nil {
		return err
	} else if hasSnaps {
		return damagedFolder("%s is missing beside snapshots", walDir)
	}
	if err := writeAtomic(filepath.Join(c.Dir, fileFormat), fmt.Appendln(nil, Format)); err != nil {
		return err
	}
	if c.NodeID, err = nodeID(c.Dir, c.NodeID, true); err != nil {
		return err
	}
	// The log appears under its name with the first configuration already in it, so
	// that a crash here leaves either no cluster or a whole one.
	fresh := filepath.Join(c.Dir, dirWALNew)
	if err := os.RemoveAll(fresh); err != nil {
		return storageError("remove", fresh, err)
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return storageError("make the folder", fresh, err)
	}
	raw, err := openWAL(fresh, c, true)
	if err != nil {
		return err
	}
	err = bootstrap(c, &checkedLog{raw: raw, path: fresh}, raft.NewDiscardSnapshotStore())
	if err := errors.Join(err, raw.Close()); err != nil {
		return storageError("write the first log entry", fresh, err)
	}
	if err := os.Rename(fresh, walDir); err != nil {
		return storageError("make the folder", walDir, err)
	}
	return syncDir(c.Dir)
}

func initMemory(c Config) error {
	if c.Memory == nil {
		return errNoMemory
	}
	if err := c.Memory.take(); err != nil {
		return err
	}
	defer c.Memory.release()
	return bootstrapMemory(&c)
}

func bootstrapMemory(c *Config) error {
	m := c.Memory
	if m.initialized() {
		return fmt.Errorf("%w: in memory", ErrAlreadyInitialized)
	}
	if c.NodeID == "" {
		c.NodeID = randomID()
	}
	if err := bootstrap(*c, &checkedLog{raw: memoryLog{m.log}, path: "memory"}, raft.NewDiscardSnapshotStore()); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.node, m.inited = c.NodeID, true
	return nil
}

// localAddr is the address of this node in the configuration. One voter is reached by
// nobody and may have none; Raft wants a name all the same.
func (c Config) localAddr() string {
	if c.Addr != "" {
		return c.Addr
	}
	return c.NodeID
}

func bootstrap(c Config, log *checkedLog, snaps raft.SnapshotStore) error {
	peers := c.Peers
	if len(peers) == 0 {
		peers = []Peer{{ID: c.NodeID, Addr: c.localAddr()}}
	}
	var conf raft.Configuration
	for _, p := range peers {
		conf.Servers = append(conf.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.Addr)})
	}
	trans := c.Transport
	if trans == nil {
		trans = lonelyTransport(c.localAddr())
	}
	return raft.BootstrapCluster(c.raftConfig(), log, log, snaps, trans, conf)
}

// Open starts the node on a folder that Init made and drives machine, which must be
// empty, from the newest good snapshot and the log. It verifies every entry first.
// ErrNotInitialized for an empty folder (which it leaves as it is), ErrLocked,
// ErrNewerFormat, ErrDamagedLog, ErrDamagedFolder, ErrStorage, ErrConfig.
func Open(c Config, machine Machine) (_ *Node, err error) {
	c, err = c.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &Node{machine: machine, fatal: make(chan error, 1), started: make(chan struct{}), stopped: make(chan struct{}), closed: make(chan struct{})}
	defer func() {
		if err != nil {
			n.releaseStores()
		}
	}()
	var snaps raft.SnapshotStore
	var covered uint64
	if c.InMem {
		snaps, covered, err = n.openMemory(&c)
	} else {
		snaps, covered, err = n.openFolder(&c)
	}
	if err != nil {
		return nil, err
	}
	n.cfg = c
	first, err := n.log.scan(covered, c.Logger.Warn)
	if err != nil {
		return nil, err
	}
	if err := checkCover(n.log, first, covered, snaps); err != nil {
		return nil, err
	}
	if n.trans = c.Transport; n.trans == nil {
		n.trans = lonelyTransport(c.localAddr())
	}
	return n, n.start(snaps)
}

func (n *Node) openMemory(c *Config) (_ raft.SnapshotStore, covered uint64, err error) {
	if c.Memory == nil {
		c.Memory = NewMemory()
		if err := bootstrapMemory(c); err != nil {
			return nil, 0, err
		}
	}
	m := c.Memory
	if !m.initialized() {
		return nil, 0, notInitialized("memory")
	}
	if err := m.take(); err != nil {
		return nil, 0, err
	}
	n.release = m.release
	c.NodeID = m.node
	n.log = &checkedLog{raw: memoryLog{m.log}, path: "memory"}
	if k := len(m.snaps); k > 0 {
		covered = m.snaps[k-1].meta.Index
	}
	return &memorySnapshots{m: m, retain: c.Retain, verify: verifyBody(c.VerifySnapshot)}, covered, nil
}

func notInitialized(dir string) error {
	return fmt.Errorf("%w: %s; make a new cluster with `troupe head init`, or join one with `troupe head start --join TOKEN`", ErrNotInitialized, dir)
}

// openFolder opens the stores of a folder; covered is the index of the newest good
// snapshot.
func (n *Node) openFolder(c *Config) (_ raft.SnapshotStore, covered uint64, err error) {
	walDir := filepath.Join(c.Dir, dirWAL)
	hasLog, err := exists(walDir)
	if err != nil {
		return nil, 0, err
	}
	if !hasLog {
		// Snapshots without a log are not an empty folder.
		if has, err := exists(filepath.Join(c.Dir, dirSnapshots)); err != nil {
			return nil, 0, err
		} else if has {
			return nil, 0, damagedFolder("%s is missing beside snapshots", walDir)
		}
		return nil, 0, notInitialized(c.Dir)
	}
	lock, err := lockFolder(c.Dir)
	if err != nil {
		return nil, 0, err
	}
	n.release = func() { _ = lock.Close() }
	if err := checkFormat(c.Dir); err != nil {
		return nil, 0, err
	}
	if c.NodeID, err = nodeID(c.Dir, c.NodeID, false); err != nil {
		return nil, 0, err
	}
	snaps, err := openSnapshots(filepath.Join(c.Dir, dirSnapshots), *c)
	if err != nil {
		return nil, 0, err
	}
	good, bad, err := snaps.newestGood()
	if err != nil {
		return nil, 0, err
	}
	if good != nil {
		covered = good.Index
	}
	raw, err := openWAL(walDir, *c, false)
	if err != nil {
		return nil, 0, err
	}
	n.log = &checkedLog{raw: raw, path: walDir}
	if good == nil && bad > 0 {
		c.Logger.Warn("every snapshot is damaged; the log alone is used", "dir", c.Dir)
	}
	return snaps, covered, nil
}

// checkCover makes sure that snapshot and log together reach back to the beginning:
// Raft would panic on the missing entry.
func checkCover(log *checkedLog, first, covered uint64, snaps raft.SnapshotStore) error {
	if first > covered+1 {
		return &DamagedLogError{Index: covered + 1, Reason: fmt.Sprintf("the log begins at entry %d and no good snapshot holds what was before", first)}
	}
	last, err := log.LastIndex()
	if err != nil {
		return storageError("read the log", log.path, err)
	}
	if first == 0 && covered == 0 {
		return &DamagedLogError{Index: 1, Reason: "the log is empty and there is no good snapshot"}
	}
	if first == 0 || last >= covered {
		return nil
	}
	// The snapshot is newer than the log. A follower that just received it may look
	// so; what one voter has in a snapshot was in its log first.
	metas, err := snaps.List()
	if err != nil {
		return err
	}
	if len(metas) > 0 && len(metas[0].Configuration.Servers) > 1 {
		return log.DeleteRange(first, last)
	}
	return &DamagedLogError{Index: last + 1, Reason: fmt.Sprintf("the log ends before the snapshot at %d", covered)}
}
