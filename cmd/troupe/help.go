package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/troupe-runtime/troupe/cmd/troupe/torchrun"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// groups are the headings of `troupe --help` and what stands below them, in order.
var groups = []struct {
	title string
	names []string
}{
	{"Run and watch", []string{"run", "submit", "plan", "status", "ps", "logs", "why", "events", "wait", "stop", "ui"}},
	{"Things", []string{"job", "pg", "node", "checkpoint", "actor", "queue", "quota", "reservation", "usage", "topology", "chaos"}},
	{"Clusters", []string{"up", "down", "head", "worker", "join-key", "context"}},
	{"More", []string{"simulate", "limits", "version", "help"}},
}

// topics are texts that `troupe help TOPIC` prints.
var topics = []struct{ name, short, text string }{
	{"exit-codes", "exit codes of every command", exitCodesText},
	{"environment", "environment variables", environmentText},
	{"reasons", "codes of reasons", reasonsText},
}

// help prints examples first: most people look for a line to change, not for a list.
func (a *app) help(c *cobra.Command, _ []string) {
	w := a.out
	text := c.Long
	if text == "" {
		text = c.Short
	}
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
	p("%s\n\n", strings.TrimSuffix(text, ".")+".")
	if c.Example != "" {
		p("Examples:\n%s\n\n", c.Example)
	}
	if !c.HasParent() {
		p("Usage:\n  troupe COMMAND [flags]\n\n")
		rootCommands(w, c)
	} else if c.HasAvailableSubCommands() {
		p("Usage:\n  %s COMMAND [flags]\n\n", c.CommandPath())
		p("Commands:\n")
		for _, s := range c.Commands() {
			if s.IsAvailableCommand() {
				p("  %-10s %s\n", s.Name(), s.Short)
			}
		}
		p("\n")
	} else {
		p("Usage:\n  %s\n\n", useLine(c))
	}
	if len(c.Aliases) > 0 {
		p("Also called: %s\n\n", strings.Join(c.Aliases, ", "))
	}
	if text := flagUsages(c.LocalFlags()); c.HasParent() && text != "" {
		p("Flags:\n%s\n", text)
	}
	switch {
	case c.Name() == "launch":
		p("torchrun's options:\n%s\n", torchrun.Usage())
	case c.Annotations[takesTorchrun] != "":
		p("All of torchrun's options are taken too: %s --explain-flags lists them.\n\n", c.CommandPath())
	}
	if !c.HasParent() {
		p("Flags of every command:\n%s\n", flagUsages(c.PersistentFlags()))
		p("More about a command: troupe help COMMAND; about a topic: troupe help ")
		for i, t := range topics {
			if i > 0 {
				p(", ")
			}
			p("%s", t.name)
		}
		p(".\n")
		return
	}
	p("Flags of every command: -o json, --address, --limit … (troupe --help)\n")
}

// useLine adds [flags] where it belongs: before what is the user's own command.
func useLine(c *cobra.Command) string {
	path, use := c.CommandPath(), c.Use
	_, args, _ := strings.Cut(use, " ")
	if strings.Contains(use, "[flags]") || flagUsages(c.LocalFlags()) == "" {
		return strings.TrimSpace(path + " " + args)
	}
	return strings.TrimSpace(path + " [flags] " + args)
}

// flagUsages is one line for each flag. A usage that begins with a word in backquotes
// and a colon names the placeholder only: "`N`: CPUs of each" is "--cpus N  CPUs of each".
// --help is left out: whoever reads it has found it.
func flagUsages(fs *pflag.FlagSet) string {
	var left, right []string
	width := 0
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name, text := pflag.UnquoteUsage(f)
		if rest, ok := strings.CutPrefix(f.Usage, "`"+name+"`: "); ok {
			text = rest
		}
		l := "      --" + f.Name
		if f.Shorthand != "" {
			l = "  -" + f.Shorthand + ", --" + f.Name
		}
		if name != "" {
			l += " " + name
		}
		if d := f.DefValue; !strings.Contains(text, "(default") && d != "" && d != "false" && d != "0" && d != "0s" && d != "[]" {
			text += " (default " + d + ")"
		}
		left, right, width = append(left, l), append(right, text), max(width, len(l))
	})
	var b strings.Builder
	for i := range left {
		_, _ = fmt.Fprintf(&b, "%-*s  %s\n", width, left[i], right[i])
	}
	return b.String()
}

