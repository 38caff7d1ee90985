package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func (a *app) checkpointLineage() *cobra.Command {
	return &cobra.Command{
		Use: "lineage RUN", Short: "The tree of a run's attempts and steps, forks included", Args: cobra.ExactArgs(1),
		Annotations: map[string]string{moreFormats: "dot"},
		Example:     "  troupe checkpoint lineage digits\n  troupe checkpoint lineage digits -o dot\n  troupe checkpoint lineage digits -o json",
		RunE: func(c *cobra.Command, args []string) error {
			cl, run, err := a.apiFor(c.Context(), args[0])
			if err != nil {
				return err
			}
			l, err := cl.Lineage(c.Context(), run)
			if err != nil {
				return err
			}
			if a.format == "dot" {
				_, _ = fmt.Fprint(a.out, lineageDot(l))
				return nil
			}
			a.one(l, l.Run, func() { _, _ = fmt.Fprint(a.out, lineageTree(l)) })
			return nil
		},
	}
}

// attemptText is one line about an attempt.
func attemptText(x api.LineageAttempt) string {
	s := "generation " + genText(x.Generation)
	if x.Attempt >= 0 {
		s = fmt.Sprintf("%s attempt %d (%s)", clean(x.Job), x.Attempt, s)
	}
	if x.RestoreStep == nil {
		s += " from scratch"
	}
	if x.Cause != "" && x.Cause != api.CauseNone {
		s += ", ended: " + string(x.Cause)
	}
	return s
}

func stepText(c api.Checkpoint) string {
	s := fmt.Sprintf("step %d", c.Step)
	var notes []string
	if c.State != "committed" {
		notes = append(notes, c.State)
	}
	if c.Pinned {
		notes = append(notes, "pinned")
	}
	if c.Adopted != "" {
		notes = append(notes, "adopted")
	}
	if len(notes) > 0 {
		s += " (" + strings.Join(notes, ", ") + ")"
	}
	return s
}

// lineageTree draws each attempt below the step that it restored.
func lineageTree(l api.Lineage) string {
	type key struct {
		gen  uint64
		step int64
	}
	held := map[key]bool{}
	for _, x := range l.Attempts {
		for _, c := range x.Steps {
			held[key{c.Generation, c.Step}] = true
		}
	}
	below := map[key][]api.LineageAttempt{}
	var roots []api.LineageAttempt
	for _, x := range l.Attempts {
		if x.RestoreStep != nil && held[key{x.RestoreGen, *x.RestoreStep}] {
			k := key{x.RestoreGen, *x.RestoreStep}
			below[k] = append(below[k], x)
		} else {
			roots = append(roots, x)
		}
	}
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, "%s\n", clean(l.Run))
	var draw func(x api.LineageAttempt, indent string, last bool)
	draw = func(x api.LineageAttempt, indent string, last bool) {
		head, more := "├─ ", "│  "
		if last {
			head, more = "└─ ", "   "
		}
		gone := ""
		if x.RestoreStep != nil && !held[key{x.RestoreGen, *x.RestoreStep}] {
			gone = fmt.Sprintf(" from step %d, which is gone", *x.RestoreStep)
		}
		_, _ = fmt.Fprintf(&b, "%s%s%s%s\n", indent, head, attemptText(x), gone)
		indent += more
		for i, c := range x.Steps {
			kids := below[key{c.Generation, c.Step}]
			end := i == len(x.Steps)-1
			mark, deeper := "├─ ", "│  "
			if end {
				mark, deeper = "└─ ", "   "
			}
			_, _ = fmt.Fprintf(&b, "%s%s%s\n", indent, mark, stepText(c))
			for k, kid := range kids {
				draw(kid, indent+deeper, k == len(kids)-1)
			}
		}
	}
	for i, x := range roots {
		draw(x, "", i == len(roots)-1)
	}
	return b.String()
}

// lineageDot writes the same for Graphviz.
func lineageDot(l api.Lineage) string {
	var b strings.Builder
	quote := func(s string) string { return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(clean(s)) + `"` }
	name := func(gen uint64, step int64) string { return quote(fmt.Sprintf("%s/%d", genText(gen), step)) }
	_, _ = fmt.Fprintf(&b, "digraph %s {\n  rankdir=LR;\n  node [shape=box];\n", quote(l.Run))
	held := map[string]bool{}
	for _, x := range l.Attempts {
		for _, c := range x.Steps {
			held[name(c.Generation, c.Step)] = true
		}
	}
	for _, x := range l.Attempts {
		at := quote("attempt " + genText(x.Generation))
		_, _ = fmt.Fprintf(&b, "  %s [shape=ellipse, label=%s];\n", at, quote(attemptText(x)))
		if x.RestoreStep != nil {
			if from := name(x.RestoreGen, *x.RestoreStep); !held[from] {
				_, _ = fmt.Fprintf(&b, "  %s [label=%s, style=dotted];\n", from, quote(fmt.Sprintf("step %d (gone)", *x.RestoreStep)))
			}
			_, _ = fmt.Fprintf(&b, "  %s -> %s [style=dashed, label=restore];\n", name(x.RestoreGen, *x.RestoreStep), at)
		}
		from := at
		for _, c := range x.Steps {
			style := ""
			if c.State != "committed" {
				style = ", style=dotted"
			}
			_, _ = fmt.Fprintf(&b, "  %s [label=%s%s];\n  %s -> %s;\n", name(c.Generation, c.Step), quote(stepText(c)), style, from, name(c.Generation, c.Step))
			from = name(c.Generation, c.Step)
		}
	}
	b.WriteString("}\n")
	return b.String()
}
