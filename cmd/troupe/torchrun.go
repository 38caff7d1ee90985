package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/troupe-runtime/troupe/cmd/troupe/torchrun"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// takesTorchrun marks the commands that take all of torchrun's options beside their own.
const takesTorchrun = "torchrun"

// torchrunWords takes torchrun's options out of the words of a command that has them,
// and leaves the rest to cobra: options of our own, unknown ones, and everything from
// the script on behind a --.
func (a *app) torchrunWords(root *cobra.Command, args []string) ([]string, error) {
	c, words, err := root.Find(args)
	if err != nil || c.Annotations[takesTorchrun] == "" {
		return args, nil //nolint:nilerr // cobra says it better
	}
	line, err := torchrun.Parse(words, os.LookupEnv, ownFlags(c))
	if err != nil {
		return nil, fail(api.ExitUsage, "TRP-C064", c.CommandPath()+" --explain-flags", "%v", err)
	}
	a.line, a.words = line, words
	out := append(strings.Fields(c.CommandPath())[1:], line.Own...)
	if len(line.Rest) > 0 {
		out = append(append(out, "--"), line.Rest...)
	}
	return out, nil
}

// ownFlags tells which options are the command's own.
func ownFlags(c *cobra.Command) torchrun.Own {
	return func(name string) (takesValue, known bool) {
		f := c.Flags().Lookup(strings.TrimPrefix(name, "--"))
		if f == nil {
			f = c.InheritedFlags().Lookup(strings.TrimPrefix(name, "--"))
		}
		if len(name) == 2 {
			if f = c.Flags().ShorthandLookup(name[1:]); f == nil {
				f = c.InheritedFlags().ShorthandLookup(name[1:])
			}
		}
		return f != nil && f.NoOptDefVal == "", f != nil
	}
}

// settings are torchrun's options of this command line.
func (a *app) settings(c *cobra.Command) (*torchrun.Settings, error) {
	s, err := a.line.Settings(os.LookupEnv)
	if err != nil {
		return nil, fail(api.ExitUsage, "TRP-C064", c.CommandPath()+" --explain-flags", "%v", err)
	}
	for _, name := range s.Signals {
		if unix.SignalNum(name) == 0 {
			a.note("note: --signals-to-handle: %s is no signal", clean(name))
		}
	}
	// Until a job is there to get them, these end nothing.
	signal.Notify(make(chan os.Signal, 1), unix.SIGUSR1, unix.SIGUSR2)
	return s, nil
}

// explanation is the answer of --explain-flags.
type explanation struct {
	Flags   []torchrun.Explained `json:"flags"`
	Script  string               `json:"script,omitempty"`
	Words   []string             `json:"arguments,omitempty"`
	Command []string             `json:"command,omitempty"`
}

// explainFlags prints how every option of torchrun was taken.
func (a *app) explainFlags(run bool, command []string) {
	e := explanation{Flags: a.line.Explain(run), Command: command}
	if len(a.line.Rest) > 0 {
		e.Script, e.Words = a.line.Rest[0], a.line.Rest[1:]
	}
	a.one(e, "", func() {
		t := table{head: []string{"FLAG", "VALUE", "FROM", "TAKEN", "HOW"}}
		for _, f := range e.Flags {
			value := f.Value
			if f.Value == "" {
				value = "-"
			}
			t.add(f.Flag, value, f.From, string(f.How), f.Text)
		}
		a.print(t)
	})
}

// notes says once what was set and has no meaning here.
func (a *app) torchrunNotes(run bool) {
	for _, n := range a.line.Notes(run) {
		a.note("note: %s", n)
	}
}

// pythonOf is the interpreter of ranks: PYTHON_EXEC, as under torchrun, else the one
// that runs the launcher, else that of PATH.
func pythonOf(launcher string) string {
	if p, ok := os.LookupEnv("PYTHON_EXEC"); ok {
		return p
	}
	if launcher != "" {
		return launcher
	}
	for _, name := range []string{"python3", "python"} {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	return "python3"
}

// countSource prints how many devices --nproc-per-node means on this machine, by
// torchrun's rules.
const countSource = `
import sys
kind = sys.argv[1]
try:
    import torch
except ImportError:
    sys.exit("no-torch")
if kind == "auto":
    print(torch.accelerator.device_count() if torch.accelerator.is_available() else -1)
else:
    module = {"gpu": "cuda"}.get(kind, kind)
    if kind not in ("gpu", "xpu", torch._C._get_privateuse1_backend_name()):
        sys.exit("unknown")
    module = getattr(torch, module, None)
    print(module.device_count() if module is not None and module.is_available() else 0)
`

// deviceWait bounds the question to torch, whose import can be slow.
const deviceWait = 2 * time.Minute

// perNode is the number of ranks on this host that --nproc-per-node means.
func perNode(ctx context.Context, python, text string) (int64, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	cpus := int64(runtime.NumCPU()) // of this process's affinity
	if text == "cpu" {
		return cpus, nil
	}
	ctx, cancel := context.WithTimeout(ctx, deviceWait)
	defer cancel()
	var out, errout bytes.Buffer
	cmd := exec.CommandContext(ctx, python, "-c", countSource, text)
	cmd.Stdout, cmd.Stderr = &out, &errout
	if err := cmd.Run(); err != nil {
		switch last := strings.TrimSpace(errout.String()); {
		case last == "unknown":
			return 0, usage("--nproc-per-node=%q is neither a number nor cpu, gpu, xpu, auto or a backend of torch", text)
		case last == "no-torch" && text == "auto":
			return cpus, nil
		case last == "no-torch":
			return 0, usage("--nproc-per-node=%s needs torch to count devices, and %s has none; give a number", text, python)
		default:
			return 0, usage("--nproc-per-node=%s: %s could not count devices (%v): %s", text, python, err, last)
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(out.String()), 10, 64)
	switch {
	case err != nil:
		return 0, usage("--nproc-per-node=%s: %s answered %q", text, python, clean(out.String()))
	case n < 0:
		return cpus, nil // auto, and no accelerator
	case n == 0:
		return 0, usage("--nproc-per-node=%s: torch finds no %s here; give a number or cpu", text, text)
	}
	return n, nil
}

var notInRun = regexp.MustCompile(`[^a-z0-9]+`)

// runName names a run after the script's path and --rdzv-id: the same again, the same run.
func runName(s *torchrun.Settings, script string) string {
	stem := script
	if !s.Module {
		if abs, err := filepath.Abs(script); err == nil {
			script = abs
		}
		if real, err := filepath.EvalSymlinks(script); err == nil {
			script = real
		}
		stem = strings.TrimSuffix(filepath.Base(script), filepath.Ext(script))
	}
	id := cmp.Or(s.RunID, "none")
	sum := sha256.Sum256([]byte(script + "\x00" + id))
	stem = strings.Trim(notInRun.ReplaceAllString(strings.ToLower(stem), "-"), "-")
	stem = strings.Trim(stem[:min(len(stem), 48)], "-")
	return cmp.Or(stem, "script") + "-" + hex.EncodeToString(sum[:4])
}

// missingScript says that a command line ends before the script.
func missingScript(example string) error {
	return fail(api.ExitUsage, "TRP-C064", example, "no training script given")
}
