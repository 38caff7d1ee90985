package state

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Errors of Apply that stop the replica: going on would let it drift.
var (
	// ErrUnknownKind: the entry was written by a newer version.
	ErrUnknownKind = errors.New("state: command of an unknown kind; this head is older than the log it reads")
	// ErrHalfRefused: a Sole store cannot take back what a refused command has written.
	ErrHalfRefused = errors.New("state: a command was refused after it had written")
	// ErrDamagedCommand: the entry does not decode.
	ErrDamagedCommand = errors.New("state: command does not decode")
)

// Store applies commands to tables and hands out views. Apply, Snapshot and Restore
// belong to the one goroutine of the log; View and Changed may be called by anyone.
type Store struct {
	mu      sync.Mutex    // guards the fields below, not the records
	view    *View         // the newest, which all share
	changed chan struct{} // nil: nobody waits
	journal journal
	waits   waits
	// draft are the tables that the goroutine of the log changes.
	draft *draft
	// sole: it has one user, who reads the draft.
	sole bool
	// Online turns the checker of invariants on after every command; tests do.
	online bool
}

// New returns an empty store.
func New() (*Store, error) {
	s := &Store{draft: newDraft(), waits: waits{}}
	s.view = &View{records: s.draft.commit(shared{}), store: s}
	return s, nil
}

// CheckAlways makes Apply verify P1, P2 and P8 after each command and fail on a
// violation. Tests and the simulated cluster run with it.
func (s *Store) CheckAlways() { s.online = true }

// Sole says that one goroutine alone uses the store from now on, restores nothing into it
// and reads no events: records are then changed in place, with no copy for those who read an
// older state, events are only counted, and a View stands only until the next Apply.
// Simulations do that. A command that is refused after it wrote something is an error then.
func (s *Store) Sole() {
	s.sole = true
	s.view = &View{records: s.draft, index: s.view.index, term: s.view.term}
}

// View is the state now.
func (s *Store) View() *View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view
}

// Changed returns a channel that closes with the next applied command. Take it
// before the View that it is to follow.
func (s *Store) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// Encode writes a command as a log entry: kind, header, body. now is the proposer's
// wall clock in nanoseconds.
func Encode(kind Kind, now int64, body any) ([]byte, error) {
	h, err := wire.Marshal(Header{Level: 1, Now: now})
	if err != nil {
		return nil, fmt.Errorf("state: encode header: %w", err)
	}
	b, err := wire.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("state: encode command %d: %w", kind, err)
	}
	if len(h) > 255 {
		return nil, fmt.Errorf("state: header of %d bytes", len(h))
	}
	out := make([]byte, 0, 2+len(h)+len(b))
	out = append(out, byte(kind), byte(len(h)))
	out = append(out, h...)
	return append(out, b...), nil
}

// tx is one command being applied.
type tx struct {
	*View // reads see the command's own writes
	meta  Meta
	now   int64
	index uint64
	err   error
	// touched is what the command has changed so far; wrote: it has written anything.
	touched []Change
	waited  []record
	wrote   bool
	quiet   bool // events are counted only
}

// put writes a record; a schema violation is a defect and stops the replica.
func (t *tx) put(table string, rec any) {
	t.touch(rec)
	t.note(rec)
	t.wrote = true
	if err := t.records.insert(table, rec); err != nil && t.err == nil {
		t.err = fmt.Errorf("state: write %s: %w", table, err)
	}
}

func (t *tx) drop(table string, rec any) {
	t.touch(rec)
	t.note(rec)
	t.wrote = true
	if err := t.records.remove(table, rec); err != nil && t.err == nil {
		t.err = fmt.Errorf("state: delete %s: %w", table, err)
	}
}

