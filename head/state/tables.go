package state

import (
	"fmt"

	"github.com/hashicorp/go-memdb"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Tables. Ids are ASCII, so memdb's byte order is the order of every iteration and
// equal on all heads.
const (
	tMeta       = "meta"
	tNode       = "node"
	tGroup      = "group"
	tHold       = "hold"
	tAlloc      = "alloc"
	tJob        = "job"
	tRun        = "run"
	tCheckpoint = "checkpoint"
	tEvent      = "event"
	tIdem       = "idem"
	tToken      = "token"

	tQueue       = "queue"
	tAccount     = "account"
	tReservation = "reservation"
	tCapacity    = "capacity"
	tLink        = "link"
	tSettings    = "settings"
	tPast        = "past"
)

func stringID(field string) *memdb.IndexSchema {
	return &memdb.IndexSchema{Name: "id", Unique: true, Indexer: &memdb.StringFieldIndex{Field: field}}
}

func by(name, field string, missing bool) *memdb.IndexSchema {
	return &memdb.IndexSchema{Name: name, AllowMissing: missing, Indexer: &memdb.StringFieldIndex{Field: field}}
}

// when indexes the records for which f holds, so that a loop over what is live does
// not walk the history.
func when[T any](name string, f func(*T) bool) *memdb.IndexSchema {
	return &memdb.IndexSchema{Name: name, Indexer: &memdb.ConditionalIndex{Conditional: func(obj any) (bool, error) {
		rec, ok := obj.(*T)
		return ok && f(rec), nil
	}}}
}

func table(name string, indexes ...*memdb.IndexSchema) *memdb.TableSchema {
	t := &memdb.TableSchema{Name: name, Indexes: map[string]*memdb.IndexSchema{}}
	for _, ix := range indexes {
		t.Indexes[ix.Name] = ix
	}
	return t
}

// schema describes every table; one file of records, one line here.
func schema() *memdb.DBSchema {
	seq := func(field string, name string) *memdb.IndexSchema {
		return &memdb.IndexSchema{Name: name, Unique: true, Indexer: &memdb.UintFieldIndex{Field: field}}
	}
	s := &memdb.DBSchema{Tables: map[string]*memdb.TableSchema{}}
	for _, t := range []*memdb.TableSchema{
		table(tMeta, stringID("ID")),
		table(tNode, stringID("ID")),
		table(tGroup, stringID("ID"), when("pending", func(g *Group) bool { return g.State == api.GroupPending && g.Parked == "" }), when("claims", func(g *Group) bool { return len(g.Claim) > 0 })),
		table(tHold, stringID("ID"), by("group", "Group", false), by("node", "Node", false)),
		table(tAlloc, stringID("ID"), by("job", "Job", false), by("node", "Node", false), by("group", "Group", false)),
		table(tJob, stringID("ID"), seq("Seq", "seq"), by("group", "Group", true),
			when("live", func(j *Job) bool { return !j.State.Terminal() })),
		table(tRun, stringID("Name")),
		table(tCheckpoint, stringID("ID"), by("run", "Run", false),
			when("open", func(c *Checkpoint) bool { return !c.Marked || c.State == CheckpointDeleting })),
		table(tEvent, seq("Seq", "id")),
		table(tIdem, stringID("Key"), seq("Seq", "seq")),
		table(tToken, stringID("Hash")),
		table(tQueue, stringID("Name")),
		table(tAccount, stringID("ID")),
		table(tReservation, stringID("Name")),
		table(tCapacity, stringID("Name")),
		table(tLink, stringID("ID")),
		table(tSettings, stringID("ID")),
		table(tPast, stringID("ID"), seq("Seq", "seq")),
	} {
		s.Tables[t.Name] = t
	}
	return s
}

func newDB() (*memdb.MemDB, error) {
	db, err := memdb.NewMemDB(schema())
	if err != nil {
		return nil, fmt.Errorf("state: schema: %w", err)
	}
	return db, nil
}

// first reads one record of a table by an index; the zero pointer when absent.
func first[T any](txn *memdb.Txn, table, index string, args ...any) *T {
	raw, err := txn.First(table, index, args...)
	if err != nil || raw == nil {
		return nil
	}
	rec, _ := raw.(*T)
	return rec
}

// all reads the records of a table in the order of an index.
func all[T any](txn *memdb.Txn, table, index string, args ...any) []*T {
	it, err := txn.Get(table, index, args...)
	if err != nil {
		return nil
	}
	var out []*T
	for raw := it.Next(); raw != nil; raw = it.Next() {
		if rec, ok := raw.(*T); ok {
			out = append(out, rec)
		}
	}
	return out
}
