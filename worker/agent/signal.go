package agent

import (
	"context"
	"fmt"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/shim"
)

// maxOrders bounds what waits for a shim that does not answer.
const maxOrders = 64

// onSignal passes a signal on to ranks of this node.
func (a *Agent) onSignal(_ context.Context, m bus.Msg) {
	var s wire.Signal
	if err := wire.Unmarshal(m.Data, &s); err != nil {
		a.Logger.Warn("a malformed signal was refused", "err", err)
		return
	}
	var reply wire.SignalReply
	if err := a.signal(&s); err != nil {
		reply.Error = err.Error()
	}
	a.Logger.Info("a signal for ranks", "job", s.Job, "generation", s.Generation, "signal", s.Number, "ranks", s.Ranks, "refused", reply.Error)
	a.respond(m, reply)
}

func (a *Agent) signal(s *wire.Signal) error {
	a.mu.Lock()
	x := a.allocs[s.Alloc]
	newest := a.newest
	var st wire.AllocStatus
	full := false
	if x != nil {
		st, full = x.status, len(x.orders) >= maxOrders
	}
	a.mu.Unlock()
	switch {
	case s.Position.Term < newest.Term:
		return fmt.Errorf("the request is of term %d, this node has heard of term %d", s.Position.Term, newest.Term)
	case x == nil || st.Generation != s.Generation || st.State != wire.AllocRunning: // P3
		return fmt.Errorf("generation %d of %s does not run here", s.Generation, s.Job)
	}
	if full {
		return fmt.Errorf("the shim of %s has not taken earlier signals yet", s.Job)
	}
	x.order(shim.AgentMessage{Type: "signal", Signal: s})
	return nil
}
