package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
	"github.com/troupe-runtime/troupe/elastic/checkpoint/store"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/bus/link"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// speakUp gives the shim the product's own voice, over the simulated bus.
func (s *simShim) speakUp() {
	ctx, cancel := context.WithCancel(s.n.c.ctx)
	s.mute = cancel
	boot := s.n.boot()
	s.voice = shim.NewVoice(shim.VoiceOptions{
		Node: s.n.ID, Clock: bootClock{s.n.clock, s.n}, Boot: s.n.boottime,
		Dial: func() (link.Conn, error) {
			if s.n.cutPower() {
				return nil, errNoShim
			}
			return tap{s.n.c.Bus.Connect(shimIdentity+s.n.ID, bus.Permission{
				Publish: []string{wire.HeadShim + s.n.ID}, Inbox: wire.InboxPrefix(shimIdentity + s.n.ID),
			}), s.n.c, nil}, nil
		},
		Call: func() (wire.ShimCall, bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.dead {
				return wire.ShimCall{}, false
			}
			st := s.status().Status
			return wire.ShimCall{
				Alloc: st.ID, Job: st.Job, Boot: boot, Generation: st.Generation, State: st.State, Steps: st.Steps,
				Answers: st.Answers, Prepared: s.unsure(), Done: s.doneErrands(),
				Events: append([]wire.AllocEvent(nil), s.journal.Unacked[:min(len(s.journal.Unacked), wire.MaxCallEvents)]...),
			}, true
		},
		Heard: func(ack wire.ShimAck, sent time.Duration) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if !s.dead {
				s.heard(&ack, sent)
				s.leave()
			}
		},
	})
	s.n.c.spawn(func() { s.voice.Run(ctx) })
}

// speak decides by the rules of worker/shim. s.mu is held.
func (s *simShim) speak() {
	silent := s.n.boottime()-s.agentAt > 1500*time.Millisecond
	s.voice.Speak(!s.dead && (len(s.conns) == 0 || s.att.active() && s.att.began && silent))
}

// heard obeys the leader's own word. s.mu is held.
func (s *simShim) heard(ack *wire.ShimAck, sent time.Duration) {
	if ack.Lease > 0 {
		s.renew(&shim.AgentMessage{SentAt: int64(sent), Lease: ack.Lease, Orphan: ack.Orphan, Class: ack.Class})
	}
	s.ack(ack.Acked)
	if o := ack.Stop; o != nil {
		if key := fmt.Sprint(s.journal.Generation, o.Grace, o.Reason); key != s.ordered {
			s.ordered = key
			s.dropNext(o.Reason)
			s.end(o.Grace.D(), o.Reason, o.Quiet)
		}
	}
	if s.next != nil && s.next.Generation <= ack.Over {
		s.dropNext("the attempt is over")
	}
	if a := s.att; a.active() && !a.over && a.spec.Generation <= ack.Over {
		s.end(max(ack.Grace.D(), defaultGrace), "the attempt is over", true)
	}
	if ack.Proposal != nil {
		s.propose(ack.Generation, ack.Proposal)
	}
	for i := range ack.Verdicts {
		s.verdict(&ack.Verdicts[i])
	}
	s.takeErrands(ack.Tasks)
	if ack.End {
		s.finish("the allocation is not wanted any more")
	}
}

// unsure lists the steps whose verdict is not known. s.mu is held.
func (s *simShim) unsure() []wire.Prepared {
	var out []wire.Prepared
	for _, k := range s.preparedKeys() {
		out = append(out, *s.prepared[k])
	}
	return out
}

// takeErrands carries out what is new and forgets what is named no more. s.mu is held.
func (s *simShim) takeErrands(tasks []wire.Task) {
	s.errands = slices.DeleteFunc(s.errands, func(r wire.TaskReply) bool {
		return !slices.ContainsFunc(tasks, func(t wire.Task) bool { return t.ID == r.ID })
	})
	for _, t := range tasks {
		if !slices.ContainsFunc(s.errands, func(r wire.TaskReply) bool { return r.ID == t.ID }) {
			open := store.New(s.n.disk(), s.cfg.Alloc).Open
			s.errands = append(s.errands, checkpoint.Do(s.n.c.ctx, open, s.n.disk(), t, s.n.clock.Now()))
		}
	}
}

func (s *simShim) doneErrands() []wire.TaskReply { return slices.Clone(s.errands) }
