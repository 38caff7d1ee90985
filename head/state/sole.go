package state

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/btree"
)

// ownRecords are the tables of a store with one user, changed in place: nobody reads an
// older state, so nothing is copied to keep one.
type ownRecords map[string]*ownTable

// ownTable has its records by id; indexes have ids alone, so that a change which no index
// is about touches none.
type ownTable struct {
	of      table
	records map[string]any
	ids     btree.Set[string]
	indexes []btree.Map[string, string] // as those of the table; the first is not used
}

func newOwnRecords() ownRecords {
	out := ownRecords{}
	for _, t := range tables {
		out[t.name] = &ownTable{of: t, records: map[string]any{}, indexes: make([]btree.Map[string, string], len(t.indexes))}
	}
	return out
}

// adopt takes over what other tables have.
func (o ownRecords) adopt(from records) error {
	var err error
	for _, t := range tables {
		from.each(t.name, "id", func(rec any) bool {
			err = o.insert(t.name, rec)
			return err == nil
		})
	}
	return err
}

func (o ownRecords) insert(table string, rec any) error {
	t := o[table]
	if t == nil {
		return fmt.Errorf("there is no table %s", table)
	}
	id := t.of.indexes[0].key(rec)
	if id == "" {
		return fmt.Errorf("a record of table %s has no id", table)
	}
	old, had := t.records[id]
	t.records[id] = rec
	if !had {
		t.ids.Insert(id)
	}
	for i := 1; i < len(t.indexes); i++ {
		ix := &t.of.indexes[i]
		if had {
			if ix.key(old) == ix.key(rec) {
				continue
			}
			t.forget(i, old, id)
		}
		if k := ix.full(rec, id); k != "" {
			t.indexes[i].Set(k, id)
		}
	}
	return nil
}

// forget takes a record out of an index.
func (t *ownTable) forget(i int, rec any, id string) {
	if k := t.of.indexes[i].full(rec, id); k != "" {
		t.indexes[i].Delete(k)
	}
}

func (o ownRecords) remove(table string, rec any) error {
	t := o[table]
	if t == nil {
		return fmt.Errorf("there is no table %s", table)
	}
	id := t.of.indexes[0].key(rec)
	old, had := t.records[id]
	if !had {
		return nil
	}
	delete(t.records, id)
	t.ids.Delete(id)
	for i := 1; i < len(t.indexes); i++ {
		t.forget(i, old, id)
	}
	return nil
}

// find is a table and the number of one of its indexes; -1: it has none of that name.
func (o ownRecords) find(table, name string) (*ownTable, int) {
	t := o[table]
	if t == nil {
		return nil, -1
	}
	return t, slices.IndexFunc(t.of.indexes, func(x index) bool { return x.name == name })
}

// walk calls f with records from a key on, in order, until it says no.
func (t *ownTable) walk(i int, from string, f func(key string, rec any) bool) {
	if i == 0 {
		t.ids.Ascend(from, func(id string) bool { return f(id, t.records[id]) })
		return
	}
	t.indexes[i].Ascend(from, func(k, id string) bool { return f(k, t.records[id]) })
}

func (o ownRecords) each(table, index string, f func(rec any) bool, key ...any) {
	t, i := o.find(table, index)
	if i < 0 {
		return
	}
	if len(key) == 0 {
		t.walk(i, "", func(_ string, rec any) bool { return f(rec) })
		return
	}
	k, err := keyOf(key[0])
	switch {
	case err != nil:
	case i == 0:
		if rec, ok := t.records[k]; ok {
			f(rec)
		}
	case t.of.indexes[i].unique:
		if id, ok := t.indexes[i].Get(k); ok {
			f(t.records[id])
		}
	default:
		k += "\x00"
		t.walk(i, k, func(has string, rec any) bool { return strings.HasPrefix(has, k) && f(rec) })
	}
}

func (o ownRecords) first(table, index string, key ...any) (rec any) {
	o.each(table, index, func(r any) bool {
		rec = r
		return false
	}, key...)
	return rec
}

func (o ownRecords) after(table, index string, key any, f func(rec any) bool) {
	t, i := o.find(table, index)
	if k, err := keyOf(key); i >= 0 && err == nil {
		t.walk(i, k, func(_ string, rec any) bool { return f(rec) })
	}
}

func (o ownRecords) back(table, index string, f func(rec any) bool) {
	t, i := o.find(table, index)
	switch {
	case i == 0:
		t.ids.Reverse(func(id string) bool { return f(t.records[id]) })
	case i > 0:
		t.indexes[i].Reverse(func(_, id string) bool { return f(t.records[id]) })
	}
}
