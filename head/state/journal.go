package state

// Change says that a command wrote or deleted a record. Of a hold it names the node and
// the group, of a checkpoint its run, of other tables the record's own id.
type Change struct {
	Index uint64
	Table Table
	ID    string
}

// Table names what a Change is about.
type Table string

// Tables of changes. What is in none of them changes nothing that a scheduler looks at.
const (
	ChangedNode  Table = "node"  // its record, or what is held on it
	ChangedGroup Table = "group" // its record, its job's, or what it holds
	ChangedRun   Table = "run"   // a checkpoint of it
	ChangedQuota Table = "quota" // what is charged to a tenant, queue or capacity
	ChangedShape Table = "shape" // what requests ask for, see Shape
	ChangedOther Table = "other" // any table that is small enough to be read whole
)

// keptChanges bounds the journal; who comes later reads everything.
const keptChanges = 1 << 16

// sameChange is how far back a change is looked for that says the same already.
const sameChange = 4

// journal remembers the newest changes, so that a reader which follows the state looks at
// what changed and not at everything. It is no part of the state: each replica has its
// own, and a restored one begins with none.
type journal struct {
	from    uint64 // changes of this index and later ones are all there
	changes []Change
}

// touch notes what a record says of itself.
func (t *tx) touch(rec any) {
	note := func(table Table, id string) {
		// A gang is written hold by hold, each with its node and the group.
		for i := len(t.touched) - 1; i >= max(0, len(t.touched)-sameChange); i-- {
			if t.touched[i].Table == table && t.touched[i].ID == id {
				return
			}
		}
		t.touched = append(t.touched, Change{Index: t.index, Table: table, ID: id})
	}
	switch r := rec.(type) {
	case *Node:
		note(ChangedNode, r.ID)
	case *Hold:
		note(ChangedNode, r.Node)
		note(ChangedGroup, r.Group)
	case *Group:
		note(ChangedGroup, r.ID)
	case *Job:
		note(ChangedGroup, r.Group)
	case *Checkpoint:
		note(ChangedRun, r.Run)
	case *Account:
		note(ChangedQuota, r.ID)
	case *Shape:
		note(ChangedShape, "")
	case *Event, *Meta, *Alloc, *Idempotency, *Token, *Run, *Past:
	default:
		note(ChangedOther, "")
	}
}

// add appends the changes of one entry.
func (j *journal) add(index uint64, changes []Change) {
	if j.from == 0 {
		j.from = index
	}
	if len(j.changes)+len(changes) > 2*keptChanges {
		drop := max(0, len(j.changes)-keptChanges)
		for drop < len(j.changes) && drop > 0 && j.changes[drop].Index == j.changes[drop-1].Index {
			drop++ // an entry is kept whole or not at all
		}
		if drop > 0 {
			j.from = j.changes[drop-1].Index + 1
			j.changes = append([]Change(nil), j.changes[drop:]...)
		}
	}
	j.changes = append(j.changes, changes...)
}

// Changes lists what was written by the entries after an index, up to and with another;
// ok is false when they are not all remembered.
func (s *Store) Changes(after, upTo uint64) (changes []Change, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if after < upTo && (s.journal.from == 0 || after+1 < s.journal.from) {
		return nil, false
	}
	all := s.journal.changes
	i := len(all)
	for i > 0 && all[i-1].Index > after {
		i--
	}
	for _, c := range all[i:] {
		if c.Index <= upTo {
			changes = append(changes, c)
		}
	}
	return changes, true
}
