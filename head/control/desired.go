package control

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/elastic/plan"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// desiredOf derives what a node is to run from the state alone, so every leader
// derives the same. An allocation is desired while its job lives and every bundle it
// uses still belongs to the placement.
func (h *Head) desiredOf(v *state.View, node string) []wire.Alloc {
	var out []wire.Alloc
	for _, a := range v.AllocsOn(node) {
		j := v.Job(a.Job)
		if a.Gone {
			continue
		}
		if j == nil || j.State.Terminal() || a.Leaving || !held(v, a) {
			// Named as long as it is not proven gone: the node may never have heard of it.
			out = append(out, wire.Alloc{ID: a.ID, Job: a.Job, Group: a.Group, End: true})
			continue
		}
		out = append(out, h.desiredAlloc(v, j, a))
	}
	return out
}

// failureGrace is how long the peers of a rank that is gone live on by default.
const failureGrace = 200 * time.Millisecond

func held(v *state.View, a *state.Alloc) bool {
	for _, id := range a.Holds {
		if hold := v.Hold(id); hold == nil || hold.Releasing {
			return false
		}
	}
	return true
}

func (h *Head) desiredAlloc(v *state.View, j *state.Job, a *state.Alloc) wire.Alloc {
	w := wire.Alloc{
		ID: a.ID, Job: j.ID, JobName: j.Spec.Name, Run: j.Run(), Group: a.Group, Tenant: j.Spec.Tenant,
		Class: wire.ClassFast,
	}
	for _, id := range a.Holds {
		if hold := v.Hold(id); hold != nil {
			w.Limits.CPU += hold.Need.CPU
			w.Limits.Memory += hold.Need.Memory
			w.Devices = append(w.Devices, hold.Devices...)
		}
	}
	if o := j.Spec.Owner; o != nil && o.BootID == a.BootID {
		w.Owner = o
	}
	at := j.Last()
	if at == nil {
		return w
	}
	w.Class = j.ClassOf()
	if j.Stop != nil {
		w.Stop = &wire.StopOrder{Grace: unit.Duration(j.Stop.GraceNS), Reason: j.Stop.Reason}
	}
	if at.Aborted != 0 && w.Stop == nil {
		grace := j.Spec.FailureGrace
		if grace <= 0 {
			grace = unit.Duration(failureGrace)
		}
		w.Stop = &wire.StopOrder{Grace: grace, Reason: "a rank or node of the attempt is gone", Quiet: true}
	}
	if j.OwnerGone && w.Stop == nil {
		w.Stop = &wire.StopOrder{Grace: j.Spec.ShutdownTimeout, Reason: "its owner has ended"}
	}
	if d := j.Drain; d != nil && d.Ordered != "" && d.Generation == at.Generation && at.Ended == 0 && w.Stop == nil {
		w.Stop = &wire.StopOrder{Grace: j.Spec.ShutdownTimeout, Reason: d.Reason}
	}
	if at.Ended != 0 || a.Generation != at.Generation {
		// Between two attempts the ranks of the old one end; the shim stays.
		return w
	}
	w.Attempt = h.attemptOn(v, j, at, a)
	if p := j.Proposal; p != nil && p.Generation == at.Generation {
		w.Proposal = &p.Proposal
	}
	return w
}

// programOf is what every attempt of a job has in common: nothing in it changes from one
// to the next.
func programOf(j *state.Job) *wire.AttemptSpec {
	return &wire.AttemptSpec{
		MaxRestarts: maxRestarts(j.Spec.Restart), Command: j.Spec.Command,
		WorkingDir: j.Spec.WorkingDir, Package: j.Spec.Package, Env: j.Spec.Env, LaunchEnv: j.Spec.LaunchEnv, Role: j.Spec.Role, RunID: j.Spec.RunID,
		ShutdownTimeout: j.Spec.ShutdownTimeout, VirtualLocalRank: j.Spec.VirtualLocalRank, NumaBinding: j.Spec.NumaBinding,
		FailureGrace: j.Spec.FailureGrace, Actor: j.Spec.Actor, NoWarm: j.Spec.NoWarm, StallKill: j.Spec.Restart.StallKill,
	}
}

