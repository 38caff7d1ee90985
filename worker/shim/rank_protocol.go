package shim

import (
	"os"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// RankRequest is one frame from a rank (the Python helper, a Go actor host) to the
// shim's rank socket, $TROUPE_SOCKET. Each request gets exactly one RankReply, in
// order. The first must be hello; the shim checks the peer's uid and that the
// generation is the current one (P3).
//
//	hello    v, rank, gen, pid     → page, store, everySteps, world, stacks, stackSignal
//	resume                         → path, step (step -1: from scratch); waits until every share is verified
//	begin    step, timeoutMs       → path (…/rank-<r>, made), shared (…/shared, made); like buffer it
//	                                 waits while what this rank staged before is written
//	prepare  step, files, cursor, mesh, metrics… → when files and folders are durable and hashed
//	buffer   size, buffer, timeoutMs → buffer, size: the rank's shared memory. If it is not the one
//	                                 that the rank says it has, its descriptor comes with the frame
//	                                 (SCM_RIGHTS)
//	stage    step, files, cursor, metrics… → at once: the saver writes what lies in the buffer, makes it
//	                                 durable and hashes it, whether or not the rank lives on
//	verdict  step, timeoutMs       → state "committed" or "dropped" with reason; waits, with a
//	                                 timeout for so long and then says "pending"
//	abort    step, store           → the step is given up on this rank
//	phase    name, timeout         → a long phase begins; name "" ends it
//	report   metrics               → newest metrics, bounded
//	bus                            → how an actor host reaches the bus, and its actor spec
//	                                 (a frame of up to MaxBusReply; all others keep to MaxRankFrame)
type RankRequest struct {
	Op         string             `json:"op"`
	V          int                `json:"v,omitempty"`
	Rank       int64              `json:"rank,omitempty"`
	Generation uint64             `json:"gen,omitempty"`
	PID        int64              `json:"pid,omitempty"`
	Step       int64              `json:"step,omitempty"`
	Files      []RankFile         `json:"files,omitempty"`
	Cursor     string             `json:"cursor,omitempty"`
	Config     string             `json:"config,omitempty"`
	Frameworks string             `json:"frameworks,omitempty"`
	Name       string             `json:"name,omitempty"`
	TimeoutMS  int64              `json:"timeoutMs,omitempty"`
	Store      bool               `json:"store,omitempty"` // abort: the store is to blame, not the script
	Size       int64              `json:"size,omitempty"`
	Buffer     string             `json:"buffer,omitempty"`
	Metrics    map[string]float64 `json:"metrics,omitempty"`
	Mesh       []wire.MeshDim     `json:"mesh,omitempty"` // device mesh, outermost first
}

// RankFile names one file of a step, relative to the step's directory
// ("rank-0/model.pt", "shared/__0_0.distcp"). Part is model, optimizer, scheduler,
// rng, data or other. A staged file does not exist yet: its Length bytes lie in the
// rank's buffer from Offset on.
type RankFile struct {
	Path   string `json:"path"`
	Part   string `json:"part,omitempty"`
	Staged bool   `json:"staged,omitempty"`
	Offset int64  `json:"offset,omitempty"`
	Length int64  `json:"length,omitempty"`
}

// RankReply answers a RankRequest. OK false carries Error, one sentence for people,
// and Code for programs: version, generation, usage, space, memory, io, busy, dropped, ended.
type RankReply struct {
	OK         bool   `json:"ok"`
	Code       string `json:"code,omitempty"`
	Error      string `json:"error,omitempty"`
	V          int    `json:"v,omitempty"`
	Page       string `json:"page,omitempty"`
	Store      string `json:"store,omitempty"`
	EverySteps int64  `json:"everySteps,omitempty"`
	World      int64  `json:"world,omitempty"`
	// Stacks (hello) is where the helper's stacks are to be written on StackSignal.
	Stacks      string `json:"stacks,omitempty"`
	StackSignal int64  `json:"stackSignal,omitempty"`
	Path        string `json:"path,omitempty"`
	Shared      string `json:"shared,omitempty"`
	Step        int64  `json:"step"`
	State       string `json:"state,omitempty"`
	Reason      string `json:"reason,omitempty"`
	// SaveDeadlineMS (hello) is how long a save may take before it is given up.
	SaveDeadlineMS int64  `json:"saveDeadlineMs,omitempty"`
	Size           int64  `json:"size,omitempty"`   // buffer, in bytes
	Buffer         string `json:"buffer,omitempty"` // buffer: its name
	HashNS         int64  `json:"hashNs,omitempty"` // prepare: what reading and hashing took
	// bus
	URLs        []string `json:"urls,omitempty"`
	User        string   `json:"user,omitempty"`
	Password    string   `json:"password,omitempty"`
	InboxPrefix string   `json:"inboxPrefix,omitempty"`
	ActorID     string   `json:"actorId,omitempty"`
	ActorClass  string   `json:"actorClass,omitempty"`
	ActorArgs   []byte   `json:"actorArgs,omitempty"`

	pass *os.File // goes with the frame
}
