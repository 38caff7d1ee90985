package agent

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/elastic/checkpoint/store"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// Folders and files of the state folder.
const (
	allocFolder = "alloc"
	lockFile    = "agent.lock"
	accessFile  = "shim-bus.json" // 0600: how shims reach the bus by themselves
	warmFile    = "warm.json"     // what was learned of scripts
	noticeFile  = "notice.json"   // that this node is about to be taken away
)

// Agent is one node's agent.
type Agent struct {
	Options
	session string // random for each start
	stores  checkpoint.Opener
	started int64  // above that of every earlier start on the state folder
	refusal string // of the newest registration; of keepSession
	ownPort bool   // Ports was made here
	lock    *os.File
	once    sync.Once
	wg      sync.WaitGroup

	wakeSession, wakeReport, wakeFetch    chan struct{}
	wakeNotice, wakeMarks                 chan struct{}
	tasks, workers, logs, prepares, beats chan struct{} // bounds of work that is under way

	mu         sync.Mutex
	stopped    bool // Run is over: nothing is started any more
	allocs     map[string]*alloc
	newest     wire.Position // of desired state
	life       string
	lease      lease
	open       bool // the head knows this session
	ending     bool // EndAll was called
	restarting bool // AnnounceRestart was called
	seq        uint64
	portsUsed  atomic.Int64 // since the last heartbeat
	pruned     atomic.Int64 // allocations that were forgotten
	gpus       []api.GPU
	gpusTold   bool
	preparing  map[prepareKey]bool
	env        envs
	launches   launches
	notices    notices
	leaving    leaving
	marks      []string // of ended allocations, to be searched for

	spares    *spares         // nil without warm starts
	warmOrder *wire.WarmOrder // what the head wants a spare for
	packages  *packages
	ctx       context.Context //nolint:containedctx // of Run
}

// lease is what the newest acknowledged heartbeat granted, in boot time.
type lease struct {
	sent           time.Duration // when that heartbeat was sent; 0: none was acknowledged
	length, orphan time.Duration
}

func (l lease) valid(now time.Duration) bool { return l.sent > 0 && now < l.sent+l.length }

// New locks the state folder and makes an agent that does nothing until Run. The
// error wraps ErrLocked when another agent uses the folder.
func New(o Options) (*Agent, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	for _, dir := range []string{o.StateDir, filepath.Join(o.StateDir, allocFolder), o.SocketRoot} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the agent's folders: %w", err)
		}
	}
	lock, err := lockState(o.StateDir)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		Options: o, lock: lock, allocs: map[string]*alloc{}, preparing: map[prepareKey]bool{},
		wakeSession: make(chan struct{}, 1), wakeReport: make(chan struct{}, 1), wakeFetch: make(chan struct{}, 1),
		wakeNotice: make(chan struct{}, 1), wakeMarks: make(chan struct{}, 1),
		tasks: make(chan struct{}, maxTasks), workers: make(chan struct{}, maxWorkers), logs: make(chan struct{}, maxLogs),
		prepares: make(chan struct{}, maxPrepares), beats: make(chan struct{}, maxBeats),
	}
	if l, ok := a.Launcher.(launcher); ok && a.Warm != "" {
		a.spares = &spares{a: a, argv: l.argv}
	}
	if err := a.prepare(); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

func (a *Agent) prepare() error {
	if err := keepNodeID(a.StateDir, a.NodeID); err != nil {
		return err
	}
	var b [8]byte
	if err := a.Random(b[:]); err != nil {
		return fmt.Errorf("draw a session: %w", err)
	}
	a.session = "s" + hex.EncodeToString(b[:])
	a.readNotices()
	if err := a.openPackages(); err != nil {
		return err
	}
	a.stores = store.New(a.Disk, a.session).Open
	var err error
	if a.started, err = nextStart(a.StateDir, a.Clock.Now().UnixNano()); err != nil {
		return err
	}
	if a.ShimAccess != nil {
		if err := shim.WriteAccess(a.accessPath(), *a.ShimAccess); err != nil {
			return err
		}
	}
	if a.Ports == nil {
		p, err := HoldPorts(a.Address)
		if err != nil {
			return err
		}
		a.Ports, a.ownPort = p, true
	}
	return nil
}

