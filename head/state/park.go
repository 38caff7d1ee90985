package state

import (
	"fmt"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// ParkJob keeps a job without an open attempt from starting: HELD or SUSPENDED. It keeps
// its seniority and holds nothing. With State QUEUED it waits again.
type ParkJob struct {
	Job    string       `json:"job"`
	State  api.JobState `json:"state"`
	Reason string       `json:"reason,omitempty"`
	By     string       `json:"by,omitempty"`
}

// EditJob changes what a waiting job asks for; nil fields stay.
type EditJob struct {
	Job       string         `json:"job"`
	If        uint64         `json:"if,omitempty"` // index that the job must stand at
	Queue     *string        `json:"queue,omitempty"`
	Tenant    *string        `json:"tenant,omitempty"`
	Priority  *int64         `json:"priority,omitempty"`
	TimeLimit *unit.Duration `json:"timeLimit,omitempty"`
	Estimate  *unit.Duration `json:"estimate,omitempty"`
	MaxWait   *unit.Duration `json:"maxWait,omitempty"`
	Deadline  *int64         `json:"deadline,omitempty"` // ns; 0: none
	Preempt   *bool          `json:"preempt,omitempty"`
	By        string         `json:"by,omitempty"`
}

func parkJob(t *tx, c ParkJob) any {
	j := t.Job(c.Job)
	switch {
	case j == nil:
		return refuse("not-found", "no job "+c.Job)
	case j.State.Terminal():
		return refuse("conflict", "job "+j.ID+" is "+string(j.State)+", which is final")
	case c.State == api.Queued:
		return t.unpark(j, c)
	case c.State != api.Held && c.State != api.Suspended:
		return refuse("invalid", "a job is parked as HELD or SUSPENDED, not as "+string(c.State))
	case j.State == c.State:
		return nil
	case j.Stop != nil || j.OwnerGone:
		return refuse("conflict", "job "+j.ID+" is being stopped")
	case j.Last() != nil && j.Last().Ended == 0:
		return refuse("conflict", "job "+j.ID+" runs; suspend it, or stop it")
	case j.Spec.Hosts != nil:
		return refuse("conflict", "job "+j.ID+" is a launch, which goes on only while its hosts wait")
	case c.State == api.Suspended && j.Spec.PlacementGroup != "":
		return refuse("conflict", "job "+j.ID+" runs in placement group "+j.Group+", which goes on holding what it uses; stop it, or hold it")
	}
	why := lower(string(c.State)) + ": " + byText(c.By, c.Reason)
	w := *j
	w.endDrain(t.index)
	w.State, w.Reason = c.State, &api.Reason{Code: api.ReasonHeld, Text: why, Frees: freesParked(j.ID, c.State)}
	t.put(tJob, &w)
	if g := t.Group(j.Group); g != nil && g.Job == j.ID && g.State != api.GroupRemoving {
		gw := *g
		t.unclaim(&gw, "job "+j.ID+", which it was to leave for, is "+lower(string(c.State)))
		t.freeSpares(&gw)
		if gw.State == api.GroupPlaced {
			gw.Keep = t.livingNodes(&gw)
			t.unplace(&gw)
		}
		gw.State, gw.Parked, gw.Index = api.GroupPending, why, t.index
		t.put(tGroup, &gw)
		t.settle(gw.ID)
	}
	t.event("job-"+lower(string(c.State)), "job/"+j.ID, "%s", byText(c.By, c.Reason))
	return nil
}

func freesParked(job string, s api.JobState) string {
	if s == api.Suspended {
		return "troupe job resume " + job
	}
	return "troupe job release " + job
}

func (t *tx) unpark(j *Job, c ParkJob) any {
	if j.State != api.Held && j.State != api.Suspended {
		return refuse("conflict", "job "+j.ID+" is "+string(j.State)+"; nothing keeps it")
	}
	w := *j
	w.State, w.Reason, w.Index = api.Queued, nil, t.index
	t.put(tJob, &w)
	if g := t.Group(j.Group); g != nil && g.Job == j.ID {
		gw := *g
		gw.Parked, gw.Since, gw.Index = "", t.now, t.index
		t.put(tGroup, &gw)
	}
	kind := "job-released"
	if j.State == api.Suspended {
		kind = "job-resumed"
	}
	t.event(kind, "job/"+j.ID, "%s", byText(c.By, c.Reason))
	return nil
}

// livingNodes are the nodes of a placement that take work.
func (t *tx) livingNodes(g *Group) []string {
	var out []string
	for _, b := range g.Placed {
		if n := t.Node(b.Node); n != nil && n.Schedulable() {
			out = append(out, b.Node)
		}
	}
	return out
}

func editJob(t *tx, c EditJob) any {
	j := t.Job(c.Job)
	switch {
	case j == nil:
		return refuse("not-found", "no job "+c.Job)
	case c.If != 0 && j.Index != c.If:
		return refuse("conflict", fmt.Sprintf("job %s stands at version %d, not at %d; read it again", j.ID, j.Index, c.If))
	case j.State != api.Queued && j.State != api.Held && j.State != api.Suspended:
		return refuse("conflict", "job "+j.ID+" is "+string(j.State)+"; only what waits can be edited")
	case j.Spec.PlacementGroup != "" || j.Spec.Hosts != nil:
		return refuse("conflict", "job "+j.ID+" does not hold a placement group of its own")
	}
	g := t.Group(j.Group)
	if g == nil || g.State != api.GroupPending {
		return refuse("conflict", "the placement group of "+j.ID+" does not wait")
	}
	w, gw := *j, *g
	s, wish := &w.Spec, &w.Spec.Wishes
	text := change(&s.Queue, c.Queue, "queue") + change(&s.Tenant, c.Tenant, "tenant")
	if _, err := t.Tree().Path(s.Tenant, s.Queue); err != nil {
		return refuse("invalid", err.Error())
	}
	text += change(&s.Priority, c.Priority, "priority") + change(&wish.TimeLimit, c.TimeLimit, "timeLimit") +
		change(&wish.Estimate, c.Estimate, "estimate") + change(&wish.MaxWait, c.MaxWait, "maxWait")
	if c.Deadline != nil {
		wish.Deadline = time.Time{}
		if *c.Deadline != 0 {
			wish.Deadline = time.Unix(0, *c.Deadline).UTC()
		}
		text += fmt.Sprintf(" deadline=%s", wish.Deadline.Format(time.RFC3339))
	}
	text += change(&wish.Preemptible, c.Preempt, "preemptible")
	if text == "" {
		return refuse("invalid", "nothing to change was named")
	}
	gw.Spec.Queue, gw.Spec.Tenant, gw.Spec.Priority, gw.Spec.Wishes = s.Queue, s.Tenant, s.Priority, s.Wishes
	gw.Expect = t.expect(&gw)
	w.Index, gw.Index = t.index, t.index
	t.put(tJob, &w)
	t.put(tGroup, &gw)
	t.event("job-edited", "job/"+j.ID, "%s", byText(c.By, text[1:]))
	return nil
}

// change gives a field its new value, if there is one, and says so.
func change[T any](field, value *T, name string) string {
	if value == nil {
		return ""
	}
	*field = *value
	return fmt.Sprintf(" %s=%v", name, *value)
}

// Held is how long a group has held something so far, at a time.
func (g *Group) Held(now int64) time.Duration {
	d := g.Ran
	if g.Begun != 0 {
		d += max(0, now-g.Begun)
	}
	return time.Duration(d)
}
