package disk

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Mem is a disk in memory that knows what would outlive a power cut: see CrashClone.
// It has folders and regular files with hard links; it has no symbolic links and
// checks no permissions. Relative names start at the root.
type Mem struct {
	mu      sync.Mutex
	root    *inode
	pending []change // of names, not durable yet, in order
}

// inode is a file or folder. The fields with "durable" are what a disk without power
// certainly holds.
type inode struct {
	dir   bool
	perm  fs.FileMode
	mtime time.Time

	entries map[string]*inode // of a folder
	durable map[string]*inode

	data        []byte // of a file
	durableData []byte
	dirty       map[int]bool // blocks written since the last Sync
}

// change is one atomic operation on names, as a journal would hold it.
type change []entry

type entry struct {
	dir  *inode
	name string
	to   *inode // nil: removed
}

func (c change) touches(dirs map[*inode]bool) bool {
	return slices.ContainsFunc(c, func(e entry) bool { return dirs[e.dir] })
}

// NewMem makes an empty disk.
func NewMem() *Mem { return &Mem{root: newDir(0o755)} }

func newDir(perm fs.FileMode) *inode {
	return &inode{dir: true, perm: perm, mtime: time.Now(), entries: map[string]*inode{}, durable: map[string]*inode{}}
}

func newFile(perm fs.FileMode) *inode {
	return &inode{perm: perm, mtime: time.Now(), dirty: map[int]bool{}}
}

// apply does a change now and remembers that it is not durable.
func (m *Mem) apply(c change) {
	for _, e := range c {
		set(e.dir.entries, e.name, e.to)
		e.dir.mtime = time.Now()
	}
	m.pending = append(m.pending, c)
}

func set(entries map[string]*inode, name string, to *inode) {
	if to == nil {
		delete(entries, name)
		return
	}
	entries[name] = to
}

func split(name string) []string {
	clean := path.Clean("/" + name)
	if clean == "/" {
		return nil
	}
	return strings.Split(clean[1:], "/")
}

func (m *Mem) find(name string) (*inode, error) {
	at := m.root
	for _, part := range split(name) {
		if !at.dir {
			return nil, syscall.ENOTDIR
		}
		if at = at.entries[part]; at == nil {
			return nil, syscall.ENOENT
		}
	}
	return at, nil
}

// parent finds the folder that name stands in, or would.
func (m *Mem) parent(name string) (dir *inode, base string, err error) {
	parts := split(name)
	if len(parts) == 0 {
		return nil, "", syscall.EBUSY // the root
	}
	base = parts[len(parts)-1]
	dir, err = m.find(path.Join(parts[:len(parts)-1]...))
	if err == nil && !dir.dir {
		err = syscall.ENOTDIR
	}
	return dir, base, err
}

func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// OpenFile implements FS.
func (m *Mem) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	node, err := m.open(name, flag, perm)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	access := flag & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
	return &memFile{m: m, node: node, name: name, read: access != os.O_WRONLY, write: access != os.O_RDONLY, appends: flag&os.O_APPEND != 0}, nil
}

func (m *Mem) open(name string, flag int, perm fs.FileMode) (*inode, error) {
	node, err := m.find(name)
	writes := flag&(os.O_WRONLY|os.O_RDWR) != 0
	switch {
	case err == nil && flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL:
		return nil, syscall.EEXIST
	case err == nil && node.dir && (writes || flag&os.O_CREATE != 0):
		return nil, syscall.EISDIR
	case err == nil && !node.dir && flag&syscall.O_DIRECTORY != 0:
		return nil, syscall.ENOTDIR
	case err == nil && writes && flag&os.O_TRUNC != 0:
		node.resize(0)
		return node, nil
	case !errors.Is(err, syscall.ENOENT) || flag&os.O_CREATE == 0:
		return node, err
	}
	dir, base, err := m.parent(name)
	if err != nil {
		return nil, err
	}
	node = newFile(perm.Perm())
	m.apply(change{{dir, base, node}})
	return node, nil
}

