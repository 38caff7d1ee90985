package main

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/cmd/troupe/torchrun"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// takes fills flags of run from options of torchrun that mean the same. A flag of run's
// own beats the environment, and either spelling is the command line.
func (o *jobFlags) takes(c *cobra.Command, l *torchrun.Line, set *torchrun.Settings) {
	set.Role = roleOf(set.Role)
	if l.Given("max_restarts") && !c.Flags().Changed("max-restarts") {
		o.maxRestarts = set.MaxRestarts
	}
	if l.Given("shutdown_timeout") && !c.Flags().Changed("shutdown-timeout") {
		o.shutdown = set.Shutdown
	}
	o.role, o.runID, o.virtualLocal, o.numaBinding = set.Role, set.RunID, set.VirtualLocal, set.NumaBinding
}

// shapesOutput says whether options of torchrun's say where output goes.
func (a *app) shapesOutput() bool {
	return slices.ContainsFunc([]string{"log_dir", "redirects", "tee", "local_ranks_filter"}, a.line.Given)
}

func roleOf(role string) string {
	if role == "default" {
		return ""
	}
	return role
}

// runCommandLine is the command of each rank. Behind -- it is as it stands; else a
// Python script is run as torchrun runs it.
func (a *app) runCommandLine(set *torchrun.Settings, args []string) []string {
	if len(args) == 0 {
		return nil
	}
	script := !a.line.Dashes && filepath.Ext(args[0]) == ".py"
	if set.NoPython || !script && !set.Module && !set.RunPath {
		return args
	}
	return set.Command(pythonOf(""), args)
}

// runSize makes the job's size of --nnodes and --nproc-per-node.
func (a *app) runSize(c *cobra.Command, o *jobFlags, set *torchrun.Settings) error {
	if !a.line.Given("nnodes") && !a.line.Given("nproc_per_node") {
		return nil
	}
	m := &set.Meeting
	each, err := a.everyNodeHas(c.Context(), set.PerNode)
	if err != nil {
		return err
	}
	ranks := m.MaxNodes * each
	switch {
	case c.Flags().Changed("ranks") && o.ranks != ranks:
		return usage("--ranks %d, but --nnodes and --nproc-per-node make %d", o.ranks, ranks)
	case c.Flags().Changed("ranks-per-node") && o.perNode != each:
		return usage("--ranks-per-node %d, but --nproc-per-node is %d", o.perNode, each)
	}
	o.ranks = ranks
	if m.MaxNodes > 1 {
		o.perNode = each
	} else if !c.Flags().Changed("strategy") {
		o.strategy = string(api.StrictPack)
	}
	if m.MinNodes < m.MaxNodes {
		o.least = m.MinNodes * each
	}
	return nil
}

// everyNodeHas is the number of ranks that --nproc-per-node means on any node of the
// cluster: a number, or what every node that is ready has.
func (a *app) everyNodeHas(ctx context.Context, text string) (int64, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	cl, err := a.api()
	if err != nil {
		return 0, err
	}
	l, err := cl.Nodes(ctx, 0)
	if err != nil {
		return 0, err
	}
	gpus, cpus := int64(-1), int64(-1)
	for _, n := range l.Items {
		if n.State == api.NodeReady {
			gpus, cpus = least(gpus, n.Capacity.GPUs), least(cpus, int64(n.Capacity.CPU)/1000)
		}
	}
	switch {
	case cpus < 0:
		return 0, fail(api.ExitNever, "TRP-C078", "give a number", "--nproc-per-node=%s: no node is ready", text)
	case text == "gpu" && gpus == 0:
		return 0, usage("--nproc-per-node=gpu: not every node has a GPU; give a number or cpu")
	case text == "gpu", text == "auto" && gpus > 0:
		return gpus, nil
	case text == "cpu", text == "auto":
		return max(cpus, 1), nil
	}
	return 0, usage("--nproc-per-node=%q is neither a number nor cpu, gpu or auto", text)
}

func least(a, b int64) int64 {
	if a < 0 {
		return b
	}
	return min(a, b)
}

// span is a time on the command line: as 30s or 5m, or seconds as torchrun has it.
type span time.Duration

func (s *span) String() string { return time.Duration(*s).String() }
func (s *span) Type() string   { return "duration" }

func (s *span) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		var plain error
		if d, plain = time.ParseDuration(text + "s"); plain != nil {
			return err
		}
	}
	*s = span(d)
	return nil
}
