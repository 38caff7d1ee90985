package survey

import (
	"strings"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// declared is what people declare: it changes seldom and is read whole.
type declared struct {
	queues       []*api.Queue
	levels       []api.Level
	links        []*api.Link
	capacities   []*api.Capacity
	reservations []*api.Reservation
	policy       schedule.Policy
}

func readDeclared(v *state.View) declared {
	d := declared{queues: v.QueueSpecs(), levels: v.Settings().Levels, policy: policyOf(v.Settings().Policy)}
	for _, l := range v.Links() {
		d.links = append(d.links, &l.Spec)
	}
	for _, c := range v.Capacities() {
		d.capacities = append(d.capacities, &c.Spec)
	}
	for _, r := range v.Reservations() {
		d.reservations = append(d.reservations, &r.Spec)
	}
	return d
}

func (d *declared) give(s *schedule.Snapshot, q *schedule.Queues) {
	s.Levels, s.Links, s.Capacities, s.Reservations = d.levels, d.links, d.capacities, d.reservations
	s.Policy = d.policy
	if len(d.queues) > 0 {
		s.Queues = q
	}
}

// policyOf is what an operator set, as the scheduler takes it.
func policyOf(p api.SchedulerPolicy) schedule.Policy {
	out := schedule.Policy{Order: p.Order, NoBackfill: p.NoBackfill, NoPreempt: p.NoPreempt, MaxLost: p.MaxLost, LinkFresh: p.LinkFresh.D()}
	if p.Protect != nil {
		out.Protect = max(1, p.Protect.D()) // a nanosecond protects nothing, and is not the default
	}
	if p.GrowAfter != nil {
		out.GrowAfter = max(1, p.GrowAfter.D())
	}
	return out
}

// useFresh is how old the decayed use may be that the scheduler goes by, in nanoseconds.
// Each start counts at once all the same, by what it costs to enter.
const useFresh = int64(60e9)

// queuesOf is the tree with what each node of it has used by now.
func queuesOf(v *state.View, list []*api.Queue, now int64) *schedule.Queues {
	out := &schedule.Queues{List: list, Used: map[string]int64{}}
	half := int64(v.Settings().HalfLifeOfUse())
	for _, a := range v.Accounts() {
		if name, ok := strings.CutPrefix(a.ID, state.AccountQueue); ok {
			out.Used[name] = a.UsedAt(now, half)
		}
	}
	return out
}
