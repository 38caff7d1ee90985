package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/troupe-runtime/troupe/worker/agent"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// launcher is one node's way to start shims. It belongs to the machine, so it outlives
// agents; a power cut empties it and leaves what is on the disk.
type launcher struct{ n *Node }

var _ agent.Launcher = launcher{}

var errNoShim = errors.New("no shim listens there")

// Start implements agent.Launcher.
func (l launcher) Start(ctx context.Context, cfg shim.Config) (agent.Shim, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if l.n.failShims() {
		return nil, errors.New("fork: resource temporarily unavailable")
	}
	if err := shim.WriteConfig(&cfg); err != nil {
		return nil, err
	}
	s, err := l.n.newShim(cfg)
	if err != nil {
		return nil, err
	}
	return s.connect()
}

// Find implements agent.Launcher.
func (l launcher) Find(cfg shim.Config) (agent.Found, error) {
	j, err := shim.ReadJournal(cfg.Dir)
	if errors.Is(err, os.ErrNotExist) {
		j, err = nil, nil
	}
	if err != nil {
		return agent.Found{}, err
	}
	return agent.Found{Alive: l.n.shim(cfg.Alloc) != nil, Journal: j}, nil
}

// Attach implements agent.Launcher.
func (l launcher) Attach(_ context.Context, cfg shim.Config) (agent.Shim, error) {
	s := l.n.shim(cfg.Alloc)
	if s == nil {
		return nil, errNoShim
	}
	return s.connect()
}

// Sweep implements agent.Launcher: it ends shim, ranks and stragglers.
func (l launcher) Sweep(ctx context.Context, cfg shim.Config, _ *shim.Journal) error {
	if s := l.n.shim(cfg.Alloc); s != nil {
		s.die(false)
	}
	l.n.sweep(cfg.Alloc)
	return ctx.Err()
}

func writeJournal(dir string, j *shim.Journal) error {
	b, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("encode a journal: %w", err)
	}
	path := filepath.Join(dir, shim.JournalFile)
	if err := os.WriteFile(path+".tmp", b, 0o600); err != nil {
		return fmt.Errorf("write a journal: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("write a journal: %w", err)
	}
	return nil
}
