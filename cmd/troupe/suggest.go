package main

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/troupe-runtime/troupe/cmd/troupe/torchrun"
	"github.com/troupe-runtime/troupe/runtime/api"
)

func commandNames(c *cobra.Command) []string {
	names := []string{"help"}
	for _, s := range c.Commands() {
		if s.IsAvailableCommand() {
			names = append(names, s.Name())
			names = append(names, s.Aliases...)
		}
	}
	return names
}

func unknownCommand(c *cobra.Command, word string) error {
	return fail(api.ExitUsage, "TRP-C064", c.CommandPath()+" --help", "unknown command %q of %s%s", word, c.CommandPath(), didYouMean(word, commandNames(c)))
}

// flagError names the nearest flag for an unknown one.
func flagError(c *cobra.Command, err error) error {
	help := c.CommandPath() + " --help"
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		want := map[string]string{"int": "a whole number", "int64": "a whole number", "int64Slice": "whole numbers, as 0,1,2", "ranks": "a number of at least 1, or MIN:MAX", "duration": "a time, as 30s or 5m", "bool": "true or false"}[bad.GetFlag().Value.Type()]
		return fail(api.ExitUsage, "TRP-C064", help, "--%s %q: want %s", bad.GetFlag().Name, bad.GetValue(), cmp.Or(want, "another value"))
	}
	var ne *pflag.NotExistError
	if !errors.As(err, &ne) {
		return fail(api.ExitUsage, "TRP-C064", help, "%s", strings.ReplaceAll(err.Error(), "strconv.ParseInt: ", ""))
	}
	if ne.GetSpecifiedShortnames() != "" {
		return fail(api.ExitUsage, "TRP-C064", help, "unknown flag -%s of %s", ne.GetSpecifiedName(), c.CommandPath())
	}
	var names []string
	add := func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	}
	c.Flags().VisitAll(add)
	c.InheritedFlags().VisitAll(add)
	if c.Annotations[takesTorchrun] != "" {
		names = append(names, torchrun.Spellings()...)
	}
	word := "--" + ne.GetSpecifiedName()
	return fail(api.ExitUsage, "TRP-C064", help, "unknown flag %s of %s%s", word, c.CommandPath(), didYouMean(word, names))
}

// didYouMean returns "; did you mean X?" for the nearest known word, or nothing.
func didYouMean(word string, known []string) string {
	best, at := "", 3
	if len([]rune(strings.TrimLeft(word, "-"))) < 3 {
		at = 2 // anything is two letters away from a word of two
	}
	for _, k := range slices.Sorted(slices.Values(known)) {
		d := distance(strings.ToLower(word), strings.ToLower(k))
		if strings.HasPrefix(k, word) && len(strings.TrimLeft(word, "-")) > 1 {
			d = min(d, 1)
		}
		if d < at {
			best, at = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance is the number of letters to add, drop, change or swap with their neighbour.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	two, one, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		two, one, row = one, row, two
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(one[j]+1, row[j-1]+1, one[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], two[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
