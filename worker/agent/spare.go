package agent

import (
	"context"
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
	"github.com/troupe-runtime/troupe/worker/warm"
)

const (
	spareFolder = "spare"
	spareIdle   = 10 * time.Minute // after which a spare's memory is given back
	spareLimit  = 30 * time.Second // that a job waits for one that is importing
	spareWait   = 5 * time.Second  // until one that was given up has ended
)

// spares keeps one warm forkserver at most for the next job, of the kind that the newest
// ended one had.
type spares struct {
	a    *Agent
	argv []string // the shim's program

	mu  sync.Mutex
	cur *shim.Spare
	// ordered is what the head wants one for, whatever ended last; nil: nothing.
	ordered *warm.Spec
	useless bool               // the one that was ordered could not be brought up
	idle    context.CancelFunc // of cur's time
	closed  bool
	wg      sync.WaitGroup
}

// spareOf is what a spare for a job like this one would hold; nil when there can be none.
func (x *alloc) spareOf(at *wire.AttemptSpec, launchEnv []string) *warm.Spec {
	if x.a.spares == nil || at == nil {
		return nil
	}
	sp, ok := shim.AttemptSpec(&x.cfg, at, launchEnv)
	if !ok {
		return nil
	}
	return &sp
}

// takeSpare returns the spare if it fits what an allocation is to run.
func (x *alloc) takeSpare(ctx context.Context, want *wire.Alloc) *shim.Spare {
	at := want.Attempt
	if x.a.spares == nil || at == nil || at.Package != "" {
		return nil
	}
	x.a.mu.Lock()
	env, ok := x.a.env.get(at.LaunchEnv)
	x.a.mu.Unlock()
	if at.LaunchEnv != "" && !ok {
		return nil
	}
	sp := x.spareOf(at, env)
	if sp == nil {
		return nil
	}
	// One that is still importing what this job needs is ready sooner than another would be.
	if c := x.a.spares.coming(sp); c != nil {
		x.awaitSpare(ctx, c)
	}
	return x.a.spares.take(sp)
}

// awaitSpare returns when a spare is ready, or the allocation is not wanted any more.
func (x *alloc) awaitSpare(ctx context.Context, c *shim.Spare) {
	limit := x.a.Clock.NewTimer(spareLimit)
	defer limit.Stop()
	defer wake(x.wake) // what was heard here others have to hear
	for {
		x.a.mu.Lock()
		wanted := x.want != nil && x.want.Stop == nil
		x.a.mu.Unlock()
		if !wanted {
			return
		}
		select {
		case <-c.Ready():
			return
		case <-x.wake:
		case <-limit.C():
			return
		case <-ctx.Done():
			return
		}
	}
}

// coming returns the spare if it fits, as far as is known before it is ready.
func (s *spares) coming(sp *warm.Spec) *shim.Spare {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur == nil || over(s.cur) || s.cur.Spec.Differs(sp, nil) != "" {
		return nil
	}
	return s.cur
}

func (a *Agent) warmConfig(tenant string) *shim.WarmConfig {
	if a.Warm == "" {
		return nil
	}
	return &shim.WarmConfig{Hook: a.Warm, Store: filepath.Join(a.StateDir, warmFile), Tenant: tenant}
}

// want has a spare for the next job like one that has ended. What is there and fits stays.
func (s *spares) want(sp *warm.Spec) {
	store := warm.NewStore(filepath.Join(s.a.StateDir, warmFile))
	if l := store.Get(sp.Program, sp.Name()); !l.Worked {
		return // its ranks were not forked either
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.ordered != nil {
		return
	}
	s.haveLocked(sp)
}

// follow has a spare for the ranks of a job that holds this node as a spare one, for as
// long as it does.
func (s *spares) follow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.a.mu.Lock()
	o := s.a.warmOrder
	s.a.mu.Unlock()
	sp := s.specOf(o)
	switch {
	case s.closed || sp == nil && s.ordered == nil:
		return
	case sp == nil:
		if s.ordered = nil; s.cur != nil {
			s.startIdle()
		}
		return
	case s.ordered != nil && s.ordered.Differs(sp, nil) == "" && (s.useless || s.cur != nil && !over(s.cur)):
		return
	}
	s.ordered, s.useless = sp, false
	s.haveLocked(sp)
}

// specOf is what an order asks for; nil where ranks like those would not be forked.
func (s *spares) specOf(o *wire.WarmOrder) *warm.Spec {
	if o == nil {
		return nil
	}
	s.a.mu.Lock()
	env, ok := s.a.env.get(o.Attempt.LaunchEnv)
	s.a.mu.Unlock()
	if o.Attempt.LaunchEnv != "" && !ok {
		return nil
	}
	cfg := shim.Config{Job: o.Job, Run: o.Run, Devices: o.Devices, Warm: s.a.warmConfig(o.Tenant)}
	sp, ok := shim.AttemptSpec(&cfg, &o.Attempt, env)
	if !ok || warm.Threads(sp.Env) != "" && runtime.NumCPU() > 1 {
		return nil
	}
	l := warm.NewStore(filepath.Join(s.a.StateDir, warmFile)).Get(sp.Program, sp.Name())
	if !l.Torch && !warm.Mentions(sp.Command.Script, sp.Dir) {
		return nil
	}
	return &sp
}

