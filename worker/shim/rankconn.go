package shim

import (
	"errors"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/worker/process"
)

const (
	connsPerRank = 8
	helloLimit   = 10 * time.Second
	maxMetrics   = 64
	maxText      = 4 << 10 // of a cursor, digest or name that a rank sends
)

// rankConn is one connection of a rank. Its requests are answered one after the
// other, on its own goroutine, which may wait; state is asked of the loop.
type rankConn struct {
	s *shim
	c *net.UnixConn
	a *attempt
	r *rank
	// own is who speaks here.
	own speaker
}

func (s *shim) acceptRanks(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		if err := process.CheckPeer(c); err != nil {
			log.Printf("rank socket: %v", err)
			c.Close()
			continue
		}
		if n := s.rankConns.Add(1); n > max(connsPerRank, connsPerRank*s.localRanks.Load()) {
			s.rankConns.Add(-1)
			_ = c.SetWriteDeadline(time.Now().Add(time.Second))
			_ = WriteFrame(c, MaxRankFrame, refuse("usage", "too many connections: %d for each rank", connsPerRank))
			c.Close()
			continue
		}
		go func() {
			defer s.rankConns.Add(-1)
			defer c.Close()
			rc := &rankConn{s: s, c: c}
			defer rc.leave()
			rc.serve()
		}()
	}
}

func refuse(code, format string, args ...any) *RankReply {
	return &RankReply{Code: code, Error: clip(fmt.Sprintf(format, args...), maxText), Step: -1}
}

func (rc *rankConn) serve() {
	_ = rc.c.SetReadDeadline(time.Now().Add(helloLimit))
	for {
		var req RankRequest
		err := ReadFrame(rc.c, MaxRankFrame, &req)
		if errors.Is(err, ErrFrame) {
			rc.reply(refuse("usage", "%v; the connection is closed", err), MaxRankFrame)
		}
		if err != nil {
			return
		}
		rep, limit := rc.answer(&req), MaxRankFrame
		rc.framed(&req, rep)
		if req.Op == "bus" {
			limit = MaxBusReply
		}
		if !rc.reply(rep, limit) || rc.a == nil {
			return
		}
		_ = rc.c.SetReadDeadline(time.Time{})
	}
}

func (rc *rankConn) reply(rep *RankReply, limit int) bool {
	_ = rc.c.SetWriteDeadline(time.Now().Add(writeLimit))
	if rep.pass != nil {
		return writeFrameFile(rc.c, limit, rep, rep.pass) == nil
	}
	err := WriteFrame(rc.c, limit, rep)
	if errors.Is(err, ErrFrameSize) {
		err = WriteFrame(rc.c, MaxRankFrame, refuse("usage", "the answer cannot be sent: %v", err))
	}
	return err == nil
}

// ask runs f in the loop and waits for it; false when the shim is leaving.
func (s *shim) ask(f func()) bool {
	done := make(chan struct{})
	s.post(func() { f(); close(done) })
	select {
	case <-done:
		return true
	case <-s.quit:
		return false
	}
}

func (rc *rankConn) answer(req *RankRequest) *RankReply {
	if rc.a == nil {
		if req.Op != "hello" {
			return refuse("usage", "the first request must be hello, not %q", clip(req.Op, 64))
		}
		return rc.hello(req)
	}
	if rc.a.ctx.Err() != nil {
		return refuse("ended", "the attempt is being ended")
	}
	switch req.Op {
	case "hello":
		return refuse("usage", "hello was said already")
	case "resume":
		return rc.resume()
	case "begin":
		rc.s.post(rc.r.pace.beginSave)
		return rc.begin(req)
	case "prepare":
		return rc.prepare(req)
	case "buffer":
		rc.s.post(rc.r.pace.beginSave)
		return rc.buffer(req)
	case "stage":
		return rc.stage(req)
	case "verdict":
		return rc.verdict(req)
	case "abort":
		return rc.abort(req)
	case "phase":
		if len(req.Name) > maxText || req.TimeoutMS < 0 {
			return refuse("usage", "phase: name too long or timeout negative")
		}
		return rc.done(func() { rc.r.phase = req.Name })
	case "report":
		if len(req.Metrics) > maxMetrics {
			return refuse("usage", "report: %d metrics, at most %d are kept", len(req.Metrics), maxMetrics)
		}
		return rc.done(func() { rc.r.metrics = req.Metrics })
	case "bus":
		return rc.bus()
	}
	return refuse("usage", "unknown request %q: this shim speaks version %d", clip(req.Op, 64), ProtocolVersion)
}

