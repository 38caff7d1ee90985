package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

// parkCommands are the verbs by which a job waits, and those that make another of it.
func (a *app) parkCommands() []*cobra.Command {
	return []*cobra.Command{
		a.jobPark("hold", "Keep waiting jobs from starting", func(ctx context.Context, cl *troupe.Client, id, reason string) (api.Job, error) {
			return cl.HoldJob(ctx, id, reason)
		}),
		a.jobPark("release", "Let held jobs wait again", func(ctx context.Context, cl *troupe.Client, id, reason string) (api.Job, error) {
			return cl.ReleaseJob(ctx, id, reason)
		}),
		a.jobSuspend(),
		a.jobPark("resume", "Let suspended jobs wait again, with their seniority", func(ctx context.Context, cl *troupe.Client, id, reason string) (api.Job, error) {
			return cl.ResumeJob(ctx, id, reason)
		}),
		a.jobRequeue(), a.jobEdit(),
	}
}

func (a *app) jobPark(verb, short string, do func(context.Context, *troupe.Client, string, string) (api.Job, error)) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: verb + " JOB...", Short: short, Args: cobra.MinimumNArgs(1),
		Example: "  troupe job " + verb + " digits-7f3k2\n  troupe job " + verb + " @last --reason \"the data are checked\"",
		RunE: func(c *cobra.Command, args []string) error {
			return a.eachJob(c.Context(), args, func(cl *troupe.Client, id string) (api.Job, error) { return do(c.Context(), cl, id, reason) })
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "`text`: for the events")
	return c
}

// eachJob does something to several jobs and shows them as they stand then.
func (a *app) eachJob(ctx context.Context, args []string, do func(cl *troupe.Client, id string) (api.Job, error)) error {
	cl, err := a.api()
	if err != nil {
		return err
	}
	var done []api.Job
	for _, word := range args {
		id, err := a.jobID(ctx, word)
		if err != nil {
			return err
		}
		j, err := do(cl, id)
		if err != nil {
			return err
		}
		done = append(done, j)
	}
	several(a, done, func(j api.Job) string { return j.ID }, func(j api.Job) string { return string(j.State) })
	return nil
}

