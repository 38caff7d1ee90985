package simulate

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/head/gang"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Limits of a trace.
const (
	MaxTraceBytes = 256 << 20
	MaxJobs       = 2_000_000
	mostDoublings = 10
	mostProblems  = 20 // that are told at once
	year          = 365 * 24 * time.Hour
	// longest is the longest time that a trace may name: 100 years.
	longest = 100 * year
	// lastMoment ends every run: what an event before it puts off for as long again can still
	// be counted, and so can its date.
	lastMoment = 120 * year
	never      = lastMoment + year // later than anything that a run comes to
)

// beyond says what to do with a trace that goes on for too long.
func beyond(at time.Duration) error {
	return fmt.Errorf("the trace goes on for more than %d years, to which its jobs add up (%.0f years); "+
		"shorten them, or take a part of the trace", lastMoment/year, at.Hours()/24/365)
}

// Job is one row of a trace.
type Job struct {
	Line   int
	Name   string
	Submit time.Duration // since the trace's epoch
	Takes  time.Duration // from its start to its end if nothing disturbs it
	// Deadline is when it is to have ended, since the epoch; 0: none.
	Deadline time.Duration
	Spec     api.JobSpec
}

// Milli is what the job asks of devices, in thousandths.
func (j *Job) Milli() int64 { return j.Spec.Ranks * j.each() }

// each is that of one rank.
func (j *Job) each() int64 { return 1000*j.Spec.Resources.GPUs + j.Spec.Resources.Share }

// GPUs is Milli in whole devices, rounded up.
func (j *Job) GPUs() int64 { return (j.Milli() + 999) / 1000 }

// Trace is a list of jobs in the order of their submission.
type Trace struct {
	Format string
	Epoch  time.Time
	Jobs   []Job
	// Notes say what was skipped, sorted or not used, with counts.
	Notes []string
}

// Problem is one thing that is wrong with a file: where, what, and what to do.
type Problem struct {
	File   string
	Line   int
	Column int // of the line, from 1; 0: the whole line
	Text   string
}

// Error is FILE:LINE:COLUMN: text.
func (p Problem) Error() string {
	at := p.File
	if p.Line > 0 {
		at += fmt.Sprintf(":%d", p.Line)
	}
	if p.Column > 0 {
		at += fmt.Sprintf(":%d", p.Column)
	}
	return at + ": " + p.Text
}

// Problems are those found in one file; All counts also those that are not listed.
type Problems struct {
	List []Problem
	All  int
}

// Error lists them, one a line.
func (p *Problems) Error() string {
	var b strings.Builder
	for i, x := range p.List {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(x.Error())
	}
	if more := p.All - len(p.List); more > 0 {
		fmt.Fprintf(&b, "\nand %d more", more)
	}
	return b.String()
}

// ReadOptions say how a trace is read.
type ReadOptions struct {
	// SkipBad leaves out rows that cannot be read, and counts them, instead of refusing
	// the trace.
	SkipBad bool
	// Faster divides the times of submission: with 4, jobs arrive four times as fast. 0: 1.
	Faster float64
	// Defaults are given to jobs that name no value of their own.
	Defaults Defaults
}

// Defaults are what rows of a trace do not say.
type Defaults struct {
	CPU      unit.MilliCPU `json:"cpu,omitempty"`    // of each GPU
	Memory   unit.Bytes    `json:"memory,omitempty"` // of each GPU
	Strategy api.Strategy  `json:"strategy,omitempty"`
	Tenant   string        `json:"tenant,omitempty"`
	Queue    string        `json:"queue,omitempty"`
	// Doublings let jobs that name no sizes run with twice, four times, … the ranks that they
	// ask for.
	Doublings int64 `json:"doublings,omitempty"`
	// Wishes hold for jobs of more than AboveGPUs GPUs.
	api.Wishes
	AboveGPUs int64 `json:"aboveGPUs,omitempty"`
}

// ReadTrace reads a trace in any of the known formats; name is the file's, for messages.
func ReadTrace(name string, in io.Reader, o ReadOptions) (*Trace, error) {
	data, err := io.ReadAll(io.LimitReader(in, MaxTraceBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(data) > MaxTraceBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes; cut it into parts", name, MaxTraceBytes)
	}
	if o.Faster < 0 || math.IsNaN(o.Faster) || math.IsInf(o.Faster, 0) {
		return nil, fmt.Errorf("jobs cannot arrive %g times as fast: give a number above 0", o.Faster)
	}
	r := &reader{file: name, options: o, trace: &Trace{Epoch: epoch}, ids: map[string]int{}}
	data = r.tidy(data)
	if first := bytes.TrimLeft(data, " \t\r\n"); len(first) > 0 && first[0] == '{' {
		r.lines(data)
	} else {
		r.table(data)
	}
	return r.finish()
}

// epoch is the instant that the times of a trace count from when it names no date.
var epoch = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)

