package control

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/elastic/supervise"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/head/survey"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// attemptEnd is how a decision closes the newest attempt, with what this leader has heard
// of its ranks.
func (h *Head) attemptEnd(v *state.View, j *state.Job, d *supervise.End) *state.AttemptEnd {
	end := &state.AttemptEnd{Cause: d.Cause, Failure: d.Failure, Ledger: d.Ledger, Again: d.Again}
	if last := j.Last(); last != nil {
		heard := h.heard(v, last)
		end.Newest, end.Saving, end.Saves = heard.newest, heard.saving, heard.saves
		end.Upload, end.Uploads = heard.upload, heard.uploads
	}
	if b := d.Bar; b != nil {
		if id := nodeNamed(v, j, b.Node); id != "" && (b.Firm || h.canDoWithout(v, j, id)) {
			end.Exclude = &state.Exclusion{Node: id, Why: b.Why, Until: h.Clock.Now().Add(b.For).UnixNano()}
		}
	}
	return end
}

// canDoWithout reports whether the other nodes that are ready could hold a job's gang if
// they were empty. Where they could not, keeping off a node would only make it wait.
func (h *Head) canDoWithout(v *state.View, j *state.Job, node string) bool {
	g := v.Group(j.Group)
	if g == nil {
		return false
	}
	avoid := h.avoided(v, j.ID)
	var others []*schedule.Node
	for _, n := range v.Nodes() {
		if n.ID != node && n.State == api.NodeReady && avoid[n.ID] == "" {
			others = append(others, survey.Node(v, n, h.nodes.said(n.ID)))
		}
	}
	return len(others) > 0 && schedule.Never(&schedule.Snapshot{Nodes: others}, g.Spec) == nil
}

// nodeNamed finds the node of a job's newest attempt that people know by a name.
func nodeNamed(v *state.View, j *state.Job, name string) string {
	if last := j.Last(); last != nil {
		for _, r := range last.Ranks {
			if nodeName(v, r.Node) == name {
				return r.Node
			}
		}
	}
	return ""
}

// heard is what the nodes' heartbeats say of an attempt, beside the log.
type heard struct {
	newest, saving, saves int64
	upload, uploads       int64
	excused               bool // some rank stands still by intent
}

func (h *Head) heard(v *state.View, a *state.Attempt) heard {
	out := heard{newest: a.Pace.Newest, saving: a.Pace.Saving, saves: a.Pace.Saves, upload: a.Pace.Upload, uploads: a.Pace.Uploads}
	for _, id := range a.Allocs {
		al := v.Alloc(id)
		if al == nil || al.Generation != a.Generation {
			continue
		}
		st := h.nodes.status(al.Node, id)
		if st.Generation != a.Generation {
			continue // of another attempt, or from a leader before this one
		}
		out.newest = max(out.newest, newestOf(st.Steps))
		out.excused = out.excused || st.Excused
		out.saving, out.saves = max(out.saving, st.Saving), max(out.saves, st.Saves)
		if st.Upload > out.upload { // of the slowest node, both
			out.upload, out.uploads = st.Upload, st.Uploads
		}
	}
	return out
}

// status is what a node said last of an allocation.
func (s *sessions) status(node, alloc string) wire.AllocStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.byID[node]; n != nil {
		return n.allocs[alloc]
	}
	return wire.AllocStatus{}
}

// newestOf is the newest step of some ranks, -1 when none has made one.
func newestOf(steps []wire.RankStep) int64 {
	newest := int64(-1)
	for _, s := range steps {
		newest = max(newest, s.Step)
	}
	return newest
}

// avoided are the nodes that a job keeps off now, with what people are to know of it.
func (h *Head) avoided(v *state.View, job string) map[string]string {
	return survey.Avoided(v.Job(job), h.Clock.Now().UnixNano())
}

// nextReturn is when the first exclusion of a job that lives ends, in nanoseconds; 0:
// there is none.
func nextReturn(v *state.View, now int64) int64 {
	var first int64
	for _, j := range v.LiveJobs() {
		for _, x := range j.Barred(now) {
			if first == 0 || x.Until < first {
				first = x.Until
			}
		}
	}
	return first
}