// haveLocked starts a spare unless one is there that fits. s.mu is held.
func (s *spares) haveLocked(sp *warm.Spec) {
	if s.cur != nil && s.cur.Err() == nil && s.cur.Spec.Differs(sp, nil) == "" && !over(s.cur) {
		s.startIdle()
		return
	}
	s.dropLocked()
	var mark [16]byte
	if err := s.a.Random(mark[:]); err != nil {
		return
	}
	id := "spare-" + hex.EncodeToString(mark[:4])
	cfg := shim.Config{
		Version: shim.ProtocolVersion, Alloc: id, Node: s.a.NodeID, Dir: filepath.Join(s.a.StateDir, spareFolder, id),
		SocketDir: filepath.Join(s.a.SocketRoot, shortName(id)), Cookie: hex.EncodeToString(mark[:]), Binary: s.a.Binary,
		Orphan: unit.Duration(time.Minute), Warm: s.a.warmConfig(sp.Tenant),
	}
	c, err := shim.StartSpare(s.argv[0], s.argv[1:], cfg, sp)
	if err != nil {
		s.a.Logger.Warn("a spare forkserver could not be started", "err", err)
		os.RemoveAll(cfg.Dir)
		return
	}
	s.cur = c
	s.startIdle()
	s.wg.Go(func() {
		select {
		case <-c.Ready():
		case <-c.Ended:
		}
		if err := c.Err(); err != nil {
			s.a.Logger.Warn("a spare forkserver is of no use", "err", err)
			s.mu.Lock()
			s.useless = s.useless || s.cur == c
			s.mu.Unlock()
		} else if !over(c) {
			s.a.Logger.Info("a spare forkserver is ready", "script", sp.Name(), "memory", c.RSS())
		}
		<-c.Ended
		s.clear(c)
	})
}

func over(c *shim.Spare) bool {
	select {
	case <-c.Ended:
		return true
	default:
		return false
	}
}

// startIdle begins the time after which the current spare is given up. s.mu is held.
func (s *spares) startIdle() {
	if s.idle != nil {
		s.idle()
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := s.cur
	s.idle = cancel
	if s.ordered != nil {
		return
	}
	t := s.a.Clock.NewTimer(spareIdle)
	s.wg.Go(func() {
		defer t.Stop()
		select {
		case <-ctx.Done():
		case <-c.Ended:
		case <-t.C():
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.cur == c && ctx.Err() == nil {
				s.a.Logger.Info("a spare forkserver was idle for long and is given up")
				s.dropLocked()
			}
		}
	})
}

// take returns the spare if it can start a job's ranks, for its shim to become that of an
// allocation; nil if there is none.
func (s *spares) take(sp *warm.Spec) *shim.Spare {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur == nil || over(s.cur) {
		return nil
	}
	if why := s.cur.Fits(sp); why != "" {
		s.a.Logger.Debug("the spare forkserver does not fit", "why", why)
		return nil
	}
	c := s.cur
	s.cur = nil
	s.idle()
	return c
}

// dropLocked gives the current spare up. s.mu is held.
func (s *spares) dropLocked() {
	if s.cur != nil {
		s.idle()
		s.cur.Close()
		s.cur = nil
	}
}

// close ends the spare and waits until it has, for a while.
func (s *spares) close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.closed = true
	c := s.cur
	s.dropLocked()
	s.mu.Unlock()
	if c == nil {
		return
	}
	select {
	case <-c.Ended:
	case <-time.After(spareWait):
		_ = c.Process.Kill() // what it leaves is swept
		<-c.Ended
	}
	s.wg.Wait()
}

func (s *spares) clear(c *shim.Spare) {
	if err := c.Clear(); err != nil {
		s.a.Logger.Warn("what a spare forkserver left", "dir", c.Dir(), "err", err)
	}
}

// adopt makes a spare the shim of an allocation. After an error the spare has ended.
func (s *spares) adopt(ctx context.Context, c *shim.Spare, cfg shim.Config) (Shim, error) {
	defer c.Close()
	err := c.Adopt(cfg)
	if err == nil {
		var sh Shim
		if sh, err = dialNew(ctx, cfg, c.Ended, c.Process.Kill); err == nil {
			s.wg.Go(func() { s.clear(c) })
			return sh, nil
		}
	}
	_ = c.Process.Kill()
	<-c.Ended
	return nil, err
}

// sweepSpares ends what spares of a former life of this agent have left.
func (a *Agent) sweepSpares(ctx context.Context) {
	folder := filepath.Join(a.StateDir, spareFolder)
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		dir := filepath.Join(folder, e.Name())
		res, _, err := shim.Sweep(ctx, dir)
		if err == nil {
			err = res.Error()
		}
		if err != nil {
			a.Logger.Warn("a spare forkserver of a former life", "dir", dir, "err", err)
		}
		os.RemoveAll(dir)
	}
}
