package wire

import (
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Level is the feature level that this build speaks (DESIGN §5).
const Level = 1

// Position orders what a leader says: a receiver ignores desired state older than
// the newest (term, index) it has seen.
type Position struct {
	Term  uint64 `json:"t"`
	Index uint64 `json:"i"`
}

// Less reports whether p is older than q.
func (p Position) Less(q Position) bool {
	return p.Term < q.Term || p.Term == q.Term && p.Index < q.Index
}

// NodeInfo is what an agent says of its machine when it registers.
type NodeInfo struct {
	Name    string            `json:"name"`
	Address string            `json:"address"` // where ranks of other nodes reach it
	BootID  string            `json:"bootId"`
	Labels  map[string]string `json:"labels,omitempty"`
	CPU     unit.MilliCPU     `json:"cpu"`
	Memory  unit.Bytes        `json:"memory"`
	GPUs    []api.GPU         `json:"gpus,omitempty"`
	Version string            `json:"version"`
	Level   int64             `json:"level"`
	// Session is random for each start of the agent process.
	Session string `json:"session"`
	// Started orders the starts of the agent on one node: the node's wall clock in ns,
	// but always above that of the start before, which the state folder keeps. It is
	// compared with itself alone.
	Started int64 `json:"started"`
	// StateDir is where the node keeps job output; shown to people only.
	StateDir string `json:"stateDir"`
	// Leaving: the node ends what it runs and goes; it takes nothing new.
	Leaving bool `json:"leaving,omitempty"`
}

// RegisterRequest opens a session of an agent (subject head.register.<node>).
type RegisterRequest struct {
	Node NodeInfo `json:"node"`
	// Seq grows with each registration and heartbeat of a session, so that one which
	// was long on its way is known as old.
	Seq    uint64        `json:"seq"`
	Ports  []int64       `json:"ports"` // held, not listening
	Allocs []AllocStatus `json:"allocs"`
}

// RegisterReply answers RegisterRequest.
type RegisterReply struct {
	Error    string   `json:"error,omitempty"` // refused, with the reason
	Position Position `json:"pos"`
	Life     string   `json:"life"` // 8 hex digits, drawn when the cluster was created
	Cluster  string   `json:"cluster"`
}

// RenewRequest asks for the next certificate of a node, in DER (head.renew.<node>).
type RenewRequest struct {
	CSR []byte `json:"csr"`
}

// RenewReply carries it: leaf, intermediate and root in DER.
type RenewReply struct {
	Chain [][]byte `json:"chain"`
	Error string   `json:"error,omitempty"` // refused, with the reason
}

// Heartbeat is sent once a second (head.heartbeat.<node>) and at once on change.
type Heartbeat struct {
	Session string        `json:"session"`
	Seq     uint64        `json:"seq"`
	Ports   []int64       `json:"ports"`
	Allocs  []AllocStatus `json:"allocs"`
	GPUs    []api.GPU     `json:"gpus,omitempty"` // when health or use changed
	// Restarting announces that the agent ends and will be started again; its shims go on.
	Restarting bool `json:"restarting,omitempty"`
}

// HeartbeatAck acknowledges a heartbeat after leadership was verified.
// The lease runs from the moment the heartbeat was sent.
type HeartbeatAck struct {
	Seq      uint64        `json:"seq"`
	Unknown  bool          `json:"unknown,omitempty"` // session not known: register again
	Position Position      `json:"pos"`
	Lease    unit.Duration `json:"lease"`
	Orphan   unit.Duration `json:"orphan"`
	Terms    []AllocTerms  `json:"terms,omitempty"`
}

// AllocStatus is what runs of one allocation, as the agent sees it now.
type AllocStatus struct {
	ID         string     `json:"id"`
	Job        string     `json:"job"`
	Generation uint64     `json:"gen"` // newest that was started here; 0: none
	State      AllocState `json:"state"`
	Steps      []RankStep `json:"steps,omitempty"`
	// Saving is how long ranks of this attempt stood still in saves, in nanoseconds and of
	// the one that did so longest, in Saves steps; Upload from there to Uploads commits.
	Saving  int64 `json:"saving,omitempty"`
	Saves   int64 `json:"saves,omitempty"`
	Upload  int64 `json:"upload,omitempty"`
	Uploads int64 `json:"uploads,omitempty"`
	// Fetch is how far the package of its job has come here; nil: it is not being fetched.
	Fetch *Fetch `json:"fetch,omitempty"`
	// Excused: a rank here stands still by intent, inside a phase or to save.
	Excused bool `json:"excused,omitempty"`
	// Answers of this generation's ranks to the newest proposal; repeated until a newer one.
	Answers []RankAnswer `json:"answers,omitempty"`
}

// AllocState is the phase of an allocation on its node.
type AllocState string

// Phases of an allocation.
const (
	AllocIdle    AllocState = "idle"    // shim up, no attempt
	AllocRunning AllocState = "running" // every local rank started
	AllocEnding  AllocState = "ending"  // being killed
	AllocEnded   AllocState = "ended"   // no process left of the newest attempt
	AllocGone    AllocState = "gone"    // cgroup empty, shim ended, devices clean: resources may be offered again (P2)
	AllocDirty   AllocState = "dirty"   // something did not die; named in the report
)

// RankStep is the newest step a rank has published in its progress page.
type RankStep struct {
	Rank int64 `json:"rank"`
	Step int64 `json:"step"`
	PID  int64 `json:"pid"`
	// Age is how long ago the step was published when the report was made, Pace what a
	// step takes; 0: unknown.
	Age  unit.Duration `json:"age,omitempty"`
	Pace unit.Duration `json:"pace,omitempty"`
	// Bound is the proposal that the rank has acknowledged last, Settled the newest for
	// which it has nothing left to do.
	Bound   uint64 `json:"bound,omitempty"`
	Settled uint64 `json:"settled,omitempty"`
}

// Alloc is the desired state of one allocation: the processes of one job on one node.
type Alloc struct {
	ID      string     `json:"id"`
	Job     string     `json:"job"`
	JobName string     `json:"jobName"`
	Run     string     `json:"run"`
	Group   string     `json:"group"`
	Tenant  string     `json:"tenant"`
	Limits  Limits     `json:"limits"`
	Devices []string   `json:"devices,omitempty"` // GPU UUIDs in local-rank order
	Class   Class      `json:"class"`
	Stop    *StopOrder `json:"stop,omitempty"` // end the ranks, keep the allocation until absent
	// Attempt to run; nil before the first and after the last.
	Attempt *AttemptSpec `json:"attempt,omitempty"`
	// Proposal is the newest to the ranks of that attempt, decided or not.
	Proposal *Proposal  `json:"proposal,omitempty"`
	Owner    *api.Owner `json:"owner,omitempty"` // set when the owner is on this boot
	// End: it must not run here, and the node is to prove that it does not, also if it
	// never heard of it before.
	End bool `json:"end,omitempty"`
}

// Class says how a cut-off node ends the allocation (DESIGN §7).
type Class string

// Fencing classes.
const (
	ClassFast   Class = "fast"
	ClassStrict Class = "strict"
)

// Limits bound the ranks of an allocation together.
type Limits struct {
	CPU    unit.MilliCPU `json:"cpu"`    // weight, not a cap
	Memory unit.Bytes    `json:"memory"` // 0: none
}

// StopOrder asks for the end of all ranks: TERM to each main process, Grace, KILL.
type StopOrder struct {
	Grace  unit.Duration `json:"grace"`
	Reason string        `json:"reason"`
	// Quiet leaves TERM out: the peers of a rank that is gone are to say what they see
	// until Grace is over.
	Quiet bool `json:"quiet,omitempty"`
}

// AttemptSpec is one attempt as one node runs it.
type AttemptSpec struct {
	Number      int64             `json:"number"`
	Generation  uint64            `json:"gen"`
	World       int64             `json:"world"`
	MasterAddr  string            `json:"masterAddr"`
	MasterPort  int64             `json:"masterPort"`
	GroupRank   int64             `json:"groupRank"`  // of this node
	GroupWorld  int64             `json:"groupWorld"` // nodes
	MaxRestarts int64             `json:"maxRestarts"`
	Ranks       []RankSpec        `json:"ranks"`
	Command     []string          `json:"command"`
	WorkingDir  string            `json:"workingDir"`
	Package     string            `json:"package,omitempty"` // see api.JobSpec
	Env         map[string]string `json:"env,omitempty"`
	LaunchEnv   string            `json:"launchEnv,omitempty"`
	Role        string            `json:"role,omitempty"`  // empty: default
	RunID       string            `json:"runId,omitempty"` // empty: the run's name
	// ShutdownTimeout is what ranks have between TERM and KILL at a stop, for them to know.
	ShutdownTimeout unit.Duration `json:"shutdownTimeout,omitempty"`
	// VirtualLocalRank gives every rank its own device and LOCAL_RANK 0.
	VirtualLocalRank bool           `json:"virtualLocalRank,omitempty"`
	NumaBinding      string         `json:"numaBinding,omitempty"` // see api.JobSpec
	FailureGrace     unit.Duration  `json:"failureGrace"`
	Checkpoint       CheckpointSpec `json:"checkpoint"`
	Restore          *RestoreSpec   `json:"restore,omitempty"`
	Actor            *api.ActorSpec `json:"actor,omitempty"`
	ActorBus         *api.BusAccess `json:"actorBus,omitempty"`
	StallKill        string         `json:"stallKill,omitempty"` // see api.RestartPolicy
	NoWarm           bool           `json:"noWarm,omitempty"`    // every rank by exec
}

// RankSpec is one rank on this node.
type RankSpec struct {
	Rank      int64 `json:"rank"`
	LocalRank int64 `json:"localRank"`
}

// CheckpointSpec tells shim and helper how the run checkpoints.
type CheckpointSpec struct {
	Store      string `json:"store"`      // absolute directory, or s3://bucket/prefix?options
	Life       string `json:"life"`       // of the cluster
	EverySteps int64  `json:"everySteps"` // 0: the script decides
	// Deadline is how long a rank's save may take before it is given up; 0: 10 min.
	Deadline unit.Duration `json:"deadline,omitempty"`
	// Refuse says why no step of this attempt can be saved, as when the nodes do not see
	// one store; empty: it can.
	Refuse string `json:"refuse,omitempty"`
}

// RestoreSpec is the step that every rank of the attempt loads (P4).
type RestoreSpec struct {
	Step   int64  `json:"step"`
	Dir    string `json:"dir"`    // absolute, or s3://bucket/prefix/run/step
	Digest string `json:"digest"` // of manifest.json, hex xxh3-128
	// Store holds it, if it is not the one that the run saves to.
	Store    string `json:"store,omitempty"`
	Verified bool   `json:"verified"` // every share was verified: resume_point may answer
}

// Report carries what happened on a node, in order, until it is acknowledged
// (head.report.<node>). Seq grows by one for each event of one allocation.
type Report struct {
	Session string       `json:"session"`
	Events  []AllocEvent `json:"events"`
}

// ReportAck confirms that everything up to the given seq of each allocation is in
// the log (or meaningless now).
type ReportAck struct {
	Position Position `json:"pos"`
	Acked    []SeqAck `json:"acked"`
	Unknown  bool     `json:"unknown,omitempty"`
}

// SeqAck acknowledges one allocation's events.
type SeqAck struct {
	Alloc string `json:"alloc"`
	Seq   uint64 `json:"seq"`
}

// EventKind is the kind of an AllocEvent.
type EventKind string

// Kinds of allocation events.
const (
	EventStarted     EventKind = "started"      // every local rank runs; PIDs filled
	EventRankExited  EventKind = "rank-exited"  // one rank ended: Exit
	EventEnded       EventKind = "ended"        // no rank of Generation is left (all swept)
	EventStartFailed EventKind = "start-failed" // Message; nothing runs
	EventVerified    EventKind = "verified"     // this node's share of the restore step is whole
	EventDamaged     EventKind = "damaged"      // Message names file and finding
	EventOwnerGone   EventKind = "owner-gone"
	EventPortUsed    EventKind = "port-used"
	EventGone        EventKind = "gone"  // see AllocGone
	EventDirty       EventKind = "dirty" // Message names what did not die
	EventShimLost    EventKind = "shim-lost"
	EventFallback    EventKind = "fallback" // containment or warm start fell back; Message
	EventStalled     EventKind = "stalled"  // no rank here has made a step for longer than its pace allows: Message, Rank, Silent
	EventResumed     EventKind = "resumed"  // they make steps again
	EventOverdue     EventKind = "overdue"  // the stall has lasted for as long as one may: Message, Rank
)

// AllocEvent is one fact about an allocation, told once and acknowledged.
type AllocEvent struct {
	Alloc      string     `json:"alloc"`
	Seq        uint64     `json:"seq"`
	Kind       EventKind  `json:"kind"`
	Generation uint64     `json:"gen"`
	At         int64      `json:"at"` // wall clock of the node, ns; for people only
	PIDs       []RankStep `json:"pids,omitempty"`
	Exit       *RankExit  `json:"exit,omitempty"`
	Message    string     `json:"message,omitempty"`
	// Code of a start that failed: what a shell would exit with when the command or its
	// working directory cannot be used (126, 127), which is the user's doing; 0: the
	// machine's.
	Code int64 `json:"code,omitempty"`
	// Of a stall: the local rank that is furthest behind, and for how long there has been
	// no step, in nanoseconds.
	Rank   int64 `json:"rank,omitempty"`
	Silent int64 `json:"silent,omitempty"`
}

// RankExit tells how a rank ended.
type RankExit struct {
	Rank      int64  `json:"rank"`
	Code      int64  `json:"code"`   // -1 when ended by a signal
	Signal    int64  `json:"signal"` // 0: none
	OOM       bool   `json:"oom,omitempty"`
	ByShim    bool   `json:"byShim,omitempty"`    // the shim killed it (a consequence, not a cause)
	Order     int64  `json:"order"`               // 0 for the first rank of this allocation to end
	Message   string `json:"message,omitempty"`   // exception line, from error file or stderr
	Traceback string `json:"traceback,omitempty"` // ≤ 4 KiB
	ErrorTime string `json:"errorTime,omitempty"` // of the error file, seconds as text
	StepsDone int64  `json:"stepsDone"`           // newest published step, -1: none
	// Disk is what failed when this rank could not save a step: no space, an error of the
	// disk or of the store. Empty: nothing did.
	Disk      string `json:"disk,omitempty"`
	PID       int64  `json:"pid,omitempty"`       // of its main process
	ErrorFile string `json:"errorFile,omitempty"` // path on the node, when the rank wrote one
}

// Prepared says that a rank's files of a step are durable and hashed
// (head.prepared.<node>); repeated until the verdict is not Pending.
type Prepared struct {
	Alloc      string         `json:"alloc"`
	Run        string         `json:"run"`
	Generation uint64         `json:"gen"`
	Step       int64          `json:"step"`
	Rank       int64          `json:"rank"`
	World      int64          `json:"world"`
	Dir        string         `json:"dir"` // absolute directory of the step
	Files      []PreparedFile `json:"files"`
	Cursor     string         `json:"cursor,omitempty"` // world-size independent data position, JSON
	Config     string         `json:"config,omitempty"` // configuration digest
	Frameworks string         `json:"frameworks,omitempty"`
	Metrics    []Metric       `json:"metrics,omitempty"` // sorted by name, each once
	// Mesh is the device mesh of the whole world, outermost first; all ranks give the same.
	Mesh []MeshDim `json:"mesh,omitempty"`
	// Abandoned says why this rank gives the step up; then it prepared nothing and the
	// step is dropped for all ranks, so that none waits for it.
	Abandoned string `json:"abandoned,omitempty"`
	// Staged: the rank's state is copied and its files are being written, whatever becomes
	// of the rank. Nothing is prepared yet and Dir is empty; the leader learns what is
	// worth a moment before it ends the attempt.
	Staged bool `json:"staged,omitempty"`
}

// PreparedFile is one file of a step; Path is relative to the step's directory.
type PreparedFile struct {
	Path   string `json:"path"`
	Length int64  `json:"length"`
	Digest string `json:"digest"` // hex xxh3-128
	Part   string `json:"part"`   // model, optimizer, scheduler, rng, data, other
}

// MeshDim is one dimension of a device mesh, as dp of 2.
type MeshDim struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// Metric is one number that a rank gave with a step, for retention by the best.
type Metric struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"` // finite
}

