package disk

import (
	"io"
	"io/fs"
	"syscall"
	"time"
)

// memFile is an open file of Mem; it works on while its name is removed.
type memFile struct {
	m                    *Mem
	node                 *inode
	name                 string
	at                   int
	read, write, appends bool
	closed               bool
}

func (f *memFile) Name() string { return f.name }

// begin locks the disk and checks that the operation is possible.
func (f *memFile) begin(op string, allowed bool) error {
	f.m.mu.Lock()
	switch {
	case f.closed:
		return pathError(op, f.name, fs.ErrClosed)
	case !allowed:
		return pathError(op, f.name, syscall.EBADF)
	case f.node.dir && op != "sync" && op != "stat" && op != "close":
		return pathError(op, f.name, syscall.EISDIR)
	}
	return nil
}

func (f *memFile) Read(p []byte) (int, error) {
	defer f.m.mu.Unlock()
	if err := f.begin("read", f.read); err != nil || len(p) == 0 {
		return 0, err
	}
	if f.at >= len(f.node.data) {
		return 0, io.EOF
	}
	n := copy(p, f.node.data[f.at:])
	f.at += n
	return n, nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	defer f.m.mu.Unlock()
	if err := f.begin("read", f.read); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("readat", f.name, syscall.EINVAL)
	}
	if off >= int64(len(f.node.data)) {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	n := copy(p, f.node.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) Write(p []byte) (int, error) {
	defer f.m.mu.Unlock()
	if err := f.begin("write", f.write); err != nil || len(p) == 0 {
		return 0, err
	}
	if f.appends {
		f.at = len(f.node.data)
	}
	f.node.writeAt(p, f.at)
	f.at += len(p)
	return len(p), nil
}

func (f *memFile) Sync() error {
	defer f.m.mu.Unlock()
	if err := f.begin("sync", true); err != nil {
		return err
	}
	if f.node.dir {
		f.m.syncDir(f.node)
		return nil
	}
	f.node.sync()
	return nil
}

func (f *memFile) Stat() (fs.FileInfo, error) {
	defer f.m.mu.Unlock()
	if err := f.begin("stat", true); err != nil {
		return nil, err
	}
	parts := split(f.name)
	base := "/"
	if len(parts) > 0 {
		base = parts[len(parts)-1]
	}
	return f.node.info(base), nil
}

func (f *memFile) Close() error {
	defer f.m.mu.Unlock()
	if err := f.begin("close", true); err != nil {
		return err
	}
	f.closed = true
	return nil
}

// writeAt changes the file and marks the blocks.
func (n *inode) writeAt(p []byte, at int) {
	end := at + len(p)
	if end > len(n.data) {
		n.resize(end)
	}
	copy(n.data[at:], p)
	n.mark(at, end)
	n.mtime = time.Now()
}

func (n *inode) resize(size int) {
	old := len(n.data)
	switch {
	case size < old:
		// A copy, so that whoever grows it again finds zeros.
		n.data = append(make([]byte, 0, size), n.data[:size]...)
	case size <= cap(n.data):
		n.data = n.data[:size]
	default:
		grown := make([]byte, size, max(size, 2*old))
		copy(grown, n.data)
		n.data = grown
	}
	n.mark(min(old, size), max(old, size))
	n.mtime = time.Now()
}

func (n *inode) mark(from, to int) {
	for b := from / blockSize; b*blockSize < to; b++ {
		n.dirty[b] = true
	}
}

func (n *inode) sync() {
	n.durableData = append([]byte(nil), n.data...)
	clear(n.dirty)
}

// info describes the inode as it is now.
func (n *inode) info(name string) fs.FileInfo {
	i := memInfo{name: name, size: int64(len(n.data)), mode: n.perm, mtime: n.mtime}
	if n.dir {
		i.mode |= fs.ModeDir
	}
	return i
}

type memInfo struct {
	name  string
	size  int64
	mode  fs.FileMode
	mtime time.Time
}

func (i memInfo) Name() string       { return i.name }
func (i memInfo) Size() int64        { return i.size }
func (i memInfo) Mode() fs.FileMode  { return i.mode }
func (i memInfo) ModTime() time.Time { return i.mtime }
func (i memInfo) IsDir() bool        { return i.mode.IsDir() }
func (i memInfo) Sys() any           { return nil }
