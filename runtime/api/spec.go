package api

import "github.com/troupe-runtime/troupe/runtime/unit"

// JobKind says what a job is; it selects defaults, never privileges.
type JobKind string

// Kinds of job.
const (
	KindTraining JobKind = "training"
	KindTask     JobKind = "task"
	KindService  JobKind = "service"
	KindBatch    JobKind = "batch"
	KindActor    JobKind = "actor"
)

// Strategy says how the bundles of a placement group are spread over nodes.
type Strategy string

// Strategies, with Ray's names and meanings.
const (
	Pack         Strategy = "PACK"          // as few nodes as possible, more if need be
	Spread       Strategy = "SPREAD"        // as many nodes as possible, fewer if need be
	StrictPack   Strategy = "STRICT_PACK"   // one node or waiting
	StrictSpread Strategy = "STRICT_SPREAD" // one bundle a node or waiting
)

// Ways to bind a rank to CPUs, with torchrun's names and meanings.
const (
	NumaNode        = "node"         // those of the device's NUMA node
	NumaSocket      = "socket"       // those of all NUMA nodes of its socket
	NumaExclusive   = "exclusive"    // whole cores of its node that no other device's rank has
	NumaCoreComplex = "core-complex" // those that share one highest cache of its node
)

// NumaBindings are all of them.
var NumaBindings = []string{NumaNode, NumaSocket, NumaExclusive, NumaCoreComplex}

// Resources is what one bundle asks for on one node. GPUs counts whole devices;
// Share asks for thousandths of one device instead, with GPUMemory bytes on it
// (0: Share × the usable memory). The two are exclusive.
type Resources struct {
	CPU       unit.MilliCPU `json:"cpu,omitempty"`
	Memory    unit.Bytes    `json:"memory,omitempty"`
	GPUs      int64         `json:"gpus,omitempty"`
	Share     int64         `json:"share,omitempty"`
	GPUMemory unit.Bytes    `json:"gpuMemory,omitempty"`
}

// Bundle is a set of resources held together on one node.
type Bundle struct {
	Resources
	// Labels that the node must carry, by equality.
	Labels map[string]string `json:"labels,omitempty"`
}

// GroupSpec asks for a placement group: all bundles or none (P1).
type GroupSpec struct {
	Name     string   `json:"name,omitempty"`
	Bundles  []Bundle `json:"bundles"`
	Strategy Strategy `json:"strategy,omitempty"` // default PACK
	// PerNode is how many of its bundles, which are equal then, each node holds: so many
	// exactly; 0: what fits.
	PerNode  int64  `json:"perNode,omitempty"`
	Pool     string `json:"pool,omitempty"`
	Tenant   string `json:"tenant,omitempty"`
	Queue    string `json:"queue,omitempty"`
	Priority int64  `json:"priority,omitempty"` // higher first
	Wishes
	// Roles divide the bundles, in order; the group may start with fewer bundles of a role
	// down to its minimum, and with no fewer than Min in all. Without roles: all or none.
	Roles []Role `json:"roles,omitempty"`
	Min   int64  `json:"min,omitempty"`
}

// JobSpec is what a user submits. A job without PlacementGroup gets a group of its
// own with one bundle (Resources) for each rank.
type JobSpec struct {
	Name    string   `json:"name"`
	Kind    JobKind  `json:"kind,omitempty"` // default training
	Run     string   `json:"run,omitempty"`  // owner of checkpoints; default Name
	Command []string `json:"command"`        // argv of each rank
	// WorkingDir is where ranks start: an absolute path on the nodes, or with Package a
	// path below the root of its copy, "" for the root itself.
	WorkingDir string `json:"workingDir,omitempty"`
	// Package is the hash of a folder that was uploaded before: each node runs its ranks in
	// a copy of its own.
	Package string            `json:"package,omitempty"`
	Env     map[string]string `json:"env,omitempty"`

	// Fields with a usual value are never zero: whoever writes 0 is told so, and what stands
	// for it when the field is left out.
	Ranks        int64  `json:"ranks,omitempty" usual:"1"` // world size
	Sizes        *Sizes `json:"sizes,omitempty"`           // that the job may be given; nil: Ranks
	RanksPerNode int64  `json:"ranksPerNode,omitempty"`    // on each node, exactly; 0: whatever fits
	// SpareNodes are held beside those of the ranks, as soon as there is room: when a node
	// is lost its ranks start on one of them at once.
	SpareNodes int64 `json:"spareNodes,omitempty"`
	// LendSpares: the spare nodes are planned for the job and not held; work that it may
	// preempt runs there until they are needed.
	LendSpares bool      `json:"lendSpares,omitempty"`
	Resources  Resources `json:"resources,omitzero" usual:"0.01 CPU"` // of each rank
	Strategy   Strategy  `json:"strategy,omitempty"`

	// PlacementGroup runs the job in an existing group; rank r uses bundle
	// Bundles[r], or bundle r when Bundles is empty.
	PlacementGroup string  `json:"placementGroup,omitempty"`
	Bundles        []int64 `json:"bundles,omitempty"`

	Pool     string `json:"pool,omitempty"`
	Tenant   string `json:"tenant,omitempty"`
	Queue    string `json:"queue,omitempty"`
	Priority int64  `json:"priority,omitempty"`
	Wishes
	// Hold: it does not start before somebody releases it.
	Hold bool `json:"hold,omitempty"`
	// Data are the labels of what it reads, as of data sets and models; its tenant needs
	// access to each.
	Data []string `json:"data,omitempty"`

	Restart    RestartPolicy    `json:"restart,omitzero"`
	Checkpoint CheckpointPolicy `json:"checkpoint,omitzero"`

	FailureGrace    unit.Duration `json:"failureGrace,omitempty" usual:"200ms"`
	ShutdownTimeout unit.Duration `json:"shutdownTimeout,omitempty" usual:"30s"`

	// Owner ends the job when the owning process ends; nil for a detached job.
	Owner *Owner `json:"owner,omitempty"`
	// LaunchEnv names an environment handed to the local agent over its socket
	// under `launch`; it is never logged or replicated.
	LaunchEnv string `json:"launchEnv,omitempty"`
	// Role and RunID are what ranks find as ROLE_NAME (default "default") and
	// TORCHELASTIC_RUN_ID (default the run's name).
	Role  string `json:"role,omitempty"`
	RunID string `json:"runId,omitempty"`
	// VirtualLocalRank gives every rank LOCAL_RANK 0 and sight of its own device alone.
	VirtualLocalRank bool `json:"virtualLocalRank,omitempty"`
	// NumaBinding binds every rank to CPUs near its device, as torchrun's --numa-binding:
	// one of NumaBindings; empty: not at all.
	NumaBinding string `json:"numaBinding,omitempty"`
	// NoWarm starts every rank by exec, never from a warm forkserver.
	NoWarm bool `json:"noWarm,omitempty"`
	// LogDir, Redirects, Tee … of torchrun are the launcher's own and not here.

	Actor *ActorSpec `json:"actor,omitempty"`
	// Hosts makes the job one of `launch` over several hosts.
	Hosts *HostsSpec `json:"hosts,omitempty"`
}

