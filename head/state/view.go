package state

import (
	"fmt"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// View is the state at one index. It never changes; records are shared, read only.
type View struct {
	records records
	index   uint64
	term    uint64
	store   *Store // that it is of; nil: it is not one that others change
}

// Index is the Raft index that the view stands at.
func (v *View) Index() uint64 { return v.index }

// Term is the term of the entry at Index.
func (v *View) Term() uint64 { return v.term }

// Meta is the cluster's record, or an empty one before the cluster was created.
func (v *View) Meta() Meta {
	if m := first[Meta](v.records, tMeta, "id", "meta"); m != nil {
		return *m
	}
	return Meta{}
}

// Node by id; nil when unknown.
func (v *View) Node(id string) *Node { return first[Node](v.records, tNode, "id", id) }

// Nodes in order of id.
func (v *View) Nodes() []*Node { return all[Node](v.records, tNode, "id") }

// Group by id; nil when unknown.
func (v *View) Group(id string) *Group { return first[Group](v.records, tGroup, "id", id) }

// Groups in order of id, removed ones included while they are kept.
func (v *View) Groups() []*Group { return all[Group](v.records, tGroup, "id") }

// Job by id; nil when unknown.
func (v *View) Job(id string) *Job { return first[Job](v.records, tJob, "id", id) }

// Jobs from the oldest submission to the newest.
func (v *View) Jobs() []*Job { return all[Job](v.records, tJob, "seq") }

// LiveJobs lists the jobs that are not terminal, in order of id.
func (v *View) LiveJobs() []*Job { return all[Job](v.records, tJob, "live", true) }

// PendingGroups lists the groups that wait, in order of id.
func (v *View) PendingGroups() []*Group { return all[Group](v.records, tGroup, "pending", true) }

// Claims lists the groups that have a claim, in order of id.
func (v *View) Claims() []*Group { return all[Group](v.records, tGroup, "claims", true) }

// OpenCheckpoints lists those with file work left: a mark to write, files to delete.
func (v *View) OpenCheckpoints() []*Checkpoint {
	return all[Checkpoint](v.records, tCheckpoint, "open", true)
}

// JobsOf lists the jobs that run in a group.
func (v *View) JobsOf(group string) []*Job { return all[Job](v.records, tJob, "group", group) }

// Hold by id; nil when freed.
func (v *View) Hold(id string) *Hold { return first[Hold](v.records, tHold, "id", id) }

// Holds in order of id.
func (v *View) Holds() []*Hold { return all[Hold](v.records, tHold, "id") }

// HoldsOn lists what is charged to a node.
func (v *View) HoldsOn(node string) []*Hold { return all[Hold](v.records, tHold, "node", node) }

// HoldsOf lists what a group holds, released or not.
func (v *View) HoldsOf(group string) []*Hold { return all[Hold](v.records, tHold, "group", group) }

// Alloc by id; nil when unknown.
func (v *View) Alloc(id string) *Alloc { return first[Alloc](v.records, tAlloc, "id", id) }

// AllocsOn lists the allocations of a node.
func (v *View) AllocsOn(node string) []*Alloc { return all[Alloc](v.records, tAlloc, "node", node) }

// AllocsIn lists the allocations in a group.
func (v *View) AllocsIn(group string) []*Alloc { return all[Alloc](v.records, tAlloc, "group", group) }

// AllocsOf lists the allocations of a job.
func (v *View) AllocsOf(job string) []*Alloc { return all[Alloc](v.records, tAlloc, "job", job) }

// Run by name; nil when unknown.
func (v *View) Run(name string) *Run { return first[Run](v.records, tRun, "id", name) }

// Runs in order of name.
func (v *View) Runs() []*Run { return all[Run](v.records, tRun, "id") }

// Checkpoint by id; nil when unknown.
func (v *View) Checkpoint(id string) *Checkpoint {
	return first[Checkpoint](v.records, tCheckpoint, "id", id)
}

// Checkpoints of a run, by generation and step; of every run when run is empty.
func (v *View) Checkpoints(run string) []*Checkpoint {
	if run == "" {
		return all[Checkpoint](v.records, tCheckpoint, "id")
	}
	return all[Checkpoint](v.records, tCheckpoint, "run", run)
}

// Events after seq, oldest first, at most limit; gone when events after seq were
// dropped already.
func (v *View) Events(after uint64, limit int) (events []*Event, gone bool) {
	v.records.after(tEvent, "id", after+1, func(rec any) bool {
		if e, ok := rec.(*Event); ok && len(events) < limit {
			events = append(events, e)
		}
		return len(events) < limit
	})
	if oldest := first[Event](v.records, tEvent, "id"); oldest != nil && after+1 < oldest.Seq {
		gone = true
	}
	return events, gone
}

// RecentEvents of one object ("job/x"), or of all when object is empty: the newest
// limit ones, oldest first.
func (v *View) RecentEvents(object string, limit int) []*Event {
	var out []*Event
	v.records.back(tEvent, "id", func(rec any) bool {
		if e, ok := rec.(*Event); ok && len(out) < limit && (object == "" || e.Object == object) {
			out = append(out, e)
		}
		return len(out) < limit
	})
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}

// Token by hash; nil when unknown.
func (v *View) Token(hash string) *Token { return first[Token](v.records, tToken, "id", hash) }

// Tokens in order of hash.
func (v *View) Tokens() []*Token { return all[Token](v.records, tToken, "id") }

// Key returns what a request with an idempotency key led to; nil when unknown.
func (v *View) Key(key string) *Idempotency { return first[Idempotency](v.records, tIdem, "id", key) }

// ActorNamed finds the live actor of a name; nil when there is none.
func (v *View) ActorNamed(namespace, name string) *Job {
	for _, j := range v.LiveJobs() {
		if a := j.Spec.Actor; a != nil && !j.State.Terminal() && a.Name == name && a.Namespace == namespace {
			return j
		}
	}
	return nil
}

// Resolve finds a job by id or unique prefix of it; the error lists candidates.
func (v *View) Resolve(id string) (*Job, error) {
	if j := v.Job(id); j != nil {
		return j, nil
	}
	var found []*Job
	if id != "" {
		for _, j := range v.Jobs() {
			if strings.HasPrefix(j.ID, id) || strings.EqualFold(j.ULID, id) {
				found = append(found, j)
			}
		}
	}
	switch len(found) {
	case 0:
		return nil, &Refused{Code: "not-found", Text: fmt.Sprintf("no job %q", id)}
	case 1:
		return found[0], nil
	}
	names := make([]string, 0, len(found))
	for _, j := range found {
		names = append(names, j.ID)
	}
	return nil, &Refused{Code: "ambiguous", Text: fmt.Sprintf("%q matches %s", id, strings.Join(names, ", "))}
}

// NewestCommitted is the step that a new attempt restores: the highest generation,
// then the highest step, of those committed and not rolled back; nil for none.
func (v *View) NewestCommitted(run string) *Checkpoint {
	var newest *Checkpoint
	for _, c := range v.Checkpoints(run) {
		if c.State == CheckpointCommitted && (newest == nil || c.Generation > newest.Generation ||
			c.Generation == newest.Generation && c.Step > newest.Step) {
			newest = c
		}
	}
	return newest
}

// Last returns the newest attempt, or nil before the first.
func (j *Job) Last() *Attempt {
	if len(j.Attempts) == 0 {
		return nil
	}
	return &j.Attempts[len(j.Attempts)-1]
}

// Run is the name that owns the job's checkpoints.
func (j *Job) Run() string { return RunName(j.Spec) }

// RunName is the run of a spec: Run, or the job's name.
func RunName(s api.JobSpec) string {
	if s.Run != "" {
		return s.Run
	}
	return s.Name
}
