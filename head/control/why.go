package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// Why explains a job, placement group, node or queue: job/x, pg/x, node/x, queue/x, or a
// bare id.
//
// With whatIf it says besides what would become of what waits with these changes.
func (h *Head) Why(_ context.Context, target string, whatIf ...string) (api.Why, error) {
	v := h.Store.View()
	kind, id, typed := strings.Cut(target, "/")
	if !typed {
		kind, id = "", target
	}
	if kind == "any" {
		kind = ""
	}
	if kind == "job" || kind == "actor" || kind == "" {
		j, err := v.Resolve(id)
		if err == nil {
			w := h.whyJob(v, j)
			return h.foresee(v, j.Group, w, j.State == api.Queued, whatIf)
		}
		if kind != "" {
			return api.Why{}, h.problemOf(err)
		}
	}
	if kind == "pg" || kind == "gang" || kind == "" {
		g, err := resolveGroup(v, id)
		if err == nil {
			return h.foresee(v, g.ID, h.whyGroup(v, g), g.State == api.GroupPending, whatIf)
		}
		if kind != "" {
			return api.Why{}, err
		}
	}
	if kind == "node" || kind == "" {
		for _, n := range v.Nodes() {
			if n.ID == id || n.Info.Name == id {
				return h.whyNode(v, n), nil
			}
		}
	}
	if kind == "queue" || kind == "tenant" || kind == "" {
		if w, ok := h.whyQueue(v, id); ok {
			return w, nil
		}
	}
	if kind == "" {
		target = id
	}
	p := problem(404, "TRP-A404", api.ExitNotFound, "not found", "nothing is named %q", cut(target, 100))
	p.Help = "troupe why job/ID, pg/ID, node/NAME or queue/NAME"
	return api.Why{}, p
}

// whyQueue says whether work of a tenant or queue may start, and how much of it waits.
func (h *Head) whyQueue(v *state.View, name string) (api.Why, bool) {
	list, _, _ := h.Queues(context.Background())
	i := slices.IndexFunc(list, func(q api.QueueStatus) bool { return q.Name == name })
	if i < 0 {
		return api.Why{}, false
	}
	q := &list[i]
	kind := "queue"
	if q.Tenant {
		kind = "tenant"
	}
	w := api.Why{Target: kind + "/" + name, State: "open", Events: h.recent(v, "queue/"+name)}
	at := q
	if q.Paused == "" {
		at = q.PausedAbove(list)
	}
	w.Answer = fmt.Sprintf("Its work may start: %d run, %d wait, %d are held.", q.Running, q.Pending, q.Parked)
	if at != nil {
		w.State = "paused"
		w.Answer = fmt.Sprintf("Nothing of it starts: %s is paused: %s. %d run, %d wait, %d are held.", at.Name, at.Paused, q.Running, q.Pending, q.Parked)
		w.Reasons = []api.Reason{{
			Code: api.ReasonHeld, Text: fmt.Sprintf("%s is paused: %s", at.Name, at.Paused), Blockers: []string{at.Name}, Frees: "troupe queue resume " + at.Name,
		}}
	}
	if q.Pending > 0 {
		w.Answer += " What each waits for: troupe queue order " + name + " --explain"
	}
	return w, true
}

