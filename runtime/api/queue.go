package api

import (
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// LabelRule is one condition on the labels of a node. A node without the label fails
// "=" and "in" and passes "!=" and "notin".
type LabelRule struct {
	Key    string   `json:"key"`
	Op     string   `json:"op"` // =, !=, in, notin
	Values []string `json:"values"`
}

// Role is a run of consecutive bundles of a group that serve one purpose. The group may
// start with fewer of them, never with fewer than Min.
type Role struct {
	Name    string `json:"name"`
	Bundles int64  `json:"bundles"`
	Min     int64  `json:"min,omitempty" usual:"all of them"`
}

// Wishes say where and when a request is to run, beside what it needs. Groups and jobs
// have the same.
type Wishes struct {
	// Where holds for the node of every bundle.
	Where []LabelRule `json:"where,omitempty"`
	// WholeNodes: nothing else runs on the nodes of the request.
	WholeNodes bool `json:"wholeNodes,omitempty"`
	// Level is a topology level that all bundles are to share, as "rack". With LevelWait it
	// is preferred: so long the request waits for a place within one domain before it takes
	// one over several; without, it is required.
	Level     string         `json:"level,omitempty"`
	LevelWait *unit.Duration `json:"levelWait,omitempty"`
	// Uses is what each bundle takes of named capacities, as "storage" (bytes a second) or
	// a licence.
	Uses Amounts `json:"uses,omitempty"`
	// Preemptible work may be ended for more important work, and may use what is not
	// guaranteed to its tenant.
	Preemptible bool `json:"preemptible,omitempty"`
	// TimeLimit ends the job; Estimate is how long it is expected to run from its start.
	// Without either, the last runs of that name are asked, then the pool's default.
	TimeLimit unit.Duration `json:"timeLimit,omitempty"`
	Estimate  unit.Duration `json:"estimate,omitempty"`
	// Deadline is when it is to have ended, MaxWait how long it may wait: after that its
	// planned start is not moved any more.
	Deadline time.Time     `json:"deadline,omitzero"`
	MaxWait  unit.Duration `json:"maxWait,omitempty"`
	// Reservation names the reservation that it runs in.
	Reservation string `json:"reservation,omitempty"`
}

// Queue is where requests wait, and Tenant who they belong to: one tree, in which every
// node has limits and a weight. The root has the empty name and no limits.
type Queue struct {
	Name   string `json:"name"`
	Parent string `json:"parent,omitempty"`
	// Tenant marks a node that people and tokens belong to; the others are queues, which
	// have no children.
	Tenant bool `json:"tenant,omitempty"`
	// Guaranteed is its own; Limit is guaranteed and borrowed together, at most; Lend is how
	// much of what is guaranteed to it others may borrow. A resource that is missing from
	// Guaranteed is not limited by it, from Limit not limited, from Lend lent whole.
	Guaranteed Amounts `json:"guaranteed,omitempty"`
	Limit      Amounts `json:"limit,omitempty"`
	Lend       Amounts `json:"lend,omitempty"`
	// Weight is its part among its siblings; nil: 1. With 0 it comes last.
	Weight *int64 `json:"weight,omitempty"`
	// Order is how requests of a queue come one after the other: fair (default), fifo,
	// short (the shortest expected first) or deadline.
	Order string `json:"order,omitempty"`
	// MaxPriority bounds what its requests may ask for; nil: 1000.
	MaxPriority *int64 `json:"maxPriority,omitempty"`
	// MaxWait is what its requests have that name none themselves; 0: none.
	MaxWait unit.Duration `json:"maxWait,omitempty"`
	// Paused: nothing of it starts.
	Paused string `json:"paused,omitempty"` // why
	// Pools that it may use; empty: all.
	Pools []string `json:"pools,omitempty"`
	// Access are labels of data sets and models that a tenant may use, its own besides those
	// of the tenants above it; a label that no tenant names is everybody's.
	Access []string `json:"access,omitempty"`
}

// Reservation keeps nodes, or a number of them, for a time.
type Reservation struct {
	Name  string    `json:"name"`
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
	// For whom: one tenant, queue or job; all empty with Maintenance: for nobody.
	Tenant string `json:"tenant,omitempty"`
	Queue  string `json:"queue,omitempty"`
	Job    string `json:"job,omitempty"`
	// Maintenance: nothing runs there meanwhile.
	Maintenance string `json:"maintenance,omitempty"` // why
	// Nodes by name, or Count nodes of a pool (with Level: within one domain of it); a node
	// that fails is replaced by another one then.
	Nodes []string `json:"nodes,omitempty"`
	Count int64    `json:"count,omitempty"`
	Pool  string   `json:"pool,omitempty"`
	Level string   `json:"level,omitempty"`
}

// Capacity is a pool of something that can be counted and is no part of a node: the bytes
// a second of a storage path, an uplink, a licence. With Level each domain of that level
// has Total of its own.
type Capacity struct {
	Name  string `json:"name"`
	Level string `json:"level,omitempty"`
	Total int64  `json:"total"`
	// Overhead is always in use.
	Overhead int64  `json:"overhead,omitempty"`
	Unit     string `json:"unit,omitempty"` // for people, as "MiB/s"
}

// Level is one level of the topology, as zone, block or rack. Levels are declared from the
// widest to the narrowest.
type Level struct {
	Name  string `json:"name"`
	Label string `json:"label"` // the node label that names the domain
}

// Link is the health of the network between two nodes, or of one node to the rest (B
// empty). A whole-node group needs fresh healthy links.
type Link struct {
	A       string    `json:"a"`
	B       string    `json:"b,omitempty"`
	Healthy bool      `json:"healthy"`
	Why     string    `json:"why,omitempty"`
	Checked time.Time `json:"checked"`
}

// SchedulerPolicy is what an operator sets of the scheduler; what is missing is as shipped.
type SchedulerPolicy struct {
	// Order of requests in queues that name none: fair, fifo, short or deadline.
	Order string `json:"order,omitempty"`
	// NoBackfill: what waits holds up everything behind it. NoPreempt: nothing is ended for
	// anything else.
	NoBackfill bool `json:"noBackfill,omitempty"`
	NoPreempt  bool `json:"noPreempt,omitempty"`
	// Protect is how long work that has just started is not preempted; default 1m. MaxLost
	// is how many GPU-hours preemption may lose in an hour; 0: no limit.
	Protect *unit.Duration `json:"protect,omitempty"`
	MaxLost int64          `json:"maxLost,omitempty"`
	// GrowAfter is how long an elastic job runs with one size before it may grow; default 5m.
	GrowAfter *unit.Duration `json:"growAfter,omitempty"`
	// LinkFresh is how old the word on a link may be. Replacement is how long
	// the place of a gang that lost a part of it is kept for it; default 10m.
	LinkFresh   unit.Duration  `json:"linkFresh,omitempty" usual:"10m"`
	Replacement *unit.Duration `json:"replacement,omitempty"`
}
