package troupe

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/runtime/actor"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// Errors of actor calls: Died is final, Unavailable may be tried again.
var (
	ErrActorDied        = actor.ErrDied
	ErrActorUnavailable = actor.ErrUnavailable
)

// Instance is the methods of one actor; Method makes one of a function.
type Instance = actor.Instance

// Method makes a method of a function with one argument and one result.
func Method[A, R any](f func(ctx context.Context, arg A) (R, error)) actor.Method {
	return actor.Func(f)
}

// RegisterActor makes a factory known under a class name in this program. Its
// argument is what the creator passed, decoded.
func RegisterActor[A any](class string, f func(ctx context.Context, arg A) (Instance, error)) error {
	return actor.Register(class, func(ctx context.Context, args []byte) (actor.Instance, error) {
		var a A
		if len(args) > 0 {
			if err := wire.Unmarshal(args, &a); err != nil {
				return nil, fmt.Errorf("arguments: %w", err)
			}
		}
		return f(ctx, a)
	})
}

// ServeActor hosts the actor that Troupe started this process for, until ctx ends.
func ServeActor(ctx context.Context, log *slog.Logger) error { return actor.Main(ctx, log) }

// ActorOptions of a new actor.
type ActorOptions struct {
	Class     string
	Args      any
	Name      string // unique among live actors of the namespace
	Namespace string
	// Command starts the host program; default this program with the argument
	// "actor-host", which must then call ServeActor.
	Command     []string
	Env         map[string]string
	MaxRestarts int64 // -1: for ever
	MaxPending  int64
	Resources   api.Resources
	// PlacementGroup and Bundle place it in an existing group.
	PlacementGroup string
	Bundle         int64
}

// CreateActor submits an actor and returns its handle without waiting for it: calls
// wait until it answers.
func (c *Client) CreateActor(ctx context.Context, o ActorOptions) (*Actor, error) {
	if len(o.Command) == 0 {
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("troupe: find this program: %w", err)
		}
		o.Command = []string{exe, "actor-host"}
	}
	var args []byte
	if o.Args != nil {
		var err error
		if args, err = wire.Marshal(o.Args); err != nil {
			return nil, fmt.Errorf("troupe: encode the actor's arguments: %w", err)
		}
	}
	name := o.Name
	if name == "" {
		name = o.Class
	}
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("troupe: draw a run name: %w", err)
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("troupe: find the working directory: %w", err)
	}
	spec := api.JobSpec{
		Name: name, Kind: api.KindActor, Run: "actor-" + hex.EncodeToString(b[:]), Command: o.Command, WorkingDir: dir,
		Env: o.Env, Ranks: 1, Resources: o.Resources,
		Actor: &api.ActorSpec{Name: o.Name, Namespace: o.Namespace, Class: o.Class, Args: args, MaxRestarts: o.MaxRestarts, MaxPending: o.MaxPending},
	}
	if o.PlacementGroup != "" {
		spec.PlacementGroup, spec.Bundles = o.PlacementGroup, []int64{o.Bundle}
	}
	j, err := c.SubmitJob(ctx, spec, "")
	if err != nil {
		return nil, err
	}
	return c.handle(ctx, j.ID)
}

// GetActor finds a live actor by id, name or namespace/name.
func (c *Client) GetActor(ctx context.Context, id string) (*Actor, error) {
	a, err := c.Actor(ctx, id)
	if err != nil {
		return nil, err
	}
	if a.State == "DEAD" {
		return nil, fmt.Errorf("%w: %s", ErrActorDied, id)
	}
	return c.handle(ctx, a.ID)
}

// freshAfter is how long a connection that is down is left to come back by itself
// before the handle asks for new credentials: those of the old one may be over.
const freshAfter = 2 * time.Second

// Actor is a handle; it stays good through restarts of the actor and of the head, and
// is safe for concurrent use.
type Actor struct {
	ID     string
	client *Client

	mu     sync.Mutex
	conn   bus.Conn
	caller *actor.Caller
	since  time.Time // of the credentials
	closed bool
}

func (c *Client) handle(ctx context.Context, id string) (*Actor, error) {
	a := &Actor{ID: id, client: c}
	_, err := a.reach(ctx)
	return a, err
}

// reach returns the caller, over a new connection if the old one is down and has had
// time to come back.
func (a *Actor) reach(ctx context.Context) (*actor.Caller, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, fmt.Errorf("troupe: the handle of actor %s was closed: %w", a.ID, bus.ErrClosed)
	}
	if a.conn != nil && (a.conn.Connected() || time.Since(a.since) < freshAfter) {
		return a.caller, nil
	}
	access, err := a.client.BusAccess(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := bus.Dial(ctx, bus.DialOptions{URLs: access.URLs, User: access.User, Password: access.Password, Name: "sdk", InboxPrefix: access.InboxPrefix})
	if err != nil {
		return nil, fmt.Errorf("troupe: reach the bus: %w", err)
	}
	if a.conn != nil {
		a.conn.Close()
	}
	a.conn, a.since = conn, time.Now()
	a.caller = &actor.Caller{ID: a.ID, Name: access.User, Bus: conn, Locate: a.locate}
	return a.caller, nil
}

// locate asks the head where the actor is; with changed it looks again until the
// answer can be acted on, at a pace that grows.
func (a *Actor) locate(ctx context.Context, id string, changed bool) (actor.Where, error) {
	wait := 5 * time.Millisecond
	for first := true; ; first = false {
		v, err := a.client.Actor(ctx, id)
		if err != nil {
			return actor.Where{}, err
		}
		w := actor.Where{Generation: v.Generation, Alive: v.State == "ALIVE", Dead: v.State == "DEAD"}
		if w.Dead || w.Alive && (!changed || !first) {
			return w, nil
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return actor.Where{}, ctx.Err()
		}
		wait = min(wait*2, 200*time.Millisecond)
	}
}

// Call calls a method and decodes its result into out, which may be nil. It waits
// through restarts until ctx ends; the method runs at most once.
func (a *Actor) Call(ctx context.Context, method string, arg, out any) error {
	args, err := wire.Marshal(arg)
	if err != nil {
		return fmt.Errorf("troupe: encode the arguments of %s: %w", method, err)
	}
	caller, err := a.reach(ctx)
	if err != nil {
		return err
	}
	result, err := caller.Call(ctx, method, args)
	if err != nil || out == nil {
		return err
	}
	if err := wire.Unmarshal(result, out); err != nil {
		return fmt.Errorf("troupe: the result of %s: %w", method, err)
	}
	return nil
}

// Kill ends the actor for good.
func (a *Actor) Kill(ctx context.Context) error {
	_, err := a.client.KillActor(ctx, a.ID, false)
	return err
}

// Close gives up the handle; the actor lives on.
func (a *Actor) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed && a.conn != nil {
		a.conn.Close()
	}
	a.closed = true
}

// IsMethodError reports whether a call failed by the method's own error, and its text.
func IsMethodError(err error) (text string, ok bool) {
	if m, ok := errors.AsType[*actor.MethodError](err); ok {
		return m.Text, true
	}
	return "", false
}
