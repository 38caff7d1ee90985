package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// format is one kind of table: the columns by which it is known, those that it uses
// besides, and how a row becomes a job. read answers false for a row that is not run.
type format struct {
	name    string
	columns []string
	may     []string
	read    func(x *row, j *Job) bool
}

// own lists the columns that Troupe's own tables may have besides submit and duration.
var own = []string{
	"name", "ranks", "gpus", "share", "cpu", "memory", "tenant", "queue", "pool", "priority", "level", "level_wait", "whole_nodes",
	"preemptible", "estimate", "time_limit", "deadline", "max_wait", "strategy", "per_node", "min_ranks", "max_ranks", "multiple", "sizes", "reservation",
}

// formats are those that are known, tried in order. The public ones are described by
// their publishers; each is read as it is.
var formats = []format{
	{name: "troupe", columns: []string{"submit", "duration"}, may: own, read: readOwn},
	{name: "philly", columns: []string{"timestamp", "duration", "num_gpus"}, may: []string{"cluster"}, read: func(x *row, j *Job) bool {
		j.Submit, j.Takes = x.moment("timestamp"), x.seconds("duration")
		devices(j, x.count("num_gpus", 1))
		j.Spec.Tenant = x.text("cluster")
		return true
	}},
	{name: "elasticflow", columns: []string{"job_id", "submit_time", "ddl", "num_gpu", "duration"}, may: []string{"model_name"}, read: func(x *row, j *Job) bool {
		j.Name, j.Submit, j.Takes = named(x, "job_id"), x.seconds("submit_time"), x.seconds("duration")
		j.Deadline = x.seconds("ddl")
		devices(j, x.count("num_gpu", 1))
		if at := x.column(slices.Index(x.head, "ddl")); j.Deadline < j.Submit {
			x.problem(at, "ddl: the deadline is before the submission")
		}
		return true
	}},
	{name: "openb pods", columns: []string{"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time"}, may: []string{"gpu_spec"}, read: readPod},
	{name: "kalos", columns: []string{"arrival_time", "num_iteration", "iteration_computing_time", "gpu_workers", "gpu_per_worker"}, may: []string{"job_id"}, read: func(x *row, j *Job) bool {
		j.Name, j.Submit = named(x, "job_id"), x.seconds("arrival_time")
		each, n := x.seconds("iteration_computing_time"), x.count("num_iteration", 0)
		if n > 0 && each > longest/time.Duration(n) {
			x.problem(x.column(0), "%d iterations of %s are more than 100 years", n, each)
			return false
		}
		j.Takes = time.Duration(n) * each
		nodes(j, x.count("gpu_workers", 1), x.count("gpu_per_worker", 1))
		return true
	}},
	{name: "kalos gangs", columns: []string{"submit_s", "duration_s", "nodes", "gpus_per_node"}, may: []string{"job_id", "gpus"}, read: func(x *row, j *Job) bool {
		j.Name, j.Submit, j.Takes = named(x, "job_id"), x.seconds("submit_s"), x.seconds("duration_s")
		nodes(j, x.count("nodes", 1), x.count("gpus_per_node", 1))
		return true
	}},
	{name: "tiresias", columns: []string{"job_id", "num_gpu", "submit_time", "duration", "iterations"}, may: []string{"model_name"}, read: func(x *row, j *Job) bool {
		j.Name, j.Submit, j.Takes = named(x, "job_id"), x.seconds("submit_time"), x.seconds("duration")
		devices(j, x.count("num_gpu", 1))
		return true
	}},
}

// devices asks for one rank with one GPU each.
func devices(j *Job, gpus int64) {
	j.Spec.Ranks, j.Spec.Resources.GPUs = gpus, 1
}

// nodes asks for one rank on each node, with so many GPUs.
func nodes(j *Job, n, gpus int64) {
	j.Spec.Ranks, j.Spec.Resources.GPUs = n, gpus
	j.Spec.Strategy = api.StrictSpread
}

func named(x *row, column string) string {
	if s := x.text(column); s != "" {
		return "job-" + s
	}
	return ""
}

// readPod reads a pod of one device, a part of it, or several.
func readPod(x *row, j *Job) bool {
	j.Name, j.Submit = x.text("name"), x.seconds("creation_time")
	end := x.seconds("deletion_time")
	if x.has("scheduled_time") {
		// It ran from when it was scheduled; what never was has its whole life as its length.
		if from := x.seconds("scheduled_time"); from <= end {
			j.Takes = end - from
		} else {
			_, at := x.field("scheduled_time")
			x.problem(at, "scheduled_time is after deletion_time")
		}
	} else if j.Takes = end - j.Submit; j.Takes < 0 {
		_, at := x.field("deletion_time")
		x.problem(at, "deletion_time is before creation_time")
	}
	s := &j.Spec
	s.Resources.CPU = unit.MilliCPU(x.count("cpu_milli", 0))
	s.Resources.Memory = unit.Bytes(x.count("memory_mib", 0)) * unit.MiB
	n, milli := x.count("num_gpu", 0), x.optional("gpu_milli", 0)
	switch {
	case n == 1 && milli > 0 && milli < 1000:
		s.Resources.Share = milli
	case n > 0 && milli != 1000:
		_, at := x.field("gpu_milli")
		x.problem(at, "gpu_milli: %d of each of %d GPUs; only one GPU can be shared", milli, n)
	default:
		s.Resources.GPUs = n
	}
	if models := x.text("gpu_spec"); models != "" {
		s.Where = []api.LabelRule{{Key: "gpu-model", Op: "in", Values: sortedWords(models, "|")}}
	}
	s.Kind = api.KindService
	return true
}

