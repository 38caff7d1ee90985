// Package saves plays a whole save over a store, as ranks, savers, agents and a head do it
// together, and whoever comes after a crash: files are written and prepared, the manifest,
// the entry in the log, the mark, then retention, whose tombstone comes first. Tests of
// stores cut it short at each of their own points and ask what holds afterwards. Only tests
// import it; it knows no kind of store.
package saves

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	// World is how many ranks save.
	World = 2
	// Life of the cluster that saves.
	Life = "0a1b2c3d"
	// Run that is saved.
	Run = "digits"
)

// Now is the time of everything.
var Now = time.Unix(1_700_000_000, 0)

// File is one file of a rank, by its name below the step's directory.
type File struct {
	Name string
	Data []byte
}

// Entry is one commit entry of the log, the one thing that no fault here loses.
type Entry struct {
	checkpoint.Record
	Dir     string
	Marked  bool // WriteCommitted returned success
	Deleted bool // Delete returned success
}

// Protocol is one run on one store. The functions say what the kind of store is; a test
// may replace them between two calls, as when a machine comes back.
type Protocol struct {
	T     testing.TB
	Store string // its address
	// Open makes the opener of a process that has just begun.
	Open func(writer string) checkpoint.Opener
	// Put writes one rank's files of a step as the rank and its saver do.
	Put func(dir string, files []File) ([]wire.PreparedFile, error)
	// Content is what a rank saves.
	Content func(rank, step int64, gen uint64) []File
	// Look reads a file of a step behind the store's back.
	Look func(dir, file string) ([]byte, error)
	// Left lists all files of the run behind the store's back, by their step's directory
	// and their name below it; what may stay with a committed step is left out.
	Left func() ([]string, error)
	Log  []Entry
	Tell func(phase string) // called as a save gets on; nil: nobody
}

func (p *Protocol) tell(phase string) {
	if p.Tell != nil {
		p.Tell(phase)
	}
}

func (p *Protocol) records() []checkpoint.Record {
	var out []checkpoint.Record
	for _, l := range p.Log {
		out = append(out, l.Record)
	}
	return out
}

// Newest is what the log says that an attempt restores.
func (p *Protocol) Newest() (checkpoint.Record, bool) {
	return checkpoint.Newest(p.records(), checkpoint.NoCeiling)
}

// do has a task done by one agent.
func (p *Protocol) do(writer string, t wire.Task) wire.TaskReply {
	t.Run, t.Store = Run, p.Store
	return checkpoint.Do(p.T.Context(), p.Open(writer), disk.NewMem(), t, Now)
}

// twice has a task done, by another agent when the first one cannot, as a leader does.
func (p *Protocol) twice(t wire.Task) error {
	r := p.do("w", t)
	if r.Error != "" {
		r = p.do("other", t)
	}
	if r.Error != "" {
		return errors.New(r.Error)
	}
	return nil
}

// Save takes a step of a generation through the whole protocol.
func (p *Protocol) Save(step int64, gen uint64) error {
	name := checkpoint.StepName{Step: step, Generation: gen, Life: Life}
	dir := checkpoint.StepDir(p.Store, Run, name)
	tracker := checkpoint.NewTracker(time.Minute)
	var newest *checkpoint.Record
	if n, ok := p.Newest(); ok {
		newest = &n
	}
	tracker.Begin(Now, checkpoint.Attempt{Run: Run, Generation: gen, World: World, Store: p.Store, Life: Life}, newest)
	for r := range int64(World) {
		report := wire.Prepared{Alloc: "a", Run: Run, Generation: gen, Step: step, Rank: r, World: World, Dir: dir}
		var err error
		if report.Files, err = p.Put(dir, p.Content(r, step, gen)); err != nil {
			return err
		}
		tracker.Report(Now, report)
	}
	p.tell("prepared")
	ready, ok := tracker.Committing(Run)
	if !ok {
		p.T.Fatalf("step %d did not become ready", step)
	}
	task := wire.Task{Kind: wire.TaskWriteManifest, Step: step, Dir: dir, Data: ready.Manifest, Digest: ready.Digest}
	if err := p.twice(task); err != nil {
		return err
	}
	p.Log = append(p.Log, Entry{Record: checkpoint.Record{StepName: name, Digest: ready.Digest}, Dir: dir})
	p.tell("committed")
	if err := p.mark(&p.Log[len(p.Log)-1]); err != nil {
		return err
	}
	p.tell("marked")
	return nil
}

// Mark is what committed.json of an entry says.
func (p *Protocol) Mark(digest string) []byte {
	p.T.Helper()
	b, err := checkpoint.NewCommittedMark("cluster-1", 7, digest)
	if err != nil {
		p.T.Fatal(err)
	}
	return b
}

func (p *Protocol) mark(l *Entry) error {
	err := p.twice(wire.Task{Kind: wire.TaskWriteCommitted, Step: l.Step, Dir: l.Dir, Data: p.Mark(l.Digest), Digest: l.Digest})
	l.Marked = l.Marked || err == nil
	return err
}

