package main

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/worker/agent"
)

// restartPoll is how often the new agent is asked whether it is there.
const restartPoll = 20 * time.Millisecond

// startAgain turns this process into the program that lies at its path now, an upgrade
// included, with the same arguments. It returns only if that cannot be done.
func startAgain() error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if err := syscall.Exec(exe, os.Args, os.Environ()); err != nil {
		return fmt.Errorf("start %s again: %w", exe, err)
	}
	return nil
}

func (a *app) workerRestartCommand() *cobra.Command {
	var folder string
	var limit time.Duration
	c := &cobra.Command{
		Use: "restart", Short: "Restart or upgrade the agent of this node; its ranks go on", Args: cobra.NoArgs,
		Example: "  troupe worker restart --state /var/lib/troupe-node\n  install -m 755 troupe-new $(command -v troupe) && troupe worker restart --state /var/lib/troupe-node",
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := ownFolder(c, folder)
			if err != nil {
				return err
			}
			start := time.Now()
			before, err := agent.RequestRestart(c.Context(), dir)
			if err != nil {
				return fail(api.ExitUnreachable, "TRP-C069", "is the agent running? troupe worker start --state "+dir, "%v", err)
			}
			now, err := awaitAgent(c.Context(), dir, before, limit)
			if err != nil {
				return err
			}
			took := time.Since(start).Round(time.Millisecond)
			a.one(map[string]any{"node": now.Node, "version": now.Version, "allocations": now.Running, "seconds": took.Seconds()}, now.Node, func() {
				_, _ = fmt.Fprintf(a.out, "agent of %s restarted in %s, version %s; %s found again, none was touched\n", now.Node, took, now.Version, plural(int64(now.Running), "allocation"))
			})
			return nil
		},
	}
	c.Flags().StringVar(&folder, "state", "", "`folder`: of the node")
	c.Flags().DurationVar(&limit, "timeout", time.Minute, "`time`: to wait for the new agent")
	return c
}

// awaitAgent waits until another agent answers, a head knows it, and it has found what the
// one before had.
func awaitAgent(ctx context.Context, dir string, before agent.State, limit time.Duration) (agent.State, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last agent.State
	for {
		now, err := agent.ReadState(ctx, dir)
		if err == nil {
			last = now
			if now.Session != before.Session && (now.Registered || !before.Registered) && now.Found >= now.Running {
				return now, nil
			}
		}
		select {
		case <-ctx.Done():
			what := "no agent answers"
			if last.Session != "" && last.Session != before.Session {
				what = "the new agent runs, but no head has taken it yet"
			}
			return last, fail(api.ExitTimeout, "TRP-C074", "look at the log of the agent; ranks go on until it is back", "%s after %s", what, limit)
		case <-time.After(restartPoll):
		}
	}
}
