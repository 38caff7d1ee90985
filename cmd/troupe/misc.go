package main

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func shortHash(s string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s))
	return fmt.Sprintf("%08x", h.Sum32())
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "What this program is", Args: cobra.NoArgs, Example: "  troupe version -o json",
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo()
			a.one(v, v.Version, func() {
				_, _ = fmt.Fprintf(a.out, "troupe %s (%s, feature level %d, ui %s, shim %s, nvml %t)\n", v.Version, v.Go, v.Level, v.UI, v.Shim, v.NVML)
			})
			return nil
		},
	}
}

// limits are the bounds that a user can run into, in one place.
var limits = []struct{ thing, limit, excess string }{
	{"request body", "1 MiB", "413"},
	{"log entry", "512 KiB", "413, never proposed"},
	{"folder that is sent along", "100 MiB (--working-dir-limit, at most 1000 MiB); 100,000 entries", "refused before it is sent"},
	{"environment of a job", "64 KiB", "422"},
	{"command of a job", "128 KiB", "422"},
	{"name", "63 characters", "422"},
	{"ranks of a job", "16,384", "422"},
	{"bundles of a placement group", "16,384", "422"},
	{"arguments or result of an actor call", "256 KiB", "error, nothing executed"},
	{"calls waiting in an actor's mailbox", "1,000", "error, not queued"},
	{"frame of a rank's socket", "64 KiB", "connection closed, the shim lives"},
	{"message on the bus", "1 MiB", "refused"},
	{"events kept", "100,000", "older ones are dropped and readers are told"},
	{"ended jobs kept", "20,000", "the oldest is dropped"},
	{"idempotency keys kept", "100,000 or 24 h", "outcome unknown"},
	{"output file of a rank", "256 MiB", "the head of the file is freed, offsets stay true"},
	{"streams of one token", "500", "429"},
}

func (a *app) limitsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "limits", Short: "Bounds and what happens beyond them", Args: cobra.NoArgs, Example: "  troupe limits",
		RunE: func(*cobra.Command, []string) error {
			if a.format == "json" || a.format == "jsonl" {
				rows := []map[string]string{}
				for _, l := range limits {
					rows = append(rows, map[string]string{"thing": l.thing, "limit": l.limit, "excess": l.excess})
				}
				a.json(a.out, rows)
				return nil
			}
			if a.format == "name" {
				for _, l := range limits {
					_, _ = fmt.Fprintln(a.out, l.thing)
				}
				return nil
			}
			t := table{head: []string{"THING", "LIMIT", "BEYOND-IT"}}
			for _, l := range limits {
				t.add(l.thing, l.limit, l.excess)
			}
			a.print(t)
			return nil
		},
	}
}