// Retain deletes all steps but the newest: the tombstone is in the log first.
func (p *Protocol) Retain() error {
	for _, r := range checkpoint.Expired(p.records(), checkpoint.Policy{Last: 1}, nil) {
		for i := range p.Log {
			if l := &p.Log[i]; l.StepName == r.StepName {
				l.Tombstoned = true
				p.tell("tombstone")
				if err := p.remove(l); err != nil {
					return err
				}
			}
		}
	}
	p.tell("deleted")
	return nil
}

func (p *Protocol) remove(l *Entry) error {
	err := p.twice(wire.Task{Kind: wire.TaskDelete, Dir: l.Dir})
	l.Deleted = l.Deleted || err == nil
	return err
}

// Script is what faults are thrown into: step 20 is saved over a good step 10, which
// retention then deletes.
func (p *Protocol) Script() error {
	if err := p.Save(20, 1); err != nil {
		return err
	}
	return p.Retain()
}

// Restore is what a new attempt does: the newest of the log, verified; damage is rolled
// back and the one before is tried. It returns the step and how many were rolled back.
// Every rank then loads the step by itself, and finds its own bytes (P4, I22).
func (p *Protocol) Restore() (checkpoint.Record, int) {
	p.T.Helper()
	back := 0
	for range len(p.Log) + 1 {
		n, ok := p.Newest()
		if !ok {
			return checkpoint.Record{}, back
		}
		for i := range p.Log {
			l := &p.Log[i]
			if l.StepName != n.StepName {
				continue
			}
			r := p.do("w2", wire.Task{Kind: wire.TaskVerify, Dir: l.Dir, Digest: l.Digest})
			if r.Error == "" {
				p.intact(*l)
				return n, back
			}
			if len(r.Bad) == 0 {
				p.T.Fatalf("restore cannot read %s: %s", l.Dir, r.Error)
			}
			l.RolledBack = true
			back++
			m, err := checkpoint.NewRolledBackMark("cluster-1", 8, r.Error)
			if err != nil {
				p.T.Fatal(err)
			}
			if r := p.do("w2", wire.Task{Kind: wire.TaskWriteRolledBack, Dir: l.Dir, Data: m}); r.Error != "" {
				p.T.Fatal(r.Error)
			}
		}
	}
	p.T.Fatal("a step that was rolled back is chosen again")
	return checkpoint.Record{}, 0
}

// intact compares a step byte for byte with what the ranks wrote: where it lies, and as
// each of them reads it.
func (p *Protocol) intact(l Entry) {
	p.T.Helper()
	for r := range int64(World) {
		s, err := p.Open(fmt.Sprint("rank-", r))(p.T.Context(), p.Store)
		if err != nil {
			p.T.Fatal(err)
		}
		m, _, err := s.Manifest(p.T.Context(), Run, l.Dir)
		if err != nil {
			p.T.Fatal(err)
		}
		if m.Name() != l.StepName {
			p.T.Fatalf("rank %d reads %s in the place of %s", r, m.Name(), l.StepName)
		}
		local := disk.NewMem()
		if err := local.MkdirAll("/fetched", 0o755); err != nil {
			p.T.Fatal(err)
		}
		own := *m
		own.Files = slices.DeleteFunc(slices.Clone(m.Files), func(f checkpoint.File) bool { return f.Rank != r })
		if v, err := checkpoint.Fetch(p.T.Context(), s, Run, l.Dir, &own, local, "/fetched"); err != nil || !v.Whole() {
			p.T.Fatalf("rank %d fetches step %d: %+v, %v", r, l.Step, v, err)
		}
		for _, f := range p.Content(r, l.Step, l.Generation) {
			if data, err := p.Look(l.Dir, f.Name); err != nil || string(data) != string(f.Data) {
				p.T.Fatalf("step %d verified, but %s is not what was saved (%v)", l.Step, f.Name, err)
			}
			if data, err := read(local, path.Join("/fetched", f.Name)); err != nil || string(data) != string(f.Data) {
				p.T.Fatalf("rank %d loads another %s of step %d than was saved (%v)", r, f.Name, l.Step, err)
			}
		}
	}
}

// list has the store listed by an agent that has just begun.
func (p *Protocol) list() (checkpoint.Store, checkpoint.Listing) {
	p.T.Helper()
	s, err := p.Open("w3")(p.T.Context(), p.Store)
	if err != nil {
		p.T.Fatal(err)
	}
	l, err := s.List(p.T.Context(), Run)
	if err != nil {
		p.T.Fatal(err)
	}
	return s, l
}

// Adopt is what a head without its log does: the newest candidate that verifies.
func (p *Protocol) Adopt() (checkpoint.StepName, bool) {
	p.T.Helper()
	s, l := p.list()
	for _, c := range l.Candidates {
		if _, err := s.Verify(p.T.Context(), Run, c.Dir, c.Mark.Digest); err == nil {
			return c.StepName, true
		}
	}
	return checkpoint.StepName{}, false
}

// CandidatesAreWhole: whatever a step's deletion or save left behind, what looks
// committed is.
func (p *Protocol) CandidatesAreWhole() {
	p.T.Helper()
	s, l := p.list()
	for _, c := range l.Candidates {
		if _, err := s.Verify(p.T.Context(), Run, c.Dir, c.Mark.Digest); err != nil {
			p.T.Fatalf("%s looks committed: %v", c.Dir, err)
		}
	}
}
