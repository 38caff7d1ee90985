package hostile

import (
	"slices"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// program is one misbehaving job and the end that it must come to.
type program struct {
	name  string
	ranks int
	argv  func(c *cluster) []string
	spec  []any  // more fields of the job
	past  bool   // the command line would refuse it; the API cannot know
	ready string // stop it once this is in its log; "" lets it end by itself
	state api.JobState
	code  int64
	text  string // part of the reason
}

func native(args ...string) func(*cluster) []string {
	return func(c *cluster) []string { return append([]string{c.hostile}, args...) }
}

func python(code string) func(*cluster) []string {
	return func(*cluster) []string { return []string{pythonBin, "-u", "-c", code} }
}

func shell(code string) func(*cluster) []string {
	return func(c *cluster) []string {
		return []string{"sh", "-c", strings.ReplaceAll(code, "HOSTILE", c.hostile)}
	}
}

var programs = []program{
	{name: "ignores-term", ranks: 2, argv: native("ignore-term"), ready: "ready", state: api.Stopped, code: 0},
	{name: "family", ranks: 2, argv: native("family"), ready: "ready", state: api.Stopped},
	{name: "daemon", ranks: 2, argv: native("daemon"), state: api.Succeeded},
	{name: "daemon-fails", ranks: 1, argv: native("daemon", "7"), state: api.Failed, code: 7},
	{name: "setsid-keeps-mark", ranks: 2, argv: shell("setsid sleep 3600 & exit 0"), state: api.Succeeded},
	{name: "hops", ranks: 1, argv: shell("HOSTILE hop & HOSTILE sleep & echo ready; wait"), ready: "ready", state: api.Stopped},
	{name: "closes-stdio", ranks: 2, argv: native("close-stdio"), ready: "ready", state: api.Stopped},
	{name: "100-MB-binary", ranks: 1, argv: native("print", "100000000"), state: api.Succeeded},
	{name: "100-MB-line", ranks: 1, argv: python("import sys\nfor i in range(100): sys.stdout.write('x'*1000000)"), state: api.Succeeded},
	{name: "fork-bomb", ranks: 1, argv: shell("i=0; while [ $i -lt 200 ]; do HOSTILE ignore-term & i=$((i+1)); done; echo bomb; exit 3"), state: api.Failed, code: 3},
	{
		name: "eats-memory", ranks: 1, argv: native("eat", "400000000"), spec: []any{"resources", map[string]any{"memory": "64MiB"}},
		state: api.Failed, code: 137, text: "memory",
	},
	{
		name: "import-error", ranks: 2, argv: python("import nothing_of_that_name"), spec: []any{"restart", map[string]any{"user": 3}},
		state: api.Failed, code: 1, text: "nothing_of_that_name",
	},
	{name: "0-and-42", ranks: 2, argv: native("raise-rank", "1", "42"), state: api.Failed, code: 42},
	{name: "0-first-then-42", ranks: 2, argv: shell("[ $RANK = 0 ] && exit 0; sleep 0.3; exit 42"), state: api.Failed, code: 42},
	{name: "segv", ranks: 2, argv: shell("[ $RANK = 0 ] && sleep 30; kill -SEGV $$"), state: api.Failed, code: 139, text: "SEGV"},
	{name: "changes-folder", ranks: 2, argv: shell("cd / && rm -rf \"$OLDPWD/none\" && exit 0"), state: api.Succeeded},
	{name: "deletes-folder", ranks: 1, argv: shell("mkdir -p gone && cd gone && rmdir ../gone && exit 5"), state: api.Failed, code: 5},
	{name: "never-steps", ranks: 2, argv: python("import troupe\ntroupe.init()\nprint(troupe.resume_point())"), state: api.Succeeded},
	{
		name: "missing-program", ranks: 2, argv: native("exit", "0"), spec: []any{"command", []string{"no-such-program"}}, past: true,
		state: api.Failed, code: 127, text: "no-such-program",
	},
	{name: "not-executable", ranks: 1, argv: native(), spec: []any{"command", []string{"/etc/passwd"}}, past: true, state: api.Failed, code: 126, text: "passwd"},
	{
		name: "missing-folder", ranks: 1, argv: native("exit", "0"), spec: []any{"workingDir", "/no/such/folder"}, past: true,
		state: api.Failed, code: 127, text: "/no/such/folder",
	},
	{name: "kills-its-group", ranks: 2, argv: shell("kill -TERM 0; sleep 5; exit 9"), state: api.Failed, code: 143},
	{
		name: "kills-its-parent", ranks: 1, argv: shell("kill -KILL $PPID; sleep 60"), spec: []any{"restart", map[string]any{"infrastructure": 1}},
		state: api.Failed, code: api.ExitRetry,
	},
}

// withoutGroups are the programs for which it matters whether there are control groups.
var withoutGroups = []string{"ignores-term", "family", "daemon", "hops", "fork-bomb", "eats-memory", "kills-its-parent"}

// TestPrograms runs each misbehaving program to its end (P6, P8, P11).
func TestPrograms(t *testing.T) {
	for _, o := range []options{{}, {fallback: true}} {
		name := "cgroup"
		if o.fallback {
			name = "fallback"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, o)
			for _, p := range programs {
				if testing.Short() && o.fallback && !slices.Contains(withoutGroups, p.name) {
					continue
				}
				t.Run(p.name, func(t *testing.T) {
					sub := *c
					sub.t = t
					p.run(&sub)
				})
			}
			c.idle()
		})
	}
}

func (p program) run(c *cluster) {
	c.t.Helper()
	job := with(spec(p.name, p.ranks, p.argv(c)...), p.spec...)
	var id string
	if p.past {
		id = c.post(job)
	} else {
		id = c.submit(job)
	}
	if p.ready != "" {
		c.await(id+" is ready", func() (string, bool) {
			r := c.troupe("logs", id)
			return r.String() + c.tell(id), strings.Count(r.out, p.ready) >= p.ranks
		})
		if r := c.troupe("stop", id, "--yes"); r.code != 0 {
			c.t.Errorf("%s", r)
		}
		// P11: stop returns when the processes are gone.
		if l := ofJob(id); len(l) > 0 {
			c.t.Errorf("stop returned with %v alive", l)
		}
	}
	j := c.ended(id, p.state, p.code)
	if p.text != "" && (j.Reason == nil || !strings.Contains(j.Reason.Text, p.text)) {
		c.t.Errorf("the reason does not tell %q: %+v", p.text, j.Reason)
	}
	code := p.code
	if p.state == api.Stopped {
		code = api.ExitFailed // what was waited for, its success, came out false
	}
	if w := c.troupe("wait", id); int64(w.code) != code {
		c.t.Errorf("wait gives another code than %d: %s", code, w)
	}
}
