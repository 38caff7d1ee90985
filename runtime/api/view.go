package api

import "time"

// Condition is a fact beside the state; match by Type, never by position.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"` // True, False, Unknown
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"lastTransitionTime,omitzero"`
}

// Job is the API's view of a job.
type Job struct {
	ID         string      `json:"id"`   // name-7f3k
	ULID       string      `json:"ulid"` // sortable
	Spec       JobSpec     `json:"spec"`
	Run        string      `json:"run"`
	User       string      `json:"user,omitempty"`   // who submitted it
	Tenant     string      `json:"tenant,omitempty"` // to which it is charged: its queue's, where that has one
	State      JobState    `json:"state"`
	Reason     *Reason     `json:"reason,omitempty"`
	Conditions []Condition `json:"conditions,omitempty"`
	Group      string      `json:"placementGroup,omitempty"`
	Excluded   []Excluded  `json:"excluded,omitempty"` // nodes that it keeps off for now
	Attempt    int64       `json:"attempt"`            // of the newest attempt, from 0
	Generation uint64      `json:"generation"`         // of the newest attempt
	Attempts   []Attempt   `json:"attempts,omitempty"`
	Spares     *Spares     `json:"spares,omitempty"` // of a job that asks for spare nodes
	Step       *int64      `json:"step,omitempty"`   // newest step seen of any rank, high-rate
	Committed  *int64      `json:"committedStep,omitempty"`
	Goodput    *Goodput    `json:"goodput,omitempty"`  // of one job, not in lists
	Saving     *SavingPlan `json:"saving,omitempty"`   // likewise
	ExitCode   *int64      `json:"exitCode,omitempty"` // root cause's own code, 128+n for a signal
	Created    time.Time   `json:"created"`
	Started    time.Time   `json:"started,omitzero"`
	Ended      time.Time   `json:"ended,omitzero"`
	Index      uint64      `json:"index"` // Raft index of the last change
	// PreviouslySubmitted is set when an idempotency key matched an earlier request.
	PreviouslySubmitted *time.Time `json:"previouslySubmitted,omitempty"`
}

// Attempt is one start of a worker group.
type Attempt struct {
	Number      int64     `json:"number"`
	Generation  uint64    `json:"generation"`
	Ranks       []Rank    `json:"ranks,omitempty"`
	MasterAddr  string    `json:"masterAddr,omitempty"`
	MasterPort  int64     `json:"masterPort,omitempty"`
	RestoreStep *int64    `json:"restoreStep,omitempty"`
	Created     time.Time `json:"created"`
	Running     time.Time `json:"running,omitzero"`
	Ended       time.Time `json:"ended,omitzero"`
	Cause       Cause     `json:"cause,omitempty"`
	Failure     *Failure  `json:"failure,omitempty"`
}

// Excluded is a node that a job keeps off until a time, since it was the root cause of
// too many failures.
type Excluded struct {
	Node  string    `json:"node"`
	Why   string    `json:"why"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}

// Rank is where one rank of an attempt runs.
type Rank struct {
	Rank      int64  `json:"rank"`
	LocalRank int64  `json:"localRank"`
	Node      string `json:"node"`
	Alloc     string `json:"allocation"`
	PID       int64  `json:"pid,omitempty"`
	State     string `json:"state,omitempty"`
	Step      *int64 `json:"step,omitempty"`
	// End is how it ended; kept for the newest attempt only.
	End *RankEnd `json:"end,omitempty"`
}

// RankEnd is how one rank ended.
type RankEnd struct {
	Code      int64     `json:"code"` // 128+n for a signal
	Signal    string    `json:"signal,omitempty"`
	PID       int64     `json:"pid,omitempty"`
	At        time.Time `json:"at"`                  // when the head heard of it
	Message   string    `json:"message,omitempty"`   // exception line, or how it ended
	ErrorFile string    `json:"errorFile,omitempty"` // path on its node, if it wrote one
	// ByTroupe: ended by Troupe, because of another rank or on request.
	ByTroupe bool `json:"byTroupe,omitempty"`
}

