package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/cmd/troupe/torchrun"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// ownerHere identifies this process, whose end ends the job.
func ownerHere() (*api.Owner, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read the boot id: %w", err)
	}
	start, err := startTime(os.Getpid())
	if err != nil {
		return nil, err
	}
	return &api.Owner{BootID: strings.TrimSpace(string(boot)), PID: int64(os.Getpid()), StartTime: start}, nil
}

func (a *app) runCommand() *cobra.Command {
	var o jobFlags
	var detach, explain bool
	c := &cobra.Command{
		Use: "run [flags] -- COMMAND... or SCRIPT [arguments]", Short: "Run a job in the foreground and follow it",
		Long: `Run a job in the foreground and follow it. Words behind -- are the command of each
rank as it stands; without --, a SCRIPT.py is run by Python as torchrun does, and all
of torchrun's options are taken too: --explain-flags says how.

Ctrl-C stops the job, Ctrl-C again ends it by force, Ctrl-\ leaves it running. The job
ends with this command; with --detach, or after Ctrl-\, it does not. The exit code is
that of the rank that was the root cause`,
		Example: "  troupe run --ranks 4 -- python train.py\n  troupe run --ranks 4 --checkpoint-every 50steps -- python train.py\n  troupe run --detach --ranks 2 --gpus 1 -- ./train\n  troupe run --nproc-per-node 8 --max-restarts 3 train.py --epochs 3\n  troupe run --ranks 4 --working-dir . -- python train.py",
		Args:    cobra.ArbitraryArgs, Annotations: map[string]string{endless: "it stops the job itself", takesTorchrun: "yes"},
		RunE: func(c *cobra.Command, args []string) error {
			if shell := a.line.PrintCompletion(); shell != "" {
				_, _ = io.WriteString(a.out, torchrun.Completion(shell, "torchrun"))
				return nil
			}
			set, err := a.settings(c)
			if err != nil {
				return err
			}
			o.takes(c, a.line, set)
			if args = a.runCommandLine(set, args); explain {
				a.explainFlags(true, args)
				return nil
			}
			a.torchrunNotes(true)
			if err := a.runSize(c, &o, set); err != nil {
				return err
			}
			s, err := a.spec(c.Context(), c, &o, args)
			if err != nil {
				return err
			}
			return a.start(c.Context(), s, &o, set, detach)
		},
	}
	c.Flags().SetInterspersed(false)
	o.add(c)
	c.Flags().BoolVar(&explain, "explain-flags", false, "say how every option of torchrun is taken, and end")
	c.Flags().BoolVar(&detach, "detach", false, "return at once; the job does not end with this command")
	return c
}

// keyOf is the idempotency key that the flags ask for, if any.
func (o *jobFlags) keyOf(s api.JobSpec) string {
	if o.once {
		return onceKey(s)
	}
	return o.key
}

// start submits and, unless detached, owns and follows the job.
func (a *app) start(ctx context.Context, s api.JobSpec, o *jobFlags, set *torchrun.Settings, detach bool) error {
	cl, err := a.api()
	if err != nil {
		return err
	}
	if !detach {
		if s.Owner, err = ownerHere(); err != nil {
			return err
		}
	}
	j, err := a.submit(ctx, cl, s, o.sent, o.keyOf(s))
	if err != nil {
		return err
	}
	a.noteRepeat(j)
	if detach {
		a.one(j, j.ID, func() { _, _ = fmt.Fprintln(a.out, j.ID) })
		a.note("follow it with: troupe job logs -f %s", j.ID)
		return nil
	}
	a.firstLine(j)
	cl.Patience = forever
	if a.shapesOutput() {
		if a.attach, err = newConsole(a, set, cmp.Or(set.RunID, j.Run)); err != nil {
			return err
		}
		defer a.attach.close()
		a.attach.plain = func(j api.Job, at api.Attempt, r api.Rank) string {
			return prefixOf(logOptions{prefix: prefixFor(j)}, r.Rank, at.Number, "")
		}
	}
	j, how, err := a.attend(ctx, cl, j, attendance{signals: set.Signals, detach: true})
	if err != nil {
		return err
	}
	if !a.people() {
		a.one(j, j.ID, func() {})
	}
	switch how {
	case detached:
		a.tellDetached(j)
		return nil
	case stopped:
		a.note("job %s: stopped", j.ID)
		return &exitError{code: api.ExitInterrupted}
	case timedOut:
		return fail(api.ExitTimeout, "TRP-C074", "troupe job get "+j.ID, "job %s was stopped: its --timeout of %s is over", j.ID, a.limitT)
	case ended:
	}
	a.note("job %s: %s", j.ID, a.names(ctx).in(endText(j)))
	return exitOf(j)
}

// noteRepeat says that an idempotency key led to an earlier job.
func (a *app) noteRepeat(j api.Job) {
	if j.PreviouslySubmitted != nil {
		a.note("the same request was submitted %s ago: this is its job", age(time.Since(*j.PreviouslySubmitted)))
	}
}

// forever is the patience of a command that owns a job: a head that is away for long is
// no reason to let the job end.
const forever = 365 * 24 * time.Hour

func prefixFor(j api.Job) string {
	if j.Spec.Ranks == 1 {
		return "none"
	}
	return "rank"
}
