package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/elastic/agree"
	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// rank is one process; simShim.mu guards it.
type rank struct {
	s      *simShim
	a      *attempt
	spec   wire.RankSpec
	pid    int64
	step   int64 // newest published
	at     time.Time
	stepAt int64 // when
	calls  uint64
	agree  agree.Rank
	pace   agree.Pace
	ended  bool
	told   bool
	proc   *proc
	cancel context.CancelFunc
}

// start makes the process. s.mu is held.
func (r *rank) start() {
	s, a := r.s, r.a
	ctx, cancel := context.WithCancel(s.n.c.ctx)
	r.pid, r.cancel, r.ended = int64(s.n.nextPID()), cancel, false
	r.proc = &proc{
		node: s.n.ID, boot: s.n.boot(), alloc: s.cfg.Alloc, job: s.cfg.Job, run: s.cfg.Run,
		gen: a.spec.Generation, rank: r.spec.Rank, class: s.class, limits: s.cfg.Limits, devices: s.cfg.Devices,
		whole: s.n.c.wholeDevices(s.cfg.Job),
	}
	s.n.c.Hosts.start(r.proc)
	w := s.n.c.world(a.spec.Generation, a.spec.World)
	w.join(r.spec.Rank)
	s.n.c.spawn(func() { r.run(ctx, w) })
}

// kill ends the process from outside; x is what its shim saw, nil if there is none.
// s.mu is held.
func (r *rank) kill(x *wire.RankExit) {
	if r.ended {
		return
	}
	r.ended = true
	r.cancel()
	r.s.n.c.Hosts.end(r.proc)
	r.s.n.c.world(r.a.spec.Generation, r.a.spec.World).leave(r.spec.Rank, false)
	if x != nil {
		r.s.exited(r, *x)
	}
}

// exit is the process's own end.
func (r *rank) exit(code int64, message string) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.ended {
		return
	}
	r.ended = true
	r.cancel()
	r.s.n.c.Hosts.end(r.proc)
	r.s.n.c.world(r.a.spec.Generation, r.a.spec.World).leave(r.spec.Rank, code == 0)
	x := wire.RankExit{Code: code, Message: message}
	if code != 0 {
		x.Traceback = fmt.Sprintf("Traceback: step %d\n%s", r.step, message)
	}
	r.s.exited(r, x)
	r.s.leave()
}

// run is the program: wait for the restore step, then step after step with all other
// ranks of the generation, saving where the policy says.
func (r *rank) run(ctx context.Context, w *world) {
	a, script := r.a, r.a.script
	select {
	case <-a.verified:
	case <-ctx.Done():
		return
	}
	from := int64(0)
	if rs := a.spec.Restore; rs != nil {
		from = rs.Step
		got, err := readStep(r.s.n.disk(), rs.Dir, r.spec.Rank)
		if errors.Is(err, fs.ErrNotExist) {
			got, err = readStep(r.s.n.disk(), rs.Dir, 0) // fewer ranks have saved it than there are now
		}
		if err != nil || got != from {
			r.exit(1, fmt.Sprintf("RuntimeError: cannot load step %d: %d, %v", from, got, err))
			return
		}
	}
	for step := from + 1; step <= script.Steps; step++ {
		if code, dies := script.death(a.spec.Number, r.spec.Rank, step); dies {
			r.exit(code, fmt.Sprintf("ValueError: bad batch at step %d", step))
			return
		}
		if !pause(ctx, script.StepTime) {
			return
		}
		if !w.reach(ctx, r.spec.Rank, step) {
			if ctx.Err() != nil {
				return
			}
			if script.Silent {
				<-ctx.Done()
				return
			}
			if pause(ctx, 20*time.Millisecond) {
				r.exit(1, "RuntimeError: Connection reset by peer")
			}
			return
		}
		r.s.mu.Lock()
		r.step, r.stepAt, r.at = step, time.Now().UnixNano(), time.Now()
		r.s.mu.Unlock()
		w.advance()
		move := agree.Go
		if !script.Deaf {
			var ok bool
			if move, ok = r.shouldCheckpoint(ctx.Done(), step); !ok {
				return
			}
		}
		if move != agree.Go || checkpoint.ShouldCheckpoint(step, a.spec.Checkpoint.EverySteps) {
			fate, err := r.save(step)
			if err != nil {
				r.exit(1, "OSError: "+err.Error())
				return
			}
			// A save is over when its fate is known, committed or not.
			select {
			case <-fate.done:
			case <-ctx.Done():
				return
			}
			r.s.mu.Lock()
			if move == agree.SaveAndEnd && !fate.committed {
				move = agree.SaveNow
				r.agree.CallOff()
			}
			r.s.mu.Unlock()
			r.s.n.c.acted(a.spec.Generation, r.spec.Rank, step, move)
		}
		if move == agree.SaveAndEnd {
			break // should_stop
		}
	}
	r.exit(script.Exit, "")
}

