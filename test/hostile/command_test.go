package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// result is what a command said.
type result struct {
	args     []string
	out, err string
	code     int
	took     time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("troupe %s: exit code %d in %s\n%s%s", strings.Join(r.args, " "), r.code, r.took.Round(time.Millisecond), clip(r.out), clip(r.err))
}

func clip(s string) string {
	if len(s) > 3000 {
		return s[:1500] + "\n…\n" + s[len(s)-1500:]
	}
	return s
}

// troupe runs a command of the binary; it always comes back.
func (c *cluster) troupe(args ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, troupeBin, args...)
	var out, errb bytes.Buffer
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = c.env, c.dir, &out, &errb
	if c.addr != "" && !strings.HasSuffix(c.addr, ":0") && args[0] != "up" && args[0] != "head" {
		cmd.Args = append(cmd.Args, "--address", c.addr)
	}
	began := time.Now()
	err := cmd.Run()
	r := result{args: args, out: out.String(), err: errb.String(), took: time.Since(began)}
	switch {
	case ctx.Err() != nil:
		r.code, r.err = -2, r.err+"the command did not come back"
	case cmd.ProcessState != nil:
		r.code = cmd.ProcessState.ExitCode()
	default:
		r.code, r.err = -3, err.Error()
	}
	return r
}

func get[T any](c *cluster, args ...string) T {
	c.t.Helper()
	var v T
	r := c.troupe(append(args, "-o", "json")...)
	if r.code != 0 {
		c.t.Fatalf("%s", r)
	}
	if err := json.Unmarshal([]byte(r.out), &v); err != nil {
		c.t.Fatalf("%v in %s", err, r)
	}
	return v
}

func (c *cluster) job(id string) api.Job { c.t.Helper(); return get[api.Job](c, "job", "get", id) }

func (c *cluster) node() api.Node {
	c.t.Helper()
	l := get[api.List[api.Node]](c, "node", "list")
	if len(l.Items) != 1 {
		c.t.Fatalf("%d nodes", len(l.Items))
	}
	return l.Items[0]
}

// spec is a job of so many ranks of a program.
func spec(name string, ranks int, argv ...string) map[string]any {
	return map[string]any{
		"name": name, "command": argv, "ranks": ranks, "env": map[string]string{"PYTHONPATH": helperPath},
		"restart": map[string]any{"user": 0}, "shutdownTimeout": "300ms", "resources": map[string]any{"cpu": "10m"},
	}
}

func with(m map[string]any, pairs ...any) map[string]any {
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

// trySubmit hands a job in and returns what the command said.
func (c *cluster) trySubmit(s map[string]any, more ...string) result {
	c.t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		c.t.Fatal(err)
	}
	f, err := os.CreateTemp(c.dir, "job-*.yaml")
	if err != nil {
		c.t.Fatal(err)
	}
	_, _ = f.Write(b)
	f.Close()
	return c.troupe(append([]string{"submit", f.Name(), "-o", "json"}, more...)...)
}

func (c *cluster) submit(s map[string]any, more ...string) string {
	c.t.Helper()
	r := c.trySubmit(s, more...)
	var j api.Job
	if r.code != 0 || json.Unmarshal([]byte(r.out), &j) != nil {
		c.t.Fatalf("%s", r)
	}
	return j.ID
}

// post hands a job in without the command line, which checks some things beforehand.
func (c *cluster) post(s map[string]any) string {
	c.t.Helper()
	status, body := c.request(s)
	var j api.Job
	if status != http.StatusCreated || json.Unmarshal(body, &j) != nil {
		c.t.Fatalf("status %d: %s", status, body)
	}
	return j.ID
}

// request posts any value, or a string as it is, to the jobs of the API.
func (c *cluster) request(v any) (int, []byte) {
	c.t.Helper()
	return c.call(http.MethodPost, "/api/v1/jobs", v)
}

// call sends any value, or a string as it is, to a route of the API.
func (c *cluster) call(method, route string, v any) (int, []byte) {
	c.t.Helper()
	body, raw := v.(string)
	if !raw {
		b, err := json.Marshal(v)
		if err != nil {
			c.t.Fatal(err)
		}
		body = string(b)
	}
	token, err := os.ReadFile(filepath.Join(c.state, "head", "admin.token"))
	if err != nil {
		c.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.addr+route, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, []byte(err.Error()) // closed while it was still sent
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, answer
}

// await polls until a condition holds; on the limit it reports the last state.
func (c *cluster) await(what string, ok func() (last string, done bool)) {
	c.t.Helper()
	awaitFor(c.t, what, patience, ok)
}

func awaitFor(t *testing.T, what string, limit time.Duration, ok func() (last string, done bool)) time.Duration {
	t.Helper()
	began := time.Now()
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		last, done := ok()
		if done {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			t.Fatalf("not within %s: %s; last state: %s", limit, what, last)
		}
		time.Sleep(wait)
	}
}

// awaitState waits for one of some states.
func (c *cluster) awaitState(id string, states ...api.JobState) api.Job {
	c.t.Helper()
	var j api.Job
	c.await(fmt.Sprintf("%s is %v", id, states), func() (string, bool) {
		j = c.job(id)
		if slices.Contains(states, j.State) {
			return "", true
		}
		if j.State.Terminal() {
			c.t.Fatalf("%s is %s, wanted %v: %s", id, j.State, states, c.tell(id))
		}
		return c.tell(id), false
	})
	return j
}

// ended waits for the end of a job and for everything of it to be gone (P6, P8, P11).
func (c *cluster) ended(id string, want api.JobState, code int64) api.Job {
	c.t.Helper()
	var j api.Job
	c.await(id+" ends", func() (string, bool) {
		j = c.job(id)
		return c.tell(id), j.State.Terminal()
	})
	// A job that was stopped has no exit code: nothing of it failed or came to its end.
	if j.State != want || (j.ExitCode == nil) != (want == api.Stopped) || j.ExitCode != nil && *j.ExitCode != code {
		c.t.Errorf("%s: %s, want %s with exit code %d\n%s", id, j.State, want, code, c.tell(id))
	}
	c.clean(id)
	return j
}

// tell is what matters of a job, for a failure message.
func (c *cluster) tell(id string) string {
	j := c.job(id)
	code := int64(-1)
	if j.ExitCode != nil {
		code = *j.ExitCode
	}
	reason := ""
	if j.Reason != nil {
		reason = fmt.Sprintf("[%s] %s", j.Reason.Code, j.Reason.Text)
	}
	return fmt.Sprintf("%s attempt %d exit code %d %s\n%s", j.State, j.Attempt, code, reason, clip(c.events(id)))
}

func (c *cluster) events(id string) string { return c.troupe("job", "events", id).out }

func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-6000):])
}