// reader reads one trace and gathers what is wrong with it.
type reader struct {
	file    string
	options ReadOptions
	trace   *Trace
	bad     Problems
	skipped int
	missing int // rows without a name
	ids     map[string]int
	dated   bool // submissions are nanoseconds since 1970, not since the epoch
}

func (r *reader) problem(line, column int, format string, args ...any) {
	r.bad.All++
	if len(r.bad.List) < mostProblems {
		r.bad.List = append(r.bad.List, Problem{File: r.file, Line: line, Column: column, Text: fmt.Sprintf(format, args...)})
	}
}

func (r *reader) note(format string, args ...any) {
	r.trace.Notes = append(r.trace.Notes, fmt.Sprintf(format, args...))
}

// tidy takes a byte order mark off and counts what is no row.
func (r *reader) tidy(data []byte) []byte {
	if rest, ok := bytes.CutPrefix(data, []byte("\xef\xbb\xbf")); ok {
		r.note("a byte order mark was skipped")
		data = rest
	}
	blank, crlf := 0, false
	for line := range bytes.Lines(data) {
		crlf = crlf || bytes.HasSuffix(line, []byte("\r\n"))
		if len(bytes.TrimSpace(line)) == 0 {
			blank++
		}
	}
	if blank > 0 {
		r.note("%s skipped", counted(blank, "blank line was", "blank lines were"))
	}
	if crlf {
		r.note("lines end with CR LF")
	}
	return data
}

// table reads comma separated values under a header.
func (r *reader) table(data []byte) {
	c := csv.NewReader(bytes.NewReader(data))
	c.FieldsPerRecord, c.ReuseRecord, c.LazyQuotes = -1, true, false
	var f *format
	var head []string
	for {
		rec, err := c.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if p, ok := errors.AsType[*csv.ParseError](err); ok {
				r.problem(p.Line, p.Column, "%v: write a quote within a quoted field twice", p.Err)
			} else {
				r.problem(0, 0, "%v", err)
			}
			return
		}
		line, _ := c.FieldPos(0)
		if len(rec) == 1 && strings.TrimSpace(rec[0]) == "" {
			continue
		}
		if f == nil {
			head = trimmed(rec)
			var why string
			if f, why = formatOf(head); f == nil {
				r.problem(line, 0, "%s", why)
				return
			}
			r.unused(f, head)
			r.trace.Format = f.name
			continue
		}
		if len(r.trace.Jobs) >= MaxJobs {
			r.problem(line, 0, "more than %d jobs; cut the trace into parts", MaxJobs)
			return
		}
		r.row(f, head, rec, line, func(i int) int { _, col := c.FieldPos(i); return col })
	}
	if f == nil {
		r.problem(0, 0, "no header: the first line names the columns, as submit,duration,gpus")
	}
}

// row reads one line of a table.
func (r *reader) row(f *format, head, rec []string, line int, column func(int) int) {
	before := r.bad
	x := &row{r: r, line: line, head: head, rec: rec, column: column}
	if len(rec) != len(head) {
		r.problem(line, 0, "%s; the header names %d", counted(len(rec), "field", "fields"), len(head))
	} else {
		j := Job{Line: line}
		use := f.read(x, &j)
		if r.bad.All == before.All && use {
			r.add(j, column(0))
		}
	}
	if r.options.SkipBad && r.bad.All > before.All {
		r.skipped++
		r.bad = before
	}
}

// unused says which columns nobody looks at.
func (r *reader) unused(f *format, head []string) {
	var names []string
	for _, h := range head {
		if !slices.Contains(f.columns, h) && !slices.Contains(f.may, h) {
			names = append(names, h)
		}
	}
	if len(names) > 0 {
		r.note("columns not used: %s", strings.Join(names, ", "))
	}
}

