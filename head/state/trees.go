package state

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/btree"
)

// treeDegree is half of what a node of a tree holds. A change copies the nodes on its way
// once for each commit: larger ones are found faster and copied slower.
const treeDegree = 12

// trees are the tables of a store that many read: one tree of records for each index. A
// commit hands out copies, which share all nodes that no later change has touched.
type trees []*treeTable

type treeTable struct {
	of      *table
	indexes []*btree.Map[string, any] // as those of the table; keys are full
}

// treeAt is the place of each table.
var treeAt = func() map[string]int {
	out := map[string]int{}
	for i, t := range tables {
		out[t.name] = i
	}
	return out
}()

func newTrees() trees {
	out := make(trees, len(tables))
	for i := range tables {
		t := &treeTable{of: &tables[i]}
		for range tables[i].indexes {
			t.indexes = append(t.indexes, btree.NewMap[string, any](treeDegree))
		}
		out[i] = t
	}
	return out
}

// copy is a table that stays as this one is now.
func (t *treeTable) copy() *treeTable {
	out := &treeTable{of: t.of, indexes: make([]*btree.Map[string, any], len(t.indexes))}
	for i, x := range t.indexes {
		out.indexes[i] = x.Copy()
	}
	return out
}

// shared are the tables as views read them.
type shared struct{ trees }

// draft are tables that are being changed. What they have in common with those that are
// handed out is copied before it is; where none are, as in a Sole store, nothing is.
type draft struct {
	shared
	changed []bool // tables, since the last commit
}

func newDraft() *draft { return &draft{shared{newTrees()}, make([]bool, len(tables))} }

// commit hands out what was changed since the last one, beside what was not.
func (d *draft) commit(last shared) shared {
	out := shared{slices.Clone(d.trees)}
	for i, changed := range d.changed {
		switch {
		case changed || last.trees == nil:
			out.trees[i] = d.trees[i].copy()
		default:
			out.trees[i] = last.trees[i]
		}
		d.changed[i] = false
	}
	return out
}

// undo goes back to what was handed out last.
func (d *draft) undo(last shared) {
	for i, changed := range d.changed {
		if !changed {
			continue
		}
		t := &treeTable{of: d.trees[i].of}
		for _, x := range last.trees[i].indexes {
			// Not Copy, which would write to what others read.
			same := *x
			t.indexes = append(t.indexes, &same)
		}
		d.trees[i], d.changed[i] = t, false
	}
}

// full is a record's key in an index; "" when it is not in it.
func (x *index) full(rec any, id string) string {
	k := x.key(rec)
	if k == "" || x.unique {
		return k
	}
	return k + "\x00" + id
}

// placeOf is the place of a table, and a record's id there.
func placeOf(table string, rec any) (at int, id string, err error) {
	at, ok := treeAt[table]
	if !ok {
		return 0, "", fmt.Errorf("there is no table %s", table)
	}
	return at, tables[at].indexes[0].key(rec), nil
}

func (d *draft) insert(table string, rec any) error {
	at, id, err := placeOf(table, rec)
	if err != nil {
		return err
	}
	if id == "" {
		return fmt.Errorf("a record of table %s has no id", table)
	}
	t := d.trees[at]
	d.changed[at] = true
	old, had := t.indexes[0].Set(id, rec)
	for i := 1; i < len(t.indexes); i++ {
		ix := &t.of.indexes[i]
		k := ix.full(rec, id)
		if had {
			if was := ix.full(old, id); was != "" && was != k {
				t.indexes[i].Delete(was)
			}
		}
		if k != "" {
			t.indexes[i].Set(k, rec)
		}
	}
	return nil
}

func (d *draft) remove(table string, rec any) error {
	at, id, err := placeOf(table, rec)
	if err != nil {
		return err
	}
	t := d.trees[at]
	if _, had := t.indexes[0].Get(id); !had {
		return nil
	}
	d.changed[at] = true
	old, _ := t.indexes[0].Delete(id)
	for i := 1; i < len(t.indexes); i++ {
		if k := t.of.indexes[i].full(old, id); k != "" {
			t.indexes[i].Delete(k)
		}
	}
	return nil
}

// insert and remove are for a draft alone.
func (s shared) insert(table string, _ any) error {
	return fmt.Errorf("table %s was handed out and does not change", table)
}

func (s shared) remove(table string, _ any) error { return s.insert(table, nil) }

// find is the tree of an index; nil: there is no such index.
func (s shared) find(table, name string) (*index, *btree.Map[string, any]) {
	at, ok := treeAt[table]
	if !ok {
		return nil, nil
	}
	t := s.trees[at]
	for i := range t.of.indexes {
		if t.of.indexes[i].name == name {
			return &t.of.indexes[i], t.indexes[i]
		}
	}
	return nil, nil
}

func (s shared) each(table, index string, f func(rec any) bool, key ...any) {
	ix, tree := s.find(table, index)
	if tree == nil {
		return
	}
	if len(key) == 0 {
		tree.Scan(func(_ string, rec any) bool { return f(rec) })
		return
	}
	k, err := keyOf(key[0])
	switch {
	case err != nil:
	case ix.unique:
		if rec, ok := tree.Get(k); ok {
			f(rec)
		}
	default:
		k += "\x00"
		tree.Ascend(k, func(has string, rec any) bool { return strings.HasPrefix(has, k) && f(rec) })
	}
}

func (s shared) first(table, index string, key ...any) (rec any) {
	s.each(table, index, func(r any) bool {
		rec = r
		return false
	}, key...)
	return rec
}

func (s shared) after(table, index string, key any, f func(rec any) bool) {
	if _, tree := s.find(table, index); tree != nil {
		if k, err := keyOf(key); err == nil {
			tree.Ascend(k, func(_ string, rec any) bool { return f(rec) })
		}
	}
}

func (s shared) back(table, index string, f func(rec any) bool) {
	if _, tree := s.find(table, index); tree != nil {
		tree.Reverse(func(_ string, rec any) bool { return f(rec) })
	}
}
