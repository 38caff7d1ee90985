// Package schedule decides which waiting placement groups get which nodes and
// devices. It is a pure function: an immutable snapshot and a time go in, decisions
// with reasons come out. The head's loop, `why`, and every simulation call the same
// one. It knows no state machine, no network, no clock and no process.
package schedule

import (
	"slices"
	"time"

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
	// What it was asked for, nil for what is not known to the scheduler, and since when it
	// runs; Ends is when it is expected to have ended, zero: not known.
	Spec    *api.GroupSpec
	User    string
	Seq     uint64
	Started time.Time
	Ends    time.Time
	// Committed is when it last committed a step (zero: never), Restart what starting it
	// again costs, Evictions how often it was preempted.
	Committed time.Time
	Restart   time.Duration
	Evictions int64
	// SaveCost is how long saving on demand takes; 0: it cannot.
	SaveCost time.Duration
	// Sizes it may run with, in bundles; nil: one. Bundles then stand in the order in which
	// they are given up, the last first.
	Sizes *api.Sizes
	// Sized is since when it runs with its size; zero: it does not run, or is ending.
	Sized time.Time
	// Lent is planned for it, should it lose a node; what it may preempt uses it meanwhile.
	Lent []api.Placed
	// Lacks are the bundles that it asked for and was placed without, as its roles allow.
	Lacks []Lacking
	// Fixed: it cannot leave in order, since other jobs run in it.
	Fixed bool
	// LeavingFor: it has been told to leave, for this group; Keeps is how many bundles it
	// goes on with then.
	LeavingFor string
	Keeps      int64
	// Bundles is what the group holds where, if the caller knows it: reasons can then
	// prove which groups must end before a request fits. Without it they only name them.
	Bundles []Held
}

// Lacking is a bundle of a placed group that it does not hold, by its number.
type Lacking struct {
	Number int64
	Bundle api.Bundle
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
	User string // who asked, for fair use and for reasons
	Spec api.GroupSpec
	// Seq is the log index of the submission: seniority, kept across re-placements.
	Seq uint64
	// Since is when it began to wait, for ageing and for its longest wait; zero: not known.
	Since time.Time
	// Expect is how long it is expected to run once started; 0: not known.
	Expect time.Duration
	// Evictions counts how often it was preempted.
	Evictions int64
	// Claim is what it gets once the groups of Leaving have left; see Eviction.
	Claim   []api.Placed
	Leaving []string
	// Former is what it held, as far as that is still well, before it lost the rest; until
	// FormerUntil that is planned for it.
	Former      []api.Placed
	FormerUntil time.Time
	// Keep lists nodes to prefer (the nodes of a gang that is re-placed after a loss).
	Keep []string
	// Avoid are nodes, by id, that the request does not take, with the reason; nil: none.
	Avoid map[string]string
}

// Queues is the tree of tenants and queues with what they have used, decayed.
type Queues struct {
	List []*api.Queue
	// Used is the decayed use of each, by name, in GPU-seconds of the reference device
	// times 1000: integers, so that a small use over a long half-life is not lost.
	Used map[string]int64
}

// Snapshot is everything a cycle looks at. Plan must not change it, and neither may the
// caller afterwards: what is unchanged from one snapshot to the next is handed over as the
// same pointer, by which a Planner knows what it need not look at again.
type Snapshot struct {
	Nodes        []*Node
	Pending      []*Request
	Holders      []*Holder
	Queues       *Queues // nil: one queue without limits
	Levels       []api.Level
	Links        []*api.Link
	Capacities   []*api.Capacity
	Reservations []*api.Reservation
	// Lost is what preemption lost within the last hour, in GPU-milliseconds.
	Lost int64
	// Mix is what is expected to be asked for next, see MixOf; nil: what waits and what is
	// placed.
	Mix    []Shape
	Policy Policy
}

// Shape is one kind of bundle that is asked for, and how often beside the others.
type Shape = api.Shape

// Own replaces node i by a copy that the caller may change.
func (s *Snapshot) Own(i int) *Node {
	n := *s.Nodes[i]
	n.GPUs = slices.Clone(n.GPUs)
	s.Nodes[i] = &n
	return &n
}

// Policy is what an operator may set. The zero value is the shipped default.
type Policy struct {
	// Order of requests within a queue that names none: fair, fifo, short or deadline.
	Order string
	// NoBackfill: what waits holds up everything behind it.
	NoBackfill bool
	// NoPreempt: nothing is ended for anything else.
	NoPreempt bool
	// Protect is how long work that has just started is left alone; 0: the default. MaxLost
	// is how many GPU-hours preemption may lose in an hour; 0: no limit.
	Protect time.Duration
	MaxLost int64
	// GrowAfter is how long a group runs with one size before it may grow; 0: the default.
	GrowAfter time.Duration
	// Planned is how many waiting requests of a pool get a planned start; 0: the default.
	Planned int
	// LinkFresh is how old the word on a link may be; 0: the default.
	LinkFresh time.Duration
}

// Decision is the outcome for one waiting group: Bundles has one entry for each
// bundle in order, or is nil and Reasons says why it waits and what would free it.
type Decision struct {
	Group   string
	Bundles []api.Placed
	// Chosen are the indices of the bundles that Bundles places, ascending, where it is
	// fewer than all (see api.Role); nil: all.
	Chosen  []int64
	Reasons []api.Reason
	// Start is when it is planned to start; zero: not planned, or starts now.
	Start time.Time
}

// Eviction makes room for a waiting group, with the proof behind it: once all victims have
// left, it fits exactly where Claim says.
type Eviction struct {
	Preemptor string
	Claim     []api.Placed
	Victims   []Victim
}

// Victim is a group that is to leave or, with Keeps, to go on with so many bundles.
type Victim struct {
	Group string
	Name  string
	Keeps int64
	Why   string
	Lost  int64 // work that is lost, in GPU-milliseconds
}

// Unclaim is a claim that cannot come true any more.
type Unclaim struct {
	Group string
	Why   string
}
