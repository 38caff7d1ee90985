package state

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

// sole applies a log to a store that has one user, from an entry on, and demands of each
// entry the result that it has elsewhere, and in the end the same records in every order.
func sole(t testing.TB, log [][]byte, from int) {
	t.Helper()
	other, s := mustNew(t), mustNew(t)
	for i, entry := range log {
		if i == from {
			s.Sole()
		}
		want, err := other.Apply(uint64(i+1), 1, entry)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Apply(uint64(i+1), 1, entry)
		if _, refused := want.(*Refused); refused && errors.Is(err, ErrHalfRefused) {
			// It is of no use from now on.
			s = copied(t, other)
			s.Sole()
			continue
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("entry %d: %v, %v; elsewhere %v", i, got, err, want)
		}
	}
	sameRecords(t, s.View().records, other.View().records)
}

func mustNew(t testing.TB) *Store {
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func copied(t testing.TB, from *Store) *Store {
	var b bytes.Buffer
	if err := from.Snapshot().Persist(&b); err != nil {
		t.Fatal(err)
	}
	s := mustNew(t)
	if err := s.Restore(&b); err != nil {
		t.Fatal(err)
	}
	return s
}

// sameRecords compares all tables but that of the events, which one user does not want.
func sameRecords(t testing.TB, a, b records) {
	t.Helper()
	list := func(r records, table, index string, key ...any) (out []any) {
		r.each(table, index, func(rec any) bool {
			out = append(out, rec)
			return true
		}, key...)
		return out
	}
	for _, tab := range tables {
		if tab.name == tEvent {
			continue
		}
		for _, ix := range tab.indexes {
			got, want := list(a, tab.name, ix.name), list(b, tab.name, ix.name)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("table %s by %s:\n%v\nelsewhere\n%v", tab.name, ix.name, got, want)
			}
			var back []any
			a.back(tab.name, ix.name, func(rec any) bool {
				back = append(back, rec)
				return true
			})
			for i, rec := range want {
				if back[len(back)-1-i] != got[i] {
					t.Fatalf("table %s by %s from the last one: %v", tab.name, ix.name, back)
				}
				key := any(ix.key(rec))
				if key == keyTrue {
					key = true
				}
				if x, y := list(a, tab.name, ix.name, key), list(b, tab.name, ix.name, key); ix.name != "seq" && !reflect.DeepEqual(x, y) {
					t.Fatalf("table %s by %s %v:\n%v\nelsewhere\n%v", tab.name, ix.name, key, x, y)
				}
				if x, y := a.first(tab.name, ix.name, key), b.first(tab.name, ix.name, key); !reflect.DeepEqual(x, y) {
					t.Fatalf("table %s, first by %s %v: %v; elsewhere %v", tab.name, ix.name, key, x, y)
				}
			}
		}
	}
}

// What a store with one user refuses after it wrote is told: it cannot be taken back.
func TestHalfRefused(t *testing.T) {
	m := newMachine(t)
	m.ok(KindCreateGroup, CreateGroup{ID: "a", Key: "k1"})
	m.refused("exists", KindCreateGroup, CreateGroup{ID: "a", Key: "k2"})
	sole(t, m.log, 1)
	s := mustNew(t)
	s.Sole()
	for i, entry := range m.log {
		if _, err := s.Apply(uint64(i+1), 1, entry); errors.Is(err, ErrHalfRefused) != (i == len(m.log)-1) {
			t.Errorf("entry %d: %v", i, err)
		}
	}
}
