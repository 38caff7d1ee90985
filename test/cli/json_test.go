package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// problemIn reads a text that is one problem object and nothing else.
func problemIn(text string) (api.Problem, error) {
	var p api.Problem
	return p, one(text, &p)
}

// one decodes exactly one JSON document.
func one(text string, v any) error {
	d := json.NewDecoder(strings.NewReader(text))
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w in %q", err, text)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("more than one document in %q", text)
	}
	return nil
}

// shape lists the paths in a JSON value with their types: ".items[].id string".
func shape(v any) []string {
	seen := map[string]bool{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if len(v) == 0 {
				seen[path+" object"] = true
			}
			for k, x := range v {
				walk(path+"."+k, x)
			}
		case []any:
			if len(v) == 0 {
				seen[path+" list"] = true
			}
			for _, x := range v {
				walk(path+"[]", x)
			}
		case string:
			seen[path+" string"] = true
		case json.Number:
			seen[path+" number"] = true
		case bool:
			seen[path+" bool"] = true
		case nil:
			seen[path+" null"] = true
		}
	}
	walk("", v)
	out := make([]string, 0, len(seen))
	for p := range seen {
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

// shapeOf decodes every document of a text, one for json and one a line for jsonl, into
// one shape.
func shapeOf(text string) (string, int, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var all []any
	for {
		var v any
		err := d.Decode(&v)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", 0, fmt.Errorf("%w in %q", err, text)
		}
		all = append(all, v)
	}
	lines := shape(all)
	for i, l := range lines {
		lines[i] = strings.TrimPrefix(l, "[]")
	}
	return strings.Join(lines, "\n") + "\n", len(all), nil
}

// golden compares with what is recorded, or records it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "shapes", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the JSON of %s changed; if it was meant to: go test ./test/cli -run Shapes -update\ngot\n%s\nwant\n%s", name, got, want)
	}
}

