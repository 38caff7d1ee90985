package api

import (
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// QueueStatus is a tenant or queue with what is charged to it now.
type QueueStatus struct {
	Queue
	// Charged is what its placed groups hold, those below it included; Assured the part
	// that may not be preempted, which is what Guaranteed bounds.
	Charged Amounts `json:"charged,omitempty"`
	Assured Amounts `json:"assured,omitempty"`
	// Used is the decayed use, in seconds of a thousandth of a GPU.
	Used    int64 `json:"used"`
	Running int64 `json:"running"` // placed groups
	Pending int64 `json:"pending"` // groups that wait and may start
	Parked  int64 `json:"parked"`  // held and suspended ones
	// Waits is how long its pending groups have waited, in the middle.
	Waits   unit.Duration `json:"waits"`
	By      string        `json:"by,omitempty"` // who changed it last
	Changed time.Time     `json:"changed,omitzero"`
	Index   uint64        `json:"index"` // its version
}

// Borrowed is what it holds beyond what is guaranteed to it; known is false where nothing
// is, for nothing can be borrowed then.
func (q *QueueStatus) Borrowed(of string) (n int64, known bool) {
	guaranteed, known := q.Guaranteed.Get(of)
	charged, _ := q.Charged.Get(of)
	if !known {
		return 0, false
	}
	return max(0, charged-guaranteed), true
}

// Lendable is what others may borrow now of what is guaranteed to it: what it does not use
// and lends. known is false where nothing is guaranteed.
func (q *QueueStatus) Lendable(of string) (n int64, known bool) {
	guaranteed, known := q.Guaranteed.Get(of)
	charged, _ := q.Charged.Get(of)
	n = max(0, guaranteed-charged)
	if lend, bounded := q.Lend.Get(of); bounded {
		n = min(n, lend)
	}
	return n, known
}

// PausedAbove is why nothing of it starts although it is not paused itself: the nearest
// tenant above it that is; nil: none is.
func (q *QueueStatus) PausedAbove(all []QueueStatus) *QueueStatus {
	at := q.Parent
	for range all { // a chain is no longer than the list, even where one leads in a circle
		i := slices.IndexFunc(all, func(x QueueStatus) bool { return x.Name == at })
		if i < 0 || at == "" {
			return nil
		}
		if all[i].Paused != "" {
			return &all[i]
		}
		at = all[i].Parent
	}
	return nil
}

// QueuesRequest replaces tenants and queues one by one or, with Whole, all of them.
type QueuesRequest struct {
	Queues []Queue  `json:"queues,omitempty"`
	Remove []string `json:"remove,omitempty"`
	Whole  bool     `json:"whole,omitempty"`
	// IfVersion is the version that the one that is named must have; 0: any.
	IfVersion uint64 `json:"ifVersion,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

// PauseRequest stops starts in a tenant or queue, and says why.
type PauseRequest struct {
	Reason string `json:"reason,omitempty"`
}

// OrderRow is the place of one waiting request in its queue.
type OrderRow struct {
	Position int64     `json:"position"` // from 1
	Group    string    `json:"group"`
	Name     string    `json:"name"`
	User     string    `json:"user,omitempty"`
	Tenant   string    `json:"tenant"`
	Queue    string    `json:"queue"`
	Priority int64     `json:"priority"`
	Need     Amounts   `json:"need,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	// Expect is how long it is expected to run.
	Expect unit.Duration `json:"expect,omitempty"`
	Start  time.Time     `json:"start,omitzero"` // planned
	// Planned is what that start rests on.
	Planned *Planned `json:"planned,omitempty"`
	Reason  *Reason  `json:"reason,omitempty"`
}

// UsageRow sums what one tenant, queue or user had of the GPUs.
type UsageRow struct {
	Of string `json:"of"`
	// GPUSeconds were held by its jobs; Useful is the part in which steps were made that
	// count, Lost the part that was done again.
	GPUSeconds int64 `json:"gpuSeconds"`
	Useful     int64 `json:"useful"`
	Lost       int64 `json:"lost"`
	Jobs       int64 `json:"jobs"`
	Live       int64 `json:"live"`
}

// Declared is what is declared beside nodes and queues.
type Declared struct {
	Reservations []ReservationStatus `json:"reservations"`
	Capacities   []CapacityStatus    `json:"capacities"`
	Levels       []Level             `json:"levels"`
	Links        []Link              `json:"links"`
	HalfLife     unit.Duration       `json:"halfLife"`
	Scheduler    SchedulerPolicy     `json:"scheduler"`
	Index        uint64              `json:"index"`
}

// ReservationStatus is a reservation with what it has got, and its version.
type ReservationStatus struct {
	Reservation
	// Has names the nodes that it has got, those that it named or others; Lacks is how many
	// more it is to have.
	Has     []string  `json:"has,omitempty"`
	Lacks   int64     `json:"lacks,omitempty"`
	By      string    `json:"by,omitempty"`
	Changed time.Time `json:"changed,omitzero"`
	Index   uint64    `json:"index"`
}

// CapacityStatus is a capacity and what is used of it; with a level in each domain.
type CapacityStatus struct {
	Capacity
	Used  int64            `json:"used"`
	In    map[string]int64 `json:"in,omitempty"` // used by domain
	Index uint64           `json:"index"`
}

// ReservationRequest makes or replaces a reservation.
type ReservationRequest struct {
	Reservation
	IfVersion uint64 `json:"ifVersion,omitempty"`
}

// CapacityRequest makes or replaces a capacity.
type CapacityRequest struct {
	Capacity
	IfVersion uint64 `json:"ifVersion,omitempty"`
}

// TopologyRequest replaces what is given of it.
type TopologyRequest struct {
	Levels   *[]Level       `json:"levels,omitempty"`   // from the widest to the narrowest
	HalfLife *unit.Duration `json:"halfLife,omitempty"` // of use
	// Scheduler replaces the whole policy.
	Scheduler *SchedulerPolicy `json:"scheduler,omitempty"`
}

// LinksRequest is news of links.
type LinksRequest struct {
	Links  []Link `json:"links,omitempty"`
	Forget []Link `json:"forget,omitempty"` // by a and b
}

// ParkRequest holds, releases, suspends or resumes a job.
type ParkRequest struct {
	Reason string `json:"reason,omitempty"`
	// Deadline is how long a suspension may wait for a checkpoint; nil: for ever.
	Deadline *unit.Duration `json:"deadline,omitempty"`
}

// EditRequest changes what a waiting job asks for; what is missing stays.
type EditRequest struct {
	Queue       *string        `json:"queue,omitempty"`
	Tenant      *string        `json:"tenant,omitempty"`
	Priority    *int64         `json:"priority,omitempty"`
	TimeLimit   *unit.Duration `json:"timeLimit,omitempty"`
	Estimate    *unit.Duration `json:"estimate,omitempty"`
	MaxWait     *unit.Duration `json:"maxWait,omitempty"`
	Deadline    *time.Time     `json:"deadline,omitempty"`
	Preemptible *bool          `json:"preemptible,omitempty"`
	IfVersion   uint64         `json:"ifVersion,omitempty"`
}

// Outlook is what would become of a request, if it were made now.
type Outlook struct {
	// Starts: it would start at once. Never: the cluster could not hold it, even empty.
	Starts bool `json:"starts"`
	Never  bool `json:"never,omitempty"`
	// Ranks that it would start with; a job that allows several sizes takes what fits.
	Ranks   int64     `json:"ranks"`
	Answer  string    `json:"answer"`
	Bundles []Placed  `json:"bundles,omitempty"`
	Start   time.Time `json:"start,omitzero"` // planned
	// Position is its place among what waits in its own queue.
	Position int64          `json:"position,omitempty"`
	Expect   unit.Duration  `json:"expect,omitempty"` // how long it is expected to run
	Victims  []PlannedLeave `json:"victims,omitempty"`
	Quota    []QuotaAfter   `json:"quota,omitempty"`
	Reasons  []Reason       `json:"reasons,omitempty"`
}

// PlannedLeave is a group that would be preempted.
type PlannedLeave struct {
	Group string `json:"group"`
	Name  string `json:"name"`
	Keeps int64  `json:"keeps,omitempty"` // bundles it would go on with
	Why   string `json:"why"`
}

// QuotaAfter is what would be charged to a tenant or queue once the request holds what it
// asks for.
type QuotaAfter struct {
	Queue      string `json:"queue"`
	Of         string `json:"of"`
	Used       int64  `json:"used"`
	After      int64  `json:"after"`
	Guaranteed *int64 `json:"guaranteed,omitempty"`
	Limit      *int64 `json:"limit,omitempty"`
}
