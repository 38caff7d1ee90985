package shim

import (
	"path/filepath"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Folders of an allocation that stand in for a store which ranks cannot reach by paths.
const (
	stagingDir = "staging" // what ranks write, until the saver has uploaded it
	restoreDir = "restore" // what the saver has downloaded for them
)

// remoteStore reports whether ranks need a local folder instead of the store's own.
func remoteStore(store string) bool { return strings.Contains(store, "://") }

// restoring is the step that the ranks of an attempt load, as they find it here.
type restoring struct {
	ready chan struct{} // closed when path may be read
	path  string
}

// newRestoring is ready at once unless the step has to be fetched first.
func newRestoring(r *wire.RestoreSpec) *restoring {
	out := &restoring{ready: make(chan struct{})}
	if r != nil {
		out.path = r.Dir
	}
	if r == nil || !remoteStore(r.Dir) {
		close(out.ready)
	}
	return out
}

// fetched tells where the step lies now; it belongs to the loop.
func (r *restoring) fetched(path string) {
	select {
	case <-r.ready:
	default:
		r.path = path
		close(r.ready)
	}
}

// storeFolders tells the saver where this allocation keeps what is on its way.
func (s *shim) storeFolders(req *SaverRequest) {
	req.Staging = filepath.Join(s.cfg.Dir, stagingDir)
	req.Restore = filepath.Join(s.cfg.Dir, restoreDir)
}
