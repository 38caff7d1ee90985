package state

// record names a record of a table.
type record struct{ table, id string }

// waits are those who wait for the next change of one record.
type waits map[record]chan struct{}

// maxWaits bounds how many records are waited for; with more, all who wait look again.
const maxWaits = 4096

// note remembers that a record was changed which others may wait for.
func (t *tx) note(rec any) {
	if t.quiet {
		return // nobody waits in a store with one user
	}
	switch r := rec.(type) {
	case *Group:
		t.waited = append(t.waited, record{tGroup, r.ID})
	case *Job:
		t.waited = append(t.waited, record{tJob, r.ID})
	}
}

// on is a channel that closes with the next change of a record, or soon.
func (w waits) on(r record) <-chan struct{} {
	if ch, ok := w[r]; ok {
		return ch
	}
	if len(w) >= maxWaits {
		w.all()
	}
	ch := make(chan struct{})
	w[r] = ch
	return ch
}

// end wakes those who wait for some records.
func (w waits) end(changed []record) {
	if len(w) == 0 {
		return
	}
	for _, r := range changed {
		if ch, ok := w[r]; ok {
			close(ch)
			delete(w, r)
		}
	}
}

// all wakes everybody.
func (w waits) all() {
	for r, ch := range w {
		close(ch)
		delete(w, r)
	}
}

// GroupChanged closes once the record of a group is another one than in this view, or soon
// after.
func (v *View) GroupChanged(id string) <-chan struct{} { return v.changed(record{tGroup, id}) }

// JobChanged is GroupChanged of a job.
func (v *View) JobChanged(id string) <-chan struct{} { return v.changed(record{tJob, id}) }

func (v *View) changed(r record) <-chan struct{} {
	if v.store == nil {
		return nil // a store with one user, who knows what he changes
	}
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	if v.records.first(r.table, "id", r.id) != v.store.view.records.first(r.table, "id", r.id) {
		ch := make(chan struct{})
		close(ch)
		return ch
	}
	return v.store.waits.on(r)
}
