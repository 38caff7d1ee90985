package actor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Where is what a caller must know of an actor to call it.
type Where struct {
	Generation uint64
	Alive      bool // it answers now
	Dead       bool // it never will again
}

// Locator finds an actor. changed asks for news after the known Where did not work:
// it may wait for a while.
type Locator func(ctx context.Context, id string, changed bool) (Where, error)

// Caller calls one actor. Calls of one Caller are executed in the order in which they
// were made when each is made after the former returned.
type Caller struct {
	ID     string
	Name   string // of the caller, random
	Bus    bus.Conn
	Locate Locator

	mu    sync.Mutex
	known bool
	where Where
	seq   uint64
}

// A call that has not been answered asks where the actor is, first soon and then less
// often: an instance that died with the call never answers it.
const (
	firstLook   = 100 * time.Millisecond
	slowestLook = 5 * time.Second
)

// errMoved ends the wait for an instance that is no more.
var errMoved = errors.New("the instance that was asked is gone")

// Call sends one call and waits for its answer, through restarts until ctx ends. The
// method runs at most once: a call whose fate is unknown, because the instance went
// away while it held it, ends with ErrUnavailable and is not repeated.
func (c *Caller) Call(ctx context.Context, method string, args []byte) ([]byte, error) {
	if len(args) > MaxPayload {
		return nil, fmt.Errorf("%w: %d bytes of arguments, at most %d go inline", ErrTooLarge, len(args), MaxPayload)
	}
	changed := false
	for {
		w, err := c.find(ctx, changed)
		if err != nil {
			return nil, err
		}
		if w.Dead {
			return nil, fmt.Errorf("%w: %s", ErrDied, c.ID)
		}
		changed = true
		if !w.Alive {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("%w: %s restarts: %w", ErrUnavailable, c.ID, ctx.Err())
			}
			continue
		}
		result, again, err := c.once(ctx, w, method, args)
		if !again {
			return result, err
		}
	}
}

func (c *Caller) find(ctx context.Context, changed bool) (Where, error) {
	c.mu.Lock()
	w, known := c.where, c.known
	c.mu.Unlock()
	if known && !changed && w.Alive {
		return w, nil
	}
	w, err := c.Locate(ctx, c.ID, changed)
	if err != nil {
		if ctx.Err() != nil {
			return Where{}, fmt.Errorf("%w: %s: %w", ErrUnavailable, c.ID, ctx.Err())
		}
		return Where{}, err
	}
	c.mu.Lock()
	c.where, c.known = w, true
	c.mu.Unlock()
	return w, nil
}

// once makes one try; again says that nothing was executed and another may follow.
func (c *Caller) once(ctx context.Context, w Where, method string, args []byte) (result []byte, again bool, err error) {
	c.mu.Lock()
	c.seq++
	q := call{Generation: w.Generation, Caller: c.Name, Seq: c.seq, Method: method, Args: args}
	c.mu.Unlock()
	if d, ok := ctx.Deadline(); ok {
		q.Timeout = max(time.Until(d).Milliseconds(), 1)
	}
	rctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	data, err := wire.Marshal(q)
	if err != nil {
		return nil, false, err
	}
	go c.watch(rctx, w, cancel)
	raw, err := c.Bus.Request(rctx, wire.ActorCall(c.ID, w.Generation), data)
	if errors.Is(err, bus.ErrNoResponder) {
		return nil, true, nil
	}
	if errors.Is(context.Cause(rctx), errMoved) && err != nil {
		return nil, false, fmt.Errorf("%w: %s: %w; whether the call ran is not known", ErrUnavailable, c.ID, errMoved)
	}
	if err != nil {
		return nil, false, fmt.Errorf("%w: %s did not answer: %w", ErrUnavailable, c.ID, err)
	}
	var r reply
	if err := wire.Unmarshal(raw, &r); err != nil {
		return nil, false, fmt.Errorf("actor: the answer of %s: %w", c.ID, err)
	}
	if r.Code == codeStale {
		return nil, true, nil // it runs under another generation; nothing was executed
	}
	if r.Generation != w.Generation {
		// P3: an answer of an instance that was not asked is no answer.
		return nil, false, fmt.Errorf("%w: %s answered as %d, asked was %d", ErrStale, c.ID, r.Generation, w.Generation)
	}
	switch r.Code {
	case "":
		return r.Result, false, nil
	case codeBusy:
		return nil, false, fmt.Errorf("%w: %s: %s", ErrBusy, c.ID, r.Text)
	case codeNoMethod:
		return nil, false, fmt.Errorf("%w: %s: %s", ErrNoMethod, c.ID, r.Text)
	case codeTooLarge:
		return nil, false, fmt.Errorf("%w: %s", ErrTooLarge, r.Text)
	}
	return nil, false, &MethodError{Text: r.Text}
}

// watch gives a call up when the instance that holds it is no more.
func (c *Caller) watch(ctx context.Context, w Where, moved context.CancelCauseFunc) {
	for wait := firstLook; ; wait = min(2*wait, slowestLook) {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		now, err := c.Locate(ctx, c.ID, false)
		if err == nil && (now.Dead || now.Generation > w.Generation) {
			moved(errMoved)
			return
		}
	}
}