// lockState keeps a second agent off the folder for as long as this process lives.
func lockState(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s; stop that one or choose another folder", ErrLocked, dir)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// Close releases what New took. Run does so by itself. Shims and ranks go on.
func (a *Agent) Close() {
	a.once.Do(func() {
		if a.ownPort {
			a.Ports.Close()
		}
		a.lock.Close()
	})
}

// Run serves until ctx ends. First it finds the shims of a former life and sweeps
// what has none (P6), then it registers and never gives up. When it returns, its
// shims and their ranks run on, and a new agent finds them.
func (a *Agent) Run(ctx context.Context) error {
	defer a.Close()
	ctx, cancel := context.WithCancel(ctx)
	a.ctx = ctx
	defer a.stop(cancel)
	defer a.spares.close()
	a.sweepSpares(ctx)
	if err := a.recover(ctx); err != nil {
		return err
	}
	if !a.NoSocket {
		l, err := listenLocal(a.StateDir)
		if err != nil {
			return err
		}
		defer l.Close()
		a.spawn(func() { a.serveLocal(ctx, l) })
		context.AfterFunc(ctx, func() { l.Close() })
	}
	a.readGPUs(ctx)
	a.Bus.OnChange(func(up bool) {
		if up {
			wake(a.wakeSession)
			wake(a.wakeReport)
		}
	})
	unsubscribe, err := a.subscribe(ctx)
	defer unsubscribe()
	if err != nil {
		return err
	}
	for _, loop := range []func(context.Context){a.keepSession, a.keepReporting, a.keepFetching, a.keepGPUs, a.keepNotices, a.keepMarks} {
		a.spawn(func() { loop(ctx) })
	}
	<-ctx.Done()
	return nil
}

// spawn runs f beside the others unless the agent is stopping; stop waits for it.
func (a *Agent) spawn(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.spawnLocked(f)
}

func (a *Agent) spawnLocked(f func()) {
	if !a.stopped {
		a.wg.Go(f)
	}
}

func (a *Agent) stop(cancel context.CancelFunc) {
	a.mu.Lock()
	a.stopped = true
	a.mu.Unlock()
	cancel()
	a.wg.Wait()
}

// EndAll ends every allocation of this node, whatever the head desires, and returns
// when nothing of them is left (P11). It is for a cluster that goes down with its
// agent; Run must be running. Shims leave without waiting for the head, which hears
// of the ends if it still listens. The error names what is left.
func (a *Agent) EndAll(ctx context.Context) error {
	a.mu.Lock()
	a.ending = true
	spares := a.spares
	for _, x := range a.allocs {
		x.desire(nil, a.newest)
	}
	a.mu.Unlock()
	spares.close()
	for {
		left := a.running()
		if len(left) == 0 {
			a.sweepMarks(ctx)
			return nil
		}
		if err := a.Clock.Sleep(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("allocations %v are not gone: %w", left, err)
		}
	}
}

func (a *Agent) running() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var left []string
	for id, x := range a.allocs {
		if !x.gone || !x.parted {
			left = append(left, id)
		}
	}
	slices.Sort(left)
	return left
}

// accessPath is the file of ShimAccess; "" if there is none.
func (a *Agent) accessPath() string {
	if a.ShimAccess == nil {
		return ""
	}
	return filepath.Join(a.StateDir, accessFile)
}

func (a *Agent) allocDir(id string) string { return filepath.Join(a.StateDir, allocFolder, id) }

func (a *Agent) outputDir(id string) string { return filepath.Join(a.allocDir(id), shim.OutputDir) }

// wake makes the one who waits on c look again.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