// attemptOn is one attempt as one node runs it.
func (h *Head) attemptOn(v *state.View, j *state.Job, at *state.Attempt, a *state.Alloc) *wire.AttemptSpec {
	s := programOf(j)
	s.Number, s.Generation, s.World = at.Number, at.Generation, int64(len(at.Ranks))
	s.MasterAddr, s.MasterPort, s.GroupWorld = at.MasterAddr, at.MasterPort, int64(len(at.Allocs))
	s.Ranks = a.Ranks
	s.Checkpoint = wire.CheckpointSpec{Store: h.storeOf(v, j), Life: v.Meta().Life, Deadline: h.saveDeadline(j)}
	for i, id := range at.Allocs {
		if id == a.ID {
			s.GroupRank = int64(i)
		}
	}
	if i, err := plan.ParseInterval(j.Spec.Checkpoint.Interval); err == nil {
		s.Checkpoint.EverySteps = i.Steps
	}
	s.Checkpoint.Refuse = at.NoSaves
	if r := at.Restore; r != nil {
		s.Restore = &wire.RestoreSpec{Step: r.Step, Dir: r.Dir, Digest: r.Digest, Verified: r.Verified, Store: r.Store}
	}
	if j.Spec.Kind == api.KindActor {
		access := h.actorBus(j, at)
		s.ActorBus = &access
	}
	return s
}

func maxRestarts(p api.RestartPolicy) int64 {
	switch {
	case p.MaxRestarts != nil:
		return *p.MaxRestarts
	case p.User != nil:
		return *p.User
	}
	return 3
}

// saveDeadline is how long a save of a job may take.
func (h *Head) saveDeadline(j *state.Job) unit.Duration {
	if d := j.Spec.Checkpoint.SaveDeadline; d > 0 {
		return d
	}
	return unit.Duration(h.Timing.Prepare)
}

// storeOf is where a job's checkpoints live.
func (h *Head) storeOf(v *state.View, j *state.Job) string {
	if s := j.Spec.Checkpoint.Store; s != "" {
		return s
	}
	return v.Meta().Store
}

// push sends every node whose desired state changed, or was not taken, its new one.
func (h *Head) push(ctx context.Context) {
	v := h.Store.View()
	now := h.Clock.Now()
	warm := warming(v)
	for _, n := range v.Nodes() {
		if !h.nodes.known(n.ID) {
			continue
		}
		d := wire.Desired{Allocs: h.desiredOf(v, n.ID), Warm: h.warmOn(v, n.ID, warm[n.ID])}
		body, err := wire.Marshal(d)
		if err != nil {
			h.Logger.Error("desired state does not encode", "node", n.ID, "err", err)
			continue
		}
		if !h.nodes.claim(n.ID, body, now, h.Timing.Resend) {
			continue
		}
		d.Position = wire.Position{Term: v.Term(), Index: v.Index()}
		node := n.ID
		h.spawn(ctx, func() { h.send(ctx, node, body, d) })
	}
}

// claim decides whether to push now: the content changed, or the last push was not
// taken and is old enough. One push of a node is under way at a time.
func (s *sessions) claim(node string, body []byte, now time.Time, resend time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.byID[node]
	if n == nil || n.busy {
		return false
	}
	if same := bytes.Equal(n.sent, body) && !n.sentAt.IsZero(); same && (n.taken || now.Sub(n.sentAt) < resend) {
		return false
	}
	n.sent, n.sentAt, n.taken, n.busy = body, now, false, true
	return true
}

func (s *sessions) pushed(node string, body []byte, taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.byID[node]; n != nil {
		n.busy = false
		if bytes.Equal(n.sent, body) {
			n.taken = taken
		}
	}
}

func (h *Head) send(ctx context.Context, node string, body []byte, d wire.Desired) {
	data, err := wire.Marshal(d)
	if err == nil {
		rctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		var raw []byte
		raw, err = h.Bus.Request(rctx, wire.NodeDesired(node), data)
		cancel()
		var taken wire.Position
		if err == nil {
			err = wire.Unmarshal(raw, &taken)
		}
		if err == nil && taken.Less(d.Position) {
			err = fmt.Errorf("the node stands at %d of term %d", taken.Index, taken.Term)
		}
	}
	h.nodes.pushed(node, body, err == nil)
	if err != nil {
		if ctx.Err() == nil {
			h.Logger.Debug("desired state was not taken", "node", node, "err", err)
		}
		return
	}
	h.Kick() // something newer may have come meanwhile
}

// onFetch answers an agent that asks for its desired state.
func (h *Head) onFetch(_ context.Context, node string, _ []byte) (any, error) {
	v := h.Store.View()
	return wire.Desired{Position: wire.Position{Term: v.Term(), Index: v.Index()}, Allocs: h.desiredOf(v, node), Warm: h.warmOn(v, node, warming(v)[node])}, nil
}