func (rc *rankConn) done(f func()) *RankReply {
	if !rc.s.ask(f) {
		return refuse("ended", "the shim is ending")
	}
	return &RankReply{OK: true, Step: -1}
}

// hello admits a rank of the current generation and no other (P3).
func (rc *rankConn) hello(req *RankRequest) *RankReply {
	if req.V < 1 {
		return refuse("version", "hello without a protocol version; this shim speaks %d", ProtocolVersion)
	}
	rep := refuse("ended", "the shim is ending")
	rc.s.ask(func() {
		a := rc.s.att
		switch {
		case !a.active() || a.killed:
			rep = refuse("ended", "no attempt runs")
			return
		case req.Generation != a.spec.Generation:
			rep = refuse("generation", "generation %d is not the current one, %d", req.Generation, a.spec.Generation)
			return
		}
		r := a.rank(req.Rank)
		if r == nil {
			rep = refuse("usage", "rank %d is not on this node", req.Rank)
			return
		}
		rc.a, rc.r = a, r
		rep = &RankReply{
			OK: true, V: ProtocolVersion, World: a.spec.World, Step: -1,
			Store: a.spec.Checkpoint.Store, EverySteps: a.spec.Checkpoint.EverySteps,
			SaveDeadlineMS: a.saveDeadline().Milliseconds(),
			Stacks:         rc.s.stackFile(a.spec.Generation, req.Rank), StackSignal: StackSignal,
		}
	})
	if rep.OK {
		if err := rc.givePage(rep); err != nil {
			rc.a, rc.r = nil, nil
			return refuse("io", "%v", err)
		}
		rc.listenTo()
	}
	return rep
}

// givePage makes the rank's page, if this is the first of its processes to say hello.
func (rc *rankConn) givePage(rep *RankReply) error {
	a, r := rc.a, rc.r
	r.paging.Lock()
	defer r.paging.Unlock()
	var has *rankPage
	rc.s.ask(func() { has = r.page })
	if has == nil {
		p, err := newRankPage(rc.s.cfg.SocketDir, a.spec.Generation, r.spec.Rank)
		if err != nil {
			return err
		}
		if has = p; !rc.s.ask(func() { a.takePage(r, p) }) {
			p.remove()
		}
	}
	rep.Page = has.path
	return nil
}

// takePage shows a rank, on its new page, what it would have seen there before.
func (a *attempt) takePage(r *rank, p *rankPage) {
	if a.done {
		p.remove()
		return
	}
	r.page = p
	a.showTo(r)
	if r.stopBy != 0 {
		p.stop(r.stopBy)
	}
}

// resume answers once every share of the step is whole: no rank loads a step that
// another is about to reject (P4).
func (rc *rankConn) resume() *RankReply {
	r := rc.a.spec.Restore
	if r == nil {
		return &RankReply{OK: true, Step: -1}
	}
	select {
	case <-rc.a.verified:
	case <-rc.a.ctx.Done():
		return refuse("ended", "the attempt ended before step %d was verified", r.Step)
	}
	select {
	case <-rc.a.restore.ready:
		return &RankReply{OK: true, Step: r.Step, Path: rc.a.restore.path}
	case <-rc.a.ctx.Done():
		return refuse("ended", "the attempt ended before step %d was here", r.Step)
	}
}

