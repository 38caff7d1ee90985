package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/troupe-runtime/troupe/runtime/page"
)

// rankPage is a rank's progress page in the socket folder, which the rank maps. The
// shim looks at it only when somebody asks. It belongs to the loop; nil reads as a
// page without a step.
type rankPage struct {
	path string
	p    *page.Page // nil once removed
}

// newRankPage makes the page when the rank says hello: many a rank never does. What stands in
// its place, from an attempt that could not clean up, is removed and never written through.
func newRankPage(dir string, generation uint64, rank int64) (*rankPage, error) {
	path := filepath.Join(dir, fmt.Sprintf("page-g%d-r%d", generation, rank))
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make the progress page: %w", err)
	}
	p, err := page.Create(path, generation)
	if err != nil {
		return nil, fmt.Errorf("make the progress page: %w", err)
	}
	return &rankPage{path: path, p: p}, nil
}

// step is the newest step that the rank has published, -1 when none.
func (r *rankPage) step() int64 {
	if r == nil || r.p == nil {
		return -1
	}
	return r.p.Step()
}

// calls is how often the rank has asked should_checkpoint.
func (r *rankPage) calls() uint64 {
	if r == nil || r.p == nil {
		return 0
	}
	return r.p.Calls()
}

// phase is until when the rank may stand still, CLOCK_MONOTONIC ns; 0: no phase.
func (r *rankPage) phase() int64 {
	if r == nil || r.p == nil {
		return 0
	}
	return r.p.Phase()
}

// stop makes should_stop answer true in the rank, and tells it until when it has time.
func (r *rankPage) stop(by int64) {
	if r == nil || r.p == nil {
		return
	}
	r.p.SetStopBy(by)
	r.p.SetStop(true)
}

func (r *rankPage) remove() {
	if r == nil || r.p == nil {
		return
	}
	_ = r.p.Close()
	r.p = nil
	os.Remove(r.path)
}