// Rename implements FS.
func (m *Mem) Rename(oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.rename(oldname, newname); err != nil {
		return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: err}
	}
	return nil
}

func (m *Mem) rename(oldname, newname string) error {
	from, oldBase, err := m.parent(oldname)
	if err != nil {
		return err
	}
	to, newBase, err := m.parent(newname)
	if err != nil {
		return err
	}
	node, old := from.entries[oldBase], to.entries[newBase]
	switch {
	case node == nil:
		return syscall.ENOENT
	case old != nil && old.dir:
		return syscall.EEXIST // as os.Rename answers for every folder
	case old == node:
		return nil
	case node.dir && strings.HasPrefix(path.Clean("/"+newname)+"/", path.Clean("/"+oldname)+"/"):
		return syscall.EINVAL // into itself
	case old != nil && node.dir:
		return syscall.ENOTDIR
	}
	m.apply(change{{from, oldBase, nil}, {to, newBase, node}})
	return nil
}

// Link implements FS.
func (m *Mem) Link(oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.link(oldname, newname); err != nil {
		return &os.LinkError{Op: "link", Old: oldname, New: newname, Err: err}
	}
	return nil
}

func (m *Mem) link(oldname, newname string) error {
	node, err := m.find(oldname)
	if err != nil {
		return err
	}
	dir, base, err := m.parent(newname)
	switch {
	case err != nil:
		return err
	case dir.entries[base] != nil:
		return syscall.EEXIST
	case node.dir:
		return syscall.EPERM
	}
	m.apply(change{{dir, base, node}})
	return nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return pathError("remove", name, m.remove(name))
}

func (m *Mem) remove(name string) error {
	dir, base, err := m.parent(name)
	if err != nil {
		return err
	}
	node := dir.entries[base]
	switch {
	case node == nil:
		return syscall.ENOENT
	case node.dir && len(node.entries) > 0:
		return syscall.ENOTEMPTY
	}
	m.apply(change{{dir, base, nil}})
	return nil
}

// RemoveAll implements FS; a crash may leave any part of the tree.
func (m *Mem) RemoveAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	node, err := m.find(name)
	if errors.Is(err, syscall.ENOENT) {
		return nil
	}
	if err != nil {
		return pathError("unlinkat", name, err)
	}
	m.clear(node)
	if node == m.root {
		return nil
	}
	return pathError("unlinkat", name, m.remove(name))
}

func (m *Mem) clear(node *inode) {
	for _, name := range sortedNames(node.entries) {
		m.clear(node.entries[name])
		m.apply(change{{node, name, nil}})
	}
}

// MkdirAll implements FS.
func (m *Mem) MkdirAll(name string, perm fs.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.root
	for _, part := range split(name) {
		next := at.entries[part]
		if next == nil {
			next = newDir(perm.Perm())
			m.apply(change{{at, part, next}})
		}
		if !next.dir {
			return pathError("mkdir", name, syscall.ENOTDIR)
		}
		at = next
	}
	return nil
}

// Stat implements FS.
func (m *Mem) Stat(name string) (fs.FileInfo, error) { return m.stat("stat", name) }

// Lstat implements FS.
func (m *Mem) Lstat(name string) (fs.FileInfo, error) { return m.stat("lstat", name) }

func (m *Mem) stat(op, name string) (fs.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	node, err := m.find(name)
	if err != nil {
		return nil, pathError(op, name, err)
	}
	return node.info(path.Base(path.Clean("/" + name))), nil
}

// ReadDir implements FS.
func (m *Mem) ReadDir(name string) ([]fs.DirEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	node, err := m.find(name)
	if err == nil && !node.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, pathError("open", name, err)
	}
	list := make([]fs.DirEntry, 0, len(node.entries))
	for _, n := range sortedNames(node.entries) {
		list = append(list, fs.FileInfoToDirEntry(node.entries[n].info(n)))
	}
	return list, nil
}

func sortedNames(entries map[string]*inode) []string {
	names := make([]string, 0, len(entries))
	for n := range entries {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