func (rc *rankConn) saverRequest(op string, req *RankRequest) (SaverRequest, *RankReply) {
	c := rc.a.spec.Checkpoint
	if c.Store == "" {
		return SaverRequest{}, refuse("usage", "this job has no checkpoint store: give it one")
	}
	if req.Step < 0 {
		return SaverRequest{}, refuse("usage", "step %d: steps count from 0", req.Step)
	}
	if c.Refuse != "" {
		// No rank of the attempt can save: each of them is told, and goes on.
		return SaverRequest{}, refuse("dropped", "%s", c.Refuse)
	}
	sr := SaverRequest{
		Op: op, Store: c.Store, Run: rc.s.cfg.Run, Step: req.Step,
		Generation: rc.a.spec.Generation, Life: c.Life, Rank: rc.r.spec.Rank, Files: req.Files,
	}
	rc.s.storeFolders(&sr)
	return sr, nil
}

func (rc *rankConn) begin(req *RankRequest) *RankReply {
	sr, bad := rc.saverRequest("begin", req)
	if bad != nil {
		return bad
	}
	// A later step must not be told before an earlier one: it would drop it.
	if bad := rc.settled(req); bad != nil {
		return bad
	}
	rep, bad := rc.save(sr)
	if bad != nil && bad.Code == "space" {
		// Nothing is written yet, so the step is given up for all ranks and none of them
		// needs to end: a full store costs steps and not the job.
		rc.abort(&RankRequest{Step: req.Step, Name: bad.Error})
		return refuse("dropped", "%s", bad.Error)
	}
	if bad != nil {
		return bad
	}
	rc.springAt(api.SaveBegun)
	return &RankReply{OK: true, Path: rep.Path, Shared: rep.Shared, Step: req.Step}
}

// prepare answers when the files are durable and hashed; from then on the shim
// tells the leader until it hears the step's fate, even if the rank dies.
func (rc *rankConn) prepare(req *RankRequest) *RankReply {
	if bad := tooLong(req); bad != nil {
		return bad
	}
	sr, bad := rc.saverRequest("prepare", req)
	if bad != nil {
		return bad
	}
	rc.springAt(api.SaveWritten)
	rep, bad := rc.save(sr)
	if bad != nil {
		return bad
	}
	p := rc.s.preparedOf(rc.a, req, sr, rep)
	out := rc.done(func() {
		rc.s.save(p)
		rc.s.spring(api.SavePrepared, sr.Generation, sr.Rank)
	}).at(req.Step)
	out.HashNS = rep.HashNS
	return out
}

func (r *RankReply) at(step int64) *RankReply {
	r.Step = step
	return r
}

func (rc *rankConn) verdict(req *RankRequest) *RankReply {
	var f *fate
	if !rc.s.ask(func() { f = rc.s.fateOf(rc.a.spec.Generation, req.Step) }) {
		return refuse("ended", "the shim is ending")
	}
	var over <-chan time.Time
	if req.TimeoutMS > 0 {
		t := time.NewTimer(time.Duration(req.TimeoutMS) * time.Millisecond)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-f.done:
		return &RankReply{OK: true, Step: req.Step, State: f.v.State, Reason: clip(f.v.Reason, maxText)}
	case <-over:
		return &RankReply{OK: true, Step: req.Step, State: "pending"}
	case <-rc.a.ctx.Done():
		return refuse("ended", "the attempt ended before step %d was decided", req.Step)
	}
}

func (rc *rankConn) abort(req *RankRequest) *RankReply {
	reason := clip(req.Name, maxText)
	if reason == "" {
		reason = "its script did not finish the save"
	}
	dropped := false
	rep := rc.done(func() {
		dropped, reason = rc.s.abandon(rc.a, rc.r.spec.Rank, req.Step, reason)
	})
	if dropped && rep.OK {
		rep.State, rep.Reason = "dropped", reason
	}
	return rep.at(req.Step)
}

// bus tells an actor host how to reach the bus and what it hosts.
func (rc *rankConn) bus() *RankReply {
	b, actor := rc.a.spec.ActorBus, rc.a.spec.Actor
	if b == nil || actor == nil {
		return refuse("usage", "this job is no actor")
	}
	return &RankReply{
		OK: true, Step: -1, URLs: b.URLs, User: b.User, Password: b.Password, InboxPrefix: b.InboxPrefix,
		ActorID: rc.s.cfg.Job, ActorClass: actor.Class, ActorArgs: actor.Args,
	}
}
