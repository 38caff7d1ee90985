package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/troupe-runtime/troupe/worker/process"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// Shim is a connection to one shim. It is used by one goroutine, except Close.
type Shim interface {
	// Messages is closed when the connection ends; it must be drained.
	Messages() <-chan shim.ShimMessage
	Send(m shim.AgentMessage) error
	// Close ends the connection; the shim and its ranks go on.
	Close() error
}

// Found is what is left of a shim that somebody once started.
type Found struct {
	Alive bool
	// Stopped: it lives and does nothing, since somebody has sent it SIGSTOP.
	Stopped bool
	// Journal is nil when the shim had written none.
	Journal *shim.Journal
}

// Launcher starts shims and finds them again. Every method may be called from several
// goroutines, for different allocations.
type Launcher interface {
	// Start starts a shim in cfg.Dir and returns once it can be talked to. Before anything is
	// started it writes cfg down there: whatever happens from then on, the next agent finds the
	// cookie to sweep with (P6). After an error something of it may be left; Sweep ends that.
	Start(ctx context.Context, cfg shim.Config) (Shim, error)
	// Find tells whether the shim that was started with cfg lives.
	Find(cfg shim.Config) (Found, error)
	// Attach connects to a living shim.
	Attach(ctx context.Context, cfg shim.Config) (Shim, error)
	// Sweep ends everything of an allocation whose shim is dead or must die, the shim
	// included, and removes its groups. The error names what did not die. j may be nil.
	Sweep(ctx context.Context, cfg shim.Config, j *shim.Journal) error
}

// startLimit is how long a new shim may take until it listens. It is long, because a
// machine under load is slow and giving up means a failed attempt.
const startLimit = 15 * time.Second

type launcher struct{ argv []string }

// NewLauncher starts shims with argv before the path of their configuration.
func NewLauncher(argv []string) Launcher { return launcher{argv} }

// Start implements Launcher.
func (l launcher) Start(ctx context.Context, cfg shim.Config) (Shim, error) {
	p, err := shim.Launch(l.argv[0], l.argv[1:], cfg)
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = p.Wait() // a zombie is not alive, but it would hold its pid
	}()
	return dialNew(ctx, cfg, ended, p.Kill)
}

// CheckStart implements startChecker.
func (l launcher) CheckStart(dir string, argv []string, path string) (code int64, err error) {
	return shim.CheckStart(dir, argv, path)
}

// dialNew connects to a shim that was just started, and waits until it serves.
func dialNew(ctx context.Context, cfg shim.Config, ended <-chan struct{}, kill func() error) (Shim, error) {
	deadline := time.NewTimer(startLimit)
	defer deadline.Stop()
	pause := time.Millisecond
	for {
		c, err := shim.Dial(filepath.Join(cfg.SocketDir, shim.AgentSocket))
		var greeted <-chan struct{}
		var again <-chan time.Time
		wait := time.NewTimer(pause)
		if err == nil {
			greeted = c.Greeted()
		} else {
			again = wait.C
		}
		select {
		case <-greeted:
			wait.Stop()
			return c, nil
		case <-again:
			pause = min(2*pause, 4*time.Millisecond)
			continue
		case <-ended:
			err = fmt.Errorf("the shim ended at once: %s", lastLines(filepath.Join(cfg.Dir, "shim.log")))
		case <-deadline.C:
			err = errors.Join(fmt.Errorf("the shim does not serve after %s", startLimit), err)
		case <-ctx.Done():
			err = ctx.Err()
		}
		wait.Stop()
		if c != nil {
			c.Close()
			for range c.Messages() { //nolint:revive // drained, so that its reader ends
			}
		}
		if ctx.Err() == nil {
			_ = kill() // otherwise the next agent finds it
		}
		return nil, err
	}
}

// lastLines is what a program that failed said last.
func lastLines(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return "it left no log"
	}
	defer f.Close()
	var buf [512]byte
	if st, err := f.Stat(); err == nil && st.Size() > int64(len(buf)) {
		_, _ = f.Seek(-int64(len(buf)), 2)
	}
	n, _ := f.Read(buf[:])
	text := bytes.TrimSpace(bytes.ToValidUTF8(buf[:n], nil))
	if len(text) == 0 {
		return "it said nothing"
	}
	return string(text)
}

// Find implements Launcher.
func (launcher) Find(cfg shim.Config) (Found, error) {
	j, alive, err := shim.FindShim(cfg.Dir)
	if err != nil || alive {
		f := Found{Alive: alive, Journal: j}
		if alive {
			p, err := j.Read()
			f.Stopped = err == nil && p.State == 'T'
		}
		return f, err
	}
	if j == nil || !j.Gone {
		// One that is just starting has locked its folder before it writes a journal.
		alive = shim.Locked(cfg.Dir)
	}
	return Found{Alive: alive, Journal: j}, nil
}

// Attach implements Launcher.
func (launcher) Attach(_ context.Context, cfg shim.Config) (Shim, error) {
	return shim.Dial(filepath.Join(cfg.SocketDir, shim.AgentSocket))
}

// Sweep implements Launcher.
func (launcher) Sweep(ctx context.Context, cfg shim.Config, j *shim.Journal) error {
	t := process.Target{Cookie: cfg.Cookie, Whole: true}
	if full, err := shim.ReadConfig(filepath.Join(cfg.Dir, shim.ConfigFile)); err == nil && cfg.Groups == nil {
		cfg.Groups = full.Groups // Launch writes there what it made
	}
	if cfg.Groups != nil {
		t.Groups = *cfg.Groups
	}
	if j != nil {
		if j.Groups != (process.Groups{}) {
			t.Groups = j.Groups
		}
		if err := j.Identity.Kill(); err != nil {
			return err
		}
	}
	res := process.Sweep(ctx, t)
	if !res.Clean() {
		return res.Error()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// A group that cannot be removed is empty all the same: it costs a folder.
	_ = t.Groups.Remove(time.Second, false)
	return nil
}
