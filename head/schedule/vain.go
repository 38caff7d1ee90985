package schedule

import (
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Why no preemption helps a group.
const (
	unhelpfulRoom     = "it would not fit even after preempting everything that may be preempted for it"
	unhelpfulQuota    = "its quota would not allow it even after preempting everything that may be preempted for it"
	unhelpfulCapacity = "a capacity that it uses would not be enough even after preempting everything that may be preempted for it"
	unhelpfulTime     = "after preempting everything that may be preempted for it, it would still be in the way of what is reserved or planned before it"
)

// unhelpfulFor is how long it is believed that quotas, reservations and plans are in the way.
const unhelpfulFor = 10 * time.Second

// unhelpful is why no preemption helps a group, and until when that is so though nothing
// changes; zero: for ever.
type unhelpful struct {
	text  string
	until time.Time
}

// asked is for what victims are looked for: what is asked for, and who is charged. What its
// quota, or a reservation, keeps out hides no equal request of another tenant or queue.
type asked struct {
	d           *demand
	c           *charging
	reservation string
}

// vain is a search for victims that found none, so that it is not made again before there
// may be any.
type vain struct {
	rank  standing // of who they were looked for
	why   string
	until time.Time
}

// vains tells the rounds apart: within one nothing changes by which there may be victims
// where there were none.
type vains struct {
	last         map[asked]vain // of this round
	holders      []*Holder
	queues       []*api.Queue
	capacities   []*api.Capacity
	reservations []*api.Reservation
	policy       Policy
	grown, links uint64
}

func (v *vains) follow(c *cycle) {
	s := c.s
	if v.last != nil && v.grown == c.free.grown && v.links == c.mem.linkWords && v.policy == s.Policy && slices.Equal(v.holders, s.Holders) &&
		slices.Equal(v.queues, s.queueList()) && slices.Equal(v.capacities, s.Capacities) && slices.Equal(v.reservations, s.Reservations) {
		return
	}
	*v = vains{
		last: map[asked]vain{}, holders: s.Holders, queues: s.queueList(), capacities: s.Capacities, reservations: s.Reservations,
		policy: s.Policy, grown: c.free.grown, links: c.mem.linkWords,
	}
}

// still is the last search, if another one for a group of a rank would be in vain again.
func (v *vains) still(ask asked, rank standing, now time.Time) (vain, bool) {
	last, ok := v.last[ask]
	return last, ok && last.rank.compare(rank) >= 0 && (last.until.IsZero() || now.Before(last.until))
}
