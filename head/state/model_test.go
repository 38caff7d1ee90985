package state

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"

	"pgregory.net/rapid"
)

// world is the plain model beside the state machine: which bundles a group was given,
// which processes may live, and what was committed. It proves by its own sums that
// what is charged is what is held or may still run, never less and never more (P1, P2,
// P8), that generations grow (P3), steps commit once and upwards (P4), and that an end
// is final (P9). Check, which runs after every command, adds its own view.
type world struct {
	*machine
	rt     *rapid.T
	boots  map[string]int
	seqs   map[string]uint64
	groups map[string][]api.Placed // placed ones
	specs  map[string]api.GroupSpec
	asked  map[string]api.GroupSpec // of groups with roles
	procs  map[string]*ghost        // by allocation
	ended  map[string]api.JobState
	newest map[string]int64 // committed step by run
	gen    uint64
	jobs   int
	quotas
}

// ghost is what may run of an allocation until something has proven that it does not.
type ghost struct {
	node  string
	boot  int
	holds []ghostHold
	acked uint64
}

type ghostHold struct {
	id   string
	node string
	cpu  unit.MilliCPU
}

var worldNodes = []string{"n1", "n2", "n3"}

func (w *world) draw(label string, most int) int { return rapid.IntRange(0, most-1).Draw(w.rt, label) }

func (w *world) pick(label string, list []string) string {
	if len(list) == 0 {
		return "nothing"
	}
	return list[w.draw(label, len(list))]
}

func (w *world) jobIDs() []string {
	var out []string
	for _, j := range w.s.View().Jobs() {
		out = append(out, j.ID)
	}
	return out
}

func (w *world) groupIDs() []string {
	var out []string
	for _, g := range w.s.View().Groups() {
		out = append(out, g.ID)
	}
	return out
}

// placement draws one, mostly of the right length and on nodes that exist.
func (w *world) placement(spec api.GroupSpec) []api.Placed {
	n := len(spec.Bundles)
	left := map[int]bool{}
	for i := range n {
		left[i] = len(spec.Roles) > 0 && w.draw("left out", 3) == 0
	}
	if w.draw("wrong length", 8) == 0 {
		n = w.draw("length", 4)
	}
	var out []api.Placed
	for i := range n {
		if left[i] {
			continue
		}
		p := api.Placed{Bundle: int64(i), Node: w.pick("node", worldNodes)}
		if i < len(spec.Bundles) && spec.Bundles[i].GPUs > 0 {
			p.Devices = []string{fmt.Sprintf("%s-gpu-%d", p.Node, w.draw("device", 2))}
		}
		out = append(out, p)
	}
	return out
}

func (w *world) groupSpec() api.GroupSpec {
	var spec api.GroupSpec
	for range 1 + w.draw("bundles", 3) {
		r := api.Resources{CPU: unit.MilliCPU(1000 * (1 + w.draw("cpu", 4)))}
		if w.draw("gpu", 3) == 0 {
			r.GPUs = 1
		}
		spec.Bundles = append(spec.Bundles, api.Bundle{Resources: r})
	}
	w.belongs(&spec)
	return spec
}

// settleGroups takes over which groups stand where, after a command that may place.
func (w *world) settleGroups() {
	w.groups = map[string][]api.Placed{}
	for _, g := range w.s.View().Groups() {
		w.specs[g.ID] = g.Spec
		if g.State == api.GroupPlaced {
			w.wholeRoles(g)
		}
		if g.State != api.GroupPlaced {
			continue
		}
		for i, b := range g.Placed {
			w.groups[g.ID] = append(w.groups[g.ID], api.Placed{Bundle: int64(i), Node: b.Node, Devices: b.Devices})
		}
	}
}

func (w *world) register(node string, reboot bool) {
	if reboot {
		w.boots[node]++
		for id, g := range w.procs {
			if g.node == node {
				delete(w.procs, id)
			}
		}
	}
	w.seqs[node]++
	info := wire.NodeInfo{
		Name: node, Session: fmt.Sprintf("%s-%d", node, w.seqs[node]), Started: int64(w.seqs[node]),
		BootID: fmt.Sprint(w.boots[node]), CPU: 6000, Memory: 1 << 34, Level: 1,
		GPUs: []api.GPU{{UUID: node + "-gpu-0", Usable: 1 << 30}, {UUID: node + "-gpu-1", Index: 1, Usable: 1 << 30}},
	}
	cmd := RegisterNode{ID: node, Info: info, Seq: 1}
	for id, g := range w.procs {
		if g.node == node {
			cmd.Present = append(cmd.Present, id)
		}
	}
	slices.Sort(cmd.Present)
	w.ok(KindRegisterNode, cmd)
}

