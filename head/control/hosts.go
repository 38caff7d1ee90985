package control

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/troupe-runtime/troupe/elastic/supervise"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/head/survey"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Defaults of a job over several hosts, as torchrun has them.
const (
	defaultLastCall = 30 * time.Second
	defaultJoin     = 10 * time.Minute
)

// checkHosts checks the part of a spec that asks for whole hosts.
func checkHosts(s *api.JobSpec, bad func(string, string, ...any)) {
	o := *s.Hosts
	def(&o.LastCall, unit.Duration(defaultLastCall))
	def(&o.Join, unit.Duration(defaultJoin))
	s.Hosts = &o
	if o.Min < 1 || o.Max < o.Min || o.Max > maxRanks {
		bad("/hosts", "%d to %d hosts: at least 1, at most %d", o.Min, o.Max, maxRanks)
	}
	if o.LastCall < 0 || o.Join < 0 {
		bad("/hosts", "durations are not negative")
	}
	if s.PlacementGroup != "" {
		bad("/hosts", "a job over whole hosts makes its own group")
	}
	if s.Kind != api.KindTraining {
		bad("/hosts", "goes with kind training, not %s", s.Kind)
	}
}

// ofHosts reports whether a group is that of a job over several hosts.
func ofHosts(v *state.View, g *state.Group) bool {
	j := v.Job(g.Job)
	return j != nil && j.Spec.Hosts != nil
}

// hostRanks is how many ranks a node brings to a launch; 0: none.
func hostRanks(n *state.Node) int64 {
	k, err := strconv.ParseInt(n.Info.Labels[api.LabelRanks], 10, 64)
	if err != nil || k < 1 || k > maxRanks {
		return 0
	}
	return k
}

// hostsOf gathers what supervise.Form goes by. suspect: a member is silent, and is back
// or lost within seconds.
func (h *Head) hostsOf(v *state.View, j *state.Job) (f supervise.Hosts, suspect bool) {
	s := j.Spec.Hosts
	f = supervise.Hosts{Min: int(s.Min), Max: int(s.Max), LastCall: s.LastCall.D(), Patience: s.Join.D(), Since: time.Unix(0, j.Created)}
	if g := v.Group(j.Group); g != nil {
		if g.Waiting != 0 {
			f.Since = time.Unix(0, g.Waiting)
		}
		for _, b := range g.Placed {
			if !slices.Contains(f.Members, b.Node) {
				f.Members = append(f.Members, b.Node)
			}
		}
	}
	for _, n := range v.Nodes() {
		in := slices.Contains(f.Members, n.ID)
		suspect = suspect || in && n.State == api.NodeSuspect
		if n.Cordoned() != nil && (!in || n.Draining()) {
			continue // while an attempt runs there, drainAll ends it in order first
		}
		if n.State != api.NodeReady || n.Info.Leaving || hostRanks(n) == 0 {
			continue
		}
		if !in && (!h.nodes.known(n.ID) || occupied(v, j, n.ID)) {
			continue // the group is not stopped for a host that cannot start yet
		}
		x := supervise.Host{ID: n.ID, Name: n.Info.Name, Rank: -1, Since: time.Unix(0, n.Changed)}
		if r, err := strconv.ParseInt(n.Info.Labels[api.LabelNodeRank], 10, 64); err == nil && r >= 0 {
			x.Rank = r
		}
		f.There = append(f.There, x)
	}
	return f, suspect
}

// occupied: something of the job may still run on a node, of a group before this one.
func occupied(v *state.View, j *state.Job, node string) bool {
	return slices.ContainsFunc(v.AllocsOn(node), func(a *state.Alloc) bool { return a.Job == j.ID && !a.Gone })
}

// gather forms the group of a job over several hosts, and forms it anew when hosts come
// or leave. done: the decision is taken for this round, and the supervisor is not asked.
func (h *Head) gather(ctx context.Context, v *state.View, j *state.Job) (done, again bool, delay time.Duration) {
	last := j.Last()
	open := last != nil && last.Ended == 0
	if j.Drain != nil && (open || j.Drain.Kind == state.DrainStop) {
		return false, false, 0 // its ranks agree on a last step; what follows comes after
	}
	if j.Stop != nil || j.OwnerGone || open && len(last.Exits) > 0 {
		return false, false, 0 // it ends, or fails, or is done: that comes first
	}
	f, suspect := h.hostsOf(v, j)
	if suspect {
		return !open, false, 500 * time.Millisecond
	}
	s := supervise.Form(f, h.Clock.Now())
	newest := int64(-1)
	var generation uint64
	if last != nil {
		newest, generation = last.Number, last.Generation
	}
	switch {
	case s.GiveUp:
		code := int64(api.ExitRetry)
		_, ok := h.try(ctx, state.KindSupervise, state.Supervise{
			Job: j.ID, Attempt: newest, Generation: generation, State: api.Failed, ExitCode: &code,
			Reason: &api.Reason{Code: api.ReasonFit, Text: "too few hosts: " + s.Text},
		})
		return true, ok, 0
	case open && h.onDrained(v, f.Members):
		return false, false, 0
	case !s.Changed:
		return len(f.Members) == 0, false, s.Delay
	case open && h.memberLost(v, f.Members):
		return false, false, 0 // a failure: the supervisor charges it, or not
	case open && h.leavesInOrder(ctx, v, j, f.Members):
		return true, true, 0
	case open:
		// A change of membership is nobody's failure.
		g := h.groupOf(v, j)
		_, ok := h.try(ctx, state.KindSupervise, state.Supervise{
			Job: j.ID, Attempt: newest, Generation: generation, State: api.Recovering,
			End:    h.attemptEnd(v, j, &supervise.End{Cause: api.CauseNone, Ledger: g.Ledger}),
			Reason: &api.Reason{Code: api.ReasonPolicy, Text: "the hosts change: " + s.Text},
		})
		return true, ok, 0
	}
	bundles, placement := h.bundlesOn(v, j, s.Members)
	if len(s.Members) > 0 && placement == nil {
		return true, false, 500 * time.Millisecond
	}
	_, ok := h.try(ctx, state.KindReshape, state.Reshape{Job: j.ID, Attempt: newest, Bundles: bundles, Placement: placement, Why: s.Text})
	return true, ok, 500 * time.Millisecond
}

