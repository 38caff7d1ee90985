package state

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// model is the table of the holds, sorted anew for each read.
type model map[string]any

func (m model) insert(_ string, rec any) error {
	h, _ := rec.(*Hold)
	m[h.ID] = rec
	return nil
}

func (m model) remove(_ string, rec any) error {
	h, _ := rec.(*Hold)
	delete(m, h.ID)
	return nil
}

// sorted are those that are in an index, by key and id.
func (m model) sorted(by string) (out []*Hold) {
	for _, rec := range m {
		if h, _ := rec.(*Hold); holdKey(h, by) != "" {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(a, b *Hold) int {
		return cmp.Or(strings.Compare(holdKey(a, by), holdKey(b, by)), strings.Compare(a.ID, b.ID))
	})
	return out
}

func holdKey(h *Hold, by string) string {
	return map[string]string{"id": h.ID, "node": h.Node, "group": h.Group}[by]
}

func (m model) each(_, index string, f func(rec any) bool, key ...any) {
	for _, h := range m.sorted(index) {
		if (len(key) == 0 || holdKey(h, index) == key[0]) && !f(h) {
			return
		}
	}
}

func (m model) first(table, index string, key ...any) (rec any) {
	m.each(table, index, func(r any) bool {
		rec = r
		return false
	}, key...)
	return rec
}

func (m model) after(_, index string, key any, f func(rec any) bool) {
	from, _ := key.(string)
	for _, h := range m.sorted(index) {
		if holdKey(h, index) >= from && !f(h) {
			return
		}
	}
}

func (m model) back(_, index string, f func(rec any) bool) {
	for _, h := range slices.Backward(m.sorted(index)) {
		if !f(h) {
			return
		}
	}
}

// listed are all records of a table in the order of an index.
func listed(r records, table, index string) (out []string) {
	r.each(table, index, func(rec any) bool {
		h, _ := rec.(*Hold)
		out = append(out, fmt.Sprint(h.ID, h.Node, h.Group, h.Since))
		return true
	})
	return out
}

// TestPropTrees: what was handed out stays as it was, whatever is written, undone and handed
// out later; what is handed out is what was written since, and nothing of what was undone.
func TestPropTrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type copied struct {
			tables shared
			want   map[string][]string
		}
		indexes := []string{"id", "group", "node"}
		see := func(r records) map[string][]string {
			out := map[string][]string{}
			for _, ix := range indexes {
				out[ix] = listed(r, tHold, ix)
			}
			return out
		}
		d := newDraft()
		last := d.commit(shared{})
		all := []copied{{last, see(last)}}
		now := model{} // what the draft is to be
		kept := model{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				last = d.commit(last)
				all = append(all, copied{last, see(last)})
				kept = maps.Clone(now)
			case 1:
				d.undo(last)
				now = maps.Clone(kept)
			case 2, 3, 4:
				h := &Hold{ID: fmt.Sprint(rapid.IntRange(0, 60).Draw(t, "id"))}
				for _, r := range []records{d, now} {
					if err := r.remove(tHold, h); err != nil {
						t.Fatal(err)
					}
				}
			default:
				for range 6 {
					h := &Hold{
						ID: fmt.Sprint(rapid.IntRange(0, 60).Draw(t, "id")), Since: rapid.Int64().Draw(t, "since"),
						Node: rapid.SampledFrom([]string{"", "a", "b", "ab"}).Draw(t, "node"), Group: rapid.SampledFrom([]string{"g", "h"}).Draw(t, "group"),
					}
					for _, r := range []records{d, now} {
						if err := r.insert(tHold, h); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			if got, want := see(d), see(now); !reflect.DeepEqual(got, want) {
				t.Fatalf("the draft is %v, want %v", got, want)
			}
			sameHolds(t, d, now)
			for i, c := range all {
				if got := see(c.tables); !reflect.DeepEqual(got, c.want) {
					t.Fatalf("what was handed out as number %d was %v and is %v", i, c.want, got)
				}
			}
		}
	})
}

// sameHolds compares reads of a key.
func sameHolds(t *rapid.T, a, b records) {
	for _, k := range []struct {
		index string
		key   any
	}{{"node", "a"}, {"node", "ab"}, {"node", "c"}, {"group", "g"}, {"id", "7"}, {"id", "x"}} {
		if x, y := a.first(tHold, k.index, k.key), b.first(tHold, k.index, k.key); x != y {
			t.Fatalf("the first of %s %v is %v, want %v", k.index, k.key, x, y)
		}
	}
	var x, y []any
	a.after(tHold, "id", "3", func(rec any) bool { x = append(x, rec); return len(x) < 5 })
	b.after(tHold, "id", "3", func(rec any) bool { y = append(y, rec); return len(y) < 5 })
	if !reflect.DeepEqual(x, y) {
		t.Fatalf("after 3: %v, want %v", x, y)
	}
}

// TestTreesBad: what is handed out refuses to be changed; a record without an id and an
// unknown table are errors, and an index that there is not is empty.
func TestTreesBad(t *testing.T) {
	d := newDraft()
	s := d.commit(shared{})
	for what, err := range map[string]error{
		"insert": s.insert(tHold, &Hold{ID: "a"}), "remove": s.remove(tHold, &Hold{ID: "a"}),
		"no id": d.insert(tHold, &Hold{}), "no table": d.insert("x", &Hold{ID: "a"}), "remove from none": d.remove("x", &Hold{ID: "a"}),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if s.first("x", "id", "a") != nil || s.first(tHold, "x", "a") != nil || s.first(tHold, "id", 1.5) != nil {
		t.Error("something is in what there is not")
	}
}

// TestWaits: who waits for a record hears of its next change and of no other; who comes
// late hears at once; with too many, all look again.
func TestWaits(t *testing.T) {
	m := newMachine(t)
	closed := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}
	m.ok(KindCreateGroup, CreateGroup{ID: "a"})
	m.ok(KindCreateGroup, CreateGroup{ID: "b"})
	old := m.s.View()
	a, again, b, none := old.GroupChanged("a"), old.GroupChanged("a"), old.GroupChanged("b"), old.GroupChanged("c")
	m.ok(KindRemoveGroup, RemoveGroup{Group: "a"})
	if !closed(a) || !closed(again) || closed(b) || closed(none) {
		t.Errorf("after a change of a: a %v %v, b %v, c %v", closed(a), closed(again), closed(b), closed(none))
	}
	if !closed(old.GroupChanged("a")) {
		t.Error("who looks at an older view waits for ever")
	}
	m.refused("not-found", KindRemoveGroup, RemoveGroup{Group: "a"})
	m.ok(KindCreateGroup, CreateGroup{ID: "c"})
	if closed(b) || !closed(none) {
		t.Errorf("after c was made: b %v, c %v", closed(b), closed(none))
	}
	v := m.s.View()
	for i := range maxWaits {
		v.JobChanged(fmt.Sprint(i))
	}
	if !closed(b) || len(m.s.waits) > maxWaits {
		t.Errorf("%d are waited for, and b was not told", len(m.s.waits))
	}
	last := v.GroupChanged("b")
	var b2 bytes.Buffer
	if err := m.s.Snapshot().Persist(&b2); err != nil {
		t.Fatal(err)
	}
	if err := m.s.Restore(&b2); err != nil {
		t.Fatal(err)
	}
	if !closed(last) {
		t.Error("a restored state wakes nobody")
	}
}
