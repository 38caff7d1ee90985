package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/cmd/troupe/torchrun"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

type launchFlags struct {
	python, exitCode, wrap string
	keep                   string
	stallKill              string
	explain, noWarm        bool
}

// launchCommand is what `python -m troupe.launch` becomes: torchrun's command line and
// habits on a cluster that comes up with the command and ends with it, or on the one
// that `troupe up` runs here.
func (a *app) launchCommand() *cobra.Command {
	var o launchFlags
	c := &cobra.Command{
		Use: "launch [torchrun's options] SCRIPT [arguments]", Short: "Run a script as torchrun does", Hidden: true, Args: cobra.ArbitraryArgs,
		Long: `Run a script as torchrun does, on this host or on several: python -m troupe.launch is
the same.
Every option of torchrun is taken; --explain-flags says how. Everything after SCRIPT
belongs to it`,
		Example:     "  python -m troupe.launch --nproc-per-node=4 train.py --epochs 3\n  troupe launch --nproc-per-node=4 --max-restarts=3 -m package.train\n  troupe launch --nproc-per-node=gpu --log-dir=logs --tee=3 train.py",
		Annotations: map[string]string{takesTorchrun: "yes", endless: "it stops the job itself"},
		RunE: func(c *cobra.Command, _ []string) error {
			if o.exitCode != "torchrun" && o.exitCode != "job" {
				return usage("--exit-code %q: torchrun or job", o.exitCode)
			}
			return a.launchLine(c, o)
		},
	}
	c.Flags().SetInterspersed(false)
	f := c.Flags()
	f.BoolVar(&o.explain, "explain-flags", false, "say how every option was taken, and end")
	f.StringVar(&o.exitCode, "exit-code", "torchrun", "`which`: code of a failed run: torchrun (1), or job (the root-cause rank's own)")
	f.StringVar(&o.stallKill, "stall-kill", "", "`time`: end an attempt that makes no step for so long; off: never (default learned from its pace, at least 10m)")
	f.BoolVar(&o.noWarm, "no-warm", false, noWarmHelp)
	f.StringVar(&o.wrap, "wrap", "", wrapUsage)
	f.StringVar(&o.keep, "keep", "", "job that goes on after its launcher was detached")
	_ = f.MarkHidden("keep") // it exists
	f.StringVar(&o.python, "python", "", "`path`: interpreter of the ranks, unless PYTHON_EXEC names one (default that of PATH)")
	return c
}

// launchLine is a launch by its command line.
func (a *app) launchLine(c *cobra.Command, o launchFlags) error {
	if shell := a.line.PrintCompletion(); shell != "" {
		_, _ = io.WriteString(a.out, torchrun.Completion(shell, "torchrun", "troupe-launch"))
		return nil
	}
	set, err := a.settings(c)
	if err != nil {
		return err
	}
	python := pythonOf(o.python)
	wrap, err := wrapWords(o.wrap)
	if err != nil {
		return err
	}
	if o.explain {
		var command []string
		if len(a.line.Rest) > 0 {
			command = append(wrap, set.Command(python, a.line.Rest)...)
		}
		a.explainFlags(false, command)
		return nil
	}
	if len(a.line.Rest) == 0 {
		return missingScript("python -m troupe.launch --nproc-per-node=4 train.py")
	}
	if o.keep != "" {
		return a.keep(c.Context(), &launchRun{set: set, flags: o, script: a.line.Rest[0]}, o.keep)
	}
	hosts := overHosts(&set.Meeting)
	if !hosts {
		if err := onlyHere(&set.Meeting); err != nil {
			return err
		}
	}
	l := launchRun{set: set, flags: o, script: a.line.Rest[0], command: set.Command(python, a.line.Rest), wrap: wrap}
	if l.ranks, err = perNode(c.Context(), python, set.PerNode); err != nil {
		return err
	}
	a.torchrunNotes(false)
	if hosts {
		return a.launchHosts(c.Context(), l)
	}
	return a.launch(c.Context(), l)
}

// onlyHere refuses what needs several hosts: a run over them takes over from here.
func onlyHere(m *torchrun.Meeting) error {
	const help = "start it on one host, without the option"
	switch {
	case m.NodeRank != 0:
		return fail(api.ExitUsage, "TRP-C064", "say how many hosts there are: --nnodes=N", "--node-rank=%d of one host", m.NodeRank)
	case m.Backend != "static" && m.Backend != "c10d":
		return fail(api.ExitNever, "TRP-C078", help, "--rdzv-backend=%s is not in this version; static and c10d are", m.Backend)
	}
	return nil
}

