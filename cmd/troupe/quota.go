package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// quotaRow is one quantity that a tenant or queue is guaranteed or limited in.
type quotaRow struct {
	Queue      string `json:"queue"`
	Of         string `json:"of"`
	Charged    int64  `json:"charged"`
	Guaranteed *int64 `json:"guaranteed,omitempty"`
	Limit      *int64 `json:"limit,omitempty"`
	Borrowed   int64  `json:"borrowed"`
	Lends      *int64 `json:"lends,omitempty"`
}

// quotaRows are those of one tenant or queue; gpu is always among them.
func quotaRows(q api.QueueStatus) []quotaRow {
	var names api.Amounts
	for _, list := range []api.Amounts{q.Guaranteed, q.Limit, q.Charged, {{Of: "gpu"}}} {
		for _, x := range list {
			names = names.With(x.Of, 0)
		}
	}
	var out []quotaRow
	for _, n := range names {
		r := quotaRow{Queue: q.Name, Of: n.Of}
		r.Charged, _ = q.Charged.Get(n.Of)
		if g, ok := q.Guaranteed.Get(n.Of); ok {
			r.Guaranteed = &g
		}
		r.Borrowed, _ = q.Borrowed(n.Of)
		if l, ok := q.Limit.Get(n.Of); ok {
			r.Limit = &l
		}
		if l, ok := q.Lend.Get(n.Of); ok {
			r.Lends = &l
		}
		out = append(out, r)
	}
	return out
}

func quotaTable(rows []quotaRow) table {
	t := table{head: []string{"NAME", "OF", "USED", "GUARANTEED", "LIMIT", "BORROWED", "LENDS", "%"}, right: map[int]bool{2: true, 3: true, 4: true, 5: true, 6: true, 7: true}}
	text := func(of string, n *int64) string {
		if n == nil {
			return "-"
		}
		return amountText(of, *n)
	}
	for _, r := range rows {
		part := "-"
		most := r.Limit
		if most == nil {
			most = r.Guaranteed
		}
		if most != nil && *most > 0 {
			part = fmt.Sprint(r.Charged * 100 / *most)
		}
		lends, borrowed := text(r.Of, r.Lends), "-"
		if r.Guaranteed != nil {
			borrowed = amountText(r.Of, r.Borrowed)
			if r.Lends == nil {
				lends = "all"
			}
		}
		t.add(r.Queue, r.Of, amountText(r.Of, r.Charged), text(r.Of, r.Guaranteed), text(r.Of, r.Limit), borrowed, lends, part)
	}
	return t
}

func (a *app) quotaCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "quota", Aliases: []string{"quotas"}, Short: "Quotas of tenants and queues: list, get, set",
		Example: "  troupe quota list\n  troupe quota set nlp --guarantee gpu=8 --limit gpu=16",
	}
	name := func(r quotaRow) string { return r.Queue + " " + r.Of }
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "What each tenant and queue uses of what it may", Args: cobra.NoArgs,
		Example: "  troupe quota list\n  troupe quota list -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			l, err := cl.Queues(c.Context(), a.limit)
			if err != nil {
				return err
			}
			out := api.List[quotaRow]{Items: []quotaRow{}, Index: l.Index, Remaining: l.Remaining}
			for _, q := range l.Items {
				out.Items = append(out.Items, quotaRows(q)...)
			}
			show(a, out, name, quotaTable)
			return nil
		},
	}
	get := &cobra.Command{
		Use: "get NAME", Short: "What one tenant or queue uses of what it may", Args: cobra.ExactArgs(1),
		Example: "  troupe quota get nlp",
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			q, err := cl.Queue(c.Context(), queueName(args[0]))
			if err != nil {
				return err
			}
			show(a, api.List[quotaRow]{Items: quotaRows(q), Index: q.Index}, name, quotaTable)
			return nil
		},
	}
	var o queueFlags
	set := &cobra.Command{
		Use: "set NAME", Short: "Change what a tenant or queue may use", Args: cobra.ExactArgs(1),
		Example: "  troupe quota set nlp --guarantee gpu=8 --limit gpu=16\n  troupe quota set nlp --limit gpu:H200=4",
		RunE:    func(c *cobra.Command, args []string) error { return a.setQueue(c, queueName(args[0]), &o) },
	}
	o.add(set, false)
	c.AddCommand(list, get, set)
	return c
}

func (a *app) usageCommand() *cobra.Command {
	c := &cobra.Command{Use: "usage", Short: "What tenants, queues and users had of the GPUs", Example: "  troupe usage report --by user --since 7d"}
	var by, since string
	var csv bool
	report := &cobra.Command{
		Use: "report", Short: "GPU-hours of the jobs that are kept, and what of them was useful or lost", Args: cobra.NoArgs,
		Example: "  troupe usage report\n  troupe usage report --by user --since 7d\n  troupe usage report --csv",
		RunE: func(c *cobra.Command, _ []string) error {
			if by != "tenant" && by != "queue" && by != "user" {
				return usage("--by %s: tenant, queue or user%s", by, didYouMean(by, []string{"tenant", "queue", "user"}))
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			l, err := cl.Usage(c.Context(), by, since, a.limit)
			if err != nil {
				return err
			}
			if csv {
				_, _ = fmt.Fprintf(a.out, "%s,gpu_seconds,useful_seconds,lost_seconds,jobs,live\n", by)
				for _, u := range l.Items {
					_, _ = fmt.Fprintf(a.out, "%q,%d,%d,%d,%d,%d\n", u.Of, u.GPUSeconds, u.Useful, u.Lost, u.Jobs, u.Live)
				}
				a.more(len(l.Items), l.Remaining)
				return nil
			}
			show(a, l, func(u api.UsageRow) string { return u.Of }, func(us []api.UsageRow) table {
				t := table{head: []string{"NAME", "GPU-H", "USEFUL%", "LOST%", "JOBS", "LIVE"}, right: map[int]bool{1: true, 2: true, 3: true, 4: true, 5: true}}
				part := func(n, of int64) string {
					if of == 0 {
						return "-"
					}
					return fmt.Sprint(n * 100 / of)
				}
				for _, u := range us {
					t.add(orDash(u.Of), fmt.Sprintf("%.1f", float64(u.GPUSeconds)/3600), part(u.Useful, u.GPUSeconds), part(u.Lost, u.GPUSeconds), fmt.Sprint(u.Jobs), fmt.Sprint(u.Live))
				}
				return t
			})
			return nil
		},
	}
	report.Flags().StringVar(&by, "by", "tenant", "`what`: tenant, queue or user")
	report.Flags().StringVar(&since, "since", "", "`time`: only jobs that ended later or live, as 7d or 2030-05-01T12:00:00Z")
	report.Flags().BoolVar(&csv, "csv", false, "comma-separated values, with seconds")
	c.AddCommand(report)
	return c
}
