package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func (a *app) actorCommand() *cobra.Command {
	c := &cobra.Command{Use: "actor", Aliases: []string{"actors"}, Short: "Actors: list, kill", Example: "  troupe actor list\n  troupe actor kill counter"}
	c.AddCommand(a.actorKill(), &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List actors, the newest first", Args: cobra.NoArgs,
		Example: "  troupe actor list\n  troupe actor list -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			l, err := cl.Actors(c.Context(), a.limit)
			if err != nil {
				return err
			}
			names := a.names(c.Context())
			show(a, l, func(x api.Actor) string { return x.ID }, func(xs []api.Actor) table {
				t := table{head: []string{"ID", "NAME", "CLASS", "STATE", "NODE", "PID", "RESTARTS", "GENERATION"}, right: map[int]bool{5: true, 6: true, 7: true}}
				for _, x := range xs {
					t.add(x.ID, x.Name, x.Class, x.State, names.of(x.Node), pidText(x.PID), fmt.Sprint(x.Restarts), fmt.Sprint(x.Generation))
				}
				return t
			})
			return nil
		},
	})
	return c
}

func (a *app) actorKill() *cobra.Command {
	var restart bool
	c := &cobra.Command{
		Use: "kill ACTOR", Short: "End an actor, by id or name", Args: cobra.ExactArgs(1),
		Example: "  troupe actor kill counter\n  troupe actor kill default/counter --restart --yes",
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := a.interruptible(c.Context())
			defer stop()
			cl, err := a.api()
			if err != nil {
				return err
			}
			if err := a.confirm(fmt.Sprintf("actor %s would lose what it holds in memory", args[0])); err != nil {
				return err
			}
			x, err := cl.KillActor(ctx, strings.TrimPrefix(args[0], "actor/"), restart)
			if err != nil {
				return err
			}
			a.one(x, x.ID, func() { _, _ = fmt.Fprintf(a.out, "%s  %s\n", x.ID, x.State) })
			return nil
		},
	}
	c.Flags().BoolVar(&restart, "restart", false, "let it come back if its restarts allow")
	return c
}

func pidText(pid int64) string {
	if pid <= 0 {
		return ""
	}
	return fmt.Sprint(pid)
}
