package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

func (a *app) queueCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "queue", Aliases: []string{"queues"}, Short: "Tenants and queues: list, get, create, set, pause, resume, remove, order",
		Example: "  troupe queue list\n  troupe queue create nlp --tenant --guarantee gpu=8 --limit gpu=16\n  troupe queue order nlp --explain",
	}
	c.AddCommand(a.queueList(), a.queueGet(), a.queueCreate(), a.queueSet(), a.queueApply(), a.queuePause(), a.queueResume(), a.queueRemove(), a.queueOrder())
	return c
}

func (a *app) queueList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List tenants and queues with what they use", Args: cobra.NoArgs,
		Example: "  troupe queue list\n  troupe queue list -o wide",
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			return a.showQueues(c.Context(), cl)
		},
	}
}

func (a *app) showQueues(ctx context.Context, cl *troupe.Client) error {
	l, err := cl.Queues(ctx, a.limit)
	if err != nil {
		return err
	}
	show(a, l, func(q api.QueueStatus) string { return q.Name }, a.queueTable)
	return nil
}

// queueTable shows the tree by names; what may be used of GPUs stands in one column.
func (a *app) queueTable(qs []api.QueueStatus) table {
	t := table{head: []string{"NAME", "KIND", "PARENT", "RUNNING", "PENDING", "HELD", "GPUS", "GUARANTEED", "LIMIT", "BORROWED", "WAIT-P50", "STATE"}, right: map[int]bool{3: true, 4: true, 5: true, 6: true, 7: true, 8: true, 9: true, 10: true}}
	if a.format == "wide" {
		t.head = append(t.head, "CHARGED", "WEIGHT", "ORDER", "USED", "VERSION")
	}
	for _, q := range qs {
		used, _ := q.Charged.Get("gpu")
		borrowed := "-"
		if n, ok := q.Borrowed("gpu"); ok {
			borrowed = amountText("gpu", n)
		}
		row := []string{
			q.Name, queueKind(q.Queue), orDash(q.Parent), fmt.Sprint(q.Running), fmt.Sprint(q.Pending), fmt.Sprint(q.Parked),
			amountText("gpu", used), quotaText(q.Guaranteed, "gpu"), quotaText(q.Limit, "gpu"), borrowed, waitText(q), queueState(q, qs),
		}
		if a.format == "wide" {
			row = append(row, amountsText(q.Charged), fmt.Sprint(orElse(q.Weight, 1)), orDash(q.Order), decayedText(q), fmt.Sprint(q.Index))
		}
		t.add(row...)
	}
	return t
}

func waitText(q api.QueueStatus) string {
	if q.Pending == 0 {
		return "-"
	}
	return age(q.Waits.D())
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func queueKind(q api.Queue) string {
	if q.Tenant {
		return "tenant"
	}
	return "queue"
}

// queueState says whether work of it may start; all are those that may stand above it.
func queueState(q api.QueueStatus, all []api.QueueStatus) string {
	if q.Paused != "" {
		return "paused: " + q.Paused
	}
	if above := q.PausedAbove(all); above != nil {
		return fmt.Sprintf("paused with %s: %s", above.Name, above.Paused)
	}
	return "open"
}

// decayedText is past use as the order of requests counts it.
func decayedText(q api.QueueStatus) string {
	return fmt.Sprintf("%.1f GPU-h", float64(q.Used)/3_600_000)
}

func orElse(n *int64, other int64) int64 {
	if n == nil {
		return other
	}
	return *n
}

func quotaText(list api.Amounts, of string) string {
	if n, ok := list.Get(of); ok {
		return amountText(of, n)
	}
	return "-"
}

func (a *app) queueGet() *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "One tenant or queue", Args: cobra.ExactArgs(1),
		Example: "  troupe queue get nlp\n  troupe queue get nlp -o json",
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			q, err := cl.Queue(c.Context(), queueName(args[0]))
			if err != nil {
				return err
			}
			return a.oneQueue(c.Context(), cl, q)
		},
	}
}

func queueName(s string) string {
	return strings.TrimPrefix(strings.TrimPrefix(s, "queue/"), "tenant/")
}

