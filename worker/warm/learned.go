package warm

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	maxScripts = 64
	maxModules = 1000 // of one script; more are not preloaded
	maxDropped = 50
	maxStore   = 8 << 20
	maxReason  = 300
)

// Learned is what a node knows of one script from its earlier starts.
type Learned struct {
	Program string    `json:"program"`           // the interpreter's file
	Script  string    `json:"script"`            // Command.Name
	Used    int64     `json:"used"`              // seconds since the epoch
	Torch   bool      `json:"torch,omitempty"`   // it loads torch
	Worked  bool      `json:"worked,omitempty"`  // ranks of it were forked
	Modules []string  `json:"modules,omitempty"` // what it imports besides, in order
	Dropped []Missing `json:"dropped,omitempty"` // what is never preloaded, and why
}

// Names lists the modules that are never preloaded.
func (l *Learned) Names() []string {
	names := make([]string, 0, len(l.Dropped))
	for _, d := range l.Dropped {
		names = append(names, d.Module)
	}
	return names
}

// Store is the file in which a node keeps what it learned, shared by its shims. What cannot
// be read counts as empty: it is learned again.
type Store struct{ path string }

// NewStore names the file; "" keeps nothing.
func NewStore(path string) *Store { return &Store{path} }

type storeFile struct {
	Version int        `json:"version"`
	Scripts []*Learned `json:"scripts"`
}

// Get returns what is known of a script, an empty record when nothing is.
func (s *Store) Get(program, script string) Learned {
	f := s.read()
	if i := f.find(program, script); i >= 0 {
		return *f.Scripts[i]
	}
	return Learned{Program: program, Script: script}
}

// Update changes the record of a script, now being the time of the change in seconds. The
// least recently used ones make room.
func (s *Store) Update(program, script string, now int64, change func(*Learned)) error {
	if s.path == "" {
		return nil
	}
	lock, err := os.OpenFile(s.path+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("lock what was learned of scripts: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", s.path, err)
	}
	f := s.read()
	i := f.find(program, script)
	if i < 0 {
		f.Scripts = append(f.Scripts, &Learned{Program: program, Script: script})
		i = len(f.Scripts) - 1
	}
	l := f.Scripts[i]
	change(l)
	l.Used = now
	l.bound()
	slices.SortStableFunc(f.Scripts, func(a, b *Learned) int { return int(b.Used - a.Used) })
	f.Scripts = f.Scripts[:min(len(f.Scripts), maxScripts)]
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	tmp := s.path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("write what was learned of scripts: %w", err)
	}
	if err := os.Rename(tmp, s.path); err != nil {
		return fmt.Errorf("write what was learned of scripts: %w", err)
	}
	return nil
}

func (l *Learned) bound() {
	l.Modules = l.Modules[:min(len(l.Modules), maxModules)]
	l.Dropped = l.Dropped[:min(len(l.Dropped), maxDropped)]
	for i := range l.Dropped {
		l.Dropped[i].Reason = l.Dropped[i].Reason[:min(len(l.Dropped[i].Reason), maxReason)]
	}
}

func (f *storeFile) find(program, script string) int {
	return slices.IndexFunc(f.Scripts, func(l *Learned) bool { return l.Program == program && l.Script == script })
}

func (s *Store) read() storeFile {
	f := storeFile{Version: 1}
	b, err := readBounded(s.path, maxStore)
	if err != nil {
		return f
	}
	var got storeFile
	if json.Unmarshal(b, &got) != nil || got.Version != f.Version {
		return f
	}
	for _, l := range got.Scripts {
		if l != nil && len(f.Scripts) < maxScripts {
			f.Scripts = append(f.Scripts, l)
		}
	}
	return f
}

var moduleName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)
})

// ReadModules reads the names that a rank reports at its first step and at its end. They are a stranger's text:
// what is no name of a module is left out, and the number is bounded.
func ReadModules(path string) ([]string, error) {
	b, err := readBounded(path, 1<<20)
	if err != nil {
		return nil, err
	}
	var names []string
	if err := json.Unmarshal(b, &names); err != nil {
		return nil, fmt.Errorf("modules in %s: %w", path, err)
	}
	names = slices.DeleteFunc(names, func(n string) bool {
		return len(n) > 200 || !moduleName().MatchString(n) || strings.HasPrefix(n, "__main__")
	})
	return names[:min(len(names), maxModules)], nil
}

// Mentions reports whether a script's own text speaks of torch, so that it can be taken to
// need it before it was ever run.
func Mentions(script, dir string) bool {
	if script == "" {
		return false
	}
	if !filepath.IsAbs(script) {
		script = filepath.Join(dir, script)
	}
	b, err := readBounded(script, 1<<20)
	return err == nil && torchWord().Match(b)
}

var torchWord = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\b(torch|lightning|pytorch_lightning|transformers|accelerate|deepspeed)\b`)
})

// readBounded reads at most limit bytes of a regular file, which may belong to anybody.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}
