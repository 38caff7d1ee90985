package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// maxBad bounds the findings that travel in a reply.
const maxBad = 64

// Do carries out one task of the head on a store and makes its reply. The caller has
// checked the task's position and runs it as the job's user. fsys is where an export
// goes. An empty TaskReply.Error is success; TaskReply.Bad names damaged files, so an
// error without Bad proves nothing about the step.
func Do(ctx context.Context, open Opener, fsys FS, t wire.Task, now time.Time) wire.TaskReply {
	reply := wire.TaskReply{ID: t.ID}
	err := do(ctx, open, fsys, t, now, &reply)
	if err == nil {
		return reply
	}
	reply.Error = err.Error()
	reply.Exact = errors.Is(err, ErrDifferentManifest)
	var files *FilesError
	switch {
	case errors.As(err, &files):
		for _, f := range files.Findings {
			if f.Damage() && len(reply.Bad) < maxBad {
				reply.Bad = append(reply.Bad, f.String())
			}
		}
	case errors.Is(err, ErrNoManifest), errors.Is(err, ErrManifest), errors.Is(err, ErrDigest):
		reply.Bad = []string{err.Error()}
	case t.Kind == wire.TaskVerify && errors.Is(err, ErrUnsafe):
		reply.Bad = []string{err.Error()} // what stands there is no step that a rank saved
	}
	return reply
}

func do(ctx context.Context, open Opener, fsys FS, t wire.Task, now time.Time, reply *wire.TaskReply) error {
	s, err := open(ctx, t.Store)
	if err != nil {
		return err
	}
	switch t.Kind {
	case wire.TaskWriteManifest:
		return s.WriteManifest(ctx, t.Run, t.Dir, t.Data, t.Digest)
	case wire.TaskWriteCommitted:
		return s.WriteCommitted(ctx, t.Run, t.Dir, t.Data)
	case wire.TaskWriteRolledBack:
		return s.WriteRolledBack(ctx, t.Run, t.Dir, t.Data)
	case wire.TaskVerify:
		v, err := s.Verify(ctx, t.Run, t.Dir, t.Digest)
		reply.Files, reply.Bytes = v.Files, v.Bytes
		if errors.Is(err, fs.ErrNotExist) {
			// Gone from a store that can be read is a finding; from one that cannot, nothing is.
			if _, unread := s.List(ctx, t.Run); unread == nil {
				err = fmt.Errorf("%w: %w", ErrNoManifest, err)
			}
		}
		return err
	case wire.TaskDelete:
		return s.Delete(ctx, t.Run, t.Dir)
	case wire.TaskSweep:
		o, err := ParseSweepOrder(t.Data)
		if err != nil {
			return err
		}
		removed, err := s.Sweep(ctx, t.Run, o, now)
		reply.Files = int64(len(removed))
		reply.Data = mustJSON(removed[:min(len(removed), maxSweep)])
		return err
	case wire.TaskManifest:
		m, data, err := s.Manifest(ctx, t.Run, t.Dir)
		if err == nil {
			reply.Data, reply.Files, reply.Bytes = data, int64(len(m.Files)), m.Bytes
		}
		return err
	case wire.TaskList:
		l, err := list(ctx, s, t.Run)
		reply.Absent = errors.Is(err, fs.ErrNotExist)
		if err == nil {
			reply.Data, reply.Files = mustJSON(l), int64(len(l.Found))
		}
		return err
	case wire.TaskProbe:
		var o ProbeOrder
		if err := readOrder(t.Data, &o); err != nil {
			return err
		}
		r, err := probe(ctx, s, o)
		reply.Data = mustJSON(r)
		return err
	case wire.TaskExport:
		return export(ctx, s, fsys, t, reply)
	}
	return fmt.Errorf("unknown checkpoint task %q: this agent is older than its head; upgrade it", t.Kind)
}