// add completes a job and checks it as a submission is checked.
func (r *reader) add(j Job, column int) {
	d := &r.options.Defaults
	s := &j.Spec
	if j.Name == "" {
		r.missing++
		j.Name = fmt.Sprintf("job-%d", len(r.trace.Jobs)+1)
	}
	if first, twice := r.ids[j.Name]; twice {
		r.problem(j.Line, column, "the name %.80q is that of line %d; give each job its own", j.Name, first)
		return
	}
	s.Name, s.Kind = j.Name, cmp.Or(s.Kind, api.KindTraining)
	s.Ranks = max(1, s.Ranks)
	s.Strategy = cmp.Or(s.Strategy, d.Strategy, api.Pack)
	s.Tenant, s.Queue = cmp.Or(s.Tenant, d.Tenant), cmp.Or(s.Queue, d.Queue)
	devices := max(1, s.Resources.GPUs)
	if s.Resources.CPU == 0 {
		s.Resources.CPU = max(10, d.CPU*unit.MilliCPU(devices))
	}
	if s.Resources.Memory == 0 {
		s.Resources.Memory = d.Memory * unit.Bytes(devices)
	}
	if j.Milli() > 1000*d.AboveGPUs {
		wish(&s.Wishes, &d.Wishes)
	}
	if s.Sizes == nil && d.Doublings > 0 {
		s.Sizes = &api.Sizes{}
		for k := range min(d.Doublings, mostDoublings) + 1 {
			s.Sizes.Set = append(s.Sizes.Set, s.Ranks<<k)
		}
	}
	before := r.bad.All
	bad := func(pointer, format string, args ...any) {
		r.problem(j.Line, 0, "%s: %s", strings.TrimPrefix(pointer, "/"), fmt.Sprintf(format, args...))
	}
	gang.CheckSizes(s, bad)
	gang.CheckPerNode(s, bad)
	if r.bad.All > before {
		return
	}
	if g := groupOf(s); true {
		if errs := schedule.Validate(g); len(errs) > 0 {
			for _, e := range errs {
				r.problem(j.Line, 0, "%s: %s", strings.TrimPrefix(e.Pointer, "/"), e.Detail)
			}
			return
		}
	}
	r.ids[j.Name] = j.Line
	r.trace.Jobs = append(r.trace.Jobs, j)
}

// wish fills what w does not say from d.
func wish(w, d *api.Wishes) {
	if len(w.Where) == 0 {
		w.Where = d.Where
	}
	if w.Level == "" {
		w.Level, w.LevelWait = d.Level, d.LevelWait
	}
	if len(w.Uses) == 0 {
		w.Uses = d.Uses
	}
	w.WholeNodes = w.WholeNodes || d.WholeNodes
	w.Preemptible = w.Preemptible || d.Preemptible
	w.TimeLimit, w.Estimate = cmp.Or(w.TimeLimit, d.TimeLimit), cmp.Or(w.Estimate, d.Estimate)
	w.MaxWait, w.Reservation = cmp.Or(w.MaxWait, d.MaxWait), cmp.Or(w.Reservation, d.Reservation)
}

// groupOf is the placement group of a job: one bundle for each rank.
func groupOf(s *api.JobSpec) api.GroupSpec {
	g := api.GroupSpec{
		Name: s.Name, Strategy: s.Strategy, PerNode: s.RanksPerNode, Pool: s.Pool, Tenant: s.Tenant, Queue: s.Queue,
		Priority: s.Priority, Wishes: s.Wishes, Bundles: make([]api.Bundle, min(s.Ranks, schedule.MaxBundles+1)),
	}
	for i := range g.Bundles {
		g.Bundles[i].Resources = s.Resources
	}
	return g
}

// finish sorts the jobs and sets the epoch.
func (r *reader) finish() (*Trace, error) {
	t := r.trace
	if r.bad.All > 0 {
		slices.SortStableFunc(r.bad.List, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
		return nil, &r.bad
	}
	if r.skipped > 0 {
		r.note("%s skipped", counted(r.skipped, "row that cannot be read was", "rows that cannot be read were"))
	}
	if len(t.Jobs) == 0 {
		return nil, Problem{File: r.file, Text: "no jobs: the trace has a header and nothing that can be run"}
	}
	if r.dated {
		first := t.Jobs[0].Submit
		for i := range t.Jobs {
			first = min(first, t.Jobs[i].Submit)
		}
		t.Epoch = time.Unix(0, int64(first)).UTC()
		for i := range t.Jobs {
			t.Jobs[i].Submit -= first
		}
	}
	if f := r.options.Faster; f != 0 && f != 1 {
		for i := range t.Jobs {
			j := &t.Jobs[i]
			sooner := float64(j.Submit) / f
			if sooner > float64(longest) {
				return nil, Problem{File: r.file, Line: j.Line, Text: fmt.Sprintf("arriving %g times as fast it is submitted after more than 100 years; give a larger number", f)}
			}
			at := time.Duration(sooner)
			if j.Deadline != 0 {
				j.Deadline += at - j.Submit
			}
			j.Submit = at
		}
	}
	bySubmit := func(a, b Job) int { return cmp.Compare(a.Submit, b.Submit) }
	if !slices.IsSortedFunc(t.Jobs, bySubmit) {
		slices.SortStableFunc(t.Jobs, bySubmit)
		r.note("rows are not in order of their submission; they were sorted, equal times in the file's order")
	}
	return t, nil
}

func counted(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + more
}

func trimmed(rec []string) []string {
	out := make([]string, len(rec))
	for i, s := range rec {
		out[i] = strings.TrimSpace(s)
	}
	return out
}
