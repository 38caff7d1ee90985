package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// An asynchronous save: the rank has copied its state into its buffer and goes on;
// the saver writes the files from there, makes them durable and hashes them, and the
// shim tells the leader, whatever becomes of the rank. Until the leader's word the
// step is staged and no more (P4).

// defaultSaveDeadline bounds a save where the job's policy does not.
const defaultSaveDeadline = 10 * time.Minute

// staging is what a local rank has handed over, until the saver is done with it. At
// most one for each rank: the buffer is in use.
type staging struct {
	key     saveKey
	done    chan struct{} // closed when the buffer is free again
	givenUp bool          // at the deadline; a late result does not count
}

func (st *staging) busy() *RankReply {
	return refuse("busy", "step %d of generation %d is still being written", st.key.step, st.key.gen)
}

func (a *attempt) saveDeadline() time.Duration {
	if d := a.spec.Checkpoint.Deadline.D(); d > 0 {
		return d
	}
	return defaultSaveDeadline
}

// settled waits until the saver is done with what the rank staged before: at most the
// request's timeout, without one the deadline of a save. nil means that it is.
func (rc *rankConn) settled(req *RankRequest) *RankReply {
	var st *staging
	if !rc.s.ask(func() { st = rc.s.staged[rc.r.spec.LocalRank] }) {
		return refuse("ended", "the shim is ending")
	}
	if st == nil {
		return nil
	}
	wait := rc.a.saveDeadline()
	if req.TimeoutMS > 0 {
		wait = min(wait, time.Duration(req.TimeoutMS)*time.Millisecond)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-st.done:
		return nil
	case <-t.C:
		return st.busy()
	case <-rc.a.ctx.Done():
		return refuse("ended", "the attempt is being ended")
	}
}

// stage takes a save over from a rank and answers at once.
func (rc *rankConn) stage(req *RankRequest) *RankReply {
	if bad := tooLong(req); bad != nil {
		return bad
	}
	sr, bad := rc.saverRequest("stage", req)
	if bad != nil {
		return bad
	}
	rep := refuse("ended", "the shim is ending")
	rc.s.ask(func() { rep = rc.s.stage(rc.a, rc.r, req, sr) })
	return rep
}

// maxMesh is how many dimensions a device mesh may have; the manifest takes no more.
const maxMesh = 16

func tooLong(req *RankRequest) *RankReply {
	if len(req.Cursor) > maxText || len(req.Config) > maxText || len(req.Frameworks) > maxText {
		return refuse("usage", "cursor, config and frameworks may have %d bytes each", maxText)
	}
	if len(req.Mesh) > maxMesh {
		return refuse("usage", "the device mesh has %d dimensions, %d are the most", len(req.Mesh), maxMesh)
	}
	return nil
}

func (s *shim) stage(a *attempt, r *rank, req *RankRequest, sr SaverRequest) *RankReply {
	local := r.spec.LocalRank
	if st := s.staged[local]; st != nil {
		return st.busy()
	}
	b := s.buffers[local]
	for _, f := range req.Files {
		switch {
		case !f.Staged:
		case b == nil:
			return refuse("usage", "file %q is staged, but the rank has no buffer", clip(f.Path, 256))
		case f.Offset < 0 || f.Length < 0 || f.Offset > b.size || f.Length > b.size-f.Offset:
			return refuse("usage", "file %q lies outside the buffer of %d bytes", clip(f.Path, 256), b.size)
		}
	}
	if b != nil {
		sr.Buffer = b.path()
	}
	st := &staging{key: saveKey{a.spec.Generation, req.Step, r.spec.Rank}, done: make(chan struct{})}
	s.staged[local] = st
	a.stagedAt(req.Step)
	limit := a.saveDeadline()
	deadline := time.AfterFunc(limit, func() {
		s.post(func() {
			if s.staged[local] == st {
				st.givenUp = true
				s.abandon(a, st.key.rank, st.key.step, fmt.Sprintf("it was not written within %s", limit))
			}
		})
	})
	go func() {
		rep, err := s.saver.call(context.Background(), sr)
		if rep.lost { // the buffer is still here: a new saver begins again
			rep, err = s.saver.call(context.Background(), sr)
		}
		s.post(func() {
			deadline.Stop()
			delete(s.staged, local)
			close(st.done)
			switch {
			case st.givenUp:
			case err != nil:
				s.abandon(a, st.key.rank, st.key.step, err.Error())
			case rep.Error != "":
				s.abandon(a, st.key.rank, st.key.step, rep.Error)
			default:
				s.save(s.preparedOf(a, req, sr, rep))
				s.spring(api.SavePrepared, st.key.gen, st.key.rank)
			}
		})
	}()
	s.send(&ShimMessage{Type: "prepared", V: ProtocolVersion, PID: os.Getpid(), Prepared: &wire.Prepared{
		Alloc: s.cfg.Alloc, Run: s.cfg.Run, Generation: st.key.gen, Step: st.key.step, Rank: st.key.rank,
		World: a.spec.World, Staged: true,
	}})
	s.spring(api.SaveWritten, st.key.gen, st.key.rank)
	return (&RankReply{OK: true}).at(req.Step)
}

