package disk

import (
	"io/fs"
	"path"
	"strings"
	"sync"
)

// Op is a kind of operation, for faults.
type Op string

// Kinds of operation. OpRead covers Read and ReadAt.
const (
	OpOpen    Op = "open"
	OpRead    Op = "read"
	OpWrite   Op = "write"
	OpSync    Op = "sync"
	OpClose   Op = "close"
	OpRename  Op = "rename"
	OpLink    Op = "link"
	OpRemove  Op = "remove" // RemoveAll too
	OpMkdir   Op = "mkdir"
	OpStat    Op = "stat" // Lstat and File.Stat too
	OpReadDir Op = "readdir"
	OpSyncDir Op = "syncdir"
)

// Fault makes operations fail.
type Fault struct {
	Op Op // empty: any
	// Path is a pattern of path.Match for the whole name, or for its last part when
	// it holds no slash; empty: any. A rename or link is known by either name.
	Path string
	Nth  int // only the nth matching operation, from 1; 0: each
	Err  error
	// Partial lets a write put so many bytes down before it fails.
	Partial int
}

// Faulty is a file system that fails where it is told to. Where a fault strikes, the
// operation below is not done, except for the Partial of a write.
type Faulty struct {
	under FS
	mu    sync.Mutex
	list  []*armed
	hook  func(op Op, name string)
}

type armed struct {
	Fault
	seen int
}

// NewFaulty wraps a file system.
func NewFaulty(under FS) *Faulty { return &Faulty{under: under} }

// Inject arms a fault; the first that was armed wins. remove disarms it.
func (f *Faulty) Inject(fault Fault) (remove func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := &armed{Fault: fault}
	f.list = append(f.list, a)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for i, o := range f.list {
			if o == a {
				f.list = append(f.list[:i:i], f.list[i+1:]...)
				return
			}
		}
	}
}

// Before calls hook before every operation, to take a CrashClone there, for example.
func (f *Faulty) Before(hook func(op Op, name string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

// check returns the fault that strikes now.
func (f *Faulty) check(op Op, names ...string) *Fault {
	f.mu.Lock()
	hook := f.hook
	f.mu.Unlock()
	if hook != nil {
		hook(op, names[0])
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var hit *Fault
	for _, a := range f.list {
		if a.Op != "" && a.Op != op || !a.matches(names) {
			continue
		}
		a.seen++
		if hit == nil && (a.Nth == 0 || a.Nth == a.seen) {
			hit = &a.Fault
		}
	}
	return hit
}

func (a *armed) matches(names []string) bool {
	if a.Path == "" {
		return true
	}
	for _, n := range names {
		if !strings.Contains(a.Path, "/") {
			n = path.Base(n)
		}
		if ok, err := path.Match(a.Path, n); ok && err == nil {
			return true
		}
	}
	return false
}

func (f *Faulty) fail(op Op, names ...string) error {
	if hit := f.check(op, names...); hit != nil {
		return pathError(string(op), names[0], hit.Err)
	}
	return nil
}

// OpenFile implements FS.
func (f *Faulty) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	if err := f.fail(OpOpen, name); err != nil {
		return nil, err
	}
	file, err := f.under.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &faultyFile{File: file, f: f, name: name}, nil
}

// Rename implements FS.
func (f *Faulty) Rename(oldname, newname string) error {
	if err := f.fail(OpRename, oldname, newname); err != nil {
		return err
	}
	return f.under.Rename(oldname, newname)
}

// Link implements FS.
func (f *Faulty) Link(oldname, newname string) error {
	if err := f.fail(OpLink, oldname, newname); err != nil {
		return err
	}
	return f.under.Link(oldname, newname)
}

// Remove implements FS.
func (f *Faulty) Remove(name string) error {
	if err := f.fail(OpRemove, name); err != nil {
		return err
	}
	return f.under.Remove(name)
}

// RemoveAll implements FS.
func (f *Faulty) RemoveAll(name string) error {
	if err := f.fail(OpRemove, name); err != nil {
		return err
	}
	return f.under.RemoveAll(name)
}

// MkdirAll implements FS.
func (f *Faulty) MkdirAll(name string, perm fs.FileMode) error {
	if err := f.fail(OpMkdir, name); err != nil {
		return err
	}
	return f.under.MkdirAll(name, perm)
}

// Stat implements FS.
func (f *Faulty) Stat(name string) (fs.FileInfo, error) {
	if err := f.fail(OpStat, name); err != nil {
		return nil, err
	}
	return f.under.Stat(name)
}

// Lstat implements FS.
func (f *Faulty) Lstat(name string) (fs.FileInfo, error) {
	if err := f.fail(OpStat, name); err != nil {
		return nil, err
	}
	return f.under.Lstat(name)
}

// ReadDir implements FS.
func (f *Faulty) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := f.fail(OpReadDir, name); err != nil {
		return nil, err
	}
	return f.under.ReadDir(name)
}

// SyncDir implements FS.
func (f *Faulty) SyncDir(name string) error {
	if err := f.fail(OpSyncDir, name); err != nil {
		return err
	}
	return f.under.SyncDir(name)
}

type faultyFile struct {
	File
	f    *Faulty
	name string
}

func (x *faultyFile) Read(p []byte) (int, error) {
	if err := x.f.fail(OpRead, x.name); err != nil {
		return 0, err
	}
	return x.File.Read(p)
}

func (x *faultyFile) ReadAt(p []byte, off int64) (int, error) {
	if err := x.f.fail(OpRead, x.name); err != nil {
		return 0, err
	}
	return x.File.ReadAt(p, off)
}

func (x *faultyFile) Write(p []byte) (int, error) {
	hit := x.f.check(OpWrite, x.name)
	if hit == nil {
		return x.File.Write(p)
	}
	n := 0
	if hit.Partial > 0 {
		var err error
		if n, err = x.File.Write(p[:min(hit.Partial, len(p))]); err != nil {
			return n, err
		}
	}
	return n, pathError(string(OpWrite), x.name, hit.Err)
}

func (x *faultyFile) Sync() error {
	if err := x.f.fail(OpSync, x.name); err != nil {
		return err
	}
	return x.File.Sync()
}

func (x *faultyFile) Stat() (fs.FileInfo, error) {
	if err := x.f.fail(OpStat, x.name); err != nil {
		return nil, err
	}
	return x.File.Stat()
}

// Close closes the file below even when it is told to fail, as the system does.
func (x *faultyFile) Close() error {
	fault := x.f.fail(OpClose, x.name)
	if err := x.File.Close(); err != nil {
		return err
	}
	return fault
}

var (
	_ FS = osFS{}
	_ FS = (*Mem)(nil)
	_ FS = (*Faulty)(nil)
)