func (a *app) jobSuspend() *cobra.Command {
	var reason string
	var deadline time.Duration
	var noWait bool
	c := &cobra.Command{
		Use: "suspend JOB...", Short: "Let jobs save and give back what they hold, until they are resumed", Args: cobra.MinimumNArgs(1),
		Example: "  troupe job suspend digits-7f3k2\n  troupe job suspend @last --deadline 5m --no-wait",
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := a.interruptible(c.Context())
			defer stop()
			if deadline < 0 {
				return usage("--deadline %s: not negative", deadline)
			}
			return a.eachJob(ctx, args, func(cl *troupe.Client, id string) (api.Job, error) {
				j, err := cl.SuspendJob(ctx, id, deadline, reason)
				if err != nil || noWait {
					return j, err
				}
				return a.suspended(ctx, cl, j)
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "`text`: for the events")
	c.Flags().DurationVar(&deadline, "deadline", 0, "`time`: end the ranks after it, saved or not")
	c.Flags().BoolVar(&noWait, "no-wait", false, "return at once")
	return c
}

// suspended follows a suspension until nothing is held, or the job goes on or ends.
func (a *app) suspended(ctx context.Context, cl *troupe.Client, j api.Job) (api.Job, error) {
	said := ""
	for {
		text := conditionText(j, "Draining")
		if text != said && text != "" {
			said = text
			a.note("job %s: %s", j.ID, text)
		}
		if j.State == api.Suspended || j.State.Terminal() || j.State == api.Running && text == "" {
			return j, nil
		}
		var err error
		if j, err = cl.NextJob(ctx, j.ID, j.Index); err != nil {
			return j, err
		}
	}
}

func (a *app) jobRequeue() *cobra.Command {
	return &cobra.Command{
		Use: "requeue JOB...", Short: "Submit jobs that have ended once more: new jobs of the same runs", Args: cobra.MinimumNArgs(1),
		Example: "  troupe job requeue digits-7f3k2\n  troupe job requeue @last",
		RunE: func(c *cobra.Command, args []string) error {
			return a.eachJob(c.Context(), args, func(cl *troupe.Client, id string) (api.Job, error) {
				key, err := troupe.NewKey()
				if err != nil {
					return api.Job{}, err
				}
				return cl.RequeueJob(c.Context(), id, key)
			})
		},
	}
}

func (a *app) jobEdit() *cobra.Command {
	var r api.EditRequest
	var queue, tenant, deadline string
	var priority int64
	var timeLimit, estimate, maxWait longFlag
	var preemptible bool
	c := &cobra.Command{
		Use: "edit JOB", Short: "Change queue, priority and limits of a waiting job", Args: cobra.ExactArgs(1),
		Example: "  troupe job edit digits-7f3k2 --priority 50\n  troupe job edit @last --queue nlp-short --time 2h --if-version 812",
		RunE: func(c *cobra.Command, args []string) error {
			set := c.Flags().Changed
			if set("queue") {
				r.Queue = &queue
			}
			if set("tenant") {
				r.Tenant = &tenant
			}
			if set("priority") {
				r.Priority = &priority
			}
			if set("preemptible") {
				r.Preemptible = &preemptible
			}
			for flag, x := range map[string]struct {
				from *longFlag
				to   **unit.Duration
			}{"time": {&timeLimit, &r.TimeLimit}, "estimate": {&estimate, &r.Estimate}, "max-wait": {&maxWait, &r.MaxWait}} {
				if set(flag) {
					d := unit.Duration(*x.from)
					*x.to = &d
				}
			}
			if set("deadline") {
				t, err := parseWhen(deadline, time.Now())
				if err != nil {
					return usage("--deadline %v", err)
				}
				r.Deadline = &t
			}
			empty := r
			empty.IfVersion = 0
			if empty == (api.EditRequest{}) {
				return usage("%s %s: say what to change, as --priority 50", c.CommandPath(), args[0])
			}
			return a.eachJob(c.Context(), args, func(cl *troupe.Client, id string) (api.Job, error) { return cl.EditJob(c.Context(), id, r) })
		},
	}
	f := c.Flags()
	f.StringVar(&queue, "queue", "", "`queue`: to wait in")
	f.StringVar(&tenant, "tenant", "", "`tenant`: to charge")
	f.Int64Var(&priority, "priority", 0, "`N`: higher goes first")
	f.Var(&timeLimit, "time", "`time`: after which the job is ended; 0s: none")
	f.Var(&estimate, "estimate", "`time`: that it is expected to run")
	f.Var(&maxWait, "max-wait", "`time`: after which it waits no longer behind others")
	f.StringVar(&deadline, "deadline", "", "`time`: when it is to have ended, as 2030-05-01T12:00:00Z or 6h from now")
	f.BoolVar(&preemptible, "preemptible", false, "may be ended for more important work; =false: may not")
	f.Uint64Var(&r.IfVersion, "if-version", 0, "`N`: only if the job stands at this version, the index of job get")
	for _, name := range []string{"priority", "time", "estimate", "max-wait", "if-version"} {
		f.Lookup(name).DefValue = ""
	}
	return c
}

func (a *app) planCommand() *cobra.Command {
	return &cobra.Command{
		Use: "plan FILE", Short: "What would become of the job that a file describes, if it were submitted now", Args: cobra.ExactArgs(1),
		Example: "  troupe plan job.yaml\n  troupe plan job.yaml -o json",
		RunE: func(c *cobra.Command, args []string) error {
			s, _, err := readJobFile(args[0])
			if err != nil {
				return err
			}
			if len(s.Command) == 0 {
				s.Command = []string{"true"} // what runs does not matter here
			}
			if s.WorkingDir == "" {
				s.WorkingDir = "/"
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			o, err := cl.Outlook(c.Context(), s)
			if err != nil {
				return err
			}
			names := a.names(c.Context())
			a.one(o, s.Name, func() { a.printOutlook(o, names) })
			switch {
			case o.Never:
				return &exitError{code: api.ExitNever}
			case !o.Starts:
				return &exitError{code: api.ExitFailed}
			}
			return nil
		},
	}
}

func (a *app) printOutlook(o api.Outlook, names *nodeNames) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	p("%s", clean(names.in(o.Answer)))
	if len(o.Bundles) > 0 {
		on := map[string]int64{}
		var order []string
		for _, b := range o.Bundles {
			if on[b.Node] == 0 {
				order = append(order, b.Node)
			}
			on[b.Node]++
		}
		for _, n := range order {
			p("  %s  %s", n, plural(on[n], "rank"))
		}
	}
	if !o.Start.IsZero() {
		p("planned start  %s", a.soon(o.Start))
	}
	if o.Position > 0 {
		p("position       %d in its queue", o.Position)
	}
	if o.Expect > 0 {
		p("expected run   %s", age(o.Expect.D()))
	}
	for _, v := range o.Victims {
		what := "would leave"
		if v.Keeps > 0 {
			what = fmt.Sprintf("would go on with %d", v.Keeps)
		}
		p("victim         %s %s: %s", v.Name, what, clean(v.Why))
	}
	for _, q := range o.Quota {
		text := fmt.Sprintf("%s of %s: %s now, %s with it", q.Queue, q.Of, amountText(q.Of, q.Used), amountText(q.Of, q.After))
		if q.Guaranteed != nil {
			text += ", guaranteed " + amountText(q.Of, *q.Guaranteed)
		}
		if q.Limit != nil {
			text += ", limit " + amountText(q.Of, *q.Limit)
		}
		p("quota          %s", text)
	}
	for i, r := range o.Reasons {
		if r.Text == o.Answer && len(o.Reasons) == 1 {
			continue // said already
		}
		p("%3d. [%s] %s", i+1, r.Code, clean(names.in(r.Text)))
	}
}
