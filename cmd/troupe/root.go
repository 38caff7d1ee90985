package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/cmd/troupe/torchrun"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

// app is one invocation: its streams, its global flags and what they lead to.
type app struct {
	in     io.Reader
	out    io.Writer
	err    io.Writer
	format string
	addr   string
	nohead bool
	limit  int
	all    bool
	quiet  bool
	yes    bool
	limitT time.Duration
	client *troupe.Client
	nodes  map[string]string // names by id, once they were asked for
	attach *console          // where a followed job's output goes under `launch`
	line   *torchrun.Line    // torchrun's options, of commands that take them
	words  []string          // behind the name of such a command
}

var formats = []string{"table", "wide", "json", "jsonl", "name"}

// execute runs one command line and returns its exit code.
func execute(args []string, in io.Reader, out, errw io.Writer) int {
	a := &app{in: in, out: out, err: errw}
	root := a.root()
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errw)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	words, err := a.torchrunWords(root, args)
	if err == nil {
		root.SetArgs(words)
		err = root.ExecuteContext(ctx)
	}
	if err != nil && !a.machine() && wantsJSON(args) {
		a.format = "json" // the flags were not read as far as -o
	}
	return a.finish(err)
}

// wantsJSON finds -o json in a command line that could not be parsed.
func wantsJSON(args []string) bool {
	for i, w := range args {
		switch {
		case w == "--":
			return false
		case (w == "-o" || w == "--output") && i+1 < len(args):
			w = args[i+1]
		default:
			if rest, ok := strings.CutPrefix(w, "--output="); ok {
				w = rest
			} else if w, ok = strings.CutPrefix(w, "-o"); !ok {
				continue
			}
		}
		if w = strings.TrimPrefix(w, "="); w == "json" || w == "jsonl" {
			return true
		}
	}
	return false
}

// machine reports whether a program reads the answer.
func (a *app) machine() bool { return a.format == "json" || a.format == "jsonl" }

// people reports whether the answer is a table or text.
func (a *app) people() bool { return !a.machine() && a.format != "name" }

// root builds the command tree.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:  "troupe",
		Long: "Troupe runs elastic distributed training and actors on a cluster of machines",
		Example: `  troupe up -d                               a cluster on this machine
  troupe run --ranks 4 -- python train.py    four ranks, restarted from checkpoints
  troupe why @last                           what the newest job waits for, or why it ended`,
		SilenceErrors: true, SilenceUsage: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	f := root.PersistentFlags()
	f.StringVarP(&a.format, "output", "o", "table", "`format`: table, wide, json, jsonl or name (TROUPE_OUTPUT)")
	f.StringVar(&a.addr, "address", "", "`address`: the head, as host[:port] or http://host:port (TROUPE_ADDRESS)")
	f.BoolVar(&a.nohead, "no-headers", false, "leave the header of tables out")
	f.IntVar(&a.limit, "limit", 50, "`N`: rows of a list at most")
	f.BoolVar(&a.all, "all", false, "all rows of a list")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "no progress and hints on stderr")
	f.BoolVarP(&a.yes, "yes", "y", false, "do not ask")
	f.DurationVar(&a.limitT, "timeout", 0, "`time`: give up after it, as 30s or 5m")
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(a.help)
	root.SetHelpCommand(a.helpCommand(root))
	root.PersistentPreRunE = a.prepare
	root.AddCommand(
		a.upCommand(), a.downCommand(), a.statusCommand(), a.runCommand(), a.submitCommand(), a.launchCommand(),
		a.jobCommand(), a.pgCommand(), a.nodeCommand(), a.checkpointCommand(), a.actorCommand(), a.whyCommand(), a.chaosCommand(),
		a.queueCommand(), a.quotaCommand(), a.reservationCommand(), a.usageCommand(), a.topologyCommand(), a.planCommand(),
		a.eventsCommand(), a.uiCommand(), a.headCommand(), a.workerCommand(), a.joinKeyCommand(), a.versionCommand(), a.contextCommand(), a.limitsCommand(), a.simulateCommand(),
	)
	root.AddCommand(a.shortcuts()...)
	walk(root, strict)
	return root
}

func walk(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, s := range c.Commands() {
		walk(s, f)
	}
}

// strict makes a wrong word or number of words a complaint of ours, with the usage.
func strict(c *cobra.Command) {
	if c.HasSubCommands() {
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return unknownCommand(c, args[0])
		}
		return
	}
	check := c.Args
	if check == nil {
		return
	}
	c.Args = func(c *cobra.Command, args []string) error {
		err := check(c, args)
		var x *exitError
		if err == nil || errors.As(err, &x) {
			return err
		}
		what := "takes no argument"
		if _, words, ok := strings.Cut(c.Use, " "); ok {
			what = "wants " + strings.TrimPrefix(words, "[flags] ")
		}
		return fail(64, "TRP-C064", c.CommandPath()+" --help", "%s %s; got %s", c.CommandPath(), what, plural(int64(len(args)), "argument"))
	}
}

// prepare checks the global flags and bounds the command's time.
func (a *app) prepare(c *cobra.Command, _ []string) error {
	if v := os.Getenv("TROUPE_OUTPUT"); v != "" && !c.Flags().Changed("output") {
		a.format = v
	}
	allowed := formats
	if more := c.Annotations[moreFormats]; more != "" {
		allowed = append(slices.Clone(formats), more)
	}
	if !slices.Contains(allowed, a.format) {
		word := a.format
		a.format = "table"
		return usage("unknown output format %q; one of %s%s", word, strings.Join(allowed, ", "), didYouMean(word, allowed))
	}
	if a.limit < 1 {
		return usage("--limit %d: at least 1; --all shows all", a.limit)
	}
	if a.all {
		a.limit = 0
	}
	if a.limitT < 0 {
		return usage("--timeout %s: not negative", a.limitT)
	}
	if a.limitT == 0 || c.Annotations[endless] != "" {
		return nil
	}
	// The process ends with the command, and the timer with the process.
	ctx, cancel := context.WithTimeout(c.Context(), a.limitT)
	context.AfterFunc(ctx, cancel)
	c.SetContext(ctx)
	return nil
}

// moreFormats names an output format that one command has besides those of all.
const moreFormats = "more-formats"

// endless marks commands that --timeout does not end.
const endless = "endless"

var daemon = map[string]string{endless: "it runs until it is told to end"}

// interruptible returns a context that ends with the first signal.
func (a *app) interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

// note tells people something beside the answer. A program that reads JSON gets at
// most one object on stderr: the problem.
func (a *app) note(format string, args ...any) {
	if !a.quiet && !a.machine() {
		_, _ = fmt.Fprintf(a.err, format+"\n", args...)
	}
}
