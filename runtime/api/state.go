package api

import "time"

// JobState is a job's phase (DESIGN: words). The same words stand in the command
// line, the page and the API.
type JobState string

// States of a job and who moves it there.
const (
	Queued     JobState = "QUEUED"     // waiting for the scheduler
	Reserved   JobState = "RESERVED"   // every bundle placed by one log entry
	Starting   JobState = "STARTING"   // agents start ranks
	Running    JobState = "RUNNING"    // every rank started
	Recovering JobState = "RECOVERING" // an attempt failed, the next is being started
	Draining   JobState = "DRAINING"
	Held       JobState = "HELD"
	Suspended  JobState = "SUSPENDED"
	Stopping   JobState = "STOPPING" // a user asked for the end
	Succeeded  JobState = "SUCCEEDED"
	Failed     JobState = "FAILED"
	Stopped    JobState = "STOPPED"
	Preempted  JobState = "PREEMPTED"
)

// Terminal reports whether the state is final (P9).
func (s JobState) Terminal() bool {
	switch s {
	case Succeeded, Failed, Stopped, Preempted:
		return true
	case Queued, Reserved, Starting, Running, Recovering, Draining, Held, Suspended, Stopping:
		return false
	}
	return false
}

// GroupState is a placement group's phase.
type GroupState string

// States of a placement group.
const (
	GroupPending  GroupState = "PENDING"  // holds nothing
	GroupPlaced   GroupState = "PLACED"   // holds every bundle
	GroupRemoving GroupState = "REMOVING" // processes are being ended; still charged
	GroupRemoved  GroupState = "REMOVED"
)

// NodeState is a node's phase.
type NodeState string

// States of a node.
const (
	NodeReady   NodeState = "READY"
	NodeSuspect NodeState = "SUSPECT"
	// NodeAgentless: the agent is gone, its shims speak for themselves. Nothing new is
	// placed there and nothing restarts.
	NodeAgentless NodeState = "AGENTLESS"
	NodeLost      NodeState = "LOST"
)

// Cause is the class that a failure is charged to.
type Cause string

// Causes of an attempt's end.
const (
	CauseUser  Cause = "user"
	CauseInfra Cause = "infrastructure"
	CauseHang  Cause = "hang"
	CauseNone  Cause = "" // not charged: drain, resize, restore fallback, success
)

// ReasonCode says by which rule something waits or ended; see `troupe help reasons`.
type ReasonCode string

// Codes of reasons.
const (
	ReasonFit         ReasonCode = "Fit"
	ReasonOrder       ReasonCode = "Order"
	ReasonQuota       ReasonCode = "Quota"
	ReasonTopology    ReasonCode = "Topology"
	ReasonHealth      ReasonCode = "Health"
	ReasonHeld        ReasonCode = "Held"
	ReasonPolicy      ReasonCode = "Policy"
	ReasonLimit       ReasonCode = "Limit"
	ReasonNeverFits   ReasonCode = "NeverFits"
	ReasonBusy        ReasonCode = "Busy"        // the bundle of a group is used by another job
	ReasonReleasing   ReasonCode = "Releasing"   // capacity is free only after processes are proven gone
	ReasonUserError   ReasonCode = "UserError"   // a rank failed by its own doing
	ReasonSameFailure ReasonCode = "SameFailure" // same traceback twice before the first step
	ReasonBudget      ReasonCode = "Budget"
	ReasonStopped     ReasonCode = "Stopped"
	ReasonOwnerGone   ReasonCode = "OwnerGone"
	ReasonNodeLost    ReasonCode = "NodeLost"
	ReasonRestore     ReasonCode = "Restore"
	ReasonBadSpec     ReasonCode = "BadSpec"
	// ReasonMisconfigured: what the request names does not exist or does not go together, so
	// that it does not wait for anything but a change.
	ReasonMisconfigured ReasonCode = "Misconfigured"
	ReasonStore         ReasonCode = "Store"       // the nodes of the group do not see one checkpoint store
	ReasonExcluded      ReasonCode = "Excluded"    // a node is kept from the job after repeated failures
	ReasonPreempted     ReasonCode = "Preempted"   // ended for more important work; it goes on when there is room again
	ReasonPreemption    ReasonCode = "Preemption"  // others leave for it, or why ending others does not help
	ReasonReservation   ReasonCode = "Reservation" // nodes are kept for others, or for maintenance
	ReasonCapacity      ReasonCode = "Capacity"    // a capacity that is no part of a node is in use
	ReasonStalled       ReasonCode = "Stalled"     // no rank made a step for longer than a stall may last
)

// Reason is one structured explanation (P7): the same in CLI, API, SDK and page.
type Reason struct {
	Code     ReasonCode `json:"code"`
	Text     string     `json:"text"`               // one sentence with the numbers in it
	Blockers []string   `json:"blockers,omitempty"` // names of jobs, groups, nodes in the way
	// MoreBlockers are in the way beside those that are named.
	MoreBlockers int64  `json:"moreBlockers,omitempty"`
	Need         string `json:"need,omitempty"`
	Have         string `json:"have,omitempty"`
	Missing      string `json:"missing,omitempty"`
	Where        string `json:"where,omitempty"`
	Frees        string `json:"frees,omitempty"` // what would free it
	// When that is expected; zero: it is not known. A log entry has none.
	When time.Time `json:"when,omitempty,omitzero"` //nolint:modernize // MessagePack, of log entries, goes by the first
}

// Block puts those in the way into the reason: the first by name, of the rest how many.
func (r *Reason) Block(who []string) {
	r.Blockers = who[:min(len(who), MaxBlockers)]
	r.MoreBlockers = int64(len(who) - len(r.Blockers))
}

// MaxBlockers is how many blockers a reason names.
const MaxBlockers = 32
