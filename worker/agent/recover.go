package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/worker/shim"
)

const (
	endedFile = "ended.json"
	// keepOutputs is how many ended allocations' output a node keeps.
	keepOutputs = 200
	// recoverLimit is how long registration waits for what a former life left. What
	// takes longer (a process that does not die, a frozen shim) goes on beside it.
	recoverLimit = 15 * time.Second
)

// ended is left in the folder of an allocation that is gone.
type ended struct {
	Alloc string `json:"alloc"`
	Job   string `json:"job"`
	Seq   uint64 `json:"seq"`
}

func readEnded(dir string) (ended, bool) {
	var e ended
	b, err := os.ReadFile(filepath.Join(dir, endedFile))
	if err != nil || json.Unmarshal(b, &e) != nil {
		return ended{}, false
	}
	return e, true
}

// recover finds what a former life left: shims that live are attached, everything
// else is swept, before the head hears of this agent (P6).
func (a *Agent) recover(ctx context.Context) error {
	folder := filepath.Join(a.StateDir, allocFolder)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("look for allocations of a former life: %w", err)
	}
	var found []*alloc
	for _, e := range entries {
		dir := filepath.Join(folder, e.Name())
		if !e.IsDir() || !plain(e.Name()) {
			a.Logger.Warn("something that is no allocation is in the state folder", "path", dir)
			continue
		}
		if _, ok := readEnded(dir); ok {
			continue
		}
		if os.Remove(dir) == nil {
			continue // empty: nothing was started in it
		}
		x := a.newAlloc(e.Name())
		x.restored = true
		if x.cfg, err = shim.ReadConfig(filepath.Join(dir, shim.ConfigFile)); err != nil {
			// Without it the journal's groups are what is left to sweep with.
			a.Logger.Error("an allocation of a former life has no configuration", "alloc", x.id, "err", err)
			x.cfg = shim.Config{Alloc: x.id}
		}
		x.cfg.Dir = dir
		if x.cfg.SocketDir == "" {
			x.cfg.SocketDir = filepath.Join(a.SocketRoot, shortName(x.id))
		}
		x.status.Job = x.cfg.Job
		x.claim()
		found = append(found, x)
	}
	a.mu.Lock()
	for _, x := range found {
		a.allocs[x.id] = x
		a.spawnLocked(func() { x.run(ctx) })
	}
	a.mu.Unlock()
	limit := a.Clock.NewTimer(recoverLimit)
	defer limit.Stop()
	for _, x := range found {
		select {
		case <-x.settled:
		case <-limit.C():
			a.Logger.Error("what a former life left is not settled yet; registering all the same", "alloc", x.id)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if len(found) > 0 {
		a.Logger.Info("allocations of a former life", "found", len(found))
	}
	return nil
}

// forget removes what only a living allocation needs, once the head has acknowledged
// its end, and drops the allocation when the head does not name it any more. The
// output stays.
func (x *alloc) forget() bool {
	x.a.mu.Lock()
	heard := len(x.pending) == 0 && x.acked >= x.seq
	unwanted := x.known && x.want == nil
	e := ended{Alloc: x.id, Job: x.status.Job, Seq: x.seq}
	x.a.mu.Unlock()
	if !heard {
		return false
	}
	if _, done := readEnded(x.dir()); !done {
		if x.port != 0 {
			x.a.Ports.Release(x.port)
			x.port = 0
		}
		x.endWork()
		x.gatherMark()
		x.a.retire(x.dir(), x.cfg.SocketDir, e)
	}
	if !unwanted {
		return false
	}
	x.a.mu.Lock()
	delete(x.a.allocs, x.id)
	x.a.mu.Unlock()
	x.a.prune()
	return true
}

// retire turns an allocation's folder into a folder of output.
func (a *Agent) retire(dir, sockets string, e ended) {
	b, err := json.Marshal(e)
	if err == nil {
		if err = os.MkdirAll(dir, 0o700); err == nil {
			// In the file that the journal left behind, if there is one: what need not be made
			// anew is not.
			_ = os.Rename(filepath.Join(dir, shim.JournalFile+".tmp"), filepath.Join(dir, endedFile+".new"))
			err = writeWhole(filepath.Join(dir, endedFile), b)
		}
	}
	if err != nil {
		a.Logger.Warn("an ended allocation's folder could not be cleaned", "dir", dir, "err", err)
		return // the next life sweeps it again
	}
	entries, _ := os.ReadDir(dir)
	for _, f := range entries {
		if f.Name() != shim.OutputDir && f.Name() != endedFile {
			os.RemoveAll(filepath.Join(dir, f.Name()))
		}
	}
	// Only what lies in SocketRoot: the path comes from a file.
	if strings.HasPrefix(filepath.Clean(sockets), filepath.Clean(a.SocketRoot)+"/") {
		os.RemoveAll(sockets)
	}
}

// pruneEvery is how many allocations end until old output is looked for again: each look
// reads the whole folder.
const pruneEvery = keepOutputs / 8

// prune keeps the output of the newest keepOutputs ended allocations, and of a few more.
func (a *Agent) prune() {
	if a.pruned.Add(1)%pruneEvery != 1 {
		return
	}
	folder := filepath.Join(a.StateDir, allocFolder)
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) <= keepOutputs {
		return
	}
	type old struct {
		dir string
		at  time.Time
	}
	var olds []old
	for _, e := range entries {
		dir := filepath.Join(folder, e.Name())
		if st, err := os.Lstat(filepath.Join(dir, endedFile)); err == nil {
			olds = append(olds, old{dir, st.ModTime()})
		}
	}
	if len(olds) <= keepOutputs {
		return
	}
	slices.SortFunc(olds, func(p, q old) int { return p.at.Compare(q.at) })
	for _, o := range olds[:len(olds)-keepOutputs] {
		if err := os.RemoveAll(o.dir); err != nil {
			a.Logger.Warn("old output could not be removed", "dir", o.dir, "err", err)
		}
	}
}
