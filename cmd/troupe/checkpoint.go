package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

func (a *app) checkpointCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "checkpoint", Aliases: []string{"ckpt"}, Short: "Checkpoints: list, get, verify, pin, remove, export, adopt, lineage",
		Example: "  troupe checkpoint list digits\n  troupe checkpoint verify digits\n  troupe checkpoint lineage digits",
	}
	c.AddCommand(
		a.checkpointList(), a.checkpointGet(), a.checkpointVerify(), a.checkpointPin(true), a.checkpointPin(false),
		a.checkpointRemove(), a.checkpointExport(), a.checkpointAdopt(), a.checkpointLineage(), a.checkpointGC(),
	)
	return c
}

func (a *app) checkpointList() *cobra.Command {
	return &cobra.Command{
		Use: "list [RUN]", Aliases: []string{"ls"}, Short: "Committed steps of a run, the newest first", Args: cobra.MaximumNArgs(1),
		Example: "  troupe checkpoint list\n  troupe checkpoint list digits -o wide\n  troupe checkpoint list @last",
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.api()
			if err != nil {
				return err
			}
			run := ""
			if len(args) > 0 {
				if run, err = a.jobID(c.Context(), args[0]); err != nil {
					return err
				}
			}
			l, err := cl.Checkpoints(c.Context(), run, a.limit)
			if err != nil {
				return noRun(err, run)
			}
			if a.format == "json" {
				a.json(a.out, l)
				a.more(len(l.Items), l.Remaining)
				return nil
			}
			if l.Saving != nil && (a.format == "table" || a.format == "wide") {
				_, _ = fmt.Fprintf(a.out, "saves %s\n", savingText(l.Saving))
			}
			show(a, l.List, func(x api.Checkpoint) string { return fmt.Sprintf("%s/%d", x.Run, x.Step) }, func(xs []api.Checkpoint) table {
				return a.checkpointTable(xs, run == "")
			})
			return nil
		},
	}
}

// checkpointTable is one line for each step, with its run where several may be among them.
func (a *app) checkpointTable(xs []api.Checkpoint, runs bool) table {
	t := table{head: []string{"STEP", "GEN", "WORLD", "SIZE", "STATE", "PINNED", a.ageHead(), "PARENT"}, right: map[int]bool{0: true, 1: true, 2: true, 3: true, 7: true}}
	wide := a.format == "wide"
	if runs {
		t.head = append([]string{"RUN"}, t.head...)
		t.right = map[int]bool{1: true, 2: true, 3: true, 4: true, 8: true}
	}
	if wide {
		t.head = append(t.head, "FILES", "METRICS", "DIRECTORY", "REASON")
	}
	for _, x := range xs {
		pinned := ""
		if x.Pinned {
			pinned = "yes"
		}
		row := []string{fmt.Sprint(x.Step), genText(x.Generation), fmt.Sprint(x.World), bytesText(x.Bytes), x.State, pinned, a.when(x.Committed), number(x.Parent)}
		if runs {
			row = append([]string{x.Run}, row...)
		}
		if wide {
			row = append(row, fmt.Sprint(x.Files), metricsText(x.Metrics), x.Dir, x.Reason)
		}
		t.add(row...)
	}
	return t
}

// genText writes a generation as restore epoch and counter, which is how people can tell
// two of them apart.
func genText(g uint64) string { return fmt.Sprintf("%d.%d", g>>48, g&(1<<48-1)) }

func metricsText(m map[string]float64) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s=%.6g", k, m[k]))
	}
	return strings.Join(parts, " ")
}

// parseStep reads a step's number.
func parseStep(word string) (int64, error) {
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil || n < 0 {
		return 0, usage("step %q is not a number", word)
	}
	return n, nil
}

// stepArgs is what RUN STEP name, with --generation.
func (a *app) stepArgs(ctx context.Context, args []string) (run string, step int64, err error) {
	if run, err = a.jobID(ctx, args[0]); err != nil {
		return "", 0, err
	}
	step, err = parseStep(args[1])
	return run, step, err
}

// generationFlag reads 0.17 as list prints it, or the whole number.
type generationFlag uint64

func (g *generationFlag) String() string {
	if *g == 0 {
		return ""
	}
	return genText(uint64(*g))
}

func (g *generationFlag) Type() string { return "generation" }

func (g *generationFlag) Set(s string) error {
	epoch, counter, dotted := strings.Cut(s, ".")
	if !dotted {
		n, err := strconv.ParseUint(s, 10, 64)
		*g = generationFlag(n)
		return err
	}
	e, err1 := strconv.ParseUint(epoch, 10, 16)
	n, err2 := strconv.ParseUint(counter, 10, 48)
	*g = generationFlag(e<<48 | n)
	return errors.Join(err1, err2)
}

func (g *generationFlag) add(c *cobra.Command) *cobra.Command {
	c.Flags().Var(g, "generation", "`generation`: of that one, as list prints it (default the one that stands)")
	return c
}

