package shim

import (
	"os"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// saveKey names what one rank has prepared.
type saveKey struct {
	gen  uint64
	step int64
	rank int64
}

// fate is the verdict of a step, or the place to wait for it.
type fate struct {
	done chan struct{} // closed when v is set
	v    *wire.Verdict
}

type stepKey struct {
	gen  uint64
	step int64
}

// fatesMax is how many verdicts are remembered. Awaited ones come on top: there are no
// more than connections of ranks.
const fatesMax = 256

// save takes a prepared step of a rank: told now and again until its verdict.
func (s *shim) save(p *wire.Prepared) {
	if f := s.fates[stepKey{p.Generation, p.Step}]; f != nil && f.v != nil {
		return // decided already
	}
	s.prepared[saveKey{p.Generation, p.Step, p.Rank}] = p
	s.send(&ShimMessage{Type: "prepared", V: AgentProtocol, PID: os.Getpid(), Prepared: p})
	s.voice.News()
}

func (s *shim) repeatPrepared() {
	for _, p := range s.prepared {
		s.send(&ShimMessage{Type: "prepared", V: AgentProtocol, PID: os.Getpid(), Prepared: p})
	}
}

// fateOf is where the verdict of a step arrives.
func (s *shim) fateOf(gen uint64, step int64) *fate {
	k := stepKey{gen, step}
	f := s.fates[k]
	if f == nil {
		f = &fate{done: make(chan struct{})}
		s.fates[k] = f
	}
	return f
}

// verdict takes the leader's word on a step. Pending is no word: the shim goes on
// repeating. The first word on a step is the last (P4).
func (s *shim) verdict(v *wire.Verdict) {
	if v == nil || v.State != "committed" && v.State != "dropped" {
		return
	}
	for k := range s.prepared {
		if k.gen == v.Generation && k.step == v.Step {
			delete(s.prepared, k)
		}
	}
	if f := s.fateOf(v.Generation, v.Step); f.v == nil {
		f.v = v
		s.att.uploaded(v)
		close(f.done)
		s.decided = append(s.decided, stepKey{v.Generation, v.Step})
		if len(s.decided) > fatesMax {
			delete(s.fates, s.decided[0])
			s.decided = s.decided[1:]
		}
	}
}

// dropOldSaves forgets what older generations prepared: the leader has decided on
// those steps before it raised the generation.
func (s *shim) dropOldSaves() {
	for k := range s.prepared {
		if k.gen < s.journal.Generation {
			delete(s.prepared, k)
		}
	}
	for k, f := range s.fates {
		if k.gen < s.journal.Generation && f.v == nil {
			delete(s.fates, k) // who waited was answered at the end of its attempt
		}
	}
}

// verifyShare has this node's share of the restore step compared with its manifest.
func (s *shim) verifyShare(a *attempt) {
	r := a.spec.Restore
	req := SaverRequest{
		Op: "verify", Store: a.spec.Checkpoint.Store, Generation: a.spec.Generation, Run: s.cfg.Run, Step: r.Step, Dir: r.Dir, Digest: r.Digest,
		Share: a.spec.GroupRank, Shares: max(1, a.spec.GroupWorld),
	}
	if r.Store != "" {
		req.Store = r.Store
	}
	s.storeFolders(&req)
	go func() {
		rep, err := s.saver.call(a.ctx, req)
		s.post(func() {
			if a.done || a.ctx.Err() != nil {
				return
			}
			ev := wire.AllocEvent{Kind: wire.EventVerified, Generation: a.spec.Generation}
			switch {
			case err != nil:
				// Nothing was learned about the files: never to be taken for damage.
				ev.Kind, ev.Message = wire.EventDamaged, "io: "+err.Error()
			case rep.Error != "":
				ev.Kind, ev.Message = wire.EventDamaged, "io: "+rep.Error
			case rep.Finding != "":
				ev.Kind, ev.Message = wire.EventDamaged, rep.Finding
			case rep.Path != "":
				a.restore.fetched(rep.Path)
			}
			s.emit(ev)
		})
	}()
}
