package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func (a *app) jobSignal() *cobra.Command {
	var ranks string
	c := &cobra.Command{
		Use: "signal JOB SIGNAL", Short: "Send a signal to the main process of each rank", Args: cobra.ExactArgs(2),
		Example: "  troupe job signal @last SIGUSR1\n  troupe job signal digits-7f3k2 usr2 --rank 0,3-5",
		RunE: func(c *cobra.Command, args []string) error {
			name := strings.ToUpper(args[1])
			if !strings.HasPrefix(name, "SIG") {
				name = "SIG" + name
			}
			if api.Signals[name] == 0 {
				known := slices.Sorted(maps.Keys(api.Signals))
				return usage("%q is no signal that ranks are sent; one of %s%s", args[1], strings.Join(known, ", "), didYouMean(name, known))
			}
			j, err := a.job(c.Context(), args[0])
			if err != nil {
				return err
			}
			var only []int64
			if ranks != "" {
				if only, err = parseRanks(ranks, j.Spec.Ranks); err != nil {
					return err
				}
			}
			sent, err := a.client.SignalJob(c.Context(), j.ID, name, only...)
			if err != nil {
				return err
			}
			a.one(sent, sent.Job, func() {
				_, _ = fmt.Fprintf(a.out, "%s  %s to %s\n", sent.Job, sent.Signal, plural(int64(len(sent.Ranks)), "rank"))
			})
			return nil
		},
	}
	c.Flags().StringVar(&ranks, "rank", "", "`ranks`: only these, as 0,3-5")
	return c
}
