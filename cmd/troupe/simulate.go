package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"
	"golang.org/x/term"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/simulate"
	"github.com/troupe-runtime/troupe/head/simulate/picture"
)

// simulateFlags are those of troupe simulate.
type simulateFlags struct {
	cluster, trace, policy, pictures, format, estimates string
	seed                                                uint64
	faster                                              float64
	skip                                                bool
	until                                               time.Duration
	first                                               int
	due                                                 simulate.DueOptions
	speedup                                             float64
}

// defaultPolicy is the scheduler itself.
const defaultPolicy = "troupe"

func (a *app) simulateCommand() *cobra.Command {
	var f simulateFlags
	c := &cobra.Command{
		Use: "simulate", Aliases: []string{"sim"}, Short: "Play a trace of jobs on a cluster that does not exist", Args: cobra.NoArgs,
		Long: `Plays a trace of jobs in virtual time over the real state machine, scheduler and
supervisor, and says how long jobs waited, how full the cluster was and what failures
cost. No head is needed, and nothing is started. The same cluster, trace and seed give the
same answer. docs/how-to/simulate.md describes both files.`,
		Example: `  troupe simulate --cluster cluster.yaml --trace jobs.csv
  troupe simulate --cluster 80x8 --trace philly.csv --policy easy -o json
  troupe simulate --cluster cluster.yaml --trace jobs.csv --seed 7 --pictures out`,
		RunE: func(c *cobra.Command, _ []string) error { return a.simulate(c.Context(), f) },
	}
	l := c.Flags()
	l.StringVar(&f.cluster, "cluster", "", "`FILE`: the cluster, YAML or JSON; or NODESxGPUS, as 80x8")
	l.StringVar(&f.trace, "trace", "", "`FILE`: the jobs, CSV or JSON lines; - for stdin")
	l.StringVar(&f.policy, "policy", defaultPolicy, "`name`: troupe, or a plain rule on counts: "+plainNames())
	l.Float64Var(&f.speedup, "speedup", 1.8, "`F`: how much faster twice the GPUs make a job that may have other sizes")
	l.IntVar(&f.due.Doublings, "doublings", 2, "`N`: of elastic: how often a job may get twice the GPUs")
	l.DurationVar(&f.due.Change, "change", 30*time.Second, "`time`: of edf and elastic: what a start or another size costs")
	l.Uint64Var(&f.seed, "seed", 1, "`N`: of everything that is drawn")
	l.StringVar(&f.estimates, "estimates", "", "`S`: tell the scheduler how long jobs take: exact, or wrong by e^N(0,S)")
	l.Float64Var(&f.faster, "faster", 1, "`F`: jobs arrive F times as fast")
	l.DurationVar(&f.until, "until", 0, "`time`: of the trace, at which policy troupe ends (default when all jobs are over)")
	l.IntVar(&f.first, "first", 0, "`N`: only the first N jobs (default all)")
	l.BoolVar(&f.skip, "skip-bad", false, "leave out rows that cannot be read, and say how many")
	l.StringVar(&f.pictures, "pictures", "", "`folder`: draw utilisation and a Gantt chart there")
	l.StringVar(&f.format, "picture-format", "svg", "`kind`: svg or png")
	return c
}

func plainNames() string {
	names := make([]string, 0, len(schedule.PlainRules)+2)
	for _, r := range schedule.PlainRules {
		names = append(names, string(r))
	}
	return strings.Join(append(names, simulate.DueFixed, simulate.DueElastic), ", ")
}

