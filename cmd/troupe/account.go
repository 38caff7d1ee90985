package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// accountCommands tell what became of a job: its attempts, failures, time and stacks.
func (a *app) accountCommands() []*cobra.Command {
	return []*cobra.Command{a.jobHistory(), a.jobFailures(), a.jobGoodput(), a.jobStack()}
}

func (a *app) jobHistory() *cobra.Command {
	return &cobra.Command{
		Use: "history JOB", Short: "The attempts of a job and what each cost", Args: cobra.ExactArgs(1),
		Example: "  troupe job history digits-7f3k2\n  troupe job history @last -o wide\n  troupe job history @last -o json",
		RunE: func(c *cobra.Command, args []string) error {
			cl, id, err := a.apiFor(c.Context(), args[0])
			if err != nil {
				return err
			}
			l, err := cl.History(c.Context(), id, a.limit)
			if err != nil {
				return err
			}
			names := a.names(c.Context())
			show(a, l, func(h api.History) string { return fmt.Sprint(h.Attempt) }, func(rows []api.History) table {
				t := table{head: []string{"ATTEMPT", "GEN", "START", "END", "RANKS", "FROM-STEP", "STEP", "COMMITTED", "CAUSE", "LOST-WORK", "RECOVERY-TIME"}}
				t.right = map[int]bool{0: true, 1: true, 4: true, 5: true, 6: true, 7: true, 9: true, 10: true}
				if a.format == "wide" {
					t.head = append(t.head, "USEFUL", "NODES", "FAILURE")
				}
				for _, h := range rows {
					recovery := "-"
					if h.RecoveryTime != nil {
						recovery = spanText(*h.RecoveryTime)
					}
					row := []string{
						fmt.Sprint(h.Attempt), fmt.Sprint(h.Generation), a.when(h.Start), a.when(h.End), fmt.Sprint(h.Ranks), number(h.From), number(h.Newest), number(h.Kept),
						dash(string(h.Cause)), spanText(h.LostWork), recovery,
					}
					if a.format == "wide" {
						failure := "-"
						if h.Root != nil {
							failure = failureText(names, h.Root)
						}
						row = append(row, spanText(h.Useful), dash(strings.Join(h.Nodes, ",")), failure)
					}
					t.add(row...)
				}
				return t
			})
			return nil
		},
	}
}

func (a *app) jobFailures() *cobra.Command {
	attempt := int64(-1)
	c := &cobra.Command{
		Use: "failures JOB", Short: "What failed in a job, root causes first", Args: cobra.ExactArgs(1),
		Example: "  troupe job failures digits-7f3k2\n  troupe job failures @last --attempt 2\n  troupe job failures @last -o json",
		RunE: func(c *cobra.Command, args []string) error {
			cl, id, err := a.apiFor(c.Context(), args[0])
			if err != nil {
				return err
			}
			l, err := cl.Failures(c.Context(), id, attempt, a.limit)
			if err != nil {
				return err
			}
			names := a.names(c.Context())
			show(a, l, func(f api.FailureRow) string { return fmt.Sprintf("%d/%d", f.Attempt, f.Rank) }, func(rows []api.FailureRow) table {
				t := table{head: []string{"TIME", "ATTEMPT", "RANK", "NODE", "KIND", "ROOT", "MESSAGE"}, right: map[int]bool{1: true, 2: true}}
				for _, f := range rows {
					rank, root := "-", "-"
					if f.Rank >= 0 {
						rank = fmt.Sprint(f.Rank)
					}
					if f.Root {
						root = "yes"
					}
					t.add(a.when(f.Time), fmt.Sprint(f.Attempt), rank, dash(names.of(f.Node)), f.Kind, root, names.in(f.Message))
				}
				return t
			})
			if len(l.Items) == 0 && a.format == "table" {
				a.note("nothing has failed")
			}
			return nil
		},
	}
	c.Flags().Int64Var(&attempt, "attempt", -1, "`N`: only of this attempt (default all)")
	c.Flags().Lookup("attempt").DefValue = "0"
	return c
}

func (a *app) jobGoodput() *cobra.Command {
	return &cobra.Command{
		Use: "goodput JOB", Short: "Where a job's time went", Args: cobra.ExactArgs(1),
		Example: "  troupe job goodput digits-7f3k2\n  troupe job goodput @last -o json",
		RunE: func(c *cobra.Command, args []string) error {
			cl, id, err := a.apiFor(c.Context(), args[0])
			if err != nil {
				return err
			}
			g, err := cl.Goodput(c.Context(), id)
			if err != nil {
				return err
			}
			a.one(g, g.Job, func() { a.print(goodputTable(&g)) })
			return nil
		},
	}
}

