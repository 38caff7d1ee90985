package wire

import "github.com/troupe-runtime/troupe/runtime/unit"

// HeadShim is where a shim whose agent is gone speaks for itself: + node;
// ShimCall → ShimAck.
const HeadShim = "head.shim."

// NodeSteps is where a node tells the newest steps of its ranks at once; nothing →
// StepsNow.
func NodeSteps(node string) string { return "n." + node + ".steps" }

// AllocTerms are the terms of one allocation, told with each acknowledgement.
type AllocTerms struct {
	ID    string `json:"id"`
	Class Class  `json:"class"`
	// Lease of this allocation; 0: that of the acknowledgement.
	Lease unit.Duration `json:"lease,omitempty"`
}

// Bounds of the events in one ShimCall.
const (
	MaxCallEvents = 64
	MaxCallBytes  = 256 << 10
	// MaxCallPrepared bounds the prepared steps of one call, in bytes, and MaxErrands the
	// tasks that one answer names.
	MaxCallPrepared = 1 << 20
	MaxErrands      = 4
)

// ShimCall is what a shim says once a second while nobody speaks for it.
type ShimCall struct {
	Alloc string `json:"alloc"`
	Job   string `json:"job"`
	Boot  string `json:"boot"` // id of the node's boot
	// Sent is CLOCK_BOOTTIME, ns, when it was sent: it orders the calls of one allocation
	// within a boot, so that one which was long on its way is known as old.
	Sent int64 `json:"sent"`
	// Nonce is that of the newest acknowledgement; empty before the first. A leader that
	// did not make it answers Again: a message recorded elsewhere is no sign of life.
	Nonce      string     `json:"nonce,omitempty"`
	Generation uint64     `json:"gen"`
	State      AllocState `json:"state"`
	Steps      []RankStep `json:"steps,omitempty"`
	// Events that are not acknowledged, oldest first, at most MaxCallEvents: what the
	// agent would have reported.
	Events []AllocEvent `json:"events,omitempty"`
	// Answers of this generation's ranks to the newest proposal, as in AllocStatus.
	Answers []RankAnswer `json:"answers,omitempty"`
	// Prepared are steps whose verdict is not known here: each again after a while.
	Prepared []Prepared `json:"prepared,omitempty"`
	// Done are the tasks of earlier answers that are done, each until no answer names it.
	Done []TaskReply `json:"done,omitempty"`
}

// ShimAck answers a ShimCall after leadership was verified. It is a shim's only source of
// orders while its agent is gone; an older one than the newest Position seen is ignored.
type ShimAck struct {
	Sent     int64    `json:"sent"` // of the call
	Nonce    string   `json:"nonce"`
	Again    bool     `json:"again,omitempty"` // call again with Nonce, at once; nothing else counts
	Position Position `json:"pos"`
	Life     string   `json:"life"`
	// Lease and Orphan run from the moment the call was sent; 0: nothing is renewed.
	Lease  unit.Duration `json:"lease,omitempty"`
	Orphan unit.Duration `json:"orphan,omitempty"`
	Class  Class         `json:"class,omitempty"`
	Acked  uint64        `json:"acked,omitempty"` // events up to it are in the log
	// Over: what runs of this generation or an older one ends: after Grace, quietly.
	Over  uint64        `json:"over,omitempty"`
	Grace unit.Duration `json:"grace,omitempty"`
	Stop  *StopOrder    `json:"stop,omitempty"`
	End   bool          `json:"end,omitempty"` // the allocation is not wanted: end all and leave
	// Proposal is the newest to the ranks of Generation, the call's, decided or not.
	Proposal   *Proposal `json:"proposal,omitempty"`
	Generation uint64    `json:"gen,omitempty"`
	// Verdicts on the steps that the call says are prepared.
	Verdicts []Verdict `json:"verdicts,omitempty"`
	// Verified: every share of the step that this generation restores is whole.
	Verified uint64 `json:"verified,omitempty"`
	// Tasks on the run's store that nobody else can do: small writes alone.
	Tasks []Task `json:"tasks,omitempty"`
	// Soon is when to call again; 0: a second later, as ever.
	Soon unit.Duration `json:"soon,omitempty"`
}

// StepsNow is what runs on a node at this moment.
type StepsNow struct {
	Allocs []AllocStatus `json:"allocs"`
}
