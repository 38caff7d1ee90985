package state

import (
	"encoding/binary"
	"fmt"

	"github.com/hashicorp/go-memdb"
)

// index is one order of a table's records. key is what a record has there; "" means that it
// is not in it. Keys of an index that is not unique are told apart by the records' ids.
type index struct {
	name   string
	unique bool
	key    func(rec any) string
}

// unique is an index of which each key is one record's.
func unique[T any](name string, key func(*T) string) index {
	return index{name, true, keyed(key)}
}

// by is an index of records that share keys.
func by[T any](name string, key func(*T) string) index { return index{name, false, keyed(key)} }

// when indexes the records for which f holds, so that a loop over what is live does
// not walk the history.
func when[T any](name string, f func(*T) bool) index {
	return by(name, func(rec *T) string {
		if f(rec) {
			return keyTrue
		}
		return ""
	})
}

const keyTrue = "\x01"

func keyed[T any](key func(*T) string) func(any) string {
	return func(rec any) string {
		if r, ok := rec.(*T); ok {
			return key(r)
		}
		return ""
	}
}

// keyOf is the key that a reader asks for: a string, a number, or true.
func keyOf(arg any) (string, error) {
	switch a := arg.(type) {
	case string:
		return a, nil
	case uint64:
		return numbered(a), nil
	case bool:
		if a {
			return keyTrue, nil
		}
	}
	return "", fmt.Errorf("%v is no key of an index", arg)
}

// numbered is the key of a number; keys stand in the order of their numbers.
func numbered(n uint64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	return string(b[:])
}

// indexer gives memdb the keys of an index, each with an end, so that no key is the
// beginning of another one.
type indexer struct{ index }

// FromObject is the key of a record.
func (x indexer) FromObject(rec any) (bool, []byte, error) {
	k := x.key(rec)
	if k == "" {
		return false, nil, nil
	}
	return true, append(make([]byte, 0, len(k)+1+40), k+"\x00"...), nil
}

// FromArgs is the key that a reader asks for.
func (x indexer) FromArgs(args ...any) ([]byte, error) {
	if len(args) != 1 {
		return nil, fmt.Errorf("%d keys of index %s; one is needed", len(args), x.name)
	}
	k, err := keyOf(args[0])
	return []byte(k + "\x00"), err
}

// schema describes the tables to memdb.
func schema() *memdb.DBSchema {
	s := &memdb.DBSchema{Tables: map[string]*memdb.TableSchema{}}
	for _, t := range tables {
		m := &memdb.TableSchema{Name: t.name, Indexes: map[string]*memdb.IndexSchema{}}
		for i, ix := range t.indexes {
			m.Indexes[ix.name] = &memdb.IndexSchema{Name: ix.name, Unique: ix.unique, AllowMissing: i > 0, Indexer: indexer{ix}}
		}
		s.Tables[t.name] = m
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
