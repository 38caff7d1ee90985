package state

import (
	"encoding/binary"
	"fmt"
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
