// Package schedule decides which waiting placement groups get which nodes and
// devices. It is a pure function: an immutable snapshot and a time go in, decisions
// with reasons come out. The head's loop, `why`, and every simulation call the same
// one. It knows no state machine, no network, no clock and no process.
package schedule

import (
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// GPU is one device of a node as the scheduler sees it.
type GPU struct {
	UUID    string
	Model   string
	Usable  unit.Bytes // total less headroom
	Free    unit.Bytes // usable memory that no bundle holds
	Share   int64      // thousandths that no bundle holds; 1000 when untouched
	Healthy bool       // an unhealthy device is offered to nobody
	Why     string     // why not healthy, for reasons; may be empty
}

// Node is one machine.
type Node struct {
	ID     string
	Name   string
	Ready  bool   // false: takes nothing new
	Why    string // why not ready, for reasons
	Labels map[string]string
	Pool   string        // a request without a pool may use any node
	CPU    unit.MilliCPU // capacity
	Memory unit.Bytes
	// FreeCPU and FreeMemory are what no bundle holds; a bundle that is being
	// released still holds (P2).
	FreeCPU    unit.MilliCPU
	FreeMemory unit.Bytes
	GPUs       []GPU
}

// Holder is a placed group, named in reasons as a blocker.
type Holder struct {
	Group     string
	Name      string // job or group name for people
	Nodes     []string
	Releasing bool
	CPU       unit.MilliCPU
	Memory    unit.Bytes
	GPUs      int64
	// Bundles is what the group holds where, if the caller knows it: reasons can then
	// prove which groups must end before a request fits. Without it they only name them.
	Bundles []Held
}

// Held is one bundle of a placed group: what it holds on which node. Devices are the
// UUIDs of its GPUs; Share and GPUMemory are what it holds of the one device of a share.
type Held struct {
	Node      string
	CPU       unit.MilliCPU
	Memory    unit.Bytes
	Devices   []string
	Share     int64
	GPUMemory unit.Bytes
}

// Request is one waiting placement group.
type Request struct {
	ID   string
	Name string
	Spec api.GroupSpec
	// Seq is the log index of the submission: seniority, kept across re-placements.
	Seq uint64
	// Keep lists nodes to prefer (the nodes of a gang that is re-placed after a loss).
	Keep []string
	// Avoid are nodes, by id, that the request does not take, with the reason; nil: none.
	Avoid map[string]string
}

// Snapshot is everything a cycle looks at. Plan must not change it.
type Snapshot struct {
	Nodes   []Node
	Pending []Request
	Holders []Holder
}

// Decision is the outcome for one waiting group: Bundles has one entry for each
// bundle in order, or is nil and Reasons says why it waits and what would free it.
type Decision struct {
	Group   string
	Bundles []api.Placed
	Reasons []api.Reason
}
