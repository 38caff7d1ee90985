package state

import (
	"fmt"

	"github.com/troupe-runtime/troupe/elastic/supervise"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Kind is the stable first byte of a command. Kinds are only appended.
type Kind byte

// Kinds of command, all of feature level 1.
const (
	KindCreateCluster Kind = iota + 1
	KindRegisterNode
	KindSetNodeState
	KindSubmitJob
	KindCreateGroup
	KindPlaceGroup
	KindRemoveGroup
	KindFacts
	KindSupervise
	KindStopJob
	KindCommitCheckpoint
	KindRollBack
	KindTombstone
	KindCheckpointDone
	KindRaiseGeneration
	KindAddToken
	KindRevokeToken
	KindRaiseLevel
	KindRestoreVerified
	KindReleaseGroup
	KindFirstStep
	KindDisownJob
	KindInjectFault
	KindStall
	KindDropStep
	KindReshape
	KindRunFast
	KindAbortAttempt
	KindPinCheckpoint
	KindAdoptCheckpoints
	KindPropose
	KindDecide
	KindDrainJob
	KindOrderEnd
	KindCancelDrain
	KindDrainNode
	KindResizeGroup
	KindNodeNotice
	KindSetSpares
	KindPreempt
	KindDropClaim
	KindPutQueues
	KindPutReservation
	KindPutCapacities
	KindPutSettings
	KindPutLinks
	KindParkJob
	KindEditJob
	KindCompleteGroup
)

// Header starts every command: kind byte, then this, then the body.
type Header struct {
	Level int64 `json:"l"` // feature level the command needs
	Now   int64 `json:"t"` // proposer's wall clock, ns
}

// CreateCluster makes the cluster; it is the first entry of the log.
type CreateCluster struct {
	Cluster string  `json:"cluster"`
	Life    string  `json:"life"`
	Store   string  `json:"store"`
	Tokens  []Token `json:"tokens"`
}

// RegisterNode records a node or its return. A new boot id is proof that nothing of
// the former boot runs (P2): its allocations are gone.
type RegisterNode struct {
	ID   string        `json:"id"`
	Info wire.NodeInfo `json:"info"`
	// Seq orders the registrations of one session.
	Seq uint64 `json:"seq"`
	// Present lists the allocations that the agent found; those of the state that
	// are missing on the same boot have lost their shim and ranks.
	Present []string `json:"present"`
}

// SetNodeState moves a node between READY, SUSPECT, AGENTLESS and LOST.
type SetNodeState struct {
	ID    string        `json:"id"`
	State api.NodeState `json:"state"`
	Why   string        `json:"why"`
	// Session: a return under a newer session makes a declaration of loss stale.
	Session string `json:"session,omitempty"`
	// Hold is until when an agentless node keeps its work, ns.
	Hold int64 `json:"hold,omitempty"`
}

// SubmitJob queues a job. Job.Group names the group made for it (Bundles) or an
// existing one. Placement, if any, was decided by the scheduler against Basis.
type SubmitJob struct {
	ID          string         `json:"id"`
	ULID        string         `json:"ulid"`
	Spec        api.JobSpec    `json:"spec"` // canonical
	Group       string         `json:"group"`
	GroupSpec   *api.GroupSpec `json:"groupSpec,omitempty"`
	Placement   []api.Placed   `json:"placement,omitempty"`
	Key         string         `json:"key,omitempty"`
	Fingerprint string         `json:"fp,omitempty"`
	User        string         `json:"user,omitempty"`
}

// CreateGroup makes a placement group, placed at once where the proposer could.
type CreateGroup struct {
	ID          string        `json:"id"`
	Spec        api.GroupSpec `json:"spec"`
	Placement   []api.Placed  `json:"placement,omitempty"`
	Key         string        `json:"key,omitempty"`
	Fingerprint string        `json:"fp,omitempty"`
	User        string        `json:"user,omitempty"`
}

// PlaceGroup places a waiting group: every bundle or nothing; preconditions are
// checked again here.
type PlaceGroup struct {
	Group     string       `json:"group"`
	Placement []api.Placed `json:"placement"`
}

// RemoveGroup ends a group; a job that runs in it must have ended.
type RemoveGroup struct {
	Group string `json:"group"`
	Why   string `json:"why"`
}

// ReleaseGroup gives a group's bundles back after a loss and lets it wait again
// with its seniority, preferring the nodes that live (P1).
type ReleaseGroup struct {
	Group     string       `json:"group"`
	Placement []api.Placed `json:"placement,omitempty"` // where it fits at once
	Why       string       `json:"why"`
	// Former is until when what it held and is still well stays planned for it, should it
	// wait; ns, 0: it does not.
	Former int64 `json:"former,omitempty"`
}

// Facts are events that agents reported, in order.
type Facts struct {
	Node   string            `json:"node"`
	Events []wire.AllocEvent `json:"events"`
}

// Supervise is one decision of the supervisor, applied whole or refused.
type Supervise struct {
	Job     string `json:"job"`
	Attempt int64  `json:"attempt"` // newest attempt it was decided on; -1 for none
	// Generation of that attempt, which tells two starts of one number apart; 0: not said.
	Generation uint64        `json:"gen,omitempty"`
	End        *AttemptEnd   `json:"end,omitempty"`
	Start      *AttemptStart `json:"start,omitempty"`
	State      api.JobState  `json:"state,omitempty"` // new state, empty: unchanged
	ExitCode   *int64        `json:"exit,omitempty"`
	Reason     *api.Reason   `json:"reason,omitempty"`
}

// AttemptEnd closes an attempt in the ledger.
type AttemptEnd struct {
	Cause   api.Cause        `json:"cause"`
	Failure *api.Failure     `json:"failure,omitempty"`
	Ledger  supervise.Ledger `json:"ledger"`
	Again   bool             `json:"again,omitempty"`   // see Attempt.Again
	Exclude *Exclusion       `json:"exclude,omitempty"` // At is stamped when it is applied
	// What the leader has heard of the attempt's ranks: newest step, time in saves, saves.
	Newest int64 `json:"newest,omitempty"`
	Saving int64 `json:"saving,omitempty"`
	Saves  int64 `json:"saves,omitempty"`
	// Likewise of staged saves, from there to the commit.
	Upload  int64 `json:"upload,omitempty"`
	Uploads int64 `json:"uploads,omitempty"`
}

// AttemptStart opens the next attempt; the state machine draws its generation.
type AttemptStart struct {
	Ranks      []RankStart `json:"ranks"` // in rank order
	MasterAddr string      `json:"masterAddr"`
	MasterPort int64       `json:"masterPort"`
	Restore    *Restore    `json:"restore,omitempty"`
	NoSaves    string      `json:"noSaves,omitempty"` // see Attempt
}

// RankStart says which bundle of the group a rank uses.
type RankStart struct {
	Rank      int64  `json:"r"`
	LocalRank int64  `json:"l"`
	Bundle    int64  `json:"b"`
	Node      string `json:"n"`
}

// StopJob asks for the end of a job.
type StopJob struct {
	Job     string `json:"job"`
	GraceNS int64  `json:"grace"`
	Reason  string `json:"reason"`
	// Code is the rule by which it ends, if nobody asked: Limit.
	Code api.ReasonCode `json:"code,omitempty"`
}

// CommitCheckpoint commits one step of a run (P4).
type CommitCheckpoint struct {
	Run        string `json:"run"`
	Step       int64  `json:"step"`
	Generation uint64 `json:"gen"`
	World      int64  `json:"world"`
	Store      string `json:"store"`
	Dir        string `json:"dir"`
	Digest     string `json:"digest"`
	Bytes      int64  `json:"bytes"`
	Files      int64  `json:"files"`
	Parent     *int64 `json:"parent,omitempty"`
	// Metrics are those of the manifest.
	Metrics []wire.Metric `json:"metrics,omitempty"`
}

// RollBack frees every step of the run from Step on for a higher generation.
type RollBack struct {
	Run    string `json:"run"`
	Step   int64  `json:"step"`
	Reason string `json:"reason"`
	// Damaged: the newest standing step at Step is not what was committed.
	Damaged bool `json:"damaged,omitempty"`
}

// Tombstone announces the deletion of a committed step.
type Tombstone struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
	// Asked: a user wants it, so that the newest step may go when no job of the run lives.
	Asked bool `json:"asked,omitempty"`
}

