package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func (a *app) pgCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "pg", Aliases: []string{"gang", "placement-group"}, Short: "Placement groups: create, list, get, wait, remove",
		Example: "  troupe pg create --bundles 4 --gpus 1 --strategy STRICT_SPREAD\n  troupe pg wait pg-7f3k2 --timeout 1m\n  troupe pg remove pg-7f3k2",
	}
	c.AddCommand(a.pgCreate(), a.pgList(), a.pgGet(), a.pgWait(), a.pgRemove())
	return c
}

func (a *app) pgGet() *cobra.Command {
	return &cobra.Command{
		Use: "get PG", Short: "One placement group: bundles, nodes, devices", Args: cobra.ExactArgs(1),
		Example: "  troupe pg get pg-7f3k2\n  troupe pg get pg-7f3k2 -o json",
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			g, err := cl.Group(c.Context(), strings.TrimPrefix(args[0], "pg/"))
			if err != nil {
				return err
			}
			a.one(g, g.ID, func() { a.groupDetail(c.Context(), g) })
			return nil
		},
	}
}

func (a *app) pgWait() *cobra.Command {
	return &cobra.Command{
		Use: "wait PG", Short: "Wait until a group holds all of its bundles", Args: cobra.ExactArgs(1),
		Example: "  troupe pg wait pg-7f3k2\n  troupe pg wait pg-7f3k2 --timeout 1m",
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := a.interruptible(c.Context())
			defer stop()
			cl, err := a.api()
			if err != nil {
				return err
			}
			g, err := cl.WaitGroup(ctx, strings.TrimPrefix(args[0], "pg/"))
			if errors.Is(err, context.DeadlineExceeded) && g.Reason != nil {
				return fail(api.ExitTimeout, "TRP-C074", "troupe why pg/"+g.ID, "placement group %s waits: %s", g.ID, a.names(c.Context()).in(g.Reason.Text))
			}
			if err != nil {
				return err
			}
			a.one(g, g.ID, func() { a.groupDetail(c.Context(), g) })
			if g.State != api.GroupPlaced {
				return &exitError{code: api.ExitFailed}
			}
			return nil
		},
	}
}

func (a *app) pgRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove PG...", Aliases: []string{"rm"}, Short: "Give groups back; returns when nothing is charged to them", Args: cobra.MinimumNArgs(1),
		Example: "  troupe pg remove pg-7f3k2\n  troupe pg remove $(troupe pg list -o name)",
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := a.interruptible(c.Context())
			defer stop()
			cl, err := a.api()
			if err != nil {
				return err
			}
			var gone []api.Group
			for _, id := range args {
				g, err := cl.RemoveGroup(ctx, strings.TrimPrefix(id, "pg/"))
				if err != nil {
					return err
				}
				gone = append(gone, g)
			}
			several(a, gone, func(g api.Group) string { return g.ID }, func(g api.Group) string { return string(g.State) })
			return nil
		},
	}
}

