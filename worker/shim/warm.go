package shim

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/warm"
)

const (
	// warmLimit is how long a first start waits for its forkserver before it goes without.
	warmLimit = 60 * time.Second
	// learnedFile is where a rank leaves what it imported.
	learnedFile = "warm-learned.json"
)

// WarmConfig lets a shim start ranks by fork; without it all are started by exec.
type WarmConfig struct {
	Hook  string `json:"hook"`            // folder of the forkserver's Python side
	Store string `json:"store,omitempty"` // file of what the node learned of scripts
	// Tenant is part of what one forkserver may serve.
	Tenant string `json:"tenant,omitempty"`
	// Run and Work name a script of a package: its copy lies in a folder of the allocation,
	// so its path is another one each time.
	Run  string `json:"run,omitempty"`
	Work string `json:"work,omitempty"`
}

// label is what a script of a package is remembered by, from job to job.
func (c *WarmConfig) label(a *wire.AttemptSpec, cmd *warm.Command, dir string) string {
	if a.Package == "" || c.Work == "" || cmd.Script == "" {
		return ""
	}
	rel, err := filepath.Rel(c.Work, cmd.Name(dir))
	if err != nil || !filepath.IsLocal(rel) {
		return "" // not of the package
	}
	return "run " + c.Run + ": " + rel
}

// warmth is the shim's forkserver, and when to have one. It may be used from any
// goroutine but the loop's; only one attempt is started at a time.
type warmth struct {
	cfg   *Config
	spawn *spawner
	store *warm.Store
	// tell makes a fallback known, once for each text.
	tell func(generation uint64, text string)

	mu     sync.Mutex
	cur    *forkserver
	told   map[string]bool
	closed bool
}

func newWarmth(cfg *Config, sp *spawner, tell func(uint64, string)) *warmth {
	w := &warmth{cfg: cfg, spawn: sp, tell: tell, told: map[string]bool{}, store: warm.NewStore("")}
	if cfg.Warm != nil {
		w.store = warm.NewStore(cfg.Warm.Store)
	}
	return w
}

// close ends the forkserver, and none is started again.
func (w *warmth) close() {
	w.mu.Lock()
	f := w.cur
	w.cur, w.closed = nil, true
	w.mu.Unlock()
	if f != nil {
		f.stop()
	}
	w.spawn.close()
}

// WarmSpec is what a forkserver for an attempt is started for; ok is false when the
// attempt's ranks are not to be forked, and why says so where that is worth telling.
func WarmSpec(cfg *WarmConfig, a *wire.AttemptSpec, argv, env []string) (sp warm.Spec, why string, ok bool) {
	if cfg == nil || cfg.Hook == "" || a.NoWarm || a.Actor != nil {
		return sp, "", false
	}
	cmd, why, ok := warm.Parse(argv)
	if !ok {
		return sp, why, false
	}
	if name := warm.Unfit(env); name != "" {
		return sp, "the variable " + name + " needs an interpreter of its own", false
	}
	dir := orElse(a.WorkingDir, "/")
	program, err := lookPathIn(dir, argv, env)
	if err != nil {
		return sp, "", false // exec says what is wrong with it
	}
	if cmd.Script != "" {
		// A folder or an archive is a program too, but its path is looked up elsewhere.
		st, err := os.Stat(within(dir, cmd.Script))
		if err != nil || !st.Mode().IsRegular() || filepath.Ext(cmd.Script) == ".pyc" {
			return sp, "", false
		}
	}
	return warm.Spec{
		Tenant: cfg.Tenant, UID: os.Getuid(), Program: program, Command: cmd, Dir: dir, Env: env, Label: cfg.label(a, &cmd, dir),
	}, "", true
}

