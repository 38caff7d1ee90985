package simulate

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// drawCluster draws a small cluster with a bit of everything, as its file has it.
func drawCluster(t *rapid.T) map[string]any {
	pick := func(name string, of ...string) string { return rapid.SampledFrom(of).Draw(t, name) }
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(t, name) }
	yes := func(name string) bool { return rapid.Bool().Draw(t, name) }
	out := map[string]any{}
	nodes := []any{map[string]any{"count": n("nodes", 1, 4), "gpus": n("gpus", 1, 8), "every": map[string]any{"rack": n("rack", 1, 3)}, "pool": pick("pool", "", "big")}}
	if yes("more nodes") {
		nodes = append(nodes, map[string]any{"count": n("more", 1, 3), "gpus": n("gpus", 0, 4), "model": "H200", "cpu": "64", "memory": "64GiB"})
	}
	out["nodes"], out["levels"] = nodes, []any{map[string]any{"name": "rack", "label": "rack"}}
	switch n("queues", 0, 2) {
	case 1:
		out["queues"] = []any{map[string]any{"name": "a", "tenant": true, "limit": map[string]any{"gpu": 1000 * n("limit", 0, 12)}, "order": pick("order", "", "fifo", "short", "deadline")}}
	case 2:
		queues := []any{map[string]any{"name": "all", "tenant": true, "limit": map[string]any{"gpu": 40_000}}}
		for _, name := range []string{"a", "b"} {
			g := n("guaranteed", 0, 8)
			queues = append(queues, map[string]any{
				"name": name, "parent": "all", "guaranteed": map[string]any{"gpu": 1000 * g}, "lend": map[string]any{"gpu": 1000 * n("lend", 0, g)},
				"weight": n("weight", 0, 3), "order": pick("order", "", "fifo", "short", "deadline"), "maxWait": pick("maxWait", "", "10m", "1h"),
			})
			if yes("no max wait") {
				delete(queues[len(queues)-1].(map[string]any), "maxWait")
			}
		}
		out["queues"] = queues
	}
	if q, ok := out["queues"].([]any); ok {
		for _, x := range q {
			if m := x.(map[string]any); m["maxWait"] == "" {
				delete(m, "maxWait")
			}
		}
	}
	if yes("reservation") {
		r := map[string]any{"name": "r", "start": fmt.Sprintf("2000-01-01T0%d:00:00Z", n("from", 0, 3)), "end": "2000-01-01T06:00:00Z", "count": n("count", 1, 3)}
		r[pick("for", "maintenance", "queue")] = "default"
		if _, ok := out["queues"]; ok {
			delete(r, "queue")
			r["maintenance"] = "fans"
		}
		out["reservations"] = []any{r}
	}
	if yes("capacity") {
		out["capacities"] = []any{map[string]any{"name": "nfs", "total": n("total", 0, 10), "overhead": 0}}
	}
	policy := map[string]any{"planned": n("planned", 0, 3), "protect": pick("protect", "0s", "1m", "30m"), "growAfter": pick("grow", "0s", "5m")}
	policy["order"], policy["noBackfill"] = pick("order", "fair", "fifo", "short", "deadline"), n("backfill", 0, 5) == 0
	out["policy"] = policy
	if yes("checkpoints") {
		out["checkpoints"] = map[string]any{"interval": pick("interval", "1m", "10m", "1h"), "save": pick("save", "0s", "5s", "2m")}
	}
	failures := map[string]any{}
	for _, what := range []string{"node", "gpu", "rank"} {
		if n("fails", 0, 2) == 0 {
			failures[what] = map[string]any{"mtbf": pick("mtbf", "2h", "10h", "100h"), "repair": pick("repair", "1m", "1h"), "shape": rapid.SampledFrom([]float64{0, 0.5, 1, 3}).Draw(t, "shape")}
		}
	}
	out["failures"], out["start"] = failures, pick("start", "0s", "30s")
	return out
}

