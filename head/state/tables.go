package state

import (
	"github.com/troupe-runtime/troupe/runtime/api"
)

// Tables. Ids are ASCII, so the byte order of keys is the order of every iteration and
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
	tShape       = "shape"
)

// table is one kind of record. Its first index is that of the ids, which every record has.
type table struct {
	name    string
	indexes []index
}

func tableOf[T any](name string, id func(*T) string, others ...index) table {
	return table{name, append([]index{unique("id", id)}, others...)}
}

// tables are all of them; one file of records, one line here.
var tables = []table{
	tableOf(tMeta, func(m *Meta) string { return m.ID }),
	tableOf(tNode, func(n *Node) string { return n.ID }),
	tableOf(tGroup, func(g *Group) string { return g.ID },
		when("pending", func(g *Group) bool { return g.State == api.GroupPending && g.Parked == "" }),
		when("claims", func(g *Group) bool { return len(g.Claim) > 0 }),
		when("incomplete", func(g *Group) bool { return g.Asked != nil })),
	tableOf(tHold, func(h *Hold) string { return h.ID },
		by("group", func(h *Hold) string { return h.Group }), by("node", func(h *Hold) string { return h.Node })),
	tableOf(tAlloc, func(a *Alloc) string { return a.ID },
		by("job", func(a *Alloc) string { return a.Job }), by("node", func(a *Alloc) string { return a.Node }),
		by("group", func(a *Alloc) string { return a.Group })),
	tableOf(tJob, func(j *Job) string { return j.ID },
		unique("seq", func(j *Job) string { return numbered(j.Seq) }), by("group", func(j *Job) string { return j.Group }),
		when("live", func(j *Job) bool { return !j.State.Terminal() })),
	tableOf(tRun, func(r *Run) string { return r.Name }),
	tableOf(tCheckpoint, func(c *Checkpoint) string { return c.ID }, by("run", func(c *Checkpoint) string { return c.Run }),
		when("open", func(c *Checkpoint) bool { return !c.Marked || c.State == CheckpointDeleting })),
	tableOf(tEvent, func(e *Event) string { return numbered(e.Seq) }),
	tableOf(tIdem, func(k *Idempotency) string { return k.Key }, unique("seq", func(k *Idempotency) string { return numbered(k.Seq) })),
	tableOf(tToken, func(k *Token) string { return k.Hash }),
	tableOf(tQueue, func(q *Queue) string { return q.Name }),
	tableOf(tAccount, func(a *Account) string { return a.ID }),
	tableOf(tReservation, func(r *Reservation) string { return r.Name }),
	tableOf(tCapacity, func(c *Capacity) string { return c.Name }),
	tableOf(tLink, func(l *Link) string { return l.ID }),
	tableOf(tSettings, func(s *Settings) string { return s.ID }),
	tableOf(tShape, func(s *Shape) string { return s.ID }),
	tableOf(tPast, func(p *Past) string { return p.ID }, unique("seq", func(p *Past) string { return numbered(p.Seq) })),
}

// records are the tables as commands write and views read them.
type records interface {
	// first is the first record that has a key in an index, or of all without a key; nil:
	// there is none.
	first(table, index string, key ...any) any
	// each calls f with those records in order until it says no. Nobody writes meanwhile.
	each(table, index string, f func(rec any) bool, key ...any)
	// after is each of all records from a key on, back that of all from the last one.
	after(table, index string, key any, f func(rec any) bool)
	back(table, index string, f func(rec any) bool)
	// insert writes a record in place of the one of its id.
	insert(table string, rec any) error
	// remove drops the record of an id, if there is one.
	remove(table string, rec any) error
}

// first reads one record of a table by an index; the zero pointer when absent.
func first[T any](r records, table, index string, key ...any) *T {
	rec, _ := r.first(table, index, key...).(*T)
	return rec
}

// all reads the records of a table in the order of an index.
func all[T any](r records, table, index string, key ...any) []*T {
	var out []*T
	r.each(table, index, func(raw any) bool {
		if rec, ok := raw.(*T); ok {
			out = append(out, rec)
		}
		return true
	}, key...)
	return out
}