func (a *app) oneQueue(ctx context.Context, cl *troupe.Client, q api.QueueStatus) error {
	var all []api.QueueStatus
	if q.Parent != "" && a.people() {
		l, err := cl.Queues(ctx, 0)
		if err != nil {
			return err
		}
		all = l.Items
	}
	a.one(q, q.Name, func() {
		p := func(k, v string) { _, _ = fmt.Fprintf(a.out, "%-12s %s\n", k, clean(v)) }
		p("name", q.Name)
		p("kind", queueKind(q.Queue))
		p("parent", orDash(q.Parent))
		p("state", queueState(q, all))
		p("guaranteed", amountsText(q.Guaranteed))
		p("limit", amountsText(q.Limit))
		p("lends", amountsText(q.Lend))
		p("charged", amountsText(q.Charged))
		if n, ok := q.Borrowed("gpu"); ok {
			p("borrowed", "gpu="+amountText("gpu", n))
		}
		p("groups", fmt.Sprintf("%d running, %d pending, %d held", q.Running, q.Pending, q.Parked))
		p("used", decayedText(q)+", decayed")
		p("weight", fmt.Sprint(orElse(q.Weight, 1)))
		p("order", cmp.Or(q.Order, "as the cluster's"))
		p("priority", fmt.Sprintf("at most %d", orElse(q.MaxPriority, 1000)))
		if q.MaxWait > 0 {
			p("max wait", q.MaxWait.String())
		}
		if len(q.Pools) > 0 {
			p("pools", strings.Join(q.Pools, ", "))
		}
		if len(q.Access) > 0 {
			p("access", strings.Join(q.Access, ", "))
		}
		p("version", fmt.Sprint(q.Index))
		if q.By != "" {
			p("changed", a.ago(q.Changed)+" by "+q.By)
		}
	})
	return nil
}

func (a *app) queueCreate() *cobra.Command {
	var o queueFlags
	c := &cobra.Command{
		Use: "create NAME", Short: "Make a tenant or queue", Args: cobra.ExactArgs(1),
		Example: "  troupe queue create nlp --tenant --guarantee gpu=8 --limit gpu=16\n  troupe queue create nlp-short --parent nlp --order short",
		RunE: func(c *cobra.Command, args []string) error {
			q := api.Queue{Name: args[0], Tenant: o.tenant}
			if err := o.into(c, &q); err != nil {
				return err
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			if old, err := cl.Queue(c.Context(), q.Name); err == nil && old.Index > 0 {
				return fail(api.ExitConflict, "TRP-C073", "troupe queue set "+q.Name, "there is a %s %s already", queueKind(old.Queue), q.Name)
			}
			return a.putQueue(c.Context(), cl, q, 0)
		},
	}
	o.add(c, true)
	return c
}

func (a *app) putQueue(ctx context.Context, cl *troupe.Client, q api.Queue, version uint64) error {
	if err := cl.PutQueues(ctx, api.QueuesRequest{Queues: []api.Queue{q}, IfVersion: version}); err != nil {
		return err
	}
	now, err := cl.Queue(ctx, q.Name)
	if err != nil {
		return err
	}
	return a.oneQueue(ctx, cl, now)
}

func (a *app) queueSet() *cobra.Command {
	var o queueFlags
	c := &cobra.Command{
		Use: "set NAME", Short: "Change a tenant or queue; what is not named stays", Args: cobra.ExactArgs(1),
		Example: "  troupe queue set nlp --limit gpu=32\n  troupe queue set nlp --weight 2 --if-version 117\n  troupe queue set nlp --no-limit gpu",
		RunE: func(c *cobra.Command, args []string) error {
			return a.setQueue(c, queueName(args[0]), &o)
		},
	}
	o.add(c, false)
	return c
}

func (a *app) setQueue(c *cobra.Command, name string, o *queueFlags) error {
	if c.Flags().NFlag() == 0 {
		return usage("%s %s: say what to change, as --limit gpu=8", c.CommandPath(), name)
	}
	cl, err := a.api()
	if err != nil {
		return err
	}
	old, err := cl.Queue(c.Context(), name)
	if err != nil {
		return err
	}
	if old.Index == 0 {
		return missing("troupe queue create "+name, "%s is used and has no record yet", name)
	}
	q := old.Queue
	if err := o.into(c, &q); err != nil {
		return err
	}
	version := old.Index // nobody else's change is lost
	if o.version > 0 {
		version = o.version
	}
	return a.putQueue(c.Context(), cl, q, version)
}

func (a *app) queueApply() *cobra.Command {
	var whole bool
	c := &cobra.Command{
		Use: "apply FILE", Short: "Make or replace the tenants and queues that a YAML or JSON file lists", Args: cobra.ExactArgs(1),
		Example: "  troupe queue apply queues.yaml\n  troupe queue apply queues.yaml --whole",
		RunE: func(c *cobra.Command, args []string) error {
			data, err := readBounded(args[0], queueFileHelp)
			if err != nil {
				return err
			}
			list, err := decodeQueues(args[0], data)
			if err != nil {
				return err
			}
			r := api.QueuesRequest{Whole: whole}
			for _, q := range list {
				r.Queues = append(r.Queues, *q)
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			if err := cl.PutQueues(c.Context(), r); err != nil {
				return err
			}
			return a.showQueues(c.Context(), cl)
		},
	}
	c.Flags().BoolVar(&whole, "whole", false, "remove what the file does not list")
	return c
}

func (a *app) queuePause() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "pause NAME", Short: "Let nothing of a tenant or queue start; what runs runs on", Args: cobra.ExactArgs(1),
		Example: "  troupe queue pause nlp --reason \"the store is being moved\"",
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			q, err := cl.PauseQueue(c.Context(), queueName(args[0]), reason)
			if err != nil {
				return err
			}
			a.one(q, q.Name, func() { _, _ = fmt.Fprintf(a.out, "%s  %s\n", q.Name, clean(queueState(q, nil))) })
			return nil
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "`text`: for everybody who waits")
	return c
}

