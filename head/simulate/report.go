package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// Report is what a run came to, for people and programs. Times are durations; parts are
// between 0 and 1.
type Report struct {
	Trace          string        `json:"trace"`
	Format         string        `json:"format"`
	Policy         string        `json:"policy"`
	Seed           uint64        `json:"seed"`
	GPUs           int64         `json:"gpus"`
	Jobs           int           `json:"jobs"`
	Finished       int           `json:"finished"`
	Failed         int           `json:"failed"`       // refused, or out of restarts
	Waiting        int           `json:"waiting"`      // never started
	Cut            int           `json:"cut"`          // still running at the end
	Notes          []string      `json:"notes"`        // on reading the trace
	Span           unit.Duration `json:"span"`         // of the trace, until the last event
	Classes        []Class       `json:"classes"`      // by size; the first is all jobs
	GPUHours       float64       `json:"gpuHours"`     // held
	LostGPUHours   float64       `json:"lostGpuHours"` // of them in vain
	SavingGPUHours float64       `json:"savingGpuHours"`
	// Utilisation is the part of the GPUs that was held, over the whole span, and
	// Fragmentation the part of the free ones that stood on nodes of which something was
	// held.
	Utilisation   float64 `json:"utilisation"`
	Fragmentation float64 `json:"fragmentation"`
	Failures      int64   `json:"failures"` // of nodes, devices and programs
	Restarts      int64   `json:"restarts"`
	Preemptions   int64   `json:"preemptions"`
	Grown         int64   `json:"grown"` // changes of size
	Shrunk        int64   `json:"shrunk"`
	Deadlines     int     `json:"deadlines"`
	Missed        int     `json:"deadlinesMissed"`
	// Why says, for jobs that failed or never started, what kept them; at most 100.
	Why      []Why  `json:"why"`
	Commands uint64 `json:"commands"`
	Cycles   int64  `json:"cycles"`
}

// Why is one job that did not finish, and the reason.
type Why struct {
	Job    string `json:"job"`
	Reason string `json:"reason"`
}

// Class is the jobs of one size.
type Class struct {
	Name       string `json:"name"`
	Jobs       int    `json:"jobs"` // that finished
	Completion Spread `json:"completion"`
	Wait       Spread `json:"wait"`
}

// Spread is a distribution of times.
type Spread struct {
	Mean unit.Duration `json:"mean"`
	P50  unit.Duration `json:"p50"`
	P99  unit.Duration `json:"p99"`
	Max  unit.Duration `json:"max"`
}

// sizes are the classes of jobs, by GPUs.
var sizes = []struct {
	name      string
	low, high int64
}{
	{"all", 0, 1 << 62}, {"1 GPU or less", 0, 1}, {"2–7 GPUs", 2, 7}, {"8–15 GPUs", 8, 15}, {"16 GPUs or more", 16, 1 << 62},
}

// NewReport sums a run up.
func NewReport(t *Trace, r *Result, policy string, seed uint64, gpus int64) *Report {
	out := &Report{
		Format: t.Format, Policy: policy, Seed: seed, GPUs: gpus, Jobs: len(r.Jobs), Notes: append([]string{}, t.Notes...), Span: unit.Duration(r.Ended),
		Failures: r.Failures, Commands: r.Commands, Cycles: r.Cycles, Why: []Why{},
	}
	for i := range r.Jobs {
		o := &r.Jobs[i]
		out.GPUHours += o.Busy / 1000 / 3600
		out.LostGPUHours += o.Lost / 1000 / 3600
		out.SavingGPUHours += o.Saving / 1000 / 3600
		out.Restarts += o.Restarts
		out.Preemptions += o.Evictions
		out.Grown += o.Grown
		out.Shrunk += o.Shrunk
		if d := o.Job.Deadline; d != 0 {
			out.Deadlines++
			if !o.Done || o.Ended > d {
				out.Missed++
			}
		}
		switch {
		case o.Done:
			out.Finished++
		case o.Failed != "":
			out.Failed++
			out.why(o.Job.Name, o.Failed)
		case o.Ran:
			out.Cut++
		default:
			out.Waiting++
			out.why(o.Job.Name, cmp.Or(r.Waiting[o.Job.Name], "it waited when the trace ended"))
		}
	}
	for _, s := range sizes {
		c := Class{Name: s.name}
		var waits, completions []time.Duration
		for i := range r.Jobs {
			if o := &r.Jobs[i]; o.Done && o.Job.GPUs() >= s.low && o.Job.GPUs() <= s.high {
				waits, completions = append(waits, o.Wait()), append(completions, o.Completion())
			}
		}
		c.Jobs, c.Wait, c.Completion = len(waits), spread(waits), spread(completions)
		out.Classes = append(out.Classes, c)
	}
	out.fullness(r)
	return out
}

func (r *Report) why(job, reason string) {
	if len(r.Why) < mostReasons {
		r.Why = append(r.Why, Why{job, reason})
	}
}

// fullness weighs the samples by how long they held.
func (r *Report) fullness(res *Result) {
	var there, used, free, partly float64
	for i, s := range res.Samples {
		until := res.Ended
		if i+1 < len(res.Samples) {
			until = res.Samples[i+1].At
		}
		held := (until - s.At).Seconds()
		there += held * float64(s.There)
		used += held * float64(s.Used)
		free += held * float64(s.There-s.Used)
		partly += held * float64(s.Partly)
	}
	if there > 0 {
		r.Utilisation = used / there
	}
	if free > 0 {
		r.Fragmentation = partly / free
	}
}

// spread sums times up; p99 is the value at ⌊0.99 n⌋ in order.
func spread(times []time.Duration) Spread {
	if len(times) == 0 {
		return Spread{}
	}
	slices.Sort(times)
	var sum float64
	for _, d := range times {
		sum += d.Seconds()
	}
	return Spread{
		Mean: unit.Duration(sum / float64(len(times)) * float64(time.Second)),
		P50:  unit.Duration(quantile(times, 0.5)), P99: unit.Duration(quantile(times, 0.99)), Max: unit.Duration(times[len(times)-1]),
	}
}

// quantile is the value at ⌊q n⌋ in order.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// Text prints a part as a percentage.
func percent(part float64) string { return fmt.Sprintf("%.1f %%", 100*part) }

// Rows are the report as lines of a name and a value, below the table of classes.
func (r *Report) Rows() [][2]string {
	out := [][2]string{
		{"jobs", fmt.Sprintf("%d: %d finished, %d failed or refused, %d never started, %d still running", r.Jobs, r.Finished, r.Failed, r.Waiting, r.Cut)},
		{"span", r.Span.D().Round(time.Second).String()},
		{"GPUs", fmt.Sprintf("%d, %s held; of the free ones %s on nodes in use", r.GPUs, percent(r.Utilisation), percent(r.Fragmentation))},
		{"GPU-hours", fmt.Sprintf("%.0f held, %.0f of them lost, %.0f to save", r.GPUHours, r.LostGPUHours, r.SavingGPUHours)},
		{"failures", fmt.Sprintf("%d, %d restarts, %d preemptions", r.Failures, r.Restarts, r.Preemptions)},
	}
	if r.Grown+r.Shrunk > 0 {
		out = append(out, [2]string{"sizes", fmt.Sprintf("%d times larger, %d times smaller", r.Grown, r.Shrunk)})
	}
	if r.Deadlines > 0 {
		out = append(out, [2]string{"deadlines", fmt.Sprintf("%d of %d met, %s", r.Deadlines-r.Missed, r.Deadlines, percent(float64(r.Deadlines-r.Missed)/float64(r.Deadlines)))})
	}
	return out
}