func sortedWords(s, separator string) []string {
	words := strings.Split(s, separator)
	slices.Sort(words)
	return slices.Compact(words)
}

// readOwn reads a row of Troupe's own table.
func readOwn(x *row, j *Job) bool {
	j.Name, j.Submit, j.Takes = x.text("name"), x.seconds("submit"), x.seconds("duration")
	s := &j.Spec
	s.Ranks = max(1, x.optional("ranks", 1))
	s.Resources.GPUs, s.Resources.Share = x.optional("gpus", 0), x.optional("share", 0)
	if text, at := x.field("cpu"); text != "" {
		v, err := unit.ParseMilliCPU(text)
		if err != nil {
			x.problem(at, "cpu: %v", err)
		}
		s.Resources.CPU = v
	}
	if text, at := x.field("memory"); text != "" {
		v, err := unit.ParseBytes(text)
		if err != nil {
			x.problem(at, "memory: %v", err)
		}
		s.Resources.Memory = v
	}
	s.Tenant, s.Queue, s.Pool = x.text("tenant"), x.text("queue"), x.text("pool")
	s.Priority = x.optional("priority", -1_000_000)
	s.Level, s.Reservation = x.text("level"), x.text("reservation")
	if x.has("level_wait") {
		d := unit.Duration(x.seconds("level_wait"))
		s.LevelWait = &d
	}
	s.WholeNodes, s.Preemptible = x.truth("whole_nodes"), x.truth("preemptible")
	s.Estimate, s.TimeLimit = unit.Duration(x.optionalSeconds("estimate")), unit.Duration(x.optionalSeconds("time_limit"))
	s.MaxWait = unit.Duration(x.optionalSeconds("max_wait"))
	if x.has("deadline") {
		j.Deadline = j.Submit + x.seconds("deadline")
	}
	if text, at := x.field("strategy"); text != "" {
		s.Strategy = api.Strategy(strings.ToUpper(text))
		if !slices.Contains([]api.Strategy{api.Pack, api.Spread, api.StrictPack, api.StrictSpread}, s.Strategy) {
			x.problem(at, "strategy: %.40q is none of PACK, SPREAD, STRICT_PACK, STRICT_SPREAD", text)
		}
	}
	s.RanksPerNode = x.optional("per_node", 0)
	// What is not said of the sizes is the one that is asked for.
	if low, high := x.optional("min_ranks", 1), x.optional("max_ranks", 1); low > 0 || high > 0 {
		s.Sizes = &api.Sizes{Min: cmp.Or(low, s.Ranks), Max: cmp.Or(high, s.Ranks), Multiple: x.optional("multiple", 1)}
	} else if text, at := x.field("multiple"); text != "" {
		x.problem(at, "multiple: without min_ranks or max_ranks there is one size; give one of them, or leave it out")
	}
	if text, at := x.field("sizes"); text != "" {
		if s.Sizes != nil {
			x.problem(at, "sizes: a list of sizes, or min_ranks and max_ranks; not both")
		}
		s.Sizes = &api.Sizes{Set: x.sizes(text, at)}
	}
	return true
}

// formatOf knows a table by its header.
func formatOf(head []string) (*format, string) {
	seen := map[string]bool{}
	for _, h := range head {
		if h != "" && seen[h] {
			return nil, fmt.Sprintf("the column %.40q stands twice in the header", h)
		}
		seen[h] = true
	}
	var known []string
	for i := range formats {
		f := &formats[i]
		if !slices.ContainsFunc(f.columns, func(c string) bool { return !seen[c] }) {
			if f.name == "troupe" {
				if why := strangers(head); why != "" {
					return nil, why
				}
			}
			return f, ""
		}
		known = append(known, f.name+" ("+strings.Join(f.columns, ", ")+")")
	}
	switch {
	case seen["application"] && seen["num_replicas"]:
		return nil, "the table names applications and no durations: their profiles are needed; give a column duration"
	case seen["num_gpu"] && seen["gpu_milli"]:
		return nil, "the table names shapes and no times: add creation_time, deletion_time and scheduled_time, or use `make bench-sched` for packing"
	}
	return nil, "the header is that of no known trace. Known, with the columns that each needs: " + strings.Join(known, "; ")
}

// strangers names a column that Troupe's own table does not have: a misspelt wish must
// not be lost.
func strangers(head []string) string {
	for _, h := range head {
		if h != "submit" && h != "duration" && !slices.Contains(own, h) {
			return fmt.Sprintf("unknown column %.40q; a trace of Troupe's own has submit, duration and any of %s", h, strings.Join(own, ", "))
		}
	}
	return ""
}