// Failure is the root cause of a failed attempt.
type Failure struct {
	Rank      int64  `json:"rank"` // -1: not of one rank
	Node      string `json:"node,omitempty"`
	ExitCode  int64  `json:"exitCode"` // 128+n for a signal
	Signal    string `json:"signal,omitempty"`
	OOM       bool   `json:"oom,omitempty"`
	Message   string `json:"message"`             // "ValueError: bad shape" or "killed by signal 9 (SIGKILL)"
	Traceback string `json:"traceback,omitempty"` // bounded to 4 KiB
}

// Group is the API's view of a placement group.
type Group struct {
	ID      string     `json:"id"`
	Spec    GroupSpec  `json:"spec"`
	State   GroupState `json:"state"`
	Reason  *Reason    `json:"reason,omitempty"`
	Bundles []Placed   `json:"placement,omitempty"`
	Job     string     `json:"job,omitempty"` // the job that the group was made for
	Created time.Time  `json:"created"`
	Placed  time.Time  `json:"placed,omitzero"`
	Removed time.Time  `json:"removed,omitzero"`
	Index   uint64     `json:"index"`
}

// Spares are the nodes that a job holds beside those of its ranks.
type Spares struct {
	Want  int64    `json:"want"`
	Nodes []string `json:"nodes"`           // that it holds
	Waits string   `json:"waits,omitempty"` // what it waits for to hold as many as it wants
	Lent  bool     `json:"lent,omitempty"`  // preemptible work uses them meanwhile
}

// Placed is where one bundle stands.
type Placed struct {
	Bundle  int64    `json:"bundle"`
	Node    string   `json:"node"`
	Devices []string `json:"devices,omitempty"` // GPU UUIDs in order
	UsedBy  string   `json:"usedBy,omitempty"`  // job
	Spare   bool     `json:"spare,omitempty"`   // held for the loss of a node; no rank uses it
}

// Node is the API's view of a node.
type Node struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"`
	State         NodeState         `json:"state"`
	Labels        map[string]string `json:"labels,omitempty"`
	Capacity      Resources         `json:"capacity"`
	Allocated     Resources         `json:"allocated"`
	GPUs          []GPU             `json:"gpus,omitempty"`
	Groups        []string          `json:"placementGroups,omitempty"`
	Version       string            `json:"version,omitempty"`
	Address       string            `json:"address,omitempty"`
	Conditions    []Condition       `json:"conditions,omitempty"`
	LastHeartbeat time.Time         `json:"lastHeartbeat,omitzero"`
	Cordon        *Cordon           `json:"cordon,omitempty"` // set: it takes nothing new
	Registered    time.Time         `json:"registered"`
	Index         uint64            `json:"index"`
}

// GPU is one device of a node. Memory sizes are bytes; Usable = Total − headroom.
type GPU struct {
	Index  int64  `json:"index"`
	UUID   string `json:"uuid"`
	Model  string `json:"model"`
	Total  int64  `json:"memoryTotal"`
	Usable int64  `json:"memoryUsable"`
	Used   *int64 `json:"memoryUsed,omitempty"` // nil: unknown
	Owner  string `json:"owner,omitempty"`      // placement group
	Health string `json:"health,omitempty"`
	Note   string `json:"note,omitempty"` // who uses it unasked, or what else is wrong
}

// Event is one change with its cause (P7). Text is at most 256 bytes.
type Event struct {
	// Seq numbers events without a gap or a repeat; streams resume by it. Several
	// events of one log entry share an Index.
	Seq    uint64    `json:"seq"`
	Index  uint64    `json:"index"`
	Time   time.Time `json:"time"`
	Type   string    `json:"type"`   // job-queued, job-placed, attempt-started, rank-exited, …
	Object string    `json:"object"` // job/x, node/y, pg/z, checkpoint/run/step
	Text   string    `json:"message"`
}

// Checkpoint is the API's view of one committed step of a run.
type Checkpoint struct {
	Run        string    `json:"run"`
	Step       int64     `json:"step"`
	Generation uint64    `json:"generation"`
	World      int64     `json:"world"`
	Bytes      int64     `json:"bytes"`
	Files      int64     `json:"files"`
	Dir        string    `json:"dir"`
	State      string    `json:"state"` // committed, rolled-back, quarantined (damaged), deleting
	Digest     string    `json:"manifestDigest"`
	Parent     *int64    `json:"parentStep,omitempty"`
	Committed  time.Time `json:"committed"`
	Reason     string    `json:"reason,omitempty"` // of a rollback
	// Pinned steps are left alone by retention and removal.
	Pinned bool `json:"pinned,omitempty"`
	// ParentGeneration is that of the parent step.
	ParentGeneration uint64             `json:"parentGeneration,omitempty"`
	Metrics          map[string]float64 `json:"metrics,omitempty"`
	// Adopted is the cluster that committed it, if it was another one.
	Adopted string `json:"adopted,omitempty"`
	Store   string `json:"store"`
}

