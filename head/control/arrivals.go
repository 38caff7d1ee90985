package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// maxArrivals is how many requests may wait for their turn; more are told to come again.
const maxArrivals = 2000

var errManyArrivals = errors.New("too many requests wait for a placement")

// arrival is a request for a group that is not in the log yet.
type arrival struct {
	id   string // of the group
	spec api.GroupSpec
	// command is what goes into the log, with the placement that was found, if any; an error
	// is the answer, and nothing does.
	command func(v *state.View, placement []api.Placed) (command, error)
	done    chan Outcome
}

// arrivals are those that wait. What comes together is planned together, so that no two
// are promised the same devices, and goes into the log together: whoever has the turn does
// it for all, and the others need only wait for their answer.
type arrivals struct {
	turn    turn
	mu      sync.Mutex
	waiting []*arrival
}

func (q *arrivals) add(a *arrival) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= maxArrivals {
		return fmt.Errorf("%w (%d)", errManyArrivals, len(q.waiting))
	}
	q.waiting = append(q.waiting, a)
	return nil
}

// next takes those that came first.
func (q *arrivals) next() []*arrival {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), mostTogether)
	out := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	return out
}

// leave takes out one that nobody has the turn for yet.
func (q *arrivals) leave(a *arrival) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, a)
	if i >= 0 {
		q.waiting = slices.Delete(slices.Clone(q.waiting), i, i+1)
	}
	return i >= 0
}

// arrive plans and proposes a request with those that come at the same time.
func (h *Head) arrive(ctx context.Context, a *arrival) (any, error) {
	a.done = make(chan Outcome, 1)
	q := &h.arrivals
	if err := q.add(a); err != nil {
		return nil, err
	}
	for {
		select {
		case out := <-a.done:
			return out.Value, out.Err
		case q.turn <- struct{}{}:
			// One that goes away leaves the others their answers.
			h.settle(context.WithoutCancel(ctx), q.next())
			q.turn.give()
		case <-ctx.Done():
			if q.leave(a) {
				return nil, context.Cause(ctx)
			}
			select {
			case out := <-a.done: // both are so, and this says more
				return out.Value, out.Err
			default:
			}
			return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, context.Cause(ctx))
		}
	}
}

// settle answers some arrivals.
func (h *Head) settle(ctx context.Context, all []*arrival) {
	if len(all) == 0 {
		return
	}
	v := h.Store.View()
	placed := h.placeAll(v, all)
	var asked []*arrival
	var commands []command
	for _, a := range all {
		c, err := a.command(v, placed[a.id])
		if err != nil {
			a.done <- Outcome{Err: err}
			continue
		}
		asked, commands = append(asked, a), append(commands, c)
	}
	if len(commands) == 0 {
		return
	}
	for i, out := range h.proposeAll(ctx, commands) {
		asked[i].done <- out
	}
}

// placeAll asks the scheduler for requests that are not in the log yet, so that record and
// placement can share one entry. What waits already keeps its turn, and they stand behind
// it in the order in which they came.
func (h *Head) placeAll(v *state.View, all []*arrival) map[string][]api.Placed {
	p := &h.planned
	p.mu.Lock()
	defer p.mu.Unlock()
	s, now := h.snapshotOf(v), h.Clock.Now()
	out := make(map[string][]api.Placed, len(all))
	for i, a := range all {
		s.Pending = append(s.Pending, &schedule.Request{ID: a.id, Name: a.id, Spec: a.spec, Seq: v.Index() + 1 + uint64(i)})
		out[a.id] = nil
	}
	for _, d := range p.planner.Plan(s, now).Decisions {
		if _, ok := out[d.Group]; ok {
			out[d.Group] = d.Bundles
		}
	}
	return out
}

// placeNow is placeAll of one.
func (h *Head) placeNow(v *state.View, id string, spec api.GroupSpec) []api.Placed {
	return h.placeAll(v, []*arrival{{id: id, spec: spec}})[id]
}
