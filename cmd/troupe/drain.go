package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

// nodeState is a node's state in a table: what its heartbeats say, and whether it takes
// work.
func nodeState(n api.Node) string {
	if w := n.Cordon.Word(); w != "" {
		if n.Cordon.Notice != nil {
			w += ",noticed"
		}
		return string(n.State) + "," + w
	}
	return string(n.State)
}

func (a *app) nodeGet() *cobra.Command {
	return &cobra.Command{
		Use: "get NODE", Short: "One node: resources, devices, what is still there when it is drained", Args: cobra.ExactArgs(1),
		Example: "  troupe node get gpu-3\n  troupe node get gpu-3 -o json",
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			n, err := cl.Node(c.Context(), strings.TrimPrefix(args[0], "node/"))
			if err != nil {
				return err
			}
			a.one(n, n.Name, func() { a.nodeDetail(n) })
			return nil
		},
	}
}

func (a *app) nodeDetail(n api.Node) {
	p := func(k, format string, args ...any) {
		_, _ = fmt.Fprintf(a.out, "%-12s %s\n", k, clean(fmt.Sprintf(format, args...)))
	}
	p("Node", "%s", n.Name)
	p("Id", "%s", n.ID)
	p("State", "%s", nodeState(n))
	if c := n.Cordon; c != nil {
		if c.Reason != "" {
			p("Reason", "%s", c.Reason)
		}
		p("Since", "%s", a.ago(c.Since))
		if !c.Deadline.IsZero() {
			p("Deadline", "%s", c.Deadline.Local().Format(time.DateTime))
		}
		if s := c.Notice; s != nil {
			p("Notice", "%s, it may be gone at %s", a.ago(s.Since), s.Deadline.Local().Format(time.DateTime))
		}
	}
	p("Address", "%s", n.Address)
	p("Heartbeat", "%s", a.ago(n.LastHeartbeat))
	p("Version", "%s", n.Version)
	if len(n.Labels) > 0 {
		p("Labels", "%s", labelsText(n.Labels))
	}
	p("CPU", "%s of %s", n.Allocated.CPU, n.Capacity.CPU)
	p("Memory", "%s of %s", bytesText(int64(n.Allocated.Memory)), bytesText(int64(n.Capacity.Memory)))
	p("GPUs", "%d of %d", n.Allocated.GPUs, n.Capacity.GPUs)
	p("Groups", "%s", strings.Join(n.Groups, ", "))
	if n.Cordon != nil && len(n.Cordon.Jobs) > 0 {
		_, _ = fmt.Fprintln(a.out)
		t := table{head: []string{"JOB", "GROUP", "WAITS-FOR"}}
		for _, w := range n.Cordon.Jobs {
			t.add(w.Job, w.Group, w.Waits)
		}
		a.print(t)
	}
}

func (a *app) nodeDrain() *cobra.Command {
	var deadline time.Duration
	var reason string
	var noWait bool
	c := &cobra.Command{
		Use: "drain NODE", Short: "Let everything leave a node: jobs save at an agreed step and go on elsewhere", Args: cobra.ExactArgs(1),
		Example: "  troupe node drain gpu-3 --reason \"new fan\"\n  troupe node drain gpu-3 --deadline 10m\n  troupe node drain gpu-3 --no-wait",
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := a.interruptible(c.Context())
			defer stop()
			if deadline < 0 {
				return usage("--deadline %s: not negative", deadline)
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			n, err := cl.DrainNode(ctx, strings.TrimPrefix(args[0], "node/"), deadline, reason)
			if err != nil {
				return err
			}
			if !noWait {
				if n, err = a.drained(ctx, cl, n); err != nil {
					return err
				}
			}
			a.one(n, n.Name, func() { _, _ = fmt.Fprintf(a.out, "%s  %s\n", n.Name, nodeState(n)) })
			return nil
		},
	}
	c.Flags().DurationVar(&deadline, "deadline", 0, "`time`: end by force what has not left after it (default never)")
	c.Flags().StringVar(&reason, "reason", "", "`text`: why, for events and whoever waits")
	c.Flags().BoolVar(&noWait, "no-wait", false, "return at once; troupe node get shows what is still there")
	return c
}

// drained follows a drain and says what each job waits for whenever that changes.
func (a *app) drained(ctx context.Context, cl *troupe.Client, n api.Node) (api.Node, error) {
	said := map[string]string{}
	for {
		if n.Cordon == nil || !n.Cordon.Drain {
			a.note("node %s is not drained any more: somebody took it back", n.Name)
			return n, &exitError{code: api.ExitConflict}
		}
		for _, w := range n.Cordon.Jobs {
			what := w.Job
			if what == "" {
				what = "pg/" + w.Group
			}
			if said[what] != w.Waits {
				said[what] = w.Waits
				a.note("%s waits for %s", what, w.Waits)
			}
		}
		if n.Cordon.Drained {
			return n, nil
		}
		t := time.NewTimer(300 * time.Millisecond)
		select {
		case <-ctx.Done():
			t.Stop()
			a.note("the drain goes on; take it back with: troupe node undrain %s", n.Name)
			return n, ctx.Err()
		case <-t.C:
		}
		var err error
		if n, err = cl.Node(ctx, n.ID); err != nil {
			return n, err
		}
	}
}

func (a *app) nodeCordon() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "cordon NODE", Short: "Keep new work off a node; what runs there runs on", Args: cobra.ExactArgs(1),
		Example: "  troupe node cordon gpu-3 --reason \"to be looked at\"",
		RunE: func(c *cobra.Command, args []string) error {
			return a.onNode(c.Context(), args[0], func(ctx context.Context, cl *troupe.Client, id string) (api.Node, error) {
				return cl.CordonNode(ctx, id, reason)
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "`text`: why, for events and whoever waits")
	return c
}

func (a *app) nodeUncordon() *cobra.Command {
	return &cobra.Command{
		Use: "uncordon NODE", Aliases: []string{"undrain"}, Short: "Let a node take work again, and end its drain", Args: cobra.ExactArgs(1),
		Example: "  troupe node uncordon gpu-3\n  troupe node undrain gpu-3",
		RunE: func(c *cobra.Command, args []string) error {
			return a.onNode(c.Context(), args[0], func(ctx context.Context, cl *troupe.Client, id string) (api.Node, error) {
				return cl.UncordonNode(ctx, id)
			})
		},
	}
}

func (a *app) onNode(ctx context.Context, id string, f func(context.Context, *troupe.Client, string) (api.Node, error)) error {
	cl, err := a.api()
	if err != nil {
		return err
	}
	n, err := f(ctx, cl, strings.TrimPrefix(id, "node/"))
	if err != nil {
		return err
	}
	a.one(n, n.Name, func() { _, _ = fmt.Fprintf(a.out, "%s  %s\n", n.Name, nodeState(n)) })
	return nil
}