// preparedOf is what the leader is told of a step that is durable and hashed.
func (s *shim) preparedOf(a *attempt, req *RankRequest, sr SaverRequest, rep SaverReply) *wire.Prepared {
	p := &wire.Prepared{
		Alloc: s.cfg.Alloc, Run: s.cfg.Run, Generation: sr.Generation, Step: req.Step, Rank: sr.Rank,
		World: a.spec.World, Dir: rep.Dir, Cursor: req.Cursor, Config: req.Config, Frameworks: req.Frameworks,
		Metrics: sortedMetrics(req.Metrics), Mesh: req.Mesh,
	}
	for _, f := range rep.Files {
		p.Files = append(p.Files, wire.PreparedFile{Path: f.Path, Length: f.Length, Digest: f.Digest, Part: f.Part})
	}
	return p
}

// abandon gives a step up for all ranks, unless this rank has prepared it or its
// verdict is known: then only the leader's word ends it. It says whether the step is
// dropped, and why. It belongs to the loop.
func (s *shim) abandon(a *attempt, rank, step int64, reason string) (dropped bool, why string) {
	k := saveKey{a.spec.Generation, step, rank}
	if f := s.fates[stepKey{k.gen, k.step}]; f != nil && f.v != nil {
		// Another rank may have given it up first.
		return f.v.State == "dropped", clip(f.v.Reason, maxText)
	}
	if s.prepared[k] != nil {
		return false, ""
	}
	reason = clip(reason, maxText)
	s.save(&wire.Prepared{
		Alloc: s.cfg.Alloc, Run: s.cfg.Run, Generation: k.gen, Step: k.step, Rank: k.rank,
		World: a.spec.World, Dir: a.spec.Checkpoint.Store, Abandoned: reason,
	})
	return true, reason
}

// timedOut gives a step up whose folders or files the store has not taken in time.
func (rc *rankConn) timedOut(step int64) *RankReply {
	reason := fmt.Sprintf("the store did not answer within %s", rc.a.saveDeadline())
	rc.s.ask(func() { rc.s.abandon(rc.a, rc.r.spec.Rank, step, reason) })
	return refuse("dropped", "%s", reason)
}

// save has the saver do one request of a save. A store that hangs costs the step and
// not the job.
func (rc *rankConn) save(req SaverRequest) (SaverReply, *RankReply) {
	// Not the attempt's context: what a rank has handed over is finished without it.
	ctx, cancel := context.WithTimeout(context.Background(), rc.a.saveDeadline())
	defer cancel()
	rep, err := rc.s.saver.call(ctx, req)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return rep, rc.timedOut(req.Step)
	case err != nil:
		return rep, refuse("io", "%v", err)
	case rep.Error != "":
		return rep, refuse(rep.Code, "%s", rep.Error)
	}
	return rep, nil
}
