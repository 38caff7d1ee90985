package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

// topologyFile is what an operator declares of the cluster in a file; what is missing stays.
type topologyFile struct {
	Levels     []api.Level    `json:"levels,omitempty"`
	Capacities []api.Capacity `json:"capacities,omitempty"`
	Links      []api.Link     `json:"links,omitempty"`
	HalfLife   unit.Duration  `json:"halfLife,omitempty"`
	// Scheduler replaces the whole policy.
	Scheduler *api.SchedulerPolicy `json:"scheduler,omitempty"`
}

const topologyHelp = "troupe topology apply --help"

// decodeTopology reads a topology file.
func decodeTopology(path string, data []byte) (f topologyFile, err error) {
	if err = decodeInto(path, topologyHelp, data, &f); err != nil {
		return f, err
	}
	if f.Levels == nil && f.HalfLife == 0 && f.Scheduler == nil && len(f.Capacities)+len(f.Links) == 0 {
		return f, malformed(topologyHelp, "%s declares nothing: give levels, capacities, links, halfLife or scheduler", path)
	}
	return f, nil
}

func (a *app) topologyCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "topology", Short: "Levels, capacities and links of the cluster: get, apply",
		Example: "  troupe topology get\n  troupe topology apply topology.yaml",
	}
	get := &cobra.Command{
		Use: "get", Short: "The levels of the topology, capacities and what is used of them, and links", Args: cobra.NoArgs,
		Example: "  troupe topology get\n  troupe topology get -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			return a.showDeclared(c.Context(), cl)
		},
	}
	apply := &cobra.Command{
		Use: "apply FILE", Short: "Declare levels, capacities and links that a YAML or JSON file lists", Args: cobra.ExactArgs(1),
		Example: "  troupe topology apply topology.yaml",
		RunE: func(c *cobra.Command, args []string) error {
			data, err := readBounded(args[0], topologyHelp)
			if err != nil {
				return err
			}
			f, err := decodeTopology(args[0], data)
			if err != nil {
				return err
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			if f.Levels != nil || f.HalfLife != 0 || f.Scheduler != nil {
				r := api.TopologyRequest{Scheduler: f.Scheduler}
				if f.Levels != nil {
					r.Levels = &f.Levels
				}
				if f.HalfLife != 0 {
					r.HalfLife = &f.HalfLife
				}
				if err := cl.PutTopology(c.Context(), r); err != nil {
					return err
				}
			}
			for _, x := range f.Capacities {
				if err := cl.PutCapacity(c.Context(), api.CapacityRequest{Capacity: x}); err != nil {
					return err
				}
			}
			if len(f.Links) > 0 {
				if err := cl.PutLinks(c.Context(), api.LinksRequest{Links: f.Links}); err != nil {
					return err
				}
			}
			return a.showDeclared(c.Context(), cl)
		},
	}
	c.AddCommand(get, apply)
	return c
}

func (a *app) showDeclared(ctx context.Context, cl *troupe.Client) error {
	d, err := cl.Declared(ctx)
	if err != nil {
		return err
	}
	names := a.names(ctx)
	a.one(d, "topology", func() { a.printDeclared(d, names) })
	return nil
}

func (a *app) printDeclared(d api.Declared, names *nodeNames) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	for _, l := range d.Levels {
		p("level     %s, by the label %s", clean(l.Name), clean(l.Label))
	}
	for _, c := range d.Capacities {
		unit := ""
		if c.Unit != "" {
			unit = " " + c.Unit
		}
		text := fmt.Sprintf("%s: %d of %d%s used, %d always", c.Name, c.Used, c.Total, unit, c.Overhead)
		if c.Level != "" {
			var in []string
			for _, k := range sortedKeys(c.In) {
				in = append(in, fmt.Sprintf("%s %d", k, c.In[k]))
			}
			text = fmt.Sprintf("%s: %d%s in each %s; used: %s", c.Name, c.Total, unit, c.Level, orDash(strings.Join(in, ", ")))
		}
		p("capacity  %s", clean(text))
	}
	for _, l := range d.Links {
		what := names.of(l.A)
		if l.B != "" {
			what += " to " + names.of(l.B)
		}
		state := "healthy"
		if !l.Healthy {
			state = "failed"
		}
		if l.Why != "" {
			state += ": " + l.Why
		}
		p("link      %s: %s, checked %s", clean(what), clean(state), a.timeText(l.Checked))
	}
	p("half-life of use  %s", d.HalfLife)
	p("scheduler  %s", d.Scheduler.Text())
}
