package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"time"
)

// ForeignAge is how long a step of another life must have been without a write
// before it is garbage: another cluster may still be writing it.
const ForeignAge = 24 * time.Hour

// Candidate is a directory that claims to be a committed step.
type Candidate struct {
	StepName
	Dir  string
	Mark CommittedMark
}

// Listing is what a run's folder holds.
type Listing struct {
	// Candidates have a readable committed.json and no rolled-back.json, newest first.
	// They are claims: verify a candidate and its parents before it is adopted.
	Candidates []Candidate
	// Steps is every step's directory, committed or not, in order.
	Steps []StepName
	// HighestGeneration of any directory. A head whose records are behind raises its
	// counter above it before it starts anything (P3).
	HighestGeneration uint64
	// Odd names what is in the folder and is no step, or a step that cannot be read.
	Odd []string
}

// List reads a run's folder. A folder that does not exist is an empty listing if the
// store itself can be read.
func (s *Directory) List(ctx context.Context, run string) (Listing, error) {
	var l Listing
	if err := ValidRun(run); err != nil {
		return l, err
	}
	folder := path.Join(s.root, run)
	if err := realDir(s.fs, folder); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			return l, fmt.Errorf("list checkpoints of %s: %w", run, err)
		}
		if _, err := s.fs.ReadDir(s.root); err != nil {
			return l, fmt.Errorf("list checkpoints of %s: read the store: %w", run, err)
		}
		return l, nil
	}
	entries, err := s.fs.ReadDir(folder)
	if err != nil {
		return l, fmt.Errorf("list checkpoints of %s: %w", run, err)
	}
	if len(entries) > maxEntries {
		return l, fmt.Errorf("list checkpoints of %s: %d entries in %s, at most %d are read", run, len(entries), folder, maxEntries)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return l, err
		}
		n, err := ParseStepName(e.Name())
		if err != nil || !e.IsDir() {
			l.Odd = append(l.Odd, e.Name())
			continue
		}
		l.Steps = append(l.Steps, n)
		l.HighestGeneration = max(l.HighestGeneration, n.Generation)
		dir := path.Join(folder, e.Name())
		mark, ok, err := s.claim(dir)
		if err != nil {
			l.Odd = append(l.Odd, e.Name())
		}
		if ok {
			l.Candidates = append(l.Candidates, Candidate{StepName: n, Dir: dir, Mark: mark})
		}
	}
	l.Sort()
	return l, nil
}

// Sort brings a listing into its order: steps upwards, the newest candidate first.
func (l *Listing) Sort() {
	slices.SortFunc(l.Steps, func(a, b StepName) int { return compareRecords(Record{StepName: a}, Record{StepName: b}) })
	slices.SortFunc(l.Candidates, func(a, b Candidate) int {
		return compareRecords(Record{StepName: b.StepName}, Record{StepName: a.StepName})
	})
	slices.Sort(l.Odd)
}

// claim reads committed.json where no rolled-back.json stands.
func (s *Directory) claim(dir string) (CommittedMark, bool, error) {
	switch _, err := s.fs.Lstat(path.Join(dir, RolledBackFile)); {
	case err == nil:
		return CommittedMark{}, false, nil
	case !errors.Is(err, fs.ErrNotExist):
		return CommittedMark{}, false, err
	}
	data, err := readSmall(s.fs, path.Join(dir, CommittedFile), maxMark)
	if errors.Is(err, fs.ErrNotExist) {
		return CommittedMark{}, false, nil
	}
	if err != nil {
		return CommittedMark{}, false, err
	}
	mark, err := ParseCommittedMark(data)
	return mark, err == nil, err
}

// Delete removes a step, committed.json first, so that a deletion which is cut short
// leaves garbage and never a step that looks committed. The tombstone entry must be
// in the log before. A step that is gone already is success.
func (s *Directory) Delete(ctx context.Context, run, dir string) error {
	if _, err := s.stepDir(run, dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return s.gone(run)
		}
		if s.nothingAt(run, dir) {
			return nil // somebody put something else there; it is not ours to remove
		}
		return fmt.Errorf("delete: %w", err)
	}
	if err := s.remove(ctx, dir); err != nil {
		return fmt.Errorf("delete %s: %w", dir, err)
	}
	return nil
}

// gone makes an absence durable, and tells it from a store that is not mounted.
func (s *Directory) gone(run string) error {
	if err := s.fs.SyncDir(path.Join(s.root, run)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete: %w", err)
	}
	if _, err := s.fs.ReadDir(s.root); err != nil {
		return fmt.Errorf("delete: read the store: %w", err)
	}
	return nil
}

