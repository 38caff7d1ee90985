package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

// ranksFlag takes a number of ranks, or the least and the most.
type ranksFlag jobFlags

// Set reads N or MIN:MAX.
func (r *ranksFlag) Set(s string) error {
	lo, hi, span := strings.Cut(s, ":")
	first, err := strconv.ParseInt(lo, 10, 64)
	last := first
	if err == nil && span {
		last, err = strconv.ParseInt(hi, 10, 64)
	}
	if err != nil || span && first < 1 || last < first { // a single number is looked at later
		return errors.New("a number of at least 1, or MIN:MAX")
	}
	r.ranks, r.least = last, 0
	if span {
		r.least = first
	}
	return nil
}

// String is the value as it is typed.
func (r *ranksFlag) String() string {
	if r.least > 0 {
		return fmt.Sprintf("%d:%d", r.least, r.ranks)
	}
	return strconv.FormatInt(r.ranks, 10)
}

// Type is a word for help.
func (r *ranksFlag) Type() string { return "ranks" }

// allowed are the sizes that a job may be given; nil: --ranks alone. Without --ranks the
// largest of --sizes is asked for.
func (o *jobFlags) allowed(ranks bool) (*api.Sizes, error) {
	switch {
	case len(o.sizes) > 0:
		set := slices.Clone(o.sizes)
		slices.Sort(set)
		set = slices.Compact(set)
		if o.least > 0 {
			set = slices.DeleteFunc(set, func(n int64) bool { return n < o.least || n > o.ranks })
		}
		if len(set) == 0 || set[0] < 1 {
			return nil, usage("--sizes: numbers of at least 1, within --ranks if that is a range")
		}
		if o.least > 0 || !ranks {
			o.ranks = set[len(set)-1]
		}
		if !slices.Contains(set, o.ranks) {
			return nil, usage("--ranks %d is none of --sizes", o.ranks)
		}
		return &api.Sizes{Set: set}, nil
	case o.least > 0:
		return &api.Sizes{Min: o.least, Max: o.ranks, Multiple: o.perNode}, nil
	}
	return nil, nil
}

// stopFlags are those of job stop.
type stopFlags struct {
	grace, deadline time.Duration
	reason          string
	checkpoint      string
}

func (o *stopFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.DurationVar(&o.grace, "grace", -1, "`time`: between TERM and KILL (default the job's own)")
	f.Lookup("grace").DefValue = "0"
	f.StringVar(&o.reason, "reason", "", "`text`: for the events")
	f.StringVar(&o.checkpoint, "checkpoint", "", "`wait|skip`: wait lets all ranks save after one step and end there; skip does not")
	f.Lookup("checkpoint").NoOptDefVal = "wait"
	f.DurationVar(&o.deadline, "deadline", 0, "`time`: with --checkpoint, end the job after it all the same")
}

func (o *stopFlags) check(c *cobra.Command) error {
	switch {
	case o.checkpoint != "" && o.checkpoint != "wait" && o.checkpoint != "skip":
		return usage("--checkpoint=%s: wait or skip%s", o.checkpoint, didYouMean(o.checkpoint, []string{"wait", "skip"}))
	case o.deadline < 0:
		return usage("--deadline %s: not negative", o.deadline)
	case o.deadline > 0 && o.checkpoint != "wait":
		return usage("--deadline is how long to wait for a checkpoint: add --checkpoint")
	case o.checkpoint == "wait" && c.Flags().Changed("grace"):
		return usage("--grace is for a stop without a checkpoint; --deadline bounds the wait for one")
	}
	return nil
}

// stopOne ends one job, with a checkpoint where that was asked for.
func (a *app) stopOne(ctx context.Context, cl *troupe.Client, j api.Job, o *stopFlags) (api.Job, error) {
	if o.checkpoint != "wait" || j.State.Terminal() {
		return cl.StopJob(ctx, j.ID, o.grace, o.reason)
	}
	a.note("job %s: waiting for its ranks to agree on a step, save it and end", j.ID)
	j, err := cl.StopJobSaved(ctx, j.ID, o.deadline, o.reason)
	if err == nil && j.Reason != nil {
		a.note("job %s: %s", j.ID, j.Reason.Text)
	}
	return j, err
}

func (a *app) jobScale() *cobra.Command {
	var ranks int64
	var reason string
	var noWait bool
	c := &cobra.Command{
		Use: "scale JOB --ranks N", Short: "Give a job another number of ranks, at a step that all of them save", Args: cobra.ExactArgs(1),
		Example: "  troupe job scale digits-7f3k2 --ranks 8\n  troupe job scale @last --ranks 2 --no-wait",
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := a.interruptible(c.Context())
			defer stop()
			if !c.Flags().Changed("ranks") || ranks < 1 {
				return fail(api.ExitUsage, "TRP-C064", c.CommandPath()+" "+args[0]+" --ranks 4", "%s wants --ranks: how many, at least 1", c.CommandPath())
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			j, err := a.job(ctx, args[0])
			if err != nil {
				return err
			}
			old := j.Spec.Ranks
			if j, err = cl.ScaleJob(ctx, j.ID, ranks, reason); err != nil {
				return err
			}
			if !noWait {
				if j, err = a.scaled(ctx, cl, j, ranks); err != nil {
					return err
				}
			}
			a.one(j, j.ID, func() {
				text := fmt.Sprintf("%s  %s  %s", j.ID, j.State, plural(j.Spec.Ranks, "rank"))
				if j.Spec.Ranks != old {
					text += fmt.Sprintf(", before %d", old)
				}
				_, _ = fmt.Fprintln(a.out, text)
			})
			if !noWait && j.Spec.Ranks != ranks {
				return &exitError{code: api.ExitFailed}
			}
			return nil
		},
	}
	c.Flags().Int64VarP(&ranks, "ranks", "n", 0, "`N`: ranks in all")
	c.Flags().Lookup("ranks").DefValue = ""
	c.Flags().StringVar(&reason, "reason", "", "`text`: for the events")
	c.Flags().BoolVar(&noWait, "no-wait", false, "return at once")
	return c
}

// scaled follows a resize until the job runs with its new size, or waits for its start with
// it, ended, or goes on with the old one.
func (a *app) scaled(ctx context.Context, cl *troupe.Client, j api.Job, ranks int64) (api.Job, error) {
	said := ""
	for {
		if text := conditionText(j, "Draining"); text != said && text != "" {
			said = text
			a.note("job %s: %s", j.ID, text)
		}
		waits := j.State == api.Queued || j.State == api.Held || j.State == api.Suspended
		if over := conditionText(j, "Draining") == ""; j.State.Terminal() || over && (j.State == api.Running || waits && j.Spec.Ranks == ranks) {
			return j, nil
		}
		var err error
		if j, err = cl.NextJob(ctx, j.ID, j.Index); err != nil {
			return j, err
		}
	}
}

// conditionText is the message of a condition that holds.
func conditionText(j api.Job, kind string) string {
	for _, c := range j.Conditions {
		if c.Type == kind && c.Status == "True" {
			return c.Message
		}
	}
	return ""
}