// counted is a number of things.
func counted(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func (h *Head) recent(v *state.View, object string) []api.Event {
	var out []api.Event
	for _, e := range v.RecentEvents(object, 10) {
		out = append(out, eventView(e))
	}
	return out
}

func (h *Head) whyJob(v *state.View, j *state.Job) api.Why {
	w := api.Why{Target: "job/" + j.ID, State: string(j.State), Events: h.recent(v, "job/"+j.ID)}
	last := j.Last()
	switch j.State {
	case api.Queued:
		w.Reasons = h.reasonsFor(v, j.Group)
		if g := v.Group(j.Group); g != nil && g.State == api.GroupPlaced {
			w.Reasons = h.whyInGroup(v, j, g)
		}
		w.Answer = "It waits for resources."
		if len(w.Reasons) > 0 {
			w.Answer = "It waits: " + w.Reasons[0].Text
		}
	case api.Reserved:
		w.Answer = "Every bundle is placed; its first attempt starts as soon as its first node offers a master port."
		if f := h.fetching(v, j); len(f) > 0 {
			w.Answer = "Every bundle is placed; its first attempt starts when its package is there." + fetchText(v, f)
		}
	case api.Starting:
		w.Answer = "Agents start its ranks."
		if last != nil {
			w.Answer = fmt.Sprintf("Attempt %d: agents start its ranks; %s.", last.Number, h.startedText(v, last))
		}
		w.Answer += fetchText(v, h.fetching(v, j))
	case api.Running:
		w.Answer = "It runs."
		if last != nil {
			w.Answer = fmt.Sprintf("It runs: attempt %d, %s on %s.", last.Number, counted(len(last.Ranks), "rank"), counted(len(last.Allocs), "node"))
			w.Answer += sparesText(sparesView(v, j))
		}
	case api.Recovering:
		w.Answer = "An attempt failed and the next one is being started."
		if j.Reason != nil {
			w.Answer = "It recovers: " + j.Reason.Text
		}
		w.Answer += fetchText(v, h.fetching(v, j))
	case api.Stopping:
		w.Answer = "A stop was asked for; its ranks are being ended."
		if j.Stop != nil {
			w.Answer = "It is being stopped: " + j.Stop.Reason
		}
	case api.Succeeded, api.Failed, api.Stopped, api.Preempted:
		w.Answer = "It has ended: " + string(j.State)
		if j.Reason != nil && j.Reason.Text != "" {
			w.Answer += ": " + j.Reason.Text
		}
	case api.Draining:
		w.Answer = "It is being drained."
		if j.Drain != nil {
			w.Answer = fmt.Sprintf("It is being drained: %s; it waits for %s.", j.Drain.Reason, h.drainText(v, j))
			w.Reasons = []api.Reason{{Code: api.ReasonPolicy, Text: j.Drain.Reason, Where: j.Drain.Node}}
			if j.Drain.Deadline != 0 {
				w.Answer += " What has not ended by " + at(j.Drain.Deadline).Format(time.RFC3339) + " is ended by force."
			}
		}
	case api.Held, api.Suspended:
		w.Answer = "It is " + strings.ToLower(string(j.State)) + "."
		if j.Reason != nil && j.Reason.Frees != "" {
			w.Answer = "It is " + strings.ToLower(string(j.State)) + ", and waits for " + j.Reason.Frees + "."
		}
	}
	if j.Reason != nil && len(w.Reasons) == 0 {
		w.Reasons = []api.Reason{*j.Reason}
	}
	if j.State != api.Queued { // there the scheduler names them
		w.Reasons = append(w.Reasons, h.whyExcluded(v, j)...)
	}
	return w
}

func (h *Head) startedText(v *state.View, last *state.Attempt) string {
	n := 0
	var waits []string
	for _, id := range last.Allocs {
		if a := v.Alloc(id); a != nil && a.Started {
			n++
		} else if a != nil {
			waits = append(waits, a.Node)
		}
	}
	if len(waits) == 0 {
		return fmt.Sprintf("%d of %d nodes have", n, len(last.Allocs))
	}
	return fmt.Sprintf("%d of %d nodes have, still waiting for %s", n, len(last.Allocs), strings.Join(waits, ", "))
}

// whyInGroup explains a job that waits for bundles of an existing group.
func (h *Head) whyInGroup(_ *state.View, j *state.Job, g *state.Group) []api.Reason {
	var out []api.Reason
	for r := range j.Spec.Ranks {
		n := state.BundleOf(j.Spec, r)
		b := g.Position(n)
		if b < 0 {
			out = append(out, api.Reason{
				Code: api.ReasonBusy, Text: fmt.Sprintf("placement group %s was placed without bundle %d, as its roles allow", g.ID, n),
				Frees: "a placement of the group that has this bundle",
			})
			continue
		}
		if used := g.Placed[b].UsedBy; used != "" && used != j.ID {
			out = append(out, api.Reason{
				Code: api.ReasonBusy, Text: fmt.Sprintf("bundle %d of placement group %s is used by job %s", n, g.ID, used),
				Blockers: []string{"job/" + used}, Frees: "the end of job " + used,
			})
		}
	}
	return out
}

func (h *Head) whyGroup(v *state.View, g *state.Group) api.Why {
	w := api.Why{Target: "pg/" + g.ID, State: string(g.State), Events: h.recent(v, "pg/"+g.ID)}
	switch g.State {
	case api.GroupPending:
		w.Reasons = h.reasonsFor(v, g.ID)
		w.Answer = "It waits for resources."
		if len(w.Reasons) > 0 {
			w.Answer = "It waits: " + w.Reasons[0].Text
		}
	case api.GroupPlaced:
		w.Answer = fmt.Sprintf("It holds all of its %d bundles.", len(g.RankBundles()))
		if a := g.Asked; a != nil {
			w.Answer = fmt.Sprintf("It holds %d of its %d bundles, with which its roles have their minimums.", len(a.Chosen), len(a.Bundles))
		}
		w.Answer += sparesText(sparesView(v, v.Job(g.Job)))
	case api.GroupRemoving:
		w.Answer = "It is being removed; what processes still use stays charged until they are proven gone."
	case api.GroupRemoved:
		w.Answer = "It was removed."
	}
	return w
}

// leftText says what has not left a drained node.
func leftText(c *api.Cordon) string {
	if len(c.Jobs) == 0 {
		return "Nothing of a job is left on it."
	}
	text := fmt.Sprintf("%s left on it", counted(len(c.Jobs), "thing"))
	if !c.Deadline.IsZero() {
		text += ", which is ended at " + c.Deadline.Format(time.RFC3339)
	}
	return text + "."
}

func (h *Head) whyNode(v *state.View, n *state.Node) api.Why {
	w := api.Why{Target: "node/" + n.ID, State: string(n.State), Events: h.recent(v, "node/"+n.ID)}
	w.Answer = "It is ready and takes new work."
	if n.State != api.NodeReady {
		w.Answer = fmt.Sprintf("It takes nothing new: %s.", n.Why)
		w.Reasons = []api.Reason{{Code: api.ReasonHealth, Text: n.Why, Where: n.ID, Frees: "the agent's return"}}
	}
	c := h.cordonView(v, n)
	if c == nil {
		return w
	}
	frees := "troupe node undrain " + n.Info.Name
	if c.Notice != nil {
		frees = "the end of its notice, or " + frees
	}
	w.Reasons = append(w.Reasons, api.Reason{Code: api.ReasonPolicy, Text: n.WhyNot(), Where: n.ID, Frees: frees})
	if n.State == api.NodeReady {
		w.Answer = fmt.Sprintf("It takes nothing new: %s.", n.WhyNot())
		if c.Drain {
			w.Answer += " " + leftText(c)
		}
	}
	return w
}