func (s *Directory) remove(ctx context.Context, dir string) error {
	for _, name := range []string{CommittedFile, ManifestFile} {
		err := s.fs.Remove(path.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := s.fs.SyncDir(dir); err != nil {
			return err
		}
	}
	left := maxEntries
	if err := s.removeTree(ctx, dir, MaxPathParts+1, &left); err != nil {
		return err
	}
	return s.fs.SyncDir(path.Dir(dir))
}

// removeTree removes what is in dir and dir itself. A link is removed, not followed.
func (s *Directory) removeTree(ctx context.Context, dir string, depth int, left *int) error {
	if depth == 0 {
		return fmt.Errorf("%s: more than %d folders deep; remove it by hand: %w", dir, MaxPathParts, ErrUnsafe)
	}
	if err := realDir(s.fs, dir); err != nil {
		return err
	}
	entries, err := s.fs.ReadDir(dir)
	if err != nil {
		return err
	}
	if *left -= len(entries); *left < 0 {
		return fmt.Errorf("%s: more than %d entries; remove it by hand: %w", dir, maxEntries, ErrUnsafe)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := path.Join(dir, e.Name())
		if e.IsDir() {
			err = s.removeTree(ctx, name, depth-1, left)
		} else {
			err = s.fs.Remove(name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return s.fs.Remove(dir)
}

// Sweep removes the garbage of a run: directories without committed.json, of a
// generation below the order's, that the order does not keep. One of another life
// must also have been without a write for 24 h at now. It returns the names of what
// it removed; one directory that cannot be removed does not keep the others.
func (s *Directory) Sweep(ctx context.Context, run string, o SweepOrder, now time.Time) ([]string, error) {
	if err := o.Check(); err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	l, err := s.List(ctx, run)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no store, no garbage; one that is mounted later is swept later
	}
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	var removed []string
	var errs []error
	for _, n := range l.Steps {
		if err := ctx.Err(); err != nil {
			return removed, err
		}
		name := n.String()
		dir := path.Join(s.root, run, name)
		if !o.Covers(n) {
			continue
		}
		garbage, err := s.garbage(dir, n.Life != o.Life, now)
		if err == nil && garbage {
			err = s.remove(ctx, dir)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sweep %s: %w", dir, err))
		} else if garbage {
			removed = append(removed, name)
		}
	}
	return removed, errors.Join(errs...)
}

// garbage decides by the absence of committed.json, and an absence that cannot be
// seen for certain is none.
func (s *Directory) garbage(dir string, foreign bool, now time.Time) (bool, error) {
	if _, err := s.fs.Lstat(path.Join(dir, CommittedFile)); err == nil || !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			return false, nil
		}
		return false, err
	}
	if !foreign {
		return true, nil
	}
	left := maxEntries
	last, err := s.lastWrite(dir, MaxPathParts+1, &left)
	if err != nil || now.Sub(last) < ForeignAge {
		return false, err
	}
	// The time of a file is the store's; a node whose clock is ahead must not take another
	// cluster's save for an old one.
	at, err := s.storeTime(path.Dir(dir))
	return err == nil && at.Sub(last) >= ForeignAge, err
}

// storeTime is what the store's own clock says: the time of a file made now.
func (s *Directory) storeTime(dir string) (time.Time, error) {
	temp, err := s.writeTemp(dir, "clock", nil)
	if err != nil {
		return time.Time{}, err
	}
	info, err := s.fs.Lstat(temp)
	_ = s.fs.Remove(temp)
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

func (s *Directory) lastWrite(dir string, depth int, left *int) (time.Time, error) {
	info, err := s.fs.Lstat(dir)
	if err != nil || !info.IsDir() {
		if err == nil {
			return info.ModTime(), nil
		}
		return time.Time{}, err
	}
	if depth == 0 || *left < 0 {
		return time.Time{}, fmt.Errorf("%s is too large or too deep to be looked through: %w", dir, ErrUnsafe)
	}
	last := info.ModTime()
	entries, err := s.fs.ReadDir(dir)
	if err != nil {
		return time.Time{}, err
	}
	*left -= len(entries)
	for _, e := range entries {
		t, err := s.lastWrite(path.Join(dir, e.Name()), depth-1, left)
		if err != nil {
			return time.Time{}, err
		}
		if t.After(last) {
			last = t
		}
	}
	return last, nil
}
