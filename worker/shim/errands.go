package shim

import (
	"context"
	"log"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	// preparedAgain is when a call says again that a step is prepared.
	preparedAgain = 500 * time.Millisecond
	errandLimit   = 30 * time.Second
)

// errands are the tasks that the leader has asked this shim for while its agent is gone:
// the small writes of a commit, on a store that perhaps no other node sees. They are
// carried out by the saver. They belong to the loop.
type errands struct {
	s    *shim
	list []*errand
}

type errand struct {
	id    string
	reply *wire.TaskReply // nil: under way
}

// take begins what is new and forgets what the leader does not name any more: it has
// heard the answer.
func (e *errands) take(tasks []wire.Task) {
	e.list = slices.DeleteFunc(e.list, func(x *errand) bool {
		return x.reply != nil && !slices.ContainsFunc(tasks, func(t wire.Task) bool { return t.ID == x.id })
	})
	for i := range tasks {
		t := &tasks[i]
		if len(e.list) >= wire.MaxErrands || slices.ContainsFunc(e.list, func(x *errand) bool { return x.id == t.ID }) {
			continue
		}
		x := &errand{id: t.ID}
		e.list = append(e.list, x)
		if why := e.s.refuses(t); why != "" {
			x.reply = &wire.TaskReply{ID: t.ID, Error: why}
			continue
		}
		go e.do(x, *t)
	}
}

// refuses says why a task is none for a shim; "" if it is one.
func (s *shim) refuses(t *wire.Task) string {
	switch {
	case t.Run != s.cfg.Run:
		return "refused: this shim serves run " + s.cfg.Run
	case t.Kind != wire.TaskWriteManifest && t.Kind != wire.TaskWriteCommitted && t.Kind != wire.TaskWriteRolledBack:
		return "refused: a shim carries out no task of kind " + string(t.Kind)
	case s.att == nil || t.Store != s.att.spec.Checkpoint.Store:
		return "refused: it is not the store of what runs here"
	}
	return ""
}

func (e *errands) do(x *errand, t wire.Task) {
	ctx, cancel := context.WithTimeout(context.Background(), errandLimit)
	defer cancel()
	rep, err := e.s.saver.call(ctx, SaverRequest{Op: "task", Task: &t})
	e.s.post(func() {
		switch {
		case err != nil:
			x.reply = &wire.TaskReply{ID: t.ID, Error: err.Error()}
		case rep.Task == nil:
			x.reply = &wire.TaskReply{ID: t.ID, Error: orElse(rep.Error, "the saver did not answer")}
		default:
			x.reply = rep.Task
		}
		if x.reply.Error != "" {
			log.Printf("task %s: %s", t.ID, x.reply.Error)
		}
		e.s.voice.News()
	})
}

// done lists what is done and not known to be heard.
func (e *errands) done() []wire.TaskReply {
	var out []wire.TaskReply
	for _, x := range e.list {
		if x.reply != nil {
			out = append(out, *x.reply)
		}
	}
	return out
}

// unsure lists steps whose verdict is not known, each once in a while and as many as fit.
func (s *shim) unsure() []wire.Prepared {
	now := s.now()
	for k := range s.calledAt {
		if s.prepared[k] == nil {
			delete(s.calledAt, k)
		}
	}
	var out []wire.Prepared
	size := 0
	for k, p := range s.prepared {
		if at, told := s.calledAt[k]; told && now-at < preparedAgain {
			continue
		}
		n := len(p.Dir) + len(p.Cursor) + len(p.Frameworks) + 1024
		for i := range p.Files {
			n += len(p.Files[i].Path) + len(p.Files[i].Part) + len(p.Files[i].Digest) + 64
		}
		if size += n; size > wire.MaxCallPrepared && len(out) > 0 {
			break
		}
		s.calledAt[k] = now
		out = append(out, *p)
	}
	return out
}