func (a *app) queueResume() *cobra.Command {
	return &cobra.Command{
		Use: "resume NAME", Short: "Let work of a paused tenant or queue start again", Args: cobra.ExactArgs(1),
		Example: "  troupe queue resume nlp",
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			q, err := cl.ResumeQueue(c.Context(), queueName(args[0]))
			if err != nil {
				return err
			}
			a.one(q, q.Name, func() { _, _ = fmt.Fprintf(a.out, "%s  %s\n", q.Name, queueState(q, nil)) })
			return nil
		},
	}
}

// removed is what a command that removes something answers.
type removed struct {
	Removed string `json:"removed"`
}

func (a *app) queueRemove() *cobra.Command {
	var version uint64
	c := &cobra.Command{
		Use: "remove NAME", Aliases: []string{"rm"}, Short: "Remove a tenant or queue that nothing uses", Args: cobra.ExactArgs(1),
		Example: "  troupe queue remove nlp-short",
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			name := queueName(args[0])
			if err := cl.RemoveQueue(c.Context(), name, version); err != nil {
				return err
			}
			a.one(removed{name}, name, func() { _, _ = fmt.Fprintf(a.out, "%s  removed\n", name) })
			return nil
		},
	}
	c.Flags().Uint64Var(&version, "if-version", 0, "`N`: only if it stands at this version")
	c.Flags().Lookup("if-version").DefValue = ""
	return c
}

func (a *app) queueOrder() *cobra.Command {
	var explain bool
	c := &cobra.Command{
		Use: "order [NAME]", Short: "What waits, in the order in which it is looked at", Args: cobra.MaximumNArgs(1),
		Example: "  troupe queue order\n  troupe queue order nlp --explain",
		RunE: func(c *cobra.Command, args []string) error {
			name := ""
			if len(args) > 0 {
				name = queueName(args[0])
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			l, err := cl.QueueOrder(c.Context(), name, a.limit)
			if err != nil {
				return err
			}
			names := a.names(c.Context())
			show(a, l, func(o api.OrderRow) string { return o.Group }, func(rows []api.OrderRow) table {
				t := table{head: []string{"POS", "JOB", "USER", "TENANT", "QUEUE", "PRIO", "NEED", "SINCE", "EXPECT", "EST-START"}, right: map[int]bool{0: true, 5: true}}
				if explain {
					t.head = append(t.head, "BLOCKER")
				}
				for _, o := range rows {
					row := []string{
						fmt.Sprint(o.Position), o.Name, orDash(o.User), o.Tenant, o.Queue, fmt.Sprint(o.Priority), amountsText(o.Need),
						a.when(o.Since), age(o.Expect.D()), a.soon(o.Start),
					}
					if explain {
						text := "starts now"
						if o.Reason != nil {
							text = names.in(o.Reason.Text)
						}
						row = append(row, text)
					}
					t.add(row...)
				}
				return t
			})
			return nil
		},
	}
	c.Flags().BoolVar(&explain, "explain", false, "say what is in the way of each")
	return c
}
