// Command actors keeps a counter in an actor, kills its process, and goes on with the
// next one. Started with the argument actor-host, which Troupe does, it is the actor.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	program := drive
	if len(os.Args) > 1 && os.Args[1] == "actor-host" {
		program = host
	}
	if err := program(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// host is the actor's process: it knows how to make a counter, and serves the one that
// Troupe started it for.
func host(ctx context.Context) error {
	err := troupe.RegisterActor("counter", func(_ context.Context, start int64) (troupe.Instance, error) {
		n := start
		return troupe.Instance{
			"add": troupe.Method(func(_ context.Context, by int64) (int64, error) {
				n += by // one call at a time: no lock
				return n, nil
			}),
		}, nil
	})
	if err != nil {
		return err
	}
	return troupe.ServeActor(ctx, slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

// drive is what a user does with it.
func drive(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	client, err := troupe.Connect()
	if err != nil {
		return err
	}
	group, err := client.CreateGroup(ctx, api.GroupSpec{Name: "actors", Bundles: []api.Bundle{{Resources: api.Resources{CPU: 100}}}}, "")
	if err != nil {
		return err
	}
	defer func() {
		_, rerr := client.RemoveGroup(context.WithoutCancel(ctx), group.ID)
		err = errors.Join(err, rerr)
	}()
	counter, err := client.CreateActor(ctx, troupe.ActorOptions{
		Class: "counter", Name: "counter", Args: int64(100), MaxRestarts: 2, PlacementGroup: group.ID,
	})
	if err != nil {
		return err
	}
	defer func() {
		// Nothing may be left, whatever happened; killing the dead is no error.
		err = errors.Join(err, counter.Kill(context.WithoutCancel(ctx)))
		counter.Close()
	}()
	if err := add(ctx, client, counter); err != nil {
		return err
	}
	if err := add(ctx, client, counter); err != nil {
		return err
	}

	before, err := client.Actor(ctx, counter.ID)
	if err != nil {
		return err
	}
	if err := syscall.Kill(int(before.PID), syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d: %w", before.PID, err)
	}
	fmt.Printf("killed process of generation %d\n", before.Generation)

	// The handle stays good. What the dead process held is gone, as it would be for a
	// rank that saved nothing; the counter begins again.
	if err := add(ctx, client, counter); err != nil {
		return err
	}
	after, err := client.Actor(ctx, counter.ID)
	if err != nil {
		return err
	}
	if after.Generation <= before.Generation {
		return fmt.Errorf("generation %d follows %d", after.Generation, before.Generation)
	}
	if err := counter.Kill(ctx); err != nil {
		return err
	}
	last, err := client.Actor(ctx, counter.ID)
	if err != nil {
		return err
	}
	fmt.Printf("actor %s is %s\n", last.Name, last.State)
	return nil
}

// add calls the actor and prints its answer and where it came from. A call that the
// death of the process cut off may have run or not: it is safe to repeat only because
// nothing of the dead counter is left.
func add(ctx context.Context, client *troupe.Client, counter *troupe.Actor) error {
	for {
		var n int64
		err := counter.Call(ctx, "add", int64(1), &n)
		if errors.Is(err, troupe.ErrActorUnavailable) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return err
		}
		a, err := client.Actor(ctx, counter.ID)
		if err != nil {
			return err
		}
		fmt.Printf("counter is %d: %s, %d restarts, generation %d\n", n, a.State, a.Restarts, a.Generation)
		return nil
	}
}