func (a *app) checkpointGet() *cobra.Command {
	var gen generationFlag
	return gen.add(&cobra.Command{
		Use: "get RUN STEP", Aliases: []string{"show"}, Short: "One step with its manifest: files, parts, digests, cursor", Args: cobra.ExactArgs(2),
		Example: "  troupe checkpoint get digits 100\n  troupe checkpoint get digits 100 -o json\n  troupe checkpoint get digits 100 --generation 1.7",
		RunE: func(c *cobra.Command, args []string) error {
			run, step, err := a.stepArgs(c.Context(), args)
			if err != nil {
				return err
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			d, err := cl.Checkpoint(c.Context(), run, step, uint64(gen))
			if err != nil {
				return err
			}
			a.one(d, fmt.Sprintf("%s/%d", d.Run, d.Step), func() { a.printCheckpoint(d) })
			if d.Manifest == nil {
				return &exitError{code: api.ExitFailed}
			}
			return nil
		},
	})
}

func (a *app) printCheckpoint(d api.CheckpointDetail) {
	line := func(name, format string, args ...any) {
		if text := clean(fmt.Sprintf(format, args...)); text != "" {
			_, _ = fmt.Fprintf(a.out, "%-12s %s\n", name, text)
		}
	}
	line("run", "%s", d.Run)
	line("step", "%d", d.Step)
	line("generation", "%s", genText(d.Generation))
	state := d.State
	if d.Pinned {
		state += ", pinned"
	}
	line("state", "%s", state)
	line("reason", "%s", d.Reason)
	line("committed", "%s", a.ago(d.Committed))
	if d.Parent != nil {
		line("parent", "step %d of generation %s", *d.Parent, genText(d.ParentGeneration))
	}
	line("adopted", "%s", d.Adopted)
	line("size", "%s in %s, %s", bytesText(d.Bytes), plural(d.Files, "file"), plural(d.World, "rank"))
	line("metrics", "%s", metricsText(d.Metrics))
	line("directory", "%s", d.Dir)
	line("digest", "%s", d.Digest)
	m := d.Manifest
	if m == nil {
		line("manifest", "%s", d.Problem)
		return
	}
	line("cursor", "%s", m.Cursor)
	line("config", "%s", m.Config)
	line("frameworks", "%s", strings.Join(m.Frameworks, ", "))
	line("mesh", "%s", meshText(m.Mesh))
	_, _ = fmt.Fprintln(a.out)
	t := table{head: []string{"RANK", "PART", "SIZE", "XXH3-128", "PATH"}, right: map[int]bool{0: true, 2: true}}
	for _, f := range m.Files {
		t.add(fmt.Sprint(f.Rank), f.Part, bytesText(f.Length), f.Digest, f.Path)
	}
	a.print(t)
}

func (a *app) checkpointVerify() *cobra.Command {
	deep := true
	v := &cobra.Command{
		Use: "verify RUN [STEP]", Short: "Read a committed step whole; exit 1 when it is damaged", Args: cobra.RangeArgs(1, 2),
		Example: "  troupe checkpoint verify digits\n  troupe checkpoint verify digits 100\n  troupe checkpoint verify digits --deep=false",
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := a.interruptible(c.Context())
			defer stop()
			cl, run, err := a.apiFor(ctx, args[0])
			if err != nil {
				return err
			}
			l, err := cl.Checkpoints(ctx, run, 0)
			if err != nil {
				return noRun(err, run)
			}
			want := int64(-1)
			if len(args) == 2 {
				if want, err = strconv.ParseInt(args[1], 10, 64); err != nil || want < 0 {
					return usage("step %q is not a number", args[1])
				}
			}
			for _, x := range l.Items {
				if x.State != "committed" || want >= 0 && x.Step != want {
					continue
				}
				r, err := verifyStep(ctx, cl, x, deep)
				if err != nil {
					return err
				}
				a.one(r, fmt.Sprintf("%s/%d", r.Run, r.Step), func() {
					word := "whole"
					if !r.OK {
						word = "DAMAGED"
					}
					switch {
					case deep:
						_, _ = fmt.Fprintf(a.out, "%s step %d: %s (%s, %s)\n", r.Run, r.Step, word, plural(r.Files, "file"), bytesText(r.Bytes))
					default:
						_, _ = fmt.Fprintf(a.out, "%s step %d: its manifest is %s (%s, not read)\n", r.Run, r.Step, word, plural(r.Files, "file"))
					}
					for _, b := range r.Bad {
						_, _ = fmt.Fprintf(a.out, "  %s\n", clean(b))
					}
				})
				if !r.OK {
					return &exitError{code: api.ExitFailed}
				}
				return nil
			}
			if want >= 0 {
				return missing("troupe checkpoint list "+run, "run %s has no committed step %d", run, want)
			}
			return missing("troupe checkpoint list "+run, "run %s has no committed step", run)
		},
	}
	v.Flags().BoolVar(&deep, "deep", true, "read every byte and compare digests; without it the manifest alone")
	return v
}

// meshText is a device mesh as dp=2 tp=4.
func meshText(mesh []api.MeshDim) string {
	parts := make([]string, len(mesh))
	for i, d := range mesh {
		parts[i] = fmt.Sprintf("%s=%d", d.Name, d.Size)
	}
	return strings.Join(parts, " ")
}

// verifyStep has a node read the step, or its manifest alone.
func verifyStep(ctx context.Context, cl *troupe.Client, x api.Checkpoint, deep bool) (api.VerifyResult, error) {
	if deep {
		return cl.VerifyCheckpoint(ctx, x.Run, x.Step)
	}
	d, err := cl.Checkpoint(ctx, x.Run, x.Step, x.Generation)
	r := api.VerifyResult{Run: x.Run, Step: x.Step, OK: d.Manifest != nil, Files: x.Files}
	if d.Problem != "" {
		r.Bad = []string{d.Problem}
	}
	return r, err
}

// noRun says what to look at when nothing has the name of a run.
func noRun(err error, run string) error {
	if p := troupe.AsProblem(err); p != nil && p.Status == 404 {
		return missing("troupe checkpoint list shows all runs that have one", "there is no run or job %q", run)
	}
	return err
}
