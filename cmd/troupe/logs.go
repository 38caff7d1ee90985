package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

type logOptions struct {
	follow  bool
	ranks   string
	attempt string
	stderr  bool
	stdout  bool
	prefix  string
	// merge sends what ranks wrote to stderr to stdout too: for a reader both are the
	// answer, while a foreground command passes each on as what it was.
	merge bool
}

func (a *app) jobLogs() *cobra.Command {
	var o logOptions
	c := &cobra.Command{
		Use: "logs JOB", Short: "What the ranks wrote", Args: cobra.ExactArgs(1),
		Example: "  troupe job logs digits-7f3k2\n  troupe job logs -f @last --rank 0,3-5\n  troupe job logs @last --attempt 0 --stderr -o jsonl",
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := a.interruptible(c.Context())
			defer stop()
			j, err := a.job(ctx, args[0])
			if err != nil {
				return err
			}
			if a.machine() {
				o.prefix = "json"
			}
			if err := o.check(); err != nil {
				return err
			}
			o.merge = true
			if !o.follow {
				return a.printLogs(ctx, j, o)
			}
			cl, err := a.api()
			if err != nil {
				return err
			}
			f := newFollower(a, cl, j.ID, o)
			j, err = f.run(ctx)
			if errors.Is(err, context.Canceled) {
				a.note("detached; the job goes on. Stop it with: troupe job stop %s", j.ID)
				return &exitError{code: api.ExitInterrupted}
			}
			if err != nil {
				return err
			}
			a.note("job %s: %s", j.ID, f.names().in(endText(j)))
			return exitOf(j)
		},
	}
	f := c.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "go on until the job ends, and exit with its code")
	f.StringVar(&o.ranks, "rank", "", "`ranks`: only these, as 0,3-5")
	f.StringVar(&o.attempt, "attempt", "", "`N`: that attempt, or all (default the newest)")
	f.BoolVar(&o.stderr, "stderr", false, "only what was written to stderr")
	f.BoolVar(&o.stdout, "stdout", false, "only what was written to stdout")
	f.StringVar(&o.prefix, "prefix", "rank", "`what`: stands before each line: rank, none, or json for an object a line")
	return c
}

func (o *logOptions) check() error {
	if !slices.Contains([]string{"rank", "none", "json"}, o.prefix) {
		return usage("--prefix %q: rank, none or json", o.prefix)
	}
	if o.attempt != "" && o.attempt != "all" {
		if n, err := strconv.ParseInt(o.attempt, 10, 64); err != nil || n < 0 {
			return usage("--attempt %q: a number from 0, or all", o.attempt)
		}
	}
	if o.stderr && o.stdout {
		o.stderr, o.stdout = false, false
	}
	return nil
}

func (o *logOptions) streams() []string {
	switch {
	case o.stderr:
		return []string{"stderr"}
	case o.stdout:
		return []string{"stdout"}
	}
	return []string{"stdout", "stderr"}
}

func (o *logOptions) wants(attempt int64, newest int64) bool {
	switch o.attempt {
	case "all":
		return true
	case "":
		return attempt == newest
	}
	n, _ := strconv.ParseInt(o.attempt, 10, 64)
	return attempt == n
}

// printLogs prints what is there now, rank by rank.
func (a *app) printLogs(ctx context.Context, j api.Job, o logOptions) error {
	cl, err := a.api()
	if err != nil {
		return err
	}
	if len(j.Attempts) == 0 {
		a.note("job %s has not started, it is %s; -f waits for it, troupe why %s says what it waits for", j.ID, j.State, j.ID)
		return nil
	}
	found := false
	for _, at := range j.Attempts {
		if !o.wants(at.Number, j.Attempt) {
			continue
		}
		found = true
		ranks, err := parseRanks(o.ranks, int64(len(at.Ranks)))
		if err != nil {
			return err
		}
		for _, r := range ranks {
			for _, s := range o.streams() {
				w := &lineWriter{a: a, prefix: prefixOf(o, r, at.Number, s), json: o.prefix == "json", out: a.out}
				offset := int64(0)
				for {
					p, err := cl.ReadLog(ctx, j.ID, r, at.Number, s, offset, 0)
					if err != nil {
						if problem := troupe.AsProblem(err); problem != nil && problem.Status == 404 {
							break
						}
						return err
					}
					w.write(p.Data)
					offset = p.Start + int64(len(p.Data))
					if len(p.Data) == 0 || offset >= p.Size {
						break
					}
				}
				w.flush()
			}
		}
	}
	if !found {
		return fail(api.ExitNotFound, "TRP-C066", "troupe job get "+j.ID, "job %s has no attempt %s", j.ID, o.attempt)
	}
	return nil
}

// prefixOf is what stands before each line of a stream; in JSON, the fields before the
// line's own.
func prefixOf(o logOptions, rank, attempt int64, stream string) string {
	switch {
	case o.prefix == "json":
		return fmt.Sprintf(`{"attempt":%d,"rank":%d,"stream":%q,"line":`, attempt, rank, stream)
	case o.prefix == "none":
		return ""
	case o.attempt == "all":
		return fmt.Sprintf("[%d.%d] ", attempt, rank)
	}
	return fmt.Sprintf("[%d] ", rank)
}

// jsonText is a string as JSON, with < and > as they are.
func jsonText(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return strings.TrimSuffix(b.String(), "\n")
}

// cleanTTY lets colours through and nothing else that steers a terminal.
func cleanTTY(s string) string {
	out := make([]rune, 0, len(s))
	rs := []rune(s)
	for i := 0; i < len(rs); i++ {
		if rs[i] == 0x1b && i+1 < len(rs) && rs[i+1] == '[' {
			j := i + 2
			for j < len(rs) && (rs[j] >= '0' && rs[j] <= '9' || rs[j] == ';') {
				j++
			}
			if j < len(rs) && rs[j] == 'm' {
				out = append(out, rs[i:j+1]...)
				i = j
				continue
			}
		}
		if rs[i] == '\t' {
			out = append(out, '\t')
			continue
		}
		out = append(out, []rune(clean(string(rs[i])))...)
	}
	return string(out)
}
