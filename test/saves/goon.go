package saves

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Crashed asks all that must hold when everything but the store and the log has begun
// anew: what looks committed is whole; the newest step of the log is restored with nothing
// rolled back; a head without its log adopts no less than was confirmed and no more than
// was committed; and the run goes on (P4, I19, I22). first is the step that was there
// before.
func (p *Protocol) Crashed(first int64, at string) {
	p.T.Helper()
	p.CandidatesAreWhole()
	want := p.Log[len(p.Log)-1]
	if got, back := p.Restore(); got.StepName != want.StepName || back != 0 {
		p.T.Fatalf("%s: restored %v after %d roll-backs, the log's newest is %v", at, got.StepName, back, want.StepName)
	}
	if n, ok := p.Adopt(); !ok || n.Step < first || want.Marked && n != want.StepName || n.Step > want.Step {
		p.T.Fatalf("%s: adopted %v, %v; the log has %v, marked: %v", at, n, ok, want.StepName, want.Marked)
	}
	p.GoOn(2)
	p.Nothing(at)
}

// Resume does what a leader finds undone in its log.
func (p *Protocol) Resume() {
	p.T.Helper()
	for i := range p.Log {
		l := &p.Log[i]
		var err error
		switch {
		case l.Tombstoned && !l.Deleted:
			err = p.remove(l)
		case !l.Tombstoned && !l.RolledBack && !l.Marked:
			err = p.mark(l)
		}
		if err != nil {
			p.T.Fatalf("what the log says of %s cannot be done: %v", l.Dir, err)
		}
	}
}

// GoOn proves that the run can continue: what is undone is done, garbage goes, the next
// generation saves the very step that was disturbed, and it commits and restores.
func (p *Protocol) GoOn(gen uint64) {
	p.T.Helper()
	p.Resume()
	var keep []checkpoint.StepName
	for _, l := range p.Log {
		keep = append(keep, l.StepName)
	}
	order, err := checkpoint.NewSweepOrder(Life, gen, keep)
	if err != nil {
		p.T.Fatal(err)
	}
	if r := p.do("w", wire.Task{Kind: wire.TaskSweep, Data: order}); r.Error != "" {
		p.T.Fatalf("sweep: %s", r.Error)
	}
	step := int64(20)
	if n, ok := p.Newest(); ok && n.Step >= step {
		step = n.Step + 10
	}
	if err := p.Save(step, gen); err != nil {
		p.T.Fatalf("generation %d cannot save step %d: %v", gen, step, err)
	}
	if got, back := p.Restore(); got.Step != step || got.Generation != gen || back != 0 {
		p.T.Fatalf("restored %v after %d roll-backs, want step %d", got, back, step)
	}
}

// Nothing stays behind: after a sweep the run's folder holds the files of the steps that
// stand in the log, each of them, and nothing else.
func (p *Protocol) Nothing(at string) {
	p.T.Helper()
	var want []string
	for _, l := range p.Log {
		if l.Tombstoned {
			continue
		}
		names := []string{checkpoint.ManifestFile, checkpoint.CommittedFile}
		if l.RolledBack {
			names = append(names, checkpoint.RolledBackFile)
		}
		for r := range int64(World) {
			for _, f := range p.Content(r, l.Step, l.Generation) {
				names = append(names, f.Name)
			}
		}
		for _, n := range names {
			want = append(want, l.String()+"/"+n)
		}
	}
	got, err := p.Left()
	if err != nil {
		p.T.Fatal(err)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		p.T.Fatalf("%s: the store holds\n%q, the log says\n%q", at, got, want)
	}
}

// read reads a whole file.
func read(fsys checkpoint.FS, name string) ([]byte, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(f)
	return data, errors.Join(err, f.Close())
}

// Files lists the regular files of a folder's tree by their paths below it, as
// Protocol.Left of a store that is one. One that is not there holds none.
func Files(fsys checkpoint.FS, root string) ([]string, error) {
	var out []string
	entries, err := fsys.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list what is left: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			out = append(out, e.Name())
			continue
		}
		below, err := Files(fsys, root+"/"+e.Name())
		if err != nil {
			return nil, err
		}
		for _, b := range below {
			out = append(out, e.Name()+"/"+b)
		}
	}
	return out, nil
}
