package control

import (
	"context"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

const (
	// watchMost is the longest pause between two looks at the nodes.
	watchMost = 500 * time.Millisecond
	// lagFrom is from when on a look that comes late is this head's own fault: silence that
	// it slept through says nothing about nodes.
	lagFrom  = 250 * time.Millisecond
	askSteps = 300 * time.Millisecond // peers have to tell their steps
	maxAsked = 64                     // peers asked at once
	// registrationsPerSecond is what a head takes when all nodes come back to it (DESIGN §5).
	registrationsPerSecond = 2000
)

// lookNow makes the watch look at the nodes again at once.
func (h *Head) lookNow() {
	select {
	case h.look <- struct{}{}:
	default:
	}
}

// Closed takes the news that a connection of a node's agent, or of one of its shims, has
// ended.
func (h *Head) Closed(node string, shim bool) {
	if h.nodes.hangUp(node, shim) {
		h.lookNow()
	}
}

// watch judges the nodes whenever time or news may have changed the judgement. It has a
// loop of its own, so that no slow work elsewhere delays it.
func (h *Head) watch(ctx context.Context) {
	timer := h.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		due := h.watchNodes(ctx)
		now := h.Clock.Now()
		pause := min(max(due.Sub(now), time.Millisecond), watchMost)
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return
		case <-h.look:
			timer.Stop()
		case <-timer.C():
			if late := h.Clock.Now().Sub(now) - pause; late > lagFrom {
				h.Logger.Warn("this head was held up; it judges no node by the silence meanwhile", "late", late.Round(time.Millisecond))
				h.nodes.excuse(late)
			}
		}
	}
}

// grace is how long a new leader declares nobody lost: nodes that lost their head come
// back spread over a time that grows with their number.
func (h *Head) grace(nodes int) time.Duration {
	spread := time.Duration(nodes) * time.Second / registrationsPerSecond
	return max(h.Timing.Grace, 2*spread+2*time.Second)
}

// watchNodes declares who is suspect, agentless, lost or back, and says when to look
// again. Only a verified leader declares (I13).
func (h *Head) watchNodes(ctx context.Context) time.Time {
	v := h.Store.View()
	nodes := v.Nodes()
	now := h.Clock.Now()
	next := now.Add(watchMost)
	if left := h.grace(len(nodes)) - h.nodes.leadingFor(); left > 0 {
		return now.Add(left)
	}
	lost := map[string]finding{}
	for _, n := range nodes {
		if n.State == api.NodeLost {
			continue // it comes back by registering, never by a late heartbeat
		}
		s := h.nodes.sight(n.ID)
		s.state = n.State
		if n.Hold != 0 {
			s.hold = time.Unix(0, n.Hold)
		}
		for _, a := range v.AllocsOn(n.ID) {
			s.busy = s.busy || !a.Gone
		}
		f := h.Timing.judge(&s, now)
		if f.state == api.NodeLost && h.mayStillArrive(n.ID) {
			f.state, f.next = api.NodeSuspect, now.Add(watchMost)
		}
		if f.state == api.NodeLost {
			lost[n.ID] = f
			continue
		}
		next = earlier(next, f.next)
		h.declare(ctx, n, f)
	}
	return earlier(next, h.declareLost(ctx, v, lost))
}

// mayStillArrive: a new leader does not know yet whether a node that it never heard is
// lost or on its way.
func (h *Head) mayStillArrive(node string) bool {
	if !h.nodes.unheard(node) {
		return false
	}
	leading := h.nodes.leadingFor()
	return leading < backIn || leading < h.Timing.Arrival && h.nodes.arriving(h.Timing.Lost)
}

func (h *Head) declare(ctx context.Context, n *state.Node, f finding) {
	if f.state == n.State {
		return
	}
	if f.state != api.NodeReady && h.verify.ask(ctx) != nil {
		return
	}
	cmd := state.SetNodeState{ID: n.ID, State: f.state, Why: f.why, Session: n.Info.Session}
	if !f.hold.IsZero() {
		cmd.Hold = f.hold.UnixNano()
	}
	if f.state == api.NodeSuspect {
		if !h.ck.order.take(ctx) {
			return
		}
		defer h.ck.order.give()
	}
	if _, ok := h.try(ctx, state.KindSetNodeState, cmd); ok && f.state == api.NodeLost {
		h.nodes.lost(n.ID)
	}
}

// declareLost declares those lost of whose groups no rank advances any more on other
// nodes. The others stay suspect: a network that is silent to this head alone must not
// end work that goes on.
func (h *Head) declareLost(ctx context.Context, v *state.View, lost map[string]finding) time.Time {
	next := h.Clock.Now().Add(watchMost)
	peers := map[string]bool{}
	for id, f := range lost {
		for _, j := range h.proving(v, id, f, lost) {
			for _, r := range j.Last().Ranks {
				if n := v.Node(r.Node); n != nil && n.State == api.NodeReady && r.Node != id && len(peers) < maxAsked {
					peers[r.Node] = true
				}
			}
		}
	}
	h.askSteps(ctx, peers)
	now := h.Clock.Now()
	for id, f := range lost {
		n := v.Node(id)
		for _, j := range h.proving(v, id, f, lost) {
			until := h.nodes.moving(j.ID, j.Last().Generation, h.heldWait(j, f.wait))
			if !until.After(now) {
				continue
			}
			next = earlier(next, until)
			f.state, f.why, f.hold = api.NodeSuspect, f.why+"; ranks of "+j.ID+" advance on other nodes all the same", time.Time{}
			break
		}
		h.declare(ctx, n, f)
	}
	return next
}

// proving lists the jobs whose ranks elsewhere can prove that a node lives: those that
// publish steps, run on other nodes that are not silent as well, and have lost no rank.
func (h *Head) proving(v *state.View, node string, f finding, lost map[string]finding) []*state.Job {
	if f.quiet.IsZero() {
		return nil
	}
	var out []*state.Job
	for _, a := range v.AllocsOn(node) {
		j := v.Job(a.Job)
		if a.Gone || j == nil || j.State.Terminal() || j.Stop != nil || j.Last() == nil {
			continue
		}
		last := j.Last()
		if last.Ended != 0 || last.Aborted != 0 || last.Generation != a.Generation || brokenOff(last) {
			continue
		}
		for _, r := range last.Ranks {
			_, also := lost[r.Node]
			if n := v.Node(r.Node); r.Node != node && !also && n != nil && n.State != api.NodeLost {
				out = append(out, j)
				break
			}
		}
	}
	return out
}

// brokenOff: a rank has ended otherwise than by finishing.
func brokenOff(at *state.Attempt) bool {
	for i := range at.Exits {
		if x := &at.Exits[i]; x.Code != 0 || x.Signal != 0 || x.ByShim {
			return true
		}
	}
	return false
}

// askSteps has nodes tell their ranks' steps now; heartbeats are up to a second old. One
// that does not answer proves nothing.
func (h *Head) askSteps(ctx context.Context, nodes map[string]bool) {
	ctx, cancel := context.WithTimeout(ctx, askSteps)
	defer cancel()
	var wg sync.WaitGroup
	for id := range nodes {
		wg.Go(func() {
			raw, err := h.Bus.Request(ctx, wire.NodeSteps(id), nil)
			if err != nil {
				return
			}
			var r wire.StepsNow
			if err := wire.Unmarshal(raw, &r); err != nil {
				h.Logger.Warn("a node's steps were not understood", "node", id, "err", err)
				return
			}
			h.nodes.told(id, r.Allocs)
		})
	}
	wg.Wait()
}
