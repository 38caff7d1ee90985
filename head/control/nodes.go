package control

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// verifier answers heartbeats only after a VerifyLeader that began after they
// arrived; one verification serves all that wait (DESIGN §5).
type verifier struct {
	log  Log
	mu   sync.Mutex
	wait []chan error
	wake chan struct{}
}

func newVerifier(log Log) *verifier {
	return &verifier{log: log, wake: make(chan struct{}, 1)}
}

func (v *verifier) ask(ctx context.Context) error {
	c := make(chan error, 1)
	v.mu.Lock()
	v.wait = append(v.wait, c)
	v.mu.Unlock()
	select {
	case v.wake <- struct{}{}:
	default:
	}
	select {
	case err := <-c:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (v *verifier) loop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-v.wake:
		}
		v.mu.Lock()
		batch := v.wait
		v.wait = nil
		v.mu.Unlock()
		err := v.log.Verify(ctx)
		for _, c := range batch {
			c <- err
		}
	}
}

// subscribe takes the subjects that nodes talk to the leader on.
func (h *Head) subscribe(ctx context.Context) error {
	handlers := map[string]func(context.Context, string, []byte) (any, error){
		wire.HeadRegister:  h.onRegister,
		wire.HeadHeartbeat: h.onHeartbeat,
		wire.HeadReport:    h.onReport,
		wire.HeadPrepared:  h.onPrepared,
		wire.HeadFetch:     h.onFetch,
		wire.HeadPackage:   h.onPackage,
		wire.HeadRenew:     h.onRenew,
		wire.HeadShim:      h.onShimCall,
		wire.HeadNotice:    h.onNotice,
	}
	for prefix, handle := range handlers {
		// One slow node must not hold up the others of a subject.
		gate := make(chan struct{}, 64)
		un, err := h.Bus.Subscribe(prefix+"*", func(m bus.Msg) {
			node := strings.TrimPrefix(m.Subject, prefix)
			select {
			case gate <- struct{}{}:
			case <-ctx.Done():
				return
			}
			h.spawn(ctx, func() {
				defer func() { <-gate }()
				h.answer(ctx, m, node, handle)
			})
		})
		if err != nil {
			return fmt.Errorf("subscribe %s*: %w", prefix, err)
		}
		h.mu.Lock()
		h.unsub = append(h.unsub, un)
		h.mu.Unlock()
	}
	return nil
}

func (h *Head) answer(ctx context.Context, m bus.Msg, node string, handle func(context.Context, string, []byte) (any, error)) {
	reply, err := handle(ctx, node, m.Data)
	if err != nil {
		// A malformed or untimely message gets no answer; the node repeats itself.
		if ctx.Err() == nil {
			h.Logger.Warn("a node's message was not taken", "node", node, "subject", m.Subject, "err", err)
		}
		return
	}
	if reply == nil {
		return
	}
	data, err := wire.Marshal(reply)
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil && ctx.Err() == nil {
		h.Logger.Debug("an answer was not sent", "node", node, "subject", m.Subject, "err", err)
	}
}

func (h *Head) position() wire.Position {
	v := h.Store.View()
	return wire.Position{Term: v.Term(), Index: v.Index()}
}

func (h *Head) onRegister(ctx context.Context, node string, data []byte) (any, error) {
	var req wire.RegisterRequest
	if err := wire.Unmarshal(data, &req); err != nil {
		return nil, err
	}
	cmd := state.RegisterNode{ID: node, Info: req.Node, Seq: req.Seq}
	for _, a := range req.Allocs {
		cmd.Present = append(cmd.Present, a.ID)
	}
	meta := h.Store.View().Meta()
	if _, err := h.propose(ctx, state.KindRegisterNode, cmd); err != nil {
		return wire.RegisterReply{Error: err.Error(), Position: h.position(), Life: meta.Life, Cluster: meta.Cluster}, nil
	}
	h.nodes.open(node, req.Node.Session, req.Seq, req.Ports, req.Allocs)
	h.lookNow()
	h.Kick()
	return wire.RegisterReply{Position: h.position(), Life: meta.Life, Cluster: meta.Cluster}, nil
}

func (h *Head) onHeartbeat(ctx context.Context, node string, data []byte) (any, error) {
	var b wire.Heartbeat
	if err := wire.Unmarshal(data, &b); err != nil {
		return nil, err
	}
	if !h.nodes.beat(node, b) {
		return wire.HeartbeatAck{Seq: b.Seq, Unknown: true, Position: h.position()}, nil
	}
	if b.Restarting {
		h.lookNow()
	}
	if err := h.verify.ask(ctx); err != nil {
		return nil, err
	}
	h.hearAnswers(b.Allocs)
	// Beside the answer: a slow disk must not cost the node its lease.
	h.spawn(ctx, func() { h.noteFirstSteps(ctx, b.Allocs) })
	v := h.Store.View()
	if n := v.Node(node); n != nil && n.State != api.NodeReady {
		if n.State == api.NodeLost {
			// A lost node's work may run elsewhere by now: it must register anew.
			return wire.HeartbeatAck{Seq: b.Seq, Unknown: true, Position: h.position()}, nil
		}
		h.lookNow()
	}
	ack := wire.HeartbeatAck{
		Seq: b.Seq, Position: wire.Position{Term: v.Term(), Index: v.Index()},
		Lease: dur(h.Timing.LeaseStrict), Orphan: dur(h.Timing.Orphan),
	}
	for i := range b.Allocs {
		if a := v.Alloc(b.Allocs[i].ID); a != nil && a.Node == node {
			if j := v.Job(a.Job); j != nil {
				ack.Terms = append(ack.Terms, wire.AllocTerms{ID: a.ID, Class: j.ClassOf(), Lease: dur(h.leaseOf(j))})
			}
		}
	}
	return ack, nil
}

// noteFirstSteps logs once for each attempt that it has made a step; the same
// traceback before it ends the job, after it does not.
func (h *Head) noteFirstSteps(ctx context.Context, allocs []wire.AllocStatus) {
	v := h.Store.View()
	for _, a := range allocs {
		j := v.Job(a.Job)
		if j == nil || j.State.Terminal() || j.Last() == nil || j.Last().Generation != a.Generation || j.Last().FirstStep {
			continue
		}
		if newest := newestOf(a.Steps); newest >= 0 {
			h.try(ctx, state.KindFirstStep, state.FirstStep{Job: j.ID, Generation: a.Generation, Step: newest})
		}
	}
}

func (h *Head) onReport(ctx context.Context, node string, data []byte) (any, error) {
	var r wire.Report
	if err := wire.Unmarshal(data, &r); err != nil {
		return nil, err
	}
	if _, err := h.propose(ctx, state.KindFacts, state.Facts{Node: node, Events: r.Events}); err != nil {
		return nil, err
	}
	ack := wire.ReportAck{Position: h.position()}
	seqs := map[string]uint64{}
	for _, e := range r.Events {
		seqs[e.Alloc] = max(seqs[e.Alloc], e.Seq)
	}
	for _, e := range r.Events {
		if s, ok := seqs[e.Alloc]; ok {
			ack.Acked = append(ack.Acked, wire.SeqAck{Alloc: e.Alloc, Seq: s})
			delete(seqs, e.Alloc)
		}
	}
	return ack, nil
}
