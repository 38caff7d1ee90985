package state

import (
	"fmt"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// DrainKind says what follows when an attempt was ended in order.
type DrainKind string

// Kinds of drain.
const (
	DrainStop   DrainKind = "stop"   // the job ends: STOPPED
	DrainMove   DrainKind = "move"   // the job goes on elsewhere, or waits with its seniority
	DrainResize DrainKind = "resize" // the job goes on with another number of ranks
	// DrainPreempt: the job gives everything back, for the group For, and waits with its
	// seniority. DrainSuspend: likewise, and waits until somebody resumes it.
	DrainPreempt DrainKind = "preempt"
	DrainSuspend DrainKind = "suspend"
)

// Drain is the orderly end of a job's attempt: the ranks agree on a step, save it, and
// end; then Kind follows. Nobody is charged.
type Drain struct {
	Kind     DrainKind `json:"kind"`
	Reason   string    `json:"reason"`
	Since    int64     `json:"since"`
	Deadline int64     `json:"deadline,omitempty"` // ns; 0: no force
	Ranks    int64     `json:"ranks,omitempty"`    // of a resize
	// Auto: nobody asked for the resize but the scheduler, which saw room for it; without
	// the room it is taken back.
	Auto bool   `json:"auto,omitempty"`
	Node string `json:"node,omitempty"` // that a move leaves
	For  string `json:"for,omitempty"`  // the group that it is preempted for
	// Ordered is why the ranks of Generation are ended now by TERM, a grace and KILL:
	// they have saved, or cannot, or the deadline has come.
	Ordered    string `json:"ordered,omitempty"`
	Generation uint64 `json:"gen,omitempty"`
}

// DrainJob begins the orderly end of a job's attempt. A stop takes precedence over the
// other kinds; of two deadlines the earlier holds.
type DrainJob struct {
	Job   string `json:"job"`
	Drain Drain  `json:"drain"`
}

// OrderEnd ends the ranks of a draining attempt without waiting any longer.
type OrderEnd struct {
	Job        string `json:"job"`
	Generation uint64 `json:"gen"`
	Why        string `json:"why"`
}

// CancelDrain takes a drain back, as long as its ranks have not agreed to end.
type CancelDrain struct {
	Job string `json:"job"`
	Why string `json:"why"`
}

// NodeDrain keeps new work off a node.
type NodeDrain struct {
	Drain    bool   `json:"drain,omitempty"` // what runs there leaves
	Reason   string `json:"reason"`
	Since    int64  `json:"since"`
	Deadline int64  `json:"deadline,omitempty"` // ns; then what is left is ended by force
}

// DrainNode cordons, drains or, with a nil Cordon, frees a node.
type DrainNode struct {
	ID     string     `json:"id"`
	Cordon *NodeDrain `json:"cordon,omitempty"`
}

func drainJob(t *tx, c DrainJob) any {
	j := t.Job(c.Job)
	switch {
	case j == nil:
		return refuse("not-found", "no job "+c.Job)
	case j.State.Terminal():
		return refuse("conflict", "job "+j.ID+" is "+string(j.State)+", which is final")
	case j.Stop != nil || j.OwnerGone:
		return refuse("conflict", "job "+j.ID+" is being stopped")
	case c.Drain.Kind == DrainSuspend && (j.Spec.PlacementGroup != "" || j.Spec.Hosts != nil):
		return refuse("conflict", "only a job that holds its own placement group can be suspended")
	case c.Drain.Kind != DrainStop && c.Drain.Kind != DrainResize && (j.State == api.Held || j.State == api.Suspended):
		return refuse("conflict", "job "+j.ID+" is "+string(j.State)+" and runs nothing")
	case c.Drain.Kind == DrainResize && (c.Drain.Ranks < 1 || j.Spec.PlacementGroup != "" || j.Spec.Hosts != nil):
		return refuse("invalid", "a resize needs a number of ranks, and a job that holds its own placement group")
	case c.Drain.Kind == DrainResize && j.Spec.RanksPerNode > 0 && c.Drain.Ranks%j.Spec.RanksPerNode != 0:
		return refuse("invalid", fmt.Sprintf("%d ranks are not a multiple of the %d that %s has on each node", c.Drain.Ranks, j.Spec.RanksPerNode, j.ID))
	case c.Drain.Kind == DrainResize && j.Spec.Sizes.Any() && !j.Spec.Sizes.Allows(c.Drain.Ranks, j.Spec.Ranks):
		return refuse("invalid", fmt.Sprintf("%d ranks are not an allowed size of %s", c.Drain.Ranks, j.ID))
	}
	if g := t.Group(j.Group); c.Drain.Kind == DrainResize && j.waits(g) {
		t.sizeWaiting(j, g, &c.Drain)
		return nil
	}
	d := c.Drain
	d.Since, d.Ordered, d.Generation = t.now, "", 0
	if old := j.Drain; old != nil {
		if !old.yieldsTo(&d) {
			return refuse("conflict", fmt.Sprintf("job %s is being drained already (%s): %s", j.ID, old.Kind, old.Reason))
		}
		d.Ordered, d.Generation = old.Ordered, old.Generation
		if d.Deadline == 0 || old.Deadline != 0 && old.Deadline < d.Deadline {
			d.Deadline = old.Deadline
		}
	}
	w := *j
	w.Drain, w.Index = &d, t.index
	if w.State == api.Running {
		w.State = api.Draining
	}
	t.put(tJob, &w)
	t.event("job-draining", "job/"+j.ID, "%s: %s", d.Kind, d.Reason)
	return nil
}

// yieldsTo: a stop replaces everything; leaving altogether replaces a move, and a move a
// resize, which is asked for again when it is over; the same kind is only made sooner or
// given another size.
func (d *Drain) yieldsTo(n *Drain) bool {
	order := map[DrainKind]int{DrainResize: 0, DrainMove: 1, DrainPreempt: 2, DrainSuspend: 3, DrainStop: 4}
	return order[n.Kind] >= order[d.Kind]
}

// Leaves: the job gives its whole placement back.
func (d *Drain) Leaves() bool {
	return d != nil && (d.Kind == DrainPreempt || d.Kind == DrainSuspend)
}

func orderEnd(t *tx, c OrderEnd) any {
	j := t.Job(c.Job)
	if j == nil || j.State.Terminal() || j.Drain == nil || j.Last() == nil || j.Last().Generation != c.Generation || j.Last().Ended != 0 {
		return refuse("stale", "no such attempt of "+c.Job+" is being drained")
	}
	if j.Drain.Ordered != "" && j.Drain.Generation == c.Generation {
		return nil
	}
	w, d := *j, *j.Drain
	d.Ordered, d.Generation = cutText(c.Why, MaxEventText), c.Generation
	w.Drain, w.Index = &d, t.index
	t.put(tJob, &w)
	t.event("drain-ordered", "job/"+j.ID, "attempt %d is ended: %s", j.Last().Number, c.Why)
	return nil
}

func cancelDrain(t *tx, c CancelDrain) any {
	j := t.Job(c.Job)
	switch {
	case j == nil:
		return refuse("not-found", "no job "+c.Job)
	case j.State.Terminal() || j.Drain == nil:
		return nil
	case j.Ending():
		return refuse("conflict", "the ranks of "+j.ID+" are ending already")
	}
	w := *j
	w.endDrain(t.index)
	t.put(tJob, &w)
	t.event("drain-cancelled", "job/"+j.ID, "%s", c.Why)
	return nil
}

// Ending reports whether the ranks of the open attempt have agreed to end or are told to.
func (j *Job) Ending() bool {
	last := j.Last()
	if j.Drain == nil || last == nil || last.Ended != 0 {
		return false
	}
	return j.Drain.Ordered != "" && j.Drain.Generation == last.Generation || j.AgreedEnd() != nil
}

func (j *Job) endDrain(index uint64) {
	j.Drain, j.Index = nil, index
	if j.State == api.Draining {
		j.State = api.Running
	}
}

// drained forgets the drain of a job whose gang has moved or changed its size.
func (t *tx) drained(job string, kind DrainKind) {
	j := t.Job(job)
	if j == nil || j.State.Terminal() || j.Drain == nil || j.Drain.Kind != kind {
		return
	}
	w := *j
	w.endDrain(t.index)
	t.put(tJob, &w)
}

func drainNode(t *tx, c DrainNode) any {
	n := t.Node(c.ID)
	if n == nil {
		return refuse("not-found", "no node "+c.ID)
	}
	w := *n
	w.Index = t.index
	switch {
	case c.Cordon == nil && n.Cordoned() == nil:
		return nil
	case c.Cordon == nil:
		w.Cordon, w.Notice = nil, nil // somebody's word counts more than the agent's
		t.event("node-uncordoned", "node/"+n.ID, "it takes new work again")
	default:
		d := *c.Cordon
		d.Since = t.now
		kind := "node-cordoned"
		if d.Drain {
			kind = "node-draining"
		}
		if old := n.Cordon; old != nil {
			if old.Drain == d.Drain && old.Reason == d.Reason && old.Deadline == d.Deadline {
				return nil
			}
			if old.Drain && !d.Drain {
				return refuse("conflict", "node "+n.Info.Name+" is being drained; undrain it first")
			}
			d.Since = old.Since
		}
		w.Cordon = &d
		t.event(kind, "node/"+n.ID, "%s", orText(d.Reason, "no reason given"))
	}
	t.put(tNode, &w)
	return nil
}
