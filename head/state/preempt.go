package state

import (
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Preempt makes room for a waiting group: the entry that tells the victims to leave also
// claims for the group what it is going to get, so that nobody else takes it meanwhile, not
// even a victim that waits again.
type Preempt struct {
	Group   string       `json:"group"`
	Claim   []api.Placed `json:"claim"` // where its bundles will stand: all, or as many as its roles demand
	Victims []Victim     `json:"victims"`
}

// Victim is a group that gives back what it holds.
type Victim struct {
	Group string `json:"group"`
	// Ranks that its job goes on with; 0: none, it waits with its seniority.
	Ranks    int64  `json:"ranks,omitempty"`
	Why      string `json:"why"`
	Deadline int64  `json:"deadline,omitempty"` // ns; then it is ended by force
	Lost     int64  `json:"lost,omitempty"`     // work that is lost by it, in GPU-milliseconds
}

// DropClaim takes a claim back; victims that have not begun to end stay.
type DropClaim struct {
	Group string `json:"group"`
	Why   string `json:"why"`
}

// mostVictims bounds one command.
const mostVictims = 10_000

func preempt(t *tx, c Preempt) any {
	g := t.Group(c.Group)
	switch {
	case g == nil:
		return refuse("not-found", "no placement group "+c.Group)
	case g.State != api.GroupPending || len(g.Claim) > 0:
		return refuse("conflict", "placement group "+g.ID+" does not wait for room, or has a claim already")
	case !g.startsWith(c.Claim) || len(c.Victims) == 0 || len(c.Victims) > mostVictims:
		return refuse("invalid", fmt.Sprintf("%d bundles claimed of %d, %d victims", len(c.Claim), len(g.Spec.Bundles), len(c.Victims)))
	}
	if err := t.claimable(g, c.Claim); err != nil {
		return refuse("conflict", "the claim of "+g.ID+" no longer holds: "+err.Error())
	}
	for _, v := range c.Victims {
		if err := t.mayLeave(v); err != nil {
			return refuse("conflict", err.Error())
		}
	}
	w := *g
	w.Claim, w.Leaving, w.Index = slices.Clone(c.Claim), nil, t.index
	for _, v := range c.Victims {
		w.Leaving = append(w.Leaving, v.Group)
	}
	t.put(tGroup, &w)
	t.event("pg-claimed", groupObject(g), "it waits for %s to leave", plural(len(c.Victims), "preempted group"))
	var lost int64
	for _, v := range c.Victims {
		t.evict(v, g)
		lost += min(max(0, v.Lost), mostLost)
	}
	t.lose(min(lost, mostLost))
	return nil
}

// Loss is what preemption lost within one minute of the log's time.
type Loss struct {
	Minute int64 `json:"minute"` // since 1970
	Lost   int64 `json:"lost"`   // GPU-milliseconds
}

const (
	lossMinutes = 60
	mostLost    = 1 << 50 // keeps every sum within an integer
)

// lose records what a preemption loses, by the minute, for an hour.
func (t *tx) lose(lost int64) {
	minute := t.now / int64(time.Minute)
	kept := make([]Loss, 0, len(t.meta.Losses)+1)
	for _, l := range t.meta.Losses {
		if l.Minute > minute-lossMinutes && l.Minute <= minute {
			kept = append(kept, l)
		}
	}
	if n := len(kept); n > 0 && kept[n-1].Minute == minute {
		kept[n-1].Lost += lost
	} else {
		kept = append(kept, Loss{Minute: minute, Lost: lost})
	}
	t.meta.Losses = kept
}

// LostToPreemption is what preemption lost within the last hour, in GPU-milliseconds.
func (v *View) LostToPreemption(now int64) int64 {
	var sum int64
	for _, l := range v.Meta().Losses {
		if l.Minute > now/int64(time.Minute)-lossMinutes {
			sum += l.Lost
		}
	}
	return sum
}

// groupObject is what the events of a group are about.
func groupObject(g *Group) string {
	if g.Job != "" {
		return "job/" + g.Job
	}
	return "pg/" + g.ID
}

// mayLeave: a victim is a placed group that was made for one job, or that no job uses.
func (t *tx) mayLeave(v Victim) error {
	g := t.Group(v.Group)
	if g == nil || g.State != api.GroupPlaced {
		return fmt.Errorf("placement group %s is not placed", v.Group)
	}
	for _, j := range t.JobsOf(g.ID) {
		switch {
		case j.State.Terminal():
		case g.Job != j.ID:
			return fmt.Errorf("job %s uses placement group %s", j.ID, g.ID)
		case j.Stop != nil || j.OwnerGone || j.Drain != nil && j.Drain.Kind != DrainResize:
			return fmt.Errorf("job %s is ending already", j.ID)
		case v.Ranks > 0 && !j.Spec.Sizes.Allows(v.Ranks, j.Spec.Ranks):
			return fmt.Errorf("%d ranks are not an allowed size of %s", v.Ranks, j.ID)
		}
	}
	return nil
}

// evict tells one victim to leave for a group.
func (t *tx) evict(v Victim, preemptor *Group) {
	g := t.Group(v.Group)
	j := t.Job(g.Job)
	if j == nil || j.State.Terminal() {
		t.releaseAll(g, v.Why)
		return
	}
	d := Drain{Kind: DrainPreempt, Reason: v.Why, Deadline: v.Deadline, For: preemptor.ID, Since: t.now}
	if v.Ranks > 0 {
		d.Kind, d.Ranks = DrainResize, v.Ranks
	}
	w := *j
	w.Drain, w.Index = &d, t.index
	if w.State == api.Running {
		w.State = api.Draining
	}
	t.put(tJob, &w)
	t.event("job-preempted", "job/"+j.ID, "%s", v.Why)
}

// left says that a job has given its placement back and waits.
func (j *Job) left(d *Drain, now int64) {
	j.Drain, j.Waits = nil, now
	if j.Stop != nil {
		return
	}
	if d.Kind == DrainSuspend {
		j.State, j.Reason = api.Suspended, &api.Reason{Code: api.ReasonHeld, Text: d.Reason, Frees: freesParked(j.ID, api.Suspended)}
		return
	}
	j.Evictions++
	if j.Evicted == "" {
		j.Evicted = cutText(d.Reason, MaxEventText)
	}
	j.Reason = &api.Reason{Code: api.ReasonPreempted, Text: d.Reason}
	if d.For != "" {
		j.Reason.Blockers = []string{"pg/" + d.For}
	}
}

func dropClaim(t *tx, c DropClaim) any {
	g := t.Group(c.Group)
	switch {
	case g == nil:
		return refuse("not-found", "no placement group "+c.Group)
	case len(g.Claim) == 0:
		return nil
	}
	w := *g
	t.unclaim(&w, c.Why)
	w.Index = t.index
	t.put(tGroup, &w)
	return nil
}

// unclaim forgets the claim of a group and lets the victims stay that can.
func (t *tx) unclaim(g *Group, why string) {
	if len(g.Claim) == 0 {
		return
	}
	for _, id := range g.Leaving {
		v := t.Group(id)
		if v == nil {
			continue
		}
		j := t.Job(v.Job)
		if j == nil || j.State.Terminal() || j.Drain == nil || j.Drain.For != g.ID || j.Ending() {
			continue
		}
		w := *j
		w.endDrain(t.index)
		t.put(tJob, &w)
		t.event("drain-cancelled", "job/"+j.ID, "%s", why)
	}
	g.Claim, g.Leaving = nil, nil
	t.event("pg-unclaimed", groupObject(g), "%s", why)
}

// startsWith: the group may start with those bundles.
func (g *Group) startsWith(placement []api.Placed) bool {
	w := *g
	chosen, err := w.choose(placement)
	return err == nil && len(chosen) == len(w.Spec.Bundles)
}

// claimable: every node of a claim takes work, and nobody else has claimed its devices.
func (t *tx) claimable(g *Group, claim []api.Placed) error {
	for i, p := range claim {
		if p.Bundle < int64(i) || p.Bundle >= int64(len(g.Spec.Bundles)) || i > 0 && p.Bundle <= claim[i-1].Bundle {
			return fmt.Errorf("bundle %d stands at position %d of %d", p.Bundle, i, len(claim))
		}
		n := t.Node(p.Node)
		if n == nil || !n.Schedulable() {
			return fmt.Errorf("node %s takes nothing new", p.Node)
		}
		for _, uuid := range p.Devices {
			if _, ok := n.gpu(uuid); !ok {
				return fmt.Errorf("node %s has no device %s to give", n.ID, uuid)
			}
		}
		if err := t.freeOfClaims(g.ID, p, api.Resources{Share: g.Spec.Bundles[p.Bundle].Share}, nil); err != nil {
			return err
		}
	}
	return nil
}

// freeOfClaims: what a group takes on a node leaves every other group what it has claimed
// there. u is what is charged to the node, nil: only devices are looked at.
func (t *tx) freeOfClaims(group string, p api.Placed, need api.Resources, u *Use) error {
	var cpu unit.MilliCPU
	var mem unit.Bytes
	leaving := map[string]bool{}
	for _, g := range t.Claims() {
		if g.ID == group {
			continue
		}
		for _, c := range g.Claim {
			if c.Node != p.Node || c.Bundle >= int64(len(g.Spec.Bundles)) {
				continue
			}
			b := g.Spec.Bundles[c.Bundle]
			cpu += b.CPU
			mem += b.Memory
			for _, uuid := range c.Devices {
				if slices.Contains(p.Devices, uuid) && (need.Share == 0 || b.Share == 0) {
					return fmt.Errorf("device %s of node %s is claimed by placement group %s", uuid, p.Node, g.ID)
				}
			}
		}
		for _, id := range g.Leaving {
			leaving[id] = true
		}
	}
	if u == nil || cpu == 0 && mem == 0 {
		return nil
	}
	for _, h := range t.HoldsOn(p.Node) {
		if leaving[h.Group] {
			cpu -= h.Need.CPU
			mem -= h.Need.Memory
		}
	}
	n := t.Node(p.Node)
	if n == nil {
		return nil
	}
	if cpu > 0 && u.CPU+need.CPU+cpu > n.Info.CPU || mem > 0 && u.Memory+need.Memory+mem > n.Info.Memory {
		return fmt.Errorf("what node %s has left is claimed by a group that others leave for", p.Node)
	}
	return nil
}

// releaseAll gives back the whole placement of a group that no live job uses.
func (t *tx) releaseAll(g *Group, why string) {
	w := *g
	t.freeSpares(&w)
	t.unplace(&w)
	w.State, w.Why, w.Index = api.GroupPending, why, t.index
	t.put(tGroup, &w)
	t.event("pg-released", "pg/"+g.ID, "%s", why)
	t.settle(w.ID)
}