// HostsSpec makes up a job's group of whole hosts: MIN to MAX of those that are there,
// each with as many ranks as it says by its label LabelRanks. The job's own count of
// ranks follows from them.
type HostsSpec struct {
	Min int64 `json:"min"`
	Max int64 `json:"max"`
	// LastCall is how long a group of MIN waits for more.
	LastCall unit.Duration `json:"lastCall,omitempty" usual:"30s"`
	// Join is how long hosts wait until there are MIN.
	Join unit.Duration `json:"join,omitempty" usual:"10m"`
}

// Labels by which the hosts of a launch say what they bring.
const (
	LabelRanks    = "launch-ranks"     // how many ranks the host runs
	LabelNodeRank = "launch-node-rank" // its place among the hosts, if it asked for one
)

// RestartPolicy bounds restarts. MaxRestarts, when set, is the one budget of
// `launch` (every failed attempt counts, whatever its class); otherwise each
// class has its own.
type RestartPolicy struct {
	MaxRestarts *int64 `json:"maxRestarts,omitempty"`
	User        *int64 `json:"user,omitempty"`           // default 3
	Infra       *int64 `json:"infrastructure,omitempty"` // default 20
	Hang        *int64 `json:"hang,omitempty"`           // default 3
	// NoBackoff: `launch` never backs off.
	NoBackoff bool `json:"noBackoff,omitempty"`
	// ExcludeAfter infrastructure failures within an hour, with the same node as root
	// cause, the job is kept off that node for an hour; default 3, 0: never.
	ExcludeAfter *int64 `json:"excludeAfter,omitempty"`
	// StallKill ends an attempt whose ranks make no step for so long, as "20m"; empty:
	// learned from their pace, at least 10 minutes; "off": never.
	StallKill string `json:"stallKill,omitempty"`
}

// CheckpointPolicy says where checkpoints of the run live, how often
// should_checkpoint answers yes, and how many are kept.
type CheckpointPolicy struct {
	// Store is a directory or s3://bucket/prefix?endpoint=URL&path-style=true&region=NAME;
	// default the cluster's.
	Store    string `json:"store,omitempty"`
	Interval string `json:"interval,omitempty"` // "50steps", "10m", "auto"; empty: only the script decides
	KeepLast int64  `json:"keepLast,omitempty" usual:"3"`
	// KeepEvery keeps each step that is a multiple besides, KeepBest the best by a metric.
	KeepEvery int64     `json:"keepEvery,omitempty"`
	KeepBest  *KeepBest `json:"keepBest,omitempty"`
	FromStep  *int64    `json:"fromStep,omitempty"` // rolls later steps back before the first attempt
	// SaveDeadline is how long a step may take from a rank's first report, and a rank's
	// own save from its start, before the step is dropped and the job goes on.
	SaveDeadline unit.Duration `json:"saveDeadline,omitempty" usual:"10m"`
}

// KeepBest keeps the steps with the best values of a metric, which the ranks give with
// ck.metric or report().
type KeepBest struct {
	Metric string `json:"metric"`
	Mode   string `json:"mode"` // min or max
	Count  int64  `json:"count"`
}

// Owner identifies the process that owns a foreground job: same boot, same pid,
// same start time, or it is gone.
type Owner struct {
	BootID    string `json:"bootId"`
	PID       int64  `json:"pid"`
	StartTime uint64 `json:"startTime"` // field 22 of /proc/PID/stat
}

// ActorSpec makes a job an actor: one rank that hosts a registered factory.
type ActorSpec struct {
	Name        string `json:"name,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Class       string `json:"class"`                 // name of the registered factory
	Args        []byte `json:"args,omitempty"`        // encoded by the caller, opaque here
	MaxRestarts int64  `json:"maxRestarts,omitempty"` // -1: for ever
	MaxPending  int64  `json:"maxPendingCalls,omitempty"`
}