// goodputTable says where the time went; what took none is left out.
func goodputTable(g *api.Goodput) table {
	t := table{head: []string{"PART", "TIME", "SHARE"}, right: map[int]bool{1: true, 2: true}}
	for _, p := range g.Parts() {
		if p.Time > 0 || p.Name == "useful" {
			t.add(p.Name, spanText(p.Time), share(p.Time, g.Wall))
		}
	}
	t.add("wall", spanText(g.Wall), share(g.Wall, g.Wall))
	return t
}

// goodputText is the same in one line.
func goodputText(g *api.Goodput) string {
	var parts []string
	for _, p := range g.Parts()[1:] {
		if p.Time > 0 {
			parts = append(parts, p.Name+" "+spanText(p.Time))
		}
	}
	text := fmt.Sprintf("%s useful of %s", share(g.Useful, g.Wall), spanText(g.Wall))
	if len(parts) > 0 {
		text += "; " + strings.Join(parts, ", ")
	}
	return text
}

// savingText says how often a job saves, what that was chosen by, and what would be best.
func savingText(s *api.SavingPlan) string {
	text := "every " + s.Interval
	if s.Every > 0 && s.Interval == "auto" {
		text = "auto, every " + spanText(s.Every)
	}
	stall, restart := "not measured", "not measured"
	if s.Stall > 0 {
		stall = spanText(s.Stall)
	}
	if s.Restart > 0 {
		restart = spanText(s.Restart)
	}
	if s.Upload > 0 {
		stall += " and takes " + spanText(s.Upload) + " more to be committed"
	}
	text += fmt.Sprintf("; a save stands still for %s, a restart takes %s, %s expected between failures (%s so far)", stall, restart, spanText(s.MTBF), plural(s.Failures, "failure"))
	if s.Interval != "auto" {
		text += "; best: " + spanText(s.Best)
	}
	return text
}

func share(part, of unit.Duration) string {
	if of <= 0 {
		return "-"
	}
	return strconv.FormatFloat(100*float64(part)/float64(of), 'f', 1, 64) + "%"
}

// span is a length of time for people.
func spanText(u unit.Duration) string {
	d := u.D()
	switch {
	case d < 10*time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d < 10*time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d >= 100*time.Hour:
		return fmt.Sprintf("%.0fh", d.Hours())
	}
	return d.Round(time.Second).String()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (a *app) jobStack() *cobra.Command {
	return &cobra.Command{
		Use: "stack JOB", Aliases: []string{"stacks"}, Short: "Where the ranks of a job stand now, equal ones together", Args: cobra.ExactArgs(1),
		Example: "  troupe job stack digits-7f3k2\n  troupe job stack @last -o json",
		RunE: func(c *cobra.Command, args []string) error {
			cl, id, err := a.apiFor(c.Context(), args[0])
			if err != nil {
				return err
			}
			s, err := cl.Stacks(c.Context(), id)
			if err != nil {
				return err
			}
			a.one(s, s.Job, func() { a.printStacks(s.Groups) })
			for _, m := range s.Missing {
				a.note("not asked: %s", clean(m))
			}
			return nil
		},
	}
}

func (a *app) printStacks(groups []api.StackGroup) {
	for i, g := range groups {
		if i > 0 {
			_, _ = fmt.Fprintln(a.out)
		}
		state := ""
		if g.State != "" {
			state = ", " + clean(g.State)
		}
		_, _ = fmt.Fprintf(a.out, "%s %s%s\n", pluralWord(len(g.Ranks), "rank"), rankList(g.Ranks), state)
		for line := range strings.SplitSeq(strings.TrimRight(cleanLines(g.Stack), "\n"), "\n") {
			_, _ = fmt.Fprintf(a.out, "  %s\n", line)
		}
	}
}

func pluralWord(n int, one string) string {
	if n == 1 {
		return one
	}
	return one + "s"
}

// rankList writes ranks as 0, 3-5.
func rankList(ranks []int64) string {
	list := slices.Clone(ranks)
	slices.Sort(list)
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if j == i {
			parts = append(parts, fmt.Sprint(list[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", list[i], list[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}