func (a *app) pgCreate() *cobra.Command {
	var (
		n        int64
		spec     api.GroupSpec
		r        resourceFlags
		strategy string
		labels   []string
		roles    []string
	)
	c := &cobra.Command{
		Use: "create", Short: "Ask for a placement group", Args: cobra.NoArgs,
		Example: "  troupe pg create --bundles 4 --cpus 1\n  troupe pg create --bundles 2 --gpus 1 --strategy STRICT_SPREAD\n  troupe pg create --role trainer=2 --role sampler=8:4 --gpus 1",
		RunE: func(c *cobra.Command, _ []string) error {
			if len(roles) > 0 {
				if c.Flags().Changed("bundles") {
					return usage("--role says how many bundles there are; leave --bundles out")
				}
				n = 0
				for _, text := range roles {
					r, err := parseRole(text)
					if err != nil {
						return err
					}
					spec.Roles = append(spec.Roles, r)
					n += r.Bundles
				}
			}
			if n < 1 || n > 16_384 {
				return usage("--bundles %d: 1 to 16384", n)
			}
			res, err := r.resources()
			if err != nil {
				return err
			}
			ls, err := parseLabels(labels)
			if err != nil {
				return err
			}
			if spec.Strategy, err = parseStrategy(strategy); err != nil {
				return err
			}
			for range n {
				spec.Bundles = append(spec.Bundles, api.Bundle{Resources: res, Labels: ls})
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			g, err := cl.CreateGroup(c.Context(), spec, "")
			if err != nil {
				return err
			}
			a.one(g, g.ID, func() { _, _ = fmt.Fprintln(a.out, g.ID) })
			if g.State == api.GroupPending && g.Reason != nil {
				a.note("it waits: %s", clean(a.names(c.Context()).in(g.Reason.Text)))
			}
			return nil
		},
	}
	f := c.Flags()
	f.Int64Var(&n, "bundles", 1, "`N`: equal bundles")
	f.StringVar(&spec.Name, "name", "", "`name`: for people")
	f.StringArrayVar(&roles, "role", nil, "`NAME=N[:MIN]`: the next N bundles, of which MIN are enough to start; may be repeated")
	f.Int64Var(&spec.Min, "min", 0, "`N`: bundles of all roles that are enough to start")
	f.StringVar(&strategy, "strategy", "PACK", "`strategy`: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD")
	f.StringVar(&spec.Pool, "pool", "", "`pool`: of nodes")
	f.StringVar(&spec.Queue, "queue", "", "`queue`: to wait in")
	f.Int64Var(&spec.Priority, "priority", 0, "`N`: higher goes first")
	f.StringArrayVar(&labels, "label", nil, "`NAME=VALUE`: that a node must carry; may be repeated")
	r.add(c)
	return c
}

// parseRole reads NAME=N or NAME=N:MIN.
func parseRole(text string) (api.Role, error) {
	name, counts, ok := strings.Cut(text, "=")
	most, least, some := strings.Cut(counts, ":")
	n, err := strconv.ParseInt(most, 10, 64)
	if !ok || name == "" || err != nil || n < 1 || n > 16_384 {
		return api.Role{}, usage("--role %q: NAME=N or NAME=N:MIN, as sampler=8:4", text)
	}
	r := api.Role{Name: name, Bundles: n}
	if some {
		if r.Min, err = strconv.ParseInt(least, 10, 64); err != nil || r.Min < 1 || r.Min > n {
			return api.Role{}, usage("--role %q: the minimum is 1 to %d", text, n)
		}
	}
	return r, nil
}

func (a *app) pgList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List placement groups, the newest first", Args: cobra.NoArgs,
		Example: "  troupe pg list\n  troupe pg list -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			l, err := cl.Groups(c.Context(), a.limit)
			if err != nil {
				return err
			}
			names := a.names(c.Context())
			show(a, l, func(g api.Group) string { return g.ID }, func(gs []api.Group) table {
				t := table{head: []string{"PLACEMENT-GROUP", "STATE", "BUNDLES", "STRATEGY", "EACH", "NODES", "JOB", a.ageHead(), "REASON"}, right: map[int]bool{2: true, 5: true}}
				for _, g := range gs {
					nodes := map[string]bool{}
					for _, b := range g.Bundles {
						nodes[b.Node] = true
					}
					reason, each := "", ""
					if g.Reason != nil {
						reason = names.in(g.Reason.Text)
					}
					if len(g.Spec.Bundles) > 0 {
						each = resourcesText(g.Spec.Bundles[0].Resources)
					}
					bundles := fmt.Sprint(len(g.Spec.Bundles))
					if n := len(g.Bundles); len(g.Spec.Roles) > 0 && n > 0 && n < len(g.Spec.Bundles) {
						bundles = fmt.Sprintf("%d/%d", n, len(g.Spec.Bundles)) // as its roles allow
					}
					t.add(g.ID, string(g.State), bundles, string(g.Spec.Strategy), each, fmt.Sprint(len(nodes)), g.Job, a.when(g.Created), reason)
				}
				return t
			})
			return nil
		},
	}
}

func (a *app) groupDetail(ctx context.Context, g api.Group) {
	names := a.names(ctx)
	_, _ = fmt.Fprintf(a.out, "%-12s %s\n%-12s %s\n", "Group", g.ID, "State", g.State)
	if g.Reason != nil {
		_, _ = fmt.Fprintf(a.out, "%-12s %s\n", "Reason", clean(names.in(g.Reason.Text)))
	}
	_, _ = fmt.Fprintf(a.out, "%-12s %s\n", "Strategy", g.Spec.Strategy)
	t := table{head: []string{"BUNDLE", "NODE", "DEVICES", "NEEDS", "USED-BY"}, right: map[int]bool{0: true}}
	for i, b := range g.Spec.Bundles {
		row := []string{fmt.Sprint(i), "", "", resourcesText(b.Resources), ""}
		if at := slices.IndexFunc(g.Bundles, func(p api.Placed) bool { return p.Bundle == int64(i) }); at >= 0 {
			p := g.Bundles[at]
			row[1], row[2], row[4] = names.of(p.Node), strings.Join(p.Devices, " "), p.UsedBy
			if p.Spare {
				row[4] = "spare of " + g.Job
			}
		}
		t.add(row...)
	}
	a.print(t)
}
