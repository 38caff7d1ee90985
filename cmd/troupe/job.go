package main

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

func (a *app) jobCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "job", Aliases: []string{"jobs"}, Short: "Jobs: list, get, logs, stop, scale, hold, suspend, requeue, edit, events, wait, signal, history, failures, goodput, stack",
		Example: "  troupe job list\n  troupe job logs -f digits-7f3k2\n  troupe job stop digits-7f3k2",
	}
	c.AddCommand(a.accountCommands()...)
	c.AddCommand(a.parkCommands()...)
	c.AddCommand(a.jobList(), a.jobGet(), a.jobLogs(), a.jobStop(), a.jobScale(), a.jobEvents(), a.jobWait(), a.jobSignal())
	return c
}

// shortcuts are the words people type without the noun.
func (a *app) shortcuts() []*cobra.Command {
	ps, logs, stop, wait := a.jobList(), a.jobLogs(), a.jobStop(), a.jobWait()
	ps.Use, ps.Aliases = "ps", nil
	ps.Example = strings.ReplaceAll(ps.Example, "troupe job list", "troupe ps")
	for _, c := range []*cobra.Command{ps, logs, stop, wait} {
		c.Example = strings.ReplaceAll(c.Example, "troupe job ", "troupe ")
		c.Short += " (troupe job …)"
	}
	return []*cobra.Command{ps, logs, stop, wait}
}

// jobID resolves @last to the newest job; a job/ prefix is dropped.
func (a *app) jobID(ctx context.Context, id string) (string, error) {
	id = strings.TrimPrefix(id, "job/")
	if id != "@last" {
		return id, nil
	}
	c, err := a.api()
	if err != nil {
		return "", err
	}
	l, err := c.Jobs(ctx, 1)
	if err != nil {
		return "", err
	}
	if len(l.Items) == 0 {
		return "", missing("troupe run -- COMMAND", "there is no job yet")
	}
	return l.Items[0].ID, nil
}

// apiFor is the head of the current context and the job, or run, that a word names.
func (a *app) apiFor(ctx context.Context, word string) (*troupe.Client, string, error) {
	cl, err := a.api()
	if err != nil {
		return nil, "", err
	}
	id, err := a.jobID(ctx, word)
	return cl, id, err
}

func (a *app) jobList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List jobs, the newest first", Args: cobra.NoArgs,
		Example: "  troupe job list\n  troupe job list --all -o wide\n  troupe job list -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			l, err := cl.Jobs(c.Context(), a.limit)
			if err != nil {
				return err
			}
			names := a.names(c.Context())
			show(a, l, func(j api.Job) string { return j.ID }, func(js []api.Job) table {
				t := table{head: []string{"ID", "USER", "QUEUE", "STATE", "RANKS", "GPUS", "STEP", a.ageHead(), "REASON"}, right: map[int]bool{4: true, 5: true, 6: true}}
				if a.format == "wide" {
					t.head = append(t.head, "ATTEMPT", "COMMITTED", "RUN", "PLACEMENT-GROUP", "TENANT", "PRIORITY")
				}
				for _, j := range js {
					row := []string{j.ID, j.User, j.Spec.Queue, string(j.State), fmt.Sprint(j.Spec.Ranks), jobGPUs(j), number(j.Step), a.when(j.Created), names.in(reasonText(j))}
					if a.format == "wide" {
						row = append(row, fmt.Sprint(j.Attempt), number(j.Committed), j.Run, j.Group, j.Tenant, fmt.Sprint(j.Spec.Priority))
					}
					t.add(row...)
				}
				return t
			})
			return nil
		},
	}
}

func reasonText(j api.Job) string {
	if j.Reason == nil || j.State == api.Running {
		return ""
	}
	return j.Reason.Text
}

func (a *app) jobGet() *cobra.Command {
	return &cobra.Command{
		Use: "get JOB", Short: "One job: attempts, ranks, failures", Args: cobra.ExactArgs(1),
		Example: "  troupe job get digits-7f3k2\n  troupe job get @last -o json",
		RunE: func(c *cobra.Command, args []string) error {
			j, err := a.job(c.Context(), args[0])
			if err != nil {
				return err
			}
			a.one(j, j.ID, func() { a.jobDetail(c.Context(), j) })
			return nil
		},
	}
}

func (a *app) job(ctx context.Context, id string) (api.Job, error) {
	cl, id, err := a.apiFor(ctx, id)
	if err != nil {
		return api.Job{}, err
	}
	return cl.Job(ctx, id)
}

