package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// leaves are the commands that do something, by their path without the program's name.
func leaves(t *testing.T) map[string]*cobra.Command {
	t.Helper()
	a := &app{out: new(bytes.Buffer), err: new(bytes.Buffer)}
	out := map[string]*cobra.Command{}
	walk(a.root(), func(c *cobra.Command) {
		if !c.HasSubCommands() && c.Name() != "completion" {
			out[strings.TrimPrefix(c.CommandPath(), "troupe ")] = c
		}
	})
	return out
}

// Every command has its JSON frozen, or stands here with the reason why not.
func TestEveryCommandHasAGoldenShape(t *testing.T) {
	without := map[string]string{
		"launch":         "hidden; its output is the ranks'",
		"head start":     "runs until it is told to end",
		"worker start":   "runs until it is told to end",
		"worker restart": "wants an agent as a process of its own; test/loss restarts one",
	}
	for path := range leaves(t) {
		file := filepath.Join("..", "..", "test", "cli", "testdata", "shapes", strings.ReplaceAll(path, " ", "-")+".txt")
		_, err := os.Stat(file)
		if _, excused := without[path]; excused == (err == nil) {
			t.Errorf("%s: shape recorded: %t, excused: %q", path, err == nil, without[path])
		}
	}
}

// Help shows examples that name the command they explain, and every command is found
// from `troupe --help`.
func TestEveryCommandHasExamples(t *testing.T) {
	var listed []string
	for _, g := range groups {
		listed = append(listed, g.names...)
	}
	for path, c := range leaves(t) {
		if c.Hidden {
			continue
		}
		if !strings.Contains(c.Example, c.CommandPath()) {
			t.Errorf("%s: its examples do not show it: %q", path, c.Example)
		}
		for line := range strings.SplitSeq(c.Example, "\n") {
			if !strings.HasPrefix(line, "  ") || strings.TrimSpace(line) == "" {
				t.Errorf("%s: example %q", path, line)
			}
		}
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: short text %q", path, c.Short)
		}
		if first, _, _ := strings.Cut(path, " "); !slices.Contains(listed, first) {
			t.Errorf("%s is not in the groups of --help", first)
		}
	}
}

// What examples show must parse: flags exist, and the number of words is right.
func TestExamplesParse(t *testing.T) {
	for path, c := range leaves(t) {
		for line := range strings.SplitSeq(c.Example, "\n") {
			rest, ok := strings.CutPrefix(strings.TrimSpace(line), c.CommandPath())
			if !ok || strings.ContainsAny(rest, "$\"") {
				continue // a shell's words, not ours
			}
			args := append(strings.Fields(path), strings.Fields(rest)...)
			a := &app{out: new(bytes.Buffer), err: new(bytes.Buffer)}
			root := a.root()
			args, err := a.torchrunWords(root, args)
			if err != nil {
				t.Errorf("%q: %v", line, err)
			}
			found, flags, err := root.Find(args)
			if err == nil {
				err = found.ParseFlags(flags)
			}
			if err == nil {
				err = found.ValidateArgs(found.Flags().Args())
			}
			if err != nil {
				t.Errorf("%q: %v", line, err)
			}
		}
	}
}
