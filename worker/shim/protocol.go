package shim

import (
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/runtime/wire"
	"github.com/troupe-runtime/troupe/worker/process"
)

// ProtocolVersion of both sockets; a shim outlives agents, so it only grows and
// both sides accept what they do not know.
const ProtocolVersion = 1

// AgentProtocol is the version of the agent socket alone. Version 2 added ShimMessage's
// Until and StopOrder's Quiet; a side that knows less leaves them out, or ignores them.
const AgentProtocol = 2

// MaxFrame bounds one frame of either socket: a 4-byte big-endian length and a
// JSON object. Control frames of the agent may be larger than a rank's.
const (
	MaxRankFrame  = 64 << 10
	MaxAgentFrame = 1 << 20
	// MaxBusReply bounds the one larger frame to a rank, the reply to bus: it carries an
	// actor's arguments, of which an API takes 256 KiB, as base64.
	MaxBusReply = 512 << 10
)

// Files of an allocation's directory, <state>/alloc/<id>/. Sockets live in
// Config.SocketDir, a short path, because a Unix address holds 107 bytes.
const (
	ConfigFile  = "shim.json"    // Config, written by the agent before the start
	JournalFile = "journal.json" // what the shim needs to be found again
	OutputDir   = "out"          // out/<attempt>/<rank>/{stdout,stderr}.log, error.json
)

// Config starts a shim: `troupe-shim <alloc dir>/shim.json` (or the main binary's
// hidden command `troupe shim …`). The shim detaches itself into its own session.
type Config struct {
	Version   int           `json:"version"`
	Alloc     string        `json:"alloc"`
	Job       string        `json:"job"`
	JobName   string        `json:"jobName"`
	Run       string        `json:"run"`
	Node      string        `json:"node"`
	Dir       string        `json:"dir"`       // <state>/alloc/<id>
	SocketDir string        `json:"socketDir"` // agent.sock, rank.sock and pages live here
	Cookie    string        `json:"cookie"`    // TROUPE_COOKIE of every process of the allocation
	Binary    string        `json:"binary"`    // the main binary, for the saver
	Limits    wire.Limits   `json:"limits"`
	Devices   []string      `json:"devices,omitempty"`
	Orphan    unit.Duration `json:"orphan"` // until the first renewal says otherwise
	Owner     *api.Owner    `json:"owner,omitempty"`
	// Bus is the file, of mode 0600, that says how the shim reaches the bus when its agent
	// is gone (see ReadAccess); empty: it has no voice of its own.
	Bus string `json:"bus,omitempty"`
	// Groups and Fallbacks are filled in by Launch, which probes and makes the groups
	// for the shim; without Groups the shim does so itself.
	Containment string          `json:"containment,omitempty"` // "fallback": use no cgroup
	Groups      *process.Groups `json:"groups,omitempty"`
	Fallbacks   []string        `json:"fallbacks,omitempty"`
	Warm        *WarmConfig     `json:"warm,omitempty"`
}

// AgentMessage is what the agent sends to <socketDir>/agent.sock.
type AgentMessage struct {
	Type string `json:"type"` // hello, renew, start, stop, disown, verdict, verified, propose, end, ack, status, stacks, fault
	V    int    `json:"v,omitempty"`
	// renew: the lease runs from SentAt (CLOCK_BOOTTIME, ns, when the heartbeat was sent).
	SentAt int64         `json:"sentAt,omitempty"`
	Lease  unit.Duration `json:"lease,omitempty"`
	Orphan unit.Duration `json:"orphan,omitempty"`
	Class  wire.Class    `json:"class,omitempty"`
	// start: run this attempt; ranks of an older generation are killed first, an
	// older or equal generation than the newest seen is ignored (P3).
	Attempt *wire.AttemptSpec `json:"attempt,omitempty"`
	Env     []string          `json:"env,omitempty"` // the launch environment, NAME=value
	// CPUs of a start: the list that each rank is bound to, by its place in Attempt.Ranks, as
	// the kernel writes lists; empty: none is bound.
	CPUs []string `json:"cpus,omitempty"`
	// Failure of a start: the agent cannot hand the attempt over and says why. Attempt
	// then holds no more than its number and generation; nothing runs, and the generation
	// is used up with EventStartFailed, since only the shim numbers events.
	Failure string `json:"failure,omitempty"`
	// Dropped, of a start: the attempt was to end before it could begin. Nothing runs, and
	// the generation is used up with EventEnded.
	Dropped string `json:"dropped,omitempty"`
	// stop: end all ranks. end: stop at once, then leave (last words: EventGone).
	Stop *wire.StopOrder `json:"stop,omitempty"`
	// verdict of a prepared step.
	Verdict *wire.Verdict `json:"verdict,omitempty"`
	// fault: harm a rank of the current generation on purpose.
	Fault *wire.Fault `json:"fault,omitempty"`
	// signal: send it to main processes of the current generation.
	Signal *wire.Signal `json:"signal,omitempty"`
	// propose: the newest proposal to the ranks of Generation.
	Proposal   *wire.Proposal `json:"proposal,omitempty"`
	Generation uint64         `json:"gen,omitempty"`
	// ack: events up to Seq are in the log.
	Seq uint64 `json:"seq,omitempty"`
	// stacks: where does every rank stand? The answer carries the same number.
	Ask uint64 `json:"ask,omitempty"`
}

// ShimMessage is what the shim sends to the agent; every connection starts with a
// status, then all unacknowledged events in order, then what happens.
type ShimMessage struct {
	Type     string            `json:"type"` // status, event, prepared, stacks
	V        int               `json:"v,omitempty"`
	PID      int               `json:"pid,omitempty"`
	Status   *wire.AllocStatus `json:"status,omitempty"`
	Event    *wire.AllocEvent  `json:"event,omitempty"`
	Prepared *wire.Prepared    `json:"prepared,omitempty"`
	// Until is the CLOCK_BOOTTIME, ns, at which the shim ends its ranks if nothing is
	// renewed; an agent that sees it pass enforces it.
	Until int64 `json:"until,omitempty"`
	// stacks answers the question of that number.
	Ask    uint64           `json:"ask,omitempty"`
	Stacks []wire.RankStack `json:"stacks,omitempty"`
}