func (a *app) jobDetail(ctx context.Context, j api.Job) {
	names := a.names(ctx)
	p := func(k, format string, args ...any) {
		_, _ = fmt.Fprintf(a.out, "%-12s %s\n", k, clean(fmt.Sprintf(format, args...)))
	}
	p("Job", "%s", j.ID)
	p("State", "%s", j.State)
	if j.Reason != nil {
		p("Reason", "%s", names.in(j.Reason.Text))
	}
	p("Command", "%s", shellText(j.Spec.Command))
	if j.Spec.Package != "" {
		p("Package", "%s", j.Spec.Package)
	}
	p("Ranks", "%d, each %s", j.Spec.Ranks, resourcesText(j.Spec.Resources))
	p("Charged to", "%s", chargedText(j))
	if j.Spec.Priority != 0 {
		p("Priority", "%d", j.Spec.Priority)
	}
	p("Run", "%s", j.Run)
	p("Group", "%s", j.Group)
	if s := j.Spares; s != nil {
		text := strings.Join(s.Nodes, ", ")
		if s.Waits != "" {
			text = fmt.Sprintf("%d of %d held; waits for %s", len(s.Nodes), s.Want, s.Waits)
		}
		p("Spares", "%s", text)
	}
	p("Created", "%s", a.ago(j.Created))
	if !j.Ended.IsZero() {
		p("Ended", "%s", a.ago(j.Ended))
	}
	if j.ExitCode != nil {
		p("Exit code", "%d", *j.ExitCode)
	}
	p("Step", "%s", number(j.Step))
	p("Committed", "%s", number(j.Committed))
	if j.Goodput != nil {
		p("Goodput", "%s", goodputText(j.Goodput))
	}
	if j.Saving != nil {
		p("Saves", "%s", savingText(j.Saving))
	}
	for _, x := range j.Excluded {
		p("Keeps off", "%s until %s: %s", names.of(x.Node), x.Until.UTC().Format(time.RFC3339), x.Why)
	}
	if len(j.Attempts) == 0 {
		return
	}
	_, _ = fmt.Fprintln(a.out)
	t := table{head: []string{"ATTEMPT", "GENERATION", "RANKS", "FROM-STEP", "STARTED", "ENDED", "CAUSE", "FAILURE"}, right: map[int]bool{0: true, 1: true, 2: true, 3: true}}
	for _, at := range j.Attempts {
		failure := ""
		if f := at.Failure; f != nil {
			failure = failureText(names, f)
		}
		t.add(fmt.Sprint(at.Number), fmt.Sprint(at.Generation), fmt.Sprint(len(at.Ranks)), number(at.RestoreStep), a.when(at.Created), a.when(at.Ended), string(at.Cause), failure)
	}
	a.print(t)
	last := j.Attempts[len(j.Attempts)-1]
	_, _ = fmt.Fprintln(a.out)
	t = table{head: []string{"RANK", "NODE", "PID", "STEP", "STATE"}, right: map[int]bool{0: true, 2: true, 3: true}}
	for _, r := range last.Ranks {
		t.add(fmt.Sprint(r.Rank), names.of(r.Node), pidText(r.PID), number(r.Step), r.State)
	}
	a.print(t)
	if f := last.Failure; f != nil && f.Traceback != "" {
		_, _ = fmt.Fprintf(a.out, "\n%s\n", cleanLines(f.Traceback))
	}
}

// failureText says which rank failed, where and how.
func failureText(names *nodeNames, f *api.Failure) string {
	switch {
	case f.Rank < 0 && f.Node == "":
		return names.in(f.Message)
	case f.Rank < 0:
		return names.of(f.Node) + ": " + names.in(f.Message)
	}
	return fmt.Sprintf("rank %d on %s: %s", f.Rank, names.of(f.Node), names.in(f.Message))
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellText writes a command as it could be typed.
func shellText(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = w
		if !plainWord.MatchString(w) {
			out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}

// cleanLines neutralises control characters but keeps the lines.
func cleanLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = clean(l)
	}
	return strings.Join(lines, "\n")
}

func (a *app) jobStop() *cobra.Command {
	var o stopFlags
	c := &cobra.Command{
		Use: "stop JOB...", Short: "End jobs; returns when their processes are gone", Args: cobra.MinimumNArgs(1),
		Example: "  troupe job stop digits-7f3k2\n  troupe job stop @last --grace 5s\n  troupe job stop @last --checkpoint --deadline 5m",
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := a.interruptible(c.Context())
			defer stop()
			if err := o.check(c); err != nil {
				return err
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			var jobs []api.Job
			for _, id := range args {
				j, err := a.job(ctx, id)
				if err != nil {
					return err
				}
				jobs = append(jobs, j)
			}
			if err := a.confirmStop(ctx, jobs, &o); err != nil {
				return err
			}
			for i, j := range jobs {
				if jobs[i], err = a.stopOne(ctx, cl, j, &o); err != nil {
					return err
				}
			}
			several(a, jobs, func(j api.Job) string { return j.ID }, func(j api.Job) string { return string(j.State) })
			return nil
		},
	}
	o.add(c)
	return c
}

