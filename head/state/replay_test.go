package state

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

func (m *machine) snapshot() []byte {
	m.t.Helper()
	var b bytes.Buffer
	if err := m.s.Snapshot().Persist(&b); err != nil {
		m.t.Fatal(err)
	}
	return b.Bytes()
}

// replayed applies a log to a fresh store, with a restart from a snapshot after each
// of the given entries, and returns the state.
func replayed(t testing.TB, log [][]byte, restarts ...int) []byte {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	for i, entry := range log {
		if _, err := s.Apply(uint64(i+1), 1, entry); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
		for _, r := range restarts {
			if r != i {
				continue
			}
			var b bytes.Buffer
			if err := s.Snapshot().Persist(&b); err != nil {
				t.Fatal(err)
			}
			if s, err = New(); err != nil {
				t.Fatal(err)
			}
			if err := s.Restore(&b); err != nil {
				t.Fatal(err)
			}
		}
	}
	var b bytes.Buffer
	if err := s.Snapshot().Persist(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// together applies a log to a fresh store, so many entries at a time, and demands of each
// the result that it has alone, and of the journal the same changes.
func together(t testing.TB, log [][]byte, size int) []byte {
	alone, s := newMachine(t).s, newMachine(t).s
	for i := 1; i < len(log); i += size { // a machine begins with its first entry
		var entries []Entry
		var want []any
		for k := i; k < min(i+size, len(log)); k++ {
			entries = append(entries, Entry{uint64(k + 1), 1, log[k]})
			r, err := alone.Apply(uint64(k+1), 1, log[k])
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, r)
		}
		got, err := s.ApplyAll(entries)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("entries %d on together: %v, %v; alone: %v", i, got, err, want)
		}
	}
	a, _ := alone.Changes(1, uint64(len(log)))
	b, _ := s.Changes(1, uint64(len(log)))
	if !slices.Equal(a, b) {
		t.Fatalf("the journals differ: %v; %v", a, b)
	}
	var b2 bytes.Buffer
	if err := s.Snapshot().Persist(&b2); err != nil {
		t.Fatal(err)
	}
	return b2.Bytes()
}

// TestTogether: what is refused after it wrote leaves nothing, among others too, and what
// does not decode stops where it stands.
func TestTogether(t *testing.T) {
	m := newMachine(t)
	spec := api.GroupSpec{Bundles: []api.Bundle{{Resources: api.Resources{CPU: 1}}}}
	m.ok(KindCreateGroup, CreateGroup{ID: "a", Spec: spec, Key: "k1"})
	m.refused("exists", KindCreateGroup, CreateGroup{ID: "a", Spec: spec, Key: "k2"}) // the key was written before
	m.ok(KindCreateGroup, CreateGroup{ID: "b", Spec: spec, Key: "k3"})
	if got := together(t, m.log, 100); !bytes.Equal(got, m.snapshot()) {
		t.Error("applied together, the state differs")
	}
	s := newMachine(t).s
	got, err := s.ApplyAll([]Entry{{2, 1, m.log[1]}, {3, 1, []byte{255}}, {4, 1, m.log[3]}})
	if !errors.Is(err, ErrDamagedCommand) || len(got) != 1 || s.View().Index() != 2 || s.View().Group("a") == nil {
		t.Errorf("%v, %v at index %d", got, err, s.View().Index())
	}
}

// less makes the bounds small for one test.
func less(t *testing.T, events uint64, terminal, keys int64) {
	e, j, k := keptEvents, keptTerminal, keptKeys
	keptEvents, keptTerminal, keptKeys = events, terminal, keys
	t.Cleanup(func() { keptEvents, keptTerminal, keptKeys = e, j, k })
}

