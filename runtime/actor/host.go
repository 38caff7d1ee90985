package actor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// HostOptions of one instance.
type HostOptions struct {
	ID         string // of the actor
	Generation uint64
	Class      string
	Args       []byte
	MaxPending int64 // default DefaultMaxPending
	Bus        bus.Conn
	Logger     *slog.Logger
}

// job is a call in the mailbox.
type job struct {
	call call
	msg  bus.Msg
	at   time.Time
}

// Host makes the instance and answers calls until ctx ends. It returns an error when
// the class is unknown, the factory fails or the bus refuses the subject.
func Host(ctx context.Context, o HostOptions) error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxPending <= 0 {
		o.MaxPending = DefaultMaxPending
	}
	factory, err := lookup(o.Class)
	if err != nil {
		return err
	}
	instance, err := factory(ctx, o.Args)
	if err != nil {
		return fmt.Errorf("actor: the factory of class %q failed: %w", o.Class, err)
	}
	mailbox := make(chan job, o.MaxPending)
	un, err := o.Bus.Subscribe(wire.ActorCall(o.ID, o.Generation), func(m bus.Msg) {
		var c call
		if err := wire.Unmarshal(m.Data, &c); err != nil {
			o.Logger.Warn("a malformed call was dropped", "actor", o.ID, "err", err)
			return
		}
		if c.Generation != o.Generation {
			answer(o, m, reply{Code: codeStale, Text: fmt.Sprintf("generation %d; this is %d", c.Generation, o.Generation)})
			return
		}
		select {
		case mailbox <- job{call: c, msg: m, at: time.Now()}:
		default:
			answer(o, m, reply{Code: codeBusy, Text: fmt.Sprintf("%d calls wait", o.MaxPending)})
		}
	})
	if err != nil {
		return fmt.Errorf("actor: listen for calls: %w", err)
	}
	defer un()
	for {
		select {
		case <-ctx.Done():
			return nil
		case j := <-mailbox:
			answer(o, j.msg, perform(ctx, instance, j))
		}
	}
}

// perform runs one call; the mailbox runs them one at a time.
func perform(ctx context.Context, instance Instance, j job) (r reply) {
	method := instance[j.call.Method]
	if method == nil {
		return reply{Code: codeNoMethod, Text: fmt.Sprintf("no method %q", j.call.Method)}
	}
	if t := time.Duration(j.call.Timeout) * time.Millisecond; t > 0 {
		left := t - time.Since(j.at)
		if left <= 0 {
			return reply{Code: codeMethod, Text: "the caller's time was over before the call's turn came"}
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, left)
		defer cancel()
	}
	defer func() {
		// A panicking method is that method's failure, not the instance's end.
		if p := recover(); p != nil {
			r = reply{Code: codeMethod, Text: fmt.Sprintf("panic: %v\n%s", p, clip(string(debug.Stack()), 4<<10))}
		}
	}()
	result, err := method(ctx, j.call.Args)
	switch {
	case err != nil:
		return reply{Code: codeMethod, Text: clip(err.Error(), 8<<10)}
	case len(result) > MaxPayload:
		return reply{Code: codeTooLarge, Text: fmt.Sprintf("the result has %d bytes; at most %d go inline", len(result), MaxPayload)}
	}
	return reply{Result: result}
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

func answer(o HostOptions, m bus.Msg, r reply) {
	r.Generation = o.Generation
	data, err := wire.Marshal(r)
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil && !errors.Is(err, bus.ErrClosed) {
		o.Logger.Debug("an answer was not sent", "actor", o.ID, "err", err)
	}
}