// start opens an attempt of a job on what its group has, or on nonsense.
func (w *world) start(id string) {
	v := w.s.View()
	j := v.Job(id)
	if j == nil {
		return
	}
	cmd := Supervise{Job: id, Attempt: -1}
	if last := j.Last(); last != nil {
		cmd.Attempt = last.Number
		if last.Ended == 0 && w.draw("end first", 4) > 0 {
			cmd.End = &AttemptEnd{Cause: api.CauseInfra}
		}
	}
	cmd.Start = &AttemptStart{}
	if ck := v.NewestCommitted(j.Run()); ck != nil {
		cmd.Start.Restore = &Restore{Step: ck.Step, Dir: ck.Dir}
	}
	if g := v.Group(j.Group); g != nil {
		for i, b := range g.Placed {
			node := b.Node
			if w.draw("wrong node", 12) == 0 {
				node = w.pick("node", worldNodes)
			}
			cmd.Start.Ranks = append(cmd.Start.Ranks, RankStart{Rank: int64(i), Bundle: int64(i), Node: node})
		}
	}
	st, ok := w.do(KindSupervise, cmd).(*Started)
	if !ok {
		return
	}
	if st.Generation <= w.gen {
		w.t.Fatalf("P3: generation %d after %d", st.Generation, w.gen)
	}
	w.gen = st.Generation
	v = w.s.View()
	for _, a := range v.AllocsOf(id) {
		if a.Generation != st.Generation {
			continue
		}
		p := w.procs[a.ID]
		if p == nil {
			p = &ghost{node: a.Node, boot: w.boots[a.Node]}
			w.procs[a.ID] = p
		}
		p.holds = nil
		for _, h := range a.Holds {
			hold := v.Hold(h)
			p.holds = append(p.holds, ghostHold{id: h, node: hold.Node, cpu: hold.Need.CPU})
		}
	}
}

func (w *world) finish(id string) {
	j := w.s.View().Job(id)
	if j == nil {
		return
	}
	code := int64(w.draw("code", 3))
	cmd := Supervise{Job: id, Attempt: -1, State: []api.JobState{api.Succeeded, api.Failed, api.Stopped}[w.draw("state", 3)], ExitCode: &code}
	if last := j.Last(); last != nil {
		cmd.Attempt = last.Number
		if last.Ended == 0 {
			cmd.End = &AttemptEnd{Cause: api.CauseNone}
		}
	}
	if _, refused := w.do(KindSupervise, cmd).(*Refused); refused {
		return
	}
	w.ended[id] = cmd.State
}

// gone proves that nothing of an allocation is left, if the report is a right one.
func (w *world) fact(id string) {
	p := w.procs[id]
	if p == nil {
		return
	}
	ev := wire.AllocEvent{Alloc: id, Seq: p.acked + 1, Generation: w.gen - uint64(w.draw("age", 3)), Exit: &wire.RankExit{Rank: int64(w.draw("rank", 3))}}
	ev.Kind = []wire.EventKind{
		wire.EventStarted, wire.EventRankExited, wire.EventEnded, wire.EventStartFailed, wire.EventVerified, wire.EventDamaged,
		wire.EventOwnerGone, wire.EventPortUsed, wire.EventDirty, wire.EventGone, wire.EventShimLost, wire.EventGone,
	}[w.draw("kind", 12)]
	node, old := p.node, w.draw("old", 5) == 0
	if w.draw("stranger", 8) == 0 {
		node = w.pick("other node", worldNodes)
	}
	if old && p.acked > 0 {
		ev.Seq = p.acked
	}
	w.ok(KindFacts, Facts{Node: node, Events: []wire.AllocEvent{ev}})
	if node != p.node || ev.Seq <= p.acked {
		return
	}
	p.acked = ev.Seq
	if ev.Kind == wire.EventGone || ev.Kind == wire.EventShimLost {
		delete(w.procs, id)
	}
}

func (w *world) commit(run string) {
	r := w.s.View().Run(run)
	if r == nil {
		return
	}
	c := CommitCheckpoint{Run: run, Step: int64(w.draw("step", 30)), Generation: r.Generation, World: 1, Digest: "d"}
	if w.draw("old generation", 4) == 0 {
		c.Generation -= min(c.Generation, 1)
	}
	c.Dir = fmt.Sprintf("/%s/%d-%d", run, c.Step, c.Generation)
	if before := w.s.View().Checkpoint(CheckpointID(run, c.Generation, c.Step)); before != nil {
		w.do(KindCommitCheckpoint, c)
		return
	}
	if _, refused := w.do(KindCommitCheckpoint, c).(*Refused); refused {
		return
	}
	if c.Generation != r.Generation {
		w.t.Fatalf("P3: generation %d commits, %d is current", c.Generation, r.Generation)
	}
	if was, ok := w.newest[run]; ok && c.Step <= was {
		w.t.Fatalf("P4: step %d of run %s after %d", c.Step, run, was)
	}
	w.newest[run] = c.Step
}