// TestBounds: events, terminal jobs and keys are kept to their bounds, the oldest go
// first, and a replica that replays arrives at the same bytes (I7, I18).
func TestBounds(t *testing.T) {
	less(t, 300, 5, 7)
	m := newMachine(t)
	zero := int64(0)
	for i := range 20 {
		id := fmt.Sprintf("j%02d", i)
		m.ok(KindSubmitJob, SubmitJob{
			ID: id, Spec: api.JobSpec{Name: id, Ranks: 1}, Group: "pg-" + id,
			GroupSpec: &api.GroupSpec{Bundles: []api.Bundle{{}}}, Key: "key-" + id,
		})
		m.ok(KindSupervise, Supervise{Job: id, Attempt: -1, State: api.Stopped, ExitCode: &zero})
	}
	for i := range 600 {
		m.ok(KindAddToken, AddToken{Token: Token{Hash: fmt.Sprintf("%064d", i), Name: fmt.Sprint(i)}})
	}
	v := m.s.View()
	jobs := v.Jobs()
	if len(jobs) != 5 || jobs[0].ID != "j15" || v.Meta().Terminal != 5 {
		t.Errorf("%d jobs, the oldest %s", len(jobs), jobs[0].ID)
	}
	if v.Key("key-j12") != nil || v.Key("key-j13") == nil || v.Meta().Keys != 7 {
		t.Errorf("%d keys", v.Meta().Keys)
	}
	events, gone := v.Events(0, 1000)
	if len(events) != 300 || !gone {
		t.Errorf("%d events, gone %v", len(events), gone)
	}
	for i, e := range events {
		if e.Seq != events[0].Seq+uint64(i) { // I17: gapless, in order
			t.Fatalf("event %d follows %d", e.Seq, events[i-1].Seq)
		}
	}
	if resumed, gone := v.Events(events[10].Seq, 3); gone || len(resumed) != 3 || resumed[0].Seq != events[11].Seq {
		t.Errorf("resumed at %+v, gone %v", resumed[0], gone)
	}
	if len(v.Runs()) != 0 {
		t.Errorf("%d runs are left of jobs that saved nothing", len(v.Runs()))
	}
	want := m.snapshot()
	for _, restarts := range [][]int{nil, {0}, {17, 300}, {len(m.log) - 1}} {
		if got := replayed(t, m.log, restarts...); !bytes.Equal(got, want) {
			t.Errorf("replayed with restarts after %v, the state differs", restarts)
		}
	}
}

// TestAttemptsAreBounded: a job remembers its newest attempts and counts all.
func TestAttemptsAreBounded(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 0)
	m.submit("a", 1)
	m.place("pg-a", "n1", 1)
	for i := range int64(MaxAttempts + 10) {
		m.start("a", "n1", 1, i-1)
		m.ok(KindSupervise, Supervise{Job: "a", Attempt: i, End: &AttemptEnd{Cause: api.CauseInfra}})
	}
	j := m.s.View().Job("a")
	if len(j.Attempts) != MaxAttempts || j.Last().Number != MaxAttempts+9 {
		t.Fatalf("%d attempts, the newest %d", len(j.Attempts), j.Last().Number)
	}
}

// TestEventsAreText: whatever a node reports, an event is short and valid UTF-8.
func TestEventsAreText(t *testing.T) {
	m := newMachine(t)
	m.node("n1", 0)
	m.submit("a", 1)
	m.place("pg-a", "n1", 1)
	m.start("a", "n1", 1, -1)
	id := m.s.View().AllocsOf("a")[0].ID
	for i, text := range []string{
		strings.Repeat("é", 500), strings.Repeat("x", 255) + "é", strings.Repeat("日本語", 100), "\xff\xfe" + strings.Repeat("\x80", 400),
		strings.Repeat("a", 1<<16), "",
	} {
		m.facts("n1", wire.AllocEvent{Alloc: id, Seq: uint64(i + 1), Kind: wire.EventFallback, Message: text})
	}
	for _, e := range m.s.View().RecentEvents("", 100) {
		if len(e.Text) > MaxEventText || !utf8.ValidString(e.Text) {
			t.Errorf("%d bytes, %q", len(e.Text), e.Text)
		}
	}
}
