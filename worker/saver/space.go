package saver

import (
	"sync"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// taken is what each rank's files took last time: the best guess at the next ones.
var taken = struct {
	sync.Mutex
	of map[int64]size
}{of: map[int64]size{}}

type size struct{ bytes, files int64 }

// remember notes what a step of a rank took.
func remember(req *shim.SaverRequest, files []shim.SavedFile) {
	s := size{files: int64(len(files))}
	for _, f := range files {
		s.bytes += f.Length
	}
	taken.Lock()
	defer taken.Unlock()
	taken.of[req.Rank] = s
}

// rememberAll notes what the step that is restored took, so that the first save after a
// start is measured as well.
func rememberAll(m *checkpoint.Manifest) {
	of := map[int64]size{}
	for _, f := range m.Files {
		s := of[f.Rank]
		of[f.Rank] = size{s.bytes + f.Length, s.files + 1}
	}
	taken.Lock()
	defer taken.Unlock()
	for rank, s := range of {
		if _, known := taken.of[rank]; !known {
			taken.of[rank] = s
		}
	}
}

// preflight refuses a step that will not fit, before its ranks write it.
func preflight(fsys checkpoint.FS, req *shim.SaverRequest) error {
	taken.Lock()
	s := taken.of[req.Rank]
	taken.Unlock()
	return checkpoint.Preflight(fsys, localStore(req), s.bytes, s.files)
}