// within is a path as seen from a folder.
func within(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// start starts the ranks of an attempt by fork if that is possible, else by exec.
func (w *warmth) start(a *attempt, specs []initSpec, dirs []string) ([]*started, error) {
	sp, why, ok := WarmSpec(w.cfg.Warm, &a.spec, specs[0].Argv, specs[0].Env)
	if !ok {
		if why != "" {
			w.fallback(a, why)
		}
		return startRanks(w.spawn.rip, w.cfg.Cookie, specs, dirs)
	}
	for i := range specs {
		specs[i].Args = specs[i].Argv[len(specs[i].Argv)-len(sp.Command.Args):]
	}
	if a.ranks[0].spec.LocalRank == 0 {
		specs[0].Learn = filepath.Join(w.cfg.Dir, learnedFile)
		a.learn = func() { w.learn(&sp, specs[0].Learn) }
	}
	f, beside := w.choose(a, &sp)
	if f != nil {
		ranks, err := w.fork(a, f, specs)
		if err == nil {
			w.worked(&sp)
			a.forked = true
			return ranks, nil
		}
		if a.ctx.Err() != nil {
			return nil, errors.New("ended before the start")
		}
		if unusableCode(err) != 0 {
			return nil, err // the folder of the job; exec would say the same
		}
		w.fallback(a, err.Error())
		beside = !hopeless(err) && (f.stopped() || !f.alive())
	}
	ranks, err := startRanks(w.spawn.rip, w.cfg.Cookie, specs, dirs)
	switch {
	case err != nil:
	case beside:
		w.begin(&sp)
	case f == nil && w.forkable(&sp):
		a.observe = func() { w.observe(a, &sp, ranks[0].pid) }
	}
	return ranks, err
}

// fallback tells that ranks are started by exec, and why.
func (w *warmth) fallback(a *attempt, why string) {
	text := "ranks are started by exec, not from the warm forkserver: " + why
	w.mu.Lock()
	known := w.told[text]
	if len(w.told) < maxTold {
		w.told[text] = true
	}
	w.mu.Unlock()
	log.Print(text)
	if !known {
		w.tell(a.spec.Generation, text)
	}
}

const maxTold = 64

// choose returns the forkserver for a start, a new one if there is none and the script is
// known to need torch. beside: have one for the next start, for this one there is none.
func (w *warmth) choose(a *attempt, sp *warm.Spec) (f *forkserver, beside bool) {
	w.mu.Lock()
	f = w.cur
	w.mu.Unlock()
	if f != nil {
		why := f.spec.Differs(sp, f.reads())
		if why == "" {
			if hopeless(f.failed()) || f.failed() == nil && f.alive() {
				return f, false
			}
			w.drop(f)
			w.fallback(a, fmt.Sprintf("the forkserver ended (%s); another is being started", f.ending()))
			return nil, true
		}
		log.Printf("the forkserver is given up: %s", why)
		w.drop(f)
	}
	if !w.forkable(sp) {
		return nil, false
	}
	if l := w.store.Get(sp.Program, sp.Name()); l.Torch || warm.Mentions(sp.Command.Script, sp.Dir) {
		return w.begin(sp), false
	}
	return nil, false
}

// forkable reports whether an interpreter with this environment stays without threads.
func (w *warmth) forkable(sp *warm.Spec) bool {
	name := warm.Threads(sp.Env)
	if name != "" && runtime.NumCPU() > 1 {
		log.Printf("no forkserver for %s: numpy starts threads at import unless %s is 1", sp.Name(), name)
		return false
	}
	return true
}

// begin starts a forkserver that imports beside what runs; nil when the shim is ending.
func (w *warmth) begin(sp *warm.Spec) *forkserver {
	f := newForkserver(w, sp)
	w.mu.Lock()
	old := w.cur
	closed := w.closed
	if !closed {
		w.cur = f
	}
	w.mu.Unlock()
	if closed {
		return nil
	}
	if old != nil {
		old.stop()
	}
	go f.run()
	return f
}

func (w *warmth) drop(f *forkserver) {
	w.mu.Lock()
	if w.cur == f {
		w.cur = nil
	}
	w.mu.Unlock()
	f.stop()
}

// fork has a forkserver start the ranks, once it is ready.
func (w *warmth) fork(a *attempt, f *forkserver, specs []initSpec) ([]*started, error) {
	ctx, cancel := context.WithTimeout(a.ctx, warmLimit)
	defer cancel()
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	ranks, err := f.fork(specs)
	if err != nil && f.alive() && !errors.Is(err, warm.ErrRefused) && unusableCode(err) == 0 {
		w.drop(f) // what it did is not understood
	}
	if errors.Is(err, warm.ErrRefused) {
		// Its modules or its threads are not what they were: only another one helps.
		w.drop(f)
	}
	return ranks, err
}

// worked notes that ranks of a script were forked.
func (w *warmth) worked(sp *warm.Spec) {
	w.update(sp, func(l *warm.Learned) { l.Worked, l.Torch = true, true })
}

// learn takes over what a rank had imported at its first step, or at its end.
func (w *warmth) learn(sp *warm.Spec, path string) {
	names, err := warm.ReadModules(path)
	if err != nil {
		return // it was killed before its first step, or has said nothing since
	}
	os.Remove(path)
	w.update(sp, func(l *warm.Learned) {
		have := map[string]bool{}
		for _, n := range l.Modules {
			have[n] = true
		}
		for _, n := range names {
			if !have[n] {
				l.Modules = append(l.Modules, n)
			}
		}
	})
}

func (w *warmth) update(sp *warm.Spec, change func(*warm.Learned)) {
	if err := w.store.Update(sp.Program, sp.Name(), time.Now().Unix(), change); err != nil {
		log.Printf("warm start: %v", err)
	}
}

// observe looks whether a script that was started by exec loads torch after all, and has a
// forkserver for its next start then.
func (w *warmth) observe(a *attempt, sp *warm.Spec, pid int) {
	for _, after := range []time.Duration{2, 3, 5, 10, 20, 40} {
		select {
		case <-a.ctx.Done():
			return
		case <-time.After(after * time.Second):
		}
		if loadsTorch(pid) {
			w.update(sp, func(l *warm.Learned) { l.Torch = true })
			w.begin(sp)
			return
		}
	}
}
