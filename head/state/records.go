// Package state is the replicated state machine of the head: records, the commands
// that change them, snapshot and restore. It is deterministic: no clock, no random
// number, no network, no file and no map order may enter it; time, ids and random
// numbers are stamped by the proposer and travel inside the command. Records that a
// View returns are shared and must not be changed. What to do about the state is
// decided elsewhere (head/control, head/schedule, elastic/supervise).
package state

import (
	"github.com/troupe-runtime/troupe/elastic/agree"
	"github.com/troupe-runtime/troupe/elastic/plan"
	"github.com/troupe-runtime/troupe/elastic/supervise"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Format is the number of the on-disk format of snapshots; a newer one is refused.
const Format = 1

// Bounds of the state (DESIGN §5).
const (
	MaxEvents       = 100_000
	MaxTerminalJobs = 20_000
	MaxIdempotency  = 100_000
	MaxEventText    = 256
	MaxAttempts     = 64 // kept for each job; the ledger counts all
	keptPlaces      = 8  // newest attempts that remember where their ranks ran
	keptTexts       = 16 // exits of an attempt that keep their texts
)

// What is kept; tests make it less, so that they reach the bounds.
var (
	keptEvents   uint64 = MaxEvents
	keptTerminal int64  = MaxTerminalJobs
	keptPast            = MaxTerminalJobs // names of which the last runs are known
	keptKeys     int64  = MaxIdempotency
)

// Meta is the one record about the cluster itself.
type Meta struct {
	ID      string `json:"id"` // always "meta"
	Cluster string `json:"cluster"`
	Life    string `json:"life"`  // 8 hex digits, drawn at creation and at every restore
	Epoch   uint64 `json:"epoch"` // restore epoch, upper 16 bits of every generation
	Counter uint64 `json:"counter"`
	Level   int64  `json:"level"`
	Store   string `json:"store"` // default checkpoint store
	Created int64  `json:"created"`
	// EventSeq and AllocSeq number events and allocations.
	EventSeq uint64 `json:"eventSeq"`
	AllocSeq uint64 `json:"allocSeq"`
	Terminal int64  `json:"terminal"` // terminal jobs kept
	Keys     int64  `json:"keys"`     // idempotency keys kept
	Pasts    int64  `json:"pasts,omitempty"`
	Losses   []Loss `json:"losses,omitempty"` // of preemption, by the minute
}

// Node is one machine that has registered.
type Node struct {
	ID         string        `json:"id"`
	Info       wire.NodeInfo `json:"info"`
	State      api.NodeState `json:"state"`
	Why        string        `json:"why,omitempty"`
	Registered int64         `json:"registered"`
	// Seq is that of the registration that stands here; see Node.older.
	Seq     uint64 `json:"seq"`
	Changed int64  `json:"changed"`
	Index   uint64 `json:"index"`
	// Hold is until when an agentless node keeps its work, ns; 0: it is not agentless.
	Hold int64 `json:"hold,omitempty"`
	// Cordon: it takes nothing new; Drain: and what runs there is to leave.
	Cordon *NodeDrain `json:"cordon,omitempty"`
	// Notice: the node is about to be taken away; Noticed is the newest number of what its
	// agent said of that.
	Notice  *Notice `json:"notice,omitempty"`
	Noticed uint64  `json:"noticed,omitempty"`
}

// Schedulable reports whether something new may be placed on the node.
func (n *Node) Schedulable() bool {
	return n.State == api.NodeReady && n.Cordoned() == nil && !n.Info.Leaving
}

// Group is a placement group. It holds resources through Hold records only.
type Group struct {
	ID       string         `json:"id"`
	Spec     api.GroupSpec  `json:"spec"`
	State    api.GroupState `json:"state"`
	Placed   []Bundle       `json:"placed,omitempty"` // one for each bundle, or empty (P1)
	Spares   int64          `json:"spares,omitempty"` // how many of the last bundles no rank uses
	Keep     []string       `json:"keep,omitempty"`   // nodes to prefer after a loss
	Job      string         `json:"job,omitempty"`    // the job it was made for; ends with it
	Seq      uint64         `json:"seq"`              // index of the submission: seniority
	Created  int64          `json:"created"`
	PlacedAt int64          `json:"placedAt,omitempty"`
	Removed  int64          `json:"removed,omitempty"`
	Waiting  int64          `json:"waiting,omitempty"` // since when a released group of hosts waits
	Why      string         `json:"why,omitempty"`
	Index    uint64         `json:"index"`
	// Asked is what it asked for, where it holds less.
	Asked *Asked `json:"asked,omitempty"`
	// Former is what it held and was still well when it lost the rest; it is planned for the
	// group until FormerUntil, ns.
	Former      []api.Placed `json:"former,omitempty"`
	FormerUntil int64        `json:"formerUntil,omitempty"`
	// Lent is where its spare bundles would stand: planned for it, and not held.
	Lent []api.Placed `json:"lent,omitempty"`
	// Claim is where it goes once what Leaving names has left: nobody else may take it.
	Claim   []api.Placed `json:"claim,omitempty"`
	Leaving []string     `json:"leaving,omitempty"` // groups
	// Parked is why it is not to be placed although it waits: its job is held or suspended.
	Parked string `json:"parked,omitempty"`
	// Since is when it began to wait, Begun when it got what it holds now, ns; Ran is how
	// long it held something before, which its time limit counts.
	Since int64 `json:"since,omitempty"`
	Begun int64 `json:"begun,omitempty"`
	Ran   int64 `json:"ran,omitempty"`
	// Expect is how long it is expected to hold what it asks for, ns.
	Expect int64 `json:"expect,omitempty"`
	// User asked for it.
	User string `json:"user,omitempty"`
}

// Bundle is where one bundle of a placed group stands.
type Bundle struct {
	Node    string   `json:"node"`
	Devices []string `json:"devices,omitempty"`
	Hold    string   `json:"hold"`
	UsedBy  string   `json:"usedBy,omitempty"` // job
}

// Hold charges one bundle to a node. It outlives the placement while processes may
// still use what it holds (P2): Releasing holds are freed on proof only.
type Hold struct {
	ID        string        `json:"id"`
	Group     string        `json:"group"`
	Bundle    int64         `json:"bundle"`
	Node      string        `json:"node"`
	Need      api.Resources `json:"need"`
	Devices   []string      `json:"devices,omitempty"`
	Tenant    string        `json:"tenant"`
	Queue     string        `json:"queue"`
	Releasing bool          `json:"releasing,omitempty"`
	Since     int64         `json:"since"`
	// Models of its devices, one word for all that are equal; Uses is what it takes of
	// capacities, and Domains where of those that each domain has of its own.
	Models []string `json:"models,omitempty"`
	// Preemptible work does not count against what is guaranteed.
	Preemptible bool        `json:"preemptible,omitempty"`
	Uses        api.Amounts `json:"uses,omitempty"`
	Domains     []string    `json:"domains,omitempty"`
}

// Alloc is the processes of one job on one node; they use the listed holds.
type Alloc struct {
	ID      string   `json:"id"`
	Job     string   `json:"job"`
	Group   string   `json:"group"`
	Node    string   `json:"node"`
	BootID  string   `json:"bootId"`
	Holds   []string `json:"holds"`
	Bundles []int64  `json:"bundles"`
	// Acked is the newest event of the allocation that is in the log.
	Acked uint64 `json:"acked"`
	Gone  bool   `json:"gone,omitempty"`
	Dirty string `json:"dirty,omitempty"`
	Lost  bool   `json:"lost,omitempty"`
	// Leaving: the gang moved and this allocation's bundles are no longer what its job
	// uses on the node; it ends before another one may start there.
	Leaving bool `json:"leaving,omitempty"`
	// Facts of the newest generation started here.
	Generation  uint64          `json:"gen"`
	Ranks       []wire.RankSpec `json:"ranks,omitempty"`
	PIDs        []wire.RankStep `json:"pids,omitempty"`
	Started     bool            `json:"started,omitempty"`
	Ended       bool            `json:"ended,omitempty"`
	StartFailed string          `json:"startFailed,omitempty"`
	StartCode   int64           `json:"startCode,omitempty"` // see wire.AllocEvent.Code
	Verified    bool            `json:"verified,omitempty"`
	Damaged     string          `json:"damaged,omitempty"`
	PortUsed    bool            `json:"portUsed,omitempty"`
	FailedAt    int64           `json:"failedAt,omitempty"` // log time of Lost or StartFailed
	// What its shim says of a stall: since when (0: none), what it knows, the rank that is
	// furthest behind, and whether it has lasted for as long as one may.
	StalledAt int64  `json:"stalledAt,omitempty"`
	StallText string `json:"stallText,omitempty"`
	SlowRank  int64  `json:"slowRank,omitempty"`
	Overdue   bool   `json:"overdue,omitempty"`
}

// Job is what a user submitted.
type Job struct {
	ID     string           `json:"id"`
	ULID   string           `json:"ulid"`
	Spec   api.JobSpec      `json:"spec"`
	State  api.JobState     `json:"state"`
	Reason *api.Reason      `json:"reason,omitempty"`
	Group  string           `json:"group"`
	Ledger supervise.Ledger `json:"ledger"`
	// Excluded are nodes that the job keeps off, at most maxExcluded.
	Excluded []Exclusion `json:"excluded,omitempty"`
	// Past is where the time of attempts went that are no longer in Attempts, up to Until.
	Past  plan.Parts `json:"past,omitzero"`
	Until int64      `json:"until,omitempty"`
	// Attempts are the newest MaxAttempts, oldest first; Number counts from 0.
	Attempts []Attempt `json:"attempts,omitempty"`
	Stop     *Stop     `json:"stop,omitempty"`
	// Proposal is the newest to the ranks of any attempt, Drain why the attempt is being
	// ended in order.
	Proposal *agree.Proposal `json:"proposal,omitempty"`
	Drain    *Drain          `json:"drain,omitempty"`
	// Evictions counts how often it was preempted, Evicted is by whom and why, first.
	Evictions int64  `json:"evictions,omitempty"`
	Evicted   string `json:"evicted,omitempty"`
	// Waits is since when it waits for a placement, ns; 0: since it was submitted.
	Waits     int64  `json:"waits,omitempty"`
	OwnerGone bool   `json:"ownerGone,omitempty"`
	ExitCode  *int64 `json:"exitCode,omitempty"`
	Seq       uint64 `json:"seq"`
	Created   int64  `json:"created"`
	Started   int64  `json:"started,omitempty"`
	Ended     int64  `json:"ended,omitempty"`
	Index     uint64 `json:"index"`
	User      string `json:"user,omitempty"` // who submitted it
}

// Stop is a user's order to end a job.
type Stop struct {
	GraceNS int64  `json:"grace"`
	Reason  string `json:"reason"`
	At      int64  `json:"at"`
	// Code is the rule by which it ends, if nobody asked: Limit.
	Code api.ReasonCode `json:"code,omitempty"`
}

// Attempt is one start of a worker group.
type Attempt struct {
	Number     int64       `json:"number"`
	Generation uint64      `json:"gen"`
	Ranks      []RankPlace `json:"ranks"`
	Allocs     []string    `json:"allocs"`
	MasterAddr string      `json:"masterAddr"`
	MasterPort int64       `json:"masterPort"`
	Restore    *Restore    `json:"restore,omitempty"`
	Class      wire.Class  `json:"class"`
	Created    int64       `json:"created"`
	Running    int64       `json:"running,omitempty"`
	Ended      int64       `json:"ended,omitempty"`
	FirstStep  bool        `json:"firstStep,omitempty"`
	// Aborted: a rank or node of it is gone, so that it cannot succeed; its other ranks
	// are being ended while the cause is still looked for.
	Aborted int64 `json:"aborted,omitempty"`
	Again   bool  `json:"again,omitempty"` // it never ran: its number is used once more
	// NoSaves says why no step of the attempt can be saved; empty: it can.
	NoSaves string       `json:"noSaves,omitempty"`
	Pace    Pace         `json:"pace,omitzero"`
	Stall   *Stall       `json:"stall,omitempty"`
	Cause   api.Cause    `json:"cause,omitempty"`
	Failure *api.Failure `json:"failure,omitempty"`
	Exits   []Exit       `json:"exits,omitempty"`
}

// Pace is what the log knows of an attempt's steps and time, for the ledger and for the
// account of the job's time. Times are of the log, in nanoseconds.
type Pace struct {
	Placed  int64  `json:"placed,omitempty"` // when the bundles were held that it runs on
	First   int64  `json:"first,omitempty"`  // when its first step was seen
	From    int64  `json:"from,omitempty"`   // the step before its first
	Newest  int64  `json:"newest,omitempty"` // its newest step, as far as the log was told
	Kept    *int64 `json:"kept,omitempty"`   // the newest step that it committed
	Saving  int64  `json:"saving,omitempty"` // how long its ranks stood still to save
	Saves   int64  `json:"saves,omitempty"`  // in how many steps
	Upload  int64  `json:"upload,omitempty"` // how long its staged saves took to be committed
	Uploads int64  `json:"uploads,omitempty"`
	Stalled int64  `json:"stalled,omitempty"`
	Since   int64  `json:"since,omitempty"` // of the stall that lasts; 0: none does
}

// Exclusion keeps a job off a node until a time.
type Exclusion struct {
	Node  string `json:"node"`
	Why   string `json:"why"`
	At    int64  `json:"at"`
	Until int64  `json:"until"`
}

// RankPlace is where one rank runs.
type RankPlace struct {
	Rank      int64  `json:"rank"`
	LocalRank int64  `json:"localRank"`
	Node      string `json:"node"`
	Alloc     string `json:"alloc"`
	Bundle    int64  `json:"bundle"`
}

// Exit is how a rank ended, in log order.
type Exit struct {
	Alloc string `json:"alloc"`
	At    int64  `json:"at"`
	wire.RankExit
}

// Restore is the step that all ranks of an attempt load (P4).
type Restore struct {
	Step     int64  `json:"step"`
	Dir      string `json:"dir"`
	Digest   string `json:"digest"`
	Verified bool   `json:"verified"` // every node verified its share
	// Store holds it, if it is not the one that the job saves to.
	Store string `json:"store,omitempty"`
}

// Run owns checkpoints and outlives jobs.
type Run struct {
	Name       string `json:"name"`
	Tenant     string `json:"tenant"`
	Store      string `json:"store"`
	Generation uint64 `json:"gen"`           // newest of any job of the run (P3)
	Job        string `json:"job,omitempty"` // the live job; one at a time
	// Fast is set with the run's first prepared step: from then on its training
	// checkpoints through Troupe and belongs to the fast class (DESIGN §7).
	Fast bool `json:"fast,omitempty"`
}

// Checkpoint is one committed step. Key is run, generation and step.
type Checkpoint struct {
	ID         string          `json:"id"` // run/generation(16 hex)/step(16 hex)
	Run        string          `json:"run"`
	Step       int64           `json:"step"`
	Generation uint64          `json:"gen"`
	World      int64           `json:"world"`
	Store      string          `json:"store"`
	Dir        string          `json:"dir"`
	Digest     string          `json:"digest"`
	Bytes      int64           `json:"bytes"`
	Files      int64           `json:"files"`
	Parent     *int64          `json:"parent,omitempty"`
	State      CheckpointState `json:"state"`
	Reason     string          `json:"reason,omitempty"`
	Committed  int64           `json:"committed"`
	Index      uint64          `json:"index"`
	// Marked: committed.json (or rolled-back.json) was written after the entry.
	Marked bool `json:"marked,omitempty"`
	// Pinned: a user asked to keep it; retention and removal leave it alone.
	Pinned bool `json:"pinned,omitempty"`
	// Damaged: it was rolled back because its own files are not what was committed.
	Damaged bool          `json:"damaged,omitempty"`
	Metrics []wire.Metric `json:"metrics,omitempty"` // sorted by name
	// ParentGeneration is that of Parent, which another generation may have saved too.
	ParentGeneration uint64 `json:"parentGen,omitempty"`
	// Adopted names the cluster that committed it; empty: this one did.
	Adopted string `json:"adopted,omitempty"`
}

// CheckpointState is the phase of a committed step.
type CheckpointState string

// States of a checkpoint.
const (
	CheckpointCommitted  CheckpointState = "committed"
	CheckpointRolledBack CheckpointState = "rolled-back"
	CheckpointDeleting   CheckpointState = "deleting" // tombstone; files go next
)

// Event is one change with its cause.
type Event struct {
	Seq    uint64 `json:"seq"`
	Index  uint64 `json:"index"`
	Time   int64  `json:"time"`
	Type   string `json:"type"`
	Object string `json:"object"`
	Text   string `json:"text"`
}

// Idempotency remembers what a request with a key led to.
type Idempotency struct {
	Key         string `json:"key"`
	Fingerprint string `json:"fp"`
	Result      string `json:"result"` // id of the job or group
	At          int64  `json:"at"`
	Seq         uint64 `json:"seq"`
}

// Token is one API credential, stored hashed.
type Token struct {
	Hash    string `json:"hash"` // hex SHA-256
	Name    string `json:"name"`
	Role    string `json:"role"` // admin, viewer, node
	Node    string `json:"node,omitempty"`
	Created int64  `json:"created"`
	Revoked int64  `json:"revoked,omitempty"`
}