func rootCommands(w io.Writer, root *cobra.Command) {
	for _, g := range groups {
		_, _ = fmt.Fprintf(w, "%s:\n", g.title)
		for _, name := range g.names {
			for _, c := range root.Commands() {
				if c.Name() == name {
					_, _ = fmt.Fprintf(w, "  %-11s %s\n", name, c.Short)
				}
			}
		}
		_, _ = fmt.Fprintln(w)
	}
}

// helpCommand is `troupe help [COMMAND or TOPIC]`.
func (a *app) helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND or TOPIC]", Short: "Help about a command or a topic",
		Example: "  troupe help run\n  troupe help exit-codes",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return root.Help()
			}
			for _, t := range topics {
				if len(args) == 1 && args[0] == t.name {
					a.one(map[string]string{"topic": t.name, "text": t.text}, t.name, func() { _, _ = fmt.Fprintln(a.out, t.text) })
					return nil
				}
			}
			c, rest, err := root.Find(args)
			if err == nil && len(rest) == 0 && c != root {
				return c.Help()
			}
			word, parent := args[0], root
			if c != nil && c != root && len(rest) > 0 {
				word, parent = rest[0], c
			}
			names := commandNames(parent)
			if parent == root {
				for _, t := range topics {
					names = append(names, t.name)
				}
			}
			return fail(api.ExitUsage, "TRP-C064", "troupe --help", "no command or topic %q%s", strings.TrimSpace(strings.TrimPrefix(parent.CommandPath(), "troupe")+" "+word), didYouMean(word, names))
		},
	}
}

const exitCodesText = `Exit codes of every command:

  0    done
  1    the thing failed, a waited condition came out false, or findings (verify)
  64   usage: unknown flag or command
  65   malformed input
  66   not found
  69   no head reachable, or outcome unknown
  70   a defect in Troupe
  71   the operating system refused: folder not writable, disk full
  73   conflict: state folder or port in use, or a version moved on
  74   timed out, or stopped only where nodes could be reached
  75   preempted, time limit, infrastructure: resubmitting makes sense
  77   denied
  78   can never be placed, or not configured
  130  interrupted

run, wait and logs -f pass on the code of the rank that was the root cause; a
signal n is 128+n. python -m troupe.launch gives 1 like torchrun, unless
--exit-code=job.`

const environmentText = `Environment variables of the command line:

  TROUPE_ADDRESS   address of the head, host[:port] or http://host:port
  TROUPE_TOKEN     API token; else the token file of the context
  TROUPE_CA        digest of the root certificate of the cluster at TROUPE_ADDRESS
  TROUPE_CONTEXT   name of the context; else the current one
  TROUPE_JOIN_TOKEN  the join key; else that of its file (troupe join-key)
  TROUPE_OUTPUT    output format when -o is not given
  TROUPE_DEBUG     anything: more in the logs of up, head and worker
  XDG_CONFIG_HOME  holds troupe/config.yaml (default ~/.config)
  XDG_STATE_HOME   holds the cluster of troupe up (default ~/.local/state)

What every rank finds: the variables of torchrun under their names, and
TROUPE_JOB, TROUPE_RUN, TROUPE_ATTEMPT, TROUPE_GENERATION, TROUPE_SOCKET.`

const reasonsText = `Codes of reasons, in troupe why, the API and the page:

  Fit          nothing free is large enough now
  Releasing    capacity is free only once processes are proven gone
  Health       a node is suspect or lost
  Busy         a bundle of the placement group is used by another job
  NeverFits    more than the cluster could hold when empty
  UserError    a rank failed by its own doing
  SameFailure  the same traceback twice before the first step
  Budget       no restart of that class is left
  NodeLost     a node went silent
  Store        the nodes of the group do not see one checkpoint store
  Restore      the step to restore was damaged; an earlier one is used
  Stopped      somebody asked for the end
  OwnerGone    the process that owned the job has ended`
