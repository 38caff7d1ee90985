package state

import (
	"fmt"

	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Entry is one entry of the log.
type Entry struct {
	Index, Term uint64
	Data        []byte
}

// command is an entry that is understood so far that it can be run.
type command struct {
	kind        Kind
	index, term uint64
	now         int64
	run         func(t *tx) (any, error)
}

// applied is one command whose writes are in a transaction.
type applied struct {
	index   uint64
	result  any
	changes []Change
	waited  []record // that others may wait for
	wrote   bool     // also when it was refused
}

func (a *applied) refusal() *Refused {
	r, _ := a.result.(*Refused)
	return r
}

// Apply applies one log entry. The result is Made, Started, *Refused or nil; the
// error, if any, stops the replica.
func (s *Store) Apply(index, term uint64, data []byte) (any, error) {
	c, err := decode(Entry{index, term, data})
	if err != nil {
		return nil, err
	}
	return s.applyOne(c)
}

// ApplyDirect applies a command that was never encoded, for a Sole store: what the state
// keeps of it, nobody may change afterwards. now is in nanoseconds.
func (s *Store) ApplyDirect(kind Kind, index, term uint64, now int64, body any) (any, error) {
	fn, ok := handlers[kind]
	if !ok {
		return nil, fmt.Errorf("%w: kind %d at index %d", ErrUnknownKind, kind, index)
	}
	return s.applyOne(command{kind, index, term, now, func(t *tx) (any, error) { return fn.direct(t, body) }})
}

// ApplyAll is Apply of entries that follow one another, in one transaction: nobody sees
// the state between them. It returns the results of those that were applied, which with an
// error are fewer.
func (s *Store) ApplyAll(entries []Entry) ([]any, error) {
	if results, ok := s.together(entries); ok {
		return results, nil
	}
	// One wrote and was refused, or failed: what it wrote can only be taken back alone.
	results := make([]any, 0, len(entries))
	for _, e := range entries {
		r, err := s.Apply(e.Index, e.Term, e.Data)
		if err != nil {
			return results, err
		}
		results = append(results, r)
	}
	return results, nil
}

// together changes nothing when it answers false.
func (s *Store) together(entries []Entry) ([]any, bool) {
	if len(entries) < 2 || s.sole {
		return nil, false
	}
	all, results := make([]applied, len(entries)), make([]any, len(entries))
	for i, e := range entries {
		c, err := decode(e)
		var a applied
		if err == nil {
			a, err = s.run(s.draft, c)
		}
		if err != nil || a.refusal() != nil && a.wrote {
			s.draft.undo(s.shared())
			return nil, false
		}
		all[i], results[i] = a, a.result
	}
	s.advance(entries[len(entries)-1].Term, all...)
	return results, true
}

// decode takes an entry apart.
func decode(e Entry) (command, error) {
	c := command{index: e.Index, term: e.Term}
	if len(e.Data) < 2 || len(e.Data) < 2+int(e.Data[1]) {
		return c, fmt.Errorf("%w: %d bytes at index %d", ErrDamagedCommand, len(e.Data), e.Index)
	}
	c.kind = Kind(e.Data[0])
	end := 2 + int(e.Data[1])
	var h Header
	if err := wire.Unmarshal(e.Data[2:end], &h); err != nil {
		return c, fmt.Errorf("%w: header at index %d: %w", ErrDamagedCommand, e.Index, err)
	}
	fn, ok := handlers[c.kind]
	if !ok || h.Level > wire.Level {
		return c, fmt.Errorf("%w: kind %d of level %d at index %d", ErrUnknownKind, c.kind, h.Level, e.Index)
	}
	c.now, c.run = h.Now, func(t *tx) (any, error) { return fn.decode(t, e.Data[end:]) }
	return c, nil
}

func (s *Store) applyOne(c command) (any, error) {
	if s.sole {
		a, err := s.run(s.draft, c)
		if err != nil {
			return nil, err
		}
		if refusal := a.refusal(); refusal != nil && a.wrote {
			return nil, fmt.Errorf("%w: kind %d at index %d: %w", ErrHalfRefused, c.kind, c.index, refusal)
		}
		s.advance(c.term, a)
		return a.result, nil
	}
	a, err := s.run(s.draft, c)
	if err != nil || a.refusal() != nil {
		s.draft.undo(s.shared())
	}
	if err != nil {
		return nil, err
	}
	s.advance(c.term, a)
	return a.result, nil
}

// run writes what a command does into the tables. Of a refused command nothing may stay
// there: only the index moves on.
func (s *Store) run(r records, c command) (applied, error) {
	t := &tx{View: &View{records: r, index: c.index, term: c.term}, now: c.now, index: c.index, quiet: s.sole}
	t.meta = t.Meta()
	result, err := c.run(t)
	if err != nil {
		return applied{}, fmt.Errorf("%w: kind %d at index %d: %w", ErrDamagedCommand, c.kind, c.index, err)
	}
	if _, refused := result.(*Refused); refused {
		return applied{index: c.index, result: result, wrote: t.wrote}, nil
	}
	t.meta.ID = "meta"
	meta := t.meta
	t.put(tMeta, &meta)
	if t.err != nil {
		return applied{}, t.err
	}
	if s.online {
		if err := Check(t.View); err != nil {
			return applied{}, fmt.Errorf("state: command kind %d at index %d: %w", c.kind, c.index, err)
		}
	}
	return applied{c.index, result, t.touched, t.waited, true}, nil
}

// shared are the tables of the newest view.
func (s *Store) shared() shared {
	out, _ := s.view.records.(shared)
	return out
}

// advance hands out the state after the last of some commands that were applied.
func (s *Store) advance(term uint64, all ...applied) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := &View{records: s.draft, index: s.view.index, term: term}
	if !s.sole {
		next.records, next.store = s.draft.commit(s.shared()), s
	}
	for _, a := range all {
		s.journal.add(a.index, a.changes)
		next.index = a.index
	}
	s.view = next
	for _, a := range all {
		s.waits.end(a.waited)
	}
	s.wake()
}

// wake tells those who wait for a change. The caller has the lock.
func (s *Store) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}
