package pack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// Folder is what of a folder goes into an archive.
type Folder struct {
	Dir   string
	Files int   // regular files
	Bytes int64 // of them together
	// Left are sockets, pipes and devices, which are of this machine and stay here; the
	// first of them.
	Left    []string
	entries []entry
}

// entry is one line of the plan.
type entry struct {
	name   string
	kind   kind
	size   int64
	exec   bool
	target string
}

const (
	maxLeft    = 20
	maxLargest = 5
)

// TooLarge is the error of a folder over the limit.
type TooLarge struct {
	Dir     string
	Bytes   int64
	Limit   int64
	Largest []Sized // files and folders right below Dir, the largest first
	File    Sized   // the largest file of all
}

// Sized is a name and a size in bytes; a folder's name ends in "/".
type Sized struct {
	Name  string
	Bytes int64
}

// Error implements error.
func (e *TooLarge) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s holds %s, over the limit of %s; the largest: ", e.Dir, sizeText(e.Bytes), sizeText(e.Limit))
	for i, s := range e.Largest {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s %s", clip(s.Name), sizeText(s.Bytes))
	}
	if strings.Contains(e.File.Name, "/") {
		fmt.Fprintf(&b, "; the largest file: %s %s", clip(e.File.Name), sizeText(e.File.Bytes))
	}
	return b.String()
}

// Unwrap makes it an ErrLimit.
func (e *TooLarge) Unwrap() error { return ErrLimit }

func sizeText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

// Scan lists what of dir is packed, in the order of names. limit is in bytes, 0 is
// DefaultLimit. The error is a *TooLarge when the files together are over it; it wraps
// ErrEntry for what no archive may hold, and names it.
func Scan(ctx context.Context, dir string, limit int64) (*Folder, error) {
	if limit == 0 {
		limit = DefaultLimit
	}
	if limit < 0 || limit > MaxBytes {
		return nil, over("a limit of %s; packages hold at most %s", sizeText(limit), sizeText(MaxBytes))
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the folder: %w", err)
	}
	defer root.Close()
	s := scanner{root: root, names: newNames(), f: &Folder{Dir: dir}, top: map[string]int64{}}
	if s.rules, err = readRules(root); err != nil {
		return nil, err
	}
	if err := s.walk(ctx, "."); err != nil {
		return nil, fmt.Errorf("pack %s: %w", dir, err)
	}
	if s.f.Bytes > limit {
		return nil, s.tooLarge(limit)
	}
	slices.SortFunc(s.f.entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return s.f, nil
}

// Holds reports whether a path below the folder is packed.
func (f *Folder) Holds(name string) bool {
	name = path.Clean(name)
	_, ok := slices.BinarySearchFunc(f.entries, name, func(e entry, n string) int { return strings.Compare(e.name, n) })
	return ok || name == "."
}

type scanner struct {
	root    *os.Root
	rules   rules
	names   *names
	f       *Folder
	top     map[string]int64 // bytes by what lies right below the folder
	largest Sized
}

func (s *scanner) walk(ctx context.Context, dir string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d, err := s.root.Open(dir)
	if err != nil {
		return fmt.Errorf("read the folder %s: %w", dir, err)
	}
	// The order does not matter here; at most one more than may be there is read.
	list, err := d.ReadDir(MaxEntries + 1)
	d.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the folder %s: %w", dir, err)
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range list {
		if err := s.take(ctx, path.Join(dir, e.Name()), e); err != nil {
			return err
		}
	}
	return nil
}

func (s *scanner) take(ctx context.Context, name string, d fs.DirEntry) error {
	if s.rules.ignored(name, d.IsDir()) {
		return nil
	}
	info, err := s.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // gone since the folder was read
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", name, err)
	}
	e := entry{name: name}
	switch mode := info.Mode(); {
	case mode.IsDir():
		e.kind = folder
	case mode.IsRegular():
		e.kind, e.size, e.exec = file, info.Size(), mode&0o100 != 0
	case mode&fs.ModeSymlink != 0:
		e.kind = link
		if e.target, err = s.root.Readlink(name); err != nil {
			return fmt.Errorf("read the link %s: %w", name, err)
		}
		if err := checkLink(name, e.target); err != nil {
			return err
		}
	default:
		if len(s.f.Left) < maxLeft {
			s.f.Left = append(s.f.Left, name)
		}
		return nil
	}
	if err := s.names.add(name, e.kind); err != nil {
		return err
	}
	s.f.entries = append(s.f.entries, e)
	switch e.kind {
	case folder:
		return s.walk(ctx, name)
	case file:
		s.f.Files++
		s.f.Bytes += e.size
		at, _, below := strings.Cut(name, "/")
		if below {
			at += "/"
		}
		s.top[at] += e.size
		if e.size > s.largest.Bytes {
			s.largest = Sized{name, e.size}
		}
	case link:
	}
	return nil
}

func (s *scanner) tooLarge(limit int64) error {
	e := &TooLarge{Dir: s.f.Dir, Bytes: s.f.Bytes, Limit: limit, File: s.largest}
	for name, n := range s.top {
		e.Largest = append(e.Largest, Sized{name, n})
	}
	slices.SortFunc(e.Largest, func(a, b Sized) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Name, b.Name))
	})
	e.Largest = e.Largest[:min(len(e.Largest), maxLargest)]
	return e
}
