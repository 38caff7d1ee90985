package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
)

// Main is the whole of a shim program: `troupe-shim <alloc dir>/shim.json`, also as
// the hidden command `troupe shim …` of the main binary, and the hidden modes that a
// shim runs of itself. It returns the exit code.
func Main(args []string) int {
	if len(args) > 0 && args[0] == "shim" {
		args = args[1:]
	}
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: troupe-shim <allocation directory>/shim.json (started by troupe itself)")
		return api.ExitUsage
	}
	switch args[0] {
	case modeMiddle:
		return middleMain(args[1:])
	case modeRankInit:
		return rankInitMain(args[1:])
	}
	var err error
	switch {
	case args[0] == modeSpare && len(args) == 2:
		err = spareMain(args[1])
	case args[0] == modeAdopt && len(args) == 4:
		_ = os.WriteFile("/proc/self/comm", []byte("troupe-shim"), 0) // an exec of /proc/self/exe is called "exe"
		err = shimMain(args[3], "", args[1], args[2])
	case len(args) == 2:
		err = shimMain(args[0], args[1])
	default:
		err = shimMain(args[0], "")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "troupe-shim: %v\n", err)
		return api.ExitOS
	}
	return api.ExitOK
}

func lockThread() { runtime.LockOSThread() }

// ReadConfig reads and checks shim.json.
func ReadConfig(path string) (Config, error) {
	var cfg Config
	b, err := os.ReadFile(path)
	if err != nil {
		return cfg, fmt.Errorf("read configuration: %w", err)
	}
	if err := json.Unmarshal(b, &cfg); err != nil {
		return cfg, fmt.Errorf("configuration %s: %w", path, err)
	}
	switch {
	case cfg.Version > ProtocolVersion:
		return cfg, fmt.Errorf("configuration %s has version %d, this build knows %d", path, cfg.Version, ProtocolVersion)
	case cfg.Alloc == "" || cfg.Cookie == "":
		return cfg, fmt.Errorf("configuration %s names no allocation or no cookie", path)
	case !filepath.IsAbs(cfg.Dir) || !filepath.IsAbs(cfg.SocketDir):
		return cfg, fmt.Errorf("configuration %s: dir and socketDir must be absolute", path)
	}
	return cfg, nil
}

// small makes the shim small on purpose: two threads of Go code, and a heap that is collected
// early once it is resident. A short job ends before the first collection, which would cost
// more than what it finds.
func small() {
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(24 << 20)
}

// ignoreSignals: the shim ends by its agent's word, its lease or SIGKILL; a terminal that
// closes or an operator's TERM to a whole session must not take the ranks along.
func ignoreSignals() {
	// Caught, not ignored: what is ignored stays so in the ranks.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGPIPE)
}

// shimMain serves the allocation whose configuration is at path. socket is the descriptor that
// agents are heard on; empty: it makes one. adopted are the descriptors that a spare has left,
// if this process was one.
func shimMain(path, socket string, adopted ...string) error {
	small()
	closeOnExec()
	log.SetPrefix("troupe-shim: ")

	cfg, err := ReadConfig(path)
	if err != nil {
		return err
	}
	s, err := newShim(cfg)
	if err != nil {
		return err
	}
	if s.agentL, err = agentListener(&cfg, socket); err != nil {
		return err
	}
	ignoreSignals()
	if len(adopted) == 2 {
		// What cannot be taken over is told and done without: ranks start by exec then.
		if h, c, err := inherit(adopted[0], adopted[1]); err != nil {
			log.Printf("the spare's forkserver cannot be taken over: %v", err)
		} else {
			s.warm.adopt(&h, c)
		}
	}
	s.idle = time.AfterFunc(idleAfter, stayResident)
	err = s.run()
	s.cleanUp()
	return err
}

