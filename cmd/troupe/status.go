package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "The cluster in a few lines", Args: cobra.NoArgs, Example: "  troupe status\n  troupe status -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			s, err := cl.Status(c.Context())
			if err != nil {
				return err
			}
			a.one(s, s.Cluster, func() {
				p := func(k, v string) { _, _ = fmt.Fprintf(a.out, "%-10s %s\n", k, clean(v)) }
				p("Cluster", s.Cluster+" at "+cl.Address())
				p("Leader", fmt.Sprintf("%s (version %s, feature level %d)", s.Leader, s.Version, s.Level))
				p("Nodes", counts(s.Nodes))
				p("In use", usedText(s.Allocated, s.Capacity))
				p("Groups", counts(s.Groups))
				p("Jobs", counts(s.Jobs))
			})
			return nil
		},
	}
}

// usedText says how much of each resource is taken.
func usedText(used, all api.Resources) string {
	parts := []string{
		fmt.Sprintf("%s of %s CPUs", used.CPU, all.CPU),
		fmt.Sprintf("%s of %s memory", bytesText(int64(used.Memory)), bytesText(int64(all.Memory))),
	}
	if all.GPUs > 0 {
		parts = append(parts, fmt.Sprintf("%d of %s", used.GPUs, plural(all.GPUs, "GPU")))
	}
	return strings.Join(parts, ", ")
}

func counts(m map[string]int64) string {
	var parts []string
	for _, k := range sortedKeys(m) {
		if m[k] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", m[k], k))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func (a *app) uiCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ui", Short: "Print a one-time address of the page", Args: cobra.NoArgs,
		Example: "  troupe ui\n  xdg-open \"$(troupe ui -q)\"",
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			s, err := cl.SignInCode(c.Context())
			if err != nil {
				return err
			}
			a.one(s, s.URL, func() { _, _ = fmt.Fprintln(a.out, s.URL) })
			a.note("open it in a browser; it is good once, for %s", age(time.Until(s.Expires)))
			return nil
		},
	}
}