// readyNames remembers the names of the ready nodes at one index: each job of a pass is
// looked at beside them.
type readyNames struct {
	mu    sync.Mutex
	index uint64
	list  []string
}

// names is shared and must not be changed.
func (r *readyNames) names(v *state.View) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.index != v.Index() || r.index == 0 {
		r.index, r.list = v.Index(), nil
		for _, n := range v.Nodes() {
			if n.State == api.NodeReady {
				r.list = append(r.list, nodeName(v, n.ID))
			}
		}
	}
	return slices.Clip(r.list)
}

// barredOf tells the supervisor which nodes of the placement the job must leave, and
// which there are beside.
func (h *Head) barredOf(v *state.View, j *state.Job, g *supervise.Group) {
	if j.Spec.Hosts != nil {
		return // a launch runs on the hosts that were started for it
	}
	avoid := h.avoided(v, j.ID)
	g.Ready = h.ready.names(v)
	if len(avoid) > 0 {
		g.Ready = nil
		for _, n := range v.Nodes() {
			if n.State == api.NodeReady && avoid[n.ID] == "" {
				g.Ready = append(g.Ready, nodeName(v, n.ID))
			}
		}
	}
	pg := v.Group(j.Group)
	if len(avoid) == 0 || pg == nil || pg.Job != j.ID {
		return // bundles of a group that is not its own are where their owner put them
	}
	// What was placed since then was placed by who knew of it: a gang leaves a node once.
	for _, x := range j.Excluded {
		if x.At <= pg.PlacedAt {
			delete(avoid, x.Node)
		}
	}
	for _, b := range pg.RankBundles() {
		if name := nodeName(v, b.Node); avoid[b.Node] != "" && !slices.Contains(g.Barred, name) {
			g.Barred = append(g.Barred, name)
		}
	}
}

// paceFacts are the facts of an attempt that the refill of budgets goes by.
func (h *Head) paceFacts(v *state.View, last *state.Attempt, a *supervise.Attempt) {
	a.Again, a.From = last.Again, last.Pace.From
	a.Newest = h.heard(v, last).newest
	for i := range last.Exits {
		a.Newest = max(a.Newest, last.Exits[i].StepsDone)
	}
	if last.Pace.First != 0 {
		a.FirstStepAt = time.Unix(0, last.Pace.First)
	}
	a.Idle = time.Duration(last.Pace.Stalled)
	if since := last.Pace.Since; since != 0 {
		a.Idle += max(0, h.Clock.Now().Sub(time.Unix(0, since)))
	}
}

// gpuFault says which device of an allocation is out of order, by its node's last word.
// A driver that does not answer says nothing about the device, nor does who else uses it.
func (h *Head) gpuFault(v *state.View, al *state.Alloc) string {
	devices := h.nodes.devices(al.Node)
	if len(devices) == 0 {
		return ""
	}
	for _, id := range al.Holds {
		hold := v.Hold(id)
		if hold == nil {
			continue
		}
		for _, uuid := range hold.Devices {
			if word := devices[uuid].Health; !survey.Healthy(word) && word != "unknown" && word != "busy" {
				return fmt.Sprintf("GPU %s is %s", uuid, word)
			}
		}
	}
	return ""
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// excludedView lists what a job keeps off now.
func (h *Head) excludedView(v *state.View, j *state.Job) []api.Excluded {
	var out []api.Excluded
	for _, x := range j.Barred(h.Clock.Now().UnixNano()) {
		out = append(out, api.Excluded{Node: nodeName(v, x.Node), Why: x.Why, Since: at(x.At), Until: at(x.Until)})
	}
	return out
}

// whyExcluded tells of each node that a live job keeps off.
func (h *Head) whyExcluded(v *state.View, j *state.Job) []api.Reason {
	if j.State.Terminal() {
		return nil
	}
	var out []api.Reason
	for _, x := range h.excludedView(v, j) {
		out = append(out, api.Reason{
			Code: api.ReasonExcluded, Text: fmt.Sprintf("keeps off %s: %s", x.Node, x.Why), Where: x.Node,
			Blockers: []string{x.Node}, Frees: "time: it may be used again from " + x.Until.Format("15:04:05") + " UTC on",
		})
	}
	return out
}
