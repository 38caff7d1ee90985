package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func (a *app) whyCommand() *cobra.Command {
	var whatIf []string
	c := &cobra.Command{
		Use: "why TARGET", Short: "What something waits for, by name, and what would free it", Args: cobra.ExactArgs(1),
		Example: "  troupe why @last\n  troupe why pg/pg-7f3k2\n  troupe why node/NAME -o json\n  troupe why @last --what-if any\n  troupe why @last --what-if ranks=8 --what-if level=rack",
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			kind, id, typed := strings.Cut(args[0], "/")
			if !typed {
				kind, id = "any", args[0]
			}
			if id == "@last" {
				if id, err = a.jobID(c.Context(), id); err != nil {
					return err
				}
				kind = "job"
			}
			w, err := cl.Why(c.Context(), kind, id, whatIf...)
			if err != nil {
				return err
			}
			a.one(w, w.Target, func() { a.printWhy(c.Context(), w) })
			switch {
			case len(whatIf) == 0 || len(w.Alternatives) > 0:
			case w.Position == 0:
				a.note("it does not wait, so nothing of it is looked at otherwise")
			default:
				a.note("no single constraint of it, if dropped, would let it start sooner")
			}
			return nil
		},
	}
	c.Flags().StringArrayVar(&whatIf, "what-if", nil, "what would become of what waits with a `CHANGE`, as ranks=8, time=2h or priority=5; any: without each of its constraints")
	return c
}

// printAhead says where something stands that waits, and what would let it start.
func (a *app) printAhead(w api.Why, names *nodeNames) {
	if w.Position > 0 {
		_, _ = fmt.Fprintf(a.out, "position %d in its queue\n", w.Position)
	}
	if p := w.Planned; p != nil {
		_, _ = fmt.Fprintf(a.out, "planned start %s", a.soon(p.Start))
		if len(p.Nodes) > 0 {
			_, _ = fmt.Fprintf(a.out, " on %s", clean(names.in(shortened(p.Nodes))))
		}
		_, _ = fmt.Fprintln(a.out)
		for _, s := range p.Assumptions {
			_, _ = fmt.Fprintf(a.out, "     if %s\n", clean(names.in(s)))
		}
	}
	for i, x := range w.Alternatives {
		if i == 0 {
			_, _ = fmt.Fprintln(a.out)
		}
		would := "it would not start sooner"
		switch {
		case x.Now:
			would = "it would start now"
		case len(x.After) > 0:
			would = "it would start once " + shortened(x.After) + " had left for it"
		case !x.Start.IsZero():
			would = "it would start about " + a.soon(x.Start)
		}
		_, _ = fmt.Fprintf(a.out, "%s: %s\n", clean(x.Change), clean(names.in(would)))
	}
}

// shortened names the first few of a list.
func shortened(list []string) string {
	const most = 5
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}

func (a *app) printWhy(ctx context.Context, w api.Why) {
	names := a.names(ctx)
	_, _ = fmt.Fprintf(a.out, "%s  %s\n%s\n", names.in(w.Target), w.State, clean(names.in(w.Answer)))
	for i, r := range w.Reasons {
		switch {
		case r.Code != "":
			_, _ = fmt.Fprintf(a.out, "%3d. [%s] %s\n", i+1, r.Code, clean(names.in(r.Text)))
		case strings.Contains(w.Answer, r.Text): // the end of a job, said already
			continue
		default:
			_, _ = fmt.Fprintf(a.out, "%3d. %s\n", i+1, clean(names.in(r.Text)))
		}
		if a.format != "wide" && saysAll(r.Text, r.Need) && saysAll(r.Text, r.Missing) {
			r.Have = "" // it follows from the two
		}
		for _, l := range []struct{ k, v string }{
			{"blocked by", inTheWay(&r)},
			{"needs", r.Need},
			{"has", r.Have},
			{"missing", r.Missing},
			{"where", r.Where},
			{"free when", a.freed(&r)},
		} {
			if l.v != "" && (a.format == "wide" || !saysAll(r.Text, l.v)) {
				_, _ = fmt.Fprintf(a.out, "     %s: %s\n", l.k, clean(names.in(l.v)))
			}
		}
	}
	a.printAhead(w, names)
	if len(w.Events) > 0 {
		_, _ = fmt.Fprintln(a.out)
		a.print(a.eventTable(ctx, w.Events))
	}
}