// leavesInOrder has the ranks agree on a last step when a member was told to end, if they
// publish steps at all: who does not would only be held up.
func (h *Head) leavesInOrder(ctx context.Context, v *state.View, j *state.Job, members []string) bool {
	last := j.Last()
	if j.Drain != nil || j.State != api.Running || int64(len(h.stepsOf(v, last))) < int64(len(last.Ranks)) {
		return false
	}
	for _, id := range members {
		n := v.Node(id)
		if n == nil || !n.Info.Leaving || n.State != api.NodeReady {
			continue
		}
		_, ok := h.try(ctx, state.KindDrainJob, state.DrainJob{Job: j.ID, Drain: state.Drain{
			Kind: state.DrainMove, Node: id, Deadline: h.Clock.Now().Add(leaveWithin(j)).UnixNano(),
			Reason: "host " + nodeName(v, id) + " was told to end",
		}})
		return ok
	}
	return false
}

// leaveWithin is how long a host that was told to end may take to save: most of the time that
// its agent waits, the rest is for the ranks' own end.
func leaveWithin(j *state.Job) time.Duration {
	grace := j.Spec.ShutdownTimeout.D()
	if grace <= 0 {
		grace = drainGrace
	}
	return grace * 3 / 4
}

// stepsOf are the steps that ranks of an attempt have published.
func (h *Head) stepsOf(v *state.View, at *state.Attempt) (steps []int64) {
	for _, id := range at.Allocs {
		if a := v.Alloc(id); a != nil && a.Generation == at.Generation {
			list, _ := h.nodes.steps(a.Node, id)
			for _, s := range list {
				if s.Step >= 0 {
					steps = append(steps, s.Step)
				}
			}
		}
	}
	return steps
}

// onDrained reports whether a member is on a node that is being drained.
func (h *Head) onDrained(v *state.View, members []string) bool {
	return slices.ContainsFunc(members, func(id string) bool {
		n := v.Node(id)
		return n != nil && n.Draining()
	})
}

// memberLost reports whether a member is gone without a word.
func (h *Head) memberLost(v *state.View, members []string) bool {
	return slices.ContainsFunc(members, func(id string) bool {
		n := v.Node(id)
		return n == nil || n.State == api.NodeLost
	})
}

// bundlesOn is one bundle for each rank, host by host: with a GPU for each rank if every
// host has so many that may be used, else with none.
func (h *Head) bundlesOn(v *state.View, j *state.Job, members []string) (bundles []api.Bundle, placement []api.Placed) {
	devices := map[string][]string{}
	gpus := true
	for _, id := range members {
		n := v.Node(id)
		now := h.nodes.devices(id)
		for _, g := range n.Info.GPUs {
			if survey.Healthy(g.Health, now[g.UUID].Health) {
				devices[id] = append(devices[id], g.UUID)
			}
		}
		gpus = gpus && int64(len(devices[id])) >= hostRanks(n)
	}
	for _, id := range members {
		for r := range hostRanks(v.Node(id)) {
			b := api.Bundle{Resources: j.Spec.Resources}
			p := api.Placed{Bundle: int64(len(placement)), Node: id}
			if gpus {
				b.GPUs, p.Devices = 1, devices[id][r:r+1]
			}
			bundles, placement = append(bundles, b), append(placement, p)
		}
	}
	return bundles, placement
}

// leastRanks says to the supervisor what a loss may leave behind without being charged:
// it counts in ranks, and the hosts may have different numbers of them.
func leastRanks(s *api.HostsSpec, a *supervise.Attempt, lost []string) int64 {
	var left int64
	for i := range a.Allocs {
		if x := &a.Allocs[i]; !x.Lost && !slices.Contains(lost, x.Node) {
			left++
		}
	}
	if left < s.Min {
		return a.World + 1
	}
	return 1
}

// gathering is what a job over several hosts waits for.
func (h *Head) gathering(v *state.View, j *state.Job) *api.Reason {
	f, _ := h.hostsOf(v, j)
	s := supervise.Form(f, h.Clock.Now())
	return &api.Reason{
		Code: api.ReasonFit, Text: s.Text, Need: strconv.FormatInt(j.Spec.Hosts.Min, 10) + " hosts",
		Have: strconv.Itoa(len(f.There)), Frees: "start the same command on another host",
	}
}

// AddViewer makes a token known that may look at everything and change nothing; hash is
// the hex SHA-256 of it. One that is known already stays.
func (h *Head) AddViewer(ctx context.Context, name, hash string) error {
	if t := h.Store.View().Token(hash); t != nil && t.Revoked == 0 {
		return nil
	}
	_, err := h.propose(ctx, state.KindAddToken, state.AddToken{Token: state.Token{Hash: hash, Name: name, Role: "viewer"}})
	return err
}
