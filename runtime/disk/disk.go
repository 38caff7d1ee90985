// Package disk is the file system as the project sees it: a narrow interface with
// the real disk, a disk in memory that can lose its power, and a wrapper that makes
// either fail. What outlives a crash is decided with it: state files, snapshots and
// checkpoint manifests are written through it, by the two helpers WriteFileAtomic
// and WriteFileCreateOnly. What the files mean lives with their owners.
package disk

import (
	"io"
	"io/fs"
)

// File is an open file. A File is not safe for use by several goroutines, except
// ReadAt.
type File interface {
	io.Reader
	io.ReaderAt
	io.Writer
	io.Closer
	// Sync makes content and length durable, not the name: see FS.SyncDir.
	Sync() error
	Stat() (fs.FileInfo, error)
	Name() string
}

// FS is a file system. Names are slash-separated. Errors are *fs.PathError or
// *os.LinkError and match fs.ErrNotExist, fs.ErrExist and errno values.
type FS interface {
	// OpenFile takes the flags of package os, and syscall.O_NOFOLLOW and O_NONBLOCK.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Rename replaces newname if it is a file. It is atomic, and durable after
	// SyncDir of the folders.
	Rename(oldname, newname string) error
	// Link gives a file a second name; fs.ErrExist if newname is taken.
	Link(oldname, newname string) error
	Remove(name string) error
	// RemoveAll removes a tree without following links; nothing there is no error.
	RemoveAll(name string) error
	MkdirAll(name string, perm fs.FileMode) error
	Stat(name string) (fs.FileInfo, error)
	Lstat(name string) (fs.FileInfo, error)
	// ReadDir lists a folder by name.
	ReadDir(name string) ([]fs.DirEntry, error)
	// SyncDir makes the names in a folder durable.
	SyncDir(name string) error
}