func (w *world) ghosts() []string {
	ids := make([]string, 0, len(w.procs))
	for id := range w.procs {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// check compares the sums.
func (w *world) check() {
	v := w.s.View()
	current := map[string]bool{}
	w.charged = map[string]int64{}
	want := map[string]unit.MilliCPU{}
	owner := map[string]string{}
	for id, placed := range w.groups {
		g := v.Group(id)
		if g == nil || len(placed) != len(w.specs[id].Bundles) || len(g.Placed) != len(placed) {
			w.t.Fatalf("P1: group %s has %d bundles of %d", id, len(placed), len(w.specs[id].Bundles))
		}
		for i, b := range g.Placed {
			current[b.Hold] = true
			want[b.Node] += w.specs[id].Bundles[i].CPU
			w.charge(w.specs[id], i)
			for _, d := range b.Devices {
				if other := owner[d]; other != "" {
					w.t.Fatalf("P2: device %s belongs to %s and to %s", d, other, id)
				}
				owner[d] = id
			}
		}
	}
	counted := map[string]bool{}
	for alloc, p := range w.procs {
		for _, h := range p.holds {
			if v.Hold(h.id) == nil {
				w.t.Fatalf("P2: %s may still run on %s and hold %s is freed", alloc, p.node, h.id)
			}
			if !current[h.id] && !counted[h.id] {
				counted[h.id] = true
				want[h.node] += h.cpu
			}
		}
	}
	for _, n := range worldNodes {
		if got := v.UseOf(n).CPU; got != want[n] {
			w.t.Fatalf("P8: node %s is charged %d, held and running is %d", n, got, want[n])
		}
	}
	w.checkQuotas(v)
	for id, s := range w.ended {
		if j := v.Job(id); j == nil || j.State != s {
			w.t.Fatalf("P9: job %s has ended as %s and is %+v", id, s, j)
		}
	}
	for run, step := range w.newest {
		if ck := v.NewestCommitted(run); ck == nil || ck.Step != step {
			w.t.Fatalf("P4: the newest step of run %s is %+v, not %d", run, ck, step)
		}
	}
}

// TestModel drives the state machine with random commands, right and wrong ones.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &world{
			machine: newMachine(rt), rt: rt, boots: map[string]int{}, seqs: map[string]uint64{}, groups: map[string][]api.Placed{},
			specs: map[string]api.GroupSpec{}, asked: map[string]api.GroupSpec{}, procs: map[string]*ghost{}, ended: map[string]api.JobState{}, newest: map[string]int64{},
		}
		for _, n := range worldNodes {
			w.register(n, true)
		}
		w.declare()
		actions := map[string]func(*rapid.T){
			"submit": func(*rapid.T) {
				w.jobs++
				id, gs := fmt.Sprintf("j%d", w.jobs), w.groupSpec()
				cmd := SubmitJob{ID: id, Spec: api.JobSpec{Name: id, Ranks: int64(len(gs.Bundles)), Run: fmt.Sprintf("run%d", w.draw("run", 4)), Tenant: gs.Tenant, Queue: gs.Queue, Hold: w.draw("hold", 6) == 0}, Group: "pg-" + id, GroupSpec: &gs}
				if w.draw("placed", 2) == 0 {
					cmd.Placement = w.placement(gs)
				}
				w.do(KindSubmitJob, cmd)
			},
			"group": func(*rapid.T) {
				w.jobs++
				gs := w.groupSpec()
				w.inRoles(&gs)
				w.do(KindCreateGroup, CreateGroup{ID: fmt.Sprintf("g%d", w.jobs), Spec: gs, Placement: w.placement(gs)})
			},
			"place": func(*rapid.T) {
				id := w.pick("group", w.groupIDs())
				w.do(KindPlaceGroup, PlaceGroup{Group: id, Placement: w.placement(w.specs[id])})
			},
			"remove": func(*rapid.T) { w.do(KindRemoveGroup, RemoveGroup{Group: w.pick("group", w.groupIDs())}) },
			"release": func(*rapid.T) {
				id := w.pick("group", w.groupIDs())
				cmd := ReleaseGroup{Group: id, Why: "lost"}
				if w.draw("with placement", 2) == 0 {
					cmd.Placement = w.placement(w.specs[id])
				}
				w.do(KindReleaseGroup, cmd)
			},
			"start":  func(*rapid.T) { w.start(w.pick("job", w.jobIDs())) },
			"start2": func(*rapid.T) { w.start(w.pick("job", w.jobIDs())) },
			"finish": func(*rapid.T) { w.finish(w.pick("job", w.jobIDs())) },
			"stop": func(*rapid.T) {
				w.do(KindStopJob, StopJob{Job: w.pick("job", w.jobIDs()), GraceNS: int64(w.draw("grace", 3))})
			},
			"fact":  func(*rapid.T) { w.fact(w.pick("allocation", w.ghosts())) },
			"fact2": func(*rapid.T) { w.fact(w.pick("allocation", w.ghosts())) },
			"node": func(*rapid.T) {
				w.do(KindSetNodeState, SetNodeState{ID: w.pick("node", worldNodes), State: []api.NodeState{api.NodeReady, api.NodeSuspect, api.NodeLost}[w.draw("state", 3)]})
			},
			"cordon": func(*rapid.T) {
				cmd := DrainNode{ID: w.pick("node", worldNodes)}
				if w.draw("drain", 3) > 0 {
					cmd.Cordon = &NodeDrain{Drain: w.draw("drained", 2) == 0}
				}
				w.do(KindDrainNode, cmd)
			},
			"notice": func(*rapid.T) {
				cmd := NodeNotice{ID: w.pick("node", worldNodes), Number: uint64(w.draw("number", 20)), Reason: "spot", Deadline: int64(w.draw("deadline", 1000)) * 1e9}
				if n := w.s.View().Node(cmd.ID); n != nil && w.draw("boot", 8) > 0 {
					cmd.Boot = n.Info.BootID
				}
				cmd.Withdrawn = w.draw("withdrawn", 3) == 0
				w.do(KindNodeNotice, cmd)
			},
			"drain": func(*rapid.T) {
				id := w.pick("job", w.jobIDs())
				kind := []DrainKind{DrainStop, DrainMove, DrainResize, DrainSuspend}[w.draw("kind", 4)]
				w.do(KindDrainJob, DrainJob{Job: id, Drain: Drain{Kind: kind, Ranks: int64(w.draw("ranks", 4))}})
				if j := w.s.View().Job(id); j != nil && j.Last() != nil && w.draw("order", 3) == 0 {
					w.do(KindOrderEnd, OrderEnd{Job: id, Generation: j.Last().Generation})
				}
				if w.draw("cancel", 4) == 0 {
					w.do(KindCancelDrain, CancelDrain{Job: id})
				}
			},
			"queues":   func(*rapid.T) { w.declare() },
			"park":     func(*rapid.T) { w.park(w.pick("job", w.jobIDs())) },
			"edit":     func(*rapid.T) { w.edit(w.pick("job", w.jobIDs())) },
			"resize":   func(*rapid.T) { w.resize(w.pick("job", w.jobIDs())) },
			"preempt":  func(*rapid.T) { w.preempt() },
			"propose":  func(*rapid.T) { w.propose(w.pick("job", w.jobIDs())) },
			"register": func(*rapid.T) { w.register(w.pick("node", worldNodes), w.draw("reboot", 2) == 0) },
			"commit":   func(*rapid.T) { w.commit(fmt.Sprintf("run%d", w.draw("run", 4))) },
			"roll back": func(*rapid.T) {
				run, step := fmt.Sprintf("run%d", w.draw("run", 4)), int64(w.draw("step", 30))
				w.do(KindRollBack, RollBack{Run: run, Step: step, Reason: "damaged"})
				if ck := w.s.View().NewestCommitted(run); ck == nil {
					delete(w.newest, run)
				} else if ck.Step < step {
					w.newest[run] = ck.Step
				}
			},
			"retention": func(*rapid.T) {
				cks := w.s.View().Checkpoints("")
				if len(cks) == 0 {
					return
				}
				id := cks[w.draw("checkpoint", len(cks))].ID
				if _, refused := w.do(KindTombstone, Tombstone{ID: id}).(*Refused); !refused && w.draw("done", 2) == 0 {
					w.ok(KindCheckpointDone, CheckpointDone{ID: id, Deleted: true})
				}
			},
			"": func(*rapid.T) {
				w.settleGroups()
				w.check()
			},
		}
		rt.Repeat(actions)
		// I7: the same log gives the same bytes, from zero and across a restart.
		want := w.snapshot()
		at := rapid.IntRange(0, len(w.log)-1).Draw(rt, "restart after")
		if !bytes.Equal(replayed(t, w.log), want) || !bytes.Equal(replayed(t, w.log, at), want) {
			rt.Fatalf("I7: the replayed state differs")
		}
		if got := together(t, w.log, rapid.IntRange(2, 40).Draw(rt, "entries together")); !bytes.Equal(got, want) {
			rt.Fatalf("I7: applied together, the state differs")
		}
		sole(t, w.log, at)
	})
}
