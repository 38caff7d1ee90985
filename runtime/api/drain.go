package api

import (
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Cordon keeps new work off a node; with Drain what runs there leaves.
type Cordon struct {
	Drain    bool           `json:"drain,omitempty"`
	Drained  bool           `json:"drained,omitempty"` // nothing is charged to the node any more
	Reason   string         `json:"reason,omitempty"`
	Since    time.Time      `json:"since"`
	Deadline time.Time      `json:"deadline,omitzero"` // then what is left is ended by force
	Jobs     []DrainingWork `json:"jobs,omitempty"`    // what is still there
	// Notice: the node's own agent said that the node is about to be taken away.
	Notice *Notice `json:"notice,omitempty"`
}

// Notice says that a spot or preemptible node is about to be taken away.
type Notice struct {
	Reason   string    `json:"reason"`
	Since    time.Time `json:"since"`
	Deadline time.Time `json:"deadline"` // then the node may be gone
}

// DrainingWork is something that has not left a drained node yet.
type DrainingWork struct {
	Job   string `json:"job,omitempty"` // empty: a placement group without a job
	Group string `json:"placementGroup"`
	Waits string `json:"waitsFor"` // in words
}

// Word says in one word how a cordon stands.
func (c *Cordon) Word() string {
	switch {
	case c == nil:
		return ""
	case c.Drained:
		return "drained"
	case c.Drain:
		return "draining"
	}
	return "cordoned"
}

// DrainRequest is the optional body of POST /api/v1/nodes/{id}/drain and /cordon.
type DrainRequest struct {
	// Deadline after which jobs that have not left are ended by force; nil: never. Not for
	// a cordon.
	Deadline *unit.Duration `json:"deadline,omitempty"`
	Reason   string         `json:"reason,omitempty"` // at most 200 bytes
}

// ScaleRequest is the body of POST /api/v1/jobs/{id}/scale.
type ScaleRequest struct {
	Ranks  int64  `json:"ranks"`
	Reason string `json:"reason,omitempty"` // at most 200 bytes
}