// VerifyResult is what `checkpoint verify` found.
type VerifyResult struct {
	Run   string   `json:"run"`
	Step  int64    `json:"step"`
	OK    bool     `json:"ok"`
	Files int64    `json:"files"`
	Bytes int64    `json:"bytes"`
	Bad   []string `json:"bad,omitempty"` // one sentence each
}

// Actor is the API's view of an actor; it is a job of kind actor seen as such.
type Actor struct {
	ID         string `json:"id"` // the job's id
	Name       string `json:"name,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	Class      string `json:"class"`
	State      string `json:"state"` // PENDING_CREATION, ALIVE, RESTARTING, DEAD
	Node       string `json:"node,omitempty"`
	PID        int64  `json:"pid,omitempty"`
	Restarts   int64  `json:"restarts"`
	Generation uint64 `json:"generation"`
	Subject    string `json:"subject,omitempty"` // where calls go
}

// Status is the cluster summary.
type Status struct {
	Cluster   string           `json:"cluster"` // id
	Leader    string           `json:"leader"`
	Version   string           `json:"version"`
	Level     int64            `json:"featureLevel"`
	Index     uint64           `json:"index"`
	Nodes     map[string]int64 `json:"nodes"` // by state
	Jobs      map[string]int64 `json:"jobs"`  // by state
	Groups    map[string]int64 `json:"placementGroups"`
	Capacity  Resources        `json:"capacity"`
	Allocated Resources        `json:"allocated"`
	Time      time.Time        `json:"time"`
}

// Version says what a binary is.
type Version struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	Level   int64  `json:"featureLevel"`
	UI      string `json:"ui"`   // full, missing
	Shim    string `json:"shim"` // embedded, self
	NVML    bool   `json:"nvml"`
}

// Why explains one thing.
type Why struct {
	Target  string   `json:"target"`
	State   string   `json:"state"`
	Answer  string   `json:"answer"` // one sentence
	Reasons []Reason `json:"reasons,omitempty"`
	Events  []Event  `json:"events,omitempty"` // the newest few that concern it
	// Of what waits: its place among the requests of its own queue, when it is planned to
	// start, and, if asked for, what would become of it if it were otherwise.
	Position     int64         `json:"position,omitempty"`
	Planned      *Planned      `json:"planned,omitempty"`
	Alternatives []Alternative `json:"alternatives,omitempty"`
}

// Planned is when something is planned to start, and what that rests on.
type Planned struct {
	Start       time.Time `json:"start"`
	After       []string  `json:"after,omitempty"` // whose ends it waits for, the last first
	Assumptions []string  `json:"assumptions,omitempty"`
	Nodes       []string  `json:"nodes,omitempty"`
}

// Alternative is one change of a request, and what it would bring.
type Alternative struct {
	Change string    `json:"change"`
	Now    bool      `json:"now"`             // it would start now
	After  []string  `json:"after,omitempty"` // once these have been preempted for it
	Start  time.Time `json:"start,omitzero"`  // else when it would be planned to start
}

// List is one page of a collection; Remaining > 0 means that rows were cut.
type List[T any] struct {
	Items     []T    `json:"items"`
	Cursor    string `json:"nextCursor,omitempty"`
	Index     uint64 `json:"index"`
	Remaining int64  `json:"remaining"`
}

// BusAccess lets an SDK call actors over the bus for a while.
type BusAccess struct {
	URLs        []string `json:"urls"`
	User        string   `json:"user"`
	Password    string   `json:"password"`
	InboxPrefix string   `json:"inboxPrefix"`
}

// StackGroup is ranks that stand at the same place. Stack is at most 4 KiB, innermost
// call first; without Python's own word it is what the kernel says of the process.
type StackGroup struct {
	Ranks []int64 `json:"ranks"`
	State string  `json:"state,omitempty"` // of the processes, as "S (sleeping)"
	Stack string  `json:"stack"`
}
