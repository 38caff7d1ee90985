package api

import (
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// FaultKind is a way to harm a job on purpose.
type FaultKind string

// Faults that can be injected.
const (
	FaultKillRank  FaultKind = "kill-rank"  // SIGKILL to a rank's main process
	FaultStopRank  FaultKind = "stop-rank"  // SIGSTOP, SIGCONT after For
	FaultAtSave    FaultKind = "at-save"    // SIGKILL when the rank passes Point of its next save
	FaultKillAgent FaultKind = "kill-agent" // SIGKILL to a node's agent
	FaultKillNode  FaultKind = "kill-node"  // SIGKILL to the agent and all that runs on its node
	FaultFillDisk  FaultKind = "fill-disk"  // the store's file system is full, For long
	FaultCut       FaultKind = "cut"        // the node's agent cannot reach the head, For long
)

// FaultKinds lists all, in the order in which they are shown.
var FaultKinds = []FaultKind{FaultKillRank, FaultStopRank, FaultAtSave, FaultKillAgent, FaultKillNode, FaultFillDisk, FaultCut}

// OfRank says that the fault strikes one rank, not a node.
func (k FaultKind) OfRank() bool {
	return k == FaultKillRank || k == FaultStopRank || k == FaultAtSave
}

// Ends says that the fault ends by itself after a while.
func (k FaultKind) Ends() bool { return k == FaultStopRank || k == FaultFillDisk || k == FaultCut }

// SavePoint is a moment of one rank's part in a save.
type SavePoint string

// Moments of a save.
const (
	SaveBegun    SavePoint = "begun"    // the folders are made, nothing is written
	SaveWritten  SavePoint = "written"  // the files are written, not yet durable
	SavePrepared SavePoint = "prepared" // durable and hashed, not yet committed
)

// SavePoints lists all, in their order.
var SavePoints = []SavePoint{SaveBegun, SaveWritten, SavePrepared}

// MaxFaultFor is the longest that a fault which ends by itself may last.
const MaxFaultFor = unit.Duration(time.Hour)

// FaultRequest asks for one fault on a running job.
type FaultRequest struct {
	Fault FaultKind     `json:"fault" doc:"kill-rank, stop-rank, at-save, kill-agent, kill-node, fill-disk or cut."`
	Rank  *int64        `json:"rank,omitempty" doc:"The rank to strike; one at random when it is left out."`
	Node  string        `json:"node,omitempty" doc:"The node to strike, by name or id, one of the job; at random when it is left out."`
	For   unit.Duration `json:"for,omitempty" usual:"10s" doc:"How long stop-rank, fill-disk and cut last; default 10s."`
	Point SavePoint     `json:"point,omitempty" doc:"Of at-save: begun, written or prepared (the default)."`
}

// FaultResult is what was done.
type FaultResult struct {
	Fault      FaultKind `json:"fault"`
	Job        string    `json:"job"`
	Attempt    int64     `json:"attempt"`
	Generation uint64    `json:"generation"`
	Rank       *int64    `json:"rank,omitempty"`
	Node       string    `json:"node"` // its name
	Did        string    `json:"did"`
	At         time.Time `json:"at"`
	EventSeq   uint64    `json:"eventSeq"` // of the event that records it; what follows is later
}