func (a *app) simulate(ctx context.Context, f simulateFlags) error {
	switch {
	case f.cluster == "":
		return usage("--cluster is missing: a file, or NODESxGPUS, as 80x8")
	case f.trace == "":
		return usage("--trace is missing: a file of jobs, or - for stdin")
	case f.faster <= 0 || math.IsInf(f.faster, 0) || math.IsNaN(f.faster):
		return usage("--faster %g: above 0", f.faster)
	case f.until < 0 || f.first < 0:
		return usage("--until and --first are not negative")
	case f.format != "svg" && f.format != "png":
		return usage("--picture-format %q: svg or png", f.format)
	case math.IsNaN(f.speedup) || f.speedup <= 1 || f.speedup > 2 || f.due.Doublings < 0 || f.due.Doublings > 10 || f.due.Change < 0:
		return usage("--speedup is above 1 and at most 2, --doublings 0 to 10, --change not negative")
	}
	f.due.Speedup = schedule.Speedup(f.speedup)
	if f.until > 0 && f.policy != defaultPolicy {
		return usage("--until goes with --policy %s; %s plays a trace to its end (--first N takes less of it)", defaultPolicy, f.policy)
	}
	if names := append([]string{defaultPolicy}, strings.Split(plainNames(), ", ")...); !slices.Contains(names, f.policy) {
		return usage("--policy %q: one of %s%s", f.policy, strings.Join(names, ", "), didYouMean(f.policy, names))
	}
	cluster, err := readCluster(f.cluster)
	if err != nil {
		return err
	}
	trace, err := a.readTrace(f, cluster)
	if err != nil {
		return err
	}
	for _, n := range trace.Notes {
		a.note("%s: %s", f.trace, n)
	}
	ctx, stop := a.interruptible(ctx)
	defer stop()
	bar := a.progressBar(len(trace.Jobs))
	var r *simulate.Result
	// Each entry leaves a little garbage; there is memory enough to collect it seldom.
	debug.SetGCPercent(400)
	began := time.Now()
	switch f.policy {
	case defaultPolicy:
		r, err = simulate.Run(ctx, cluster, trace, simulate.Options{
			Seed: f.seed, Until: f.until, Speedup: f.due.Speedup, Progress: bar.show, Clock: func() time.Duration { return time.Since(began) },
		})
	case simulate.DueFixed, simulate.DueElastic:
		r, err = simulate.Due(ctx, f.policy, trace, 1000*cluster.GPUs(), f.due, bar.show)
	default:
		r, err = simulate.Plain(ctx, schedule.PlainRule(f.policy), trace, 1000*cluster.GPUs(), bar.show)
	}
	bar.end()
	if bad, ok := errors.AsType[simulate.ClusterError](err); ok {
		return malformed("troupe simulate --help", "%s: %v", f.cluster, bad)
	}
	if err != nil {
		return err
	}
	report := simulate.NewReport(trace, r, f.policy, f.seed, cluster.GPUs())
	report.Trace = f.trace
	a.one(report, f.trace, func() { a.printReport(report) })
	if f.policy == defaultPolicy {
		a.note("%s, %s of the log, %s of the scheduler in %s; the longest %s", plural(int64(report.Jobs), "job"), plural(int64(min(r.Commands, math.MaxInt64)), "command"), plural(int64(r.Cycles), "cycle"), time.Since(began).Round(time.Millisecond), r.Longest.Round(time.Microsecond))
		for _, p := range r.Phases {
			if p.Took < time.Second {
				continue
			}
			a.note("  %-8s %s", p.Name, p.Took.Round(time.Millisecond))
		}
	}
	if f.pictures == "" {
		return nil
	}
	paths, err := picture.Write(f.pictures, f.format, r)
	for _, p := range paths {
		a.note("drew %s", p)
	}
	return err
}

var gridRE = regexp.MustCompile(`^([0-9]+)x([0-9]+)$`)

// readCluster reads a cluster file, or makes equal nodes of a word like 80x8.
func readCluster(word string) (*simulate.Cluster, error) {
	if m := gridRE.FindStringSubmatch(word); m != nil {
		nodes, err1 := strconv.Atoi(m[1])
		gpus, err2 := strconv.Atoi(m[2])
		if err := cmp.Or(err1, err2); err != nil {
			return nil, malformed("troupe simulate --help", "%s: %d nodes of %d GPUs are the most", word, simulate.MaxNodes, simulate.MaxGPUsPerNode)
		}
		c, err := simulate.ParseCluster(word, fmt.Appendf(nil, `{"nodes":[{"count":%d,"gpus":%d}]}`, nodes, gpus))
		if err != nil {
			return nil, malformed("troupe simulate --help", "%v", err)
		}
		return c, nil
	}
	data, err := readBounded(word, "troupe simulate --help")
	if err != nil {
		return nil, err
	}
	return decodeCluster(word, data)
}

// decodeCluster reads a cluster file, YAML or JSON.
func decodeCluster(word string, data []byte) (c *simulate.Cluster, err error) {
	defer func() {
		if x, ok := errors.AsType[*exitError](err); ok {
			x.help = "troupe simulate --help"
		}
	}()
	doc, err := yamlDocument(word, data, "")
	if err != nil {
		return nil, err
	}
	raw, err := clusterJSON(word, doc)
	if err != nil {
		return nil, err
	}
	if c, err = simulate.ParseCluster(filepath.Base(word), raw); err != nil {
		return nil, malformed("troupe simulate --help", "%v", err)
	}
	return c, nil
}

// clusterFile is a cluster whose queues have quantities as people write them.
type clusterFile struct {
	Queues []queueEntry `json:"queues"`
	simulate.Cluster
}

// clusterJSON is a cluster file in the form that the simulator reads.
func clusterJSON(path string, doc *yaml.Node) ([]byte, error) {
	tree, err := plainTree(path, doc, reflect.TypeFor[clusterFile](), 0)
	if err != nil {
		return nil, err
	}
	top, _ := tree.(map[string]any) // nothing else is taken for a struct
	if given, ok := top["queues"]; ok {
		raw, err := json.Marshal(given)
		if err != nil {
			return nil, malformed("", "%s: %v", path, err)
		}
		var entries []queueEntry
		if err := json.Unmarshal(raw, &entries); err != nil {
			return nil, malformed("", "%s: %v", path, err)
		}
		if top["queues"], err = queuesOf(path, doc, entries); err != nil {
			return nil, err
		}
	}
	raw, err := json.Marshal(top)
	if err != nil {
		return nil, malformed("", "%s: %v", path, err)
	}
	return raw, nil
}

