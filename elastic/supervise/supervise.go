// Package supervise decides what happens to a worker group: start, restart, roll
// back, finish. It is a pure function of the facts in the replicated state, the
// policy and the time; so a new leader continues where the old one stopped, and the
// simulated cluster runs the very code that production does. It starts nothing and
// knows no network, process or clock.
package supervise

import (
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Group is a worker group and everything known of its newest attempt.
type Group struct {
	Job    string
	Kind   api.JobKind
	State  api.JobState
	Policy api.RestartPolicy
	// Actor: MaxRestarts of an actor replaces the budgets; -1 is for ever.
	ActorMaxRestarts *int64
	Placed           bool     // the placement group holds every bundle now
	Lost             []string // nodes of the group's placement that are lost
	Silent           bool     // a node of the placement says nothing, and is back or lost within seconds
	Barred           []string // nodes of the placement that are excluded from this job
	Ready            []string // nodes that are ready and not excluded from this job
	// MinRanks: under one budget for all (launch), a node that leaves at least so many
	// ranks behind costs no restart. 0: the group has one size.
	MinRanks     int64
	StopAsked    bool
	StopReason   string
	TimeLimit    bool // it is stopped because its time limit is reached
	OwnerGone    bool
	Drain        *Drain   // nil: none was asked for
	Attempt      *Attempt // nil before the first
	Ledger       Ledger
	FailureGrace time.Duration
}

// Attempt is the newest attempt.
type Attempt struct {
	Number     int64
	Generation uint64
	Created    time.Time
	World      int64
	Allocs     []Alloc
	Exits      []Exit // in the order of the log, of this generation only
	Restore    *int64
	FirstStep  bool // some rank has published a step or been seen past one
	Ended      bool // the ledger closed it already
	Again      bool // the next start is this attempt once more: it never ran
	// What the refill of budgets goes by: when the first step was seen (zero: never), the
	// step before it, the newest step, and how long no steps were made since.
	FirstStepAt time.Time
	From        int64
	Newest      int64
	Idle        time.Duration
}

// Alloc is the part of the attempt on one node.
type Alloc struct {
	ID          string
	Node        string
	Ranks       []int64
	Started     bool
	Ended       bool // no rank of this generation is left there
	Lost        bool // its node is lost, or its shim and ranks are
	StartFailed string
	StartCode   int64  // the shell's exit code when the command cannot be used; 0: the machine's failure
	Damaged     string // what the verification of the restore step found
	PortUsed    bool   // another process took the master port; nothing ran
	Overdue     string // its ranks have made no step for longer than the stall may last: what is known
	SlowRank    int64  // for Overdue: the rank that is furthest behind, -1 unknown
	GPUFault    string // a device of it is out of order: which and how
	// FailedAt is the time of the log entry that said Lost or StartFailed; zero: long
	// enough ago that nothing needs to be waited for.
	FailedAt time.Time
}

// Exit is how a rank ended. At is the time of its log entry, not of the node's clock.
type Exit struct {
	Alloc string
	Node  string
	At    time.Time
	wire.RankExit
}

// Ledger is the one book of failures of a job (P9).
type Ledger struct {
	User   int64 `json:"user"`
	Infra  int64 `json:"infra"`
	Hang   int64 `json:"hang"`
	Failed int64 `json:"failed"` // all failed attempts; the one budget of `launch`
	// Recent holds the times of the newest failures, at most 10, for the back-off.
	Recent []time.Time `json:"recent,omitempty"`
	// Before is the digest of the traceback of the last attempt if it failed before
	// its first step, else empty.
	Before string `json:"before,omitempty"`
	// High is the newest step of all attempts, Useful how long steps above it were made
	// since the last refill, and Refills how often a restart was given back.
	High    int64         `json:"high,omitempty"`
	Useful  time.Duration `json:"useful,omitempty"`
	Refills int64         `json:"refills,omitempty"`
	// Faults are the newest infrastructure failures with a node to blame, at most 32.
	Faults []Fault `json:"faults,omitempty"`
}

// Fault is one infrastructure failure and the node that was its root cause, by name.
type Fault struct {
	Node string    `json:"node"`
	At   time.Time `json:"at"`
}

// Action is what to do now.
type Action string

// Actions of a decision.
const (
	Wait    Action = "wait"    // nothing; the facts are not all in, or all is well
	Start   Action = "start"   // the first attempt, or the next one after End
	Run     Action = "run"     // every rank started: RUNNING
	Finish  Action = "finish"  // terminal: State, ExitCode
	Stop    Action = "stop"    // order all ranks to end (STOPPING), then wait
	Replace Action = "replace" // the placement lost or leaves a node: re-place or release (P1)
	Release Action = "release" // give the whole placement back and wait for another one
	Resize  Action = "resize"  // give the placement another size, or start with the old one
)

// Decision is an action with its reason. At Delay > 0 the caller asks again then.
type Decision struct {
	Action Action
	// End closes the newest attempt in the ledger, with or without a next one.
	End      *End
	State    api.JobState // for Finish
	ExitCode int64        // for Finish: the root cause's own, 128+n for a signal
	Delay    time.Duration
	// Number, for Start, is the number of the attempt to create (P9).
	Number int64
	// RollBack: the step to restore was damaged; roll it back before the next start.
	RollBack string
	// Abort: the attempt cannot succeed and other nodes still run ranks of it. They are
	// to be ended at once, while the root cause is still waited for; "" for none.
	Abort  string
	Reason api.Reason
}

// End closes an attempt: what it is charged to and why.
type End struct {
	Cause   api.Cause
	Failure *api.Failure
	Ledger  Ledger // after the charge
	// Again: the attempt never ran, and its number is used once more.
	Again bool
	// Bar excludes a node from the job for a while; nil: none.
	Bar *Bar
}

// Bar keeps a job off a node that was the root cause too often.
type Bar struct {
	Node string // by name
	Why  string
	For  time.Duration
	// Firm: also where the other nodes could never hold the gang, and it has to wait.
	Firm bool
}
