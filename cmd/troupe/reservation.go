package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func (a *app) reservationCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "reservation", Aliases: []string{"reservations"}, Short: "Reservations and maintenance windows: list, create, remove",
		Example: "  troupe reservation create demo --tenant nlp --count 2 --start 2030-05-01T12:00:00Z --for 4h\n  troupe reservation list",
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List reservations and maintenance windows", Args: cobra.NoArgs,
		Example: "  troupe reservation list",
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			d, err := cl.Declared(c.Context())
			if err != nil {
				return err
			}
			show(a, cutList(a, d.Reservations), func(r api.ReservationStatus) string { return r.Name }, a.reservationTable)
			return nil
		},
	}
	c.AddCommand(list, a.reservationCreate(), a.reservationRemove())
	return c
}

// cutList cuts a list that came whole to what is asked for.
func cutList[T any](a *app, all []T) api.List[T] {
	l := api.List[T]{Items: all}
	if !a.all && a.limit > 0 && len(all) > a.limit {
		l.Items, l.Remaining = all[:a.limit], int64(len(all)-a.limit)
	}
	return l
}

func (a *app) reservationTable(rs []api.ReservationStatus) table {
	t := table{head: []string{"NAME", "FOR", "WHAT", "HAS", "START", "END", "VERSION"}}
	for _, r := range rs {
		t.add(r.Name, r.For(), r.What(), orDash(r.HasText()), a.timeText(r.Start), a.timeText(r.End), fmt.Sprint(r.Index))
	}
	return t
}

func (a *app) reservationCreate() *cobra.Command {
	var r api.ReservationRequest
	var start, end string
	var length longFlag
	c := &cobra.Command{
		Use: "create NAME", Short: "Keep nodes for a tenant, a queue or a job, or free for maintenance; the name of an old one replaces it", Args: cobra.ExactArgs(1),
		Example: "  troupe reservation create demo --tenant nlp --count 2 --start 2030-05-01T12:00:00Z --for 4h\n" +
			"  troupe reservation create fans --maintenance \"new fans\" --nodes gpu-1,gpu-2 --start 6h --for 2h",
		RunE: func(c *cobra.Command, args []string) error {
			r.Name = args[0]
			now := time.Now()
			var err error
			if r.Start, err = parseWhen(start, now); err != nil {
				return usage("--start %v", err)
			}
			switch {
			case (end == "") == (length == 0):
				return usage("give the end with --for or with --end")
			case end != "":
				if r.End, err = parseWhen(end, now); err != nil {
					return usage("--end %v", err)
				}
			default:
				r.End = r.Start.Add(time.Duration(length))
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			if err := cl.PutReservation(c.Context(), r); err != nil {
				return err
			}
			a.one(r.Reservation, r.Name, func() {
				_, _ = fmt.Fprintf(a.out, "%s  %s for %s, %s to %s\n", r.Name, r.What(), clean(r.For()), a.timeText(r.Start), a.timeText(r.End))
			})
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&r.Tenant, "tenant", "", "`tenant`: that it is for")
	f.StringVar(&r.Queue, "queue", "", "`queue`: that it is for")
	f.StringVar(&r.Job, "job", "", "`job`: that it is for, by id")
	f.StringVar(&r.Maintenance, "maintenance", "", "`reason`: nothing runs there meanwhile")
	f.StringSliceVar(&r.Nodes, "nodes", nil, "`names`: of the nodes")
	f.Int64Var(&r.Count, "count", 0, "`N`: nodes, whichever they are; one that fails is replaced")
	f.StringVar(&r.Pool, "pool", "", "`pool`: of the nodes that are counted")
	f.StringVar(&r.Level, "level", "", "`level`: of which the counted nodes share a domain, as rack")
	f.StringVar(&start, "start", "0s", "`time`: as 2030-05-01T12:00:00Z, or how long from now, as 6h")
	f.StringVar(&end, "end", "", "`time`: of its end")
	f.Var(&length, "for", "`time`: that it lasts, as 4h or 2d")
	f.Uint64Var(&r.IfVersion, "if-version", 0, "`N`: only if the old one stands at this version")
	for _, name := range []string{"nodes", "count", "for", "if-version"} {
		f.Lookup(name).DefValue = ""
	}
	return c
}

func (a *app) reservationRemove() *cobra.Command {
	var version uint64
	c := &cobra.Command{
		Use: "remove NAME", Aliases: []string{"rm"}, Short: "End a reservation", Args: cobra.ExactArgs(1),
		Example: "  troupe reservation remove demo",
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			if err := cl.RemoveReservation(c.Context(), args[0], version); err != nil {
				return err
			}
			a.one(removed{args[0]}, args[0], func() { _, _ = fmt.Fprintf(a.out, "%s  removed\n", args[0]) })
			return nil
		},
	}
	c.Flags().Uint64Var(&version, "if-version", 0, "`N`: only if it stands at this version")
	c.Flags().Lookup("if-version").DefValue = ""
	return c
}
