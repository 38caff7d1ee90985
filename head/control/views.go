package control

import (
	"context"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/elastic/supervise"
	"github.com/troupe-runtime/troupe/head/gang"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

func at(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// jobView is the API's view of a job, with what is known of its ranks right now.
func (h *Head) jobView(v *state.View, j *state.Job) api.Job {
	out := api.Job{
		ID: j.ID, ULID: j.ULID, Spec: j.Spec, Run: j.Run(), User: j.User, Tenant: chargedTenant(v, j.Spec.Tenant, j.Spec.Queue), State: j.State, Reason: j.Reason, Group: j.Group,
		ExitCode: j.ExitCode, Created: at(j.Created), Started: at(j.Started), Ended: at(j.Ended), Index: j.Index,
	}
	for i := range j.Attempts {
		out.Attempts = append(out.Attempts, h.attemptView(v, &j.Attempts[i], i == len(j.Attempts)-1 && !j.State.Terminal()))
	}
	out.Excluded = h.excludedView(v, j)
	out.Spares = sparesView(v, j)
	if last := j.Last(); last != nil {
		out.Attempt, out.Generation = last.Number, last.Generation
		for _, r := range out.Attempts[len(out.Attempts)-1].Ranks {
			if r.Step != nil && (out.Step == nil || *r.Step > *out.Step) {
				out.Step = r.Step
			}
		}
	}
	// The job's own commits; what it restored from another job stands in its attempts.
	if c := v.NewestCommitted(j.Run()); c != nil && len(j.Attempts) > 0 && c.Generation >= j.Attempts[0].Generation && c.Generation <= j.Last().Generation {
		step := c.Step
		out.Committed = &step
	}
	if j.Drain != nil && !j.State.Terminal() {
		out.Conditions = append(out.Conditions, api.Condition{
			Type: "Draining", Status: "True", Reason: string(j.Drain.Kind), Since: at(j.Drain.Since),
			Message: j.Drain.Reason + ": waits for " + h.drainText(v, j),
		})
	}
	if j.State == api.Queued && j.Spec.Hosts != nil {
		out.Reason = h.gathering(v, j)
	} else if j.State == api.Queued {
		if rs := h.reasonsFor(v, j.Group); len(rs) > 0 {
			out.Reason = &rs[0]
		}
	}
	return out
}

func (h *Head) attemptView(v *state.View, a *state.Attempt, live bool) api.Attempt {
	out := api.Attempt{
		Number: a.Number, Generation: a.Generation, MasterAddr: a.MasterAddr, MasterPort: a.MasterPort,
		Created: at(a.Created), Running: at(a.Running), Ended: at(a.Ended), Cause: a.Cause, Failure: a.Failure,
	}
	if a.Restore != nil {
		step := a.Restore.Step
		out.RestoreStep = &step
	}
	exits := map[int64]state.Exit{}
	for _, e := range a.Exits {
		exits[e.Rank] = e
	}
	steps := map[int64]wire.RankStep{}
	if live {
		for _, id := range a.Allocs {
			al := v.Alloc(id)
			if al == nil || al.Generation != a.Generation {
				continue
			}
			for _, p := range al.PIDs {
				p.Step = -1
				steps[p.Rank] = p
			}
			seen, _ := h.nodes.steps(al.Node, id)
			for _, s := range seen {
				steps[s.Rank] = s
			}
		}
	}
	for _, r := range a.Ranks {
		x := api.Rank{Rank: r.Rank, LocalRank: r.LocalRank, Node: nodeName(v, r.Node), Alloc: r.Alloc}
		if s, ok := steps[r.Rank]; ok {
			x.PID, x.State = s.PID, "running"
			if s.Step >= 0 {
				step := s.Step
				x.Step = &step
			}
		}
		if e, ok := exits[r.Rank]; ok {
			x.State, x.PID = "exited: "+state.ExitText(e.RankExit), 0
			x.End = endOf(&e)
		}
		out.Ranks = append(out.Ranks, x)
	}
	return out
}

// endOf is the API's view of a rank's end.
func endOf(e *state.Exit) *api.RankEnd {
	end := &api.RankEnd{Code: e.Code, PID: e.PID, At: at(e.At), Message: e.Message, ErrorFile: e.ErrorFile, ByTroupe: e.ByShim}
	if e.Signal > 0 {
		end.Code, end.Signal = 128+e.Signal, supervise.SignalName(e.Signal)
	}
	return end
}

// Jobs lists all, newest first.
func (h *Head) Jobs(context.Context) ([]api.Job, uint64, error) {
	v := h.Store.View()
	jobs := v.Jobs()
	out := make([]api.Job, 0, len(jobs))
	for _, job := range slices.Backward(jobs) {
		out = append(out, h.jobView(v, job))
	}
	return out, v.Index(), nil
}

// Job by id or unique prefix.
func (h *Head) Job(_ context.Context, id string) (api.Job, error) {
	v := h.Store.View()
	j, err := v.Resolve(id)
	if err != nil {
		return api.Job{}, h.problemOf(err)
	}
	out := h.jobView(v, j)
	g := h.goodput(v, j)
	out.Goodput = &g
	out.Saving = h.savingPlan(v, j)
	return out, nil
}

func groupView(v *state.View, g *state.Group) api.Group {
	out := api.Group{
		ID: g.ID, Spec: g.AskedSpec(), State: g.State, Job: g.Job, Created: at(g.Created), Placed: at(g.PlacedAt),
		Removed: at(g.Removed), Index: g.Index,
	}
	for i, b := range g.Placed {
		out.Bundles = append(out.Bundles, api.Placed{Bundle: g.Number(int64(i)), Node: nodeName(v, b.Node), Devices: b.Devices, UsedBy: b.UsedBy, Spare: i >= len(g.RankBundles())})
	}
	return out
}

func (h *Head) groupWithReason(v *state.View, g *state.Group) api.Group {
	out := groupView(v, g)
	if g.State == api.GroupPending {
		if rs := h.reasonsFor(v, g.ID); len(rs) > 0 {
			out.Reason = &rs[0]
		}
	}
	return out
}

// Groups lists all, newest first.
func (h *Head) Groups(context.Context) ([]api.Group, uint64, error) {
	v := h.Store.View()
	groups := v.Groups()
	sort.SliceStable(groups, func(i, j int) bool { return groups[i].Seq > groups[j].Seq })
	out := make([]api.Group, 0, len(groups))
	for _, g := range groups {
		out = append(out, h.groupWithReason(v, g))
	}
	return out, v.Index(), nil
}

// Group by id or unique prefix.
func (h *Head) Group(_ context.Context, id string) (api.Group, error) {
	v := h.Store.View()
	g, err := resolveGroup(v, id)
	if err != nil {
		return api.Group{}, err
	}
	return h.groupWithReason(v, g), nil
}

// Nodes lists all in order of name.
func (h *Head) Nodes(context.Context) ([]api.Node, uint64, error) {
	v := h.Store.View()
	out := make([]api.Node, 0)
	for _, n := range v.Nodes() {
		u := v.UseOf(n.ID)
		x := api.Node{
			ID: n.ID, Name: n.Info.Name, State: n.State, Labels: n.Info.Labels, Version: n.Info.Version,
			Address: n.Info.Address, Registered: at(n.Registered), Index: n.Index, LastHeartbeat: h.nodes.lastBeat(n.ID).UTC(),
			Capacity:  api.Resources{CPU: n.Info.CPU, Memory: n.Info.Memory, GPUs: int64(len(n.Info.GPUs))},
			Allocated: api.Resources{CPU: u.CPU, Memory: u.Memory, GPUs: int64(len(u.Devices))},
		}
		if h.nodes.lastBeat(n.ID).IsZero() {
			x.LastHeartbeat = time.Time{}
		}
		status := "True"
		if n.State != api.NodeReady {
			status = "False"
		}
		x.Conditions = append(x.Conditions, api.Condition{Type: "Ready", Status: status, Reason: string(n.State), Message: n.Why, Since: at(n.Changed)})
		x.Cordon = h.cordonView(v, n)
		seen := map[string]bool{}
		for _, hold := range v.HoldsOn(n.ID) {
			if !seen[hold.Group] {
				seen[hold.Group] = true
				x.Groups = append(x.Groups, hold.Group)
			}
		}
		devices := h.nodes.devices(n.ID)
		for _, g := range n.Info.GPUs {
			if now, ok := devices[g.UUID]; ok {
				g.Health, g.Note, g.Used = now.Health, now.Note, now.Used
			}
			g.Owner = strings.Join(u.Devices[g.UUID].Groups, ", ")
			x.GPUs = append(x.GPUs, g)
		}
		out = append(out, x)
	}
	sort.SliceStable(out, func(i, j int) bool { return gang.NaturalLess(out[i].Name, out[j].Name) })
	return out, v.Index(), nil
}

// Checkpoints of a run, newest first; of every run when run is empty.
func (h *Head) Checkpoints(_ context.Context, run string) ([]api.Checkpoint, uint64, error) {
	v := h.Store.View()
	list := v.Checkpoints(run)
	if run != "" && len(list) == 0 && v.Run(run) == nil {
		// A job's id is what people have at hand; it names the run as well.
		j, err := v.Resolve(run)
		if err != nil {
			return nil, 0, notFound("run", run)
		}
		list = v.Checkpoints(j.Run())
	}
	out := make([]api.Checkpoint, 0, len(list))
	for _, c := range slices.Backward(list) {
		out = append(out, checkpointView(c))
	}
	return out, v.Index(), nil
}

func checkpointView(c *state.Checkpoint) api.Checkpoint {
	out := api.Checkpoint{
		Run: c.Run, Step: c.Step, Generation: c.Generation, World: c.World, Bytes: c.Bytes, Files: c.Files, Dir: c.Dir,
		State: string(c.State), Digest: c.Digest, Parent: c.Parent, Committed: at(c.Committed), Reason: c.Reason,
		Pinned: c.Pinned, ParentGeneration: c.ParentGeneration, Adopted: c.Adopted, Store: c.Store,
	}
	if c.Damaged && c.State == state.CheckpointRolledBack {
		out.State = "quarantined"
	}
	if len(c.Metrics) > 0 {
		out.Metrics = map[string]float64{}
		for _, m := range c.Metrics {
			out.Metrics[m.Name] = m.Value
		}
	}
	return out
}

func eventView(e *state.Event) api.Event {
	return api.Event{Seq: e.Seq, Index: e.Index, Time: at(e.Time), Type: e.Type, Object: e.Object, Text: e.Text}
}

// Events after seq, oldest first.
func (h *Head) Events(_ context.Context, after uint64, object string, limit int) ([]api.Event, bool, error) {
	v := h.Store.View()
	var out []api.Event
	gone := false
	for first := true; len(out) < limit; first = false {
		page, g := v.Events(after, 1000)
		if first {
			gone = g
		}
		for _, e := range page {
			after = e.Seq
			if (object == "" || e.Object == object) && len(out) < limit {
				out = append(out, eventView(e))
			}
		}
		if len(page) < 1000 {
			break
		}
	}
	return out, gone, nil
}

// LastEvents are the newest limit events of an object, oldest first.
func (h *Head) LastEvents(_ context.Context, object string, limit int) ([]api.Event, error) {
	var out []api.Event
	for _, e := range h.Store.View().RecentEvents(object, limit) {
		out = append(out, eventView(e))
	}
	return out, nil
}

// Status is the cluster summary.
func (h *Head) Status(context.Context) (api.Status, error) {
	v := h.Store.View()
	m := v.Meta()
	s := api.Status{
		Cluster: m.Cluster, Leader: h.Name, Version: h.Options.Version.Version, Level: m.Level, Index: v.Index(),
		Nodes: map[string]int64{}, Jobs: map[string]int64{}, Groups: map[string]int64{}, Time: h.Clock.Now().UTC(),
	}
	if !h.Log.IsLeader() {
		s.Leader = ""
	}
	for _, n := range v.Nodes() {
		s.Nodes[string(n.State)]++
		u := v.UseOf(n.ID)
		s.Allocated.CPU += u.CPU
		s.Allocated.Memory += u.Memory
		s.Allocated.GPUs += int64(len(u.Devices))
		if n.State != api.NodeReady {
			continue
		}
		s.Capacity.CPU += n.Info.CPU
		s.Capacity.Memory += n.Info.Memory
		s.Capacity.GPUs += int64(len(n.Info.GPUs))
	}
	for _, j := range v.Jobs() {
		s.Jobs[string(j.State)]++
	}
	for _, g := range v.Groups() {
		s.Groups[string(g.State)]++
	}
	return s, nil
}
