package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// checkpointPin is pin or unpin.
func (a *app) checkpointPin(pinned bool) *cobra.Command {
	word, short, past := "pin", "Keep a step from retention and removal", "pinned"
	if !pinned {
		word, short, past = "unpin", "Leave a step to retention again", "unpinned"
	}
	var gen generationFlag
	return gen.add(&cobra.Command{
		Use: word + " RUN STEP", Short: short, Args: cobra.ExactArgs(2),
		Example: fmt.Sprintf("  troupe checkpoint %s digits 100\n  troupe checkpoint %s @last 100\n  troupe checkpoint %s digits 100 --generation 1.7", word, word, word),
		RunE: func(c *cobra.Command, args []string) error {
			run, step, err := a.stepArgs(c.Context(), args)
			if err != nil {
				return err
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			k, err := cl.PinCheckpoint(c.Context(), run, step, uint64(gen), pinned)
			if err != nil {
				return err
			}
			a.one(k, fmt.Sprintf("%s/%d", k.Run, k.Step), func() { _, _ = fmt.Fprintf(a.out, "%s step %d: %s\n", k.Run, k.Step, past) })
			return nil
		},
	})
}

func (a *app) checkpointRemove() *cobra.Command {
	var gen generationFlag
	return gen.add(&cobra.Command{
		Use: "remove RUN STEP", Aliases: []string{"rm"}, Short: "Delete a step; asks, and names what is lost", Args: cobra.ExactArgs(2),
		Example: "  troupe checkpoint remove digits 100\n  troupe checkpoint remove digits 100 -y\n  troupe checkpoint rm digits 100 --generation 1.7 -y",
		RunE: func(c *cobra.Command, args []string) error {
			ctx := c.Context()
			run, step, err := a.stepArgs(ctx, args)
			if err != nil {
				return err
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			l, err := cl.Checkpoints(ctx, run, 0)
			if err != nil {
				return noRun(err, run)
			}
			x, lost, ok := whatIsLost(l.Items, step, uint64(gen))
			if !ok {
				return missing("troupe checkpoint list "+run, "run %s has no step %d", run, step)
			}
			if err := a.confirm(lost); err != nil {
				return err
			}
			k, err := cl.RemoveCheckpoint(ctx, x.Run, x.Step, x.Generation)
			if err != nil {
				return err
			}
			a.one(k, fmt.Sprintf("%s/%d", k.Run, k.Step), func() {
				word := "removed"
				if k.State != "removed" {
					word = "marked for deletion; no node could remove its files yet, which is tried until it is done"
				}
				_, _ = fmt.Fprintf(a.out, "%s step %d: %s\n", k.Run, k.Step, word)
			})
			return nil
		},
	})
}

// whatIsLost finds the step and says in a sentence what goes with it.
func whatIsLost(all []api.Checkpoint, step int64, gen uint64) (x api.Checkpoint, lost string, ok bool) {
	for _, c := range all { // the newest first
		if c.Step == step && (gen == 0 || c.Generation == gen) && (!ok || c.State == "committed" && x.State != "committed") {
			x, ok = c, true
		}
	}
	if !ok {
		return x, "", false
	}
	var next *api.Checkpoint
	newest := true
	for i, c := range all {
		switch {
		case c.State != "committed" || c.Generation == x.Generation && c.Step == x.Step:
		case c.Generation > x.Generation || c.Generation == x.Generation && c.Step > x.Step:
			newest = false
		case next == nil:
			next = &all[i]
		}
	}
	lost = fmt.Sprintf("remove step %d of run %s (generation %s, %s, %s)", x.Step, x.Run, genText(x.Generation), x.State, bytesText(x.Bytes))
	switch {
	case x.State != "committed":
	case newest && next != nil:
		lost += fmt.Sprintf("; it is the newest: the run would go on from step %d and do %d steps again", next.Step, x.Step-next.Step)
	case newest:
		lost += "; it is the only one: the run would begin from scratch"
	}
	return x, lost, true
}

func (a *app) checkpointExport() *cobra.Command {
	var gen generationFlag
	var node string
	c := gen.add(&cobra.Command{
		Use: "export RUN STEP FOLDER", Short: "Copy a committed step to a folder of a node, verified, with its manifest", Args: cobra.ExactArgs(3),
		Example: "  troupe checkpoint export digits 100 /data/digits-100\n  troupe checkpoint export digits 100 ./best --node gpu-1\n  troupe checkpoint export @last 100 out -o json",
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := a.interruptible(c.Context())
			defer stop()
			run, step, err := a.stepArgs(ctx, args)
			if err != nil {
				return err
			}
			folder, err := filepath.Abs(args[2])
			if err != nil {
				return fmt.Errorf("find the folder: %w", err)
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			r, err := cl.ExportCheckpoint(ctx, run, step, uint64(gen), api.ExportRequest{Folder: folder, Node: node})
			if err != nil {
				return err
			}
			a.one(r, r.Folder, func() {
				_, _ = fmt.Fprintf(a.out, "%s step %d: %s, %s in %s on %s, verified\n", r.Run, r.Step, plural(r.Files, "file"), bytesText(r.Bytes), clean(r.Folder), clean(r.Node))
			})
			return nil
		},
	})
	c.Flags().StringVar(&node, "node", "", "`node`: that writes the folder (default one that runs the job, or any)")
	return c
}

func (a *app) checkpointAdopt() *cobra.Command {
	var store string
	c := &cobra.Command{
		Use: "adopt RUN [PATH]", Short: "Take the committed steps of a run that another cluster saved into the records", Args: cobra.RangeArgs(1, 2),
		Example: "  troupe checkpoint adopt digits /data/checkpoints\n  troupe checkpoint adopt digits /data/checkpoints/digits\n  troupe checkpoint adopt digits --store 's3://bucket/runs?region=eu-central-1'",
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := a.interruptible(c.Context())
			defer stop()
			run, at := args[0], store
			if len(args) == 2 {
				at = args[1]
			}
			if at == "" || len(args) == 2 && store != "" {
				return usage("name the store that holds the run's folder: a PATH or --store, not both")
			}
			at, err := storeAddress(at)
			if err != nil {
				return err
			}
			if !strings.Contains(at, "://") && filepath.Base(at) == run {
				at = filepath.Dir(at) // the run's own folder was named
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			r, err := cl.AdoptCheckpoints(ctx, run, at)
			if err != nil {
				return err
			}
			a.one(r, r.Run, func() { a.printAdopted(r) })
			if len(r.Adopted) == 0 && r.Known == 0 {
				return &exitError{code: api.ExitFailed}
			}
			return nil
		},
	}
	c.Flags().StringVar(&store, "store", "", "`store`: a folder or s3://bucket/prefix?options, that holds the run's folder")
	return c
}

func (a *app) printAdopted(r api.AdoptResult) {
	for _, x := range r.Refused {
		_, _ = fmt.Fprintf(a.out, "left aside  %s: %s\n", clean(x.Name), clean(x.Reason))
	}
	if len(r.Adopted) == 0 {
		_, _ = fmt.Fprintf(a.out, "%s: nothing new to adopt in %s; %s known already\n", r.Run, clean(r.Store), plural(r.Known, "step"))
		return
	}
	verified := map[int64]bool{}
	for _, s := range r.Verified {
		verified[s] = true
	}
	for _, s := range r.Adopted {
		word := ""
		if verified[s] {
			word = ", verified"
		}
		_, _ = fmt.Fprintf(a.out, "adopted     step %d%s\n", s, word)
	}
	_, _ = fmt.Fprintf(a.out, "%s: %s adopted from %s; the next attempt goes on from step %d\n", r.Run, plural(int64(len(r.Adopted)), "step"), clean(r.Store), r.Adopted[0])
}

func (a *app) checkpointGC() *cobra.Command {
	return &cobra.Command{
		Use: "gc RUN", Short: "Remove what attempts of a run left half written", Args: cobra.ExactArgs(1),
		Example: "  troupe checkpoint gc digits\n  troupe checkpoint gc digits -o json\n  troupe checkpoint gc @last",
		RunE: func(c *cobra.Command, args []string) error {
			cl, run, err := a.apiFor(c.Context(), args[0])
			if err != nil {
				return err
			}
			r, err := cl.CollectGarbage(c.Context(), run)
			if err != nil {
				return err
			}
			a.one(r, r.Run, func() {
				for _, n := range r.Removed {
					_, _ = fmt.Fprintf(a.out, "removed  %s\n", clean(n))
				}
				if len(r.Removed) == 0 {
					_, _ = fmt.Fprintf(a.out, "%s: no garbage\n", r.Run)
				}
			})
			return nil
		},
	}
}