// drawJob draws a line of a trace for it.
func drawJob(t *rapid.T, cluster map[string]any, at int) map[string]any {
	pick := func(name string, of ...string) string { return rapid.SampledFrom(of).Draw(t, name) }
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(t, name) }
	yes := func(name string) bool { return rapid.Bool().Draw(t, name) }
	some := func(name string) bool { return n(name, 0, 3) == 0 }
	j := map[string]any{"submit": at, "duration": n("duration", 0, 12000), "name": fmt.Sprintf("j%d", at)}
	ranks := 1 << n("log2 of ranks", 0, 4)
	j["ranks"] = ranks
	switch n("resources", 0, 3) {
	case 0:
		j["resources"] = map[string]any{"share": n("share", 1, 1000)}
	case 1:
		j["resources"] = map[string]any{"cpu": "1", "memory": "1GiB"}
	default:
		j["resources"] = map[string]any{"gpus": n("gpus", 0, 2)}
	}
	if _, ok := cluster["queues"]; ok {
		j["queue"] = pick("queue", "a", "a", "b", "")
		if j["queue"] != "" && len(cluster["queues"].([]any)) == 1 {
			delete(j, "queue")
			j["tenant"] = "a"
		}
	}
	j["priority"], j["preemptible"] = n("priority", -2, 2)*10, yes("preemptible")
	if some("sizes") {
		j["sizes"] = map[string]any{"min": max(1, ranks/2), "max": 2 * ranks}
	}
	if some("strategy") {
		j["strategy"] = pick("which", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
	}
	if some("level") {
		j["level"] = "rack"
		if yes("wait") {
			j["levelWait"] = pick("long", "0s", "10m")
		}
	}
	if some("whole") && j["resources"].(map[string]any)["share"] == nil {
		j["wholeNodes"] = true
	}
	if some("estimate") {
		j["estimate"] = fmt.Sprintf("%ds", n("estimate", 1, 9000))
	} else if some("limit") {
		j["timeLimit"] = fmt.Sprintf("%ds", n("limit", 1, 9000))
	}
	if some("deadline") {
		j["deadlineAfter"] = n("after", 0, 20000)
	}
	if some("most") {
		j["maxWait"] = pick("maxWait", "1s", "10m", "2h")
	}
	if some("uses") && cluster["capacities"] != nil {
		j["uses"] = map[string]any{"nfs": n("uses", 1, 6)}
	}
	if some("reservation") && cluster["reservations"] != nil {
		j["reservation"] = "r"
	}
	return j
}

// Any cluster plays any trace: the state refuses nothing that the scheduler
// decides, its invariants hold after every entry, books are not negative, and what never ran
// has a reason. A gang that needs all of a cluster that fails all the time may never get to
// its end: it is watched for as long as is enough.
func TestAnyTraceOnAnyCluster(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		drawn := drawCluster(t)
		text, err := json.Marshal(drawn)
		if err != nil {
			t.Fatal(err)
		}
		c, err := ParseCluster("cluster", text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var lines strings.Builder
		at := 0
		for range rapid.IntRange(1, 14).Draw(t, "jobs") {
			at += rapid.IntRange(1, 200).Draw(t, "pause")
			line, err := json.Marshal(drawJob(t, drawn, at))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&lines, "%s\n", line)
		}
		tr, err := ReadTrace("trace", strings.NewReader(lines.String()), ReadOptions{SkipBad: true, Defaults: c.Jobs})
		if err != nil {
			t.Skip(err)
		}
		r, err := Run(t.Context(), c, tr, Options{Seed: rapid.Uint64().Draw(t, "seed"), Check: true, Until: enough(c)})
		if err != nil {
			t.Fatalf("%s\n%s%v", text, lines.String(), err)
		}
		checkOutcomes(t, r)
	})
}

// checkOutcomes says what is impossible about the ends of jobs.
func checkOutcomes(t interface {
	Errorf(format string, args ...any)
}, r *Result,
) {
	for i := range r.Jobs {
		o := &r.Jobs[i]
		if o.Ran && o.Wait() < 0 || o.Done && o.Completion() < o.Wait() || o.Lost < 0 || o.Useful < 0 {
			t.Errorf("%s: waited %s, ended after %s, useful %g, lost %g", o.Job.Name, o.Wait(), o.Completion(), o.Useful, o.Lost)
		}
		if !o.Ran && o.Failed == "" && o.Job.Submit < r.Ended && r.Waiting[o.Job.Name] == "" {
			t.Errorf("%s waits without a reason", o.Job.Name)
		}
	}
}