func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// save writes the rank's state of a step, durably, and hands the report to the shim.
// Its channel closes when the step's fate is known.
func (r *rank) save(step int64) (*fate, error) {
	s, spec := r.s, &r.a.spec
	dir := checkpoint.StepDir(spec.Checkpoint.Store, s.cfg.Run, checkpoint.StepName{
		Step: step, Generation: spec.Generation, Life: spec.Checkpoint.Life,
	})
	own := path.Join(dir, checkpoint.RankDir(r.spec.Rank))
	file := path.Join(own, "model.bin")
	fs := s.n.disk()
	if err := fs.MkdirAll(own, 0o755); err != nil {
		return nil, fmt.Errorf("save step %d: %w", step, err)
	}
	f, err := fs.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("save step %d: %w", step, err)
	}
	_, err = fmt.Fprintf(f, "step %d rank %d of %s\n", step, r.spec.Rank, s.cfg.Run)
	if err == nil {
		err = f.Sync()
	}
	f.Close()
	if err == nil {
		err = checkpoint.SyncTree(context.Background(), fs, spec.Checkpoint.Store, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("save step %d: %w", step, err)
	}
	digest, length, err := checkpoint.HashFile(context.Background(), fs, file)
	if err != nil {
		return nil, fmt.Errorf("save step %d: %w", step, err)
	}
	p := &wire.Prepared{
		Alloc: s.cfg.Alloc, Run: s.cfg.Run, Generation: spec.Generation, Step: step, Rank: r.spec.Rank,
		World: spec.World, Dir: dir,
		Files: []wire.PreparedFile{{Path: path.Join(checkpoint.RankDir(r.spec.Rank), "model.bin"), Length: length, Digest: digest, Part: "model"}},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	decided := s.fate(spec.Generation, step)
	if s.dead || r.ended {
		return decided, nil
	}
	s.n.c.Hosts.wrote(*p)
	s.prepare(p)
	return decided, nil
}

// readStep reads back which step a rank's file holds (I22).
func readStep(fs disk.FS, dir string, rank int64) (int64, error) {
	f, err := fs.OpenFile(path.Join(dir, checkpoint.RankDir(rank), "model.bin"), os.O_RDONLY, 0)
	if err != nil {
		return -1, fmt.Errorf("load: %w", err)
	}
	defer f.Close()
	var step, of int64
	if _, err := fmt.Fscanf(f, "step %d rank %d", &step, &of); err != nil {
		return -1, fmt.Errorf("load: %w", err)
	}
	return step, nil
}

// world is the collective of one generation: nobody goes on before everybody has come.
type world struct {
	mu     sync.Mutex
	size   int64
	at     map[int64]int64
	done   map[int64]bool
	broken bool
	news   chan struct{}
	// advanced is when a rank has published a step last.
	advanced time.Time
}

func (c *Cluster) world(gen uint64, size int64) *world {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.worlds[gen]
	if w == nil {
		w = &world{size: size, at: map[int64]int64{}, done: map[int64]bool{}, news: make(chan struct{})}
		c.worlds[gen] = w
	}
	return w
}

func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.news)
	w.news = make(chan struct{})
}

func (w *world) advance() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.advanced = time.Now()
}

// still is how long no rank has published a step; ever: one has at all.
func (w *world) still() (d time.Duration, ever bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.advanced), !w.advanced.IsZero()
}

func (w *world) join(rank int64) { w.change(func() { w.at[rank] = -1 }) }

func (w *world) leave(rank int64, clean bool) {
	w.change(func() {
		w.done[rank] = true
		w.broken = w.broken || !clean
	})
}

// reach waits until every rank has come to the step; false when one never will.
func (w *world) reach(ctx context.Context, rank, step int64) bool {
	w.change(func() { w.at[rank] = step })
	for {
		w.mu.Lock()
		all, broken, news := int64(len(w.at)) == w.size, w.broken, w.news
		for _, at := range w.at {
			all = all && at >= step
		}
		w.mu.Unlock()
		if all {
			return true
		}
		if broken {
			return false
		}
		select {
		case <-news:
		case <-ctx.Done():
			return false
		}
	}
}