// event records one change with its cause (P7).
func (t *tx) event(kind, object, format string, args ...any) {
	if t.quiet {
		t.meta.EventSeq++
		return
	}
	text := strings.ToValidUTF8(fmt.Sprintf(format, args...), "?")
	if len(text) > MaxEventText {
		text = truncate(text, MaxEventText)
	}
	t.meta.EventSeq++
	t.put(tEvent, &Event{Seq: t.meta.EventSeq, Index: t.index, Time: t.now, Type: kind, Object: object, Text: text})
	if t.meta.EventSeq > keptEvents {
		if old := first[Event](t.records, tEvent, "id", t.meta.EventSeq-keptEvents); old != nil {
			t.drop(tEvent, old)
		}
	}
}

// truncate cuts at a rune boundary so that the text stays valid UTF-8.
func truncate(s string, n int) string {
	const mark = "…"
	cut := 0
	for i := range s {
		if i > n-len(mark) {
			break
		}
		cut = i
	}
	return s[:cut] + mark
}

// handler applies one kind of command, from a log entry or from the command itself.
type handler struct {
	decode func(t *tx, body []byte) (any, error)
	direct func(t *tx, body any) (any, error)
}

// on decodes the body and calls the typed handler.
func on[C any](f func(t *tx, c C) any) handler {
	return handler{
		decode: func(t *tx, body []byte) (any, error) {
			var c C
			if err := wire.Unmarshal(body, &c); err != nil {
				return nil, err
			}
			return f(t, c), nil
		},
		direct: func(t *tx, body any) (any, error) {
			c, ok := body.(C)
			if !ok {
				return nil, fmt.Errorf("a %T is not the body of its kind", body)
			}
			return f(t, c), nil
		},
	}
}

// handlers is the flat table of kinds; a kind never changes its meaning.
var handlers = map[Kind]handler{
	KindCreateCluster:    on(createCluster),
	KindRegisterNode:     on(registerNode),
	KindSetNodeState:     on(setNodeState),
	KindSubmitJob:        on(submitJob),
	KindCreateGroup:      on(createGroup),
	KindPlaceGroup:       on(placeGroup),
	KindRemoveGroup:      on(removeGroup),
	KindFacts:            on(applyFacts),
	KindSupervise:        on(applySupervise),
	KindStopJob:          on(stopJob),
	KindCommitCheckpoint: on(commitCheckpoint),
	KindRollBack:         on(rollBack),
	KindTombstone:        on(tombstone),
	KindCheckpointDone:   on(checkpointDone),
	KindRaiseGeneration:  on(raiseGeneration),
	KindAddToken:         on(addToken),
	KindRevokeToken:      on(revokeToken),
	KindRaiseLevel:       on(raiseLevel),
	KindRestoreVerified:  on(restoreVerified),
	KindReleaseGroup:     on(releaseGroup),
	KindFirstStep:        on(firstStep),
	KindDisownJob:        on(disownJob),
	KindInjectFault:      on(injectFault),
	KindReshape:          on(reshape),
	KindPinCheckpoint:    on(pinCheckpoint),
	KindAdoptCheckpoints: on(adoptCheckpoints),
	KindStall:            on(stalled),
	KindDropStep:         on(dropStep),
	KindRunFast:          on(runFast),
	KindAbortAttempt:     on(abortAttempt),
	KindPropose:          on(propose),
	KindDecide:           on(decideProposal),
	KindDrainJob:         on(drainJob),
	KindOrderEnd:         on(orderEnd),
	KindCancelDrain:      on(cancelDrain),
	KindDrainNode:        on(drainNode),
	KindResizeGroup:      on(resizeGroup),
	KindNodeNotice:       on(nodeNotice),
	KindSetSpares:        on(setSpares),
	KindPreempt:          on(preempt),
	KindDropClaim:        on(dropClaim),
	KindPutQueues:        on(putQueues),
	KindPutReservation:   on(putReservation),
	KindPutCapacities:    on(putCapacities),
	KindPutSettings:      on(putSettings),
	KindPutLinks:         on(putLinks),
	KindParkJob:          on(parkJob),
	KindEditJob:          on(editJob),
	KindCompleteGroup:    on(completeGroup),
}