func newShim(cfg Config) (*shim, error) {
	if _, err := unix.Setsid(); err != nil && err != unix.EPERM { // EPERM: is a leader already
		return nil, fmt.Errorf("start a session: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become a subreaper: %w", err)
	}
	if err := os.MkdirAll(cfg.SocketDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the socket folder: %w", err)
	}
	if err := lockDir(cfg.Dir); err != nil {
		return nil, err
	}
	self, err := process.Self()
	if err != nil {
		return nil, err
	}
	s := &shim{
		cfg: cfg, rip: newReaper(), calls: make(chan func(), 256), quit: make(chan struct{}), now: boottime,
		agents: map[*agentConn]bool{}, state: wire.AllocIdle, prepared: map[saveKey]*wire.Prepared{}, fates: map[stepKey]*fate{},
		buffers: map[int64]*buffer{}, staged: map[int64]*staging{}, calledAt: map[saveKey]time.Duration{},
	}
	s.errands.s = s
	s.saver = &saver{rip: s.rip, binary: cfg.Binary, cookie: cfg.Cookie}
	s.warm = newWarmth(&s.cfg, &spawner{rip: s.rip, cookie: cfg.Cookie, groups: func() process.Groups { return s.groups }, kept: map[int]bool{}},
		func(generation uint64, text string) {
			s.post(func() { s.emit(wire.AllocEvent{Kind: wire.EventFallback, Generation: generation, Message: text}) })
		})
	s.file.path = filepath.Join(cfg.Dir, JournalFile)
	s.journal = Journal{Version: ProtocolVersion, Identity: self, Alloc: cfg.Alloc}
	// A shim that follows a dead one of the same allocation goes on with its numbers.
	if old, err := ReadJournal(cfg.Dir); err == nil {
		s.journal.Generation, s.journal.Seq, s.journal.Unacked = old.Generation, old.Seq, old.Unacked
	}
	orphan := cfg.Orphan.D()
	if orphan <= 0 || orphan > maxSpan {
		orphan = 10 * time.Minute
	}
	s.lease = lease{class: wire.ClassFast, orphan: s.now() + orphan, span: orphan}

	if cfg.Groups != nil {
		s.groups = *cfg.Groups
	} else {
		var fallbacks []string
		s.groups, fallbacks = process.NewGroups(capabilities(&cfg), cfg.Alloc, cfg.Limits.Memory)
		for _, f := range fallbacks {
			s.emit(wire.AllocEvent{Kind: wire.EventFallback, Message: f})
		}
	}
	for _, f := range cfg.Fallbacks {
		s.emit(wire.AllocEvent{Kind: wire.EventFallback, Message: f})
	}
	if err := s.groups.JoinShim(); err != nil {
		log.Printf("join the shim's cgroup: %v", err)
	}
	return s, nil
}

// lockDir keeps a second shim off the same allocation for as long as this one lives.
func lockDir(dir string) error {
	_, err := lock(dir, unix.O_CREAT)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("another shim serves %s", dir)
	}
	if err != nil {
		return fmt.Errorf("lock the allocation: %w", err)
	}
	return nil // held until the process ends
}

// Locked reports whether a shim holds an allocation's folder.
func Locked(dir string) bool {
	fd, err := lock(dir, 0)
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, unix.EWOULDBLOCK)
}

// lock locks an allocation's folder, and where a folder cannot be locked, as on NFS, a file
// in it.
func lock(dir string, create int) (int, error) {
	fd, err := flock(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err == nil || errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	return flock(filepath.Join(dir, "shim.lock"), unix.O_RDWR|create)
}

func flock(path string, mode int) (int, error) {
	fd, err := unix.Open(path, mode|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return -1, err
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// cleanUp removes what only a living shim needs.
func (s *shim) cleanUp() {
	if err := s.groups.Leave(); err != nil {
		log.Printf("leave the shim's cgroup: %v", err)
	}
	if err := s.groups.Remove(200*time.Millisecond, false); err != nil {
		log.Printf("remove cgroups: %v", err)
	}
	removeSockets(s.cfg.SocketDir)
}