// inTheWay is who blocks something: the names, and how many there are beside them.
func inTheWay(r *api.Reason) string {
	who := strings.Join(r.Blockers, ", ")
	if r.MoreBlockers > 0 {
		who += fmt.Sprintf(" and %d more", r.MoreBlockers)
	}
	return who
}

// freed is what would free something, and when that is expected.
func (a *app) freed(r *api.Reason) string {
	if r.Frees == "" || r.When.IsZero() {
		return r.Frees
	}
	return r.Frees + ", expected " + a.soon(r.When)
}

// saysAll reports whether a sentence names all that a list or a place does, so that it need
// not be said once more.
func saysAll(text, list string) bool {
	for word := range strings.SplitSeq(list, ", ") {
		kind, name, ok := strings.Cut(word, " ")
		if known := ok && (kind == "node" || kind == "tenant" || kind == "queue") && strings.Contains(text, name); !known && !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

func (a *app) eventTable(ctx context.Context, es []api.Event) table {
	names := a.names(ctx)
	t := table{head: []string{"TIME", "TYPE", "OBJECT", "MESSAGE"}}
	for _, e := range es {
		t.add(a.clock(e.Time), e.Type, names.in(e.Object), names.in(e.Text))
	}
	return t
}

// clock is the time of day for people, the whole time for programs: events are about
// order and gaps, which ages hide.
func (a *app) clock(t time.Time) string {
	if !a.isTTY() || a.format == "wide" {
		return t.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	if time.Since(t) > 20*time.Hour {
		return t.Local().Format("Jan _2 15:04:05")
	}
	return t.Local().Format("15:04:05.000")
}

// printEvents prints the newest events of an object, or of all, the oldest first.
func (a *app) printEvents(ctx context.Context, object string) error {
	cl, err := a.api()
	if err != nil {
		return err
	}
	out := api.List[api.Event]{Items: []api.Event{}}
	after := uint64(0)
	for {
		l, err := cl.Events(ctx, after, object, 1000)
		if err != nil {
			return err
		}
		out.Items = append(out.Items, l.Items...)
		out.Index = l.Index
		if len(l.Items) < 1000 {
			break
		}
		after = l.Items[len(l.Items)-1].Seq
	}
	if a.limit > 0 && len(out.Items) > a.limit {
		out.Remaining = int64(len(out.Items) - a.limit)
		out.Items = out.Items[len(out.Items)-a.limit:]
	}
	show(a, out, func(e api.Event) string { return fmt.Sprint(e.Seq) }, func(es []api.Event) table { return a.eventTable(ctx, es) })
	return nil
}

func (a *app) eventsCommand() *cobra.Command {
	var object string
	c := &cobra.Command{
		Use: "events", Short: "What happened, in order", Args: cobra.NoArgs,
		Example: "  troupe events\n  troupe events --for job/digits-7f3k2\n  troupe events --all -o jsonl",
		RunE: func(c *cobra.Command, _ []string) error {
			if kind, id, ok := strings.Cut(object, "/"); object != "" && (!ok || kind == "" || id == "") {
				return usage("--for %q: want KIND/ID, as job/digits-7f3k2, node/NAME or pg/ID", object)
			}
			kind, id, _ := strings.Cut(object, "/")
			switch kind {
			case "job":
				j, err := a.job(c.Context(), id)
				if err != nil {
					return err
				}
				object = "job/" + j.ID
			case "node":
				for byID, name := range a.names(c.Context()).known() {
					if name == id {
						object = "node/" + byID
					}
				}
			}
			return a.printEvents(c.Context(), object)
		},
	}
	c.Flags().StringVar(&object, "for", "", "`object`: only of this one, as job/ID or node/NAME")
	return c
}