// elasticID is TORCHELASTIC_RUN_ID as torchrun has it: none unless given, and random for
// a run by itself.
func elasticID(m *torchrun.Meeting) string {
	if !m.Standalone {
		return cmp.Or(m.ID, "none")
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, by its contract
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// launchRun is one launch.
type launchRun struct {
	set     *torchrun.Settings
	flags   launchFlags
	script  string
	command []string
	wrap    []string // words in front of it
	ranks   int64    // on this host
}

// spec is the job of a launch, but for who owns it.
func (l *launchRun) spec(dir, run, runID string) api.JobSpec {
	return api.JobSpec{
		Name: nameOf(l.command), Run: run, Command: slices.Concat(l.wrap, l.command), WorkingDir: dir, Ranks: l.ranks, Strategy: api.Pack,
		Restart:         api.RestartPolicy{MaxRestarts: &l.set.MaxRestarts, NoBackoff: true, StallKill: l.flags.stallKill},
		ShutdownTimeout: unit.Duration(l.set.Shutdown), VirtualLocalRank: l.set.VirtualLocal, NumaBinding: l.set.NumaBinding, Role: roleOf(l.set.Role), RunID: runID,
		NoWarm: l.flags.noWarm,
	}
}

func (a *app) launch(ctx context.Context, l launchRun) error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the current folder: %w", err)
	}
	if err := checkWrapped(dir, l.wrap, l.command); err != nil {
		return err
	}
	run := runName(l.set, l.script)
	runID := elasticID(&l.set.Meeting)
	out, err := newConsole(a, l.set, runID)
	if err != nil {
		return err
	}
	defer out.close()
	s := l.spec(dir, run, runID)
	if s.Owner, err = ownerHere(); err != nil {
		return err
	}
	on, err := a.launchOn(ctx, run)
	if err != nil {
		return err
	}
	defer func() { on.close() }()
	cl := on.client
	a.client = cl
	if s.LaunchEnv, err = troupe.NewKey(); err != nil {
		return err
	}
	if err := on.environ(ctx, s.LaunchEnv, launchEnviron(l.set)); err != nil {
		return err
	}
	a.defaultGPUs(ctx, &s)
	j, err := cl.SubmitJob(ctx, s, "")
	if err != nil {
		return err
	}
	cl.Patience = forever
	j, how, err := a.attendLaunch(ctx, cl, j, &l, out)
	if err == nil && how == detached {
		if on.keep != nil {
			return on.keep(ctx, j)
		}
		a.tellDetached(j)
		return nil
	}
	if err == nil && how == ended {
		a.keepErrors(ctx, cl, &j, out)
	}
	on.ended(j.ID)
	switch {
	case err != nil:
		return err
	case how == stopped:
		return &exitError{code: api.ExitInterrupted}
	case how == timedOut:
		return fail(api.ExitTimeout, "TRP-C074", "give it longer", "the run was stopped: its --timeout of %s is over", a.limitT)
	}
	return a.launchResult(j, l)
}

const signalsVariable = "TORCHELASTIC_SIGNALS_TO_HANDLE"

// launchEnviron is this process's environment without what is Troupe's own.
func launchEnviron(set *torchrun.Settings) []string {
	var env []string
	for _, kv := range os.Environ() {
		// A name that is empty cannot be passed on; a token must not be.
		switch k, _, ok := strings.Cut(kv, "="); {
		case !ok, k == "", k == "TROUPE_TOKEN", k == "TROUPE_ADDRESS", k == joinTokenEnv, k == signalsVariable:
		default:
			env = append(env, kv)
		}
	}
	// torchrun's own option, which it leaves in the environment of ranks.
	env = append(env, signalsVariable+"="+strings.Join(set.Signals, ","))
	return env
}

// attendLaunch follows the job with torchrun's look of output: only a person at a
// terminal is told about states and keys.
func (a *app) attendLaunch(ctx context.Context, cl *troupe.Client, j api.Job, l *launchRun, out *console) (api.Job, outcome, error) {
	quiet := a.quiet
	person := a.personWatches()
	a.quiet = quiet || !person
	defer func() { a.quiet = quiet }()
	a.attach = out
	a.firstLine(j)
	return a.attend(ctx, cl, j, attendance{signals: l.set.Signals, detach: person})
}

// personWatches says whether somebody can press keys and read what they do.
func (a *app) personWatches() bool {
	in, ok1 := a.in.(*os.File)
	errw, ok2 := a.err.(*os.File)
	return ok1 && ok2 && isTerminal(in) && isTerminal(errw)
}
