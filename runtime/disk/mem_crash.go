package disk

import (
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
)

// blockSize is what a disk writes as a whole or not at all.
const blockSize = 512

// SyncDir implements FS.
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	node, err := m.find(name)
	if err == nil && !node.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return pathError("sync", name, err)
	}
	m.syncDir(node)
	return nil
}

// syncDir makes the changes of one folder durable, and of others only those that came
// before and cannot be told apart from them: a rename between two folders is one
// change, and no change becomes durable before an older one of the same folder.
func (m *Mem) syncDir(dir *inode) {
	need := map[*inode]bool{dir: true}
	flush := make([]bool, len(m.pending))
	for i, c := range slices.Backward(m.pending) {
		if c.touches(need) {
			flush[i] = true
			for _, e := range c {
				need[e.dir] = true
			}
		}
	}
	var rest []change
	for i, c := range m.pending {
		if !flush[i] {
			rest = append(rest, c)
			continue
		}
		for _, e := range c {
			set(e.dir.durable, e.name, e.to)
		}
	}
	m.pending = rest
}

// CrashClone is the disk as it would be found after a power cut now. What was synced
// is there. Of the rest, each 512-byte block and each change of a name survives with
// probability keep (0: nothing, 1: everything), as seed decides; changes of one folder
// survive in order, and a rename survives whole. A file may so have its length and not
// its content. m itself lives on.
func (m *Mem) CrashClone(seed uint64, keep float64) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := rand.New(rand.NewPCG(seed, 0x64697363))
	var survive []change
	lost := map[*inode]bool{}
	for _, c := range m.pending {
		if c.touches(lost) || r.Float64() >= keep {
			for _, e := range c {
				lost[e.dir] = true
			}
			continue
		}
		survive = append(survive, c)
	}
	k := &cloner{r: r, keep: keep, done: map[*inode]*inode{}, survive: survive}
	return &Mem{root: k.clone(m.root)}
}

type cloner struct {
	r       *rand.Rand
	keep    float64
	survive []change
	done    map[*inode]*inode
}

func (k *cloner) clone(n *inode) *inode {
	if c := k.done[n]; c != nil {
		return c
	}
	c := &inode{dir: n.dir, perm: n.perm, mtime: n.mtime, dirty: map[int]bool{}}
	k.done[n] = c
	if !n.dir {
		c.data = k.content(n)
		c.sync()
		return c
	}
	names := make(map[string]*inode, len(n.durable))
	maps.Copy(names, n.durable)
	for _, ch := range k.survive {
		for _, e := range ch {
			if e.dir == n {
				set(names, e.name, e.to)
			}
		}
	}
	c.entries, c.durable = map[string]*inode{}, map[string]*inode{}
	for _, name := range sortedNames(names) { // in order, so that the seed decides alone
		to := k.clone(names[name])
		c.entries[name], c.durable[name] = to, to
	}
	return c
}

// content is the durable content with some of the written blocks over it.
func (k *cloner) content(n *inode) []byte {
	b := append([]byte(nil), n.durableData...)
	blocks := make([]int, 0, len(n.dirty))
	for i := range n.dirty {
		blocks = append(blocks, i)
	}
	slices.Sort(blocks)
	cut := len(n.data) < len(b) && k.r.Float64() < k.keep // a truncate is one change
	for _, i := range blocks {
		from, to := i*blockSize, min((i+1)*blockSize, len(n.data))
		if k.r.Float64() >= k.keep || from >= to {
			continue
		}
		if to > len(b) {
			b = append(b, make([]byte, to-len(b))...)
		}
		copy(b[from:to], n.data[from:to])
	}
	if cut {
		b = b[:min(len(b), len(n.data))]
	}
	return b
}