// TestShapes freezes the JSON of every command. A field that goes missing or changes
// its type breaks programs that read it; a new one is recorded with -update. That no
// command is left out is tested beside the command tree.
func TestShapes(t *testing.T) {
	h := newHome(t)
	python := h.python()
	script, err := filepath.Abs("testdata/saver.py")
	if err != nil {
		t.Fatal(err)
	}
	h.write("job.yaml", "name: filed\ncommand: [\"true\"]\n")
	check := func(name string, code int, args ...string) result {
		t.Helper()
		r := h.want(code, append(args, "-o", "json")...)
		got, n, err := shapeOf(r.out)
		if err != nil {
			t.Fatalf("%v\n%v", err, r)
		}
		if n != 1 && name != "job-logs" && name != "logs" {
			t.Errorf("%d documents: %v", n, r)
		}
		if r.errout != "" {
			t.Errorf("words on stderr: %v", r)
		}
		golden(t, name, got)
		return r
	}
	check("up", 0, "up", "-d", "--port", "0", "--gpus", "fake:2x80GiB", "--name", "box")
	t.Cleanup(func() { h.troupe("down", "--yes") })
	check("version", 0, "version")
	h.write("jobs.csv", "submit,duration,ranks,gpus\n0,600,8,1\n10,60,4,1\n")
	check("simulate", 0, "simulate", "--cluster", "1x8", "--trace", "jobs.csv")
	check("limits", 0, "limits")
	check("help", 0, "help", "exit-codes")
	check("context-list", 0, "context", "list")
	check("context-use", 0, "context", "use", "local")
	check("head-init", 0, "head", "init", "--state", filepath.Join(h.dir, "apart"))
	check("join-key-new", 0, "join-key", "new")
	check("join-key-path", 0, "join-key", "path")
	check("status", 0, "status")
	check("node-list", 0, "node", "list")
	run := []string{"run", "--name", "saver", "--ranks", "2", "--gpus", "1", "--max-restarts", "1", "--checkpoint-every", "5steps", "--env", "PYTHONPATH", "-o", "json", "--", python, script, "20", "12"}
	r := h.want(0, run...)
	if got, n, err := shapeOf(r.out); err != nil || n != 1 {
		t.Fatalf("%v %d %v", err, n, r)
	} else {
		golden(t, "run", got)
	}
	check("job-list", 0, "job", "list")
	check("ps", 0, "ps")
	check("job-get", 0, "job", "get", "@last")
	check("job-history", 0, "job", "history", "@last")
	check("job-failures", 0, "job", "failures", "@last")
	check("job-goodput", 0, "job", "goodput", "@last")
	check("job-wait", 0, "job", "wait", "@last")
	check("wait", 0, "wait", "@last")
	check("job-events", 0, "job", "events", "@last")
	check("events", 0, "events")
	check("job-logs", 0, "job", "logs", "@last")
	check("logs", 0, "logs", "-f", "@last")
	check("checkpoint-list", 0, "checkpoint", "list", "saver")
	check("checkpoint-verify", 0, "checkpoint", "verify", "saver")
	var step struct{ Store string }
	if err := json.Unmarshal([]byte(check("checkpoint-get", 0, "checkpoint", "get", "saver", "20").out), &step); err != nil {
		t.Fatal(err)
	}
	check("checkpoint-pin", 0, "checkpoint", "pin", "saver", "15")
	check("checkpoint-unpin", 0, "checkpoint", "unpin", "saver", "15")
	exported := filepath.Join(h.dir, "exported")
	check("checkpoint-export", 0, "checkpoint", "export", "saver", "20", exported)
	if _, err := os.Stat(filepath.Join(exported, "rank-1", "count.json")); err != nil {
		t.Error(err)
	}
	check("checkpoint-lineage", 0, "checkpoint", "lineage", "saver")
	check("checkpoint-remove", 0, "checkpoint", "remove", "saver", "15", "-y")
	check("checkpoint-gc", 0, "checkpoint", "gc", "saver")
	check("checkpoint-adopt", 0, "checkpoint", "adopt", "saver", step.Store)
	check("why", 0, "why", "@last")
	check("submit", 0, "submit", "job.yaml", "--wait")
	eventually(t, "the devices of the ended jobs are free", func() error {
		if r := h.want(0, "node", "list", "-o", "json"); strings.Contains(r.out, `"owner"`) {
			return errors.New(r.out)
		}
		return nil
	})
	group := strings.TrimSpace(h.want(0, "pg", "create", "--gpus", "1", "-o", "name").out)
	check("pg-create", 0, "pg", "create", "--bundles", "1", "--gpus", "2", "--name", "big")
	eventually(t, "groups of ended jobs are still listed", func() error {
		if out := h.want(0, "pg", "list", "-o", "name").out; strings.Count(out, "\n") != 2 {
			return errors.New(out)
		}
		return nil
	})
	check("pg-list", 0, "pg", "list")
	check("pg-get", 0, "pg", "get", group)
	check("pg-wait", 0, "pg", "wait", group)
	check("pg-remove", 0, "pg", "remove", group)
	h.want(0, "run", "--detach", "--name", "long", "--gpus", "0", "--", "sleep", "1000")
	h.want(0, "job", "wait", "long-", "--for", "running")
	check("job-signal", 0, "job", "signal", "long-", "SIGCONT")
	check("job-stack", 0, "job", "stack", "long-")
	check("job-scale", 0, "job", "scale", "long-", "--ranks", "2", "--no-wait")
	check("job-stop", 0, "job", "stop", "long-", "--yes", "--grace", "1s")
	check("stop", 0, "stop", "long-")
	harmed := strings.Fields(h.want(0, "run", "--detach", "-o", "name", "--name", "harmed", "--gpus", "0", "--max-restarts", "1", "--", "sleep", "600").out)[0]
	check("chaos", 0, "chaos", harmed, "kill-rank", "--yes")
	h.want(0, "stop", harmed, "--yes")
	queueShapes(t, h, check)
	check("node-get", 0, "node", "get", "box")
	check("node-cordon", 0, "node", "cordon", "box", "--reason", "later")
	check("node-uncordon", 0, "node", "uncordon", "box")
	check("node-drain", 0, "node", "drain", "box", "--deadline", "1m")
	check("ui", 0, "ui")
	check("actor-list", 0, "actor", "list")
	check("down", 0, "down", "--yes")
}
