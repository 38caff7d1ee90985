// Command sdk-go runs a job from Go: it holds two bundles, runs two ranks in them,
// prints what they write and how the job ended, and gives the bundles back.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	// The cluster that the troupe command uses here: environment, then configuration.
	client, err := troupe.Connect()
	if err != nil {
		return err
	}

	// Whole or waiting: the group holds both bundles or none.
	each := api.Bundle{Resources: api.Resources{CPU: 100}} // in thousandths
	group, err := client.CreateGroup(ctx, api.GroupSpec{Name: "example", Bundles: []api.Bundle{each, each}, Strategy: api.Pack}, "")
	if err != nil {
		return err
	}
	defer func() {
		// Also when ctx is over: what is held must be given back.
		removed, rerr := client.RemoveGroup(context.WithoutCancel(ctx), group.ID)
		if rerr == nil {
			fmt.Printf("group %s: %s\n", removed.ID, removed.State)
		}
		err = errors.Join(err, rerr)
	}()
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if group, err = client.WaitGroup(wait, group.ID); err != nil {
		if group.Reason != nil {
			return fmt.Errorf("the group waits: %s", group.Reason.Text)
		}
		return err
	}
	for _, b := range group.Bundles {
		fmt.Printf("group %s: bundle %d on %s\n", group.ID, b.Bundle, b.Node)
	}

	job, err := client.SubmitJob(ctx, api.JobSpec{
		Name: "hello", Command: []string{"sh", "-c", "echo hello from rank $RANK of $WORLD_SIZE"},
		Ranks: 2, PlacementGroup: group.ID,
	}, "")
	if err != nil {
		return err
	}
	if err := follow(ctx, client, job); err != nil {
		return err
	}
	if job, err = client.WaitJob(ctx, job.ID, nil); err != nil {
		return err
	}
	fmt.Printf("job %s: %s\n", job.ID, job.State)
	if job.State != api.Succeeded {
		return fmt.Errorf("%s", job.Reason.Text)
	}
	return nil
}

// follow prints what every rank writes, as it comes, until the ranks have ended.
func follow(ctx context.Context, client *troupe.Client, job api.Job) error {
	var mu sync.Mutex
	errs := make([]error, job.Spec.Ranks)
	var all sync.WaitGroup
	for rank := range job.Spec.Ranks {
		all.Go(func() {
			_, errs[rank] = client.FollowLog(ctx, job.ID, rank, -1, "stdout", 0, func(p []byte) error {
				mu.Lock()
				defer mu.Unlock()
				_, err := os.Stdout.Write(p)
				return err
			})
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