// maxClusterFile bounds a cluster file.
const maxClusterFile = 16 << 20

func readBounded(path, help string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, missing(help, "cannot read %s: %v", path, withoutPath(err))
	}
	defer func() { _ = file.Close() }() // nothing was written
	data, err := io.ReadAll(io.LimitReader(file, maxClusterFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, withoutPath(err))
	}
	if len(data) > maxClusterFile {
		return nil, malformed(help, "%s is larger than %d bytes", path, maxClusterFile)
	}
	return data, nil
}

// withoutPath is what a file system said, for a text that names the file itself.
func withoutPath(err error) error {
	if x, ok := errors.AsType[*fs.PathError](err); ok {
		return x.Err
	}
	return err
}

func (a *app) readTrace(f simulateFlags, c *simulate.Cluster) (*simulate.Trace, error) {
	in, name := a.in, "stdin"
	if f.trace != "-" {
		file, err := os.Open(f.trace)
		if err != nil {
			return nil, missing("troupe simulate --help", "cannot read %s: %v", f.trace, withoutPath(err))
		}
		defer func() { _ = file.Close() }() // nothing was written
		in, name = file, f.trace
	}
	t, err := simulate.ReadTrace(name, in, simulate.ReadOptions{SkipBad: f.skip, Faster: f.faster, Defaults: c.Jobs})
	if err != nil {
		return nil, malformed("--skip-bad leaves out what cannot be read; docs/how-to/simulate.md has the formats", "%v", err)
	}
	if f.first > 0 && f.first < len(t.Jobs) {
		t.Jobs = t.Jobs[:f.first]
	}
	switch sigma, err := strconv.ParseFloat(f.estimates, 64); {
	case f.estimates == "":
	case f.estimates == "exact":
		t.Estimate(0, f.seed)
	case err != nil || math.IsNaN(sigma) || sigma < 0 || sigma > 10:
		return nil, usage("--estimates %q: exact, or a number from 0 to 10", f.estimates)
	default:
		t.Estimate(sigma, f.seed)
	}
	return t, nil
}

func (a *app) printReport(r *simulate.Report) {
	t := table{
		head:  []string{"SIZE", "JOBS", "WAIT MEAN", "P50", "P99", "MAX", "COMPLETION MEAN", "P50", "P99", "MAX"},
		right: map[int]bool{1: true, 2: true, 3: true, 4: true, 5: true, 6: true, 7: true, 8: true, 9: true},
	}
	for _, c := range r.Classes {
		row := []string{c.Name, fmt.Sprint(c.Jobs)}
		for _, s := range []simulate.Spread{c.Wait, c.Completion} {
			for _, d := range []time.Duration{s.Mean.D(), s.P50.D(), s.P99.D(), s.Max.D()} {
				row = append(row, fmt.Sprintf("%.0f s", d.Seconds()))
			}
		}
		t.add(row...)
	}
	a.print(t)
	_, _ = fmt.Fprintln(a.out)
	for _, row := range r.Rows() {
		_, _ = fmt.Fprintf(a.out, "%-10s %s\n", row[0], row[1])
	}
	for i, w := range r.Why {
		if i == 5 && len(r.Why) > 6 {
			_, _ = fmt.Fprintf(a.out, "%-10s and %d more; -o json lists up to 100\n", "", len(r.Why)-i)
			break
		}
		_, _ = fmt.Fprintf(a.out, "%-10s %s: %s\n", "not run", clean(w.Job), clean(w.Reason))
	}
}

// progressBar is a line on stderr while somebody looks at it.
type progressBar struct {
	w    io.Writer // nil: nobody looks
	all  int
	last time.Time
}

func (a *app) progressBar(all int) *progressBar {
	f, ok := a.err.(*os.File)
	if !ok || a.quiet || a.machine() || !term.IsTerminal(int(f.Fd())) {
		return &progressBar{}
	}
	return &progressBar{w: a.err, all: max(1, all)}
}

// barWidth is how many characters the bar itself has.
const barWidth = 30

func (b *progressBar) show(done int) {
	if b.w == nil || time.Since(b.last) < 100*time.Millisecond {
		return
	}
	b.last = time.Now()
	full := barWidth * done / b.all
	_, _ = fmt.Fprintf(b.w, "\r[%s%s] %3d %%  %d of %d jobs", strings.Repeat("#", full), strings.Repeat(" ", barWidth-full), 100*done/b.all, done, b.all)
}

// end takes the bar off the screen.
func (b *progressBar) end() {
	if b.w != nil {
		_, _ = fmt.Fprint(b.w, "\r\x1b[K")
	}
}
