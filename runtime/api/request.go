package api

import (
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// StopRequest is the optional body of POST /api/v1/jobs/{id}/stop.
type StopRequest struct {
	// Grace between TERM and KILL; nil: the job's shutdown timeout.
	Grace  *unit.Duration `json:"grace,omitempty"`
	Reason string         `json:"reason,omitempty"` // goes into the event; at most 200 bytes
	// Checkpoint: "wait" lets the ranks agree on a step and save it first; "skip" and the
	// empty word do not.
	Checkpoint string `json:"checkpoint,omitempty"`
	// Deadline of that wait, after which the job is ended all the same; nil: none.
	Deadline *unit.Duration `json:"deadline,omitempty"`
}

// KillRequest is the optional body of POST /api/v1/actors/{id}/kill.
type KillRequest struct {
	Restart bool `json:"restart,omitempty"` // let the actor restart if it may
}

// SignInCode opens the page once, within a minute.
type SignInCode struct {
	URL     string    `json:"url"`  // absolute, by the host name of the request
	Path    string    `json:"path"` // the same below whatever address leads to the head
	Expires time.Time `json:"expires"`
}

// Names of headers that clients read or send besides the usual ones.
const (
	HeaderIndex          = "X-Troupe-Index"  // Raft index that the answer is at least as new as
	HeaderRequestID      = "X-Request-Id"    // names the request in the head's log
	HeaderIdempotencyKey = "Idempotency-Key" // 1 to 128 printable ASCII characters
	// HeaderIdempotencyAge is how long ago ("12s") the request was first sent under its
	// key; an age and not a time, because clocks differ.
	HeaderIdempotencyAge = "Idempotency-Age"
	HeaderLogStart       = "X-Log-Start" // offset of the first byte of the body
	HeaderLogSize        = "X-Log-Size"  // bytes written so far
	HeaderLogEnd         = "X-Log-End"   // true: nothing will come after X-Log-Size
)