// Verdict answers Prepared and is pushed on n.<node>.verdict.
type Verdict struct {
	Alloc      string `json:"alloc"`
	Run        string `json:"run"`
	Generation uint64 `json:"gen"`
	Step       int64  `json:"step"`
	State      string `json:"state"` // pending, committed, dropped
	Reason     string `json:"reason,omitempty"`
}

// Task is work on a checkpoint store that the head hands to an agent
// (n.<node>.task, request and reply).
type Task struct {
	ID       string   `json:"id"`
	Position Position `json:"pos"`
	Kind     TaskKind `json:"kind"`
	Run      string   `json:"run"`
	Store    string   `json:"store"`
	Step     int64    `json:"step"`
	Dir      string   `json:"dir"`  // absolute
	Data     []byte   `json:"data"` // manifest.json, committed.json, rolled-back.json or an order
	Digest   string   `json:"digest,omitempty"`
}

// TaskKind is the kind of a Task.
type TaskKind string

// Kinds of task.
const (
	TaskWriteManifest   TaskKind = "write-manifest"    // stat every file, write manifest create-only
	TaskWriteCommitted  TaskKind = "write-committed"   // committed.json
	TaskWriteRolledBack TaskKind = "write-rolled-back" // rolled-back.json
	TaskVerify          TaskKind = "verify"            // whole step, lengths and digests
	TaskDelete          TaskKind = "delete"            // committed.json first
	TaskSweep           TaskKind = "sweep"             // garbage of the run older than Generation in Data
	TaskManifest        TaskKind = "manifest"          // manifest.json, in Data of the reply
	TaskList            TaskKind = "list"              // what the run's folder holds, in Data of the reply
	TaskProbe           TaskKind = "probe"             // one step of proving that nodes share the store
	TaskExport          TaskKind = "export"            // copies the step to the folder in Data
)