// CheckpointDone confirms work on files: marked (committed.json or rolled-back.json
// is there) or deleted.
type CheckpointDone struct {
	ID      string `json:"id"`
	Deleted bool   `json:"deleted"`
	// State and Index are those of the record that the work was done for; if it has
	// moved on meanwhile the confirmation says nothing.
	State CheckpointState `json:"state,omitempty"`
	Index uint64          `json:"index,omitempty"`
}

// RaiseGeneration lifts the counter above a generation found elsewhere.
type RaiseGeneration struct {
	Above uint64 `json:"above"`
}

// AddToken stores a hashed credential.
type AddToken struct {
	Token Token `json:"token"`
}

// RevokeToken ends a credential.
type RevokeToken struct {
	Hash string `json:"hash"`
}

// RaiseLevel lifts the cluster's feature level.
type RaiseLevel struct {
	Level int64 `json:"level"`
}

// FirstStep records that an attempt has made its first step.
type FirstStep struct {
	Job        string `json:"job"`
	Generation uint64 `json:"gen"`
	Step       int64  `json:"step,omitempty"` // that was seen
}

// Refused is the result of a command whose preconditions did not hold when it was
// applied. Nothing changed.
type Refused struct {
	Code string // conflict, not-found, exists, stale, invalid, key-reused
	Text string
}

// Error says what was refused and why.
func (r *Refused) Error() string { return fmt.Sprintf("refused (%s): %s", r.Code, r.Text) }

// Made is the result of SubmitJob and CreateGroup. At is set when an earlier
// request with the same key made it.
type Made struct {
	ID string
	At int64
}

// Started is the result of a Supervise that opened an attempt.
type Started struct {
	Number     int64
	Generation uint64
}

// InjectFault records that somebody is about to harm a job on purpose, so that what
// follows has a cause (P7).
type InjectFault struct {
	Job   string `json:"job"`
	Fault string `json:"fault"` // what is done, in words
}
