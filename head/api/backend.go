package api

import (
	"context"
	"io"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Idempotency is a request's key and fingerprint; an empty key means none.
type Idempotency struct {
	Key         string
	Fingerprint string
	FirstSent   time.Time // when the client first sent it; zero: now
}

// Made is the outcome of a creation. Previously is set when an earlier request with
// the same key made it.
type Made struct {
	ID         string
	Previously time.Time
	Index      uint64
}

// Backend is what handlers need of the head; errors are *api.Problem where a caller
// can act, anything else becomes a 500 with a request id.
type Backend interface {
	// Reads. Ids accept a unique prefix; `@last` is resolved by the client.
	Status(ctx context.Context) (api.Status, error)
	Jobs(ctx context.Context) ([]api.Job, uint64, error) // newest first, with the Raft index
	Job(ctx context.Context, id string) (api.Job, error)
	Groups(ctx context.Context) ([]api.Group, uint64, error)
	Group(ctx context.Context, id string) (api.Group, error)
	Nodes(ctx context.Context) ([]api.Node, uint64, error)
	Actors(ctx context.Context) ([]api.Actor, uint64, error)
	Actor(ctx context.Context, id string) (api.Actor, error) // id or namespace/name
	Checkpoints(ctx context.Context, run string) ([]api.Checkpoint, uint64, error)
	// Saving says how often a run saves, by its name or by the id of a job of it; nil where
	// the script decides, or nothing is known of it.
	Saving(ctx context.Context, run string) *api.SavingPlan
	// Events after seq, oldest first, at most limit; object "" is all. gone reports
	// that events after seq were already dropped.
	Events(ctx context.Context, after uint64, object string, limit int) (events []api.Event, gone bool, err error)
	// LastEvents are the newest limit events of object, oldest first; object "" is all.
	LastEvents(ctx context.Context, object string, limit int) ([]api.Event, error)
	// Changed returns a channel that closes at the next change of the state.
	Changed() <-chan struct{}
	// JobChanged and GroupChanged return a channel that closes once the record is another
	// one: who waits for one thing is not woken by every other.
	JobChanged(id string) <-chan struct{}
	GroupChanged(id string) <-chan struct{}
	Index() uint64
	// Why explains a thing; each of whatIf is one change of a request that waits to look
	// into, as ranks=8, or "any" for each of its constraints dropped by itself.
	Why(ctx context.Context, target string, whatIf ...string) (api.Why, error)
	// ReadLog reads one rank's output of one attempt. A problem that is Retryable means
	// that there is nothing yet (the rank has not started, the node is away for now).
	ReadLog(ctx context.Context, job string, rank, attempt int64, stream string, offset, limit int64) (wire.LogChunk, error)

	// Goodput, History and Failures tell what became of one job's time and attempts.
	Goodput(ctx context.Context, job string) (api.Goodput, error)
	History(ctx context.Context, job string) ([]api.History, uint64, error)
	Failures(ctx context.Context, job string) ([]api.FailureRow, uint64, error)
	// Stacks asks every rank of a job's live attempt where it stands.
	Stacks(ctx context.Context, job string) (api.Stacks, error)
	// Measures is what /metrics tells.
	Measures(ctx context.Context) (Measures, error)

	QueueBackend

	// Writes.
	Submit(ctx context.Context, spec api.JobSpec, key Idempotency) (Made, error)
	// Stop with a grace of 0 takes the job's own; whoever wants none gives a nanosecond.
	// It returns when processes are gone wherever a node can be reached (P11);
	// unreachable nodes are named in the problem's detail (exit 74).
	Stop(ctx context.Context, job string, grace time.Duration, reason string) (api.Job, error)
	// StopSaved lets the ranks agree on a step and save it first; a deadline of 0 is none.
	StopSaved(ctx context.Context, job string, deadline time.Duration, reason string) (api.Job, error)
	// Scale asks for another number of ranks; it returns at once.
	Scale(ctx context.Context, job string, ranks int64, reason string) (api.Job, error)
	// DrainNode and UncordonNode take a node's id and return at once.
	DrainNode(ctx context.Context, id string, drain bool, deadline time.Duration, reason string) (api.Node, error)
	UncordonNode(ctx context.Context, id string) (api.Node, error)
	// Disown lets a job go on when the process that owns it ends.
	Disown(ctx context.Context, job string) (api.Job, error)
	// InjectFault harms a running job on purpose and says what was done.
	InjectFault(ctx context.Context, job string, req api.FaultRequest) (api.FaultResult, error)
	// Signal sends a signal to the main processes of a running job's ranks.
	Signal(ctx context.Context, job string, r api.SignalRequest) (api.SignalResult, error)
	CreateGroup(ctx context.Context, spec api.GroupSpec, key Idempotency) (Made, error)
	RemoveGroup(ctx context.Context, id string) (api.Group, error)
	Verify(ctx context.Context, run string, step int64) (api.VerifyResult, error)
	// Of steps: generation 0 means the one that stands.
	Checkpoint(ctx context.Context, run string, step int64, generation uint64) (api.CheckpointDetail, error)
	PinCheckpoint(ctx context.Context, run string, step int64, generation uint64, pinned bool) (api.Checkpoint, error)
	RemoveCheckpoint(ctx context.Context, run string, step int64, generation uint64) (api.Checkpoint, error)
	ExportCheckpoint(ctx context.Context, run string, step int64, generation uint64, req api.ExportRequest) (api.ExportResult, error)
	// Adopt takes the committed steps of a store's folder of a run into the records.
	Adopt(ctx context.Context, run, store string) (api.AdoptResult, error)
	CollectGarbage(ctx context.Context, run string) (api.GCResult, error)
	Lineage(ctx context.Context, run string) (api.Lineage, error)
	KillActor(ctx context.Context, id string, restart bool) (api.Actor, error)
	BusAccess(ctx context.Context) (api.BusAccess, error)

	// Package says whether a package is here; PutPackage keeps one of size bytes.
	Package(ctx context.Context, hash string) (api.Package, error)
	PutPackage(ctx context.Context, hash string, size int64, body io.Reader) (api.Package, error)

	// Health.
	Version() api.Version
	Ready(ctx context.Context) error
	// TokenRole answers for a presented bearer token: role admin or viewer, or "".
	TokenRole(token string) string
}

// QueueBackend is what handlers need of tenants, queues and what else is declared, and of
// the verbs by which a job waits.
type QueueBackend interface {
	Queues(ctx context.Context) ([]api.QueueStatus, uint64, error) // by name
	// PutQueues replaces tenants and queues, as one change.
	PutQueues(ctx context.Context, r api.QueuesRequest) error
	// PauseQueue with an empty reason lets work start again.
	PauseQueue(ctx context.Context, name, reason string) error
	// QueueOrder is what waits, in its order; an empty name is all.
	QueueOrder(ctx context.Context, name string) ([]api.OrderRow, uint64, error)
	// Usage by tenant, queue or user; a zero time is the beginning.
	Usage(ctx context.Context, by string, since time.Time) ([]api.UsageRow, uint64, error)
	// Outlook says what would become of a job, and changes nothing.
	Outlook(ctx context.Context, spec api.JobSpec) (api.Outlook, error)

	Declared(ctx context.Context) (api.Declared, error)
	PutReservation(ctx context.Context, r api.ReservationRequest) error
	RemoveReservation(ctx context.Context, name string, version uint64) error
	PutCapacity(ctx context.Context, r api.CapacityRequest) error
	RemoveCapacity(ctx context.Context, name string, version uint64) error
	PutTopology(ctx context.Context, r api.TopologyRequest) error
	PutLinks(ctx context.Context, r api.LinksRequest) error

	HoldJob(ctx context.Context, job, reason string) (api.Job, error)
	ReleaseJob(ctx context.Context, job, reason string) (api.Job, error)
	// SuspendJob answers at once; a deadline of 0 waits for a checkpoint as long as it takes.
	SuspendJob(ctx context.Context, job string, deadline time.Duration, reason string) (api.Job, error)
	ResumeJob(ctx context.Context, job, reason string) (api.Job, error)
	Requeue(ctx context.Context, job string, key Idempotency) (Made, error)
	EditJob(ctx context.Context, job string, r api.EditRequest) (api.Job, error)
}