// TaskReply answers a Task.
type TaskReply struct {
	ID    string   `json:"id"`
	Error string   `json:"error,omitempty"`
	Exact bool     `json:"exact,omitempty"` // write-manifest: a different file was there
	Bad   []string `json:"bad,omitempty"`
	Files int64    `json:"files"`
	Bytes int64    `json:"bytes"`
	Data  []byte   `json:"data,omitempty"`
	// Absent: a listing found no store; the node may lack a mount, or nobody has saved yet.
	Absent bool `json:"absent,omitempty"`
}

// ReadLog asks for a range of a rank's output (n.<node>.log).
type ReadLog struct {
	Job     string `json:"job"`
	Alloc   string `json:"alloc"`
	Attempt int64  `json:"attempt"`
	Rank    int64  `json:"rank"`
	Stream  string `json:"stream"` // stdout, stderr, error: the rank's error file
	Offset  int64  `json:"offset"`
	Limit   int64  `json:"limit"`
}

// LogChunk answers ReadLog. Start can be behind Offset when the head of the file
// was freed; Ended says that no more will come after Start+len(Data) == Size.
type LogChunk struct {
	Start int64  `json:"start"`
	Data  []byte `json:"data"`
	Size  int64  `json:"size"`
	Ended bool   `json:"ended"`
	Error string `json:"error,omitempty"`
}

// Signal is sent to the main processes of some ranks of one allocation (n.<node>.signal,
// request and reply).
type Signal struct {
	Position   Position `json:"pos"`
	Job        string   `json:"job"`
	Alloc      string   `json:"alloc"`
	Generation uint64   `json:"gen"`
	Number     int64    `json:"number"`
	Ranks      []int64  `json:"ranks"`
}

// SignalReply says why a node did not pass a signal on; empty when it did.
type SignalReply struct {
	Error string `json:"error,omitempty"`
}

// Fault asks a node to harm a job on purpose (n.<node>.fault, request and reply).
type Fault struct {
	Position   Position      `json:"pos"`
	Kind       api.FaultKind `json:"kind"`
	Job        string        `json:"job"`
	Alloc      string        `json:"alloc"`
	Generation uint64        `json:"gen"`
	Rank       int64         `json:"rank"` // of the faults of ranks
	For        unit.Duration `json:"for"`  // of those that end
	Point      api.SavePoint `json:"point,omitempty"`
	Store      string        `json:"store,omitempty"` // of fill-disk
}

// FaultReply answers Fault: what was done, or why it was not.
type FaultReply struct {
	Did   string `json:"did,omitempty"`
	Error string `json:"error,omitempty"`
}