// confirmStop says what would be lost before jobs that live are ended.
func (a *app) confirmStop(ctx context.Context, jobs []api.Job, o *stopFlags) error {
	var losses []string
	for _, j := range jobs {
		if !j.State.Terminal() && o.checkpoint == "wait" && o.deadline == 0 {
			losses = append(losses, fmt.Sprintf("job %s would save at its next step and end", j.ID))
		} else if !j.State.Terminal() {
			losses = append(losses, a.lossText(ctx, j))
		}
	}
	if len(losses) == 0 {
		return nil
	}
	return a.confirm(strings.Join(losses, "; "))
}

// lossText says what ending a job costs.
func (a *app) lossText(ctx context.Context, j api.Job) string {
	if len(j.Attempts) == 0 {
		return fmt.Sprintf("job %s would lose its place: it is %s since %s", j.ID, j.State, age(time.Since(j.Created)))
	}
	text := fmt.Sprintf("job %s would end, %s, started %s ago, ", j.ID, plural(j.Spec.Ranks, "rank"), age(time.Since(cmp.Or(j.Started, j.Created))))
	cl, err := a.api()
	if err != nil || j.Committed == nil {
		return text + "nothing committed"
	}
	l, err := cl.Checkpoints(ctx, j.Run, 0)
	if err != nil {
		return text + fmt.Sprintf("last commit at step %d", *j.Committed)
	}
	for _, x := range l.Items {
		if x.Step == *j.Committed && x.State == "committed" {
			return text + fmt.Sprintf("last commit at step %d, %s ago", x.Step, age(time.Since(x.Committed)))
		}
	}
	return text + fmt.Sprintf("last commit at step %d", *j.Committed)
}

func (a *app) jobEvents() *cobra.Command {
	return &cobra.Command{
		Use: "events JOB", Short: "What happened to a job, in order", Args: cobra.ExactArgs(1),
		Example: "  troupe job events digits-7f3k2\n  troupe job events @last -o jsonl",
		RunE: func(c *cobra.Command, args []string) error {
			j, err := a.job(c.Context(), args[0])
			if err != nil {
				return err
			}
			return a.printEvents(c.Context(), "job/"+j.ID)
		},
	}
}

func (a *app) jobWait() *cobra.Command {
	var until string
	c := &cobra.Command{
		Use: "wait JOB", Short: "Wait for a job to run or end", Args: cobra.ExactArgs(1),
		Example: "  troupe job wait digits-7f3k2\n  troupe job wait @last --for running --timeout 30s",
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := a.interruptible(c.Context())
			defer stop()
			var want []api.JobState
			switch until {
			case "done", "succeeded":
			case "running":
				want = []api.JobState{api.Running}
			default:
				return usage("--for %q: running, done or succeeded%s", until, didYouMean(until, []string{"running", "done", "succeeded"}))
			}
			cl, id, err := a.apiFor(ctx, args[0])
			if err != nil {
				return err
			}
			j, err := cl.WaitJob(ctx, id, nil, want...)
			if err != nil {
				return err
			}
			a.one(j, j.ID, func() { _, _ = fmt.Fprintf(a.out, "%s  %s\n", j.ID, j.State) })
			if until == "running" && j.State != api.Running || until == "succeeded" && j.State != api.Succeeded {
				return &exitError{code: api.ExitFailed}
			}
			return exitOf(j)
		},
	}
	c.Flags().StringVar(&until, "for", "done", "`state`: running, done or succeeded; any end ends it")
	return c
}

// exitOf is the exit code that a command passes on for an ended job: the root-cause
// rank's own.
func exitOf(j api.Job) error {
	if !j.State.Terminal() || j.State == api.Succeeded {
		return nil
	}
	code := api.ExitFailed
	if j.ExitCode != nil && *j.ExitCode != 0 {
		code = int(*j.ExitCode)
	}
	return &exitError{code: code}
}

// parseRanks reads "0,3-5"; empty is all.
func parseRanks(s string, world int64) ([]int64, error) {
	var out []int64
	if s == "" {
		for r := range world {
			out = append(out, r)
		}
		return out, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, span := strings.Cut(part, "-")
		first, err := strconv.ParseInt(lo, 10, 64)
		last := first
		if err == nil && span {
			last, err = strconv.ParseInt(hi, 10, 64)
		}
		if err != nil || first < 0 || last < first || last >= world {
			return nil, usage("--rank %q: ranks are 0 to %d, as in 0,3-5", s, world-1)
		}
		for r := first; r <= last; r++ {
			out = append(out, r)
		}
	}
	return out, nil
}
