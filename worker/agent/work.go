package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/pack"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// workFolder is the allocation's own copy of its job's package, in the allocation's folder:
// its ranks may write there, and it goes with the allocation.
const workFolder = "work"

// work is how far that copy is; Agent.mu guards it.
type work struct {
	ready  bool
	busy   bool
	fetch  *fetch // while it is being fetched
	err    error  // of the newest try
	failed uint64 // the generation that is told so
	cancel context.CancelFunc
	over   chan struct{} // of the newest try
}

func (x *alloc) workDir() string { return filepath.Join(x.dir(), workFolder) }

// inPackage is the start of an attempt of a job with a package, in the copy here. ok is
// false while that is being made; a failure is the start's. Agent.mu is held.
func (x *alloc) inPackage(at *wire.AttemptSpec) (m shim.AgentMessage, ok bool) {
	w := &x.work
	switch {
	case at.WorkingDir != "" && !filepath.IsLocal(at.WorkingDir):
		return failedStart(at, fmt.Sprintf("the working folder %q is not below the root of the package", clip(at.WorkingDir))), true
	case w.ready:
		c := *at
		c.WorkingDir = filepath.Join(x.workDir(), at.WorkingDir)
		return shim.AgentMessage{Type: "start", Attempt: &c}, true
	case x.want.Stop != nil:
		// No failure of this node: it must not be taken for what ended the attempt.
		m = failedStart(at, "")
		m.Dropped = "it was to end before its package was here"
		return m, true
	case w.err != nil && w.failed == at.Generation:
		return failedStart(at, fmt.Sprintf("package %.12s of the job did not come to node %s: %v", at.Package, x.a.Name, w.err)), true
	case !w.busy:
		ctx, cancel := context.WithCancel(x.ctx)
		w.busy, w.err, w.failed, w.cancel, w.over = true, nil, at.Generation, cancel, make(chan struct{})
		hash, over := at.Package, w.over
		x.a.spawnLocked(func() {
			defer close(over)
			defer cancel()
			x.makeWork(ctx, hash)
		})
	default:
		w.failed = at.Generation // what comes of it is for the newest
	}
	return m, false
}

// makeWork fetches and unpacks the package.
func (x *alloc) makeWork(ctx context.Context, hash string) {
	err := x.fetchWork(ctx, hash)
	x.a.mu.Lock()
	if err != nil && ctx.Err() != nil {
		// The agent ends, and the next one tries again, or the allocation is gone: neither
		// is a failed start, which the shim would be told of otherwise.
		x.work.fetch = nil
		x.a.mu.Unlock()
		return
	}
	x.work.busy, x.work.fetch, x.work.ready, x.work.err = false, nil, err == nil, err
	x.a.mu.Unlock()
	if err != nil {
		x.a.Logger.Warn("the package of a job could not be made ready", "alloc", x.id, "package", hash, "err", err)
	}
	wake(x.wake)
	wake(x.a.wakeSession)
}

func (x *alloc) fetchWork(ctx context.Context, hash string) error {
	if _, err := os.Lstat(x.workDir()); err == nil {
		return nil // of a former life of the agent: it is only ever there whole
	}
	for again := true; ; again = false {
		f := x.a.packages.start(x.a.ctx, hash)
		x.a.mu.Lock()
		x.work.fetch = f
		x.a.mu.Unlock()
		wake(x.a.wakeSession)
		select {
		case <-f.over:
		case <-ctx.Done():
			return ctx.Err()
		}
		if f.err != nil {
			return f.err
		}
		err := x.a.packages.unpack(ctx, hash, x.workDir())
		if again && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, pack.ErrDamaged)) {
			continue // swept, or found damaged, since it came
		}
		return err
	}
}

// endWork ends what is still being made for an allocation that is gone, and returns when
// nothing more will appear in its folder.
func (x *alloc) endWork() {
	x.a.mu.Lock()
	cancel, over := x.work.cancel, x.work.over
	x.a.mu.Unlock()
	if cancel != nil {
		cancel()
		select {
		case <-over:
		case <-x.ctx.Done():
		}
	}
}

// checkWait is how long a question about a start waits for a package before it is answered
// that it is on its way.
const checkWait = 500 * time.Millisecond

// noFolderCode is what a shell exits with for a folder that is no good.
const noFolderCode = 126

// checkInPackage answers a question about a start in a package.
func (a *Agent) checkInPackage(c *wire.StartCheck, check func(dir string) (code int64, err error)) wire.StartCheckReply {
	ctx := a.ctx
	if c.WorkingDir != "" && !filepath.IsLocal(c.WorkingDir) {
		return wire.StartCheckReply{Error: fmt.Sprintf("the working folder %q is not below the root of the package", clip(c.WorkingDir)), Code: noFolderCode}
	}
	f := a.packages.start(ctx, c.Package)
	limit := a.Clock.NewTimer(checkWait)
	defer limit.Stop()
	select {
	case <-f.over:
	case <-limit.C():
		return wire.StartCheckReply{Fetch: f.progress()}
	case <-ctx.Done():
		return wire.StartCheckReply{}
	}
	var reply wire.StartCheckReply
	err := f.err
	if err == nil {
		err = a.packages.look(ctx, c.Package, func(dir string) error {
			if code, err := check(filepath.Join(dir, c.WorkingDir)); err != nil {
				text := strings.ReplaceAll(err.Error(), dir, "the package: .")
				reply = wire.StartCheckReply{Error: clip(text), Code: code}
			}
			return nil
		})
	}
	if err != nil {
		// The attempt finds out again and fails by it: that is the machine's doing, and
		// counted and tried again as such.
		a.Logger.Warn("the package of a job is not here to be looked into", "job", c.Job, "package", clip(c.Package), "err", err)
	}
	return reply
}
